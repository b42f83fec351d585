"""Planner: goals, in order, change a virtual cluster; its difference from the real one is the plan.

Each goal moves replicas until no move helps it; then moves that no goal so far needs are reverted, and the goals so far
are run again, until nothing changes; then the next goal follows. Each move reduces its goal's excess and raises no earlier
goal's, each reversal copies less at the same excess: so this ends, and planning again from the result changes nothing. For
new brokers the largest of few moves are reconsidered at the end; in small clusters whose racks differ they are exchanged.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import orjson

from loaddata.samples.partitions import CPU_UNITS
from shedders.kafka_rebalance.errors import RequestRefusedError
from shedders.kafka_rebalance.goals.broker_goals import CapacityGoal
from shedders.kafka_rebalance.goals.goal import Goal
from shedders.kafka_rebalance.goals.log_dir_goal import LogDirGoal, has_several_disks
from shedders.kafka_rebalance.goals.table import DEFAULTS, OF_MODES, find
from shedders.kafka_rebalance.planning.byte_savings import changed, exchange, reconsider, take_back, trade
from shedders.kafka_rebalance.planning.limits import GoalLimits
from shedders.kafka_rebalance.planning.plan import (
    BrokerChange,
    BrokerFigures,
    GoalOutcome,
    GoalSpread,
    GoalStatus,
    LogDirMove,
    PartitionMove,
    ReassignmentPlan,
)
from shedders.kafka_rebalance.planning.request import GoalChoice, PlanMode
from shedders.kafka_rebalance.planning.scope import Scope, check, frozen
from shedders.kafka_rebalance.planning.search import Search, SearchStep, TimeSpentError
from shedders.kafka_rebalance.planning.virtual_cluster import LoadColumn, Measure, VirtualCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from loaddata.samples.partitions import ClusterLayout, KafkaTopic, PartitionLoads
    from shedders.kafka_rebalance.goals.goal import GoalRow
    from shedders.kafka_rebalance.planning.limits import LimitingGoal
    from shedders.kafka_rebalance.planning.request import PlanRequest


@dataclass(slots=True, kw_only=True)
class _Work:
    """One goal of the search and its progress; `bit` stands for it in the reasons of moves, `no_data` is why it is left out.

    `limits` are those of goals before it, and bounds of those after it; `settled` with its own. `worsened`: how much other goals
    added to its excess.
    """

    goal: Goal
    bit: int
    no_data: str | None
    before: GoalSpread | None
    limits: GoalLimits
    earlier: tuple[LimitingGoal, ...]
    settled: GoalLimits
    moves: int = 0
    took_s: float = 0.0
    reached: bool = False
    worsened: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True, kw_only=True)
class _LaterGoal:
    """A goal as a bound for those before it."""

    goal: Goal
    margin: float

    @property
    def name(self) -> str:
        return f"bound of {self.goal.name}"

    def limit(self, limits: GoalLimits) -> None:
        self.goal.guard(limits, self.margin)


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
        loads: Loads of its partitions; may be empty, as placement goals need none.
        now_s: Monotonic clock, for the time budget and the time of each goal; None: no budget.
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
    remarks += loads.remarks
    remarks += [
        f"broker {broker.id} gets no replicas and leads no more: all of its log directories are cordoned"
        for broker in layout.brokers
        if broker.alive and broker.cordoned
    ]
    search = Search(cluster, Scope(cluster, layout, request, stay), request, now_s=now_s, began_s=began_s, steps=steps)
    works = _prepare(search, request)
    if request.migrates:
        _check_room([work.goal for work in works if work.no_data is None])
    before = figures(cluster)
    complete = _Run(search, clock, progress).run(works)
    dir_moves = _dir_moves(search, works)
    outcomes = tuple(_outcome(search, work, complete=complete) for work in works)
    moves = partition_moves(search, [work.goal.name for work in works])
    remarks += _remarks(search, works, request, complete=complete)
    fingerprint = layout.fingerprint()
    return ReassignmentPlan(
        id=identity(layout.cluster_id, fingerprint, moves, dir_moves),
        cluster_id=layout.cluster_id,
        layout=fingerprint,
        topic_ids={
            name: layout.topics[name].topic_id
            for name in sorted({move.topic for move in moves} | {move.topic for move in dir_moves})
        },
        made_at_ms=layout.read_at_ms,
        request=orjson.loads(orjson.dumps(request, default=dict, option=orjson.OPT_NON_STR_KEYS)),
        goals=outcomes,
        brokers=_broker_changes(cluster, before, figures(cluster), moves),
        moves=moves,
        dir_moves=dir_moves,
        complete=complete and not search.stinted,
        remarks=tuple(remarks),
        took_s=clock() - began_s,
    )


def _choices(cluster: VirtualCluster, scope: Scope, request: PlanRequest) -> list[tuple[GoalRow, GoalChoice]]:
    """Goals in order: those requested, else the mode's; goals of the mode itself follow the leading hard ones."""
    asked = request.goals or tuple(GoalChoice(name=name) for name in DEFAULTS[request.mode])
    if request.mode is PlanMode.ADD_BROKERS and not request.goals:
        unneeded = "replicas" if cluster.known[:, LoadColumn.DISK].any() else "disk"
        asked = tuple(choice for choice in asked if choice.name != unneeded)
    if not request.goals and not has_several_disks(scope.layout):
        asked = tuple(choice for choice in asked if choice.name != "log-dirs")
    goals = [(find(choice.name), choice) for choice in asked]
    own = {
        "brokers-leave": bool(scope.leaving.any()),
        "chosen-brokers": request.migrates,
        "offline-replicas": request.mode is PlanMode.FIX_OFFLINE,
        "demotion": request.mode is PlanMode.DEMOTE,
        "replication-factor": request.mode is PlanMode.REPLICATION_FACTOR,
        "log-dirs-leave": request.mode is PlanMode.REMOVE_LOG_DIRS,
    }
    place = next((at for at, (goal, _) in enumerate(goals) if not goal.hard), len(goals))
    goals[place:place] = [(OF_MODES[name], GoalChoice(name=name)) for name, wanted in own.items() if wanted]
    return goals


def _prepare(search: Search, request: PlanRequest) -> list[_Work]:
    cluster, scope = search.cluster, search.scope
    works: list[_Work] = []
    for row, choice in _choices(cluster, scope, request):
        goal = row.shape(row, cluster, scope, choice.range_share, request)
        if request.mode is PlanMode.ADD_BROKERS and not request.goals and choice.name in {"bytes-in", "leaders"}:
            goal.moves_data = False
        no_data = goal.prepare()
        spread = None if no_data is not None else goal.spread()
        limits = GoalLimits(cluster)
        work = _Work(
            goal=goal, bit=1 << len(works), no_data=no_data, before=spread, limits=limits, earlier=(), settled=limits
        )
        works.append(work)
    active = [work for work in works if work.no_data is None]
    for number, work in enumerate(active):
        later: list[LimitingGoal] = []
        if not work.goal.hard and request.worsen_max_share is not None:
            later = [_LaterGoal(goal=other.goal, margin=request.worsen_max_share) for other in active[number + 1 :]]
        work.earlier = (*(other.goal for other in active[:number]), *later)
        work.limits, work.settled = _limits(cluster, work.earlier), _limits(cluster, (*work.earlier, work.goal))
    return works


def _check_room(goals: Sequence[Goal]) -> None:
    """Check that brokers which topics are moved to can hold them together."""
    for goal in goals:
        refusal = goal.shortage() if isinstance(goal, CapacityGoal) else ""
        if refusal:
            raise RequestRefusedError(
                f"{goal.name}: with these topics {refusal}", hint="Name more brokers, or fewer topics."
            )


def _limits(cluster: VirtualCluster, goals: Sequence[LimitingGoal]) -> GoalLimits:
    limits = GoalLimits(cluster)
    for goal in goals:
        goal.limit(limits)
    return limits


class _Run:
    """The search for all goals: each starts when earlier ones can improve no further, so that these end as well as alone."""

    def __init__(
        self, search: Search, clock: Callable[[], float], progress: Callable[[str, int, int], None] | None
    ) -> None:
        self._search, self._clock, self._progress = search, clock, progress
        self._active: list[_Work] = []

    def run(self, works: list[_Work]) -> bool:
        """Search to the end or until the time budget is spent; return whether it was completed."""
        try:
            for number, work in enumerate(works):
                if work.no_data is not None:
                    continue
                self._active.append(work)
                later = [other for other in works[number + 1 :] if other.no_data is None]
                before = [other.goal.spread().excess for other in later]
                if self._improve(work):
                    self._settle()
                    for other, excess in zip(later, before, strict=True):
                        other.worsened[work.goal.name] += max(0, other.goal.spread().excess - excess)
            if self._active:
                self._save_bytes([work.goal for work in self._active], self._active[-1].settled)
        except TimeSpentError:
            return False
        return True

    def _save_bytes(self, goals: Sequence[Goal], limits: GoalLimits) -> None:
        """The one refinement of a mode, at the end of the search."""
        self._progress = None
        match self._search.scope.mode:
            case PlanMode.ADD_BROKERS:
                reconsider(self._search, goals, self._settle)
            case PlanMode.REBALANCE:
                exchange(self._search, goals, limits, self._settle)

    def _settle(self) -> None:
        """Revert moves that these goals do not need and run them again, until nothing changes."""
        search, limits = self._search, self._active[-1].settled
        leaders_first = any(work.goal.name == "preferred-leader" for work in self._active)
        count = 1
        while count:
            search.begin(self._active[-1].goal.name, 0, limits, ())
            count = trade(search, limits) + take_back(search, limits, leaders_first=leaders_first)
            count += sum(self._improve(work) for work in self._active)

    def _improve(self, work: _Work) -> int:
        """Run one goal; return how many steps it made."""
        search, name = self._search, work.goal.name
        search.begin(name, work.bit, work.limits, work.earlier)
        if self._progress is not None:
            show = self._progress
            search.advance = lambda done, of: show(name, done, of)
            show(name, 0, 1)
        began_s = self._clock()
        before = search.steps_made
        try:
            work.goal.improve(search)
            work.reached = True
            if self._progress is not None:
                self._progress(name, 1, 1)
        finally:
            work.took_s += self._clock() - began_s
            if search.trail is None:  # otherwise it is a trial
                work.moves += search.steps_made - before
        return search.steps_made - before


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
        return GoalOutcome(**result, status=GoalStatus.NO_DATA, witness=work.no_data or "")
    after = goal.spread()
    result |= {"before": work.before, "after": after}
    if after.is_worse_than(work.before):
        causes = sorted(((-more, name) for name, more in work.worsened.items() if more))
        result["worsened_by"] = tuple(name for _, name in causes)
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


def _dir_moves(search: Search, works: list[_Work]) -> tuple[LogDirMove, ...]:
    """Moves between log directories, planned when no replica moves between brokers any more."""
    moves: list[LogDirMove] = []
    for work in works:
        if isinstance(work.goal, LogDirGoal) and work.no_data is None:
            work.goal.improve(search)
            work.reached = True
            work.moves = len(work.goal.dir_moves)
            moves += work.goal.dir_moves
    return tuple(moves)


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


def partition_moves(search: Search, names: Sequence[str]) -> tuple[PartitionMove, ...]:
    """Moves of all changed partitions, in order.

    Args:
        names: Names of the goals, by their bits.
    """
    cluster, scope = search.cluster, search.scope
    moves: list[PartitionMove] = []
    for row in changed(search).tolist():
        led, leader = int(scope.led[row]), int(cluster.leader[row])
        bits = int(search.reasons[row])
        moves.append(
            PartitionMove(
                topic=cluster.topics[cluster.topic_of[row]],
                partition=int(cluster.partition_of[row]),
                before=cluster.ids(scope.former_holders(row)),
                after=cluster.ids(cluster.holders(row)),
                leader_before=cluster.broker_ids[led] if led >= 0 else None,
                leader_after=cluster.broker_ids[leader],
                size_bytes=int(cluster.load[row, LoadColumn.DISK]) if cluster.known[row, LoadColumn.DISK] else None,
                goals=tuple(name for place, name in enumerate(names) if bits >> place & 1),
            )
        )
    return tuple(moves)


def figures(cluster: VirtualCluster) -> list[BrokerFigures]:
    has = [bool(cluster.known[:, column].any()) for column in LoadColumn]
    sums = cluster.sums.T.tolist()
    return [
        BrokerFigures(
            replicas=row[Measure.REPLICAS],
            leaders=row[Measure.LEADERS],
            disk_bytes=row[Measure.DISK] if has[LoadColumn.DISK] else None,
            bytes_in_per_s=row[Measure.LEADER_IN] if has[LoadColumn.BYTES_IN] else None,
            bytes_out_per_s=row[Measure.LEADER_OUT] if has[LoadColumn.BYTES_OUT] else None,
            cpu=row[Measure.CPU] / CPU_UNITS if has[LoadColumn.CPU] else None,
        )
        for row in sums
    ]


def broker_changes(
    layout: ClusterLayout, loads: PartitionLoads, moves: Sequence[PartitionMove]
) -> tuple[BrokerChange, ...]:
    """Brokers before and after moves that no search made, such as those of another tool."""
    moved = {(move.topic, move.partition): move for move in moves}

    def after(topic: KafkaTopic) -> KafkaTopic:
        partitions = (
            part if move is None else replace(part, replicas=move.after, leader=move.leader_after)
            for part in topic.partitions
            for move in [moved.get((topic.name, part.partition))]
        )
        return replace(topic, partitions=tuple(partitions))

    cluster = VirtualCluster(layout, loads)
    then = VirtualCluster(replace(layout, topics={name: after(topic) for name, topic in layout.topics.items()}), loads)
    return _broker_changes(cluster, figures(cluster), figures(then), moves)


def _broker_changes(
    cluster: VirtualCluster,
    before: Sequence[BrokerFigures],
    after: Sequence[BrokerFigures],
    moves: Sequence[PartitionMove],
) -> tuple[BrokerChange, ...]:
    comes, goes = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for move in moves:
        for brokers, sizes in ((move.added, comes), (move.removed, goes)):
            for broker in brokers:
                sizes[broker].append(move.size_bytes or 0)
    return tuple(
        BrokerChange(
            id=broker,
            rack=cluster.racks[cluster.rack_of[place]] if cluster.rack_of[place] >= 0 else None,
            alive=bool(cluster.alive[place]),
            before=before[place],
            after=after[place],
            replicas_in=len(comes[broker]),
            replicas_out=len(goes[broker]),
            bytes_in=sum(comes[broker]),
            bytes_out=sum(goes[broker]),
        )
        for place, broker in enumerate(cluster.broker_ids)
    )


def identity(cluster_id: str, layout: str, moves: Sequence[PartitionMove], dir_moves: Sequence[LogDirMove] = ()) -> str:
    """Id of a plan: 16 hex digits of a digest of its moves."""
    digest = hashlib.sha256(f"{cluster_id}\n{layout}\n".encode())
    for move in moves:
        digest.update(f"{move.topic} {move.partition} {move.before} {move.after} {move.leader_after}\n".encode())
    for each in dir_moves:
        digest.update(f"{each.topic} {each.partition} {each.broker} {each.before} {each.after}\n".encode())
    return digest.hexdigest()[:16]
