"""Goals of topics: how many replicas, or leaders, of each topic a broker has is to be even."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shedders.kafka_rebalance.goals.goal import Goal, range_near, whole_range
from shedders.kafka_rebalance.planning.chains import Links, pass_along
from shedders.kafka_rebalance.planning.limits import FAR, TopicRange
from shedders.kafka_rebalance.planning.reachable import RackMeans
from shedders.kafka_rebalance.planning.search import WITNESS_REPLICAS_MAX
from shedders.kafka_rebalance.planning.virtual_cluster import LoadColumn
from shedders.model.amounts import count

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shedders.kafka_rebalance.planning.limits import GoalLimits
    from shedders.kafka_rebalance.planning.search import Search


CHUNK: Final = 128
LINKS_MAX: Final = 200_000
"""Most replicas x brokers of a topic for which chains of moves are looked for."""
WIDEST: Final = 1_000.0
"""Largest margin of a topic, in means."""


class _Direction(NamedTuple):
    """From where to where a topic is levelled, and until when.

    Attributes:
        sources: B. takers: B.
        floor: A broker that counts gives while it has more. B.
        ceiling: A broker takes while it has less. B.
    """

    sources: NDArray[np.bool_]
    takers: NDArray[np.bool_]
    floor: NDArray[np.int64]
    ceiling: NDArray[np.int64]


class TopicGoal(Goal):
    """A goal whose cells are topics on brokers.

    Attributes:
        low: T x B. high: T x B. cells: brokers that count, B.
    """

    share_of = "of the topic's mean, up and down"

    totals: NDArray[np.int64]
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    cells: NDArray[np.bool_]

    @property
    def counts(self) -> NDArray[np.int32]:
        """What is counted. T x B."""
        return self.cluster.topic_leaders if self.led else self.cluster.topic_replicas

    def prepare(self) -> str | None:
        scope, cluster = self.scope, self.cluster
        self.cells = scope.leaders if self.led else scope.homes
        totals = self.counts[:, scope.homes].sum(axis=1, dtype=np.int64)
        rows, brokers = scope.coming()
        if self.led:
            rows = rows[cluster.leader[rows] == brokers]
        np.add.at(totals, cluster.topic_of[rows], 1)
        if not self.led:
            np.add.at(totals, cluster.topic_of, scope.extra)
        self.totals = totals
        low = np.full(len(totals), -FAR, dtype=np.int64)
        high = np.full(len(totals), FAR, dtype=np.int64)
        part = Fraction(1, int(np.count_nonzero(self.cells)))
        ranges = {int(total): whole_range(int(total), part, self.share) for total in np.unique(totals)}
        for topic in np.nonzero(scope.free_topics)[0].tolist():
            low[topic], high[topic] = ranges[int(totals[topic])]
        shape = len(totals), len(cluster.broker_ids)
        self.low, self.high = np.broadcast_to(low[:, None], shape), np.broadcast_to(high[:, None], shape)
        if not self.led and scope.spread is not None:
            self._heed_racks()
        return None

    def _heed_racks(self) -> None:
        scope = self.scope
        racks = RackMeans(scope)
        if racks.even:
            return
        low, high = self.low.copy(), self.high.copy()
        strayed: set[int] = set()
        for topic in np.nonzero(scope.free_topics)[0].tolist():
            within = int(low[topic, 0]), int(high[topic, 0])
            for brokers, mean in racks.of_topic(topic):
                near = range_near(within, mean, self.share)
                if near != within:
                    low[topic, brokers], high[topic, brokers] = near
                    strayed.add(topic)
        if strayed:
            self.low, self.high = low, high
            self.remarks.append(
                f"{self.name}: of {count(len(strayed), 'topic')} racks of different size cannot hold equally many per broker; "
                "the ranges there are around the nearest means that can be reached"
            )

    def _distance(self, topics: Any = slice(None)) -> NDArray[np.int64]:
        counts = self.counts[topics]
        distance: NDArray[np.int64] = np.maximum(counts - self.high[topics], 0)
        distance += np.maximum(self.low[topics] - counts, 0)
        distance[:, ~self.cells] = 0
        return distance

    def measured(self) -> tuple[Any, Any]:
        free = self.scope.free_topics
        values = self.counts[free][:, self.cells]
        return values.ravel(), self._distance(free)[:, self.cells].ravel()

    def limit(self, limits: GoalLimits) -> None:
        limits.topics.append(TopicRange(self.led, self.low, self.high, self.cells))

    def guard(self, limits: GoalLimits, margin: float) -> None:
        more = (self.totals * min(margin, WIDEST) // max(1, int(np.count_nonzero(self.cells)))).astype(np.int64)[
            :, None
        ]
        limits.topics.append(TopicRange(self.led, self.low - more, self.high + more, self.cells))

    def improve(self, search: Search) -> None:
        before = -1
        while search.steps_made != before:
            before = search.steps_made
            topics = np.nonzero(self._distance().any(axis=1))[0].tolist()
            for number, topic in enumerate(topics):
                search.advance(number, len(topics))
                while self._step(search, topic):
                    pass

    def _step(self, search: Search, topic: int) -> bool:
        """Moves in a topic: from brokers above to those below, else off those above, else onto those below."""
        counts, low, high = self.counts[topic], self.low[topic], self.high[topic]
        over, under = self.cells & (counts > high), self.cells & (counts < low)
        if not over.any() and not under.any():
            return False
        givers = np.where(self.cells, counts > low, counts > 0)
        takers = self.cells & (counts < high)
        directions = [
            _Direction(over, under, high, low),
            _Direction(over, takers, high, high),
            _Direction(givers, under, low, low),
        ]
        directions = [direction for direction in directions if direction.sources.any() and direction.takers.any()]
        methods = [self._switch, self._pass_on] * self.led + [self._move, self._move_on] * self.moves_data
        return any(move(search, topic, direction) for move in methods for direction in directions)

    def _still_helps(self, topic: int, direction: _Direction, source: int, to: int) -> bool:
        counts = self.counts[topic]
        here = int(counts[source]) > (int(direction.floor[source]) if self.cells[source] else 0)
        return here and int(counts[to]) < int(direction.ceiling[to])

    def _rows(self, topic: int) -> NDArray[np.int64]:
        first = self.cluster.first_of
        rows = np.arange(first[topic], first[topic + 1])
        return rows[~self.scope.frozen[rows]]

    def _switch(self, search: Search, topic: int, direction: _Direction) -> bool:
        cluster, sources, to = self.cluster, direction.sources, direction.takers
        rows = self._rows(topic)
        rows = rows[search.scope.may_switch(rows)]
        rows = rows[sources[cluster.leader[rows]]]
        held = cluster.replicas[rows]
        fits = (held >= 0) & to[held]
        at, places = np.nonzero(fits)
        partitions, brokers = rows[at], held[at, places]
        if not len(partitions):
            return False
        allowed = search.switches(partitions, brokers)
        partitions, brokers = partitions[allowed], brokers[allowed]
        counts = self.counts[topic]
        order = np.lexsort((partitions, brokers, counts[brokers], -counts[cluster.leader[partitions]]))
        moved = False
        for place in order.tolist():
            partition, broker = int(partitions[place]), int(brokers[place])
            leader = int(cluster.leader[partition])
            if leader == broker or not sources[leader] or not self._still_helps(topic, direction, leader, broker):
                continue
            if not moved or search.limits.switch(partition, broker):
                search.switch(partition, broker)
                moved = True
        return moved

    def _pass_on(self, search: Search, topic: int, direction: _Direction) -> bool:
        """Pass leaderships on over brokers in the middle, which lead as many as before."""
        cluster, rows = self.cluster, self._rows(topic)
        rows = rows[search.scope.may_switch(rows)]
        partitions, to = np.repeat(rows, cluster.replicas.shape[1]), cluster.replicas[rows].ravel()
        fits = (to >= 0) & (to != cluster.leader[partitions])
        partitions, to = partitions[fits], to[fits]
        fits = search.scope.may_lead(partitions, to)
        partitions, to = partitions[fits], to[fits]
        return pass_along(search, Links(partitions, cluster.leader[partitions], to), *self._ends(topic, direction))

    def _move_on(self, search: Search, topic: int, direction: _Direction) -> bool:
        """Move replicas in a chain, where brokers in the middle hold as many as before."""
        cluster, rows, takers = self.cluster, self._rows(topic), np.nonzero(search.scope.takers)[0]
        if search.bounded or rows.size * cluster.replicas.shape[1] * takers.size > LINKS_MAX:
            return False
        at, places = np.nonzero(cluster.replicas[rows] >= 0)
        partitions, sources = rows[at], cluster.replicas[rows[at], places]
        if self.led:
            leads = sources == cluster.leader[partitions]
            partitions, sources = partitions[leads], sources[leads]
        fits = search.scope.movable(partitions, sources)
        partitions, sources = partitions[fits], sources[fits]
        allowed = ~(cluster.replicas[partitions][:, :, None] == takers).any(axis=1)
        if not search.scope.all_lead:
            allowed &= (cluster.leader[partitions] != sources)[:, None] | search.scope.leaders[takers]
        if search.scope.lost is not None:
            allowed &= ~(search.scope.lost[partitions][:, :, None] == takers).any(axis=1)
        for rule in search.limits.rules:
            allowed &= rule.moves(partitions, sources, takers)
        at, to = np.nonzero(allowed)
        links = Links(partitions[at], sources[at], takers[to])
        return pass_along(search, links, *self._ends(topic, direction), length_max=2)

    def _ends(self, topic: int, direction: _Direction) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Brokers where a chain may begin, and where it may end."""
        counts = self.counts[topic]
        gives = direction.sources & (counts > np.where(self.cells, direction.floor, 0))
        return gives, direction.takers & (counts < direction.ceiling) & ~gives

    def _move(self, search: Search, topic: int, direction: _Direction) -> bool:
        cluster, sources = self.cluster, direction.sources
        rows = self._rows(topic)
        held = cluster.replicas[rows]
        fits = (held >= 0) & sources[held]
        if self.led:
            fits &= held == cluster.leader[rows, None]
        at, places = np.nonzero(fits)
        partitions, brokers = rows[at], held[at, places]
        fits = search.scope.movable(partitions, brokers)
        partitions, brokers = partitions[fits], brokers[fits]
        fullness = search.fullness()
        size = cluster.load[partitions, LoadColumn.DISK]
        copied = np.where(search.scope.placed(partitions, brokers), 0, size)
        order = np.lexsort((partitions, brokers, -fullness[brokers], -size, copied))
        partitions, brokers = partitions[order], brokers[order]
        takers = np.nonzero(direction.takers & search.scope.takers)[0]
        chunks = [slice(begin, begin + CHUNK) for begin in range(0, len(partitions), CHUNK)]
        return any(
            self._move_some(search, topic, direction, partitions[part], brokers[part], takers) for part in chunks
        )

    def _move_some(
        self, search: Search, topic: int, direction: _Direction, partitions: Any, sources: Any, takers: Any
    ) -> bool:
        """Move of these replicas, in order, what may be moved and still helps; whether one was moved."""
        allowed = search.moves(partitions, sources, takers)
        rows = np.nonzero(allowed.any(axis=1))[0]
        counts, full = self.counts[topic], search.cluster.sums[search.full_by]
        spare = np.where(self.cells, counts - direction.floor, counts).tolist()
        open_ = np.ones(len(takers), dtype=bool)
        moved = False
        for row, partition, source in zip(
            rows.tolist(), partitions[rows].tolist(), sources[rows].tolist(), strict=True
        ):
            if spare[source] <= 0:
                continue
            choice = takers[allowed[row] & open_]
            if not len(choice):
                continue
            broker = int(choice[full[choice].argmin()])
            if moved and not search.can_move(partition, source, broker):
                continue
            search.move(partition, source, broker)
            moved = True
            spare[source] -= 1
            if counts[broker] >= direction.ceiling[broker]:
                open_[takers == broker] = False
                if not open_.any():
                    break
        return moved

    def witness(self, search: Search) -> str:
        beyond = self._distance()
        topic, broker = map(int, np.unravel_index(int(beyond.argmax()), beyond.shape))
        value, low, high = (int(of[topic, broker]) for of in (self.counts, self.low, self.high))
        text = (
            f"broker {self.cluster.broker_ids[broker]} has {value} {self.unit} of topic {self.cluster.topics[topic]}, "
            f"the range is {low} to {high}"
        )
        return f"{text}; {self._blocked(search, topic, broker)}"

    def _blocked(self, search: Search, topic: int, broker: int) -> str:
        """Why nothing helps a topic on a broker that is out of its range."""
        cluster, scope = search.cluster, search.scope
        counts = self.counts[topic]
        above = counts[broker] > self.high[topic, broker]
        rows = np.arange(cluster.first_of[topic], cluster.first_of[topic + 1])
        held = cluster.replicas[rows]
        fits = held >= 0
        fits &= (held == broker) if above else (held != broker)
        if self.led:
            fits &= held == cluster.leader[rows, None]
        at, places = np.nonzero(fits)
        partitions, here = rows[at][:WITNESS_REPLICAS_MAX], held[at, places][:WITNESS_REPLICAS_MAX]
        free = scope.movable(partitions, here)
        if not free.any():
            return "none of the replicas that would help may move"
        partitions, here = partitions[free], here[free]
        useful = np.zeros((len(here), len(counts)), dtype=bool)
        if above:
            useful[:] = self.cells & (counts < self.high[topic])
        else:
            useful[:, broker] = counts[here] > self.low[topic][here]
        if not useful.any():
            return "no broker has one to give or room for one"
        return search.forbidden(partitions, here, useful)
