"""One record, written and waited for: what the client says of it (a scripted producer, no broker)."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from statechannel.kafka import tail
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import AppendOutcomeUnknownError, KafkaClientError
from statechannel.kafka.tail import BlockingWriter, append_and_wait

CONFIGS: list[dict[str, Any]] = []


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], int]:
    """Append one record, whose report names this offset."""

    def append(offset: int | None, **options: bool) -> int:
        class Producer:
            def __init__(self, config: dict[str, Any]) -> None:
                CONFIGS.append(config)

            def produce(self, *_: object, on_delivery: Callable[[None, Any], None], **__: object) -> None:
                self.deliver = on_delivery

            def poll(self, _: float) -> None:
                self.deliver(None, SimpleNamespace(offset=lambda: offset))

        monkeypatch.setattr(tail, "Producer", Producer)
        return append_and_wait(ClientSettings("h:1"), "t", 0, key=b"k", value=b"v", **options)

    return append


def test_the_offset_is_that_of_the_report(reported: Callable[[int | None], int]) -> None:
    assert [reported(offset) for offset in (0, 7)] == [0, 7]


@pytest.mark.parametrize("offset", [None, -1, -1001])
def test_a_success_without_an_offset_is_not_one_at_offset_0(reported: Callable[[int | None], int], offset: int | None):
    with pytest.raises(AppendOutcomeUnknownError, match="without its offset"):
        reported(offset)


def test_only_what_may_be_there_twice_is_written_without_an_id_of_the_producer(reported: Callable[..., int]) -> None:
    CONFIGS.clear()
    reported(3)
    reported(3, repeatable=True)
    assert [config["enable.idempotence"] for config in CONFIGS] == [True, False]
    assert [config["acks"] for config in CONFIGS] == ["all", "all"]


# --- several records ------------------------------------------------------------------------------------------------


class Scripted:
    """A producer that answers each record with the next outcome; None: not at all. Its queue has room for two."""

    def __init__(self, outcomes: list[KafkaError | int | None]) -> None:
        self.outcomes = outcomes
        self.queue: list[Callable[[KafkaError | None, Any], None]] = []
        self.taken = 0
        self.purged = False

    def produce(self, *_: object, on_delivery: Callable[[KafkaError | None, Any], None], **__: object) -> None:
        if len(self.queue) == 2:
            raise BufferError
        self.taken += 1
        self.queue.append(on_delivery)

    def poll(self, _: float) -> int:
        if not self.queue or not self.outcomes:
            return 0
        outcome = self.outcomes.pop(0)
        if outcome is None:
            self.outcomes.clear()
            return 0
        deliver = self.queue.pop(0)
        deliver(
            *((outcome, None) if isinstance(outcome, KafkaError) else (None, SimpleNamespace(offset=lambda: outcome)))
        )
        return 1

    def flush(self, _: float) -> int:
        return len(self.queue)

    def purge(self) -> None:
        self.purged = True


@pytest.fixture
def writer_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[BlockingWriter, Scripted]]:
    def make(*outcomes: KafkaError | int | None) -> tuple[BlockingWriter, Scripted]:
        producer = Scripted(list(outcomes))
        monkeypatch.setattr(tail, "Producer", lambda _: producer)
        return BlockingWriter(ClientSettings("h:1"), "t", "writing to t", timeout_s=0.1), producer

    return make


RECORDS = [(0, b"k", b"%d" % number) for number in range(4)]


def test_more_records_than_fit_into_the_queue_are_all_written(
    writer_of: Callable[..., tuple[BlockingWriter, Scripted]],
) -> None:
    writer, producer = writer_of(5, 6, 7, 8)
    result = writer.write(RECORDS)
    writer.require(result)
    assert (result.written, result.failed, result.unanswered, result.offset) == (4, 0, 0, 8)
    assert producer.taken == 4


def test_a_refused_record_is_counted_and_its_error_is_the_first_one(
    writer_of: Callable[..., tuple[BlockingWriter, Scripted]],
) -> None:
    refused = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
    writer, _ = writer_of(5, refused, KafkaError(KafkaError.INVALID_MSG), 8)
    result = writer.write(RECORDS)
    assert (result.written, result.failed, result.unanswered) == (2, 2, 0)
    assert result.error is refused
    with pytest.raises(KafkaClientError, match="MSG_SIZE_TOO_LARGE"):
        writer.require(result)


def test_a_queue_that_stays_full_leaves_the_outcome_unknown(writer_of: Callable[..., tuple[BlockingWriter, Scripted]]):
    writer, producer = writer_of(5, None)
    result = writer.write(RECORDS)
    assert (result.written, result.unanswered) == (1, 3), "two are in the queue, and one found no room"
    with pytest.raises(AppendOutcomeUnknownError, match="did not confirm"):
        writer.require(result)
    writer.close(0)
    assert producer.purged


def test_a_record_that_timed_out_may_still_be_written(writer_of: Callable[..., tuple[BlockingWriter, Scripted]]):
    writer, _ = writer_of(KafkaError(KafkaError._MSG_TIMED_OUT))
    with pytest.raises(AppendOutcomeUnknownError):
        writer.require(writer.write(RECORDS[:1]))
