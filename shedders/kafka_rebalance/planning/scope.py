"""Scope of a plan: replicas that may move, brokers that may get them, brokers that may lead.

Means and ranges are taken over the `homes`: live brokers in the range that are neither removed nor going offline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shedders.kafka_rebalance.planning.request import PlanMode
from shedders.kafka_rebalance.planning.virtual_cluster import LoadColumn, Measure

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from loaddata.samples.layout import ClusterLayout
    from shedders.kafka_rebalance.planning.request import PlanRequest
    from shedders.kafka_rebalance.planning.virtual_cluster import VirtualCluster

SWITCHING: Final = frozenset({PlanMode.REBALANCE, PlanMode.ADD_BROKERS, PlanMode.DEMOTE})
"""Modes in which leaders may be switched."""


class Scope:
    """Scope of a plan, computed once from the cluster at the beginning.

    Attributes:
        homes: Brokers that may hold replicas. B.
        takers: Homes that may get replicas. B.
        leaders: Homes that may lead. B.
        leaving: Brokers whose replicas must leave. B.
        sources: Brokers whose replicas may move. B.
        all_lead: Whether all homes may lead.
        frozen: Partitions that must stay. P.
        free_topics: Topics of which at least one partition may change. T.
        began: Replicas at the beginning, P x R. `led`: leaders at the beginning, P.
        extra: Replicas to add per partition (to remove, if negative). P.
    """

    def __init__(
        self, cluster: VirtualCluster, layout: ClusterLayout, request: PlanRequest, frozen: NDArray[np.bool_]
    ) -> None:
        """Compute the scope.

        Args:
            cluster: Virtual cluster at the beginning.
            layout: Layout that it was made from.
            request: Checked request.
            all_lead: Whether all homes may lead.
        frozen: Partitions that must stay, P.
        """
        mode = request.mode
        self.cluster = cluster
        self.layout = layout
        self.mode = mode
        subjects = self._mask(request.subjects)
        going = self._mask(request.offline_brokers)
        if mode is PlanMode.REMOVE_BROKERS:
            going |= subjects
        ranged = self._mask(request.brokers) if request.brokers else np.ones_like(going)
        self.subjects = subjects
        self.subjects_lead_nothing = mode is PlanMode.DEMOTE
        self.leaving = going
        self.homes: NDArray[np.bool_] = cluster.alive & ranged & ~going
        self.takers: NDArray[np.bool_] = self.homes & subjects if mode is PlanMode.ADD_BROKERS else self.homes.copy()
        self.leaders: NDArray[np.bool_] = self.homes & ~subjects if mode is PlanMode.DEMOTE else self.homes.copy()
        self.sources: NDArray[np.bool_] = going.copy()
        if mode in {PlanMode.REBALANCE, PlanMode.ADD_BROKERS}:
            self.sources |= self.homes
        self.all_lead = bool((self.leaders == self.homes).all())
        self.frozen = frozen
        self.free_topics = np.zeros(len(cluster.topics), dtype=bool)
        self.free_topics[np.unique(cluster.topic_of[~frozen])] = True
        self.began = cluster.replicas.copy()
        self.led = cluster.leader.copy()
        fix = mode is PlanMode.FIX_OFFLINE
        self.lost: NDArray[np.int32] | None = np.where(cluster.offline, cluster.replicas, -2) if fix else None
        self.extra = np.zeros(cluster.size, dtype=np.int64)
        if mode is PlanMode.REPLICATION_FACTOR and request.replication_factor is not None:
            self.extra[~frozen] = request.replication_factor - (cluster.replicas[~frozen] >= 0).sum(axis=1)
        self._totals: dict[int, int] = {}
        self._behind = np.where(cluster.in_sync & ~cluster.offline, -2, cluster.replicas)

    def _mask(self, brokers: Any) -> NDArray[np.bool_]:
        mask = np.zeros(len(self.cluster.broker_ids), dtype=bool)
        mask[[self.cluster.index[broker] for broker in brokers]] = True
        return mask

    def placed(self, partitions: Any, brokers: Any) -> NDArray[np.bool_]:
        """Whether this plan placed the replica there, so that moving it again copies nothing more."""
        mask: NDArray[np.bool_] = ~(self.began[partitions] == brokers[:, None]).any(axis=1)
        return mask

    def movable(self, partitions: Any, brokers: Any) -> NDArray[np.bool_]:
        """Whether the replicas on these brokers may move; both arrays of n."""
        mask: NDArray[np.bool_] = self.sources[brokers]
        if not mask.all():
            mask = mask | self.placed(partitions, brokers)
        if self.lost is not None:
            mask = mask | (self.lost[partitions] == brokers[:, None]).any(axis=1)
        still: NDArray[np.bool_] = ~self.frozen[partitions]
        return mask & still

    def was_lost(self, partitions: Any, broker: int) -> NDArray[np.bool_]:
        """Which of these partitions lost their replica on this broker: it is created elsewhere, and never there again."""
        if self.lost is None:
            return np.zeros(len(partitions), dtype=bool)
        mask: NDArray[np.bool_] = (self.lost[partitions] == broker).any(axis=1)
        return mask

    def total(self, measure: Measure) -> int:
        """Total load of all homes after forced moves and additions, which no move changes."""
        if measure not in self._totals:
            cluster = self.cluster
            rows, brokers = self.coming()
            leads = cluster.leader[rows] == brokers
            load = int(cluster.sums[measure][self.homes].sum()) + int(cluster.weight(rows, leads, measure).sum())
            load += int((self.extra * cluster.as_follower[measure]).sum())
            if measure is Measure.NET_OUT:
                load += int((self.extra * cluster.load[:, LoadColumn.BYTES_IN]).sum())
            self._totals[measure] = load
        return self._totals[measure]

    def coming(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Replicas that may move to homes and are on none: partitions, brokers."""
        cluster = self.cluster
        away = np.append(~self.homes, False)[cluster.replicas]
        rows, places = np.nonzero(away)
        brokers = cluster.replicas[rows, places]
        fits = self.movable(rows, brokers)
        return rows[fits], brokers[fits]

    def may_lead(self, partitions: Any, brokers: Any) -> NDArray[np.bool_]:
        """Whether these replicas may become leaders: in sync, or placed by the plan; both arrays of n."""
        behind = (self._behind[partitions] == brokers[:, None]).any(axis=1)
        mask: NDArray[np.bool_] = self.leaders[brokers] & ~behind
        return mask

    def may_switch(self, partitions: Any) -> NDArray[np.bool_]:
        """Whether another replica of these partitions may become leader."""
        if self.mode not in SWITCHING:
            return np.zeros(len(partitions), dtype=bool)
        leader = self.cluster.leader[partitions]
        mask: NDArray[np.bool_] = ~self.frozen[partitions] & (leader >= 0)
        if self.mode is PlanMode.DEMOTE:
            mask &= self.subjects[leader] | (leader != self.led[partitions])
        return mask
