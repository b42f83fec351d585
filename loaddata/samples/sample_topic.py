"""The topic of samples: created on demand, written in batches, read from a moment on.

Records lie in the partition of their key (`sample.key_of`), so that the samples of a partition are in order. The log's
own time decides what is read and what is deleted: whatever was taken within a window was written within it, too.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from loaddata.samples.partitions import PartitionSample
from loaddata.samples.sample_record import InvalidSampleReason, decode_at, encode, home_of, key_of
from statechannel.kafka.admin import BoundsAsker
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import TopicMissingError, describe, is_topic_missing, more_specific, translate
from statechannel.kafka.partition_consumer import LOST_POSITION, PartitionConsumer
from statechannel.kafka.tail import BlockingWriter
from statechannel.kafka.topic_policy import MINUTE_MS, samples_topic
from statechannel.kafka.topics import TopicAdmin, open_topics

PARTITIONS: Final = 6
"""Of a topic that is created here. Where it is increased, earlier samples do not count any more (`home_of`)."""
BATCH_RECORDS: Final = 1_000
CLOCKS_MS: Final = 5 * MINUTE_MS
"""Largest difference between the clocks of samplers and of Kafka."""
_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class SampleWriteResult:
    """The outcome of a write. `failed` may be in the log or not; `refused` were not sound samples; `why` is the last reason."""

    written: int
    failed: int = 0
    refused: int = 0
    why: str = ""


@dataclass(slots=True)
class ReadCounts:
    """What was read.

    Attributes:
        samples: Sound ones.
        junk: Records that are none, by reason.
        deleted: Offsets that retention took away while they were to be read.
    """

    samples: int = 0
    junk: Counter[InvalidSampleReason] = field(default_factory=Counter)
    deleted: int = 0


class SampleTopic:
    """One sample topic.

    Args:
        settings: How Kafka is reached.
        name: Of the topic.
        window_s: Longest window that is to be averaged: retention is a bit longer.
        replication_factor: Of a topic that is created; with fewer brokers, as many as there are.
        timeout_s: Bound of one answer, and of the delivery of a batch.
    """

    def __init__(
        self,
        settings: ClientSettings,
        name: str,
        *,
        window_s: float = 6 * 3_600.0,
        replication_factor: int = 3,
        partitions: int = PARTITIONS,
        timeout_s: float = 20.0,
    ) -> None:
        self._settings = settings
        self.name = name
        self.topic = samples_topic(name, round(window_s * 1_000))
        self._replication_factor = replication_factor
        self._partitions = partitions
        self.timeout_s = timeout_s
        self._last_error: KafkaError | None = None

    def create(self) -> None:
        """Create it if it is missing; refuse one that keeps another time or compacts.

        Raises:
            TopicPolicyError: It exists with unsuitable settings.
            KafkaAdapterError: Kafka does not answer, or refuses.
        """
        open_topics(
            self._settings,
            self.topic,
            create=True,
            replication_factor=self._replication_factor,
            fit_nodes=True,
            partitions=self._partitions,
            timeout_s=self.timeout_s,
        )

    def partitions(self) -> int | None:
        """How many it has; None: there is no such topic."""
        described = TopicAdmin(self._settings, timeout_s=self.timeout_s).describe([self.name])
        return described[self.name].partitions if self.name in described else None

    def _count(self) -> int:
        count = self.partitions()
        if count is None:
            raise TopicMissingError(
                f"The topic {self.name} does not exist.",
                hint="Take samples with `statechannel partitions sample`: it creates the topic.",
            )
        return count

    def write(self, samples: Iterable[PartitionSample]) -> SampleWriteResult:
        """Write samples and wait until Kafka has them, in bounded memory.

        Raises:
            KafkaAdapterError: Not one was taken, and why.
        """
        refused = 0
        why = ""
        count = self._count()

        def records() -> Iterator[tuple[int, bytes, bytes]]:
            nonlocal refused, why
            for sample in samples:
                key = key_of(sample.topic, sample.partition)
                try:
                    value = encode(sample)
                except ValueError as error:
                    refused += 1
                    why = str(error)
                    continue
                yield home_of(key, count), key, value

        doing = f"writing samples to {self.name}"
        properties = {"linger.ms": 20, "compression.type": "zstd"}
        writer = BlockingWriter(self._settings, self.name, doing, timeout_s=self.timeout_s, properties=properties)
        result = writer.write(records())
        if result.unanswered:
            writer.close(0)
        failed = result.failed + result.unanswered
        if failed:
            cause = more_specific(result.error, writer.last_error)
            if not result.written:
                problem = cause or TimeoutError("no answer in time")
                raise translate(problem, doing, secrets=self._settings.secrets())
            why = why if cause is None else describe(cause, self._settings.secrets())
        return SampleWriteResult(result.written, failed, refused, why)

    def read(
        self,
        since_ms: int,
        *,
        counts: ReadCounts | None = None,
        cluster: str = "",
        on_part: Callable[[], None] = lambda: None,
    ) -> Iterator[PartitionSample]:
        """All samples that were written since a moment, to where the topic ends now; partition by partition of the topic.

        Args:
            since_ms: Wall clock; what was written a little earlier may come, too.
            counts: Counts what was read.
            cluster: Samples of other clusters are left out; empty: all are taken.
            on_part: Called at the end of each partition of the topic: none of the partitions seen so far comes again.

        Raises:
            KafkaAdapterError: Kafka does not answer, or the topic does not exist.
        """
        counted = ReadCounts() if counts is None else counts
        count = self._count()
        doing = f"making the reader of {self.name}"
        with closing(PartitionConsumer(self._settings, self.topic.reader_group, self._note, doing=doing)) as consumer:
            for number, begin, end in self._spans(consumer, count, since_ms):
                for value, key in self._records(consumer, number, begin, end, counted):
                    sample = decode_at(value, key, number, count, cluster)
                    if isinstance(sample, InvalidSampleReason):
                        counted.junk[sample] += 1
                        continue
                    counted.samples += 1
                    yield sample
                on_part()

    def _spans(self, consumer: PartitionConsumer, count: int, since_ms: int) -> list[tuple[int, int, int]]:
        """Number, begin and present end of each partition with something to read."""
        places = [(self.name, number) for number in range(count)]
        bounds = BoundsAsker(self._settings, timeout_s=self.timeout_s).ask(places)
        try:
            starts = consumer.offsets_at(places, max(0, since_ms - CLOCKS_MS), self.timeout_s)
        except KafkaException as error:
            raise self._translated(error) from None
        spans = []
        for start in starts:
            if start.error is not None:
                raise self._translated(start.error)
            low, high = bounds[self.name, start.partition]
            begin = high if start.offset < 0 else max(start.offset, low)
            if begin < high:
                spans.append((start.partition, begin, high))
        return spans

    def _records(
        self, consumer: PartitionConsumer, number: int, begin: int, end: int, counted: ReadCounts
    ) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Value and key of each record."""
        patience_s = min(self._settings.tuning.stall_timeout_s, self.timeout_s / 2)
        consumer.start((self.name, number), begin, patience_s=patience_s)
        progress_s = time.monotonic()
        while consumer.position < end:
            fetched = consumer.fetch(BATCH_RECORDS, _POLL_S, known_end=end)
            if fetched.advanced:
                progress_s = time.monotonic()
            elif time.monotonic() - progress_s > self.timeout_s:
                raise self._translated(self._last_error or TimeoutError("no record in time"))
            for message in fetched.records:
                if (message.offset() or 0) < end:
                    yield message.value(), message.key()
            for error in fetched.errors:
                if error.code() in LOST_POSITION:
                    self._skip_deleted(consumer, number, counted)
                elif is_topic_missing(error):
                    raise self._translated(error)

    def _skip_deleted(self, consumer: PartitionConsumer, number: int, counted: ReadCounts) -> None:
        """Retention was faster: continue at the new beginning."""
        (bounds,) = BoundsAsker(self._settings, timeout_s=self.timeout_s).ask([(self.name, number)]).values()
        fresh = max(consumer.position, bounds.low)
        counted.deleted += fresh - consumer.position
        consumer.move_to(fresh)

    def _note(self, error: KafkaError) -> None:
        self._last_error = error

    def _translated(self, problem: BaseException | KafkaError) -> Exception:
        return translate(problem, f"reading samples of {self.name}", secrets=self._settings.secrets())
