"""The topic `NAME-decisions`: a non-blocking writer, and a reader that starts at a time or an offset.

One partition, policy delete, the log's own time. Lost records are counted; only people miss them, since decisions are made from
the channel and the load topics. A new leader reads only the strategy's memory from here; without it
its counts start again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from shedders.decisions.history import DecisionRead, RecallBounds, Want, decision_read, look_back
from shedders.decisions.record import (
    DRAIN,
    VALUE_MAX_BYTES,
    AnyRecord,
    DecisionRecord,
    UnwritableRecordError,
    encode,
    key_of,
)
from statechannel.errors import StateChannelError
from statechannel.kafka.errors import TopicMissingError
from statechannel.kafka.light_topic import LightTuning, LightWriter
from statechannel.kafka.tail import side_tail
from statechannel.kafka.topics import TopicAdmin
from statechannel.protocol.log import RecordRead

if TYPE_CHECKING:
    from statechannel.kafka.client_settings import ClientSettings
    from statechannel.kafka.topic_policy import SideTopic
    from statechannel.kafka.topics import TopicInfo

_log = logging.getLogger(__name__)

# --- writing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WriterBounds:
    """Limits of a writer.

    Attributes:
        queue_records: Records that may wait; beyond it the oldest is dropped, and counted.
        delivery_timeout_ms: A record that Kafka has not taken by then is dropped, and counted.
        replacements_max: How often a writer whose thread has ended is replaced; then nothing is written any more.
    """

    queue_records: int = 1_000
    delivery_timeout_ms: int = 30_000
    replacements_max: int = 100


@dataclass(slots=True)
class WriteCounts:
    """What became of the records.

    Attributes:
        written: Confirmed.
        dropped: Too many waited, or the writer was closed.
        failed: Kafka refused them or did not take them in time; they may be in the log or not.
        unwritable: They could not be encoded, or were too large.
    """

    written: int = 0
    dropped: int = 0
    failed: int = 0
    unwritable: int = 0
    replacements: int = 0
    last_error: str = ""

    def to_json(self) -> dict[str, int | str]:
        return asdict(self)


class DecisionWriter:
    """A fire-and-forget writer: `write` never waits and never raises; failures are counted. For one thread."""

    def __init__(
        self,
        settings: ClientSettings,
        topic: SideTopic,
        *,
        bounds: WriterBounds | None = None,
        max_bytes: int = VALUE_MAX_BYTES,
        make_writer: Callable[..., LightWriter] = LightWriter,
    ) -> None:
        self._settings = settings
        self._topic = topic.name
        self._bounds = bounds or WriterBounds()
        self._max_bytes = max_bytes
        self._make = make_writer
        self._writer: LightWriter | None = None
        self._past = WriteCounts()
        self._closed = False

    @property
    def counts(self) -> WriteCounts:
        """Totals since the start, those of writers that were replaced included."""
        past, now = self._past, None if self._writer is None else self._writer.counts
        if now is None:
            return WriteCounts(**asdict(past))
        return WriteCounts(
            past.written + now.written,
            past.dropped + now.dropped,
            past.failed + now.failed,
            past.unwritable,
            past.replacements,
            now.last_error or past.last_error,
        )

    def write(self, record: AnyRecord) -> bool:
        """Queue a record; False if it was dropped at once."""
        try:
            value = encode(record, self._max_bytes)
        except UnwritableRecordError as error:
            self._past.unwritable += 1
            self._past.last_error = str(error)
            _log.exception("a decision record cannot be written")
            return False
        writer = self._ready()
        if writer is None or not writer.write(self._topic, key_of(record), value):
            self._past.dropped += 1
            return False
        return True

    def flush(self, timeout_s: float) -> bool:
        """Wait until every record has ended; False if the time ran out first."""
        return self._writer is None or self._writer.flush(timeout_s)

    def close(self, timeout_s: float = 2.0) -> bool:
        """Flush, give up what is left, stop; True if nothing was left. Later records are dropped."""
        self._closed = True
        writer = self._writer
        if writer is None:
            return True
        clean = writer.close(timeout_s)
        self._keep(writer)
        return clean

    def _ready(self) -> LightWriter | None:
        """The writer, created at the first record and replaced if its thread has ended."""
        if self._closed or (self._writer is not None and self._writer.alive):
            return None if self._closed else self._writer
        if self._writer is not None:
            if self._past.replacements >= self._bounds.replacements_max:
                return None
            _log.error("the writer of decisions had stopped (%s); a new one starts", self._writer.counts.last_error)
            self._keep(self._writer)
            self._past.replacements += 1
        tuning = LightTuning(
            queue_records=self._bounds.queue_records, delivery_timeout_ms=self._bounds.delivery_timeout_ms
        )
        try:
            self._writer = self._make(self._settings, tuning=tuning)
        except StateChannelError as error:
            self._past.last_error = str(error)
            _log.exception("the writer of decisions cannot be created")
            return None
        return self._writer

    def _keep(self, writer: LightWriter) -> None:
        """Add the counts of a writer that is closed."""
        counts = writer.counts
        self._past.written += counts.written
        self._past.dropped += counts.dropped
        self._past.failed += counts.failed
        self._past.last_error = counts.last_error or self._past.last_error
        self._writer = None


# --- reading --------------------------------------------------------------------------------------------------------


def describe_decision_topic(settings: ClientSettings, topic: SideTopic, *, timeout_s: float = 20.0) -> TopicInfo:
    """What the cluster says about the topic.

    Raises:
        TopicMissingError: It does not exist: no balancer has run on this channel yet.
        KafkaUnavailableError: Kafka did not answer in time.
    """
    name = topic.name
    infos = TopicAdmin(settings, timeout_s=timeout_s).describe([name])
    if name not in infos:
        raise TopicMissingError(
            f"the topic {name} does not exist at {settings.bootstrap_servers}",
            hint="Brokers with a balancer create it when they start; check --channel and --bootstrap-servers.",
        )
    return infos[name]


class DecisionReader:
    """Reads the topic. A context manager, for one thread.

    Args:
        timeout_s: Longest wait for Kafka without any progress.
        bounds: How far `newest` looks back.

    Attributes:
        ended: Why the last `newest` stopped early; empty if it found everything, or read all there is.
    """

    def __init__(
        self, settings: ClientSettings, topic: SideTopic, *, timeout_s: float = 20.0, bounds: RecallBounds | None = None
    ) -> None:
        self._bounds = bounds or RecallBounds()
        self.ended = ""
        self._tail = side_tail(settings, topic, timeout_s)

    def __enter__(self) -> DecisionReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._tail.close()

    def read(
        self,
        *,
        since_ms: int | None = None,
        start: int = 0,
        about: Iterable[str] | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[DecisionRead]:
        """The records that the topic has now, in order.

        Args:
            since_ms: Begin with the first record that the log took at this time or later.
            start: Begin at this offset; ignored where a time is given.
            about: Only records with one of these names: bundles, brokers, operations, ids. The others are not even
                decoded. None: all.
            stop: Called at each record, including those that are filtered out: True ends the reading.
        """
        wanted = None if about is None else [name.encode() for name in about]
        for record in self._tail.records(self._tail.span(start=start, from_time_ms=since_ms)):
            if stop():
                return
            if wanted is None or _mentions(record, wanted):
                yield decision_read(record)

    def newest(
        self, count: int, wanted: Callable[[AnyRecord], bool], *, behind: Callable[[AnyRecord], bool] | None = None
    ) -> Sequence[DecisionRead]:
        """The newest matching records, in order (`shedders.decisions.history`); fewer if the bounds end it (`ended`).

        Args:
            behind: Which later records are kept as well, in addition to unreadable ones; None: none.
        """
        span = self._tail.span()
        reads, self.ended = look_back(
            lambda start, end: self._tail.records(replace(span, start=start, end=end)),
            span.low,
            span.end,
            Want(count, wanted, behind),
            self._bounds,
            time.monotonic,
        )
        return reads

    def follow(
        self, *, since_ms: int | None = None, stop: Callable[[], bool] = lambda: False
    ) -> Iterator[Sequence[DecisionRead]]:
        """Batches from a time on (None: from now on), without end; an empty one after each quiet moment."""
        span = self._tail.span(from_time_ms=since_ms) if since_ms is not None else self._tail.span()
        start = span.end if since_ms is None else span.start
        for batch in self._tail.follow(start, stop):
            yield [decision_read(record) for record in batch]


def is_cycle(record: AnyRecord) -> bool:
    """Whether the next decision continues from this one: of the balancer's own cycle, and not skipped."""
    return (
        isinstance(record, DecisionRecord)
        and record.subject == "shed"
        and record.skipped is None
        and record.strategy != DRAIN
    )


def newest_decision(
    client: ClientSettings, topic: SideTopic, timeout_s: float, bounds: RecallBounds | None = None
) -> DecisionRecord | None:
    """The newest decision that a leader continues from (`is_cycle`); None if there is none within the bounds."""
    with DecisionReader(client, topic, timeout_s=timeout_s, bounds=bounds) as reader:
        records = [read.record for read in reader.newest(1, is_cycle)]
        if reader.ended:
            _log.warning("no decision to continue from was found in %s: %s", topic.name, reader.ended)
    return next(
        (record for record in reversed(records) if isinstance(record, DecisionRecord) and is_cycle(record)), None
    )


def _mentions(record: RecordRead, wanted: Sequence[bytes]) -> bool:
    """Whether a record has one of these names: they are ASCII without anything that JSON escapes, so it has them verbatim."""
    value = record.value or b""
    return any(name in value for name in wanted)
