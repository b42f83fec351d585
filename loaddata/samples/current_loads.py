"""The loads that a plan uses: averages of the sample topic, else sizes of the log directories; the source is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kafka import KafkaAdminClient

from loaddata.samples.averages import Averager, Place, Window
from loaddata.samples.kafka_cluster import read_sizes
from loaddata.samples.layout import ClusterLayout
from loaddata.samples.loads import PartitionLoad, PartitionLoads
from loaddata.samples.loads_file import LoadsFileError, read_loads_file
from loaddata.samples.sample_topic import ReadCounts, SampleTopic


@dataclass(frozen=True, slots=True)
class ReadLoads:
    """Averages of a sample topic, and what they are made from.

    Attributes:
        loads: Of all partitions that have samples; `source` says in a sentence where they are from.
        minutes: Minutes of the window that have a sample of any partition.
        window: What was asked for.
        counts: What was read, including records that are not samples.
        incomplete: Partitions that were left out since too little of the window was measured.
    """

    loads: PartitionLoads
    minutes: int
    window: Window
    counts: ReadCounts
    incomplete: int


def read_loads(
    topic: SampleTopic,
    *,
    now_ms: int,
    window_s: float,
    interval_s: float,
    completeness_min: float = 0.0,
    cluster: str = "",
) -> ReadLoads | None:
    """Averages of the last `window_s`; None: there is no such topic.

    Args:
        topic: Where the samples are.
        now_ms: Wall clock.
        window_s: Samples of so long before now count.
        interval_s: Time between two samples of a partition.
        completeness_min: Partitions with a smaller part of the window measured are left out.
        cluster: Samples of other clusters do not count; empty: all do.

    Raises:
        KafkaAdapterError: Kafka does not answer.
        TooManySamplesError: There are more than the plain reader may hold.
    """
    if topic.partitions() is None:
        return None
    window = Window.until(now_ms, window_s=window_s, interval_s=interval_s)
    averager = Averager(window)
    counts = ReadCounts()
    for sample in topic.read(window.from_ms, counts=counts, cluster=cluster, on_part=averager.close_part):
        averager.add(sample)
    every = len(averager.loads().of)
    source = f"samples of {averager.minutes} of {window.slots} intervals of {interval_s:g} s (topic {topic.name})"
    loads = averager.loads(completeness_min=completeness_min, source=source)
    return ReadLoads(loads, averager.minutes, window, counts, every - len(loads.of))


def loads_now(
    admin: KafkaAdminClient,
    layout: ClusterLayout,
    topic: SampleTopic,
    *,
    now_ms: int,
    window_s: float,
    interval_s: float,
    completeness_min: float = 0.0,
    timeout_s: float = 30.0,
    file: Path | None = None,
) -> PartitionLoads:
    """What is known of the load of each partition: `PartitionLoads.source` says from where.

    Averages that the Spark job has made, if `file` names them (a file, or the job's table); else those of the sample topic, if
    the window has samples; a partition without a size in any sample has that of its log directory. Without any
    sample sizes are all that is known. Partitions that the cluster has no more are left out.

    Raises:
        KafkaAdapterError: Kafka does not answer.
        TooManySamplesError: See `read_loads`.
        LoadsFileError: The file cannot be used, or is older than the window.
    """
    places = [(each.name, part.partition) for each, part in layout.partitions()]
    if file is not None:
        averages = read_loads_file(file, cluster=layout.cluster_id, completeness_min=completeness_min)
        if averages.to_ms < now_ms - window_s * 1_000:
            raise LoadsFileError(
                f"the loads of {file} ended {(now_ms - averages.to_ms) / 3_600_000:.1f} h ago",
                hint="Check that samples are taken and that the job partition-loads runs, or ask for a longer window.",
            )
        return _completed(admin, layout, averages, places, averages.source, timeout_s)
    read = read_loads(
        topic,
        now_ms=now_ms,
        window_s=window_s,
        interval_s=interval_s,
        completeness_min=completeness_min,
        cluster=layout.cluster_id,
    )
    if read is None or not read.loads.of:
        sizes = read_sizes(admin, layout, timeout_s=timeout_s)
        why = f"no samples of the last {window_s / 3_600:g} h in topic {topic.name}"
        if read is not None and read.incomplete:
            why = f"the samples of {read.incomplete} partitions cover too little of the last {window_s / 3_600:g} h"
        return replace(sizes, source=f"sizes of the log directories; {why}")
    source = read.loads.source
    if read.incomplete:
        source += f"; {read.incomplete} partitions are too incomplete to count"
    return _completed(admin, layout, read.loads, places, source, timeout_s)


def _completed(
    admin: KafkaAdminClient,
    layout: ClusterLayout,
    loads: PartitionLoads,
    places: list[Place],
    source: str,
    timeout_s: float,
) -> PartitionLoads:
    """Loads of the partitions that there are; sizes of the log directories where no other is known."""
    of = {place: loads.of[place] for place in places if place in loads.of}
    without = [place for place in places if place not in of or of[place].disk_bytes is None]
    if without:
        filled = with_sizes(of, without, read_sizes(admin, layout, timeout_s=timeout_s).of)
        source += f"; sizes of {filled} partitions from the log directories"
    return replace(loads, of={place: of[place] for place in places if place in of}, source=source)


def with_sizes(of: dict[Place, PartitionLoad], without: list[Place], sizes: Mapping[Place, PartitionLoad]) -> int:
    """Fill in the disk of partitions that have none; returns of how many."""
    filled = 0
    for place in without:
        size = sizes[place].disk_bytes if place in sizes else None
        if size is not None:
            of[place] = replace(of[place], disk_bytes=size) if place in of else PartitionLoad(disk_bytes=size)
            filled += 1
    return filled
