"""What a goal does to later ones: bounded, and told."""

from dataclasses import replace

import pytest

from shedders.kafka_rebalance.planning.estimate import estimate
from shedders.kafka_rebalance.planning.planner import plan_partitions
from shedders.kafka_rebalance.planning.report import overview
from shedders.kafka_rebalance.planning.request import GoalChoice, PlanRequest
from shedders.kafka_rebalance.settings import PartitionsSettings
from tests.support.clusters import layout, loads
from tests.support.partition_clusters import random_cluster

# Each broker leads two; for equally full disks 1 gives what clients read most to 2, which gives nothing back.
CLUSTER = layout(2, {"t": [[1], [1], [2], [2]]})
LOADS = loads({"t": [100, 50, 20, 10]}, bytes_out={"t": [40, 10, 40, 30]})
REQUEST = PlanRequest(goals=(GoalChoice(name="disk"), GoalChoice(name="bytes-out")))


def test_a_later_goal_that_got_worse_is_told_with_its_cause() -> None:
    plan = plan_partitions(CLUSTER, LOADS, replace(REQUEST, worsen_max_share=None))
    assert plan.goals[1].worsened_by == ("disk",)
    rows = dict(overview(plan, estimate(plan.moves, PartitionsSettings())).rows)
    assert rows["worse"] == "bytes-out: highest 70 B/s -> 80 B/s (1.17 -> 1.33 of the mean), for disk"


@pytest.mark.parametrize(("share", "highest"), [(None, 80), (0.5, 80), (0.0, 70)])
def test_how_much_worse_is_bounded(share: float | None, highest: int) -> None:
    plan = plan_partitions(CLUSTER, LOADS, replace(REQUEST, worsen_max_share=share))
    assert plan.goals[1].after is not None
    assert plan.goals[1].after.high == highest
    if share == 0:
        assert "bound of bytes-out" in plan.goals[0].witness
        assert not plan.goals[1].worsened_by


@pytest.mark.parametrize("seed", range(3))
def test_no_soft_goal_gets_worse_if_that_is_forbidden_and_every_worse_one_is_told(seed: int) -> None:
    small = random_cluster(seed, brokers_max=8)
    for share in (0.0, 0.5):
        plan = plan_partitions(small.layout, small.loads, PlanRequest(worsen_max_share=share))
        moved_by_hard = {goal.name for goal in plan.goals if goal.hard and goal.moves}
        for goal in plan.goals:
            if goal.before is None or goal.after is None or moved_by_hard:
                continue
            assert goal.after.is_worse_than(goal.before) <= bool(goal.worsened_by), goal.name
            if share == 0 and not goal.hard:
                assert not goal.after.is_worse_than(goal.before), goal.name
            if goal.name in {"disk", "bytes-in", "bytes-out", "replicas", "leaders"}:
                assert goal.after.furthest <= max(goal.before.furthest, share * goal.after.mean + 1)
