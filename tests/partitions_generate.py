"""Our plans beside `--generate` of Kafka's own tool, on the same clusters: `python -m tests.partitions_generate [--keep]`.

The tool's own code runs (see tests/support/kafka_tools.py), with the brokers that a person would give it: all of them for a
rebalance and for new brokers, those that stay for a removal. It is given every topic; its random numbers are seeded.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from loaddata.samples.partitions import ClusterLayout, PartitionLoads
from shedders.kafka_rebalance.planning.planner import plan_partitions
from shedders.kafka_rebalance.planning.request import PlanMode, PlanRequest
from tests.support.kafka_tools import Generator, generator
from tests.support.partition_clusters import big_cluster
from tests.support.partition_figures import keep
from tests.twin.partition_measures import BY_BROKER, cells
from tests.twin.partition_rules import repeats
from tests.twin.partition_state import State, allowed_brokers, state_after, state_of

SHAPES: Mapping[str, Mapping[str, int]] = {
    "6 brokers, no racks": {"brokers": 6, "racks": 0, "topics": 30, "replicas": 1_500},
    "24 brokers, 6 racks": {"brokers": 24, "racks": 6, "topics": 150, "replicas": 9_000},
    "60 brokers, 10 racks": {"brokers": 60, "racks": 10, "topics": 600, "replicas": 40_000},
}
MODES = (PlanMode.REBALANCE, PlanMode.ADD_BROKERS, PlanMode.REMOVE_BROKERS)


def compared(shape: str, mode: PlanMode, seed: int, tool: Generator) -> list[dict[str, Any]]:
    """What was there, what the tool makes of it, and what we do."""
    size = SHAPES[shape]
    changed = max(1, size["brokers"] // 10)
    layout, loads = big_cluster(seed, **size, empty=changed if mode is PlanMode.ADD_BROKERS else 0)
    ids = [one.id for one in layout.brokers]
    subjects = {PlanMode.REBALANCE: (), PlanMode.ADD_BROKERS: ids[-changed:], PlanMode.REMOVE_BROKERS: ids[:changed]}[
        mode
    ]
    request = PlanRequest(mode=mode, subjects=tuple(subjects))
    before = state_of(layout)
    allowed = allowed_brokers(layout, request)
    rows = [{"who": "before", **_figures(before, before, layout, loads, request)}]
    assignment = {key: replicas for key, (replicas, _) in before.items()}
    generated = tool.generate(assignment, layout, allowed, seed=seed)
    # The first replica is the preferred leader: where the tool's JSON leads to.
    theirs: State = {key: (replicas, replicas[0]) for key, replicas in generated.items()}
    rows.append({"who": "--generate", **_figures(before, theirs, layout, loads, request)})
    began_s = time.monotonic()
    plan = plan_partitions(layout, loads, request)
    took_s = time.monotonic() - began_s
    rows.append(
        {"who": "ours", **_figures(before, state_after(layout, plan), layout, loads, request), "took_s": took_s}
    )
    return [{"cluster": shape, "mode": str(mode), "seed": seed, **row} for row in rows]


def _figures(
    before: State, after: State, layout: ClusterLayout, loads: PartitionLoads, request: PlanRequest
) -> dict[str, Any]:
    rack_of = {one.id: one.rack for one in layout.brokers}
    copied = sum(
        len(set(replicas) - set(before[key][0])) * (loads.of[key].disk_bytes or 0)
        for key, (replicas, _) in after.items()
    )
    every = sum(len(replicas) * (loads.of[key].disk_bytes or 0) for key, (replicas, _) in before.items())
    found: dict[str, Any] = {
        "copied_bytes": copied,
        "copied_share": copied / every,
        "partitions_moved": sum(set(after[key][0]) != set(replicas) for key, (replicas, _) in before.items()),
        "partitions": len(before),
        "racks_broken": sum(repeats(replicas, rack_of) > 0 for replicas, _ in after.values()),
    }
    for goal in BY_BROKER:
        values = list(cells(goal, after, layout, loads, request).values())
        mean = statistics.fmean(values)
        found[goal] = {"max": max(values) / mean, "min": min(values) / mean, "std": statistics.pstdev(values) / mean}
    return found


def medians(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row for each cluster, mode and party: medians over the seeds."""
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["cluster"], row["mode"], row["who"]), []).append(row)
    return [
        {"cluster": cluster, "mode": mode, "who": who, "seeds": len(group), **_median(group)}
        for (cluster, mode, who), group in groups.items()
    ]


def _median(group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in group[0].items():
        if isinstance(value, Mapping):
            found[name] = {part: _round(statistics.median(row[name][part] for row in group)) for part in value}
        elif name in {"copied_bytes", "copied_share", "partitions_moved", "partitions", "racks_broken"}:
            found[name] = _round(statistics.median(row[name] for row in group))
    return found


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=tuple(SHAPES), default=list(SHAPES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--keep", action="store_true", help="put the figures where design/evidence/partitions-quality.md has them from"
    )
    given = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    with generator() as tool:
        for shape in given.shapes:
            for mode in MODES:
                for seed in range(1, given.seeds + 1):
                    rows += compared(shape, mode, seed, tool)
                print(json.dumps(medians(rows[-3 * given.seeds :])), flush=True)
    if given.keep:
        keep("generate", medians(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
