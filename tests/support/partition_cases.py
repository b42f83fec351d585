"""What is asked of a random cluster, and everything that has to hold of the plan; used by the check and its short form."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from loaddata.partitions.layout import ClusterLayout
from loaddata.partitions.loads import PartitionLoads
from shedders.partitions.errors import RequestRefusedError
from shedders.partitions.plan import GoalStatus, Plan
from shedders.partitions.planner import plan_partitions
from shedders.partitions.request import GoalChoice, Mode, PlanRequest
from tests.support.partition_clusters import RandomCluster, shuffled
from tests.twin import partition_bounds
from tests.twin.partition_measures import MEASURED, measured
from tests.twin.partition_rules import violations
from tests.twin.partition_state import layout_after, state_after, state_of

Planner = Callable[[ClusterLayout, PartitionLoads, PlanRequest], Plan]
SOFT = ("topic-leaders", "topic-replicas", "disk", "bytes-in", "bytes-out", "cpu", "replicas", "leaders")
RATIO_MAX = 1.05


@dataclass(slots=True)
class Checked:
    """One plan of one cluster.

    Attributes:
        wrong: What does not hold, as sentences.
        refused: Why nothing was planned.
        bound_bytes: Least that any plan copies; -1: not of this mode.
        unmet: Soft goals that the plan did not reach.
    """

    seed: int
    mode: str
    wrong: list[str] = field(default_factory=list)
    refused: str = ""
    copied_bytes: int = 0
    bound_bytes: int = -1
    moves: int = 0
    goals: int = 0
    unmet: tuple[str, ...] = ()
    infeasible: tuple[str, ...] = ()
    took_s: float = 0.0


def requests(cluster: RandomCluster) -> Iterator[PlanRequest]:
    """A rebalance, and whatever else the cluster gives rise to."""
    chance = random.Random(cluster.seed ^ 0x5EED)
    asked = PlanRequest(
        excluded_topics=cluster.excluded,
        capacities=cluster.capacities,
        completeness_min=chance.choice((0.0, 0.0, 0.5)),
    )
    balance = asked
    if chance.random() < 0.3:
        names = chance.sample(SOFT, chance.randint(1, len(SOFT)))
        shares = [chance.choice((None, 0.05, 0.1, 0.3)) for _ in names]
        goals = (
            GoalChoice(name="rack-awareness"),
            *(GoalChoice(name=n, range_share=s) for n, s in zip(names, shares, strict=True)),
        )
        balance = replace(asked, goals=goals)
    if chance.random() < 0.2:
        balance = replace(balance, offline_brokers=cluster.leaving)
    yield balance
    if cluster.empty:
        yield replace(asked, mode=Mode.ADD_BROKERS, subjects=cluster.empty)
    yield replace(asked, mode=Mode.REMOVE_BROKERS, subjects=cluster.leaving)
    if cluster.dead:
        yield replace(asked, mode=Mode.FIX_OFFLINE)
    if chance.random() < 0.2:
        yield replace(asked, mode=Mode.DEMOTE, subjects=cluster.leaving)


def check(cluster: RandomCluster, request: PlanRequest, planner: Planner = plan_partitions) -> Checked:
    """Plan, and hold the plan against the dumb measures, the bounds, and further plans."""
    found = Checked(cluster.seed, str(request.mode))
    began_s = time.process_time()
    try:
        plan = planner(cluster.layout, cluster.loads, request)
    except RequestRefusedError as error:
        found.refused = str(error)
        return found
    found.took_s = time.process_time() - began_s
    found.copied_bytes, found.moves, found.goals = plan.copied_bytes, len(plan.moves), len(plan.goals)
    found.infeasible = tuple(one.name for one in plan.infeasible)
    found.unmet = tuple(one.name for one in plan.goals if one.status in {GoalStatus.UNMET, GoalStatus.IMPROVED})
    found.wrong += violations(cluster.layout, request, plan)
    found.wrong += _told_wrong(cluster, request, plan)
    found.wrong += _later_worsened(cluster, request, plan, planner)
    found.wrong += _not_the_same(cluster, request, plan, planner)
    found.wrong += _not_idempotent(cluster, request, plan, planner)
    _held_against_bound(cluster, request, plan, found)
    return found


def measured_of(cluster: RandomCluster, request: PlanRequest, plan: Plan, *, after: bool) -> dict[str, Any]:
    """The dumb measure of each goal of the plan that has data."""
    state = state_after(cluster.layout, plan) if after else state_of(cluster.layout)
    return {
        goal.name: measured(goal.name, state, cluster.layout, cluster.loads, request, goal.range_share)
        for goal in plan.goals
        if goal.status is not GoalStatus.NO_DATA and goal.name in MEASURED
    }


def _told_wrong(cluster: RandomCluster, request: PlanRequest, plan: Plan) -> Iterator[str]:
    """Measures that the plan tells otherwise than the twin."""
    for when in ("before", "after"):
        counted = measured_of(cluster, request, plan, after=when == "after")
        for goal in plan.goals:
            told = getattr(goal, when)
            if goal.name not in counted or told is None:
                continue
            here = counted[goal.name]
            if (told.violations, told.excess) != (here.violations, here.excess):
                yield f"{goal.name} {when}: told {told.violations}, {told.excess}; it is {here.violations}, {here.excess}"
            if when == "after" and (goal.status is GoalStatus.MET) != (here.excess == 0):
                yield f"{goal.name} is {goal.status} with an excess of {here.excess}"


def _later_worsened(cluster: RandomCluster, request: PlanRequest, plan: Plan, planner: Planner) -> Iterator[str]:
    """Goals that stand worse than before, or than in a plan that ends with them."""
    before, after = (measured_of(cluster, request, plan, after=end) for end in (False, True))
    first = plan.goals[0].name if plan.goals else ""
    nothing_has_to_leave = request.mode in {Mode.REBALANCE, Mode.ADD_BROKERS} and not request.offline_brokers
    if nothing_has_to_leave and first in after and after[first].excess > before[first].excess:
        yield f"{first}, the first goal: excess {before[first].excess}, then {after[first].excess}"
    if len(plan.goals) < 2:
        return
    chosen = [GoalChoice(name=one.name, range_share=one.range_share) for one in plan.goals]
    last = random.Random(cluster.seed).randrange(1, len(chosen))
    shorter = planner(cluster.layout, cluster.loads, replace(request, goals=tuple(chosen[:last])))
    alone = measured_of(cluster, request, shorter, after=True)
    for name, here in alone.items():
        if after[name].excess > here.excess:
            yield f"{name}: excess {here.excess} without the goals after {chosen[last - 1].name}, {after[name].excess} with them"


def _not_the_same(cluster: RandomCluster, request: PlanRequest, plan: Plan, planner: Planner) -> Iterator[str]:
    if planner(cluster.layout, cluster.loads, request) != plan:
        yield "planned again, the plan is another"
    layout, loads = shuffled(cluster, cluster.seed)
    other = planner(layout, loads, request)
    if (other.moves, other.goals) != (plan.moves, plan.goals):
        yield "with brokers and topics told in another order, the plan is another"


def _not_idempotent(cluster: RandomCluster, request: PlanRequest, plan: Plan, planner: Planner) -> Iterator[str]:
    again = planner(layout_after(cluster.layout, plan), cluster.loads, request)
    if again.moves:
        goals = sorted({goal for move in again.moves for goal in move.goals})
        yield f"planned on its own result, {len(again.moves)} partitions move once more, for {', '.join(goals)}"


def _held_against_bound(cluster: RandomCluster, request: PlanRequest, plan: Plan, found: Checked) -> None:
    if request.mode is Mode.REMOVE_BROKERS:
        found.bound_bytes = partition_bounds.bytes_of_removal(cluster.layout, cluster.loads, request)
    elif request.mode is Mode.ADD_BROKERS:
        met = {one.name: one.range_share for one in plan.goals if one.status is GoalStatus.MET}
        by_goal = partition_bounds.bytes_for_new(cluster.layout, cluster.loads, request, met)
        found.bound_bytes = max(by_goal.values(), default=0)
    else:
        return
    if plan.copied_bytes > RATIO_MAX * found.bound_bytes:
        ratio = plan.copied_bytes / found.bound_bytes if found.bound_bytes else float("inf")
        found.wrong.append(f"copies {plan.copied_bytes} bytes, {ratio:.3f} times the bound of {found.bound_bytes}")
