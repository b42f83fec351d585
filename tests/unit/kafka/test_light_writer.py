"""The light writer drops the old for the new, and never waits (a scripted producer, no broker)."""

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from statechannel.kafka import light_topic
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import KafkaAdapterError
from statechannel.kafka.light_topic import LightTuning, LightWriter, producer_config
from statechannel.kafka.partition_consumer import headers_of
from tests.support.waits import WAIT_S, wait_until

SETTINGS = ClientSettings("h:1")


class ScriptedProducer:
    """Keeps what it is given; the test decides what becomes of it, inside `poll` as the real one."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.taken: list[bytes] = []
        self.held: list[Callable[..., None]] = []
        self.room = 1_000
        self.raises: Exception | None = None
        self.poll_raises: BaseException | None = None
        self.answering = False
        self.error: KafkaError | None = None
        self.lock = threading.Lock()

    def produce(self, topic: str, *, value: bytes, on_delivery: Callable[..., None], **_: object) -> None:
        if self.raises is not None:
            raise self.raises
        with self.lock:
            if len(self.held) >= self.room:
                raise BufferError("full")
            self.taken.append(value)
            self.held.append(on_delivery)

    def poll(self, timeout: float) -> int:
        if self.poll_raises is not None:
            raise self.poll_raises
        with self.lock:
            ends = self.answering or self.error is not None
            held, self.held = (self.held, []) if ends else ([], self.held)
            error, self.error = self.error, None
        for item in held:
            item(error, None)
        if not held:
            threading.Event().wait(min(timeout, 0.005))
        return len(held)

    def fail_with(self, error: KafkaError) -> None:
        """Report it of what is held, at the next `poll`."""
        self.error = error

    def purge(self, *, in_queue: bool, in_flight: bool, blocking: bool) -> None:
        assert in_queue
        assert in_flight
        assert not blocking, "the reports are served by `poll`"
        with self.lock:
            held, self.held = self.held, []
        for item in held:
            item(KafkaError(KafkaError._PURGE_QUEUE), None)


class Rig:
    def __init__(self, **tuning: int) -> None:
        self.producers: list[ScriptedProducer] = []
        self.writer = LightWriter(
            SETTINGS,
            tuning=LightTuning(**{"queue_records": 3, "in_flight_records": 2, **tuning}),
            make_producer=self._make,
        )

    def _make(self, config: dict[str, Any]) -> ScriptedProducer:
        self.producers.append(ScriptedProducer(config))
        return self.producers[-1]

    @property
    def producer(self) -> ScriptedProducer:
        return self.producers[-1]

    def write(self, *values: bytes) -> None:
        for value in values:
            assert self.writer.write("t", b"k", value)

    def until(self, true: Callable[[], bool]) -> None:
        wait_until(true, lambda: self.writer.counts, pause_s=0.002)


@pytest.fixture
def rig() -> Any:
    rig = Rig()
    yield rig
    rig.writer.close(0.01)


def test_written_and_counted(rig: Rig) -> None:
    rig.producer.answering = True
    rig.write(b"1", b"2")
    assert rig.writer.flush(5)
    assert rig.producer.taken == [b"1", b"2"]
    assert rig.writer.counts.to_json() == {
        "taken": 2,
        "written": 2,
        "dropped": 0,
        "failed": 0,
        "replaced": 0,
        "last_error": "",
    }


def test_of_what_waits_too_long_the_oldest_is_dropped(rig: Rig) -> None:
    rig.write(b"1", b"2")
    rig.until(lambda: len(rig.producer.held) == 2)
    rig.write(*(b"%d" % number for number in range(3, 9)))
    assert rig.writer.counts.dropped == 3
    rig.producer.answering = True
    assert rig.writer.flush(5)
    assert rig.producer.taken == [b"1", b"2", b"6", b"7", b"8"]


def test_a_full_client_is_asked_again_in_order() -> None:
    rig = Rig(queue_records=10, in_flight_records=5)
    rig.producer.room = 2
    rig.write(b"1", b"2", b"3", b"4")
    rig.until(lambda: len(rig.producer.held) == 2)
    rig.producer.answering = True
    assert rig.writer.flush(5)
    assert rig.producer.taken == [b"1", b"2", b"3", b"4"]
    assert rig.writer.close(1)


def test_what_the_client_refuses_is_counted_as_failed(rig: Rig) -> None:
    SETTINGS.notes.refusals.clear()
    rig.producer.raises = KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    rig.write(b"1" * 1_000)
    rig.until(lambda: rig.writer.counts.failed == 1)
    assert "MSG_SIZE_TOO_LARGE" in rig.writer.counts.last_error
    assert rig.writer.unanswered == 0
    (refusal,) = SETTINGS.notes.refusals
    assert " 1,001 bytes" in refusal.message
    assert "message.max.bytes" in refusal.message, "the client's limit, not the topic's"


def test_what_kafka_refuses_for_good_is_noted(rig: Rig) -> None:
    SETTINGS.notes.refusals.clear()
    rig.write(b"1")
    rig.until(lambda: rig.producer.held)
    rig.producer.fail_with(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    assert rig.writer.flush(5)
    assert [refusal.code for refusal in SETTINGS.notes.refusals] == ["TOPIC_AUTHORIZATION_FAILED"]
    assert rig.writer.counts.failed == 1


@pytest.mark.parametrize("how", ["told", "raised"])
def test_a_client_that_failed_for_good_is_replaced(rig: Rig, how: str) -> None:
    rig.write(b"1")
    rig.until(lambda: len(rig.producer.held) == 1)
    error = KafkaError(KafkaError._FATAL, "out of sequence", True)
    if how == "told":
        rig.producer.config["error_cb"](error)
    else:
        rig.producer.poll_raises = KafkaException(error)
    rig.until(lambda: len(rig.producers) == 2)
    rig.producer.answering = True
    rig.write(b"2")
    assert rig.writer.flush(5)
    assert (rig.writer.counts.failed, rig.writer.counts.written) == (1, 1)
    rig.producers[0].purge(in_queue=True, in_flight=True, blocking=False)  # what the old one says late counts no more
    assert rig.writer.counts.failed == 1


@pytest.mark.parametrize("raised", [KafkaException("odd"), RuntimeError("broken")])
def test_a_client_that_fails_in_another_way_is_replaced_too(rig: Rig, raised: Exception) -> None:
    rig.producer.poll_raises = raised
    rig.write(b"1")
    rig.until(lambda: len(rig.producers) == 2)
    rig.producer.answering = True
    rig.write(b"2")
    assert rig.writer.flush(WAIT_S)
    counts = rig.writer.counts
    assert (counts.replaced, counts.failed, counts.written, counts.last_error) == (1, 1, 1, repr(raised))


def test_no_process_waits_for_its_thread() -> None:
    before = set(threading.enumerate())
    rig = Rig()
    (thread,) = set(threading.enumerate()) - before
    assert thread.daemon
    assert rig.writer.close(1.0)
    assert not thread.is_alive()


def test_who_waits_for_the_last_answer_is_woken_by_it(rig: Rig) -> None:
    flushed: list[bool] = []
    rig.write(b"1")
    waiting = threading.Thread(target=lambda: flushed.append(rig.writer.flush(3_600.0)), daemon=True)
    waiting.start()
    time.sleep(0.02)
    rig.producer.answering = True
    waiting.join(WAIT_S)
    assert flushed == [True]


def test_closing_gives_up_what_is_left() -> None:
    rig = Rig()
    rig.write(b"1", b"2")
    rig.until(lambda: len(rig.producer.held) == 2)
    rig.write(b"3")
    assert rig.writer.unanswered == 3
    assert not rig.writer.close(0.05)
    assert (rig.writer.counts.failed, rig.writer.counts.dropped, rig.writer.unanswered) == (2, 1, 0)
    assert not rig.writer.write("t", b"k", b"4")


def test_it_is_not_the_channels_producer() -> None:
    for acks in (0, 1):
        config = producer_config(SETTINGS, LightTuning(acks=acks, linger_ms=30))
        assert (config["acks"], config["enable.idempotence"], config["linger.ms"]) == (acks, False, 30)
        assert config["bootstrap.servers"] == "h:1"
        assert config["retries"] == 3


@pytest.mark.parametrize(
    "wrong", [{"acks": -1}, {"queue_records": 0}, {"linger_ms": 10, "delivery_timeout_ms": 10}, {"retries_max": -1}]
)
def test_tuning_that_makes_no_sense(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"acks is 0 or 1|a queue holds|sent again"):
        LightTuning(**wrong)


def test_a_property_that_the_client_refuses() -> None:
    with pytest.raises(KafkaAdapterError, match="light producer"):
        LightWriter(ClientSettings("h:1", {"no.such.property": "1"}))


class Message:
    def __init__(self, headers: object) -> None:
        self._answer = headers

    def headers(self) -> object:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


@pytest.mark.parametrize(
    ("expected", "read"),
    [
        (None, ()),
        ([("a", b"1"), ("b", None), ("c", "text")], (("a", b"1"), ("b", None), ("c", b"text"))),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), ()),
    ],
)
def test_headers_of_any_kind(expected: object, read: object) -> None:
    assert headers_of(Message(expected)) == read  # type: ignore[arg-type]


TIMED_OUT, REFUSED = KafkaError._MSG_TIMED_OUT, KafkaError.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize(
    ("silent_s", "code", "replaced"), [(350.0, TIMED_OUT, False), (360.0, TIMED_OUT, True), (360.0, REFUSED, False)]
)
def test_a_producer_by_which_nothing_is_delivered_any_more_is_replaced(
    monkeypatch: pytest.MonkeyPatch, silent_s: float, code: int, replaced: bool
) -> None:
    skipped = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + skipped[0])
    monkeypatch.setattr(light_topic, "time", clock)
    rig = Rig(delivery_timeout_ms=60_000)
    rig.write(b"1")
    rig.until(lambda: rig.producers[0].held)
    skipped[0] += silent_s
    rig.producers[0].fail_with(KafkaError(code))
    assert rig.writer.flush(WAIT_S)
    rig.write(b"2")
    rig.until(lambda: any(b"2" in producer.taken for producer in rig.producers))
    assert [b"2" in producer.taken for producer in rig.producers] == ([False, True] if replaced else [True])
    assert rig.writer.counts.failed == 1
    rig.writer.close(0.01)
