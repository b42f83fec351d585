"""Chains: steps that are only good together, such as two leaderships exchanged, or one passed on over a third broker.

A chain is looked for from a broker out of its range: it gives a leadership (or a replica) to a broker, which may give another
on, and so on; the chain may end where it began. Only what remains of all its steps counts for limits of earlier goals, so that
brokers in the middle may be full. The shortest chain that helps is made; a bounded number of the most promising is followed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shedders.kafka_rebalance.planning.virtual_cluster import LoadColumn, MoveReplica, SwitchLeader

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shedders.kafka_rebalance.goals.goal import BrokerGoal
    from shedders.kafka_rebalance.planning.search import Search
    from shedders.kafka_rebalance.planning.virtual_cluster import Move

LENGTH_MAX: Final = 4
FOLLOWED: Final = 16
"""Chains that are followed from one length to the next, the most promising first."""
FOLLOWED_FEW: Final = 32
"""The same in small clusters."""
FEW_PARTITIONS: Final = 400
WORK_MAX: Final = 60_000
"""Most steps that are looked at for one chain; in large clusters fewer chains are followed."""
PIECES_MAX: Final = 40
"""Most replicas of a broker that are looked at, the smallest first."""
GIVERS_MAX: Final = 6
"""Most brokers that are asked for a replica, those with most to spare first."""


class _Steps(NamedTuple):
    """Possible next steps. n each.

    Attributes:
        partitions: Whose leadership, or replica, goes.
        leads: Whether leadership goes.
        moves: Whether a replica goes.
    """

    partitions: NDArray[np.int64]
    sources: NDArray[np.int64]
    to: NDArray[np.int64]
    leads: NDArray[np.bool_]
    moves: bool

    def of(self, rows: Any) -> _Steps:
        return _Steps(self.partitions[rows], self.sources[rows], self.to[rows], self.leads[rows], self.moves)


class _Chain(NamedTuple):
    """A chain so far.

    Attributes:
        end: Broker where the next step begins (or, of a chain that is followed backwards, ends).
        change: What brokers get by each watched measure. M x B.
        counts: What topics on brokers get, by the number of their range.
        heaviest: Largest weight of a step.
    """

    end: int
    steps: tuple[tuple[int, int, int], ...]
    change: NDArray[np.int64]
    counts: dict[tuple[int, int, int], int]
    heaviest: int = 0


def pass_on(search: Search, goal: BrokerGoal, broker: int) -> bool:
    """Exchange leaderships, or pass them on, so that a broker out of its range comes nearer to it; copies nothing.

    Trials of other results are many and make no chains.
    """
    if search.trail is not None:
        return False
    return _find(search, goal, broker, moves=False)


def move_on(search: Search, goal: BrokerGoal, broker: int) -> bool:
    """Move replicas in a chain, so that a broker out of its range comes nearer to it; not in trials."""
    if search.bounded or search.trail is not None:
        return False
    return _find(search, goal, broker, moves=True)


def _find(search: Search, goal: BrokerGoal, broker: int, *, moves: bool) -> bool:
    """Look for a chain, unless nothing has changed since there was none."""
    key = goal.name, broker, moves
    if search.dead_ends.get(key) == search.steps_made:
        return False
    chain = _Finder(search, goal, moves=moves).find(broker)
    if not chain:
        search.dead_ends[key] = search.steps_made
    return chain


class _Finder:
    def __init__(self, search: Search, goal: BrokerGoal, *, moves: bool) -> None:
        self._search, self._goal, self._moves = search, goal, moves
        self._rows = [int(goal.measure), *(row for row in search.limits.bound if row != goal.measure)]
        self._own_is_bound = int(goal.measure) in search.limits.bound
        sums, limits = search.cluster.sums[self._rows], search.limits
        self._sums = sums
        self._most = np.maximum(limits.high[self._rows], sums)
        self._least = np.minimum(limits.low[self._rows], sums)
        self._left = WORK_MAX
        self._followed = FOLLOWED_FEW if search.cluster.size <= FEW_PARTITIONS else FOLLOWED
        state = goal.name, moves, search.steps_made
        if search.chain_steps is None or search.chain_steps[0] != state:
            search.chain_steps = state, {}
        self._known = search.chain_steps[1]

    def find(self, broker: int) -> bool:
        goal, search = self._goal, self._search
        above = bool(goal.values[broker] > goal.high[broker])
        empty = np.zeros((len(self._rows), len(goal.cells)), dtype=np.int64)
        chains = [_Chain(broker, (), empty, {})]
        length_max = 2 if self._moves else LENGTH_MAX
        for length in range(1, length_max + 1):
            best: tuple[Any, ...] | None = None
            grown: list[tuple[int, int, int, _Chain, _Steps, int]] = []
            for number, chain in enumerate(chains):
                search.look()
                for steps in self._next(chain, above=above):
                    self._left -= len(steps.partitions)
                    gain, weight, left = self._judge(chain, steps)
                    place = None if length == 1 else self._best(chain, steps, gain, weight)
                    if place is not None and (best is None or gain[place] > best[0]):
                        best = int(gain[place]), chain, steps, place
                    if length < length_max:
                        rows = _least(2 * self._followed, left, steps)
                        grown += [(int(left[row]), number, row, chain, steps, int(weight[row])) for row in rows]
            if best is not None:
                self._make(*best[1:])
                return True
            if self._left <= 0:
                return False
            grown.sort(key=lambda entry: entry[:3])
            chains = [
                self._grow(chain, steps, row, weight, above=above)
                for _, _, row, chain, steps, weight in grown[: self._followed]
            ]
        return False

    def _best(self, chain: _Chain, steps: _Steps, gain: Any, weight: Any) -> int | None:
        """The step that makes this a chain to be made, with the largest gain."""
        good = gain > 0
        if self._moves:
            good &= 2 * gain >= np.maximum(weight, chain.heaviest)
        rows = np.nonzero(good)[0]
        if not len(rows):
            return None
        rows = rows[self._allowed(chain, steps.of(rows))]
        order = np.lexsort((steps.to[rows], steps.partitions[rows], -gain[rows]))
        return int(rows[order[0]]) if len(rows) else None

    # --- next steps --------------------------------------------------------------------------

    def _next(self, chain: _Chain, *, above: bool) -> Iterator[_Steps]:
        """Steps that may follow, of partitions that have none in the chain."""
        known = self._known.get((chain.end, above))
        if known is None:
            known = []
            if self._goal.by_leader:
                known.append(self._switches_from(chain.end) if above else self._switches_to(chain.end))
            if self._moves:
                known.append(self._moves_from(chain.end) if above else self._moves_to(chain.end))
            self._known[chain.end, above] = known
        for steps in known:
            fresh = np.ones(len(steps.partitions), dtype=bool)
            for partition, _, _ in chain.steps:
                fresh &= steps.partitions != partition
            yield steps if fresh.all() else steps.of(np.nonzero(fresh)[0])

    def _switches_from(self, broker: int) -> _Steps:
        cluster, scope = self._search.cluster, self._search.scope
        held = cluster.on_broker(broker)
        led = held[cluster.leader[held] == broker]
        led = led[scope.may_switch(led)]
        targets = cluster.replicas[led]
        return self._switching(np.repeat(led, targets.shape[1]), targets.ravel())

    def _switches_to(self, broker: int) -> _Steps:
        cluster, scope = self._search.cluster, self._search.scope
        held = cluster.on_broker(broker)
        held = held[cluster.leader[held] != broker]
        held = held[scope.may_switch(held)]
        return self._switching(held, np.full(len(held), broker))

    def _switching(self, partitions: Any, to: Any) -> _Steps:
        cluster, scope = self._search.cluster, self._search.scope
        fits = (to >= 0) & (to != cluster.leader[partitions])
        partitions, to = partitions[fits], to[fits]
        fits = scope.may_lead(partitions, to)
        partitions, to = partitions[fits].astype(np.int64), to[fits].astype(np.int64)
        sources = cluster.leader[partitions].astype(np.int64)
        return _Steps(partitions, sources, to, np.ones(len(partitions), dtype=bool), moves=False)

    def _moves_from(self, broker: int) -> _Steps:
        takers = np.nonzero(self._search.scope.takers)[0]
        pieces = self._pieces(broker)
        partitions, to = np.repeat(pieces, len(takers)), np.tile(takers, len(pieces))
        return self._moving(partitions, np.full(len(partitions), broker), to)

    def _moves_to(self, broker: int) -> _Steps:
        if not self._search.scope.takers[broker]:
            none = np.zeros(0, dtype=np.int64)
            return _Steps(none, none, none, none.astype(bool), moves=True)
        spare = self._goal.spare()
        spare[broker] = 0
        givers = np.argsort(-spare, kind="stable")[:GIVERS_MAX].tolist()
        pieces = [self._pieces(giver) for giver in givers]
        partitions = np.concatenate(pieces)
        sources = np.repeat(np.array(givers), [len(part) for part in pieces])
        return self._moving(partitions, sources, np.full(len(partitions), broker))

    def _pieces(self, broker: int) -> NDArray[np.int64]:
        """Replicas of all weights, from the lightest to the heaviest."""
        return self._search.of_broker("pieces", broker, self._goal.measure, lambda: self._choose_pieces(broker))

    def _choose_pieces(self, broker: int) -> NDArray[np.int64]:
        held, weight = self._search.candidates(self._goal.measure, broker)
        order = np.lexsort((held, self._search.cluster.load[held, LoadColumn.DISK], weight))
        return held[order[:: max(1, len(order) // PIECES_MAX)]]

    def _moving(self, partitions: Any, sources: Any, to: Any) -> _Steps:
        cluster, scope = self._search.cluster, self._search.scope
        leads = cluster.leader[partitions] == sources
        fits = self._search.fits(partitions, sources, to, self._search.limits) & (~leads | scope.leaders[to])
        return _Steps(partitions[fits], sources[fits], to[fits], leads[fits], moves=True)

    # --- judging -----------------------------------------------------------------------------

    def _weights(self, steps: _Steps, row: int) -> NDArray[np.int64]:
        cluster = self._search.cluster
        if steps.moves:
            return cluster.weight(steps.partitions, steps.leads, row)
        weights: NDArray[np.int64] = (
            cluster.as_leader[row][steps.partitions] - cluster.as_follower[row][steps.partitions]
        )
        return weights

    def _judge(self, chain: _Chain, steps: _Steps) -> tuple[Any, Any, Any]:
        """How much less the excess is with each step, what it weighs, and how far its two brokers then are from their ranges."""
        goal = self._goal
        values = goal.values + chain.change[0]
        before = int(np.where(goal.cells, goal.distance(goal.values), 0).sum())
        now = np.where(goal.cells, goal.distance(values), 0)
        weight = self._weights(steps, self._rows[0])
        source, to = steps.sources, steps.to
        after = np.where(goal.cells[source], goal.distance(values[source] - weight, source), 0)
        after += np.where(goal.cells[to], goal.distance(values[to] + weight, to), 0)
        left = int(now.sum()) - now[source] - now[to] + after
        return before - left, weight, left

    def _allowed(self, chain: _Chain, steps: _Steps) -> NDArray[np.int64]:
        """Steps, as places in the arrays, with which the chain may end: it keeps the limits of earlier goals.

        Mostly the chain so far breaks a limit that few steps mend: the others are left out first.
        """
        rows: NDArray[np.int64] = np.arange(len(steps.partitions))
        bounds: list[tuple[int, Any, Any, Any]] = []
        for at, row in enumerate(self._rows):
            if not at and not self._own_is_bound and not self._goal.hard:
                continue
            now, most, least = self._sums[at] + chain.change[at], self._most[at], self._least[at]
            if not at and self._goal.hard:
                most = np.minimum(most, np.maximum(self._goal.high, self._sums[at]))
            bounds.append((row, now, most, least))
            for broker in np.nonzero((now > most) | (now < least))[0].tolist():
                rows = rows[(steps.sources[rows] == broker) | (steps.to[rows] == broker)]
        rows = self._mending(chain, steps, rows)
        for row, now, most, least in bounds:
            if not len(rows):
                break
            left = steps.of(rows)
            weight, allowed = self._weights(left, row), np.ones(len(rows), dtype=bool)
            for brokers, sign in ((left.sources, -1), (left.to, 1)):
                then = now[brokers] + sign * weight
                allowed &= (then <= most[brokers]) & (then >= least[brokers])
            rows = rows[allowed]
        return self._allowed_by_topic(chain, steps, rows)

    def _mending(self, chain: _Chain, steps: _Steps, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of these steps that mend each range of a topic that the chain so far breaks."""
        cluster = self._search.cluster
        for number, topic, broker, more in self._counts(chain):
            range_ = self._search.limits.topics[number]
            began = int((cluster.topic_leaders if range_.leaders else cluster.topic_replicas)[topic, broker])
            most, least = max(int(range_.high[topic, broker]), began), min(int(range_.low[topic, broker]), began)
            if range_.cells[broker] and not least <= began + more <= most:
                counted = steps.leads[rows] if range_.leaders else steps.moves
                at = (steps.sources[rows] == broker) | (steps.to[rows] == broker)
                rows = rows[counted & at & (cluster.topic_of[steps.partitions[rows]] == topic)]
        return rows

    def _counts(self, chain: _Chain) -> list[tuple[int, int, int, int]]:
        """What topics on brokers get: the number of the range, the topic, the broker, and how many."""
        return [(*cell, more) for cell, more in chain.counts.items() if more]

    def _allowed_by_topic(self, chain: _Chain, steps: _Steps, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of these steps that keep the ranges of topics on their two brokers."""
        cluster = self._search.cluster
        for number, range_ in enumerate(self._search.limits.topics):
            table = cluster.topic_leaders if range_.leaders else cluster.topic_replicas
            for all_brokers, sign in ((steps.sources, -1), (steps.to, 1)):
                if not len(rows):
                    return rows
                brokers, topics = all_brokers[rows], cluster.topic_of[steps.partitions[rows]]
                counted = steps.leads[rows] if range_.leaders else np.full(len(rows), steps.moves)
                began = table[topics, brokers].astype(np.int64)
                then = began + sign
                for at, topic, broker, more in self._counts(chain):
                    if at == number:
                        then[(topics == topic) & (brokers == broker)] += more
                low, high = range_.low[topics, brokers], range_.high[topics, brokers]
                kept = (then <= np.maximum(high, began)) & (then >= np.minimum(low, began))
                rows = rows[kept | ~counted | ~range_.cells[brokers]]
        return rows

    # --- growing and making ------------------------------------------------------------------

    def _grow(self, chain: _Chain, steps: _Steps, row: int, weight: int, *, above: bool) -> _Chain:
        cluster = self._search.cluster
        partition, source, to = int(steps.partitions[row]), int(steps.sources[row]), int(steps.to[row])
        change = chain.change.copy()
        for at, measure in enumerate(self._rows):
            own = int(self._weights(steps.of([row]), measure)[0])
            change[at, source] -= own
            change[at, to] += own
        counts = dict(chain.counts)
        topic = int(cluster.topic_of[partition])
        for number, range_ in enumerate(self._search.limits.topics):
            if bool(steps.leads[row]) if range_.leaders else steps.moves:
                for broker, sign in ((source, -1), (to, 1)):
                    cell = number, topic, broker
                    counts[cell] = counts.get(cell, 0) + sign
        end = to if above else source
        return _Chain(end, (*chain.steps, (partition, source, to)), change, counts, max(weight, chain.heaviest))

    def _make(self, chain: _Chain, steps: _Steps, row: int) -> None:
        last = int(steps.partitions[row]), int(steps.sources[row]), int(steps.to[row])
        self._search.make(*_moves_of(self._search, [*chain.steps, last]))


def _least(count: int, left: NDArray[np.int64], steps: _Steps) -> list[int]:
    """Places of the steps with the least left, in order."""
    rows = np.arange(len(left))
    if len(left) > count:  # few are sorted, as all would take half of the time of a search
        rows = np.nonzero(left <= np.partition(left, count - 1)[count - 1])[0]
    order: list[int] = rows[np.lexsort((steps.to[rows], steps.partitions[rows], left[rows]))][:count].tolist()
    return order


class Links(NamedTuple):
    """Steps from broker to broker that chains of one topic can be made of. n each.

    Attributes:
        partitions: Whose leadership, or replica, goes; to a broker that holds one, the leadership.
        sources: From where.
        to: Where to.
    """

    partitions: NDArray[np.int64]
    sources: NDArray[np.int32]
    to: NDArray[np.int64]

    def of(self, rows: Any) -> Links:
        return Links(self.partitions[rows], self.sources[rows], self.to[rows])


ATTEMPTS_MAX: Final = 8
"""Most chains of a topic that are tried, as earlier goals may forbid the first ones."""


def pass_along(
    search: Search, links: Links, begins: NDArray[np.bool_], ends: NDArray[np.bool_], *, length_max: int = 64
) -> bool:
    """Make the shortest chain of a topic that earlier goals allow, so that one broker has one less and another one more.

    Args:
        begins: Brokers that may give one. B.
        ends: Brokers that may take one. B.
    """
    search.look()
    open_ = np.ones(len(links.partitions), dtype=bool)
    for _ in range(ATTEMPTS_MAX):
        chosen = _shortest(links.of(open_), begins, ends, length_max)
        if not chosen:
            return False
        if _kept(search, chosen):
            search.make(*_moves_of(search, chosen))
            return True
        partition, source, to = chosen[0]
        open_ &= ~((links.partitions == partition) & (links.sources == source) & (links.to == to))
    return False


def _shortest(
    links: Links, begins: NDArray[np.bool_], ends: NDArray[np.bool_], length_max: int
) -> list[tuple[int, int, int]]:
    """Steps of a shortest chain with another partition in each; none: there is no chain."""
    near = np.zeros((len(begins), len(begins)), dtype=bool)
    near[links.sources, links.to] = True
    came_from = np.full(len(begins), -1)
    seen, front = begins.copy(), np.nonzero(begins)[0]
    for _ in range(length_max):
        reached = near[front].any(axis=0) & ~seen
        fresh = np.nonzero(reached)[0]
        if not len(fresh):
            break
        came_from[fresh] = front[near[front][:, fresh].argmax(axis=0)]
        seen |= reached
        front = fresh
        last = fresh[ends[fresh]]
        if len(last):
            return _steps_to(links, came_from, int(last[0]))
    return []


def _steps_to(links: Links, came_from: Any, last: int) -> list[tuple[int, int, int]]:
    steps: list[tuple[int, int, int]] = []
    used: set[int] = set()
    to = last
    while came_from[to] >= 0:
        source = int(came_from[to])
        fitting = links.partitions[(links.sources == source) & (links.to == to)].tolist()
        partition = next((fit for fit in fitting if fit not in used), None)
        if partition is None:
            return []
        used.add(partition)
        steps.append((partition, source, to))
        to = source
    return steps[::-1]


def _moves_of(search: Search, steps: list[tuple[int, int, int]]) -> list[Move]:
    moves: list[Move] = []
    for partition, source, to in steps:
        held = search.cluster.holders(partition)
        moves.append(SwitchLeader(partition, to) if to in held else MoveReplica(partition, held.index(source), to))
    return moves


def _kept(search: Search, steps: list[tuple[int, int, int]]) -> bool:
    """Whether what remains of all steps of a topic keeps the limits of earlier goals."""
    cluster, limits = search.cluster, search.limits
    topic = int(cluster.topic_of[steps[0][0]])
    sums: dict[int, dict[int, int]] = {row: {} for row in limits.bound}
    leaders: dict[int, int] = {}
    replicas: dict[int, int] = {}
    for partition, source, to in steps:
        switch, leads = to in cluster.holders(partition), bool(cluster.leader[partition] == source)
        for row, change in sums.items():
            weight = int((cluster.as_leader if leads else cluster.as_follower)[row, partition])
            weight -= int(cluster.as_follower[row, partition]) if switch else 0
            change[source], change[to] = change.get(source, 0) - weight, change.get(to, 0) + weight
        for counts, counted in ((leaders, leads), (replicas, not switch)):
            if counted:
                counts[source], counts[to] = counts.get(source, 0) - 1, counts.get(to, 0) + 1
    for row, change in sums.items():
        for broker, more in change.items():
            now = int(cluster.sums[row, broker])
            if not min(now, int(limits.low[row, broker])) <= now + more <= max(now, int(limits.high[row, broker])):
                return False
    for range_ in limits.topics:
        table = cluster.topic_leaders if range_.leaders else cluster.topic_replicas
        for broker, more in (leaders if range_.leaders else replicas).items():
            now = int(table[topic, broker])
            least, most = min(now, int(range_.low[topic, broker])), max(now, int(range_.high[topic, broker]))
            if range_.cells[broker] and not least <= now + more <= most:
                return False
    return True
