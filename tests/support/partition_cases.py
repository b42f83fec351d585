"""What is asked of a random cluster, and everything that has to hold of the plan; used by the check and its short form."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from loaddata.samples.partitions import ClusterLayout, PartitionLoads
from shedders.kafka_rebalance.errors import RequestRefusedError
from shedders.kafka_rebalance.planning.plan import GoalStatus, ReassignmentPlan
from shedders.kafka_rebalance.planning.planner import plan_partitions
from shedders.kafka_rebalance.planning.request import GoalChoice, PlanMode, PlanRequest
from shedders.kafka_rebalance.planning.search import SearchStep
from tests.support.partition_clusters import RandomCluster, shuffled
from tests.twin import partition_bounds
from tests.twin.partition_measures import MEASURED, Measured, Meter
from tests.twin.partition_optimum import least_copied
from tests.twin.partition_replay import Replay
from tests.twin.partition_rules import violations
from tests.twin.partition_state import layout_after, state_after, state_of


class Planner(Protocol):
    """As `plan_partitions`."""

    def __call__(
        self,
        layout: ClusterLayout,
        loads: PartitionLoads,
        request: PlanRequest,
        *,
        steps: list[SearchStep] | None = None,
    ) -> ReassignmentPlan: ...


SOFT = ("topic-leaders", "topic-replicas", "disk", "bytes-in", "bytes-out", "cpu", "replicas", "leaders")
RATIO_MAX = 1.05
_MODES = tuple(PlanMode)


@dataclass(slots=True)
class Checked:
    """One plan of one cluster.

    Attributes:
        wrong: What does not hold, as sentences.
        refused: Why nothing was planned.
        bound_bytes: Least that any plan copies; -1: not of this mode.
        dear: Why its bytes are too many: more than RATIO_MAX times the bound.
        other_end: Goals that stand worse than in the plan that ends before later goals: no later goal worsened them, but the
            search came to another end with it.
        unmet: Soft goals that the plan did not reach.
    """

    seed: int
    mode: str
    wrong: list[str] = field(default_factory=list)
    refused: str = ""
    copied_bytes: int = 0
    bound_bytes: int = -1
    dear: str = ""
    other_end: list[str] = field(default_factory=list)
    moves: int = 0
    goals: int = 0
    unmet: tuple[str, ...] = ()
    infeasible: tuple[str, ...] = ()
    took_s: float = 0.0


def requests(cluster: RandomCluster) -> Iterator[PlanRequest]:
    """A rebalance, and whatever else the cluster gives rise to."""
    chance = random.Random(cluster.seed ^ 0x5EED)
    asked = PlanRequest(
        excluded_topics=cluster.excluded, capacities=cluster.capacities, completeness_min=chance.choice((0.0, 0.0, 0.5))
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
        yield replace(asked, mode=PlanMode.ADD_BROKERS, subjects=cluster.empty)
    yield replace(asked, mode=PlanMode.REMOVE_BROKERS, subjects=cluster.leaving)
    if cluster.dead:
        yield replace(asked, mode=PlanMode.FIX_OFFLINE)
    if chance.random() < 0.2:
        yield replace(asked, mode=PlanMode.DEMOTE, subjects=cluster.leaving)
    alive = [broker.id for broker in cluster.layout.brokers if broker.alive]
    if chance.random() < 0.3:
        chosen = chance.sample(alive, chance.randint(min(3, len(alive)), len(alive)))
        yield replace(asked, topics=(chance.choice(list(cluster.layout.topics)),), brokers=tuple(sorted(chosen)))


def check(cluster: RandomCluster, request: PlanRequest, planner: Planner = plan_partitions) -> Checked:
    """Plan, and hold the plan against the dumb measures, the bounds, and further plans."""
    checked = Checked(cluster.seed, str(request.mode))
    steps: list[SearchStep] = []
    began_s = time.process_time()
    try:
        plan = planner(cluster.layout, cluster.loads, request, steps=steps)
    except RequestRefusedError as error:
        checked.refused = str(error)
        return checked
    checked.took_s = time.process_time() - began_s
    checked.copied_bytes, checked.moves, checked.goals = plan.copied_bytes, len(plan.moves), len(plan.goals)
    checked.infeasible = tuple(topic.name for topic in plan.infeasible)
    checked.unmet = tuple(goal.name for goal in plan.goals if goal.status in {GoalStatus.UNMET, GoalStatus.IMPROVED})
    checked.wrong += violations(cluster.layout, request, plan)
    meter = Meter(cluster.layout, cluster.loads, request)
    checked.wrong += _told_wrong(meter, plan)
    checked.wrong += _first_worsened(meter, plan)
    checked.other_end += _other_end(cluster, meter, plan, planner)
    checked.wrong += _worsened_on_the_way(meter, plan, steps)
    checked.wrong += _not_the_same(cluster, request, plan, planner)
    checked.wrong += _not_idempotent(cluster, request, plan, planner)
    _held_against_bound(cluster, request, plan, checked)
    return checked


def measured_of(meter: Meter, plan: ReassignmentPlan, *, after: bool, levelled: bool = False) -> dict[str, Measured]:
    """The dumb measure of each goal of the plan that has data."""
    state = state_after(meter.layout, plan) if after else state_of(meter.layout)
    return {
        goal.name: meter(goal.name, state, goal.range_share, levelled=levelled)
        for goal in plan.goals
        if goal.status is not GoalStatus.NO_DATA and goal.name in MEASURED
    }


def _told_wrong(meter: Meter, plan: ReassignmentPlan) -> Iterator[str]:
    """Measures that the plan tells otherwise than the twin."""
    for when in ("before", "after"):
        counted = measured_of(meter, plan, after=when == "after")
        for goal in plan.goals:
            figures = getattr(goal, when)
            if goal.name not in counted or figures is None:
                continue
            here = counted[goal.name]
            if (figures.violations, figures.excess) != (here.violations, here.excess):
                yield f"{goal.name} {when}: told {figures.violations}, {figures.excess}; it is {here.violations}, {here.excess}"
            if when == "after" and (goal.status is GoalStatus.MET) != (here.excess == 0):
                yield f"{goal.name} is {goal.status} with an excess of {here.excess}"


def _first_worsened(meter: Meter, plan: ReassignmentPlan) -> Iterator[str]:
    request = meter.request
    before, after = (measured_of(meter, plan, after=end, levelled=True) for end in (False, True))
    first = next(iter(before), None)
    nothing_has_to_leave = request.mode in {PlanMode.REBALANCE, PlanMode.ADD_BROKERS} and not request.offline_brokers
    if nothing_has_to_leave and first and after[first].excess > before[first].excess:
        yield f"{first}, the first goal: excess {before[first].excess}, then {after[first].excess}"


def _other_end(cluster: RandomCluster, meter: Meter, plan: ReassignmentPlan, planner: Planner) -> Iterator[str]:
    request = meter.request
    chosen = [GoalChoice(name=goal.name, range_share=goal.range_share) for goal in plan.goals if goal.name in MEASURED]
    # New brokers without goals of their own are filled by rules that no list of goals says.
    if len(chosen) < 2 or (request.mode is PlanMode.ADD_BROKERS and not request.goals):
        return
    last = random.Random(cluster.seed).randrange(1, len(chosen))
    shorter = planner(cluster.layout, cluster.loads, replace(request, goals=tuple(chosen[:last])))
    after = measured_of(meter, plan, after=True)
    for name, alone in measured_of(meter, shorter, after=True).items():
        if after[name].excess > alone.excess:
            without = f"{alone.excess} without the goals after {chosen[last - 1].name}"
            yield f"{name}: excess {without}, {after[name].excess} with them"


def _worsened_on_the_way(meter: Meter, plan: ReassignmentPlan, steps: list[SearchStep]) -> Iterator[str]:
    """Goals that a later one, or what is taken back, made worse at any point of the search."""
    shares = {goal.name: goal.range_share for goal in plan.goals if goal.status is not GoalStatus.NO_DATA}
    names = [goal.name for goal in plan.goals]
    replay = Replay(meter.layout)
    watched = [name for name in names if name in MEASURED and name in shares]

    def excesses() -> dict[str, int]:
        return {name: meter(name, replay.state, shares[name], levelled=True).excess for name in watched}

    before = excesses()
    for (goal, upto), group in itertools.groupby(steps, key=lambda step: (step.goal, step.upto)):
        for step in group:
            for move in step.moves:
                replay.make(move)
        after = excesses()
        earlier = names[: names.index(goal)] if goal in names else names[: names.index(upto) + 1]
        for name in watched:
            if name in earlier and after[name] > before[name]:
                yield f"{goal} worsened {name} on the way: excess {before[name]}, then {after[name]}"
        before = after
    planned = state_after(meter.layout, plan)
    if replay.places() != {key: (frozenset(replicas), leader) for key, (replicas, leader) in planned.items()}:
        yield "the plan is not what its steps lead to"


def _not_the_same(
    cluster: RandomCluster, request: PlanRequest, plan: ReassignmentPlan, planner: Planner
) -> Iterator[str]:
    if cluster.seed % 10 == 0 and planner(cluster.layout, cluster.loads, request) != plan:
        yield "planned again, the plan is another"
    if cluster.seed % 3 != _MODES.index(request.mode) % 3:
        return  # one mode of each cluster is enough, and each is asked of a third of them
    layout, loads = shuffled(cluster, cluster.seed)
    other = planner(layout, loads, request)
    if (other.moves, other.goals) != (plan.moves, plan.goals):
        yield "with brokers and topics told in another order, the plan is another"


def _not_idempotent(
    cluster: RandomCluster, request: PlanRequest, plan: ReassignmentPlan, planner: Planner
) -> Iterator[str]:
    again = planner(layout_after(cluster.layout, plan), cluster.loads, request)
    if again.moves:
        goals = sorted({goal for move in again.moves for goal in move.goals})
        yield f"planned on its own result, {len(again.moves)} partitions move once more, for {', '.join(goals)}"


def _held_against_bound(cluster: RandomCluster, request: PlanRequest, plan: ReassignmentPlan, checked: Checked) -> None:
    if request.mode is PlanMode.REMOVE_BROKERS:
        if "brokers-leave" in checked.infeasible:
            return  # not all that had to be copied was
        checked.bound_bytes = partition_bounds.bytes_of_removal(cluster.layout, cluster.loads, request)
    elif request.mode is PlanMode.ADD_BROKERS:
        shares = {goal.name: goal.range_share for goal in plan.goals if goal.status is not GoalStatus.NO_DATA}
        after = state_after(cluster.layout, plan)
        by_goal = partition_bounds.bytes_for_new(cluster.layout, cluster.loads, request, after, shares)
        checked.bound_bytes = max(by_goal.values(), default=0)
        if plan.copied_bytes > RATIO_MAX * checked.bound_bytes:
            together = least_copied(cluster.layout, cluster.loads, request, after, shares)
            checked.bound_bytes = max(checked.bound_bytes, together)
    else:
        return
    if plan.copied_bytes > RATIO_MAX * checked.bound_bytes:
        ratio = plan.copied_bytes / checked.bound_bytes if checked.bound_bytes else float("inf")
        checked.dear = f"copies {plan.copied_bytes} bytes, {ratio:.3f} times the bound of {checked.bound_bytes}"
