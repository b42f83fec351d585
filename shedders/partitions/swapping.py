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
LOOKED_AT: Final = 256
"""So many of the swaps that were found are looked at, one after the other."""
PARTNERS: Final = 8
"""With so many brokers, the most different first."""


def swap_down(search: Search, goal: BrokerGoal, broker: int) -> bool:
    """Give a broker above its range less, by one swap."""
    excess = int(goal.values[broker] - goal.high[broker])
    mine, heavy = candidates(search, goal, broker)
    chosen = mine[_fitting(search, goal, mine, heavy, excess)]
    partners = _partners(search, goal, broker, goal.relative())
    return any(_exchange(search, goal, chosen, broker, _all(search, one), one) for one in partners)


def swap_up(search: Search, goal: BrokerGoal, broker: int) -> bool:
    """Give a broker below its range more, by one swap."""
    missing = int(goal.low[broker] - goal.values[broker])
    here = _all(search, broker)
    for one in _partners(search, goal, broker, -goal.relative()):
        theirs, heavy = candidates(search, goal, one)
        chosen = theirs[_fitting(search, goal, theirs, heavy, missing)]
        if _exchange(search, goal, chosen, one, here, broker):
            return True
    return False


def candidates(search: Search, goal: BrokerGoal, broker: int) -> tuple[Any, Any]:
    """Replicas on a broker that may move and weigh something, and what they weigh."""
    cluster, kept = search.cluster, search.kept
    found = kept.get((goal.measure, broker))
    if found is None or found[0] != cluster.changes[broker]:
        held, _ = cluster.on_broker(broker)
        weight = goal.weight(held, cluster.leader[held] == broker)
        held, weight = held[weight > 0], weight[weight > 0]
        free = search.scope.movable(held, np.full(len(held), broker))
        found = kept[goal.measure, broker] = cluster.changes[broker], held[free], weight[free]
    return found[1], found[2]


def _partners(search: Search, goal: BrokerGoal, broker: int, key: Any) -> list[int]:
    takers = search.scope.takers
    if not takers[broker]:
        return []
    order = np.lexsort((np.arange(len(key)), key)).tolist()
    return [one for one in order if one != broker and goal.cells[one] and takers[one]][:PARTNERS]


def _all(search: Search, broker: int) -> Any:
    held, _ = search.cluster.on_broker(broker)
    return held[search.scope.movable(held, np.full(len(held), broker))]


def _fitting(search: Search, goal: BrokerGoal, partitions: Any, weight: Any, amount: int) -> Any:
    copied = None if goal.measure is Measure.DISK else search.cluster.load[partitions, Known.DISK]
    return preferred(partitions, weight, amount, copied)[0][:TRIED]


def _exchange(search: Search, goal: BrokerGoal, ones: Any, here: int, others: Any, there: int) -> bool:
    """Make swaps that copy the fewest bytes for what they bring: a heavier replica here, a lighter one there."""
    if not len(ones) or not len(others):
        return False
    cluster = search.cluster
    heavy = goal.weight(ones, cluster.leader[ones] == here)
    light = goal.weight(others, cluster.leader[others] == there)
    gain = goal.worth(heavy[:, None] - light, here, there)
    at, also = np.nonzero(search.swaps(ones, here, others, there, gain > 0))
    if not len(at):
        return False
    found, size = gain[at, also], cluster.load[:, Known.DISK]
    copied = size[ones[at]] + size[others[also]] + 1
    order = np.lexsort((others[also], ones[at], -found, copied / found))[:LOOKED_AT]
    used: set[int] = set()
    yes = np.ones((1, 1), dtype=bool)
    for place in order.tolist():
        row, column, partition, other = int(at[place]), int(also[place]), int(ones[at[place]]), int(others[also[place]])
        if partition in used or other in used:
            continue
        one, another = ones[row : row + 1], others[column : column + 1]
        if used:
            now = int(goal.worth(heavy[row] - light[column], here, there))
            if now < int(gain[row, column]) or not search.swaps(one, here, another, there, yes)[0, 0]:
                continue
        search.swap(partition, here, other, there)
        used |= {partition, other}
    return True
