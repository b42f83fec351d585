"""Reduction of copied bytes: a search for results that meet the same goals with fewer bytes.

A greedy search does not see that two smaller replicas could have moved instead of one large replica. So the largest moved
replicas are reverted and pinned, alone and in pairs, the goals search again, and the new result is accepted if it copies
less and no goal is worse.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shedders.kafka_rebalance.planning.exchanges import exchange
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
    from collections.abc import Callable, Sequence

    from shedders.kafka_rebalance.goals.goal import Goal
    from shedders.kafka_rebalance.planning.limits import GoalLimits
    from shedders.kafka_rebalance.planning.search import Search
    from shedders.kafka_rebalance.planning.virtual_cluster import Move


MOVED_MAX: Final = 100
"""Most moved partitions for this step; with more, many sizes divide well and the search takes long."""
ALONE_MAX: Final = 24
"""Number of the largest moves reverted alone."""
PAIRED_MAX: Final = 6
"""Number of the largest moves reverted in pairs."""
GAIN_MIN: Final = 0.01
"""Share of bytes that must be saved by a result that moves more replicas."""
PARTITIONS_MAX: Final = 10_000
"""Most partitions of the cluster; in a larger one each search takes long."""
REBALANCE_PARTITIONS_MAX: Final = 400
"""The same of a rebalance, where each search takes longer."""
FAILURES_MAX: Final = 8
"""Most other results of a rebalance in a row that are not better."""
TRIALS_MAX: Final = 48
"""Most searches of a goal for other results of a rebalance: with more goals, fewer results are tried."""


def reconsider(search: Search, goals: Sequence[Goal], limits: GoalLimits, settle: Callable[[], None]) -> None:
    """Try other results of the search until none is better. Each accepted one copies less, so this ends.

    Args:
        search: A finished search.
        goals: All goals.
        limits: Their joint limits.
        settle: Continues the search of all goals to its end.

    Raises:
        TimeSpentError: The time budget is spent; the search has the last accepted result.
    """
    rebalance = search.scope.mode is PlanMode.REBALANCE
    largest = REBALANCE_PARTITIONS_MAX if rebalance else PARTITIONS_MAX
    if rebalance and not search.scope.has_uneven_racks():
        return
    if search.bounded or search.cluster.size > largest or len(changed(search)) > MOVED_MAX:
        return
    if rebalance:
        exchange(search, goals, limits, settle)
    at = _Place(search, goals)
    tried: set[tuple[int, ...]] = set()
    failures = 0
    while away := next((choice for choice in _choices(search) if choice not in tried), None):
        tried.add(away)
        better = _without(search, at, goals, settle, list(away))
        failures = 0 if better else failures + 1
        if rebalance and (failures == FAILURES_MAX or len(tried) >= TRIALS_MAX // len(goals)):
            return
        if better is not None:
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
    """State of a search."""

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
    here, began = cluster.replicas[rows], scope.began[rows]
    came = (here >= 0) & ~(here[:, :, None] == began[:, None, :]).any(axis=2)
    gone = (began >= 0) & ~(began[:, :, None] == here[:, None, :]).any(axis=2)
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
        search: State of the search.
        limits: Limits of all goals.
        leaders_first: Whether a goal requires leaders to be first in the list; then a corrected order is kept.

    Returns:
        Number of reverted moves.
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
    here, began = cluster.replicas[rows], scope.began[rows]
    even = (here >= 0).sum(axis=1) == (began >= 0).sum(axis=1)
    came = (here >= 0) & even[:, None] & ~(here[:, :, None] == began[:, None, :]).any(axis=2)
    gone = (began >= 0) & ~(began[:, :, None] == here[:, None, :]).any(axis=2)
    gone &= ~np.append(scope.emptied, np.False_)[began]
    if scope.lost is not None:
        gone &= scope.lost[rows] != began
    at, place, back = np.nonzero(came[:, :, None] & gone[:, None, :])
    partitions, sources, to = rows[at], here[at, place], began[at, back]
    leads = cluster.leader[partitions] == sources
    fits = ~leads | (scope.leaders[to] & scope.may_lead(partitions, to))
    partitions, sources, to, leads = partitions[fits], sources[fits], to[fits], leads[fits]
    count = 0
    for index in np.nonzero(limits.moves_each(partitions, sources, leads, to))[0].tolist():
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
    """Switch leadership back to former leaders."""
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
