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
    from numpy.typing import NDArray

    from shedders.partitions.goals.broker_goal import BrokerGoal
    from shedders.partitions.search import Search

CHUNKS: Final = (8, 64, 512)
"""So many candidates are looked at together: few at first, as one of the first often will do."""


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
    made = 0
    while goal.values[broker] > goal.high[broker]:
        if not (
            (goal.by_leader and _switch_off(search, goal, broker))
            or (goal.moves_data and (_move_off(search, goal, broker) or swap_down(search, goal, broker)))
        ):
            break
        made += 1
    return made


def _fill(search: Search, goal: BrokerGoal, broker: int) -> int:
    made = 0
    while goal.values[broker] < goal.low[broker]:
        if not (
            (goal.by_leader and _switch_on(search, goal, broker))
            or (goal.moves_data and (_move_on(search, goal, broker) or swap_up(search, goal, broker)))
        ):
            break
        made += 1
    return made


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
    """Make the switch that lessens the excess most."""
    cluster = search.cluster
    row = goal.measure
    weight = cluster.as_leader[partitions, row] - cluster.as_follower[partitions, row]
    gain = goal.gain(weight, cluster.leader[partitions], to)
    worth = gain > 0
    partitions, to, weight, gain = partitions[worth], to[worth], weight[worth], gain[worth]
    if not len(partitions):
        return False
    allowed = search.switches(partitions, to)
    partitions, to, weight, gain = partitions[allowed], to[allowed], weight[allowed], gain[allowed]
    if not len(partitions):
        return False
    best = np.lexsort((to, partitions, goal.relative()[to], weight, -gain))[0]
    search.switch(int(partitions[best]), int(to[best]))
    return True


# --- moves -----------------------------------------------------------------------------------


def _move_off(search: Search, goal: BrokerGoal, broker: int) -> bool:
    partitions, weight = candidates(search, goal, broker)
    if not len(partitions):
        return False
    excess = int(goal.values[broker] - goal.high[broker])
    order = preferred(partitions, weight, excess, _bytes(search, goal, partitions))
    partitions, weight = partitions[order], weight[order]
    second: tuple[int, int, int] | None = None
    relative = goal.relative()
    begin = 0
    for length in _lengths(len(partitions)):
        part, heavy = partitions[begin : begin + length], weight[begin : begin + length]
        begin += length
        sources = np.full(len(part), broker)
        gain = goal.gains(heavy, broker)
        useful = (gain > 0).any(axis=1)
        part, heavy, gain, sources = part[useful], heavy[useful], gain[useful], sources[useful]
        if not len(part):
            continue
        gain = np.where(search.moves(part, sources), np.maximum(gain, 0), 0)
        inside = (goal.values + heavy[:, None] <= goal.high) & (gain > 0)
        rows = inside.any(axis=1)
        if rows.any():
            row = int(rows.argmax())
            to = _best(np.where(inside[row], gain[row], 0), relative)
            search.move(int(part[row]), broker, to)
            return True
        if gain.any():
            row = int(gain.max(axis=1).argmax())
            best = int(gain[row].max())
            if second is None or best > second[0]:
                second = best, int(part[row]), _best(gain[row], relative)
    if second is None:
        return False
    search.move(second[1], broker, second[2])
    return True


def _lengths(count: int) -> list[int]:
    lengths: list[int] = []
    while sum(lengths) < count:
        lengths.append(CHUNKS[min(len(lengths), len(CHUNKS) - 1)])
    return lengths


def _best(gain: NDArray[np.int64], relative: NDArray[np.float64]) -> int:
    """The broker of the largest gain; among equals the least loaded."""
    return int(np.where(gain == gain.max(), relative, np.inf).argmin())


def _move_on(search: Search, goal: BrokerGoal, broker: int) -> bool:
    if not search.scope.takers[broker]:
        return False
    spare = goal.spare()
    order = np.lexsort((np.arange(len(spare)), -spare)).tolist()
    for source in order:
        if source == broker or spare[source] <= 0:
            continue
        partitions, weight = candidates(search, goal, source)
        gain = goal.gain(weight, np.full(len(partitions), source), np.full(len(partitions), broker))
        useful = gain > 0
        partitions, weight = partitions[useful], weight[useful]
        if not len(partitions):
            continue
        allowed = search.moves_to(partitions, np.full(len(partitions), source), broker)
        partitions, weight = partitions[allowed], weight[allowed]
        if not len(partitions):
            continue
        missing = int(goal.low[broker] - goal.values[broker])
        easy = weight <= spare[source]
        if easy.any():
            partitions, weight = partitions[easy], weight[easy]
        best = preferred(partitions, weight, missing, _bytes(search, goal, partitions))[0]
        search.move(int(partitions[best]), source, broker)
        return True
    return False


def _bytes(search: Search, goal: BrokerGoal, partitions: Any) -> NDArray[np.int64] | None:
    """What moving them copies; None where that is what the goal measures."""
    if goal.measure is Measure.DISK:
        return None
    found: NDArray[np.int64] = search.cluster.load[partitions, Known.DISK]
    return found
