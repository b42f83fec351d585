"""What goals that come first allow: a later goal takes no move that brings a cell of theirs (further) out of its range.

Each goal lays its ranges down here; those of one measure are joined to the narrowest, so that asking costs the same
however many goals there are. Questions are asked for many replicas, and all brokers they might go to, at once.

    a broker that takes: what it carries after <= high, or not more than before
    a broker that gives: what it carries after >= low, or not less than before
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np

from loaddata.partitions.cluster import Measure

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from loaddata.partitions.cluster import VirtualCluster

FAR: Final = 2**62
"""No limit. Twice this is still a whole number of 64 bits."""

Mask = Any
"""Of bool, n or n x B."""


class TopicRange(NamedTuple):
    """Range of a count of each topic on each broker.

    Attributes:
        leaders: Of leaders; else of replicas.
        low: T. high: T. cells: brokers that count, B.
    """

    leaders: bool
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    cells: NDArray[np.bool_]


class Rule(Protocol):
    """A rule of a goal that is neither of sums nor of topics."""

    def moves(self, partitions: Any, sources: Any) -> Mask:
        """Where these replicas may go as far as it is concerned: n x B."""
        ...

    def moves_to(self, partitions: Any, sources: Any, to: Any) -> Mask:
        """Whether these replicas may go to one broker, or each to its own: n."""
        ...


class Limits:
    """What some goals allow together; empty at first."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self.cluster = cluster
        brokers = len(cluster.broker_ids)
        self.low = np.full((len(Measure), brokers), -FAR, dtype=np.int64)
        self.high = np.full((len(Measure), brokers), FAR, dtype=np.int64)
        self.bound: list[int] = []
        self.topics: list[TopicRange] = []
        self.rules: list[Rule] = []

    def narrow(self, measure: Measure, low: NDArray[np.int64], high: NDArray[np.int64]) -> None:
        """Keep brokers within a range of a measure; B each."""
        np.maximum(self.low[measure], low, out=self.low[measure])
        np.minimum(self.high[measure], high, out=self.high[measure])
        self.bound = sorted({*self.bound, int(measure)})

    # --- moves -----------------------------------------------------------------------------

    def moves(self, partitions: Any, sources: Any, leads: Any) -> Mask:
        """Which moves are allowed.

        Args:
            partitions: n of them.
            sources: Where each replica is, n.
            leads: Whether it leads, n.

        Returns:
            n x B.
        """
        cluster = self.cluster
        weights = cluster.weights(partitions, leads)
        found = self._give(weights, sources)[:, None] & np.ones(len(cluster.broker_ids), dtype=bool)
        room = np.maximum(self.high - cluster.sums, 0)
        for row in self.bound:
            found &= weights[:, row, None] <= room[row]
        for one in self.topics:
            topic = cluster.topic_of[partitions]
            counts = cluster.topic_leaders if one.leaders else cluster.topic_replicas
            allowed = (counts[topic] < one.high[topic, None]) | ~one.cells
            allowed &= ((counts[topic, sources] > one.low[topic]) | ~one.cells[sources])[:, None]
            found &= (allowed | ~leads[:, None]) if one.leaders else allowed
        for rule in self.rules:
            found &= rule.moves(partitions, sources)
        return found

    def moves_to(self, partitions: Any, sources: Any, leads: Any, to: int) -> Mask:
        """As `moves` to one broker: n."""
        cluster = self.cluster
        weights = cluster.weights(partitions, leads)
        found = self._give(weights, sources)
        room = np.maximum(self.high[:, to] - cluster.sums[:, to], 0)
        found &= (weights <= room).all(axis=1)
        for one in self.topics:
            found &= self._topic_move(one, partitions, sources, leads, to)
        for rule in self.rules:
            found &= rule.moves_to(partitions, sources, to)
        return found

    def _give(self, weights: NDArray[np.int64], sources: Any) -> Mask:
        spare = np.maximum(self.cluster.sums - self.low, 0)
        found = np.ones(len(weights), dtype=bool)
        for row in self.bound:
            found &= weights[:, row] <= spare[row, sources]
        return found

    def _topic_move(self, one: TopicRange, partitions: Any, sources: Any, leads: Any, to: Any) -> Mask:
        topic = self.cluster.topic_of[partitions]
        counts = self.cluster.topic_leaders if one.leaders else self.cluster.topic_replicas
        found = (counts[topic, sources] > one.low[topic]) | ~one.cells[sources]
        found &= (counts[topic, to] < one.high[topic]) | ~one.cells[to]
        return (found | ~leads) if one.leaders else found

    # --- leader switches -------------------------------------------------------------------

    def switches(self, partitions: Any, to: Any) -> Mask:
        """Whether these partitions may be led from these brokers instead: n each."""
        cluster = self.cluster
        source = cluster.leader[partitions]
        found = np.ones(len(partitions), dtype=bool)
        for row in self.bound:
            more = cluster.as_leader[partitions, row] - cluster.as_follower[partitions, row]
            sums = cluster.sums[row]
            found &= more <= np.maximum(self.high[row] - sums, 0)[to]
            found &= more <= np.maximum(sums - self.low[row], 0)[source]
        for one in self.topics:
            if one.leaders:
                topic = cluster.topic_of[partitions]
                counts = cluster.topic_leaders
                found &= (counts[topic, source] > one.low[topic]) | ~one.cells[source]
                found &= (counts[topic, to] < one.high[topic]) | ~one.cells[to]
        return found

    # --- swaps -----------------------------------------------------------------------------

    def swaps(self, ones: Any, here: Any, others: Any, there: Any) -> Mask:
        """Whether replicas here may change places with others there; n each."""
        cluster = self.cluster
        ones_lead, others_lead = cluster.leader[ones] == here, cluster.leader[others] == there
        found = np.ones(len(ones), dtype=bool)
        one_weights, other_weights = cluster.weights(ones, ones_lead), cluster.weights(others, others_lead)
        for row in self.bound:
            more = one_weights[:, row] - other_weights[:, row]  # what comes there and leaves here
            up = np.maximum(self.high[row] - cluster.sums[row], 0)
            down = np.maximum(cluster.sums[row] - self.low[row], 0)
            found &= (more <= np.minimum(up[there], down[here])) & (-more <= np.minimum(up[here], down[there]))
        same = cluster.topic_of[others] == cluster.topic_of[ones]
        for one in self.topics:
            out = self._topic_move(one, ones, here, ones_lead, there)
            back = self._topic_move(one, others, there, others_lead, here)
            even = same & (others_lead == ones_lead) if one.leaders else same
            found &= even | (back & out)
        for rule in self.rules:
            found &= rule.moves_to(ones, here, there)
            found &= rule.moves_to(others, there, here)
        return found
