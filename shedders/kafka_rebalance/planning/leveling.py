"""Brings brokers into the range of a goal of sums: leader switches and chains of them first, then moves, swaps, chains of moves.

Off a broker above its range goes what frees it with the fewest bytes; a broker below is filled up to its lower bound only.
Each move lessens the goal's excess, the sum of distances from the range, so this ends; and it ends only where no move that
is looked at helps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shedders.kafka_rebalance.planning.chains import move_on, pass_on
from shedders.kafka_rebalance.planning.virtual_cluster import LoadColumn, Measure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from shedders.kafka_rebalance.goals.goal import BrokerGoal
    from shedders.kafka_rebalance.planning.search import Search

    Way = Callable[[Search, BrokerGoal, int], bool]


PIECES_MAX: Final = 48
"""Most pieces that are chosen together."""


def preferred(
    partitions: NDArray[np.int64], weight: NDArray[np.int64], amount: int, copied: NDArray[np.int64] | None
) -> tuple[NDArray[np.int64], int]:
    """The order, as places in the arrays, and how many of the first belong together: they make up the amount.

    Args:
        partitions: Numbers, the last tie-breaker.
        weight: What each takes away.
        amount: What is to be taken away.
        copied: Bytes of each; None: the weight is in bytes itself.

    Where weights are bytes, pieces are chosen so that together they hold little more than the amount. Otherwise those
    come first that copy the fewest bytes for what they take away; among equals the largest.
    """
    if copied is None:
        return _fit(partitions, weight, amount)
    useful = np.minimum(weight, amount)
    order = np.lexsort((partitions, weight, -useful, copied / useful))
    enough = int(np.searchsorted(np.cumsum(weight[order]), amount)) + 1
    return order, min(enough, len(order))


def _fit(partitions: NDArray[np.int64], weight: NDArray[np.int64], amount: int) -> tuple[NDArray[np.int64], int]:
    rising = np.lexsort((partitions, weight))
    sizes = weight[rising]
    chosen = _pieces(sizes, amount)
    split = int(np.searchsorted(sizes, amount, side="right"))
    rest = np.concatenate((np.arange(split - 1, -1, -1), np.arange(split, len(sizes))))
    if chosen:
        rest = np.concatenate((np.array(chosen), rest[~np.isin(rest, chosen)]))
    order: NDArray[np.int64] = rising[rest]
    return order, max(1, len(chosen))


def _pieces(sizes: NDArray[np.int64], amount: int) -> list[int]:
    """Large pieces that fit, then the smallest that covers what is left: at the point where that is the least in all."""
    taken: list[int] = []
    best: list[int] = []
    best_sum = None
    total, end = 0, len(sizes)
    while len(taken) < PIECES_MAX:
        rest = amount - total
        cover = int(np.searchsorted(sizes, rest))
        if cover < len(sizes) and cover not in taken:
            whole = total + int(sizes[cover])
            if best_sum is None or whole < best_sum:
                best_sum, best = whole, [*taken, cover]
        fitting = min(end, int(np.searchsorted(sizes, rest, side="right"))) - 1
        if rest <= 0 or fitting < 0:
            break
        taken.append(fitting)
        total += int(sizes[fitting])
        end = fitting
    return best or taken


TRIED: Final = 12
"""Most replicas of a broker that are tried, the best fitting first."""
LOOKED_AT: Final = 256
"""Most swaps that are checked one after the other."""
PARTNERS: Final = 8
"""Most brokers to swap with, the most different first."""


def swap_down(search: Search, goal: BrokerGoal, broker: int) -> bool:
    """Give a broker above its range less, by one swap."""
    excess = int(goal.values[broker] - goal.high[broker])
    mine, heavy = search.candidates(goal.measure, broker)
    chosen = mine[_fitting(search, goal, mine, heavy, excess)]
    partners = _partners(search, goal, broker, goal.relative())
    return any(_exchange(search, goal, chosen, broker, search.movable(partner), partner) for partner in partners)


def swap_up(search: Search, goal: BrokerGoal, broker: int) -> bool:
    """Give a broker below its range more, by one swap."""
    missing = int(goal.low[broker] - goal.values[broker])
    here = search.movable(broker)
    for partner in _partners(search, goal, broker, -goal.relative()):
        theirs, heavy = search.candidates(goal.measure, partner)
        chosen = theirs[_fitting(search, goal, theirs, heavy, missing)]
        if _exchange(search, goal, chosen, partner, here, broker):
            return True
    return False


def _partners(search: Search, goal: BrokerGoal, broker: int, key: Any) -> list[int]:
    takers = search.scope.takers
    if not takers[broker]:
        return []
    order = np.lexsort((np.arange(len(key)), key)).tolist()
    return [partner for partner in order if partner != broker and goal.cells[partner] and takers[partner]][:PARTNERS]


def _fitting(search: Search, goal: BrokerGoal, partitions: Any, weight: Any, amount: int) -> Any:
    copied = None if goal.measure is Measure.DISK else search.cluster.load[partitions, LoadColumn.DISK]
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
    gains, size = gain[at, also], cluster.load[:, LoadColumn.DISK]
    copied = size[ones[at]] + size[others[also]] + 1
    order = np.lexsort((others[also], ones[at], -gains, copied / gains))[:LOOKED_AT]
    used: set[int] = set()
    yes = np.ones((1, 1), dtype=bool)
    for place in order.tolist():
        row, column, partition, other = int(at[place]), int(also[place]), int(ones[at[place]]), int(others[also[place]])
        if partition in used or other in used:
            continue
        single, another = ones[row : row + 1], others[column : column + 1]
        if used:
            now = int(goal.worth(heavy[row] - light[column], here, there))
            if now < int(gain[row, column]) or not search.swaps(single, here, another, there, yes)[0, 0]:
                continue
        search.swap(partition, here, other, there)
        used |= {partition, other}
    return True


CHUNKS: Final = (8, 32, 128, 512)
"""Candidates that are checked together: few at first, as one of the first often is good enough."""
SWITCHES: Final = 16
"""Most switches from one check, as far as they still gain as much."""
GROUPS: Final = (1, 4, 16, 64)
"""Brokers that are checked together for what they can give."""


def level(search: Search, goal: BrokerGoal) -> None:
    """Pass over all brokers out of range until a pass makes no move: with data only where leader switches lead no further."""
    before = -1
    while search.steps_made != before:
        before = search.steps_made
        if goal.by_leader:
            _pass_over(search, goal, [_switch_off, pass_on], [_switch_on, pass_on])
            if search.steps_made != before:
                continue
        if goal.moves_data:
            switches: list[tuple[Way, Way]] = [(_switch_off, _switch_on)] * goal.by_leader
            ways = [*switches, (_move_off, _move_on), (swap_down, swap_up)]
            if not goal.by_leader:  # for others chains of leader switches do as well, and copy nothing
                ways.append((move_on, move_on))
            _pass_over(search, goal, [off for off, _ in ways], [on for _, on in ways])


def _pass_over(search: Search, goal: BrokerGoal, off: Sequence[Way], on: Sequence[Way]) -> None:
    """Pass over all brokers out of range, once: those above first."""
    beyond = goal.distance(goal.values)
    places = np.nonzero(beyond)[0]
    order = places[np.lexsort((places, -beyond[places]))].tolist()
    over = [broker for broker in order if goal.values[broker] > goal.high[broker]]
    under = [broker for broker in order if goal.values[broker] < goal.low[broker]]
    for number, broker in enumerate([*over, *under]):
        search.advance(number, len(order))
        above = number < len(over)
        _by(off if above else on, search, goal, broker, above=above)


def _by(ways: Sequence[Way], search: Search, goal: BrokerGoal, broker: int, *, above: bool) -> None:
    """Go each way as far as it leads, in order, and all again, until none leads on or the broker is in range."""

    def beyond() -> bool:
        value = goal.values[broker]
        return bool(value > goal.high[broker] if above else value < goal.low[broker])

    while beyond():
        before = search.steps_made
        for way in ways:
            while beyond() and way(search, goal, broker):
                pass
        if search.steps_made == before:
            break


# --- leader switches -------------------------------------------------------------------------


def _switch_off(search: Search, goal: BrokerGoal, broker: int) -> bool:
    cluster = search.cluster
    held = cluster.on_broker(broker)
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
    held = cluster.on_broker(broker)
    held = held[(cluster.leader[held] != broker)]
    held = held[search.scope.may_switch(held)]
    return _switch_best(search, goal, held, np.full(len(held), broker, dtype=np.int32))


def _switch_best(search: Search, goal: BrokerGoal, partitions: Any, to: Any) -> bool:
    """Make switches that lessen the excess, the largest gains first, while each still helps; whether there was one."""
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
    moved, best = False, int(gain[order[0]])
    for place in order[:SWITCHES].tolist():
        partition, source, target = int(partitions[place]), int(sources[place]), int(to[place])
        if int(cluster.leader[partition]) != source or 2 * int(gain[place]) < best:
            continue
        now = int(goal.gain(weight[place], source, target))
        if now == int(gain[place]) and search.limits.switch(partition, target):
            search.switch(partition, target)
            moved = True
    return moved


# --- moves -----------------------------------------------------------------------------------


def _move_off(search: Search, goal: BrokerGoal, broker: int) -> bool:
    """Move pieces off a broker; whether one was moved."""
    partitions, weight = search.candidates(goal.measure, broker)
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
    moved = False
    for row, weight in enumerate(heavy.tolist()):
        excess = int(goal.values[broker] - goal.high[broker])
        if excess <= 0:
            return
        if moved and row >= together and weight > excess:
            continue
        open_ = takers[gain[row] > 0]
        now = goal.worth(weight, broker, open_)
        now[goal.values[open_] + weight > goal.high[open_]] = 0
        to = int(open_[_best(now, goal.relative()[open_])]) if now.any() else -1
        if to >= 0 and (not moved or search.can_move(int(part[row]), broker, to)):
            search.move(int(part[row]), broker, to)
            moved = True
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
    moved = False
    for begin, end in _chunks(len(order), GROUPS):
        if goal.values[broker] >= goal.low[broker]:
            break
        offers = [(source, *search.candidates(goal.measure, source)) for source in order[begin:end]]
        partitions = np.concatenate([offer[1] for offer in offers])
        weight = np.concatenate([offer[2] for offer in offers])
        sources = np.repeat([offer[0] for offer in offers], [len(offer[1]) for offer in offers])
        useful = np.nonzero(goal.worth(weight, sources, broker))[0]
        useful = useful[search.moves_to(partitions[useful], sources[useful], broker)]
        if len(useful):
            _take(search, goal, broker, partitions[useful], sources[useful])
            moved = True
    return moved


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
    moved = False
    for number, place in enumerate(order.tolist()):
        partition, source, heavy = int(partitions[place]), int(sources[place]), int(weight[place])
        missing = int(goal.low[broker] - values[broker])
        if missing <= 0:
            return
        if moved:
            if number >= together and heavy > missing:
                continue
            falls = goal.cells[source] and values[source] - heavy < goal.low[source]
            full = values[broker] + heavy > goal.high[broker]
            if falls or full or not search.can_move(partition, source, broker):
                together = 0  # without this piece the others no longer make up the amount
                continue
        search.move(partition, source, broker)
        moved = True


def _bytes(search: Search, goal: BrokerGoal, partitions: Any) -> NDArray[np.int64] | None:
    """What moving them copies; None where that is what the goal measures."""
    if goal.measure is Measure.DISK:
        return None
    sizes: NDArray[np.int64] = search.cluster.load[partitions, LoadColumn.DISK]
    return sizes
