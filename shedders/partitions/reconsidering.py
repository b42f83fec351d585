"""Reconsiders what copies most: where would the goals end if it had to stay? Fewer bytes for the same goals.

A search that takes the best single step each time does not see that two smaller replicas would have done instead of a large
one. So the largest that move are sent home and kept there, alone and in pairs, the goals search once more, and that end is
taken which copies less, if no goal stands worse in it.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from loaddata.partitions.cluster import Known
from loaddata.partitions.moves import between
from shedders.partitions.takeback import changed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from loaddata.partitions.moves import Move
    from shedders.partitions.goals.goal import Goal
    from shedders.partitions.search import Search

MOVED_MAX: Final = 100
"""A plan that moves more partitions is left as it is: many sizes divide well, and to search again takes long."""
ALONE_MAX: Final = 24
"""So many are sent home alone: the largest."""
PAIRED_MAX: Final = 6
"""So many in pairs."""
GAIN_MIN: Final = 0.01
"""An end that moves more replicas has to copy less by this part."""
PARTITIONS_MAX: Final = 10_000
"""In a larger cluster each search takes long, whatever it moves."""


def reconsider(search: Search, goals: Sequence[Goal], settle: Callable[[], None]) -> None:
    """Try other ends of the search until none is better. Each that is taken copies less, so this ends.

    Args:
        search: At an end.
        goals: All of them.
        settle: Lets the goals search on to an end.

    Raises:
        TimeSpentError: The time budget is spent; the search stands at the last end that was taken.
    """
    if search.bounded or search.cluster.size > PARTITIONS_MAX or len(changed(search)) > MOVED_MAX:
        return
    at = _Place(search, goals)
    tried: set[tuple[int, ...]] = set()
    while away := next((one for one in _choices(search) if one not in tried), None):
        tried.add(away)
        at = _without(search, at, goals, settle, list(away)) or at


def _choices(search: Search) -> list[tuple[int, ...]]:
    """Partitions to send home together, the most promising first."""
    rows, size = changed(search), search.cluster.load[:, Known.DISK]
    rows = rows[size[rows] > 0]
    rows = rows[np.lexsort((rows, -size[rows]))].tolist()
    return [*((one,) for one in rows[:ALONE_MAX]), *combinations(rows[:PAIRED_MAX], 2)]


def _without(
    search: Search, at: _Place, goals: Sequence[Goal], settle: Callable[[], None], away: list[int]
) -> _Place | None:
    """The end at which these partitions were not moved first, if it is better: the search is there then, else where it was."""
    cluster, scope, steps = search.cluster, search.scope, search.steps
    # What is tried is no step of the search: only the way to the end that is taken is.
    search.trail, search.steps = [], None
    better = False
    try:
        for one in away:
            search.make(*_way(one, at.replicas[one], at.leader[one], scope.began[one], scope.led[one]), taken_back=True)
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
    for one in np.nonzero((end.replicas != at.replicas).any(axis=1) | (end.leader != at.leader))[0].tolist():
        moves += _way(one, at.replicas[one], at.leader[one], end.replicas[one], end.leader[one])
    search.make(*moves, taken_back=True)
    return end


class _Place:
    """Where a search is."""

    def __init__(self, search: Search, goals: Sequence[Goal]) -> None:
        self.replicas, self.leader = search.cluster.replicas.copy(), search.cluster.leader.copy()
        self.reasons = search.reasons.copy()
        self.excesses = [goal.spread().excess for goal in goals]
        self.copied_replicas, self.copied_bytes = search.copied(changed(search).tolist())

    def is_better_than(self, other: _Place) -> bool:
        """Whether it copies less, by enough for the replicas that it moves more, and no goal stands worse."""
        saved_bytes = other.copied_bytes - self.copied_bytes
        enough = self.copied_replicas <= other.copied_replicas or saved_bytes >= GAIN_MIN * other.copied_bytes
        excesses = zip(self.excesses, other.excesses, strict=True)
        return saved_bytes > 0 and enough and all(mine <= before for mine, before in excesses)


def _way(partition: int, here: Any, leader: Any, there: Any, leads: Any) -> list[Move]:
    now, then = ([one for one in row.tolist() if one >= 0] for row in (here, there))
    return between(partition, now, int(leader), then, int(leads))
