"""Brings brokers into the range of a goal of sums: leader switches first, then moves, then swaps where those are blocked.

Off a broker above its range goes what frees it with the fewest bytes; a broker below is filled up to its lower bound only.
Each move lessens the goal's excess, the sum of distances from the range, so this ends; and it ends only where no move that
is looked at helps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from loaddata.partitions.cluster import Known, Measure
from shedders.partitions.fitting import preferred
from shedders.partitions.swapping import candidates, swap_down, swap_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from shedders.partitions.goals.broker_goal import BrokerGoal
    from shedders.partitions.search import Search

    Way = Callable[[Search, BrokerGoal, int], bool]

CHUNKS: Final = (8, 32, 128, 512)
"""So many candidates are looked at together: few at first, as one of the first often will do."""
SWITCHES: Final = 16
"""So many switches are made from one look, where they still bring what they did then."""
GROUPS: Final = (1, 4, 16, 64)
"""So many brokers are looked at together for what they can give."""


def level(search: Search, goal: BrokerGoal) -> int:
    """Pass over all brokers out of range until a pass makes no move; how many moves it made."""
    total = 0
    while True:
        made = 0
        beyond = goal.distance(goal.values)
        places = np.nonzero(beyond)[0]
        order = places[np.lexsort((places, -beyond[places]))].tolist()
        over = [one for one in order if goal.values[one] > goal.high[one]]
        under = [one for one in order if goal.values[one] < goal.low[one]]
        for number, broker in enumerate(over):
            search.advance(number, len(order))
            made += _unload(search, goal, broker)
        for number, broker in enumerate(under, len(over)):
            search.advance(number, len(order))
            made += _fill(search, goal, broker)
        total += made
        if not made:
            return total


def _unload(search: Search, goal: BrokerGoal, broker: int) -> int:
    ways = [_switch_off] * goal.by_leader + [_move_off, swap_down] * goal.moves_data
    return _by(ways, search, goal, broker, lambda: bool(goal.values[broker] > goal.high[broker]))


def _fill(search: Search, goal: BrokerGoal, broker: int) -> int:
    ways = [_switch_on] * goal.by_leader + [_move_on, swap_up] * goal.moves_data
    return _by(ways, search, goal, broker, lambda: bool(goal.values[broker] < goal.low[broker]))


def _by(ways: Sequence[Way], search: Search, goal: BrokerGoal, broker: int, beyond: Callable[[], bool]) -> int:
    """Go each way as far as it leads, in order, and all again, until none leads on or the broker is in range."""
    began = search.made
    while beyond():
        before = search.made
        for way in ways:
            while beyond() and way(search, goal, broker):
                pass
        if search.made == before:
            break
    return search.made - began


# --- leader switches -------------------------------------------------------------------------


def _switch_off(search: Search, goal: BrokerGoal, broker: int) -> bool:
    cluster = search.cluster
    held, _ = cluster.on_broker(broker)
    led = held[cluster.leader[held] == broker]
    led = led[search.scope.may_switch(led)]
    if not len(led):
        return False
    targets = cluster.replicas[led]
    partitions = np.repeat(led, targets.shape[1])
    to = targets.ravel()
    fits = (to >= 0) & (to != broker)
    return _switch_best(search, goal, partitions[fits], to[fits])


def _switch_on(search: Search, goal: BrokerGoal, broker: int) -> bool:
    if not search.scope.leaders[broker]:
        return False
    cluster = search.cluster
    held, _ = cluster.on_broker(broker)
    held = held[(cluster.leader[held] != broker)]
    held = held[search.scope.may_switch(held)]
    return _switch_best(search, goal, held, np.full(len(held), broker, dtype=np.int32))


def _switch_best(search: Search, goal: BrokerGoal, partitions: Any, to: Any) -> bool:
    """Make switches that lessen the excess, the largest gains first, as long as each still helps; whether one was made."""
    cluster = search.cluster
    row = goal.measure
    weight = cluster.as_leader[row][partitions] - cluster.as_follower[row][partitions]
    sources = cluster.leader[partitions]
    gain = goal.gain(weight, sources, to)
    worth = np.nonzero(gain > 0)[0]
    if not len(worth):
        return False
    worth = worth[search.switches(partitions[worth], to[worth])]
    if not len(worth):
        return False
    order = worth[np.lexsort((to[worth], partitions[worth], goal.relative()[to[worth]], weight[worth], -gain[worth]))]
    made, best = False, int(gain[order[0]])
    for place in order[:SWITCHES].tolist():
        partition, source, target = int(partitions[place]), int(sources[place]), int(to[place])
        if int(cluster.leader[partition]) != source or 2 * int(gain[place]) < best:
            continue
        now = int(goal.gain(weight[place], source, target))
        if now == int(gain[place]) and search.limits.switch(partition, target):
            search.switch(partition, target)
            made = True
    return made


# --- moves -----------------------------------------------------------------------------------


def _move_off(search: Search, goal: BrokerGoal, broker: int) -> bool:
    """Move pieces off a broker; whether one was moved."""
    partitions, weight = candidates(search, goal, broker)
    if not len(partitions):
        return False
    excess = int(goal.values[broker] - goal.high[broker])
    order, together = preferred(partitions, weight, excess, _bytes(search, goal, partitions))
    partitions, weight = partitions[order], weight[order]
    takers = np.nonzero(search.scope.takers)[0]
    second: tuple[int, int, int] | None = None
    for begin, end in _chunks(len(partitions), CHUNKS):
        part, heavy = partitions[begin:end], weight[begin:end]
        gain = goal.worth(heavy[:, None], broker, takers)
        if not (gain > 0).any():
            continue
        gain = np.where(search.moves(part, np.full(len(part), broker), takers), gain, 0)
        inside = np.where(goal.values[takers] + heavy[:, None] <= goal.high[takers], gain, 0)
        rows = np.nonzero(inside.any(axis=1))[0]
        if len(rows):
            whole = begin == 0 and len(rows) >= together and bool((rows[:together] == np.arange(together)).all())
            _place(search, goal, broker, part[rows], heavy[rows], inside[rows], takers, together if whole else 0)
            return True
        if gain.any():
            row = int(gain.max(axis=1).argmax())
            best = int(gain[row].max())
            if second is None or best > second[0]:
                second = best, int(part[row]), int(takers[_best(gain[row], goal.relative()[takers])])
    if second is None:
        return False
    search.move(second[1], broker, second[2])
    return True


def _place(
    search: Search, goal: BrokerGoal, broker: int, part: Any, heavy: Any, gain: Any, takers: Any, together: int
) -> None:
    """Move replicas to their best takers while the broker is above its range: pieces that belong together, then what fits."""
    made = False
    for row, weight in enumerate(heavy.tolist()):
        excess = int(goal.values[broker] - goal.high[broker])
        if excess <= 0:
            return
        if made and row >= together and weight > excess:
            continue
        open_ = takers[gain[row] > 0]
        now = goal.worth(weight, broker, open_)
        now[goal.values[open_] + weight > goal.high[open_]] = 0
        to = int(open_[_best(now, goal.relative()[open_])]) if now.any() else -1
        if to >= 0 and (not made or search.can_move(int(part[row]), broker, to)):
            search.move(int(part[row]), broker, to)
            made = True
        else:
            together = 0  # without this piece the others no longer make up the amount


def _chunks(count: int, sizes: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    begin = number = 0
    while begin < count:
        end = min(count, begin + sizes[min(number, len(sizes) - 1)])
        yield begin, end
        begin, number = end, number + 1


def _best(gain: NDArray[np.int64], relative: NDArray[np.float64]) -> int:
    """The place of the largest gain; among equals the least loaded."""
    return int(np.where(gain == gain.max(), relative, np.inf).argmin())


def _move_on(search: Search, goal: BrokerGoal, broker: int) -> bool:
    """Move pieces onto a broker, from those that have most to spare; whether one was moved."""
    if not search.scope.takers[broker]:
        return False
    spare = np.where(np.arange(len(goal.cells)) == broker, 0, goal.spare())
    order = np.lexsort((np.arange(len(spare)), -spare))
    order = order[spare[order] > 0].tolist()
    made = False
    for begin, end in _chunks(len(order), GROUPS):
        if goal.values[broker] >= goal.low[broker]:
            break
        given = [(source, *candidates(search, goal, source)) for source in order[begin:end]]
        partitions = np.concatenate([one[1] for one in given])
        weight = np.concatenate([one[2] for one in given])
        sources = np.repeat([one[0] for one in given], [len(one[1]) for one in given])
        useful = np.nonzero(goal.worth(weight, sources, broker))[0]
        useful = useful[search.moves_to(partitions[useful], sources[useful], broker)]
        if len(useful):
            _take(search, goal, broker, partitions[useful], sources[useful])
            made = True
    return made


def _take(search: Search, goal: BrokerGoal, broker: int, partitions: Any, sources: Any) -> None:
    """Take of these, which may all come, while the broker is below its range: what belongs together, then what fits."""
    cluster, values = search.cluster, goal.values
    spare = goal.spare()
    weight = goal.weight(partitions, cluster.leader[partitions] == sources)
    easy = weight <= spare[sources]
    if easy.any():
        partitions, sources, weight = partitions[easy], sources[easy], weight[easy]
    missing = int(goal.low[broker] - values[broker])
    order, together = preferred(partitions, weight, missing, _bytes(search, goal, partitions))
    made = False
    for number, place in enumerate(order.tolist()):
        partition, source, heavy = int(partitions[place]), int(sources[place]), int(weight[place])
        missing = int(goal.low[broker] - values[broker])
        if missing <= 0:
            return
        if made:
            if number >= together and heavy > missing:
                continue
            falls = goal.cells[source] and values[source] - heavy < goal.low[source]
            full = values[broker] + heavy > goal.high[broker]
            if falls or full or not search.can_move(partition, source, broker):
                together = 0  # without this piece the others no longer make up the amount
                continue
        search.move(partition, source, broker)
        made = True


def _bytes(search: Search, goal: BrokerGoal, partitions: Any) -> NDArray[np.int64] | None:
    """What moving them copies; None where that is what the goal measures."""
    if goal.measure is Measure.DISK:
        return None
    found: NDArray[np.int64] = search.cluster.load[partitions, Known.DISK]
    return found
