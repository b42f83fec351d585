"""The load of each partition from the measurements of one minute, by the formulas of design/partitions.md. Pure.

Kafka reports log sizes by partition, traffic by topic and broker, and CPU by broker. The formulas:

* bytes in and out of a partition: the broker's rate of the topic, divided evenly by the leaders of the topic that it holds;
* CPU share of a partition: `cpu * partition in / (broker in * 3 + replication in)`;
* followers are derived from leaders: a third of the CPU, the same disk, and what the leader takes in as replication.

A figure that is missing or unsound, and whatever would rest on it, is a hole with a reason: nothing is guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from loaddata.model.figures import FIGURE_MAX
from loaddata.samples.partitions import ClusterLayout, KafkaBroker, KafkaPartition, PartitionResource, PartitionSample

LEADER_WEIGHT: Final = 3
"""A byte from a client costs the CPU as much as three bytes of replication."""
ALL: Final = frozenset(PartitionResource)


class Hole(StrEnum):
    """Why a figure of a sample, or a sample, is missing."""

    NO_LEADER = "no leader"
    BROKER_SILENT = "broker did not answer"
    NOT_TOLD = "not told"
    NOT_A_NUMBER = "not a number"
    NEGATIVE = "negative"
    TOO_LARGE = "too large"
    ZERO_DENOMINATOR = "zero denominator"
    FIRST_LOOK = "first look"
    WENT_BACK = "counter went back"
    SEVERAL_SERIES = "several series"


FigureOrHole = float | Hole
"""A figure, or why there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerReading:
    """What one broker reports of one minute. What is not in a mapping was not reported.

    Attributes:
        bytes_in: From clients, all topics, bytes/s.
        replication_in: From other brokers' leaders, bytes/s.
        cpu: Part of all of the machine's CPU that its process takes, 0 to 1.
        topic_in: From clients by topic, bytes/s.
        topic_out: To clients by topic, bytes/s.
        log_bytes: Size of the replicas that it holds, by topic and partition.
        partition_in: Bytes/s of partitions that were measured one by one; they take precedence over `topic_in`.
    """

    bytes_in: FigureOrHole = Hole.NOT_TOLD
    replication_in: FigureOrHole = Hole.NOT_TOLD
    cpu: FigureOrHole = Hole.NOT_TOLD
    topic_in: Mapping[str, FigureOrHole] = field(default_factory=lambda: MappingProxyType({}))
    topic_out: Mapping[str, FigureOrHole] = field(default_factory=lambda: MappingProxyType({}))
    log_bytes: Mapping[tuple[str, int], FigureOrHole] = field(default_factory=lambda: MappingProxyType({}))
    partition_in: Mapping[tuple[str, int], FigureOrHole] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledMinute:
    """Samples of one minute, and what is missing in them.

    Attributes:
        samples: In order of topic and partition; none of a partition of which nothing is known.
        holes: How often which figure (a `PartitionResource`, or "sample" for all of a partition's) is missing, and why.
        silent: Brokers that reported nothing, and why.
        remarks: Further notes for people, as sentences.
    """

    samples: tuple[PartitionSample, ...] = ()
    holes: Mapping[tuple[str, Hole], int] = field(default_factory=lambda: MappingProxyType({}))
    silent: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    remarks: tuple[str, ...] = ()


def sound(figure: FigureOrHole | None, most: float = FIGURE_MAX) -> FigureOrHole:
    """The figure if it is finite, not negative and not absurd; else why it is a hole."""
    if figure is None:
        return Hole.NOT_TOLD
    if isinstance(figure, Hole):
        return figure
    if figure != figure:  # noqa: PLR0124 - NaN
        return Hole.NOT_A_NUMBER
    if figure < 0:
        return Hole.NEGATIVE
    return figure if figure <= most else Hole.TOO_LARGE


def per_leader(rate: FigureOrHole | None, leaders: int) -> FigureOrHole:
    """A partition's part of its broker's rate of the topic (document, section 2.2 and 2.3).

    Args:
        rate: Of the topic on the broker, bytes/s.
    """
    figure = sound(rate)
    if isinstance(figure, Hole):
        return figure
    return figure / leaders if leaders > 0 else Hole.ZERO_DENOMINATOR


def cpu_share(
    cpu: FigureOrHole, partition_in: FigureOrHole, broker_in: FigureOrHole, replication_in: FigureOrHole
) -> FigureOrHole:
    """A leader's part of all of the broker's CPU, 0 to 1 (document, section 2.4)."""
    used, part = sound(cpu, 1.0), sound(partition_in)
    clients, replication = sound(broker_in), sound(replication_in)
    if isinstance(used, Hole) or isinstance(part, Hole) or isinstance(clients, Hole) or isinstance(replication, Hole):
        return next(figure for figure in (used, part, clients, replication) if isinstance(figure, Hole))
    whole = clients * LEADER_WEIGHT + replication
    if whole == 0:
        return Hole.ZERO_DENOMINATOR
    return sound(used * part / whole, 1.0)


def samples_of(
    layout: ClusterLayout,
    readings: Mapping[int, BrokerReading],
    *,
    taken_at_ms: int,
    source: str,
    offers: frozenset[PartitionResource] = ALL,
    silent: Mapping[int, str] = MappingProxyType({}),
    remarks: tuple[str, ...] = (),
) -> SampledMinute:
    """Samples of all partitions whose leader reported something.

    Args:
        readings: By broker; a missing one did not answer.
        offers: What this source measures at all; the rest is missing without being counted as a hole.
    """
    brokers = {broker.id: broker for broker in layout.brokers}
    held = Counter(
        (topic.name, partition.leader) for topic, partition in layout.partitions() if partition.leader is not None
    )
    holes: Counter[tuple[str, Hole]] = Counter()
    samples: list[PartitionSample] = []
    for topic, partition in layout.partitions():
        if partition.leader is None:
            holes["sample", Hole.NO_LEADER] += 1
            continue
        reading = readings.get(partition.leader)
        if reading is None:
            holes["sample", Hole.BROKER_SILENT] += 1
            continue
        measured = _figures(reading, topic.name, partition, held[topic.name, partition.leader])
        figures: dict[PartitionResource, float] = {}
        for resource, figure in measured.items():
            if isinstance(figure, Hole):
                holes[str(resource), figure] += resource in offers
            else:
                figures[resource] = figure
        if figures:
            broker = brokers.get(partition.leader, KafkaBroker(id=partition.leader))
            samples.append(
                _sample(layout.cluster_id, broker, topic.name, partition.partition, taken_at_ms, figures, source)
            )
    return SampledMinute(samples=tuple(samples), holes=+holes, silent=silent, remarks=remarks)


def _figures(
    reading: BrokerReading, topic: str, partition: KafkaPartition, leaders: int
) -> Mapping[PartitionResource, FigureOrHole]:
    place = (topic, partition.partition)
    direct = reading.partition_in.get(place)
    bytes_in = sound(direct) if direct is not None else per_leader(reading.topic_in.get(topic), leaders)
    return {
        PartitionResource.DISK: sound(reading.log_bytes.get(place)),
        PartitionResource.BYTES_IN: bytes_in,
        PartitionResource.BYTES_OUT: per_leader(reading.topic_out.get(topic), leaders),
        PartitionResource.CPU: cpu_share(reading.cpu, bytes_in, reading.bytes_in, reading.replication_in),
    }


def _sample(
    cluster: str,
    broker: KafkaBroker,
    topic: str,
    partition: int,
    taken_at_ms: int,
    figures: Mapping[PartitionResource, float],
    source: str,
) -> PartitionSample:
    disk = figures.get(PartitionResource.DISK)
    return PartitionSample(
        cluster=cluster,
        broker=broker.id,
        host=broker.host,
        topic=topic,
        partition=partition,
        taken_at_ms=taken_at_ms,
        disk_bytes=None if disk is None else round(disk),
        bytes_in_per_s=figures.get(PartitionResource.BYTES_IN),
        bytes_out_per_s=figures.get(PartitionResource.BYTES_OUT),
        cpu_share=figures.get(PartitionResource.CPU),
        source=source,
    )
