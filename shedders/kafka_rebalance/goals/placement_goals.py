"""Goals of single partitions: replicas on different racks, and leadership of the preferred leader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shedders.kafka_rebalance.goals.goal import Goal
from shedders.kafka_rebalance.planning.scope import RackSpread, most_in_rack
from shedders.kafka_rebalance.planning.virtual_cluster import LoadColumn, Reorder

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shedders.kafka_rebalance.planning.limits import GoalLimits
    from shedders.kafka_rebalance.planning.search import Search


class RackAwareness(Goal):
    """The replicas of a partition are spread over the racks.

    Formula, for each partition and rack:

        replicas of the partition in the rack <= the least number with which all of its replicas find a place

    With enough racks that is 1; with RF 3 on 2 racks it is 2 (2 + 1). Where no broker has a rack the goal has nothing to compare;
    where some have none, each of those is a rack of its own.

    Moves: a replica off a rack that has too many, from the fullest broker, to the emptiest broker of a rack that has room.

    Example: replicas on brokers a1, a2 and b1 of racks a, b, c: the replica on a2 moves to rack c.

    Source: Cruise Control's RackAwareGoal and RackAwareDistributionGoal.
    """

    name = "rack-awareness"
    hard = True
    unit = "replicas"

    def prepare(self) -> str | None:
        cluster = self.cluster
        if not cluster.racks:
            return "no broker has a rack"
        without = np.nonzero((cluster.rack_of < 0) & cluster.alive)[0]
        self.rack = cluster.rack_of.astype(np.int64)
        nowhere = np.nonzero(self.rack < 0)[0]
        self.rack[nowhere] = len(cluster.racks) + np.arange(len(nowhere))
        if len(without):
            names = ", ".join(str(cluster.broker_ids[broker]) for broker in without[:5])
            self.remarks.append(
                f"rack-awareness: {len(without)} brokers have no rack ({names}); each is taken for a rack of its own"
            )
        sizes = np.bincount(self.rack[self.scope.homes]).tolist()
        self.usable = sum(size > 0 for size in sizes)
        places = cluster.replicas.shape[1]
        self.most = np.array([most_in_rack(sizes, factor) for factor in range(places + 1)], dtype=np.int64)
        self.scope.spread = RackSpread(self.rack, self.most)
        return None

    def _surplus(self, partitions: Any = slice(None)) -> NDArray[np.int64]:
        """Replicas beyond what their rack may have, for each partition."""
        held = self.cluster.replicas[partitions]
        racks = np.where(held >= 0, self.rack[held], -1)
        most = self.most[(held >= 0).sum(axis=1)]
        surplus = np.zeros(len(held), dtype=np.int64)
        for place in range(1, held.shape[1]):
            before = (racks[:, :place] == racks[:, place, None]).sum(axis=1)
            surplus += (racks[:, place] >= 0) & (before >= most)
        return surplus

    def measured(self) -> tuple[Any, Any]:
        surplus = self._surplus()[~self.scope.frozen]
        return surplus, surplus

    def limit(self, limits: GoalLimits) -> None:
        limits.rules.append(self)

    def moves(self, partitions: Any, sources: Any, to: Any) -> NDArray[np.bool_]:
        """Whether these n replicas may go to each of these m brokers: their rack has room, or is the same. n x m."""
        held = self.cluster.replicas[partitions]
        most = self.most[(held >= 0).sum(axis=1)]
        racks = self.rack[to]
        counts = np.zeros((len(held), len(racks)), dtype=np.int64)
        for place in range(held.shape[1]):
            there = held[:, place]
            counts += (self.rack[there][:, None] == racks) & (there >= 0)[:, None]
        allowed: NDArray[np.bool_] = (counts < most[:, None]) | (self.rack[sources][:, None] == racks)
        return allowed

    def moves_to(self, partitions: Any, sources: Any, to: Any) -> NDArray[np.bool_]:
        """Whether these replicas may go to one broker, or each to its own. n."""
        held = self.cluster.replicas[partitions]
        there = held >= 0
        rack = self.rack[to]
        counts = ((self.rack[held] == (rack[:, None] if rack.ndim else rack)) & there).sum(axis=1)
        allowed: NDArray[np.bool_] = (counts < self.most[there.sum(axis=1)]) | (self.rack[sources] == rack)
        return allowed

    def move(self, partition: int, source: int, to: int) -> bool:
        """Whether one replica may go to one broker."""
        rack = self.rack[to]
        if rack == self.rack[source]:
            return True
        here = self.cluster.holders(partition)
        return sum(bool(self.rack[broker] == rack) for broker in here) < int(self.most[len(here)])

    def improve(self, search: Search) -> None:
        before = -1
        while search.steps_made != before:
            before = search.steps_made
            beyond = np.nonzero((self._surplus() > 0) & ~self.scope.frozen)[0]
            beyond = beyond[np.lexsort((beyond, -self.cluster.load[beyond, LoadColumn.DISK]))].tolist()
            for number, partition in enumerate(beyond):
                search.advance(number, len(beyond))
                while self._spread_out(search, partition):
                    pass

    def _spread_out(self, search: Search, partition: int) -> bool:
        """Move one replica off a rack that has too many."""
        here = np.array(self.cluster.holders(partition), dtype=np.int32)
        racks = self.rack[here]
        most = int(self.most[len(here)])
        here = here[np.array([int(np.count_nonzero(racks == own)) > most for own in racks], dtype=bool)]
        partitions = np.full(len(here), partition)
        fits = self.scope.movable(partitions, here)
        here, partitions = here[fits], partitions[fits]
        if not len(here):
            return False
        to = np.nonzero(self.scope.takers)[0]
        allowed = search.moves(partitions, here, to) & self.moves(partitions, here, to)
        allowed &= self.rack[here][:, None] != self.rack[to]
        if not allowed.any():
            return False
        fullness = search.fullness()
        leads = here == self.cluster.leader[partition]
        counts = self.cluster.topic_replicas[self.cluster.topic_of[partition]]
        order = np.lexsort((here, leads, -counts[here], -fullness[here]))
        row = next(int(index) for index in order if allowed[index].any())
        takers = to[allowed[row]]
        best = np.lexsort((takers, fullness[takers], counts[takers]))[0]
        search.move(partition, int(here[row]), int(takers[best]))
        return True

    def witness(self, search: Search) -> str:  # noqa: ARG002 - others need it
        cluster = self.cluster
        surplus = np.where(self.scope.frozen, 0, self._surplus())
        worst = int(surplus.argmax())
        here = cluster.holders(worst)
        text = (
            f"{cluster.name_of(worst)} has {len(here)} replicas on brokers "
            f"{', '.join(str(cluster.broker_ids[broker]) for broker in here)}, {int(self.most[len(here)])} may share one of the "
            f"{self.usable} usable racks"
        )
        homes = int(np.count_nonzero(self.scope.homes))
        if homes < len(here):
            return f"{text}; only {homes} brokers are usable"
        movable = self.scope.movable(np.full(len(here), worst), np.array(here))
        if not movable.any():
            return f"{text}; none of them may move"
        return f"{text}; no broker of another rack may take one"


class PreferredLeader(Goal):
    """Each partition is led by the first broker of its list.

    Formula, for each partition:

        leader = first of the replicas

    Moves: a leader switch to the first where earlier goals allow it; else who leads is put first (no bytes either way).
    What the planner moves has its leader first anyway.

    Example: replicas 1, 2, 3, led by 2: 1 is to lead; where that would overload 1, the list becomes 2, 1, 3.

    Source: Kafka's preferred leader election; Cruise Control's PreferredLeaderElectionGoal.
    """

    name = "preferred-leader"
    unit = "partitions"

    def measured(self) -> tuple[Any, Any]:
        cluster = self.cluster
        counted = ~self.scope.frozen & (cluster.leader >= 0)
        values = (cluster.leader != cluster.replicas[:, 0])[counted].astype(np.int64)
        return values, values

    def improve(self, search: Search) -> None:
        cluster = self.cluster
        beyond = (cluster.leader != cluster.replicas[:, 0]) & ~self.scope.frozen & (cluster.leader >= 0)
        rows = np.nonzero(beyond)[0]
        for number, partition in enumerate(rows.tolist()):
            search.advance(number, len(rows))
            single, first = np.array([partition]), cluster.replicas[partition, :1]
            if search.scope.may_switch(single)[0] and search.switches(single, first)[0]:
                search.switch(partition, int(first[0]))
            else:
                search.make(Reorder(partition, 0, cluster.holders(partition).index(int(cluster.leader[partition]))))

    def witness(self, search: Search) -> str:  # noqa: ARG002 - others need it
        return "some leaders do not stand first"
