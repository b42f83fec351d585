"""The topic `NAME-decisions`: made and checked, written without ever holding up the balancer, read from a time or an offset.

One partition, policy delete, the log's own time. What is lost is counted, and missed by people; decisions are made from the
channel and the load topics. A new leader takes from here what a strategy remembers, no more: without it
counts begin anew.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final

from shedders.decisions.recall import DecisionRead, RecallBounds, Want, decision_read, look_back
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
from statechannel.kafka.light_writer import LightTuning, LightWriter
from statechannel.kafka.tail import PartitionTail
from statechannel.kafka.topic_policy import (
    DAY_MS,
    LARGEST_RECORD_BYTES,
    ChannelTopics,
    Requirement,
    SettingRule,
    TopicPolicy,
)
from statechannel.kafka.topics import TopicAdmin, create_topics, verify_topics
from statechannel.protocol.log import RecordRead, Topic

if TYPE_CHECKING:
    from statechannel.kafka.client_settings import ClientSettings
    from statechannel.kafka.topics import TopicInfo

_log = logging.getLogger(__name__)

DECISIONS: Final = "decisions"


@dataclass(frozen=True, slots=True)
class DecisionLags:
    """Times of the topic.

    Attributes:
        retention_ms: A decision older than this may be gone.
        segment_ms: Retention drops whole segments: a record may live this much longer.
    """

    retention_ms: int = 7 * DAY_MS
    segment_ms: int = DAY_MS


@dataclass(frozen=True, slots=True)
class DecisionTopics(ChannelTopics):
    """Name and policy of the topic of a channel's decisions."""

    decision_lags: DecisionLags = DecisionLags()

    @property
    def decisions(self) -> str:
        """Its name."""
        return f"{self.channel}-{DECISIONS}"

    @property
    def policies(self) -> Mapping[str, TopicPolicy]:
        """Topic name to policy, this one alone; the channel's own topics are not among them."""
        lags = self.decision_lags
        requirements = (
            Requirement("cleanup.policy", SettingRule.EXACTLY, "delete"),
            Requirement("message.timestamp.type", SettingRule.EXACTLY, "LogAppendTime"),
            Requirement("max.message.bytes", SettingRule.AT_LEAST, str(LARGEST_RECORD_BYTES)),
            Requirement("retention.ms", SettingRule.AT_LEAST, str(lags.retention_ms), hard=False),
            Requirement("segment.ms", SettingRule.AT_MOST, str(lags.segment_ms), hard=False),
        )
        return {self.decisions: TopicPolicy(role=DECISIONS, requirements=requirements)}


def open_decision_topic(
    settings: ClientSettings,
    topics: DecisionTopics,
    *,
    create: bool,
    replication_factor: int = -1,
    timeout_s: float = 20.0,
) -> TopicInfo:
    """Create the topic if it is missing and that was asked for; verify it.

    Raises:
        TopicMissingError: It does not exist and was not to be created.
        TopicPolicyError: A hard difference; the message has the mending commands.
        KafkaUnavailableError: Kafka did not answer in time.
    """
    if create:
        found = create_topics(settings, topics, replication_factor=replication_factor, timeout_s=timeout_s)
    else:
        found = verify_topics(settings, topics, timeout_s=timeout_s).topics
    return found[topics.decisions]


# --- writing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WriterBounds:
    """What a writer holds and waits for.

    Attributes:
        queue_records: Records that may wait; beyond it the oldest is dropped, and counted.
        delivery_timeout_ms: After so long a record that Kafka has not taken is given up, and counted.
        replacements_max: So often a writer whose thread has ended is replaced; then nothing is written any more.
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
        unwritable: They could not be said, or were too large.
        replacements: Writers that had failed.
    """

    written: int = 0
    dropped: int = 0
    failed: int = 0
    unwritable: int = 0
    replacements: int = 0
    last_error: str = ""

    def to_json(self) -> dict[str, int | str]:
        """As an object for JSON."""
        return asdict(self)


class DecisionWriter:
    """Writes and forgets. `write` never waits and never raises; what goes wrong is counted. For one thread.

    Args:
        max_bytes: Longest value.
        make_writer: For tests.
    """

    def __init__(
        self,
        settings: ClientSettings,
        topics: DecisionTopics,
        *,
        bounds: WriterBounds | None = None,
        max_bytes: int = VALUE_MAX_BYTES,
        make_writer: Callable[..., LightWriter] = LightWriter,
    ) -> None:
        self._settings = settings
        self._topic = topics.decisions
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
        """Queue a record; False if it was given up at once."""
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
        """The writer, made at the first record and anew where its thread has ended."""
        if self._closed or (self._writer is not None and self._writer.alive):
            return None if self._closed else self._writer
        if self._writer is not None:
            if self._past.replacements >= self._bounds.replacements_max:
                return None
            _log.error("the writer of decisions had ended (%s); a new one begins", self._writer.counts.last_error)
            self._keep(self._writer)
            self._past.replacements += 1
        tuning = LightTuning(
            queue_records=self._bounds.queue_records, delivery_timeout_ms=self._bounds.delivery_timeout_ms
        )
        try:
            self._writer = self._make(self._settings, tuning=tuning)
        except StateChannelError as error:
            self._past.last_error = str(error)
            _log.exception("the writer of decisions cannot be made")
            return None
        return self._writer

    def _keep(self, writer: LightWriter) -> None:
        """Add up what a writer did that is let go."""
        counts = writer.counts
        self._past.written += counts.written
        self._past.dropped += counts.dropped
        self._past.failed += counts.failed
        self._past.last_error = counts.last_error or self._past.last_error
        self._writer = None


# --- reading --------------------------------------------------------------------------------------------------------


def describe_decision_topic(settings: ClientSettings, topics: DecisionTopics, *, timeout_s: float = 20.0) -> TopicInfo:
    """What the cluster says about the topic.

    Raises:
        TopicMissingError: It does not exist: no balancer has run on this channel yet.
        KafkaUnavailableError: Kafka did not answer in time.
    """
    name = topics.decisions
    found = TopicAdmin(settings, timeout_s=timeout_s).describe([name])
    if name not in found:
        raise TopicMissingError(
            f"the topic {name} does not exist at {settings.bootstrap_servers}",
            hint="Brokers that balance make it when they start; check --channel and --bootstrap-servers.",
        )
    return found[name]


class DecisionReader:
    """Reads the topic. A context manager, for one thread.

    Args:
        timeout_s: Longest wait for Kafka without any progress.
        bounds: How far `newest` looks back.

    Attributes:
        ended: Why the last `newest` did not look back further; empty where it found what was wanted, or read all there is.
    """

    def __init__(
        self,
        settings: ClientSettings,
        topics: DecisionTopics,
        *,
        timeout_s: float = 20.0,
        bounds: RecallBounds | None = None,
    ) -> None:
        self._bounds = bounds or RecallBounds()
        self.ended = ""
        # The role only marks what is read, and is taken off again: this topic is none of an engine's.
        self._tail = PartitionTail(
            settings,
            Topic.REQUESTS,
            topics.decisions,
            0,
            group_id=topics.reader_group,
            timeout_s=timeout_s,
        )

    def __enter__(self) -> DecisionReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the connections go."""
        self._tail.close()

    def read(
        self,
        *,
        since_ms: int | None = None,
        start: int = 0,
        about: Iterable[str] | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[DecisionRead]:
        """What lies in the topic now, in order.

        Args:
            since_ms: Begin with the first record that the log took at this time or later.
            start: Begin at this offset; ignored where a time is given.
            about: Only records that speak of one of these names: bundles, brokers, operations, ids. The others are not even
                decoded. None: all.
            stop: Asked at each record, those that speak of nobody included: it ends there.
        """
        wanted = None if about is None else [name.encode() for name in about]
        for record in self._tail.records(self._tail.span(start=start, from_time_ms=since_ms)):
            if stop():
                return
            if wanted is None or _speaks_of(record, wanted):
                yield decision_read(record)

    def newest(
        self,
        count: int,
        wanted: Callable[[AnyRecord], bool],
        *,
        behind: Callable[[AnyRecord], bool] | None = None,
    ) -> Sequence[DecisionRead]:
        """The newest records that are wanted, in order (`decision_recall`); fewer where the bounds end it (`ended`).

        Args:
            count: So many wanted ones.
            behind: What is kept of all that lies behind the first of them, beside what cannot be read; None: nothing.
        """
        span = self._tail.span()
        found, self.ended = look_back(
            lambda start, end: self._tail.records(replace(span, start=start, end=end)),
            span.low,
            span.end,
            Want(count, wanted, behind),
            self._bounds,
            time.monotonic,
        )
        return found

    def follow(
        self, *, since_ms: int | None = None, stop: Callable[[], bool] = lambda: False
    ) -> Iterator[Sequence[DecisionRead]]:
        """Batches from a time on (None: from now on), without end; an empty one after each quiet moment."""
        span = self._tail.span(from_time_ms=since_ms) if since_ms is not None else self._tail.span()
        start = span.end if since_ms is None else span.start
        for batch in self._tail.follow(start, stop):
            yield [decision_read(one) for one in batch]


def is_cycle(record: AnyRecord) -> bool:
    """Whether it is a decision that the next one goes on from: of the balancer's own cycle, and not skipped."""
    return (
        isinstance(record, DecisionRecord)
        and record.subject == "shed"
        and record.skipped is None
        and record.strategy != DRAIN
    )


def newest_decision(
    client: ClientSettings, topics: DecisionTopics, timeout_s: float, bounds: RecallBounds | None = None
) -> DecisionRecord | None:
    """The newest decision that a leader goes on from (`is_cycle`); None where there is none, or none within the bounds."""
    with DecisionReader(client, topics, timeout_s=timeout_s, bounds=bounds) as reader:
        found = [one.record for one in reader.newest(1, is_cycle)]
        if reader.ended:
            _log.warning("no decision to go on from was found in %s: %s", topics.decisions, reader.ended)
    return next((one for one in reversed(found) if isinstance(one, DecisionRecord) and is_cycle(one)), None)


def _speaks_of(record: RecordRead, wanted: Sequence[bytes]) -> bool:
    """Names of the protocol are ASCII without anything that JSON escapes: they stand in the value as they are."""
    value = record.value or b""
    return any(name in value for name in wanted)
