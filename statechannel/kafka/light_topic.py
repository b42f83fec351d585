"""Reader of a light topic: from its beginning, then following it; the writer is in `light_writer`."""
# ruff: noqa: SLF001  (the client library's public error codes start with an underscore)

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from statechannel.kafka.client_log import OncePerKind
from statechannel.kafka.end_watch import EndWatch
from statechannel.kafka.errors import describe, translate
from statechannel.kafka.light_writer import Headers, LightCounts, LightTuning, LightWriter
from statechannel.kafka.stall import PollClock, close_aside

if TYPE_CHECKING:
    from confluent_kafka import Message

    from statechannel.kafka.client_settings import ClientSettings

__all__ = [
    "Headers",
    "LightBatch",
    "LightCounts",
    "LightReader",
    "LightReaderTuning",
    "LightRecord",
    "LightTuning",
    "LightWriter",
]

_log = logging.getLogger(__name__)
_log.addFilter(OncePerKind("reading "))  # while Kafka is away, two errors take turns several times a second

_LOST_POSITION = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION})
_OTHER_TOPIC = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError.INCONSISTENT_TOPIC_ID,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)


class LightRecord(NamedTuple):
    """One record. `timestamp_ms` is the log's own time."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    offset: int
    timestamp_ms: int


class LightBatch(NamedTuple):
    """Records in log order.

    Attributes:
        opened: The topic is read from its beginning: earlier batches are void.
        backlog: Number of records that were in the topic when it was opened; later ones arrived during the read.
        caught_up: All records that were in the topic when it was opened have been delivered.
    """

    records: Sequence[LightRecord]
    opened: bool
    backlog: int
    caught_up: bool


@dataclass(frozen=True, slots=True)
class LightReaderTuning:
    """Bounds of a reader.

    Attributes:
        batch_records: Maximum number of records in one batch.
        poll_s: How long a quiet reader sleeps before it looks whether it is to stop.
        answer_s: Longest wait for the ends of the topic.
        reopen_s: Pause before it opens the topic again after Kafka refused it.
    """

    batch_records: int = 500
    poll_s: float = 0.2
    answer_s: float = 5.0
    reopen_s: float = 1.0


class LightReader:
    """Reads partition 0 of one topic in its own thread.

    Outages are bridged: reading goes on where it stopped. Where that place is gone (retention, another topic under the
    same name) the topic is opened again from its beginning.

    Args:
        topic: Its name.
        sink: Takes the batches, in the reader's thread; what it raises ends the reader. While it blocks nothing is fetched
            beyond `ClientTuning.fetch_queue_kib`.
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
        self._place = TopicPartition(topic, 0)
        self._sink = sink
        self._tuning = tuning or LightReaderTuning()
        self._on_failure = on_failure
        self._stopping = threading.Event()
        self._caught_up = threading.Event()
        self._is_open = False
        self._end = 0
        self._reached = False
        self._last_error = ""
        self._position = 0
        self._polls = PollClock()
        self._watch = EndWatch(settings, (topic, 0), settings.tuning.stall_timeout_s)
        self._config = {**settings.consumer_config(group_id), "error_cb": self._note}
        self._consumer = self._make_consumer()
        self._thread = threading.Thread(target=self._run, name=f"light-reader {topic}", daemon=True)

    def _make_consumer(self) -> Consumer:
        try:
            return Consumer(self._config)
        except (KafkaException, TypeError, ValueError) as error:
            doing = f"making the reader of {self._place.topic}"
            raise translate(error, doing, secrets=self._settings.secrets()) from error

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    @property
    def last_error(self) -> str:
        """Kafka's last error; empty if there is none."""
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
            _log.exception("the light reader's thread ended (%s)", self._place.topic)
            if self._on_failure is None:
                raise
            self._on_failure(error)
        finally:
            self._consumer.close()
            self._watch.close()

    def _open(self) -> bool:
        marks: tuple[int, int] | None = None  # also what the client returns on a time-out
        try:
            marks = self._consumer.get_watermark_offsets(self._place, timeout=self._tuning.answer_s)
        except KafkaException as error:
            self._note_text(describe(error, self._settings.secrets()))
        if marks is None:
            return False
        low, self._end = marks
        self._position = low
        self._consumer.assign([TopicPartition(self._place.topic, 0, low)])
        self._is_open = True
        self._reached = low == self._end
        self._sink(LightBatch((), opened=True, backlog=0, caught_up=self._reached))
        if self._reached:
            self._caught_up.set()
        return True

    def _read(self) -> None:
        first = self._polls.poll(self._consumer, self._tuning.poll_s)
        if first is None:
            if self._watch.stalled(self._polls.polled_s, self._position):
                self._renew_consumer()
            return
        messages = [first, *self._consumer.consume(self._tuning.batch_records - 1, 0)]
        records: list[LightRecord] = []
        position = -1
        lost = ""
        for message in messages:
            error = message.error()
            if error is None:
                records.append(_record(message))
                position = records[-1].offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                position = max(position, message.offset() or 0)
            else:
                self._note(error)
                if error.code() in _LOST_POSITION or error.code() in _OTHER_TOPIC:
                    lost = describe(error)
        if position >= 0:
            self._position = position
        self._hand_over(records, position)
        if lost:
            _log.warning("%s is read again from its beginning: %s", self._place.topic, lost)
            self._consumer.unassign()
            self._is_open = False
            self._stopping.wait(self._tuning.reopen_s)

    def _renew_consumer(self) -> None:
        """Nothing arrives although there are records: continue with another consumer."""
        _log.warning(
            "%s: nothing arrives from offset %d on although the log goes on: recreating the consumer",
            self._place.topic,
            self._position,
        )
        replaced, self._consumer = self._consumer, self._make_consumer()
        self._consumer.assign([TopicPartition(self._place.topic, 0, self._position)])
        close_aside(replaced)

    def _hand_over(self, records: list[LightRecord], position: int) -> None:
        """Compaction leaves gaps, also at the end: positions, not records, say that the end was reached."""
        reached = position >= self._end and not self._reached
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
            _log.info("reading %s: %s", self._place.topic, text)
        self._last_error = text


def _record(message: Message) -> LightRecord:
    return LightRecord(message.key(), message.value(), _headers(message), message.offset() or 0, message.timestamp()[1])


def _headers(message: Message) -> Headers:
    """Headers in order; empty if their names are not text: such a record is not a tombstone."""
    try:
        headers = message.headers() or []
    except (UnicodeError, ValueError):
        return ()
    pairs = headers.items() if isinstance(headers, dict) else headers
    return tuple((name, value.encode() if isinstance(value, str) else value) for name, value in pairs)
