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
        low: T x B. high: T x B. cells: brokers that count, B.
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
        """Which of n replicas, on these brokers and leading or not, may go to which of m brokers: n x m."""
        cluster = self.cluster
        result = np.zeros((len(partitions), len(to)), dtype=bool)
        rows = np.nonzero(self._give(partitions, sources, leads))[0]
        partitions, sources, leads = partitions[rows], sources[rows], leads[rows]
        permitted = np.ones((len(rows), len(to)), dtype=bool)
        for row in self.bound:
            room = np.maximum(self.high[row, to] - cluster.sums[row, to], 0)
            permitted &= cluster.weight(partitions, leads, row)[:, None] <= room
        for range_ in self.topics:
            permitted &= self._topic_takes(range_, partitions[:, None], leads[:, None], to)
        for rule in self.rules:
            permitted &= rule.moves(partitions, sources, to)
        result[rows] = permitted
        return result

    def moves_to(self, partitions: Any, sources: Any, leads: Any, to: Any) -> Mask:
        """As `moves` to one broker, or each replica to its own: n. Replicas that fail a cheap check are not checked further."""
        cluster = self.cluster
        to = np.broadcast_to(to, len(partitions))
        allowed = np.zeros(len(partitions), dtype=bool)
        rows = np.arange(len(partitions))
        for range_ in self.topics:
            rows = rows[self._topic_takes(range_, partitions[rows], leads[rows], to[rows])]
        for row in self.bound:
            room = np.maximum(self.high[row] - cluster.sums[row], 0)
            rows = rows[cluster.weight(partitions[rows], leads[rows], row) <= room[to[rows]]]
        rows = rows[self._give(partitions[rows], sources[rows], leads[rows])]
        for rule in self.rules:
            rows = rows[rule.moves_to(partitions[rows], sources[rows], to[rows])]
        allowed[rows] = True
        return allowed

    def move(self, partition: int, source: int, leads: bool, to: int) -> bool:
        """As `moves` of one replica to one broker."""
        weights = (self.cluster.as_leader if leads else self.cluster.as_follower)[:, partition]
        fits = self._shifts(partition, source, to, weights, leader=leads, replica=True)
        return fits and all(rule.move(partition, source, to) for rule in self.rules)

    def _shifts(self, partition: int, source: int, to: int, weights: Any, *, leader: bool, replica: bool) -> bool:
        """Whether the ranges allow that one broker gives these weights to another one, and with them a leader or a replica."""
        cluster, sums, low, high = self.cluster, self.cluster.sums, self.low, self.high
        of_row = weights.tolist()
        for row in self.bound:
            weight = of_row[row]
            if weight and (weight > high[row, to] - sums[row, to] or weight > sums[row, source] - low[row, source]):
                return False
        topic = cluster.topic_of[partition]
        for range_ in self.topics:
            if not (leader if range_.leaders else replica):
                continue
            counts = self._counts(range_)
            if range_.cells[source] and counts[topic, source] <= range_.low[topic, source]:
                return False
            if range_.cells[to] and counts[topic, to] >= range_.high[topic, to]:
                return False
        return True

    def _counts(self, range_: TopicRange) -> NDArray[np.int32]:
        return self.cluster.topic_leaders if range_.leaders else self.cluster.topic_replicas

    def _give(self, partitions: Any, sources: Any, leads: Any) -> Mask:
        cluster = self.cluster
        allowed = np.ones(len(partitions), dtype=bool)
        for row in self.bound:
            spare = np.maximum(cluster.sums[row] - self.low[row], 0)
            allowed &= cluster.weight(partitions, leads, row) <= spare[sources]
        for range_ in self.topics:
            allowed &= self._topic_gives(range_, partitions, sources, leads)
        return allowed

    def _topic_gives(self, range_: TopicRange, partitions: Any, sources: Any, leads: Any) -> Mask:
        topic = self.cluster.topic_of[partitions]
        allowed = (self._counts(range_)[topic, sources] > range_.low[topic, sources]) | ~range_.cells[sources]
        return (allowed | ~leads) if range_.leaders else allowed

    def _topic_takes(self, range_: TopicRange, partitions: Any, leads: Any, to: Any) -> Mask:
        topic = self.cluster.topic_of[partitions]
        allowed = (self._counts(range_)[topic, to] < range_.high[topic, to]) | ~range_.cells[to]
        return (allowed | ~leads) if range_.leaders else allowed

    # --- leader switches -------------------------------------------------------------------

    def switches(self, partitions: Any, to: Any) -> Mask:
        """Whether these partitions may be led from these brokers instead: n each."""
        cluster = self.cluster
        source = cluster.leader[partitions]
        allowed = np.ones(len(partitions), dtype=bool)
        for row in self.bound:
            more = cluster.as_leader[row][partitions] - cluster.as_follower[row][partitions]
            sums = cluster.sums[row]
            allowed &= more <= np.maximum(self.high[row] - sums, 0)[to]
            allowed &= more <= np.maximum(sums - self.low[row], 0)[source]
        leads = np.ones(len(partitions), dtype=bool)
        for range_ in self.topics:
            if range_.leaders:
                allowed &= self._topic_gives(range_, partitions, source, leads)
                allowed &= self._topic_takes(range_, partitions, leads, to)
        return allowed

    def switch(self, partition: int, to: int) -> bool:
        """As `switches` of one partition to one broker."""
        cluster = self.cluster
        weights = cluster.as_leader[:, partition] - cluster.as_follower[:, partition]
        return self._shifts(partition, int(cluster.leader[partition]), to, weights, leader=True, replica=False)

    # --- swaps -----------------------------------------------------------------------------

    def swaps(self, ones: Any, here: int, others: Any, there: int, wanted: Mask) -> Mask:
        """Which of n replicas `here` may be swapped with which of m others `there`, of the wanted pairs: n x m."""
        cluster = self.cluster
        ones_lead, others_lead = cluster.leader[ones] == here, cluster.leader[others] == there
        from_, to = np.full(len(ones), here), np.full(len(others), there)
        allowed = wanted
        same = cluster.topic_of[ones][:, None] == cluster.topic_of[others]
        for range_ in self.topics:
            out = self._topic_gives(range_, ones, from_, ones_lead) & self._topic_takes(range_, ones, ones_lead, there)
            back = self._topic_gives(range_, others, to, others_lead) & self._topic_takes(
                range_, others, others_lead, here
            )
            even = same & (ones_lead[:, None] == others_lead) if range_.leaders else same
            allowed = allowed & (even | (out[:, None] & back))
        for rule in self.rules:
            allowed = allowed & rule.moves_to(ones, from_, there)[:, None] & rule.moves_to(others, to, here)
        at, also = np.nonzero(allowed)
        for row in self.bound:
            # What comes there and leaves here.
            more = cluster.weight(ones, ones_lead, row)[at] - cluster.weight(others, others_lead, row)[also]
            high, low, sums = self.high[row], self.low[row], cluster.sums[row]
            most = max(min(int(high[there] - sums[there]), int(sums[here] - low[here])), 0)
            least = max(min(int(high[here] - sums[here]), int(sums[there] - low[there])), 0)
            keep = (more <= most) & (-more <= least)
            at, also = at[keep], also[keep]
        allowed = np.zeros_like(wanted)
        allowed[at, also] = True
        return allowed


class LimitingGoal(Protocol):
    """What the search needs of a goal that comes before the one at work; `goals.goal.Goal` is one."""

    @property
    def name(self) -> str: ...

    def limit(self, limits: GoalLimits) -> None:
        """Set its ranges for later goals."""
        ...
