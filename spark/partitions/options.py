"""Metrics of the job partition-loads beyond those that every job has, and its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge

from spark.cli.job import AcceptNewTopic, CompactHistory, Option

_DAY_S = 86_400.0


class PartitionFigures:
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
        for reason, count in taken.records.items():
            self.records.labels(reason).inc(count)
        self.partitions.set(taken.partitions)
        self.complete.set(taken.minutes / taken.slots)


JOB = "partition-loads"
OFFSETS_MAX = 5_000_000
"""Default bound of the offsets of one batch: the workers read them, nothing of them passes through the driver."""


@dataclass(frozen=True, slots=True)
class PartitionLoadsOptions:
    """The options of this job alone."""

    table: Annotated[
        str, Option("--table", metavar="DIR", help="Where loads and history are written: a folder, or a URI.")
    ]
    topic: Annotated[
        str, Option("--topic", metavar="NAME", help="Topic of the samples; as extensions.partitions.sample.topic.")
    ] = "partition-samples"
    window_s: Annotated[
        float, Option("--window-s", min=60, max=30 * _DAY_S, help="Averaging window before now, in seconds.")
    ] = 6 * 3_600.0
    interval_s: Annotated[
        float, Option("--interval-s", min=1, max=3_600, help="Time between two samples of a partition.")
    ] = 60.0
    cluster: Annotated[
        str, Option("--cluster", metavar="ID", help="Samples of this cluster count. Default: the Kafka that is read.")
    ] = ""
    keep: Annotated[int, Option("--keep", min=2, max=10_000, help="Snapshots of the loads that are kept.")] = 10
    compacts: CompactHistory = True
    accept_new_topic: AcceptNewTopic = False


class PartitionBatchResult(NamedTuple):
    """What a batch did.

    Attributes:
        records: Records by what became of them: "" for samples, else why they are none.
        minutes: Intervals of the window that have a sample.
    """

    records: Mapping[str, int]
    partitions: int
    minutes: int
    slots: int
