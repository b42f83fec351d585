"""Sources of a plan's layout and loads: a file, or the live cluster."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shedders.kafka_rebalance.cli.arguments import need_extra
from statechannel.cli.kit.output import cell, progress, say

if TYPE_CHECKING:
    from loaddata.samples.layout import ClusterLayout
    from loaddata.samples.loads import PartitionLoads
    from shedders.kafka_rebalance.settings import PartitionsSettings
    from statechannel.cli.kit.options import Connect


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSource:
    """Inputs of a plan.

    Attributes:
        layout: Layout of the cluster.
        loads: Known loads of its partitions.
        live: Whether they are from the live cluster.
    """

    layout: ClusterLayout
    loads: PartitionLoads
    live: bool


def seen(
    connect: Connect,
    settings: PartitionsSettings,
    *,
    file: Path | None,
    window_s: float | None = None,
    loads: Path | None = None,
) -> PlanSource:
    """Read layout and loads, from the file if one is named.

    Args:
        connect: Finds the cluster.
        settings: Of the planner.
        file: `kafka-layout/1`.
        window_s: Time over which samples are averaged; None: from the settings.
        loads: `kafka-loads/1`, or the table of the Spark job, in place of samples, or of the loads in the file.

    Raises:
        StateChannelError: The file is unusable; Kafka is out of reach, denies access or is too old; the extra is missing.
    """
    result = _from_cluster(connect, settings, window_s, loads) if file is None else _from_file(file, settings, loads)
    for remark in result.layout.remarks:
        say(cell(f"note: {remark}"))
    if result.loads.source:
        say(cell(f"loads: {result.loads.source}"))
    return result


def _from_file(file: Path, settings: PartitionsSettings, loads: Path | None) -> PlanSource:
    from loaddata.samples.layout_file import read_layout_file
    from loaddata.samples.loads_file import read_loads_file

    layout, known = read_layout_file(file)
    if loads is not None:
        known = read_loads_file(loads, cluster=layout.cluster_id, completeness_min=settings.sample.completeness_min)
    return PlanSource(layout=layout, loads=known, live=False)


def _from_cluster(
    connect: Connect, settings: PartitionsSettings, window_s: float | None, file: Path | None
) -> PlanSource:
    need_extra("kafka")
    from loaddata.samples.admin import open_admin
    from loaddata.samples.current_loads import loads_now
    from loaddata.samples.kafka_cluster import read_layout
    from loaddata.samples.sample_topic import SampleTopic

    connection = connect()
    sample = settings.sample
    window_s = window_s or sample.window_s
    topic = SampleTopic(connection.client, sample.topic, window_s=window_s, timeout_s=connection.timeout_s)
    timeout_s = max(connection.timeout_s, sample.timeout_s)
    with progress("reading the cluster", 3) as update, open_admin(connection.client, timeout_s=timeout_s) as admin:
        update(1)
        now_ms = time.time_ns() // 1_000_000
        layout = read_layout(admin, now_ms=now_ms, timeout_s=timeout_s)
        update(2)
        loads = loads_now(
            admin,
            layout,
            topic,
            now_ms=now_ms,
            window_s=window_s,
            interval_s=sample.interval_s,
            completeness_min=sample.completeness_min,
            timeout_s=timeout_s,
            file=file,
        )
    return PlanSource(layout=layout, loads=loads, live=True)
