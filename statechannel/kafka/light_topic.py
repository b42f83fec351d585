"""Topics whose records may be lost, such as load reports: a writer that never blocks, and a reader that follows a topic."""
# ruff: noqa: SLF001  (the client library's public error codes start with an underscore)

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from statechannel.kafka.client_settings import OncePerKind, make_client, place_and_size
from statechannel.kafka.errors import describe, is_topic_missing, kafka_error_of
from statechannel.kafka.partition_consumer import LOST_POSITION, PartitionConsumer, headers_of
from statechannel.protocol.side_record import Headers, SideRecord

if TYPE_CHECKING:
    from confluent_kafka import Message

    from statechannel.kafka.client_settings import ClientSettings

_log = logging.getLogger(__name__)
_log.addFilter(OncePerKind("reading "))  # while Kafka is away, two errors take turns several times a second

_IDLE_S = 0.5
_REPORTS_S = 0.02
_PURGE_S = 2.0
_MENDED_S = 1.0
"""Pause before a client that failed is replaced."""
_STALLED_AFTER_TIMEOUTS = 6
"""Delivery time-outs without a delivery after which a producer is replaced: Kafka is down, or the client is stuck."""


@dataclass(frozen=True, slots=True)
class LightTuning:
    """Guarantees given up for speed.

    Attributes:
        acks: 1: the partition's leader has it; 0: it was sent.
        linger_ms: How long a record may wait for others to share a request with.
        queue_records: Records that may wait here; beyond it the oldest is dropped.
        in_flight_records: Records given to the client at once; the others wait where they can still be dropped.
        delivery_timeout_ms: After this long a record that Kafka has not taken is given up.
        retries_max: How often a record whose answer was lost is sent again: Kafka may have it, and then keeps each copy. While
            Kafka is away nothing is sent, and nothing counts.
    """

    acks: int = 1
    linger_ms: int = 20
    queue_records: int = 1_000
    in_flight_records: int = 100
    delivery_timeout_ms: int = 5_000
    retries_max: int = 3

    def __post_init__(self) -> None:
        if self.acks not in (0, 1):
            raise ValueError(f"acks is 0 or 1 for a light topic, not {self.acks}")
        if min(self.queue_records, self.in_flight_records) < 1 or self.delivery_timeout_ms <= self.linger_ms:
            raise ValueError("a queue holds at least one record, and delivery takes longer than lingering")
        if self.retries_max < 0:
            raise ValueError(f"a record is not sent again {self.retries_max} times")


@dataclass(slots=True)
class LightCounts:
    """Outcomes of the records.

    Attributes:
        written: Confirmed (with acks 0: sent).
        dropped: Too many waited; never sent.
        failed: Kafka refused them, or did not take them in time; they may be in the log or may not.
        replaced: Producers that failed; their records count as failed.
    """

    taken: int = 0
    written: int = 0
    dropped: int = 0
    failed: int = 0
    replaced: int = 0
    last_error: str = ""

    def to_json(self) -> dict[str, int | str]:
        return asdict(self)


class _Waiting(NamedTuple):
    topic: str
    key: bytes
    value: bytes | None
    headers: Headers


class LightWriter:
    """Writes to partition 0 of light topics in its own thread. `write` may be called from any thread, and never blocks.

    Raises:
        KafkaAdapterError: A client property is refused.
    """

    def __init__(
        self,
        settings: ClientSettings,
        *,
        tuning: LightTuning | None = None,
        make_producer: Callable[..., Producer] = Producer,
    ) -> None:
        self._tuning = tuning or LightTuning()
        self._settings = settings
        self._secrets = settings.secrets()
        self._changed = threading.Condition()
        self._waiting: deque[_Waiting] = deque()
        self._in_flight = 0
        self._closed = False
        self._stopping = False
        self._fatal = ""
        self._delivered_s = time.monotonic()
        self._config = producer_config(settings, self._tuning)
        self._make_producer = make_producer
        self._producer = self._open()
        self.counts = LightCounts()
        self._thread = threading.Thread(target=self._run, name="light-writer", daemon=True)
        self._thread.start()

    def write(self, topic: str, key: bytes, value: bytes | None, headers: Headers = ()) -> bool:
        """Queue a record; False if the writer is closed, and the record was not taken."""
        with self._changed:
            self.counts.taken += 1
            if self._closed:
                self.counts.dropped += 1
                return False
            if len(self._waiting) >= self._tuning.queue_records:
                self._waiting.popleft()
                self.counts.dropped += 1
            self._waiting.append(_Waiting(topic, key, value, headers))
            self._changed.notify_all()
            return True

    @property
    def unanswered(self) -> int:
        with self._changed:
            return len(self._waiting) + self._in_flight

    def flush(self, timeout_s: float) -> bool:
        """Wait until every record has ended; False if the time ran out first."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._in_flight, timeout_s)

    def close(self, timeout_s: float = 2.0) -> bool:
        """Flush, give up what is left, stop; True if nothing was left. Later writes are refused."""
        with self._changed:
            self._closed = True
        clean = self.flush(timeout_s)
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(_PURGE_S + 1.0)
        return clean

    def _open(self) -> Producer:
        config = {**self._config, "error_cb": self._on_error}
        return make_client(self._make_producer, config, self._settings, "making the light producer")

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._replace() if self._fatal else self._step()
            except Exception as error:
                _log.exception("the light writer failed")
                self._fatal = repr(error)
            if self._fatal:
                with self._changed:
                    self._changed.wait_for(lambda: self._stopping, _MENDED_S)
        try:
            self._give_up()
        except Exception as error:
            _log.exception("the light writer failed as it was closed")
            self._lose_in_flight(repr(error))

    def _step(self) -> None:
        with self._changed:
            if not self._waiting and not self._in_flight and not self._stopping:
                self._changed.wait(_IDLE_S)
            room = self._tuning.in_flight_records - self._in_flight
            batch = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
            self._in_flight += len(batch)
        for index, record in enumerate(batch):
            if not self._produce(record):
                self._take_back(batch[index:])
                break
        self._poll(_REPORTS_S if self._in_flight else 0)

    def _poll(self, timeout_s: float) -> None:
        """Serve delivery reports; a fatal error is raised here as well as passed to `error_cb`."""
        try:
            self._producer.poll(timeout_s)
        except KafkaException as error:
            cause = kafka_error_of(error)
            if cause is None or not cause.fatal():
                raise
            self._fatal = describe(cause, self._secrets)

    def _produce(self, record: _Waiting) -> bool:
        """Hand a record to the client; False if its queue is full."""
        try:
            self._producer.produce(
                record.topic,
                value=record.value,
                key=record.key,
                partition=0,
                headers=list(record.headers),
                on_delivery=partial(self._delivered, self._producer),
            )
        except BufferError:
            return False
        except KafkaException as error:
            size_bytes = len(record.key) + len(record.value or b"")
            self._settings.refusal(error, record.topic, size_bytes, by_client=True)
            self._ended(describe(error, self._secrets))
        return True

    def _take_back(self, batch: list[_Waiting]) -> None:
        with self._changed:
            self._in_flight -= len(batch)
            self._waiting.extendleft(reversed(batch))
            while len(self._waiting) > self._tuning.queue_records:
                self._waiting.popleft()
                self.counts.dropped += 1

    def _delivered(self, producer: Producer, error: KafkaError | None, message: Message | None) -> None:
        """Delivery report; called by librdkafka inside `poll`."""
        if producer is not self._producer:
            return
        if error is None:
            self._delivered_s = time.monotonic()
        elif error.code() == KafkaError._MSG_TIMED_OUT and self._is_stalled():
            self._fatal = describe(error, self._secrets)
        else:
            self._settings.refusal(error, *place_and_size(message))
        self._ended("" if error is None else describe(error, self._secrets))

    def _is_stalled(self) -> bool:
        patience_ms = _STALLED_AFTER_TIMEOUTS * self._tuning.delivery_timeout_ms
        return (time.monotonic() - self._delivered_s) * 1000 >= patience_ms

    def _ended(self, error: str) -> None:
        with self._changed:
            self._in_flight -= 1
            if error:
                self.counts.failed += 1
                self.counts.last_error = error
            else:
                self.counts.written += 1
            self._changed.notify_all()

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._fatal = describe(error, self._secrets)

    def _replace(self) -> None:
        """The client failed fatally: its records are given up, and a new one takes over."""
        _log.error("the light producer failed: %s", self._fatal)
        self._producer = self._open()
        self.counts.replaced += 1
        self._delivered_s = time.monotonic()
        self._lose_in_flight(self._fatal)
        self._fatal = ""

    def _lose_in_flight(self, why: str) -> None:
        with self._changed:
            if self._in_flight:
                self.counts.failed += self._in_flight
                self.counts.last_error = why
                self._in_flight = 0
            self._changed.notify_all()

    def _give_up(self) -> None:
        with self._changed:
            self.counts.dropped += len(self._waiting)
            self._waiting.clear()
        self._producer.purge(in_queue=True, in_flight=True, blocking=False)
        deadline_s = time.monotonic() + _PURGE_S
        while self._in_flight and time.monotonic() < deadline_s:
            self._poll(_REPORTS_S)
        self._lose_in_flight("the writer was closed before the answer came")


def producer_config(settings: ClientSettings, tuning: LightTuning) -> dict[str, object]:
    """Properties of the client, without the guarantees of the channel's own producer."""
    config: dict[str, object] = settings.producer_config()
    return {
        **config,
        "acks": tuning.acks,
        "enable.idempotence": False,
        "retries": tuning.retries_max,
        "linger.ms": tuning.linger_ms,
        "delivery.timeout.ms": tuning.delivery_timeout_ms,
        "request.timeout.ms": min(tuning.delivery_timeout_ms, settings.tuning.request_timeout_ms),
        "queue.buffering.max.messages": max(tuning.in_flight_records, 100),
    }


class LightBatch(NamedTuple):
    """Records in log order.

    Attributes:
        opened: The topic is read from its beginning: earlier batches are void.
        backlog: Number of records that were in the topic when it was opened; later ones arrived during the read.
        caught_up: All records that were in the topic when it was opened have been delivered.
    """

    records: Sequence[SideRecord]
    opened: bool
    backlog: int
    caught_up: bool


@dataclass(frozen=True, slots=True)
class LightReaderTuning:
    """Bounds of a reader.

    Attributes:
        poll_s: How long a quiet reader sleeps before it looks whether it is to stop.
        answer_s: Longest wait for the ends of the topic.
        reopen_s: Pause before it opens the topic again after Kafka refused it.
        gather_ms: See `ClientSettings.consumer_config`.
    """

    batch_records: int = 500
    poll_s: float = 0.2
    answer_s: float = 5.0
    reopen_s: float = 1.0
    gather_ms: int = 0


class LightReader:
    """Reads partition 0 of one topic in its own thread.

    Outages are bridged: reading goes on where it stopped. Where that place is gone (retention, another topic under the
    same name) the topic is opened again from its beginning.

    Args:
        sink: Takes the batches, in the reader's thread; what it raises ends the reader. While it blocks nothing is fetched
            beyond `kafka.fetch_queue_kib`.
        group_id: librdkafka wants one; nothing is ever committed to it.
        on_failure: Called once from the thread if it ends by an exception.
    """

    def __init__(
        self,
        settings: ClientSettings,
        topic: str,
        sink: Callable[[LightBatch], None],
        *,
        group_id: str,
        tuning: LightReaderTuning | None = None,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._settings = settings
        self._place = (topic, 0)
        self._sink = sink
        self._tuning = tuning or LightReaderTuning()
        self._on_failure = on_failure
        self._stopping = threading.Event()
        self._caught_up = threading.Event()
        self._is_open = False
        self._end = 0
        self._reached = False
        self._last_error = ""
        self._consumer = PartitionConsumer(
            settings, group_id, self._note, doing=f"making the reader of {topic}", gather_ms=self._tuning.gather_ms
        )
        self._thread = threading.Thread(target=self._run, name=f"light-reader {topic}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def last_error(self) -> str:
        return self._last_error

    def wait_caught_up(self, timeout_s: float) -> bool:
        """Wait until all records from before the start were delivered; False after the time-out."""
        return self._caught_up.wait(timeout_s)

    def close(self, timeout_s: float = 5.0) -> bool:
        """Stop; False if the thread did not end in time. After True the sink is called no more."""
        self._stopping.set()
        if self._thread.ident is None:
            self._consumer.close()
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if self._is_open:
                    self._read()
                elif not self._open():
                    self._stopping.wait(self._tuning.reopen_s)
        except BaseException as error:  # the thread's end must not pass unseen
            _log.exception("the light reader's thread ended (%s)", self._place[0])
            if self._on_failure is None:
                raise
            self._on_failure(error)
        finally:
            self._consumer.close()

    def _open(self) -> bool:
        marks: tuple[int, int] | None = None  # also what the client returns on a time-out
        try:
            marks = self._consumer.watermarks(self._place, self._tuning.answer_s)
        except KafkaException as error:
            self._note_text(describe(error, self._settings.secrets()))
        if marks is None:
            return False
        low, self._end = marks
        self._consumer.start(self._place, low)
        self._is_open = True
        self._reached = low == self._end
        self._sink(LightBatch((), opened=True, backlog=0, caught_up=self._reached))
        if self._reached:
            self._caught_up.set()
        return True

    def _read(self) -> None:
        fetched = self._consumer.fetch(self._tuning.batch_records, self._tuning.poll_s)
        lost = ""
        for error in fetched.errors:
            self._note(error)
            if error.code() in LOST_POSITION or is_topic_missing(error):
                lost = describe(error)
        if fetched.advanced:
            self._hand_over([_record(message) for message in fetched.records])
        if lost:
            _log.warning("%s is read again from its beginning: %s", self._place[0], lost)
            self._consumer.stop()
            self._is_open = False
            self._stopping.wait(self._tuning.reopen_s)

    def _hand_over(self, records: list[SideRecord]) -> None:
        """Compaction leaves gaps, also at the end: positions, not records, say that the end was reached."""
        reached = self._consumer.position >= self._end and not self._reached
        if not records and not reached:
            return
        self._reached = self._reached or reached
        backlog = sum(record.offset < self._end for record in records)
        self._last_error = ""
        self._sink(LightBatch(records, opened=False, backlog=backlog, caught_up=self._reached))
        if reached:
            self._caught_up.set()

    def _note(self, error: KafkaError) -> None:
        self._note_text(describe(error, self._settings.secrets()))

    def _note_text(self, text: str) -> None:
        if text != self._last_error:
            _log.info("reading %s: %s", self._place[0], text)
        self._last_error = text


def _record(message: Message) -> SideRecord:
    return SideRecord(
        message.key(), message.value(), headers_of(message), message.offset() or 0, message.timestamp()[1]
    )
