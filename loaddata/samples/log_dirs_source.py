"""The source `log-dirs`: sizes of the log directories and growth of the logs, from the cluster itself.

It needs no metrics system. What it cannot measure is missing: bytes out and CPU. Bytes in need two readings:

* where a log was not cut in between (its first offset is the same, and it did not shrink), the growth of its size is what came
  in, byte by byte;
* else the growth of its offsets times the size of a record, taken from the log as it is (bytes / offsets that it spans).
  Compacted logs have fewer records than offsets: there that is too little, until the next look without a cut.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

from kafka import KafkaAdminClient, TopicPartition
from kafka import errors as kafka_python

from loaddata.samples.admin import ask, words_of
from loaddata.samples.formulas import BrokerReading, FigureOrHole, Hole, SampledMinute, samples_of
from loaddata.samples.kafka_cluster import BROKER_S, read_replica_sizes
from loaddata.samples.partitions import ClusterLayout, PartitionResource
from loaddata.samples.sources import PartitionSource, SourceError, SourceOptions

NAME: Final = "log-dirs"
OFFERS: Final = frozenset({PartitionResource.DISK, PartitionResource.BYTES_IN})
_EARLIEST, _LATEST = -2, -1
Part = tuple[str, int]


class Look(NamedTuple):
    """What was seen of one log.

    Attributes:
        size_bytes: Of the leader's replica.
        low: First offset.
        high: Offset behind the last record.
        at_s: Monotonic time.
        leader: Whose log it was.
    """

    size_bytes: int
    low: int
    high: int
    at_s: float
    leader: int


def bytes_in(before: Look | None, now: Look) -> FigureOrHole:
    """Bytes/s that came into a log between two readings. Pure; see the module."""
    if before is None or now.at_s <= before.at_s:
        return Hole.FIRST_LOOK
    passed_s = now.at_s - before.at_s
    if now.high < before.high:
        return Hole.WENT_BACK  # the topic was created again, or its log was truncated
    if now.high == before.high:
        return 0.0
    if now.low == before.low and now.size_bytes >= before.size_bytes and now.leader == before.leader:
        return (now.size_bytes - before.size_bytes) / passed_s
    spanned = now.high - now.low
    if spanned <= 0 or now.size_bytes <= 0:
        return Hole.NOT_TOLD  # all of it was deleted again: the size of its records is unknown
    return (now.high - before.high) * now.size_bytes / spanned / passed_s


def make(options: SourceOptions) -> PartitionSource:
    if options.admin is None:
        raise SourceError(
            "the source log-dirs asks the cluster, and no cluster is named", hint="Give --bootstrap-servers."
        )
    return LogDirsSource(options.admin, timeout_s=options.timeout_s)


class LogDirsSource:
    """Looks at the logs."""

    name = NAME

    def __init__(self, admin: KafkaAdminClient, *, timeout_s: float = 10.0) -> None:
        self._admin = admin
        self._timeout_s = timeout_s
        self._before: dict[Part, Look] = {}

    def take(self, layout: ClusterLayout, *, taken_at_ms: int, mono_s: float) -> SampledMinute:
        remarks: list[str] = []
        sizes = read_replica_sizes(self._admin, layout, timeout_s=self._timeout_s, silent=remarks)
        led: dict[int, list[Part]] = defaultdict(list)
        for topic, partition in layout.partitions():
            if partition.leader is not None:
                led[partition.leader].append((topic.name, partition.partition))
        readings: dict[int, BrokerReading] = {}
        silent: dict[int, str] = {}
        seen: dict[Part, Look] = {}
        for broker, parts in sorted(led.items()):
            log_bytes = {part: sizes[part][broker] for part in parts if broker in sizes.get(part, {})}
            if not log_bytes:
                silent[broker] = "it reported no sizes"
                continue
            try:
                bounds = self._bounds(list(log_bytes))
            except (kafka_python.KafkaError, OSError) as error:
                remarks.append(f"broker {broker} did not report where its logs end: {words_of(error)}")
                bounds = {}
            looks = {part: Look(log_bytes[part], *bounds[part], mono_s, broker) for part in log_bytes if part in bounds}
            rates = {part: bytes_in(self._before.get(part), look) for part, look in looks.items()}
            readings[broker] = BrokerReading(log_bytes=log_bytes, partition_in=rates)
            seen |= looks
        self._before = seen
        return samples_of(
            layout, readings, taken_at_ms=taken_at_ms, source=NAME, offers=OFFERS, silent=silent, remarks=tuple(remarks)
        )

    def _bounds(self, parts: list[Part]) -> Mapping[Part, tuple[int, int]]:
        """First offset and end of logs that one broker leads."""
        places = [TopicPartition(topic, number) for topic, number in parts]
        timeout_s = min(self._timeout_s, BROKER_S)
        ends = []
        for which in (_EARLIEST, _LATEST):
            call = partial(
                self._admin.list_partition_offsets, dict.fromkeys(places, which), timeout_ms=timeout_s * 1_000
            )
            ends.append(ask(self._admin, call, timeout_s=timeout_s))
        low, high = ends
        return {
            (place.topic, place.partition): (low[place].offset, high[place].offset)
            for place in places
            if place in low and place in high
        }
