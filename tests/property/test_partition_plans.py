"""Plans of random clusters: the short form of `python -m tests.partitions_check`, and that the check finds what is wrong."""

from dataclasses import replace

import pytest

from shedders.kafka_rebalance.planning.plan import GoalStatus
from shedders.kafka_rebalance.planning.planner import plan_partitions
from shedders.kafka_rebalance.planning.request import PlanMode
from tests.partitions_check import checked, summary
from tests.support.partition_cases import check, requests
from tests.support.partition_clusters import random_cluster

FIRST, CLUSTERS, SLICES, BROKERS_MAX = 1, 18, 6, 10


@pytest.mark.parametrize("part", range(SLICES))
def test_plans_of_random_clusters(part: int) -> None:
    results = [check for seed in range(FIRST + part, FIRST + CLUSTERS, SLICES) for check in checked(seed, BROKERS_MAX)]
    wrong = [f"seed {item.seed}, {item.mode}: {line}" for item in results for line in item.wrong]
    assert not wrong, "\n".join(wrong)
    planned = summary(results)
    assert [item.dear for item in results if item.dear] == []
    assert all(planned[mode]["partitions moved"] > 0 for mode in ("rebalance", "add-brokers", "remove-brokers"))


def spoilt(but):
    """A planner whose first answer is changed."""
    asked = []

    def planner(layout, loads, request, *, steps=None):
        asked.append(request)
        plan = plan_partitions(layout, loads, request, steps=steps)
        return but(plan) if len(asked) == 1 else plan

    return planner


def one_less(plan):
    return replace(plan, moves=plan.moves[1:])


def told_better(plan):
    goals = tuple(
        replace(goal, after=goal.after and replace(goal.after, excess=goal.after.excess + 1)) for goal in plan.goals
    )
    return replace(plan, goals=goals)


def met_anyway(plan):
    goals = tuple(
        replace(goal, status=GoalStatus.UNMET) if goal.status is GoalStatus.MET else goal for goal in plan.goals
    )
    return replace(plan, goals=goals)


def wasteful(plan):
    return replace(plan, moves=tuple(replace(move, size_bytes=3 * (move.size_bytes or 0)) for move in plan.moves))


@pytest.mark.parametrize(
    ("but", "said"),
    [
        (one_less, "still on brokers that leave"),
        (one_less, "planned again, the plan is another"),
        (told_better, "it is"),
        (met_anyway, "is unmet with an excess of 0"),
        (wasteful, "times the bound"),
        (lambda plan: replace(plan, layout="of another"), "another layout"),
    ],
)
def test_the_check_finds_what_is_wrong(but, said) -> None:
    cluster = random_cluster(30, brokers_max=BROKERS_MAX)
    request = next(item for item in requests(cluster) if item.mode is PlanMode.REMOVE_BROKERS)
    assert not check(cluster, request).wrong
    result = check(cluster, request, spoilt(but))
    assert any(said in line for line in (*result.wrong, result.dear))
