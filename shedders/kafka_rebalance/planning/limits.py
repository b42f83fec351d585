"""Limits of earlier goals: a later goal may not bring a cell of theirs (further) out of its range.

Each goal sets its ranges here; those of one measure are joined to the narrowest, so that a check costs the same
for any number of goals. Checks cover many replicas and all their possible destinations at once.

    destination: load after <= high, or not more than before
    source:      load after >= low, or not less than before
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np

from shedders.kafka_rebalance.planning.virtual_cluster import Measure

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shedders.kafka_rebalance.planning.virtual_cluster import VirtualCluster

FAR: Final = 2**62
"""No limit. Twice this is still a whole number of 64 bits."""

Mask = Any
"""Of bool, n or n x B."""


class TopicRange(NamedTuple):
    """Range of the count of each topic on each broker.

    Attributes:
        leaders: Whether leaders are counted, else replicas.
        low: T. high: T. cells: brokers that count, B.
    """

    leaders: bool
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    cells: NDArray[np.bool_]


class GoalRule(Protocol):
    """Rule of a goal that is neither a range of sums nor of topics."""

    def moves(self, partitions: Any, sources: Any, to: Any) -> Mask:
        """Whether the rule allows these n replicas on each of these m brokers: n x m."""
        ...

    def moves_to(self, partitions: Any, sources: Any, to: Any) -> Mask:
        """Whether it allows these replicas on one broker, or each on its own: n."""
        ...

    def move(self, partition: int, source: int, to: int) -> bool:
        """Whether it allows one replica on one broker."""
        ...


class GoalLimits:
    """Joint limits of goals; empty at first."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self.cluster = cluster
        brokers = len(cluster.broker_ids)
        self.low = np.full((len(Measure), brokers), -FAR, dtype=np.int64)
        self.high = np.full((len(Measure), brokers), FAR, dtype=np.int64)
        self.bound: list[int] = []
        self.topics: list[TopicRange] = []
        self.rules: list[GoalRule] = []

    def narrow(self, measure: Measure, low: NDArray[np.int64], high: NDArray[np.int64]) -> None:
        """Keep brokers within a range of a measure; B each."""
        np.maximum(self.low[measure], low, out=self.low[measure])
        np.minimum(self.high[measure], high, out=self.high[measure])
        self.bound = sorted({*self.bound, int(measure)})

    # --- moves -----------------------------------------------------------------------------

    def moves(self, partitions: Any, sources: Any, leads: Any, to: Any) -> Mask:
        """Which moves are allowed.

        Args:
            partitions: n of them.
            sources: Where each replica is, n.
            leads: Whether it leads, n.
            to: Brokers, m.

        Returns:
            n x m.
        """
        cluster = self.cluster
        result = np.zeros((len(partitions), len(to)), dtype=bool)
        rows = np.nonzero(self._give(partitions, sources, leads))[0]
        partitions, sources, leads = partitions[rows], sources[rows], leads[rows]
        found = np.ones((len(rows), len(to)), dtype=bool)
        for row in self.bound:
            room = np.maximum(self.high[row, to] - cluster.sums[row, to], 0)
            found &= cluster.weight(partitions, leads, row)[:, None] <= room
        topic = cluster.topic_of[partitions][:, None]
        for one in self.topics:
            allowed = (self._counts(one)[topic, to] < one.high[topic]) | ~one.cells[to]
            found &= (allowed | ~leads[:, None]) if one.leaders else allowed
        for rule in self.rules:
            found &= rule.moves(partitions, sources, to)
        result[rows] = found
        return result

    def moves_to(self, partitions: Any, sources: Any, leads: Any, to: int) -> Mask:
        """As `moves` to one broker: n. Replicas that fail a cheap check are not checked further."""
        cluster = self.cluster
        found = np.zeros(len(partitions), dtype=bool)
        rows = np.arange(len(partitions))
        for one in self.topics:
            if one.cells[to]:
                open_ = self._counts(one)[:, to] < one.high
                keep = open_[cluster.topic_of[partitions[rows]]]
                rows = rows[(keep | ~leads[rows]) if one.leaders else keep]
        for row in self.bound:
            room = max(int(self.high[row, to] - cluster.sums[row, to]), 0)
            rows = rows[cluster.weight(partitions[rows], leads[rows], row) <= room]
        rows = rows[self._give(partitions[rows], sources[rows], leads[rows])]
        for rule in self.rules:
            rows = rows[rule.moves_to(partitions[rows], sources[rows], to)]
        found[rows] = True
        return found

    def moves_each(self, partitions: Any, sources: Any, leads: Any, to: Any) -> Mask:
        """As `moves`, each replica to its own broker: n."""
        cluster = self.cluster
        found = self._give(partitions, sources, leads)
        for row in self.bound:
            room = np.maximum(self.high[row] - cluster.sums[row], 0)
            found &= cluster.weight(partitions, leads, row) <= room[to]
        for one in self.topics:
            found &= self._topic_takes(one, partitions, leads, to)
        for rule in self.rules:
            found &= rule.moves_to(partitions, sources, to)
        return found

    def move(self, partition: int, source: int, leads: bool, to: int) -> bool:
        """As `moves` of one replica to one broker."""
        cluster = self.cluster
        weights = (cluster.as_leader if leads else cluster.as_follower)[:, partition].tolist()
        sums, low, high = cluster.sums, self.low, self.high
        for row in self.bound:
            weight = weights[row]
            if weight and (weight > high[row, to] - sums[row, to] or weight > sums[row, source] - low[row, source]):
                return False
        topic = cluster.topic_of[partition]
        for one in self.topics:
            if one.leaders and not leads:
                continue
            counts = self._counts(one)
            if one.cells[source] and counts[topic, source] <= one.low[topic]:
                return False
            if one.cells[to] and counts[topic, to] >= one.high[topic]:
                return False
        return all(rule.move(partition, source, to) for rule in self.rules)

    def _counts(self, one: TopicRange) -> NDArray[np.int32]:
        return self.cluster.topic_leaders if one.leaders else self.cluster.topic_replicas

    def _give(self, partitions: Any, sources: Any, leads: Any) -> Mask:
        """Whether these replicas may leave."""
        cluster = self.cluster
        found = np.ones(len(partitions), dtype=bool)
        for row in self.bound:
            spare = np.maximum(cluster.sums[row] - self.low[row], 0)
            found &= cluster.weight(partitions, leads, row) <= spare[sources]
        for one in self.topics:
            found &= self._topic_gives(one, partitions, sources, leads)
        return found

    def _topic_gives(self, one: TopicRange, partitions: Any, sources: Any, leads: Any) -> Mask:
        topic = self.cluster.topic_of[partitions]
        found = (self._counts(one)[topic, sources] > one.low[topic]) | ~one.cells[sources]
        return (found | ~leads) if one.leaders else found

    def _topic_takes(self, one: TopicRange, partitions: Any, leads: Any, to: Any) -> Mask:
        topic = self.cluster.topic_of[partitions]
        found = (self._counts(one)[topic, to] < one.high[topic]) | ~one.cells[to]
        return (found | ~leads) if one.leaders else found

    # --- leader switches -------------------------------------------------------------------

    def switches(self, partitions: Any, to: Any) -> Mask:
        """Whether these partitions may be led from these brokers instead: n each."""
        cluster = self.cluster
        source = cluster.leader[partitions]
        found = np.ones(len(partitions), dtype=bool)
        for row in self.bound:
            more = cluster.as_leader[row][partitions] - cluster.as_follower[row][partitions]
            sums = cluster.sums[row]
            found &= more <= np.maximum(self.high[row] - sums, 0)[to]
            found &= more <= np.maximum(sums - self.low[row], 0)[source]
        leads = np.ones(len(partitions), dtype=bool)
        for one in self.topics:
            if one.leaders:
                found &= self._topic_gives(one, partitions, source, leads)
                found &= self._topic_takes(one, partitions, leads, to)
        return found

    def switch(self, partition: int, to: int) -> bool:
        """As `switches` of one partition to one broker."""
        cluster = self.cluster
        source = int(cluster.leader[partition])
        weights = (cluster.as_leader[:, partition] - cluster.as_follower[:, partition]).tolist()
        sums, low, high = cluster.sums, self.low, self.high
        for row in self.bound:
            more = weights[row]
            if more and (more > high[row, to] - sums[row, to] or more > sums[row, source] - low[row, source]):
                return False
        topic = cluster.topic_of[partition]
        for one in self.topics:
            if one.leaders:
                counts = cluster.topic_leaders[topic]
                if one.cells[source] and counts[source] <= one.low[topic]:
                    return False
                if one.cells[to] and counts[to] >= one.high[topic]:
                    return False
        return True

    # --- swaps -----------------------------------------------------------------------------

    def swaps(self, ones: Any, here: int, others: Any, there: int, wanted: Mask) -> Mask:
        """Whether replicas `here` may be swapped with others `there`.

        Args:
            ones: n of them. others: m of them.
            wanted: Pairs to check, n x m.

        Returns:
            n x m.
        """
        cluster = self.cluster
        ones_lead, others_lead = cluster.leader[ones] == here, cluster.leader[others] == there
        from_, to = np.full(len(ones), here), np.full(len(others), there)
        found = wanted
        same = cluster.topic_of[ones][:, None] == cluster.topic_of[others]
        for one in self.topics:
            out = self._topic_gives(one, ones, from_, ones_lead) & self._topic_takes(one, ones, ones_lead, there)
            back = self._topic_gives(one, others, to, others_lead) & self._topic_takes(one, others, others_lead, here)
            even = same & (ones_lead[:, None] == others_lead) if one.leaders else same
            found = found & (even | (out[:, None] & back))
        for rule in self.rules:
            found = found & rule.moves_to(ones, from_, there)[:, None] & rule.moves_to(others, to, here)
        at, also = np.nonzero(found)
        for row in self.bound:
            # What comes there and leaves here.
            more = cluster.weight(ones, ones_lead, row)[at] - cluster.weight(others, others_lead, row)[also]
            high, low, sums = self.high[row], self.low[row], cluster.sums[row]
            most = max(min(int(high[there] - sums[there]), int(sums[here] - low[here])), 0)
            least = max(min(int(high[here] - sums[here]), int(sums[there] - low[there])), 0)
            keep = (more <= most) & (-more <= least)
            at, also = at[keep], also[keep]
        found = np.zeros_like(wanted)
        found[at, also] = True
        return found
