"""Ranges around the nearest reachable means: where racks differ, and where brokers cannot keep a limit."""

import random
from fractions import Fraction

import highspy
import numpy as np
import pytest

from shedders.kafka_rebalance.planning.plan import GoalStatus
from shedders.kafka_rebalance.planning.planner import plan_partitions
from shedders.kafka_rebalance.planning.reachable import kind_in, nearest_loads
from shedders.kafka_rebalance.planning.request import BrokerCapacity, Capacities, GoalChoice, PlanRequest
from tests.partitions_uneven import compared, summary
from tests.support.clusters import layout, loads
from tests.twin.partition_state import layout_after

RACKS = dict.fromkeys((1, 2, 3, 4), "a") | dict.fromkeys((5, 6, 7, 8), "b") | dict.fromkeys((9, 10), "c")


def test_brokers_of_a_small_rack_share_what_it_has_to_hold() -> None:
    cluster = layout(RACKS, {"t": [[1 + item % 4, 5 + item % 4, 9] for item in range(100)]})
    load = loads({"t": [1_000] * 100})
    plan = plan_partitions(cluster, load, PlanRequest())
    assert [broker.after.replicas for broker in plan.brokers] == [25] * 8 + [50, 50]
    assert plan.copied_bytes == 50 * 1_000
    assert {goal.status for goal in plan.goals} <= {GoalStatus.MET, GoalStatus.NO_DATA}
    assert any("cannot carry the mean of all brokers" in remark for remark in plan.remarks)
    assert not plan_partitions(layout_after(cluster, plan), load, PlanRequest()).moves


def test_without_the_rule_of_racks_the_mean_is_that_of_all_brokers() -> None:
    cluster = layout(RACKS, {"t": [[1 + item % 4, 5 + item % 4, 9] for item in range(20)]})
    plan = plan_partitions(cluster, loads(), PlanRequest(goals=(GoalChoice(name="replicas"),)))
    assert {broker.after.replicas for broker in plan.brokers} == {6}


@pytest.mark.parametrize("seed", range(20))
def test_loads_of_racks_are_as_even_as_a_linear_program_makes_them(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.randint(1, 7) for _ in range(chance.randint(2, 6))]
    parts = [Fraction(size, sum(sizes)) for size in sizes]
    factors = chance.sample((1, 2, 3), chance.randint(1, 3))
    kinds = [
        kind_in(sizes, chance.randint(1, 1_000), min(factor, sum(sizes)), -(-factor // len(sizes)))
        for factor in factors
    ]
    fixed = [chance.choice((0, 0, chance.randint(0, 500))) for _ in sizes]
    found = nearest_loads(parts, kinds, fixed)
    assert sum(found) == sum(fixed) + sum(kind.weight * kind.replicas for kind in kinds)
    fullest, emptiest = (pick(load / part for load, part in zip(found, parts, strict=True)) for pick in (max, min))
    assert float(fullest) == pytest.approx(extreme(parts, kinds, fixed, least=True), rel=1e-6)
    assert float(emptiest) == pytest.approx(extreme(parts, kinds, fixed, least=False), rel=1e-6, abs=1e-6)


def extreme(parts, kinds, fixed, *, least: bool) -> float:
    """The least that the fullest rack can have for its part, or the most that the emptiest can have."""
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    level = solver.addVariable(lb=0, ub=highspy.kHighsInf, obj=1.0)
    rows = [[] for _ in parts]
    for kind in kinds:
        columns = [
            solver.addVariable(lb=float(low), ub=float(high)) for low, high in zip(kind.least, kind.most, strict=True)
        ]
        solver.addConstr(sum(columns) == float(kind.replicas))
        for row, column in zip(rows, columns, strict=True):
            row.append(float(kind.weight) * column)
    for row, part, stays in zip(rows, parts, fixed, strict=True):
        load = sum(row) + float(stays)
        solver.addConstr(load - float(part) * level <= 0.0 if least else load - float(part) * level >= 0.0)
    if not least:
        solver.changeObjectiveSense(highspy.ObjSense.kMaximize)
    solver.run()
    return float(np.array(solver.getSolution().col_value)[0])


def test_plans_of_uneven_clusters_are_near_the_optimum() -> None:
    found = [compared(seed, limit_s=5.0) for seed in (5, 9, 10, 14)]
    assert [one.seed for one in found if one.beyond > 0.02] == []
    assert summary(found)["all bytes / all least bytes"] <= 1.05


@pytest.mark.parametrize("seed", [1, 2])
def test_exchanges_of_several_steps_save_bytes(seed: int) -> None:
    """Without exchanges these copy 1.12 and 1.17 times the least; both are solved to the end."""
    plan = compared(seed, limit_s=20.0)
    assert plan.beyond <= 0.02
    assert plan.ratio <= 1.05


def test_a_limit_that_all_brokers_together_cannot_keep_is_no_reason_to_fill_some_of_them() -> None:
    chance = random.Random(5)
    homes = [chance.sample(range(1, 9), 2) if chance.random() < 0.6 else [1, 2] for _ in range(200)]
    cluster, load = layout(8, {"t": homes}), loads(cpu={"t": [60_000] * 200})
    request = PlanRequest(goals=(GoalChoice(name="cpu-capacity"),))
    plan = plan_partitions(cluster, load, request)
    after = [broker.after.cpu or 0 for broker in plan.brokers]
    assert sum(after) > 8 * 0.7
    assert max(after) <= 1.1 * sum(after) / 8 + 1e-6
    assert plan.goals[0].status is GoalStatus.INFEASIBLE
    assert "they are levelled around their mean instead" in plan.goals[0].witness
    assert not plan_partitions(layout_after(cluster, plan), load, request).moves


def test_a_rack_that_cannot_keep_a_limit_is_levelled_and_named() -> None:
    cluster = layout(RACKS, {"t": [[1 + item % 4, 5 + item % 4, 9] for item in range(20)]})
    request = PlanRequest(
        goals=(GoalChoice(name="rack-awareness"), GoalChoice(name="disk-capacity", range_share=1.0)),
        capacities=Capacities(default=BrokerCapacity(disk_bytes=800)),
    )
    plan = plan_partitions(cluster, loads({"t": [100] * 20}), request)
    assert [broker.after.disk_bytes for broker in plan.brokers[-2:]] == [1_100, 900]
    assert plan.goals[1].witness.startswith("brokers 9, 10, which no other rack can relieve, carry 2.0 kB, more than")
