"""Metrics of the job partition-loads beyond those that every job has, and its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge


class PartitionFigures:
    """What the batches say."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.records = Counter(
            "statechannel_spark_partition_records_total",
            "Records of the sample topic, by why they do not count; an empty reason: they are samples.",
            ["reason"],
            registry=registry,
        )
        self.partitions = Gauge("statechannel_spark_partition_loads", "Partitions that have a load.", registry=registry)
        self.complete = Gauge(
            "statechannel_spark_partition_window_ratio",
            "Part of the window's intervals that have a sample of any partition.",
            registry=registry,
        )

    def took(self, taken: PartitionBatchResult) -> None:
        """A batch is done."""
        for reason, count in taken.records.items():
            self.records.labels(reason).inc(count)
        self.partitions.set(taken.partitions)
        self.complete.set(taken.minutes / taken.slots)


JOB = "partition-loads"
OFFSETS_MAX = 5_000_000
"""Default bound of the offsets of one batch: the workers read them, nothing of them passes through the driver."""


@dataclass(frozen=True, slots=True)
class PartitionLoadsOptions:
    """The options of this job alone.

    Attributes:
        table: Folder or URI of what it writes.
        topic: The sample topic.
        window_s: Length of the averaging window.
        interval_s: Time between two samples of a partition.
        cluster: Samples of other clusters do not count; empty: those of the Kafka that is read.
        accept_new_topic: Continue with a topic that was created again.
        keep: Snapshots that are kept.
        compacts: Put the history's batches of days that are over into one.
    """

    table: str
    topic: str
    window_s: float = 6 * 3_600.0
    interval_s: float = 60.0
    cluster: str = ""
    accept_new_topic: bool = False
    keep: int = 10
    compacts: bool = True


class PartitionBatchResult(NamedTuple):
    """What a batch did.

    Attributes:
        records: Records by what became of them: "" for samples, else why they are none.
        partitions: Partitions that have a load.
        minutes: Intervals of the window that have a sample.
        slots: Intervals of the window.
    """

    records: Mapping[str, int]
    partitions: int
    minutes: int
    slots: int
