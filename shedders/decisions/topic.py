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
from functools import partial
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
from statechannel.kafka.light_topic import LightCounts, LightTuning, LightWriter
from statechannel.kafka.tail import side_tail
from statechannel.kafka.topics import TopicAdmin
from statechannel.protocol.log import RecordRead

if TYPE_CHECKING:
    from statechannel.kafka.client_settings import ClientSettings
    from statechannel.kafka.topic_policy import SideTopic
    from statechannel.kafka.topics import TopicInfo

_log = logging.getLogger(__name__)

# --- writing --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class WriteCounts(LightCounts):
    """Outcomes of the records.

    Attributes:
        unwritable: They could not be encoded, were too large, or no client could be made.
    """

    unwritable: int = 0


class DecisionWriter:
    """A fire-and-forget writer: `write` never waits and never raises; failures are counted. For one thread."""

    def __init__(
        self,
        settings: ClientSettings,
        topic: SideTopic,
        *,
        tuning: LightTuning | None = None,
        max_bytes: int = VALUE_MAX_BYTES,
        make_writer: Callable[..., LightWriter] = LightWriter,
    ) -> None:
        self._topic = topic.name
        self._max_bytes = max_bytes
        self._make = partial(make_writer, settings, tuning=tuning or LightTuning(delivery_timeout_ms=30_000))
        self._writer: LightWriter | None = None
        self._closed = False
        self._unwritable = 0
        self._last_error = ""

    @property
    def counts(self) -> WriteCounts:
        sent = LightCounts() if self._writer is None else self._writer.counts
        return WriteCounts(
            **{**asdict(sent), "last_error": sent.last_error or self._last_error}, unwritable=self._unwritable
        )

    def write(self, record: AnyRecord) -> bool:
        """Queue a record; False if it was dropped at once. The first one makes the client."""
        try:
            value = encode(record, self._max_bytes)
            if self._writer is None and self._closed:
                return False
            self._writer = self._writer or self._make()
        except (UnwritableRecordError, StateChannelError) as error:
            self._unwritable += 1
            self._last_error = str(error)
            _log.exception("a decision record cannot be written")
            return False
        return self._writer.write(self._topic, key_of(record), value)

    def flush(self, timeout_s: float) -> bool:
        """Wait until every record has ended; False if the time ran out first."""
        return self._writer is None or self._writer.flush(timeout_s)

    def close(self, timeout_s: float = 2.0) -> bool:
        """Flush, give up what is left, stop; True if nothing was left. Later records are dropped."""
        self._closed = True
        return self._writer is None or self._writer.close(timeout_s)


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
