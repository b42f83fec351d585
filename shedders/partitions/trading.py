"""Trades what was moved for something smaller that serves all goals as well: fewer bytes for the same goals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from loaddata.partitions.cluster import Known
from loaddata.partitions.moves import Swap

if TYPE_CHECKING:
    from shedders.partitions.limits import Limits
    from shedders.partitions.search import Search

PAIRS_MAX: Final = 200
"""So many pairs of brokers are looked at in a pass: those between which most bytes go first."""
ONES_MAX: Final = 64
"""So many moved replicas of a pair: the largest first."""


def trade(search: Search, limits: Limits) -> int:
    """Send replicas back and take smaller ones from where they were, as long as no cell of any goal gets worse.

    Each trade copies fewer bytes than before, so this ends. Returns how many were made.
    """
    total = 0
    while made := _pass(search, limits):
        total += made
    return total


def _pass(search: Search, limits: Limits) -> int:
    cluster, scope = search.cluster, search.scope
    rows = np.nonzero((cluster.replicas != scope.began).any(axis=1))[0]
    here, began = cluster.replicas[rows], scope.began[rows]
    came = (here >= 0) & ~(here[:, :, None] == began[:, None, :]).any(axis=2)
    gone = (began >= 0) & ~(began[:, :, None] == here[:, None, :]).any(axis=2)
    single = (came.sum(axis=1) == 1) & (gone.sum(axis=1) == 1)
    rows, here, began, came, gone = rows[single], here[single], began[single], came[single], gone[single]
    size = cluster.load[rows, Known.DISK]
    rows, to, home, size = rows[size > 0], here[came][size > 0], began[gone][size > 0], size[size > 0]
    home_stays = scope.homes[home]
    rows, to, home, size = rows[home_stays], to[home_stays], home[home_stays], size[home_stays]
    pair = to.astype(np.int64) * len(scope.homes) + home
    order = np.lexsort((rows, -size, pair))
    pairs, first, count = np.unique(pair[order], return_index=True, return_counts=True)
    bytes_of = np.add.reduceat(size[order], first) if len(first) else size
    made = 0
    for place in np.lexsort((pairs, -bytes_of))[:PAIRS_MAX].tolist():
        ones = rows[order[first[place] : first[place] + min(int(count[place]), ONES_MAX)]]
        made += _between(search, limits, ones, *divmod(int(pairs[place]), len(scope.homes)))
    return made


def _between(search: Search, limits: Limits, ones: Any, broker: int, home: int) -> int:
    """Trade replicas that came to a broker from their home for smaller ones that are there still."""
    cluster, scope, size = search.cluster, search.scope, search.cluster.load[:, Known.DISK]
    # Trades between other brokers may have moved them meanwhile.
    held_by = cluster.replicas[ones]
    ones = ones[(held_by == broker).any(axis=1) & ~(held_by == home).any(axis=1)]
    made = 0
    while len(ones):
        search.look()
        held, _ = cluster.on_broker(home)
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
        one, other = int(ones[at[best]]), int(others[also[best]])
        place, other_place = cluster.holders(one).index(broker), cluster.holders(other).index(home)
        reasons = search.reasons[one]
        search.make(Swap(one, place, other, other_place), taken_back=True)
        search.leader_first(other)
        search.reasons[other] |= reasons
        ones = ones[ones != one]
        made += 1
    return made
