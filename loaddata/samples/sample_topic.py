"""The topic of samples: created on demand, written in batches, read from a moment on; and the strict codec of its records.

Records lie in the partition of their key, so that the samples of a partition are in order. The log's own time decides what is
read and what is deleted: whatever was taken within a window was written within it, too. Lines of files have the same codec.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final
from zlib import crc32

import orjson
from confluent_kafka import KafkaError, KafkaException

from loaddata.model.figures import LATEST_MS, is_count, is_figure
from loaddata.samples.partitions import SAMPLE_FORMAT, PartitionSample
from loaddata.samples.strict_json import TOPIC_NAME
from statechannel.kafka.admin import BoundsAsker
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import TopicMissingError, describe, is_topic_missing, more_specific, translate
from statechannel.kafka.partition_consumer import LOST_POSITION, PartitionConsumer
from statechannel.kafka.tail import BlockingWriter
from statechannel.kafka.topic_policy import samples_topic
from statechannel.kafka.topics import TopicAdmin, open_topics
from statechannel.settings.groups_cluster import MINUTE_MS

VALUE_BYTES_MAX: Final = 4_096
"""Of one record; names of topics have at most 249 bytes."""
_FORMATS: Final = re.compile(r"partition-sample/([0-9]{1,9})")
_TEXT_MAX: Final = 512
_FIELDS: Final = dict.fromkeys(field.name for field in fields(PartitionSample)).keys()
_NEEDED: Final = frozenset({"cluster", "broker", "topic", "partition", "taken_at_ms"})


class InvalidSampleReason(StrEnum):
    NOT_JSON = "not JSON"
    NOT_A_SAMPLE = "not a sample"
    NEWER_FORMAT = "newer format"
    TOO_LONG = "too long"
    FIELDS = "unknown or missing field"
    NAME_TWICE = "a name twice"
    FIGURE = "not a sound figure"
    PLACE = "not a topic, partition or broker"
    TIME = "not a time"
    OTHER_KEY = "key and value differ"
    OTHER_PLACE = "not where its key belongs"
    OTHER_CLUSTER = "another cluster"


def key_of(topic: str, partition: int) -> bytes:
    """Key of a sample's record: all samples of a partition lie in one partition of the sample topic, in order."""
    return f"{topic}-{partition}".encode()


def home_of(key: bytes, partitions: int) -> int:
    """Partition of the sample topic in which records of a key lie; what lies elsewhere does not count.

    So all samples of a partition are in order, with any number of writers, and one partition of the topic after the other can be
    averaged. It is what librdkafka's partitioners do by themselves; those of Java's clients do otherwise.
    """
    return crc32(key) % partitions


def encode(sample: PartitionSample) -> bytes:
    figures = {name: getattr(sample, name) for name in _FIELDS}  # `asdict` takes five times as long
    sample_or_reason = checked(figures)
    if isinstance(sample_or_reason, InvalidSampleReason):
        raise ValueError(f"a sample of {sample.topic}-{sample.partition}: {sample_or_reason}")  # noqa: TRY004 - of the right type
    return orjson.dumps({"format": SAMPLE_FORMAT, **figures})


def decode(value: bytes | None, key: bytes | None = None) -> PartitionSample | InvalidSampleReason:
    """The sample, or why it is not one. Never raises."""
    if value is None:
        return InvalidSampleReason.NOT_A_SAMPLE
    if len(value) > VALUE_BYTES_MAX:
        return InvalidSampleReason.TOO_LONG
    try:
        loaded = orjson.loads(value)  # refuses NaN and Infinity
    except orjson.JSONDecodeError:
        return InvalidSampleReason.NOT_JSON
    if not isinstance(loaded, dict):
        return InvalidSampleReason.NOT_A_SAMPLE
    format_name = loaded.pop("format", None)
    if format_name != SAMPLE_FORMAT:
        number = _FORMATS.fullmatch(format_name) if isinstance(format_name, str) else None
        return InvalidSampleReason.NEWER_FORMAT if number and int(number[1]) > 1 else InvalidSampleReason.NOT_A_SAMPLE
    sample = checked(loaded)
    if isinstance(sample, PartitionSample) and key is not None and key != key_of(sample.topic, sample.partition):
        return InvalidSampleReason.OTHER_KEY
    return sample


def decode_at(
    value: bytes | None, key: bytes | None, at: int, partitions: int, cluster: str = ""
) -> PartitionSample | InvalidSampleReason:
    """As `decode`, of a record of the sample topic.

    Args:
        at: Partition of the sample topic in which it lies.
        cluster: Samples of other clusters do not count; empty: all do.
    """
    sample = decode(value, key or b"")
    if isinstance(sample, PartitionSample):
        if home_of(key or b"", partitions) != at:
            return InvalidSampleReason.OTHER_PLACE
        if cluster and sample.cluster not in {"", cluster}:
            return InvalidSampleReason.OTHER_CLUSTER
    return sample


def checked(loaded: dict[str, Any]) -> PartitionSample | InvalidSampleReason:
    """A sample of these fields, or why there is none."""
    if not _NEEDED <= loaded.keys() <= _FIELDS:
        return InvalidSampleReason.FIELDS
    texts = (loaded["cluster"], loaded.get("host", ""), loaded.get("source", ""))
    if not all(isinstance(text, str) and len(text) <= _TEXT_MAX for text in texts):
        return InvalidSampleReason.FIELDS
    topic = loaded["topic"]
    if not isinstance(topic, str) or not TOPIC_NAME.fullmatch(topic):
        return InvalidSampleReason.PLACE
    if not is_count(loaded["broker"]) or not is_count(loaded["partition"]) or loaded["partition"] >= 2**31:
        return InvalidSampleReason.PLACE
    if not is_count(loaded["taken_at_ms"]) or loaded["taken_at_ms"] > LATEST_MS:
        return InvalidSampleReason.TIME
    disk, share = loaded.get("disk_bytes"), loaded.get("cpu_share")
    rates = (loaded.get("bytes_in_per_s"), loaded.get("bytes_out_per_s"), share)
    if not (disk is None or is_count(disk)) or not all(rate is None or is_figure(rate) for rate in rates):
        return InvalidSampleReason.FIGURE
    if share is not None and share > 1:
        return InvalidSampleReason.FIGURE
    return PartitionSample(**loaded)


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
    """What was read. `junk`: records that are no samples, by reason."""

    samples: int = 0
    junk: Counter[InvalidSampleReason] = field(default_factory=Counter)


class SampleTopic:
    """One sample topic.

    Args:
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
        """Create it if it is missing; refuse one that keeps another time or compacts."""
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
        """Write samples and wait until Kafka has them, in bounded memory."""
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
            cluster: Samples of other clusters are left out; empty: all are taken.
            on_part: Called at the end of each partition of the topic: none of the partitions seen so far comes again.
        """
        counted = ReadCounts() if counts is None else counts
        count = self._count()
        doing = f"making the reader of {self.name}"
        with closing(PartitionConsumer(self._settings, self.topic.reader_group, self._note, doing=doing)) as consumer:
            for number, begin, end in self._spans(consumer, count, since_ms):
                for value, key in self._records(consumer, number, begin, end):
                    sample = decode_at(value, key, number, count, cluster)
                    if isinstance(sample, InvalidSampleReason):
                        counted.junk[sample] += 1
                        continue
                    counted.samples += 1
                    yield sample
                on_part()

    def _spans(self, consumer: PartitionConsumer, count: int, since_ms: int) -> list[tuple[int, int, int]]:
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
        self, consumer: PartitionConsumer, number: int, begin: int, end: int
    ) -> Iterator[tuple[bytes | None, bytes | None]]:
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
                    self._skip_deleted(consumer, number)
                elif is_topic_missing(error):
                    raise self._translated(error)

    def _skip_deleted(self, consumer: PartitionConsumer, number: int) -> None:
        """Retention was faster: continue at the new beginning."""
        (bounds,) = BoundsAsker(self._settings, timeout_s=self.timeout_s).ask([(self.name, number)]).values()
        consumer.move_to(max(consumer.position, bounds.low))

    def _note(self, error: KafkaError) -> None:
        self._last_error = error

    def _translated(self, problem: BaseException | KafkaError) -> Exception:
        return translate(problem, f"reading samples of {self.name}", secrets=self._settings.secrets())
