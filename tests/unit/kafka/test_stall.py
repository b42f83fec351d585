"""A consumer that gets nothing although the log goes on is made anew; nothing is lost or comes twice."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from statechannel.core.inputs import Input, RecordRead, Topic
from statechannel.kafka import light_topic, reader, tail
from statechannel.kafka.client_settings import ClientSettings, ClientTuning
from statechannel.kafka.stall import DOUBLINGS_MAX, Stall
from statechannel.kafka.topic_watch import Findings
from statechannel.kafka.topics import TopicInfo
from tests.support.waits import WAIT_S

SETTINGS = ClientSettings("127.0.0.1:1", tuning=ClientTuning(stall_timeout_s=0.05))
PLACE = ("c", 0)


def looks(stall: Stall, *answers: tuple[float, int, int | None]) -> list[bool]:
    return [stall.look(*answer) for answer in answers]


@pytest.mark.parametrize(
    ("answers", "stalled"),
    [
        (((0.0, 5, 5), (99.0, 5, 5)), False),  # nothing to read
        (((0.0, 5, 6), (9.9, 5, 6)), False),  # not yet
        (((0.0, 5, 6), (10.0, 5, 6)), True),
        (((0.0, 5, 5), (50.0, 5, 6), (59.9, 5, 6)), False),  # what came a moment ago is still on its way
        (((0.0, 5, 5), (50.0, 5, 6), (60.0, 5, 9)), True),
        (((0.0, 5, 6), (9.0, 6, 8), (18.9, 6, 8)), False),  # it moves
        (((0.0, 5, 6), (9.0, 6, 8), (19.0, 6, 8)), True),
        (((0.0, 5, 6), (9.0, 5, None), (20.0, 5, 6), (29.9, 5, 6)), False),  # Kafka was away
        (((0.0, 5, 6), (9.0, 5, None), (20.0, 5, 6), (30.0, 5, 6)), True),
        (((0.0, 5, 6), (9.0, 5, 4), (20.0, 5, 6)), False),
    ],
)
def test_a_reader_stands_still_that_polls_in_vain_while_there_is_something_to_read(
    answers: tuple[tuple[float, int, int | None], ...], stalled: bool
) -> None:
    found = looks(Stall(10.0), *answers)
    assert found == [False] * (len(answers) - 1) + [stalled]


def test_where_a_new_consumer_does_not_help_the_patience_doubles_up_to_a_bound() -> None:
    stall = Stall(1.0)
    renewed_s = [second for second in range(300) if stall.look(float(second), 5, 6)]
    apart_s = [later - earlier for earlier, later in zip([0, *renewed_s], renewed_s, strict=False)]
    assert apart_s[: DOUBLINGS_MAX + 3] == [1, 2, 4, 8, 16, 32, 32, 32]
    stall.look(300.0, 6, 7)
    assert looks(stall, (300.9, 6, 7), (301.0, 6, 7)) == [False, True]


# --- the readers ------------------------------------------------------------------------------------------------------


class Message:
    def __init__(self, offset: int) -> None:
        self._offset = offset

    def __len__(self) -> int:
        return 2

    def _none(self) -> None:
        return None

    error = headers = _none

    def topic(self) -> str:
        return "c"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return (2, 7)

    def key(self) -> bytes:
        return b"k"

    value = key


class Kafka:
    """A log of `end` records; the first consumers hand out `stuck_at` of them and then nothing."""

    def __init__(self, end: int, stuck_at: int, consumers_stuck: int = 1) -> None:
        self.end, self.stuck_at, self.consumers_stuck = end, stuck_at, consumers_stuck
        self.made: list[Consumer] = []

    def consumer(self, _: Any) -> "Consumer":
        end = self.stuck_at if len(self.made) < self.consumers_stuck else self.end
        self.made.append(Consumer(self, end))
        return self.made[-1]


class Consumer:
    def __init__(self, kafka: Kafka, end: int) -> None:
        self._kafka, self._end = kafka, end
        self.position = -1
        self.closed = False

    def assign(self, places: list[TopicPartition]) -> None:
        (place,) = places
        self.position = place.offset

    incremental_assign = assign

    def unassign(self) -> None:
        self.position = -1

    def close(self) -> None:
        self.closed = True

    def poll(self, timeout_s: float) -> Message | None:
        assert not self.closed
        if not 0 <= self.position < self._end:
            time.sleep(min(timeout_s, 0.01))
            return None
        self.position += 1
        return Message(self.position - 1)

    def consume(self, *_: object) -> list[Message]:
        return []

    def get_watermark_offsets(self, *_: object, **__: object) -> tuple[int, int]:
        assert not self.closed
        return (0, self._kafka.end)


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    kafka = Kafka(end=5, stuck_at=2)
    for module in (tail, reader, light_topic):
        monkeypatch.setattr(module, "Consumer", kafka.consumer)
    return kafka


def offsets(kafka: Kafka, read: Callable[[], list[int]]) -> None:
    """All records come once, in order, by one consumer more than stand still."""
    assert read() == list(range(kafka.end))
    assert [consumer.closed for consumer in kafka.made[:-1]] == [True] * kafka.consumers_stuck


@pytest.mark.parametrize("consumers_stuck", [0, 1, 2])
def test_who_follows_a_log_goes_on_where_it_was(kafka: Kafka, consumers_stuck: int) -> None:
    kafka.consumers_stuck = consumers_stuck

    def read() -> list[int]:
        with tail.PartitionTail(SETTINGS, Topic.CHANNEL, "c", 0, group_id="g") as following:
            until_s = time.monotonic() + WAIT_S
            read: list[int] = []
            for batch in following.follow(0, stop=lambda: time.monotonic() > until_s):
                read += [record.offset for record in batch]
                if len(read) >= 5:
                    break
            return read

    offsets(kafka, read)


def test_who_reads_to_an_end_does_too(kafka: Kafka) -> None:
    def read() -> list[int]:
        with tail.PartitionTail(SETTINGS, Topic.CHANNEL, "c", 0, group_id="g", timeout_s=WAIT_S) as reading:
            return [record.offset for record in reading.records(tail.Span(0, 0, 5))]

    offsets(kafka, read)


def test_who_follows_a_quiet_log_keeps_its_consumer(kafka: Kafka) -> None:
    kafka.end = kafka.stuck_at
    with tail.PartitionTail(SETTINGS, Topic.CHANNEL, "c", 0, group_id="g") as following:
        until_s = time.monotonic() + 0.5
        for _ in following.follow(0, stop=lambda: time.monotonic() > until_s):
            pass
    assert len(kafka.made) == 1


@pytest.mark.parametrize("consumers_stuck", [0, 1])
def test_a_member_goes_on_where_it_was(kafka: Kafka, monkeypatch: pytest.MonkeyPatch, consumers_stuck: int) -> None:
    kafka.consumers_stuck = consumers_stuck
    findings = Findings(0.0, answered=True, ends={PLACE: 5})
    watch = SimpleNamespace(due=lambda _: True, hurry=lambda: None, poll=lambda *_: findings)
    monkeypatch.setattr(reader, "TopicWatch", lambda *_, **__: watch)
    monkeypatch.setattr(reader, "Message", Message)
    got: list[Input] = []
    reading = reader.LogReader(SETTINGS, {Topic.CHANNEL: TopicInfo("c", "id", 1, 1, {})}, got.extend, group_id="g")

    def read() -> list[int]:
        until_s = time.monotonic() + WAIT_S
        while sum(isinstance(one, RecordRead) for one in got) < 5 and time.monotonic() < until_s:
            reading._step()
        return [one.offset for one in got if isinstance(one, RecordRead)]

    offsets(kafka, read)


@pytest.mark.parametrize("consumers_stuck", [0, 1])
def test_a_reader_of_load_data_goes_on_where_it_was(kafka: Kafka, consumers_stuck: int) -> None:
    kafka.consumers_stuck = consumers_stuck
    got: list[light_topic.LightBatch] = []
    reading = light_topic.LightReader(SETTINGS, "c", got.append, group_id="g")
    reading.start()

    def read() -> list[int]:
        until_s = time.monotonic() + WAIT_S
        while sum(len(batch.records) for batch in got) < 5 and time.monotonic() < until_s:
            time.sleep(0.01)
        return [record.offset for batch in got for record in batch.records]

    offsets(kafka, read)
    assert reading.close(WAIT_S)
    assert sum(batch.opened for batch in got) == 1


def test_an_error_while_asking_is_left_to_the_reading(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> tuple[int, int]:
        raise tail.KafkaException(KafkaError(KafkaError._TRANSPORT))

    monkeypatch.setattr(Consumer, "get_watermark_offsets", refuse)
    with tail.PartitionTail(SETTINGS, Topic.CHANNEL, "c", 0, group_id="g") as following:
        until_s = time.monotonic() + 0.3
        found = [r for batch in following.follow(0, stop=lambda: time.monotonic() > until_s) for r in batch]
    assert len(found) == 2
    assert len(kafka.made) == 1
