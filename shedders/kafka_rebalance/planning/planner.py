"""Planner: goals, in order, change a virtual cluster; its difference from the real one is the plan.

Each goal moves replicas until no move helps it; then moves that no goal so far needs are reverted, and the goals so far
are run again, until nothing changes; then the next goal follows. Each move reduces its goal's excess and raises no earlier
goal's, each reversal copies less at the same excess: so this ends, and planning again from the result changes nothing. For
new brokers, the largest of few moves are reconsidered at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shedders.kafka_rebalance.goals.goal import Goal
from shedders.kafka_rebalance.planning.byte_savings import reconsider, take_back, trade
from shedders.kafka_rebalance.planning.limits import GoalLimits
from shedders.kafka_rebalance.planning.outcome import as_json, broker_changes, figures, identity, partition_moves
from shedders.kafka_rebalance.planning.plan import GoalOutcome, GoalSpread, GoalStatus, ReassignmentPlan
from shedders.kafka_rebalance.planning.registry import DEFAULTS, OF_MODES, find
from shedders.kafka_rebalance.planning.request import GoalChoice, PlanMode
from shedders.kafka_rebalance.planning.request_checks import check, frozen
from shedders.kafka_rebalance.planning.scope import Scope
from shedders.kafka_rebalance.planning.search import Search, SearchStep, TimeSpentError
from shedders.kafka_rebalance.planning.virtual_cluster import LoadColumn, VirtualCluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from loaddata.samples.layout import ClusterLayout
    from loaddata.samples.loads import PartitionLoads
    from shedders.kafka_rebalance.planning.request import PlanRequest


@dataclass(slots=True, kw_only=True)
class _Work:
    """Progress of one goal."""

    goal: Goal
    nothing: str | None
    before: GoalSpread | None
    limits: GoalLimits
    earlier: tuple[Goal, ...]
    moves: int = 0
    took_s: float = 0.0
    reached: bool = False


def plan_partitions(
    layout: ClusterLayout,
    loads: PartitionLoads,
    request: PlanRequest,
    *,
    now_s: Callable[[], float] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    steps: list[SearchStep] | None = None,
) -> ReassignmentPlan:
    """Plan moves that meet the goals of the request with as few copied bytes as possible.

    Args:
        layout: Present layout of the cluster.
        loads: Loads of its partitions; may be empty, as placement goals need none.
        request: Request.
        now_s: Monotonic clock, for the time budget and the time of each goal; None: no budget.
        progress: Called with the goal's name, the number of checked cells, and of all cells.
        steps: Each step of the search is appended to it, for checks.

    Raises:
        RequestRefusedError: Unknown brokers, patterns that leave nothing, a range that cannot hold the replicas.
    """
    clock = now_s or (lambda: 0.0)
    began_s = clock()
    check(layout, request)
    for choice in request.goals:
        find(choice.name)
    cluster = VirtualCluster(
        layout, loads, completeness_min=request.completeness_min, room=request.replication_factor or 1
    )
    stay, remarks = frozen(cluster, request)
    search = Search(cluster, Scope(cluster, layout, request, stay), request, now_s=now_s, began_s=began_s, steps=steps)
    works = _prepare(search, request)
    before = figures(cluster)
    complete = _run(search, works, clock, progress)
    outcomes = tuple(_outcome(search, work, complete=complete) for work in works)
    moves = partition_moves(search, [work.goal.name for work in works])
    remarks += _remarks(search, works, request, complete=complete)
    fingerprint = layout.fingerprint()
    return ReassignmentPlan(
        id=identity(layout.cluster_id, fingerprint, moves),
        cluster_id=layout.cluster_id,
        layout=fingerprint,
        topic_ids={name: layout.topics[name].topic_id for name in sorted({move.topic for move in moves})},
        made_at_ms=layout.read_at_ms,
        request=as_json(request),
        goals=outcomes,
        brokers=broker_changes(cluster, before, moves),
        moves=moves,
        complete=complete and not search.stinted,
        remarks=tuple(remarks),
        took_s=clock() - began_s,
    )


def _choices(cluster: VirtualCluster, scope: Scope, request: PlanRequest) -> list[tuple[type[Goal], GoalChoice]]:
    """Goals in order: those requested, else the mode's; goals of the mode itself follow the leading hard ones."""
    asked = request.goals or tuple(GoalChoice(name=name) for name in DEFAULTS[request.mode])
    if request.mode is PlanMode.ADD_BROKERS and not request.goals:
        unneeded = "replicas" if cluster.known[:, LoadColumn.DISK].any() else "disk"
        asked = tuple(choice for choice in asked if choice.name != unneeded)
    goals = [(find(choice.name), choice) for choice in asked]
    own = {
        "brokers-leave": bool(scope.leaving.any()),
        "offline-replicas": request.mode is PlanMode.FIX_OFFLINE,
        "demotion": request.mode is PlanMode.DEMOTE,
        "replication-factor": request.mode is PlanMode.REPLICATION_FACTOR,
    }
    place = next((at for at, (goal, _) in enumerate(goals) if not goal.hard), len(goals))
    goals[place:place] = [(OF_MODES[name], GoalChoice(name=name)) for name, wanted in own.items() if wanted]
    return goals


def _prepare(search: Search, request: PlanRequest) -> list[_Work]:
    cluster, scope = search.cluster, search.scope
    works: list[_Work] = []
    for goal_class, choice in _choices(cluster, scope, request):
        goal = goal_class(cluster, scope, choice.range_share, request)
        if request.mode is PlanMode.ADD_BROKERS and not request.goals and choice.name in {"bytes-in", "leaders"}:
            goal.moves_data = False
        earlier = tuple(work.goal for work in works if work.nothing is None)
        limits = GoalLimits(cluster)
        for earlier_goal in earlier:
            earlier_goal.limit(limits)
        nothing = goal.prepare()
        spread = None if nothing is not None else goal.spread()
        works.append(_Work(goal=goal, nothing=nothing, before=spread, limits=limits, earlier=earlier))
    return works


def _run(
    search: Search,
    works: list[_Work],
    clock: Callable[[], float],
    progress: Callable[[str, int, int], None] | None,
) -> bool:
    """Search to the end or until the time budget is spent; return whether it was completed.

    Each goal starts when earlier ones can improve no further, so that these end at least as well as without it.
    """
    limits = GoalLimits(search.cluster)
    active: list[tuple[int, _Work]] = []
    try:
        for bit, work in enumerate(works):
            if work.nothing is None:
                work.goal.limit(limits)
                active.append((1 << bit, work))
                if _work(search, work, 1 << bit, clock, progress):
                    _settle(search, active, limits, clock, progress)
        if search.scope.mode is PlanMode.ADD_BROKERS:
            reconsider(search, [work.goal for _, work in active], lambda: _settle(search, active, limits, clock, None))
    except TimeSpentError:
        return False
    return True


def _settle(
    search: Search,
    active: list[tuple[int, _Work]],
    limits: GoalLimits,
    clock: Callable[[], float],
    progress: Callable[[str, int, int], None] | None,
) -> None:
    """Revert moves that these goals do not need and run them again, until nothing changes."""
    leaders_first = any(work.goal.name == "preferred-leader" for _, work in active)
    while True:
        search.begin(active[-1][1].goal.name, 0, limits, ())
        count = trade(search, limits) + take_back(search, limits, leaders_first=leaders_first)
        for bit, work in active:
            count += _work(search, work, bit, clock, progress)
        if not count:
            return


def _work(
    search: Search,
    work: _Work,
    bit: int,
    clock: Callable[[], float],
    progress: Callable[[str, int, int], None] | None,
) -> int:
    name = work.goal.name
    search.begin(name, bit, work.limits, work.earlier)
    if progress is not None:
        show = progress
        search.advance = lambda done, of: show(name, done, of)
        progress(name, 0, 1)
    began_s = clock()
    before = search.made
    try:
        work.goal.improve(search)
        work.reached = True
        if progress is not None:
            progress(name, 1, 1)
    finally:
        work.took_s += clock() - began_s
        if search.trail is None:  # otherwise it is a trial
            work.moves += search.made - before
    return search.made - before


def _outcome(search: Search, work: _Work, *, complete: bool) -> GoalOutcome:
    goal = work.goal
    result: dict[str, Any] = {
        "name": goal.name,
        "hard": goal.hard,
        "unit": goal.unit,
        "range_share": goal.share,
        "moves": work.moves,
        "took_s": work.took_s,
    }
    if work.before is None:
        return GoalOutcome(**result, status=GoalStatus.NO_DATA, witness=work.nothing or "")
    after = goal.spread()
    result |= {"before": work.before, "after": after}
    if not after.excess:
        return GoalOutcome(**result, status=GoalStatus.MET)
    if not complete and not work.reached:
        return GoalOutcome(
            **result, status=GoalStatus.NOT_REACHED, witness="the time budget was spent before it was done"
        )
    search.begin(goal.name, 0, work.limits, work.earlier)
    better = GoalStatus.IMPROVED if after.excess < work.before.excess else GoalStatus.UNMET
    bound = goal.hard and (goal.name in OF_MODES or search.scope.mode is PlanMode.REBALANCE)
    worse = goal.hard and after.excess > work.before.excess
    status = GoalStatus.INFEASIBLE if bound or worse else better
    return GoalOutcome(**result, status=status, witness=goal.witness(search))


def _remarks(search: Search, works: list[_Work], request: PlanRequest, *, complete: bool) -> list[str]:
    remarks = [remark for work in works for remark in work.goal.remarks]
    if not complete:
        remarks.append(
            f"the search was ended by its time budget of {request.time_budget_s:g} s; this is the best plan found"
        )
    if search.stinted:
        bounds = {"moves_max": request.moves_max, "bytes_max": request.bytes_max}
        named = ", ".join(f"{name} {value}" for name, value in bounds.items() if value is not None)
        remarks.append(f"the bound {named} excluded moves that would help goals")
    if request.goals and search.cluster.racks and all(goal.name != "rack-awareness" for goal in request.goals):
        remarks.append("rack-awareness is not among the goals: replicas of a partition may end up in one rack")
    return remarks
