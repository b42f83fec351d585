"""Swaps: two replicas change brokers where no single move is allowed, such as between brokers that are full by count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from loaddata.partitions.cluster import Known, Measure
from shedders.partitions.fitting import preferred

if TYPE_CHECKING:
    from shedders.partitions.goals.broker_goal import BrokerGoal
    from shedders.partitions.search import Search

TRIED: Final = 12
"""So many replicas of a broker are tried, the best fitting first."""
PARTNERS: Final = 8
"""With so many brokers, the most different first."""
PAIRS_MAX: Final = 30_000
"""So many pairs are looked at together."""


def swap_down(search: Search, goal: BrokerGoal, broker: int) -> bool:
    """Give a broker above its range less, by one swap."""
    excess = int(goal.values[broker] - goal.high[broker])
    partners = _partners(search, goal, broker, goal.relative())
    if not partners or not search.scope.takers[broker]:
        return False
    mine, heavy = candidates(search, goal, broker)
    chosen = _fitting(search, goal, mine, heavy, excess)
    return _exchange(search, goal, [(mine[chosen], broker, _all(search, one), one) for one in partners])


def swap_up(search: Search, goal: BrokerGoal, broker: int) -> bool:
    """Give a broker below its range more, by one swap."""
    missing = int(goal.low[broker] - goal.values[broker])
    partners = _partners(search, goal, broker, -goal.relative())
    if not partners or not search.scope.takers[broker]:
        return False
    here = _all(search, broker)
    sides: list[tuple[Any, int, Any, int]] = []
    for one in partners:
        theirs, heavy = candidates(search, goal, one)
        sides.append((theirs[_fitting(search, goal, theirs, heavy, missing)], one, here, broker))
    return _exchange(search, goal, sides)


def candidates(search: Search, goal: BrokerGoal, broker: int) -> tuple[Any, Any]:
    """Replicas on a broker that may move and weigh something, and what they weigh."""
    cluster = search.cluster
    held, _ = cluster.on_broker(broker)
    weight = goal.weight(held, cluster.leader[held] == broker)
    fits = weight > 0
    fits &= search.scope.movable(held, np.full(len(held), broker))
    return held[fits], weight[fits]


def _partners(search: Search, goal: BrokerGoal, broker: int, key: Any) -> list[int]:
    order = np.lexsort((np.arange(len(key)), key)).tolist()
    return [one for one in order if one != broker and goal.cells[one] and search.scope.takers[one]][:PARTNERS]


def _all(search: Search, broker: int) -> Any:
    held, _ = search.cluster.on_broker(broker)
    return held[search.scope.movable(held, np.full(len(held), broker))]


def _fitting(search: Search, goal: BrokerGoal, partitions: Any, weight: Any, amount: int) -> Any:
    copied = None if goal.measure is Measure.DISK else search.cluster.load[partitions, Known.DISK]
    return preferred(partitions, weight, amount, copied)[:TRIED]


def _exchange(search: Search, goal: BrokerGoal, sides: list[tuple[Any, int, Any, int]]) -> bool:
    """Make the swap that copies the fewest bytes for what it brings; sides are replicas here, broker, others there, broker."""
    pending: list[tuple[Any, Any, Any, Any]] = []
    count = 0
    for place, (mine, here, others, there) in enumerate(sides):
        pairs = len(mine) * len(others)
        if pairs:
            ones = np.repeat(mine, len(others))
            pending.append((ones, np.full(pairs, here), np.tile(others, len(mine)), np.full(pairs, there)))
            count += pairs
        if pending and (count >= PAIRS_MAX or place == len(sides) - 1):
            ones, from_, others_, to = (np.concatenate(one) for one in zip(*pending, strict=True))
            if _best_of(search, goal, ones, from_, others_, to):
                return True
            pending, count = [], 0
    return False


def _best_of(search: Search, goal: BrokerGoal, ones: Any, here: Any, others: Any, there: Any) -> bool:
    cluster = search.cluster
    more = goal.weight(ones, cluster.leader[ones] == here) - goal.weight(others, cluster.leader[others] == there)
    gain = goal.gain(more, here, there)
    useful = np.nonzero(gain > 0)[0]
    useful = useful[search.swaps(ones[useful], here[useful], others[useful], there[useful])]
    if not len(useful):
        return False
    ones, here, others, there, gain = ones[useful], here[useful], others[useful], there[useful], gain[useful]
    size = cluster.load[:, Known.DISK]
    copied = size[ones] + size[others] + 1
    best = int(np.lexsort((there, here, others, ones, -gain, copied / gain))[0])
    search.swap(int(ones[best]), int(here[best]), int(others[best]), int(there[best]))
    return True
