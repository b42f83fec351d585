"""Figures of the job partition-loads beside those that every job has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge

if TYPE_CHECKING:
    from spark.partition_options import Taken


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

    def took(self, taken: Taken) -> None:
        """A batch is done."""
        for reason, count in taken.records.items():
            self.records.labels(reason).inc(count)
        self.partitions.set(taken.partitions)
        self.complete.set(taken.minutes / taken.slots)
