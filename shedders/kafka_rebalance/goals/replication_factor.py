"""The wanted number of replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shedders.kafka_rebalance.goals.goal import Goal
from shedders.kafka_rebalance.planning.changes import AddReplica, RemoveReplica
from shedders.kafka_rebalance.planning.virtual_cluster import LoadColumn

if TYPE_CHECKING:
    from shedders.kafka_rebalance.planning.limits import GoalLimits
    from shedders.kafka_rebalance.planning.search import Search


class ReplicationFactor(Goal):
    """Each partition of the chosen topics has as many replicas as asked for.

    Formula, for each partition:

        replicas = wanted replication factor

    Moves: new replicas go to the broker with the fewest replicas of the partition in its rack, then to the emptiest; replicas
    that are too many go from racks that have most of the partition, then from the fullest broker, and never the leader's.

    Example: replicas 1, 2 of racks a, b with a factor of 3: a third on an empty broker of rack c.

    Source: KIP-455; Cruise Control's topic_configuration.
    """

    name = "replication-factor"
    hard = True
    unit = "replicas"

    def prepare(self) -> str | None:
        """Work out the ranges."""
        self.wanted = self.request.replication_factor or 0
        return None

    def _missing(self) -> Any:
        found = self.wanted - (self.cluster.replicas >= 0).sum(axis=1)
        return np.where(self.scope.frozen, 0, found)

    def measured(self) -> tuple[Any, Any]:
        """Values of the cells and their distances from the range."""
        values = np.abs(self._missing()[~self.scope.frozen])
        return values, values

    def limit(self, limits: GoalLimits) -> None:
        """Nothing to lay down: no other goal adds or removes replicas."""

    def improve(self, search: Search) -> int:
        """Make moves until none is found."""
        missing = self._missing()
        rows = np.nonzero(missing)[0]
        order = rows[np.lexsort((rows, -self.cluster.load[rows, LoadColumn.DISK]))].tolist()
        made = 0
        for number, partition in enumerate(order):
            search.advance(number, len(order))
            search.look()
            step = self._add if missing[partition] > 0 else self._drop
            for _ in range(abs(int(missing[partition]))):
                if not step(search, partition):
                    break
                made += 1
        return made

    def _racks(self, partition: int) -> Any:
        """How many replicas of the partition are in the rack of each broker. B."""
        cluster = self.cluster
        held = cluster.rack_of[cluster.holders(partition)]
        return np.where(cluster.rack_of >= 0, (held[:, None] == cluster.rack_of).sum(axis=0), 0)

    def _add(self, search: Search, partition: int) -> bool:
        cluster, scope = self.cluster, self.scope
        weight = cluster.as_follower[:, partition]
        room = np.maximum(search.limits.high - cluster.sums, 0)
        found = scope.takers & (weight[:, None] <= room).all(axis=0)
        here = cluster.holders(partition)
        found[here] = False
        if not found.any() or not search.affordable_new(partition):
            return False
        takers = np.nonzero(found)[0]
        counts = cluster.topic_replicas[cluster.topic_of[partition]]
        racks, fullness = self._racks(partition), search.fullness()
        to = int(takers[np.lexsort((takers, counts[takers], fullness[takers], racks[takers]))[0]])
        search.make(AddReplica(partition, len(here), to))
        return True

    def _drop(self, search: Search, partition: int) -> bool:
        cluster, scope = self.cluster, self.scope
        leader = int(cluster.leader[partition])
        here = np.array([one for one in cluster.holders(partition) if one != leader])
        if not len(here):
            return False
        racks, fullness = self._racks(partition), search.fullness()
        unwanted = ~scope.homes[here]
        best = int(here[np.lexsort((here, -fullness[here], -racks[here], ~unwanted))[0]])
        search.make(RemoveReplica(partition, cluster.holders(partition).index(best)))
        return True

    def witness(self, search: Search) -> str:  # noqa: ARG002 - others need it
        """Where it is not met, and why."""
        cluster = self.cluster
        missing = self._missing()
        partition = int(np.abs(missing).argmax())
        return (
            f"{int(np.count_nonzero(missing))} partitions, such as {cluster.name_of(partition)} with "
            f"{len(cluster.holders(partition))} replicas: no broker has room for another"
        )
