"""The integer program that plans for new brokers are held against, beside every state there is of tiny clusters."""

from collections.abc import Iterator
from itertools import combinations, product
from random import Random

import pytest

from loaddata.samples.partitions import (
    ClusterLayout,
    KafkaBroker,
    KafkaPartition,
    KafkaTopic,
    PartitionLoad,
    PartitionLoads,
)
from shedders.kafka_rebalance.planning.plan import GoalStatus
from shedders.kafka_rebalance.planning.planner import plan_partitions
from shedders.kafka_rebalance.planning.request import PlanMode, PlanRequest
from tests.twin import partition_measures as measures
from tests.twin.partition_optimum import GAP, least_copied
from tests.twin.partition_state import Key, State, state_after, state_of

NEW = 9
PLACES = tuple[tuple[int, ...], int]


def tiny(seed: int) -> tuple[ClusterLayout, PartitionLoads]:
    """Three brokers, two racks or none, four partitions; and a new broker."""
    chance = Random(seed)
    racks = chance.choice([("a", "b", "a", "b"), (None,) * 4])
    brokers = tuple(KafkaBroker(id=item, rack=rack) for item, rack in zip((1, 2, 3, NEW), racks, strict=True))
    topics, loads = {}, {}
    for name in ("t0", "t1"):
        parts = []
        for number in range(2):
            replicas = tuple(chance.sample((1, 2, 3), chance.choice((1, 2))))
            parts.append(KafkaPartition(partition=number, replicas=replicas, leader=replicas[0], isr=replicas))
            size, taken = chance.randint(1, 30), chance.randint(0, 9)
            loads[name, number] = PartitionLoad(disk_bytes=1_000 * size, bytes_in_per_s=100 * taken, completeness=1.0)
        topics[name] = KafkaTopic(name=name, topic_id=name, partitions=tuple(parts))
    return ClusterLayout(cluster_id="tiny", brokers=brokers, topics=topics), PartitionLoads(of=loads)


def everywhere(layout: ClusterLayout) -> Iterator[State]:
    """Every state that replicas and leaderships which go to the new broker, and switches of leaders, lead to."""
    ways: dict[Key, list[PLACES]] = {}
    for key, (replicas, _) in state_of(layout).items():
        kept = [replicas, *((*combination, NEW) for combination in combinations(replicas, len(replicas) - 1))]
        ways[key] = [(held, leader) for held in kept for leader in held]
    for chosen in product(*ways.values()):
        yield dict(zip(ways, chosen, strict=True))


@pytest.mark.parametrize("seed", range(12))
def test_it_is_the_least_of_all_states_that_are_as_good(seed: int) -> None:
    layout, loads = tiny(seed)
    request = PlanRequest(mode=PlanMode.ADD_BROKERS, subjects=(NEW,))
    plan = plan_partitions(layout, loads, request)
    shares = {goal.name: goal.range_share for goal in plan.goals if goal.status is not GoalStatus.NO_DATA}
    after, before = state_after(layout, plan), state_of(layout)
    cells: dict[str, tuple[measures.Ranges, dict]] = {
        goal: (
            measures.ranges(goal, layout, loads, request, share),
            measures.cells(goal, after, layout, loads, request),
        )
        for goal, share in shares.items()
        if goal not in measures.BY_PARTITION
    }

    def as_good(state: State) -> bool:
        for key, (replicas, _) in state.items():
            spread = [measures.rack_excess(item, layout, request) for item in (replicas, after[key][0])]
            if spread[0] > spread[1]:
                return False
        for goal, (within, reached) in cells.items():
            for cell, value in measures.cells(goal, state, layout, loads, request).items():
                low, high = within[cell]
                if not min(low, reached[cell]) <= value <= max(high, reached[cell]):
                    return False
        return True

    def cost(state: State) -> int:
        new = [key for key, (replicas, _) in state.items() if set(replicas) - set(before[key][0])]
        return sum(loads.of[key].disk_bytes or 0 for key in new)

    result = next(cost(state) for state in sorted(everywhere(layout), key=cost) if as_good(state))
    least = least_copied(layout, loads, request, after, shares)
    assert result * (1 - 2 * GAP) - 1 <= least <= result <= plan.copied_bytes
