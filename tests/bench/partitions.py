"""Plans of large Kafka clusters: wall time and peak memory of a rebalance, of new brokers and of brokers that go.

Each plan is made in a process of its own. The floor is what has to be done before anything can be planned: copying the
layout into a virtual cluster and measuring every goal of the plan once, in the same process just before.

`python -m tests.bench.partitions MODE REPLICAS` is the worker.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shedders.kafka_rebalance.planning.plan import GoalStatus
from shedders.kafka_rebalance.planning.planner import plan_partitions
from shedders.kafka_rebalance.planning.request import PlanMode, PlanRequest
from shedders.kafka_rebalance.planning.virtual_cluster import VirtualCluster
from tests.bench.measure import Figure, Load, worker
from tests.support.partition_clusters import big_cluster

REPLICAS = (100_000, 1_000_000)
BROKERS = {100_000: 50, 1_000_000: 200}
TOPICS = {100_000: 800, 1_000_000: 4_000}
MODES = (PlanMode.REBALANCE, PlanMode.ADD_BROKERS, PlanMode.REMOVE_BROKERS)
NEW_SHARE, GONE_SHARE = 10, 40
"""One broker of so many is new: 20 of 200; one of so many goes: 5 of 200."""
LIMIT_S, LIMIT_MIB = 300.0, 8 * 1024.0
TIMEOUT_S = 3_600.0


def run(sizes: Sequence[int] = REPLICAS) -> list[Figure]:
    """Time and memory of each plan."""
    figures: list[Figure] = []
    for replicas in sizes:
        for mode in MODES:
            load = Load()
            facts = worker("tests.bench.partitions", mode, replicas, timeout_s=TIMEOUT_S)
            name, limited = f"partitions.{mode}.{replicas}", replicas >= REPLICAS[-1]
            notes = facts["notes"]
            figures.append(
                Figure(
                    f"{name}.time",
                    facts["took_s"],
                    "s",
                    ratio=facts["took_s"] / facts["floor_s"],
                    aim=f"<= {LIMIT_S:g} s" if limited else "",
                    load=str(load),
                    notes=notes,
                )
            )
            aim = f"<= {LIMIT_MIB:g} MiB" if limited else ""
            figures.append(Figure(f"{name}.memory", facts["peak_mib"], "MiB", aim=aim, load=str(load)))
    return figures


def measure(mode: PlanMode, replicas: int) -> dict[str, Any]:
    """One worker's answer."""
    brokers = BROKERS.get(replicas, max(10, replicas // 5_000))
    empty = max(1, brokers // NEW_SHARE) if mode is PlanMode.ADD_BROKERS else 0
    topics = TOPICS.get(replicas, max(10, replicas // 250))
    layout, loads = big_cluster(1, replicas=replicas, brokers=brokers, topics=topics, empty=empty)
    ids = [broker.id for broker in layout.brokers]
    gone = max(1, brokers // GONE_SHARE)
    subjects = {PlanMode.ADD_BROKERS: ids[-empty:], PlanMode.REMOVE_BROKERS: ids[2 :: brokers // gone][:gone]}.get(
        mode, []
    )
    # Alive brokers that go are planned away from; everything else is as it is asked for without options.
    request = PlanRequest(mode=mode, subjects=tuple(subjects))
    before_mib = _peak_mib()
    began_s = time.monotonic()
    cluster = VirtualCluster(layout, loads)
    cluster.sums.std(axis=1), cluster.topic_replicas.std(axis=1), cluster.topic_leaders.std(axis=1)
    floor_s = time.monotonic() - began_s
    del cluster
    began_s = time.monotonic()
    plan = plan_partitions(layout, loads, request, now_s=time.monotonic)
    took_s = time.monotonic() - began_s
    every = sum(
        len(part.replicas) * (loads.of[topic.name, part.partition].disk_bytes or 0)
        for topic, part in layout.partitions()
    )
    return {
        "took_s": took_s,
        "floor_s": floor_s,
        "peak_mib": _peak_mib(),
        "notes": {
            "floor_s": floor_s,
            "layout_mib": before_mib,
            "brokers": brokers,
            "topics": topics,
            "partitions": sum(len(topic.partitions) for topic in layout.topics.values()),
            "replicas": sum(len(part.replicas) for _, part in layout.partitions()),
            "partitions_moved": len(plan.moves),
            "copied_share": plan.copied_bytes / every,
            "complete": plan.complete,
            "goals_met": sum(goal.status is GoalStatus.MET for goal in plan.goals),
            "goals": {goal.name: [str(goal.status), goal.moves, round(goal.took_s, 1)] for goal in plan.goals},
        },
    }


def _peak_mib() -> float:
    """Most memory that the process ever had; `ru_maxrss` would count the process that started it, too."""
    line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    print(json.dumps(measure(PlanMode(sys.argv[1]), int(sys.argv[2]))))
