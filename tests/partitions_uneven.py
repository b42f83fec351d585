"""Plans of clusters with racks of different size, beside integer programs: `python -m tests.partitions_uneven`.

    python -m tests.partitions_uneven --clusters 300 --seed 1 --keep

Each cluster is planned for `rack-awareness` and `disk`. Its fullest disk is held against that of the most even layout there is,
or the upper end of the range, if that is more; its bytes against the least that brings every disk as far.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from loaddata.samples.partitions import (
    ClusterLayout,
    KafkaBroker,
    KafkaPartition,
    KafkaTopic,
    PartitionLoad,
    PartitionLoads,
)
from shedders.kafka_rebalance.planning.planner import plan_partitions
from shedders.kafka_rebalance.planning.request import GoalChoice, PlanRequest
from tests.support.partition_figures import keep
from tests.twin.partition_measures import cells
from tests.twin.partition_optimum import least_copied, most_even
from tests.twin.partition_state import state_after

SIZES = ((4, 4, 2), (4, 3, 2), (7, 3, 2), (5, 2, 2), (3, 2, 1), (5, 3, 2, 1), (6, 3), (4, 2))
RANGE = 0.1
REQUEST = PlanRequest(goals=(GoalChoice(name="rack-awareness"), GoalChoice(name="disk", range_share=RANGE)))


@dataclass(frozen=True, slots=True)
class Uneven:
    """One plan beside the programs.

    Attributes:
        before: Fullest disk, in means; `after`: of the plan; `best`: of the most even layout.
        beyond: How much fuller the fullest disk is than that of the most even layout or the range allows; 0.02: 2 %.
        copied_bytes: Of the plan. `least_bytes`: of any plan that brings each disk as far.
    """

    seed: int
    racks: tuple[int, ...]
    before: float
    after: float
    best: float
    beyond: float
    copied_bytes: int
    least_bytes: int
    took_s: float

    @property
    def ratio(self) -> float:
        return self.copied_bytes / self.least_bytes if self.least_bytes else 1.0 if not self.copied_bytes else 2.0


def uneven_cluster(seed: int) -> tuple[ClusterLayout, PartitionLoads]:
    """A cluster with racks of different size, well spread over racks, and crowded on some brokers of each."""
    chance = random.Random(seed)
    sizes = chance.choice(SIZES)
    racks: list[list[int]] = []
    for size in sizes:
        first = 1 + sum(map(len, racks))
        racks.append(list(range(first, first + size)))
    brokers = tuple(KafkaBroker(id=one, rack=f"r{rack}") for rack, ids in enumerate(racks) for one in ids)
    topics, loads = {}, {}
    for rank in range(chance.randint(1, 4)):
        name = f"t{rank}"
        factor = chance.choice((2, 3, 3)) if len(sizes) > 2 else 2
        scale = 10**9 * chance.paretovariate(1.5)
        parts = []
        for number in range(chance.randint(8, 30)):
            held = [min(chance.choice(ids), chance.choice(ids)) for ids in chance.sample(racks, factor)]
            parts.append(KafkaPartition(partition=number, replicas=tuple(held), leader=held[0], isr=tuple(held)))
            size = int(scale * (0.5 + chance.random()))
            loads[name, number] = PartitionLoad(disk_bytes=size, completeness=1.0)
        topics[name] = KafkaTopic(name=name, topic_id=name, partitions=tuple(parts))
    return ClusterLayout(cluster_id=f"uneven-{seed}", brokers=brokers, topics=topics), PartitionLoads(of=loads)


def compared(seed: int, *, limit_s: float = 20.0) -> Uneven:
    """Plan one cluster and solve its programs."""
    layout, loads = uneven_cluster(seed)
    began_s = time.monotonic()
    plan = plan_partitions(layout, loads, REQUEST)
    took_s = time.monotonic() - began_s
    state = state_after(layout, plan)
    disks = list(cells("disk", state, layout, loads, REQUEST).values())
    mean = statistics.fmean(disks)
    best = most_even(layout, loads, REQUEST, time_limit_s=limit_s) / mean
    least = least_copied(layout, loads, REQUEST, state, {"disk": RANGE}, time_limit_s=limit_s)
    after = max(disks) / mean
    racks: dict[str | None, int] = {}
    for broker in layout.brokers:
        racks[broker.rack] = racks.get(broker.rack, 0) + 1
    return Uneven(
        seed=seed,
        racks=tuple(racks.values()),
        before=max(broker.before.disk_bytes or 0 for broker in plan.brokers) / mean,
        after=after,
        best=best,
        beyond=max(0.0, after / max(best, 1 + RANGE) - 1),
        copied_bytes=plan.copied_bytes,
        least_bytes=least,
        took_s=took_s,
    )


def summary(found: Sequence[Uneven]) -> dict[str, Any]:
    """Figures of all clusters together."""
    beyond, ratios = sorted(one.beyond for one in found), sorted(one.ratio for one in found)
    return {
        "clusters": len(found),
        "fullest disk beyond the best": _spread(beyond) | {"within 2 %": _share(beyond, 0.02)},
        "bytes / least bytes": _spread(ratios) | {"within 1.05": _share(ratios, 1.05)},
        "all bytes / all least bytes": sum(one.copied_bytes for one in found)
        / max(1, sum(one.least_bytes for one in found)),
    }


def _spread(ordered: Sequence[float]) -> dict[str, float]:
    return {
        "median": statistics.median(ordered),
        "p95": ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))],
        "worst": ordered[-1],
    }


def _share(values: Sequence[float], bound: float) -> float:
    return sum(value <= bound for value in values) / len(values)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1, help="of the first cluster; the others follow it")
    parser.add_argument("--limit-s", type=float, default=20.0, help="time of the solver for each program")
    parser.add_argument("--verbose", action="store_true", help="each cluster")
    parser.add_argument("--keep", action="store_true", help="put the figures where the documentation has them from")
    given = parser.parse_args(argv)
    found = []
    for seed in range(given.seed, given.seed + given.clusters):
        found.append(compared(seed, limit_s=given.limit_s))
        if given.verbose:
            print(json.dumps(asdict(found[-1]) | {"ratio": found[-1].ratio}), flush=True)
    figures = summary(found)
    print(json.dumps(figures, indent=1))
    if given.keep:
        keep("uneven", figures | {"seed": given.seed})
    return 0


if __name__ == "__main__":
    sys.exit(main())
