"""Leaderships are exchanged, and passed on over other brokers, before anything is copied."""

import itertools
import random

import numpy as np
import pytest

from shedders.kafka_rebalance.goals.broker_goals import BytesIn
from shedders.kafka_rebalance.planning.leaderships import Leaderships, out_of_reach
from shedders.kafka_rebalance.planning.plan import GoalStatus
from shedders.kafka_rebalance.planning.planner import plan_partitions
from shedders.kafka_rebalance.planning.request import GoalChoice, PlanRequest
from shedders.kafka_rebalance.planning.scope import Scope
from shedders.kafka_rebalance.planning.search import Search
from shedders.kafka_rebalance.planning.virtual_cluster import VirtualCluster
from tests.support.clusters import carried_out, layout, loads
from tests.twin import partition_measures as measures
from tests.twin.partition_optimum import Program
from tests.twin.partition_state import state_of

BOTH = PlanRequest(goals=(GoalChoice(name="topic-leaders"), GoalChoice(name="bytes-in")))


def test_two_leaderships_are_exchanged() -> None:
    cluster = layout(2, {"t": [[1, 2], [1, 2], [2, 1], [2, 1]]})
    load = loads({"t": [10] * 4}, {"t": [8_000_000, 8_000_000, 1_000_000, 1_000_000]})
    plan = plan_partitions(cluster, load, PlanRequest())
    assert [broker.after.bytes_in_per_s for broker in plan.brokers] == [9_000_000, 9_000_000]
    assert (plan.copied_bytes, len(plan.moves)) == (0, 2)


def test_leaderships_of_a_topic_are_passed_on_over_a_broker_in_the_middle() -> None:
    # 1 leads three, 2 two, 3 one, and no partition of 1 has a replica on 3.
    cluster = layout(3, {"t": [[1, 2], [1, 2], [1, 2], [2, 3], [2, 3], [3, 2]]})
    plan = plan_partitions(cluster, loads({"t": [10] * 6}), PlanRequest(goals=(GoalChoice(name="topic-leaders"),)))
    assert [broker.after.leaders for broker in plan.brokers] == [2, 2, 2]
    assert (plan.copied_bytes, len(plan.moves)) == (0, 2)


def test_bytes_in_goes_round_three_brokers() -> None:
    # Only in a circle: 1 to 2, 2 to 3, 3 to 1; each broker leads two of the topic before and after.
    cluster = layout(3, {"t": [[1, 2], [1], [2, 3], [2], [3, 1], [3]]})
    load = loads({"t": [10] * 6}, {"t": [90, 60, 60, 30, 30, 30]})
    plan = plan_partitions(cluster, load, BOTH)
    assert [broker.after.bytes_in_per_s for broker in plan.brokers] == [90, 120, 90]
    assert plan.copied_bytes == 0


def bounds(seed: int) -> tuple[bool, bool]:
    """Whether bounds exclude that leaders alone reach the range, and whether none of all ways to lead does."""
    chance = random.Random(seed)
    count = chance.choice([3, 4])
    held = [chance.sample(range(1, count + 1), chance.choice([1, 2, 3])) for _ in range(6)]
    taken = [int(100 * chance.paretovariate(1.2)) for _ in held]
    cluster, load = layout(count, {"t": held}), loads({"t": [10] * len(held)}, {"t": taken})
    request = PlanRequest(goals=(GoalChoice(name="bytes-in"),))
    virtual = VirtualCluster(cluster, load, completeness_min=0.5, room=1)
    scope = Scope(virtual, cluster, request, np.zeros(virtual.size, dtype=bool))
    goal = BytesIn(virtual, scope, chance.choice([0.2, 0.5, 0.8]), request)
    assert goal.prepare() is None
    reached = False
    for leaders in itertools.product(*held):
        sums = [0] * count
        for leader, took in zip(leaders, taken, strict=True):
            sums[leader - 1] += took
        reached = reached or all(
            low <= value <= high for low, value, high in zip(goal.low, sums, goal.high, strict=True)
        )
    return out_of_reach(Leaderships(Search(virtual, scope, request)), goal), not reached


def test_bounds_exclude_only_what_is_impossible_and_most_of_it() -> None:
    cases = [bounds(seed) for seed in range(60)]
    assert (True, False) not in cases
    excluded, impossible = (sum(column) for column in zip(*cases, strict=True))
    assert 10 < impossible < 50
    assert 2 * excluded > impossible


def least_beyond(cluster, load) -> float:
    """Least excess of bytes in, in means, of all ways to lead with as many of each topic as the range allows."""
    program = Program()
    leads = {key: {one: program.column() for one in held} for key, (held, _) in sorted(state_of(cluster).items())}
    for columns in leads.values():
        program.row(dict.fromkeys(columns.values(), 1), 1, 1)
    for goal in ("topic-leaders", "bytes-in"):
        within = measures.ranges(goal, cluster, load, BOTH, 0.1)
        rows = {cell: {} for cell in within}
        for key, columns in leads.items():
            weight = measures.weight(goal, load.of[key], 3, leads=True)
            for one, column in columns.items():
                rows[key[0] if goal in measures.BY_TOPIC else "", one][column] = weight
        mean = sum(high for _, high in within.values()) / len(within)
        for cell, row in rows.items():
            low, high = within[cell]
            if goal == "topic-leaders":
                program.row(row, low, high)
                continue
            more, less = (program.column(cost=1.0, upper=1e4, whole=False) for _ in range(2))
            program.row(row | {more: -mean}, -float("inf"), high)
            program.row(row | {less: mean}, low, float("inf"))
    return program.least(10.0)


@pytest.mark.parametrize("seed", [1, 3, 4, 7, 8, 10, 12, 14, 15, 16, 17, 27, 156, 236, 256])
def test_what_leaders_alone_can_do_copies_nothing(seed: int) -> None:
    chance = random.Random(seed)
    count, topics, parts = (
        chance.choice([3, 4, 5, 8, 12]),
        chance.choice([1, 2, 4, 10]),
        chance.choice([20, 40, 100, 300]),
    )
    held: dict[str, list[list[int]]] = {}
    taken: dict[str, list[int]] = {}
    for number in range(topics):
        name, scale = f"t{number}", chance.paretovariate(1.5)
        for _ in range(max(2, parts // topics)):
            held.setdefault(name, []).append(sorted(chance.sample(range(1, count + 1), 3)))
            taken.setdefault(name, []).append(int(1e5 * scale * chance.paretovariate(2)))
    cluster = layout(count, held)
    load = loads({name: [10**9] * len(values) for name, values in taken.items()}, taken)
    assert least_beyond(cluster, load) == pytest.approx(0, abs=1e-6)
    plan = plan_partitions(cluster, load, BOTH)
    assert [goal.status for goal in plan.goals] == [GoalStatus.MET] * 2
    assert plan.copied_bytes == 0
    assert not plan_partitions(carried_out(cluster, plan), load, BOTH).moves
