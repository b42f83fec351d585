"""The search: makes moves for one goal after the other, keeps account of them, and of the bounds of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

import numpy as np

from shedders.kafka_rebalance.planning.limits import GoalLimits
from shedders.kafka_rebalance.planning.virtual_cluster import (
    LoadColumn,
    Measure,
    MoveReplica,
    Reorder,
    Swap,
    SwitchLeader,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from shedders.kafka_rebalance.planning.limits import LimitingGoal
    from shedders.kafka_rebalance.planning.request import PlanRequest
    from shedders.kafka_rebalance.planning.scope import Scope
    from shedders.kafka_rebalance.planning.virtual_cluster import Move, VirtualCluster

TAKEN_BACK: Final = "take-back"
WITNESS_REPLICAS_MAX: Final = 2_000
"""Most replicas that are checked for a witness."""


class TimeSpentError(Exception):
    """The time budget is spent."""


class SearchStep(NamedTuple):
    """One step of the search, for those who check it.

    Attributes:
        goal: Name of the goal that made it, or `TAKEN_BACK`.
        moves: One move, or several that are only good together.
        upto: Of what is taken back: the last goal that was taken up so far; those after it have no say yet.
    """

    goal: str
    moves: tuple[Move, ...]
    upto: str = ""


class DeadTrade(NamedTuple):
    """The state in which nothing could be traded between two brokers.

    Attributes:
        limits: Limits of the trades.
        changes: `VirtualCluster.changes` of both brokers.
        partition_changes: Number of changes to partitions by then.
    """

    limits: GoalLimits
    changes: tuple[int, int]
    partition_changes: int


T = TypeVar("T")
ANY_MEASURE: Final = -1
"""In place of a measure, for properties that do not depend on it."""


class Search:
    """State of one search.

    Attributes:
        limits: Of the goals that come before the one at work.
        earlier: Goals that come before the one at work.
        reasons: Which goals moved a partition, a bit each. P.
        steps: Steps so far, for those who check them; else None.
        steps_made: Number of steps so far.
        trail: Inverses of all moves since it was set, for a trial that may be reverted; else None.
        dead_ends: Goals and brokers without a chain, with the number of steps at that time; -1 stands for all brokers.
        chain_steps: Steps of chains of a goal, as long as no step is made: mostly no broker has a chain.
        dead_trades: Pairs of brokers without a trade.
        full_by: What tells how full a broker is.
        stinted: Whether the bounds of moves or bytes kept it from something.
    """

    def __init__(
        self,
        cluster: VirtualCluster,
        scope: Scope,
        request: PlanRequest,
        *,
        now_s: Callable[[], float] | None = None,
        began_s: float = 0.0,
        steps: list[SearchStep] | None = None,
    ) -> None:
        self.cluster = cluster
        self.scope = scope
        self.limits = GoalLimits(cluster)
        self.earlier: tuple[LimitingGoal, ...] = ()
        self.reasons: NDArray[np.int64] = np.zeros(cluster.size, dtype=np.int64)
        self.steps = steps
        self.stinted = False
        self.steps_made = 0
        self.dead_trades: dict[tuple[int, int], DeadTrade] = {}
        self.dead_ends: dict[tuple[str, int, bool], int] = {}
        self.chain_steps: tuple[tuple[str, bool, int], dict[tuple[int, bool], list[Any]]] | None = None
        self._of_brokers: dict[tuple[str, int, int], tuple[int, Any]] = {}
        self.full_by = Measure.DISK if cluster.sums[Measure.DISK].any() else Measure.REPLICAS
        self.advance: Callable[[int, int], None] = lambda _done, _of: None
        self.trail: list[Move] | None = None
        self._goal, self._bit = "", 0
        self._now_s = now_s
        self._end_s = None if request.time_budget_s is None else began_s + request.time_budget_s
        self._moves_left, self._bytes_left = request.moves_max, request.bytes_max

    def begin(self, goal: str, bit: int, limits: GoalLimits, earlier: tuple[LimitingGoal, ...]) -> None:
        """The next moves are this goal's."""
        self.chain_steps = None
        self._of_brokers = {}
        self._goal, self._bit, self.limits, self.earlier = goal, bit, limits, earlier

    def look(self) -> None:
        """Called at each look at candidates.

        Raises:
            TimeSpentError: The time budget is spent.
        """
        if self._end_s is not None and self._now_s is not None and self._now_s() >= self._end_s:
            raise TimeSpentError

    # --- what brokers can give ----------------------------------------------------------------

    def of_broker(self, kind: str, broker: int, measure: int, compute: Callable[[], T]) -> T:
        """A property of a broker, computed again only after its replicas or leaders have changed, or in another search.

        Args:
            kind: Name of the property; with the measure it identifies it.
        """
        changes, key = self.cluster.changes[broker], (kind, broker, measure)
        version, value = self._of_brokers.get(key, (-1, None))
        if version != changes:
            value = compute()
            self._of_brokers[key] = changes, value
        return cast("T", value)

    def movable(self, broker: int) -> NDArray[np.int64]:
        """Partitions whose replica on this broker may move, ascending."""
        return self.of_broker("movable", broker, ANY_MEASURE, lambda: self._find_movable(broker))

    def _find_movable(self, broker: int) -> NDArray[np.int64]:
        held = self.cluster.on_broker(broker)
        return held[self.scope.movable(held, np.full(len(held), broker))]

    def candidates(self, measure: Measure, broker: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Those of them that weigh something by a measure, and what they weigh."""
        return self.of_broker("candidates", broker, measure, lambda: self._find_candidates(measure, broker))

    def _find_candidates(self, measure: Measure, broker: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        free = self.movable(broker)
        weight = self.cluster.weight(free, self.cluster.leader[free] == broker, measure)
        return free[weight > 0], weight[weight > 0]

    # --- what may be done -------------------------------------------------------------------

    def moves(self, partitions: Any, sources: Any, to: Any) -> NDArray[np.bool_]:
        """Whether n replicas may go to each of m brokers: n x m. They must be movable, and the brokers takers."""
        self.look()
        cluster, scope = self.cluster, self.scope
        leads = cluster.leader[partitions] == sources
        allowed: NDArray[np.bool_] = self.limits.moves(partitions, sources, leads, to)
        if not scope.all_lead:
            allowed &= ~leads[:, None] | scope.leaders[to]
        held = cluster.replicas[partitions]
        for place in range(held.shape[1]):
            allowed &= held[:, place, None] != to
        if scope.lost is not None:
            lost = scope.lost[partitions]
            for place in range(lost.shape[1]):
                allowed &= lost[:, place, None] != to
        return allowed & self.affordable(partitions, sources)[:, None]

    def fits(self, partitions: Any, sources: Any, to: Any, limits: GoalLimits) -> NDArray[np.bool_]:
        """Whether replicas may go each to its own broker, whatever that does to sums of brokers and counts of topics: n."""
        there = (self.cluster.replicas[partitions] == to[:, None]).any(axis=1)
        fits: NDArray[np.bool_] = ~there & ~self.scope.was_lost(partitions, to)
        for rule in limits.rules:
            fits &= rule.moves_to(partitions, sources, to)
        return fits

    def moves_to(self, partitions: Any, sources: Any, to: int) -> NDArray[np.bool_]:
        """Which replicas may go to one broker: n. They must be movable."""
        self.look()
        cluster, scope = self.cluster, self.scope
        if not scope.takers[to]:
            return np.zeros(len(partitions), dtype=bool)
        leads = cluster.leader[partitions] == sources
        allowed: NDArray[np.bool_] = self.limits.moves_to(partitions, sources, leads, to)
        rows = np.nonzero(allowed)[0]
        if not scope.leaders[to]:
            rows = rows[~leads[rows]]
        rows = rows[~(cluster.replicas[partitions[rows]] == to).any(axis=1) & ~scope.was_lost(partitions[rows], to)]
        rows = rows[self.affordable(partitions[rows], sources[rows])]
        allowed[:] = False
        allowed[rows] = True
        return allowed

    def can_move(self, partition: int, source: int, to: int) -> bool:
        """Whether one replica, which must be movable, may go to one broker now."""
        cluster, scope = self.cluster, self.scope
        here = cluster.holders(partition)
        if not scope.takers[to] or to in here or source not in here:
            return False
        if scope.lost is not None and to in scope.lost[partition]:
            return False
        leads = bool(cluster.leader[partition] == source)
        if (leads and not scope.leaders[to]) or not self.limits.move(partition, source, leads, to):
            return False
        return not self.bounded or bool(self.affordable(np.array([partition]), np.array([source]))[0])

    def switches(self, partitions: Any, to: Any) -> NDArray[np.bool_]:
        """Which of these partitions may be led from these brokers instead: n. They must be switchable."""
        self.look()
        allowed: NDArray[np.bool_] = self.limits.switches(partitions, to)
        rows = np.nonzero(allowed)[0]
        allowed[rows] = self.scope.may_lead(partitions[rows], to[rows])
        return allowed

    def swaps(self, ones: Any, here: int, others: Any, there: int, wanted: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which replicas here may change places with others there, among wanted pairs: n x m. All must be movable."""
        self.look()
        cluster, scope = self.cluster, self.scope
        if not (scope.takers[here] and scope.takers[there]):
            return np.zeros_like(wanted)
        free = ~(cluster.replicas[ones] == there).any(axis=1) & ~scope.was_lost(ones, there)
        free_too = ~(cluster.replicas[others] == here).any(axis=1) & ~scope.was_lost(others, here)
        if not scope.leaders[there]:
            free &= cluster.leader[ones] != here
        if not scope.leaders[here]:
            free_too &= cluster.leader[others] != there
        wanted = wanted & free[:, None] & free_too
        if self.bounded:
            rows, columns = np.nonzero(wanted)
            sources, back = np.full(len(rows), here), np.full(len(rows), there)
            keep = self.affordable(ones[rows], sources, others[columns], back)
            wanted[rows[~keep], columns[~keep]] = False
        allowed: NDArray[np.bool_] = self.limits.swaps(ones, here, others, there, wanted)
        return allowed

    @property
    def bounded(self) -> bool:
        return self._moves_left is not None or self._bytes_left is not None

    def affordable(self, partitions: Any, sources: Any, others: Any = None, there: Any = None) -> NDArray[np.bool_]:
        """Whether the bounds of moves and bytes leave room for these replicas to move, with those others; n."""
        allowed = np.ones(len(partitions), dtype=bool)
        if not self.bounded:
            return allowed
        moves, size = self._fresh(partitions, sources)
        if others is not None:
            more, larger = self._fresh(others, there)
            moves, size = moves + more, size + larger
        if self._moves_left is not None:
            allowed &= (moves <= self._moves_left) | (moves == 0)
        if self._bytes_left is not None:
            allowed &= (size <= self._bytes_left) | (size == 0)
        self.stinted = self.stinted or not allowed.all()
        return allowed

    def _fresh(self, partitions: Any, sources: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Replicas and bytes that moving these copies beyond what is to be copied already; n each."""
        fresh = ~self.scope.placed(partitions, sources)
        return fresh.astype(np.int64), np.where(fresh, self.cluster.load[partitions, LoadColumn.DISK], 0)

    @property
    def budget_left(self) -> tuple[int | None, int | None]:
        """Replicas and bytes that may still be copied; None: no bound."""
        return self._moves_left, self._bytes_left

    def affordable_new(self, partition: int) -> bool:
        """Whether the bounds leave room for one more replica of a partition."""
        size = int(self.cluster.load[partition, LoadColumn.DISK])
        moves_left, bytes_left = self._moves_left, self._bytes_left
        fits = (moves_left is None or moves_left >= 1) and (bytes_left is None or size <= bytes_left)
        self.stinted = self.stinted or not fits
        return fits

    # --- doing it ---------------------------------------------------------------------------

    def move(self, partition: int, source: int, to: int) -> None:
        self.make(MoveReplica(partition, self.cluster.holders(partition).index(source), to))

    def switch(self, partition: int, to: int) -> None:
        self.make(SwitchLeader(partition, to))

    def swap(self, partition: int, here: int, other: int, there: int) -> None:
        place, other_place = self.cluster.holders(partition).index(here), self.cluster.holders(other).index(there)
        self.make(Swap(partition, place, other, other_place))

    def make(self, *moves: Move, taken_back: bool = False) -> None:
        """Make moves that belong together."""
        counted = self.bounded
        touched = {move.partition for move in moves} | {move.other for move in moves if isinstance(move, Swap)}
        before = self.copied(touched) if counted else (0, 0)
        done = list(moves)
        self.steps_made += 1
        for move in moves:
            self._apply(move)
        if not taken_back:
            done += self._leaders_first(touched)
        if counted:
            after = self.copied(touched)
            if self._moves_left is not None:
                self._moves_left -= after[0] - before[0]
            if self._bytes_left is not None:
                self._bytes_left -= after[1] - before[1]
        if not taken_back:
            for partition in touched:
                self.reasons[partition] |= self._bit
        if self.steps is not None:
            self.steps.append(self._step(tuple(done), taken_back=taken_back))

    def _apply(self, move: Move) -> None:
        inverse = self.cluster.apply(move)
        if self.trail is not None:
            self.trail.append(inverse)

    def _step(self, moves: tuple[Move, ...], *, taken_back: bool) -> SearchStep:
        return SearchStep(TAKEN_BACK, moves, self._goal) if taken_back else SearchStep(self._goal, moves)

    def leader_first(self, partition: int) -> None:
        """Put the leader of a partition first, where it is not."""
        done = self._leaders_first({partition})
        if done and self.steps is not None:
            self.steps.append(self._step(tuple(done), taken_back=True))

    def _leaders_first(self, partitions: set[int]) -> list[Move]:
        """Who is to lead stands first in the list: the election of preferred leaders at the end makes it so."""
        done: list[Move] = []
        for partition in sorted(partitions):
            leader = int(self.cluster.leader[partition])
            if leader >= 0 and self.cluster.replicas[partition, 0] != leader:
                done.append(Reorder(partition, 0, self.cluster.holders(partition).index(leader)))
                self._apply(done[-1])
        return done

    def copied(self, partitions: Iterable[int]) -> tuple[int, int]:
        """Replicas and bytes that these partitions copy."""
        replicas = size = 0
        for partition in partitions:
            began = self.scope.began[partition].tolist()
            new = sum(broker not in began for broker in self.cluster.holders(partition))
            replicas += new
            size += new * int(self.cluster.load[partition, LoadColumn.DISK])
        return replicas, size

    def fullness(self) -> NDArray[np.float64]:
        """How full brokers are by size, or by replicas where no size is known: among equals, the emptier takes. B."""
        fullness: NDArray[np.float64] = self.cluster.sums[self.full_by].astype(np.float64)
        return fullness

    # --- why nothing is left to do ----------------------------------------------------------

    def forbidden(self, partitions: Any, here: Any, useful: NDArray[np.bool_]) -> str:
        """Which earlier goals forbid these moves: replicas n, the brokers that they are on n, and would help on n x B."""
        cluster, most = self.cluster, WITNESS_REPLICAS_MAX
        partitions, here, useful = partitions[:most], here[:most], useful[:most]
        leads = cluster.leader[partitions] == here
        held = cluster.replicas[partitions]
        for place in range(held.shape[1]):
            rows = np.nonzero(held[:, place] >= 0)[0]
            useful[rows, held[rows, place]] = False
        count = int(np.count_nonzero(useful))
        if not count:
            return "all brokers that could take a replica hold one of that partition"
        against: list[str] = []
        brokers = np.arange(useful.shape[1])
        for goal in self.earlier:
            limits = GoalLimits(cluster)
            goal.limit(limits)
            number = int(np.count_nonzero(useful & ~limits.moves(partitions, here, leads, brokers)))
            if number:
                against.append(f"{goal.name} {number}")
        if not against:
            return f"moves that would help: {count}; none is left that may be made"
        return f"of the moves that would help ({count}), earlier goals forbid: {', '.join(against)}"
