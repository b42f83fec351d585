"""Reduction of copied bytes: unneeded moves are reverted or traded, and the end of a search is refined, for each mode in one way.

New brokers: a greedy search does not see that two smaller replicas could have moved instead of one large replica. So the
largest moved replicas are reverted and pinned, alone and in pairs, the goals search again, and the new result is accepted if it
copies less and no goal is worse.

Racks of different size: a moved replica goes back, and cheaper moves keep what its move was for. A chain begins with a replica
that returns to the broker that it came from. Where that leaves a broker out of its limits, the next step moves a replica away
from it, or brings it one, and so on. What the steps copy so far is always less than what the first one saves, as in the search
of Lin and Kernighan, so the first chain that ends within all limits copies less.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shedders.kafka_rebalance.planning.request import PlanMode
from shedders.kafka_rebalance.planning.search import DeadTrade
from shedders.kafka_rebalance.planning.virtual_cluster import (
    LoadColumn,
    MoveReplica,
    Reorder,
    Swap,
    SwitchLeader,
    between,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from shedders.kafka_rebalance.goals.goal import Goal
    from shedders.kafka_rebalance.planning.limits import GoalLimits
    from shedders.kafka_rebalance.planning.search import Search
    from shedders.kafka_rebalance.planning.virtual_cluster import Move


MOVED_MAX: Final = 100
"""Most moved partitions; with more, many sizes divide well and the search takes long."""
ALONE_MAX: Final = 24
"""Number of the largest moves reverted alone."""
PAIRED_MAX: Final = 6
"""Number of the largest moves reverted in pairs."""
GAIN_MIN: Final = 0.01
"""Share of bytes that must be saved by a result that moves more replicas."""
PARTITIONS_MAX: Final = 10_000
"""Most partitions of the cluster; in a larger one each search takes long."""


def reconsider(search: Search, goals: Sequence[Goal], settle: Callable[[], None]) -> None:
    """Try other results of the search until none is better. Each accepted one copies less, so this ends."""
    if search.bounded or search.cluster.size > PARTITIONS_MAX or len(changed(search)) > MOVED_MAX:
        return
    at = _Place(search, goals)
    tried: set[tuple[int, ...]] = set()
    while away := next((choice for choice in _choices(search) if choice not in tried), None):
        tried.add(away)
        if _without(search, at, goals, settle, list(away)) is not None:
            settle()  # trials make no chains
            at = _Place(search, goals)


def _choices(search: Search) -> list[tuple[int, ...]]:
    """Sets of partitions to revert, the most promising first."""
    rows, size = changed(search), search.cluster.load[:, LoadColumn.DISK]
    rows = rows[size[rows] > 0]
    rows = rows[np.lexsort((rows, -size[rows]))].tolist()
    return [*((row,) for row in rows[:ALONE_MAX]), *combinations(rows[:PAIRED_MAX], 2)]


def _without(
    search: Search, at: _Place, goals: Sequence[Goal], settle: Callable[[], None], away: list[int]
) -> _Place | None:
    """Search again with these partitions reverted; keep the result if it is better, else restore the search."""
    cluster, scope, steps = search.cluster, search.scope, search.steps
    # Trials are not steps of the search; only the moves to the accepted result are.
    search.trail, search.steps = [], None
    better = False
    try:
        for partition in away:
            search.make(
                *_way(
                    partition,
                    at.replicas[partition],
                    at.leader[partition],
                    scope.began[partition],
                    scope.led[partition],
                ),
                taken_back=True,
            )
        scope.frozen[away] = True
        settle()
        scope.frozen[away] = False
        settle()
        end = _Place(search, goals)
        better = end.is_better_than(at)
    finally:
        scope.frozen[away] = False
        for inverse in reversed(search.trail):
            cluster.apply(inverse)
        search.trail, search.steps = None, steps
        if not better:
            search.reasons[:] = at.reasons
    if not better:
        return None
    moves: list[Move] = []
    for row in np.nonzero((end.replicas != at.replicas).any(axis=1) | (end.leader != at.leader))[0].tolist():
        moves += _way(row, at.replicas[row], at.leader[row], end.replicas[row], end.leader[row])
    search.make(*moves, taken_back=True)
    return end


class _Place:
    def __init__(self, search: Search, goals: Sequence[Goal]) -> None:
        self.replicas, self.leader = search.cluster.replicas.copy(), search.cluster.leader.copy()
        self.reasons = search.reasons.copy()
        self.excesses = [goal.spread().excess for goal in goals]
        self.copied_replicas, self.copied_bytes = search.copied(changed(search).tolist())

    def is_better_than(self, other: _Place) -> bool:
        """Whether it copies enough less for its additional replica moves, and no goal is worse."""
        saved_bytes = other.copied_bytes - self.copied_bytes
        enough = self.copied_replicas <= other.copied_replicas or saved_bytes >= GAIN_MIN * other.copied_bytes
        excesses = zip(self.excesses, other.excesses, strict=True)
        return saved_bytes > 0 and enough and all(mine <= before for mine, before in excesses)


def _way(partition: int, here: Any, leader: Any, there: Any, leads: Any) -> list[Move]:
    now, then = ([broker for broker in row.tolist() if broker >= 0] for row in (here, there))
    return between(partition, now, int(leader), then, int(leads))


PAIRS_MAX: Final = 200
"""Pairs of brokers per pass, those with most bytes between them first."""
ONES_MAX: Final = 64
"""Moved replicas per pair, the largest first."""
CHANGES_MAX: Final = 10_000
"""Most changes that are looked through before a pair of brokers is searched again."""


def trade(search: Search, limits: GoalLimits) -> int:
    """Swap moved replicas for smaller ones of their source, if no cell of any goal gets worse.

    Each trade copies fewer bytes than before, so this ends. Returns the number of trades.
    """
    total = 0
    while count := _trade_pass(search, limits):
        total += count
    return total


def _trade_pass(search: Search, limits: GoalLimits) -> int:
    cluster, scope = search.cluster, search.scope
    rows = np.nonzero((cluster.replicas != scope.began).any(axis=1))[0]
    here, began, came, gone = _came_gone(search, rows)
    single = (came.sum(axis=1) == 1) & (gone.sum(axis=1) == 1)
    rows, here, began, came, gone = rows[single], here[single], began[single], came[single], gone[single]
    size = cluster.load[rows, LoadColumn.DISK]
    rows, to, home, size = rows[size > 0], here[came][size > 0], began[gone][size > 0], size[size > 0]
    home_stays = scope.homes[home]
    rows, to, home, size = rows[home_stays], to[home_stays], home[home_stays], size[home_stays]
    pair = to.astype(np.int64) * len(scope.homes) + home
    order = np.lexsort((rows, -size, pair))
    pairs, first, count = np.unique(pair[order], return_index=True, return_counts=True)
    bytes_of = np.add.reduceat(size[order], first) if len(first) else size
    trades = 0
    is_trial = search.trail is not None  # with other frozen partitions
    for place in np.lexsort((pairs, -bytes_of))[:PAIRS_MAX].tolist():
        ones = rows[order[first[place] : first[place] + min(int(count[place]), ONES_MAX)]]
        broker, home = divmod(int(pairs[place]), len(scope.homes))
        if not is_trial and _is_dead(search, limits, broker, home):
            continue
        traded = _between(search, limits, ones, broker, home)
        trades += traded
        # An earlier trade of the pass may have made others possible, which the next pass looks for.
        if not trades and not is_trial:
            changes = cluster.changes[broker], cluster.changes[home]
            search.dead_trades[broker, home] = DeadTrade(limits, changes, len(cluster.changed_partitions))
    return trades


def _came_gone(search: Search, rows: Any) -> tuple[Any, Any, Any, Any]:
    """Replicas of partitions now and at the beginning, and which of them are new, and which are no longer there; n x R each."""
    here, began = search.cluster.replicas[rows], search.scope.began[rows]
    same = here[:, :, None] == began[:, None, :]
    return here, began, (here >= 0) & ~same.any(axis=2), (began >= 0) & ~same.any(axis=1)


def _is_dead(search: Search, limits: GoalLimits, broker: int, home: int) -> bool:
    """Whether nothing could be traded between two brokers, and neither they nor partitions that they hold have changed since."""
    dead, cluster = search.dead_trades.get((broker, home)), search.cluster
    changes = cluster.changes[broker], cluster.changes[home]
    if dead is None or dead.limits is not limits or dead.changes != changes:
        return False
    since = cluster.changed_partitions[dead.partition_changes :]
    if len(since) > CHANGES_MAX:
        return False
    held_by = cluster.replicas[since]
    return not ((held_by == broker) | (held_by == home)).any()


def _between(search: Search, limits: GoalLimits, ones: Any, broker: int, home: int) -> int:
    """Trade replicas that moved from `home` to `broker` for smaller ones that are still at `home`."""
    cluster, scope, size = search.cluster, search.scope, search.cluster.load[:, LoadColumn.DISK]
    # Trades between other brokers may have moved them.
    held_by = cluster.replicas[ones]
    ones = ones[(held_by == broker).any(axis=1) & ~(held_by == home).any(axis=1)]
    count = 0
    while len(ones):
        search.look()
        held = cluster.on_broker(home)
        at_home = np.full(len(held), home)
        fits = scope.movable(held, at_home) & ~scope.placed(held, at_home) & (size[held] < size[ones].max())
        fits &= ~(cluster.replicas[held] == broker).any(axis=1)
        others = held[fits]
        wanted = size[ones][:, None] > size[others]
        back = cluster.leader[ones] != broker
        back |= scope.leaders[home] & scope.may_lead(ones, np.full(len(ones), home))
        wanted &= back[:, None] & (scope.leaders[broker] | (cluster.leader[others] != home))
        at, also = np.nonzero(limits.swaps(ones, broker, others, home, wanted))
        if not len(at):
            break
        saved = size[ones[at]] - size[others[also]]
        best = int(np.lexsort((others[also], ones[at], -saved))[0])
        mine, other = int(ones[at[best]]), int(others[also[best]])
        place, other_place = cluster.holders(mine).index(broker), cluster.holders(other).index(home)
        reasons = search.reasons[mine]
        search.make(Swap(mine, place, other, other_place), taken_back=True)
        search.leader_first(other)
        search.reasons[other] |= reasons
        ones = ones[ones != mine]
        count += 1
    return count


def take_back(search: Search, limits: GoalLimits, *, leaders_first: bool) -> int:
    """Revert moves that can be reverted without any cell of any goal getting (further) out of its range.

    Args:
        leaders_first: Whether a goal requires leaders to be first in the list; then a corrected order is kept.
    """
    total = 0
    while count := _take_back_pass(search, limits, leaders_first=leaders_first):
        total += count
    return total


def changed(search: Search) -> Any:
    """Partitions that differ from the beginning."""
    cluster, scope = search.cluster, search.scope
    return np.nonzero((cluster.replicas != scope.began).any(axis=1) | (cluster.leader != scope.led))[0]


def _take_back_pass(search: Search, limits: GoalLimits, *, leaders_first: bool) -> int:
    rows = changed(search)
    rows = rows[np.lexsort((rows, -search.cluster.load[rows, LoadColumn.DISK]))]
    count = _replicas(search, limits, rows) + _leaders(search, limits, rows, leaders_first=leaders_first)
    cluster, scope = search.cluster, search.scope
    here, began = np.sort(cluster.replicas[rows], axis=1), np.sort(scope.began[rows], axis=1)
    back = (here == began).all(axis=1) & (cluster.leader[rows] == scope.led[rows])
    for partition in rows[back].tolist():
        count += _order(search, partition, leaders_first=leaders_first)
    return count


def _replicas(search: Search, limits: GoalLimits, rows: Any) -> int:
    """Move replicas back: all candidates are checked together, and allowed ones again one by one."""
    cluster, scope = search.cluster, search.scope
    here, began, came, gone = _came_gone(search, rows)
    came &= ((here >= 0).sum(axis=1) == (began >= 0).sum(axis=1))[:, None]
    gone &= ~np.append(scope.emptied, np.False_)[began]
    if scope.lost is not None:
        gone &= scope.lost[rows] != began
    at, place, back = np.nonzero(came[:, :, None] & gone[:, None, :])
    partitions, sources, to = rows[at], here[at, place], began[at, back]
    leads = cluster.leader[partitions] == sources
    fits = ~leads | (scope.leaders[to] & scope.may_lead(partitions, to))
    partitions, sources, to, leads = partitions[fits], sources[fits], to[fits], leads[fits]
    count = 0
    for index in np.nonzero(limits.moves_to(partitions, sources, leads, to))[0].tolist():
        search.look()
        partition, source, target = int(partitions[index]), int(sources[index]), int(to[index])
        held = cluster.holders(partition)
        if source not in held or target in held or bool(cluster.leader[partition] == source) != bool(leads[index]):
            continue
        if limits.move(partition, source, bool(leads[index]), target):
            search.make(MoveReplica(partition, held.index(source), target), taken_back=True)
            count += 1
    return count


def _leaders(search: Search, limits: GoalLimits, rows: Any, *, leaders_first: bool) -> int:
    cluster, scope = search.cluster, search.scope
    led = scope.led[rows]
    fits = (led != cluster.leader[rows]) & (led >= 0) & (cluster.leader[rows] >= 0) & scope.leaders[led]
    fits &= (cluster.replicas[rows] == led[:, None]).any(axis=1)
    if leaders_first:
        fits &= led == scope.began[rows, 0]
    rows, led = rows[fits], led[fits]
    count = 0
    for index in np.nonzero(limits.switches(rows, led))[0].tolist():
        search.look()
        partition, to = int(rows[index]), int(led[index])
        if limits.switch(partition, to):
            place = cluster.holders(partition).index(to)
            switch = SwitchLeader(partition, to)
            search.make(*((switch, Reorder(partition, 0, place)) if place else (switch,)), taken_back=True)
            count += 1
    return count


def _order(search: Search, partition: int, *, leaders_first: bool) -> int:
    """Restore the old order of a list that has no other change."""
    cluster, scope = search.cluster, search.scope
    began = scope.former_holders(partition)
    here = cluster.holders(partition)
    if here == began or sorted(here) != sorted(began) or cluster.leader[partition] != scope.led[partition]:
        return 0
    if leaders_first and began[0] != cluster.leader[partition]:
        return 0
    if scope.mode is PlanMode.DEMOTE and scope.subjects[began[0]]:
        return 0
    leader = int(cluster.leader[partition])
    moves = between(partition, here, leader, began, leader)
    search.make(*moves, taken_back=True)
    return 1


WIDTHS: Final = ((12, 6, 3, 2), (60, 30, 15, 8, 4))
"""Most chains that are followed from a chain, by its length; the wider search follows where the narrow one finds nothing."""
CHAINS_MAX: Final = (250, 2_000)
"""Most chains that are looked at after one first step, in either search."""
ALL_CHAINS_MAX: Final = 40_000
"""Most chains of a goal that are looked at for one plan: with more goals each chain costs more, and fewer are looked at."""
CHOICES: Final = 6
"""Exchanges of which the one that saves most is made."""
UNEVEN_PARTITIONS_MAX: Final = 400
"""Most partitions of a cluster whose racks differ."""


class _Chain(NamedTuple):
    """Steps that are only good together: partition, source and destination of each; what brokers get, M x B; bytes copied."""

    steps: tuple[tuple[int, int, int], ...]
    change: NDArray[np.int64]
    copied_bytes: int


class _Moves(NamedTuple):
    """Possible steps, n each: a replica, its broker, its destination, whether it leads, and the bytes that it copies more."""

    partitions: NDArray[np.int64]
    sources: NDArray[np.int64]
    to: NDArray[np.int64]
    leads: NDArray[np.bool_]
    copied_bytes: NDArray[np.int64]

    def of(self, rows: Any) -> _Moves:
        return _Moves(
            self.partitions[rows], self.sources[rows], self.to[rows], self.leads[rows], self.copied_bytes[rows]
        )


def exchange(search: Search, goals: Sequence[Goal], limits: GoalLimits, settle: Callable[[], None]) -> None:
    """Make exchanges that copy less, as long as no cell of a measure gets (further) out of its range, and no goal worse.

    Only in small clusters whose racks differ.
    """
    if search.bounded or search.cluster.size > UNEVEN_PARTITIONS_MAX or not search.scope.has_uneven_racks():
        return
    if len(changed(search)) > MOVED_MAX:
        return
    left = ALL_CHAINS_MAX // len(goals)
    for widths, most in zip(WIDTHS, CHAINS_MAX, strict=True):
        better = True
        while better and left > 0:
            exchanges = _Exchanges(search, goals, limits, widths)
            better, looked_at = exchanges.make(most, left)
            left -= looked_at
            if better:
                settle()


class _Exchanges:
    def __init__(self, search: Search, goals: Sequence[Goal], limits: GoalLimits, widths: Sequence[int]) -> None:
        self._search, self._goals, self._limits, self._widths = search, goals, limits, widths
        self._rows = sorted({int(search.full_by), *limits.bound})
        self._sums = search.cluster.sums[self._rows]
        self._most = np.maximum(limits.high[self._rows], self._sums)
        self._least = np.minimum(limits.low[self._rows], self._sums)
        mean = self._sums.sum(axis=1) / max(1, int(search.scope.homes.sum()))
        self._scale = mean[self._rows.index(int(search.full_by))] / np.maximum(mean, 1.0)
        self._brokers = np.nonzero(search.scope.homes)[0]
        self._left = 0

    def make(self, most: int, in_all: int) -> tuple[bool, int]:
        """Look for an exchange and make it: whether there was one, and how many chains were looked at."""
        looked_at, wholes = 0, list[_Chain]()
        for chain in self._first():
            if looked_at >= in_all or len(wholes) >= CHOICES:
                break
            self._left = share = min(most, in_all - looked_at)
            whole = self._follow(chain)
            looked_at += share - self._left
            if whole is not None:
                wholes.append(whole)
        if wholes:
            self._make(min(wholes, key=lambda chain: chain.copied_bytes))
        return bool(wholes), looked_at

    def _first(self) -> Iterator[_Chain]:
        cluster, scope = self._search.cluster, self._search.scope
        rows = np.nonzero((cluster.replicas != scope.began).any(axis=1))[0]
        rows = rows[np.lexsort((rows, -cluster.load[rows, LoadColumn.DISK]))]
        for row in rows.tolist():
            here = cluster.holders(row)
            began = scope.former_holders(row)
            for source in here:
                if source not in began:
                    yield from self._to_former(
                        row, source, np.array([home for home in began if home not in here], dtype=int)
                    )

    def _to_former(self, row: int, source: int, homes: NDArray[np.int64]) -> Iterator[_Chain]:
        moves = self._moves(np.full(len(homes), row), np.full(len(homes), source), homes)
        empty = np.zeros(self._sums.shape, dtype=np.int64)
        for at in range(len(moves.to)):
            yield self._grown(_Chain((), empty, 0), moves, at)

    def _follow(self, chain: _Chain) -> _Chain | None:
        """A chain that begins with this one and may be made; the most promising are followed first."""
        if self._left <= 0 or chain.copied_bytes >= 0:
            return None
        self._left -= 1
        self._search.look()
        beyond = self._beyond(self._sums + chain.change)
        if not beyond.any():
            return None if self._worsens(chain) else chain
        if len(chain.steps) > len(self._widths):
            return None
        measure, broker = np.unravel_index(int((np.abs(beyond) * self._scale[:, None]).argmax()), beyond.shape)
        moves = self._from(int(broker)) if beyond[measure, broker] > 0 else self._to(int(broker))
        copied_bytes = moves.copied_bytes + chain.copied_bytes
        good = copied_bytes < 0
        for partition, source, to in chain.steps:
            good &= (moves.partitions != partition) | ((moves.sources != source) & (moves.to != to))
        moves, copied_bytes = moves.of(good), copied_bytes[good]
        left = self._left_beyond(chain, moves, beyond)
        order = np.lexsort((moves.to, moves.partitions, copied_bytes + left))
        closing = order[left[order] == 0][:1]
        best = np.concatenate([closing, order[: self._widths[len(chain.steps) - 1]]])
        grown = (self._follow(self._grown(chain, moves, at)) for at in dict.fromkeys(best.tolist()))
        return next((whole for whole in grown if whole is not None), None)

    def _grown(self, chain: _Chain, moves: _Moves, at: int) -> _Chain:
        partition, source, to = int(moves.partitions[at]), int(moves.sources[at]), int(moves.to[at])
        change = chain.change.copy()
        for number, row in enumerate(self._rows):
            weight = int(self._search.cluster.weight(moves.partitions[at : at + 1], moves.leads[at : at + 1], row)[0])
            change[number, source] -= weight
            change[number, to] += weight
        return _Chain((*chain.steps, (partition, source, to)), change, chain.copied_bytes + int(moves.copied_bytes[at]))

    # --- steps -------------------------------------------------------------------------------

    def _from(self, broker: int) -> _Moves:
        held = self._search.movable(broker)
        count = len(self._brokers)
        return self._moves(
            np.repeat(held, count), np.full(len(held) * count, broker), np.tile(self._brokers, len(held))
        )

    def _to(self, broker: int) -> _Moves:
        cluster, scope = self._search.cluster, self._search.scope
        partitions, places = np.nonzero(cluster.replicas >= 0)
        sources = cluster.replicas[partitions, places].astype(np.int64)
        fits = scope.movable(partitions, sources)
        partitions, sources = partitions[fits], sources[fits]
        return self._moves(partitions, sources, np.full(len(partitions), broker))

    def _moves(self, partitions: Any, sources: Any, to: Any) -> _Moves:
        """Those that may be made, whatever they do to brokers' sums."""
        cluster, scope = self._search.cluster, self._search.scope
        fits = scope.homes[to] & self._search.fits(partitions, sources, to, self._limits)
        fits &= scope.takers[to] | ~scope.placed(partitions, to)
        fits &= ~scope.emptied[to] & scope.movable(partitions, sources)
        leads = cluster.leader[partitions] == sources
        fits &= ~leads | scope.may_lead(partitions, to)
        partitions, sources, to, leads = partitions[fits], sources[fits], to[fits], leads[fits]
        more = scope.placed(partitions, to).astype(np.int64) - scope.placed(partitions, sources)
        return _Moves(partitions, sources, to, leads, more * cluster.load[partitions, LoadColumn.DISK])

    # --- judging -----------------------------------------------------------------------------

    def _beyond(self, sums: Any, brokers: Any = slice(None), row: Any = slice(None)) -> Any:
        """How far above (or, negative, below) their limits brokers are."""
        most, least = self._most[row, brokers], self._least[row, brokers]
        return np.maximum(sums - most, 0) + np.minimum(sums - least, 0)

    def _left_beyond(self, chain: _Chain, moves: _Moves, beyond: Any) -> Any:
        """How far all brokers are out of their limits after each step; other measures as parts of a broker's mean."""
        left = np.zeros(len(moves.to))
        for number, row in enumerate(self._rows):
            weight = self._search.cluster.weight(moves.partitions, moves.leads, row)
            out = np.abs(beyond[number])
            total = np.full(len(weight), int(out.sum())) - out[moves.sources] - out[moves.to]
            for brokers, sign in ((moves.sources, -1), (moves.to, 1)):
                then = self._sums[number, brokers] + chain.change[number, brokers] + sign * weight
                total += np.abs(self._beyond(then, brokers, number))
            left += total * self._scale[number]
        return left

    def _worsens(self, chain: _Chain) -> bool:
        """Whether a goal gets worse by a chain, such as one that counts topics."""
        cluster = self._search.cluster
        before = [goal.spread().excess for goal in self._goals]
        inverses = [cluster.apply(move) for move in self._replica_moves(chain)]
        worse = any(goal.spread().excess > excess for goal, excess in zip(self._goals, before, strict=True))
        for inverse in reversed(inverses):
            cluster.apply(inverse)
        return worse

    def _make(self, chain: _Chain) -> None:
        search = self._search
        search.make(*self._replica_moves(chain), taken_back=True)
        reasons = int(np.bitwise_or.reduce([search.reasons[row] for row, _, _ in chain.steps]))
        for row, _, _ in chain.steps:
            search.leader_first(row)
            search.reasons[row] |= reasons

    def _replica_moves(self, chain: _Chain) -> list[MoveReplica]:
        holders = self._search.cluster.holders
        return [MoveReplica(row, holders(row).index(source), to) for row, source, to in chain.steps]
