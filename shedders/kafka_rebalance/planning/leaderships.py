"""Leaderships searched as a whole: where no chain of leader switches helps, and replicas would have to be copied.

First quick bounds exclude goals that leaders alone cannot reach. Then a tabu search: each step is a switch that helps a cell out
of its range (of the goal, or of earlier goals' limits): the one that leaves all cells together nearest to their ranges, even if
that is further than before. Its partition then rests for some steps. Limits may be exceeded meanwhile, at a price that rises
while they are. What is made in the end keeps all limits and lessens the goal's excess. A search whose first steps come near to
no solution ends early.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shedders.kafka_rebalance.goals.goal import BrokerGoal
from shedders.kafka_rebalance.planning.chains import FEW_PARTITIONS
from shedders.kafka_rebalance.planning.limits import FAR
from shedders.kafka_rebalance.planning.virtual_cluster import SwitchLeader

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shedders.kafka_rebalance.goals.goal import Goal
    from shedders.kafka_rebalance.planning.search import Search

ROUND: Final = 200
"""Steps of a round; each begins at the best end so far."""
RESTS: Final = ((8, 15), (3, 8), (5, 10), (2, 20))
"""Of each round in turn: the fewest steps that a switched partition rests, and how many different numbers of steps there are."""
STALLED_MAX: Final = ROUND * len(RESTS)
"""Most steps without a better end."""
TRIAL: Final = 50
NEAR: Final = 0.1
"""How near to all ranges, in means of the goals, some step of a trial must have come; else the search ends with the trial."""
TOPIC_PRICE: Final = 0.1
"""Of one leadership of a topic beyond its limits, in means of the goal."""
PATIENCE: Final = 8
"""Steps within limits, or beyond them, after which their price changes."""
FACTOR: Final = 1.5
FACTORS: Final = 0.1, 20.0
"""Least and greatest price of limits, in parts of the first one."""
SPREAD: Final = 2_654_435_761
"""Odd number that spreads the lengths of rests, without chance: the same input gives the same plan."""


def may_reach(search: Search, goal: Goal) -> bool:
    """Whether it is worthwhile to look for leaderships that reach the goal's ranges and copy nothing; False: copying is needed.

    Only in small clusters: in larger ones loads divide well enough for chains. Trials of other results are many and do without.
    """
    if (
        search.trail is not None
        or search.cluster.size > FEW_PARTITIONS
        or not goal.by_leader
        or not goal.spread().excess
    ):
        return False
    if not isinstance(goal, BrokerGoal):
        return True
    options = Leaderships(search)
    return bool(len(options.rows)) and not out_of_reach(options, goal)


def rearrange(search: Search, goal: BrokerGoal) -> bool:
    """Switch leaders so that the goal's excess is less, within limits of earlier goals; whether that was possible."""
    key = goal.name, -1, False
    if search.dead_ends.get(key) == search.steps_made or not may_reach(search, goal):
        return False
    switches = _Rearrangement(search, goal, Leaderships(search)).find()
    if switches:
        search.make(*switches)
    else:
        search.dead_ends[key] = search.steps_made
    return bool(switches)


class Leaderships:
    """Who may lead what.

    Attributes:
        rows: Partitions that another replica may lead.
        partitions: Of each option. n.
        to: Who may lead it, the present leader among them. n.
    """

    def __init__(self, search: Search) -> None:
        cluster, scope = search.cluster, search.scope
        rows = np.nonzero(cluster.leader >= 0)[0]
        rows = rows[scope.may_switch(rows)]
        partitions = np.repeat(rows, cluster.replicas.shape[1])
        to = cluster.replicas[rows].ravel().astype(np.int64)
        partitions, to = partitions[to >= 0], to[to >= 0]
        fits = scope.may_lead(partitions, to) | (to == cluster.leader[partitions])
        self.partitions, self.to = partitions[fits], to[fits]
        self.rows: NDArray[np.int64] = np.unique(self.partitions[self.to != cluster.leader[self.partitions]])


def out_of_reach(options: Leaderships, goal: BrokerGoal) -> bool:
    """Whether leaders alone cannot bring all brokers into the goal's range, by quick bounds.

    One partition is too heavy for each broker that may lead it; or a broker has too much that no other may lead, or too
    little with all that it may lead. Otherwise it may still be impossible.
    """
    cluster = goal.cluster
    weights = (cluster.as_leader - cluster.as_follower)[int(goal.measure)]
    rows, leader = options.rows, cluster.leader
    low, high = np.where(goal.cells, goal.low, -FAR), np.where(goal.cells, goal.high, FAR)
    fixed = goal.values.astype(np.int64).copy()
    np.subtract.at(fixed, leader[rows], weights[rows])
    if (fixed > high).any():
        return True
    free = np.zeros(cluster.size, dtype=bool)
    free[rows] = True
    chosen = free[options.partitions]
    partitions, to = options.partitions[chosen], options.to[chosen]
    fits = weights[partitions] <= (high - fixed)[to]
    placed = np.zeros(cluster.size, dtype=bool)
    placed[partitions[fits]] = True
    if not placed[rows].all():
        return True
    most = fixed
    np.add.at(most, to[fits], weights[partitions[fits]])
    return bool((most < low).any())


class _Cells:
    """Cells that have a range, and what leaderships weigh there.

    Attributes:
        values: What they have now, flat. low: flat. high: flat.
        weight: Of the leadership of a partition. P.
        first: Place of the partition's cell on the first broker. P.
        price: Of being out of range by one.
    """

    def __init__(self, values: Any, low: Any, high: Any, weight: Any, first: Any, price: float) -> None:
        self.values: NDArray[np.int64] = values.astype(np.int64).ravel()
        self.low: NDArray[np.int64] = low.astype(np.int64).ravel()
        self.high: NDArray[np.int64] = high.astype(np.int64).ravel()
        self.weight, self.first, self.price = weight, first, price

    def excess(self) -> int:
        return int(self._beyond(self.values, slice(None)).sum())

    def _beyond(self, values: Any, places: Any) -> Any:
        return np.maximum(values - self.high[places], 0) + np.maximum(self.low[places] - values, 0)

    def changes(self, partitions: Any, sources: Any, to: Any) -> tuple[Any, Any]:
        """How much further out of range the cells of both brokers are after each of these switches; n each."""
        first, weight = self.first[partitions], self.weight[partitions]
        here, there = first + sources, first + to
        values, beyond = self.values, self._beyond(self.values, slice(None))
        gives = self._beyond(values[here] - weight, here) - beyond[here]
        return gives, self._beyond(values[there] + weight, there) - beyond[there]

    def switch(self, partition: int, source: int, to: int) -> None:
        first, weight = self.first[partition], self.weight[partition]
        self.values[first + source] -= weight
        self.values[first + to] += weight


class _Rearrangement:
    def __init__(self, search: Search, goal: BrokerGoal, options: Leaderships) -> None:
        self._search = search
        cluster = search.cluster
        self._began = cluster.leader.astype(np.int64)
        self._leader = self._began.copy()
        self._partitions, self._to = options.partitions, options.to
        self._cells = _cells(search, goal)
        self._resting = np.zeros(cluster.size, dtype=np.int64)

    def find(self) -> list[SwitchLeader]:
        """The best end; empty: none is better than the beginning."""
        search, own, limits = self._search, self._cells[0], self._cells[1:]
        best, best_leader = own.excess(), self._began
        factor, streak, was_kept = 1.0, 0, True
        step = stalled = 0
        nearest = own.excess() * own.price
        while best and stalled < STALLED_MAX:
            if step % ROUND == 0:
                self._return(best_leader)
                factor, streak = 1.0, 0
            search.look()
            step, stalled = step + 1, stalled + 1
            if step > TRIAL and nearest > NEAR:
                break
            if not self._step(step, factor):
                continue
            kept = not any(cells.excess() for cells in limits)
            if step <= TRIAL:
                nearest = min(nearest, sum(cells.excess() * cells.price for cells in self._cells))
            if kept and own.excess() < best:
                best, best_leader, stalled = own.excess(), self._leader.copy(), 0
            streak, was_kept = streak + 1 if kept is was_kept else 1, kept
            if streak > PATIENCE:
                factor, streak = min(max(factor / FACTOR if kept else factor * FACTOR, FACTORS[0]), FACTORS[1]), 0
        rows = np.nonzero(best_leader != self._began)[0]
        return [SwitchLeader(int(row), int(best_leader[row])) for row in rows]

    def _return(self, leader: NDArray[np.int64]) -> None:
        for row in np.nonzero(self._leader != leader)[0].tolist():
            self._switch(row, int(leader[row]))
        self._resting[:] = 0

    def _step(self, step: int, factor: float) -> bool:
        """Make the best switch that helps a cell; whether there was one."""
        partitions, to = self._partitions, self._to
        sources = self._leader[partitions]
        cost = np.zeros(len(partitions))
        helps = np.zeros(len(partitions), dtype=bool)
        for number, cells in enumerate(self._cells):
            gives, takes = cells.changes(partitions, sources, to)
            cost += (gives + takes) * (cells.price * factor if number else cells.price)
            helps |= (gives < 0) | (takes < 0)
        places = np.nonzero(helps & (sources != to) & (self._resting[partitions] <= step))[0]
        if not len(places):
            return False
        at = int(places[cost[places].argmin()])
        partition = int(partitions[at])
        self._switch(partition, int(to[at]))
        least, more = RESTS[(step - 1) // ROUND % len(RESTS)]
        self._resting[partition] = step + least + (step * SPREAD >> 8) % more
        return True

    def _switch(self, partition: int, to: int) -> None:
        for cells in self._cells:
            cells.switch(partition, int(self._leader[partition]), to)
        self._leader[partition] = to


def _cells(search: Search, goal: BrokerGoal) -> list[_Cells]:
    """Cells of the goal, and then those that limits of earlier goals are for: these may be as far out as they are."""
    cluster, limits = search.cluster, search.limits
    homes = max(1, int(np.count_nonzero(goal.cells)))
    nothing = np.zeros(cluster.size, dtype=np.int64)
    weights = cluster.as_leader - cluster.as_follower

    def price(row: int) -> float:
        return homes / max(1, int(cluster.sums[row].sum()))

    own = int(goal.measure)
    low, high = np.where(goal.cells, goal.low, -FAR), np.where(goal.cells, goal.high, FAR)
    cells = [_Cells(cluster.sums[own], low, high, weights[own], nothing, price(own))]
    bounds = [(row, limits.low[row], limits.high[row]) for row in limits.bound]
    if goal.hard:
        bounds.append((own, np.full_like(low, -FAR), high))
    for row, low, high in bounds:
        if weights[row].any():
            sums = cluster.sums[row]
            cells.append(_Cells(sums, np.minimum(low, sums), np.maximum(high, sums), weights[row], nothing, price(row)))
    each, first = nothing + 1, cluster.topic_of.astype(np.int64) * len(cluster.broker_ids)
    for range_ in limits.topics:
        if range_.leaders:
            counts = cluster.topic_leaders
            low = np.where(range_.cells, np.minimum(range_.low, counts), -FAR)
            high = np.where(range_.cells, np.maximum(range_.high, counts), FAR)
            cells.append(_Cells(counts, low, high, each, first, TOPIC_PRICE))
    return cells
