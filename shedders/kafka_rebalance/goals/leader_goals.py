"""Demoted brokers lead nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shedders.kafka_rebalance.goals.goal import Goal
from shedders.kafka_rebalance.planning.changes import Reorder
from shedders.kafka_rebalance.planning.virtual_cluster import Measure

if TYPE_CHECKING:
    from shedders.kafka_rebalance.planning.limits import GoalLimits
    from shedders.kafka_rebalance.planning.search import Search


class Demotion(Goal):
    """Brokers that are demoted lead nothing and are nobody's preferred leader.

    Formula, for each partition with a leader:

        neither the leader nor the first of its replicas is a demoted broker

    Moves: leader switches to the replica on the broker that leads least, and order changes; no data is moved.

    Example: broker 1 is demoted; replicas 1, 2, 3 led by 1 become 2, 1, 3 led by 2.

    Source: Cruise Control's demote_broker.
    """

    name = "demotion"
    hard = True
    unit = "partitions"

    def prepare(self) -> str | None:
        """Work out the ranges."""
        return None

    def _beyond(self) -> Any:
        cluster, subjects = self.cluster, self.scope.subjects
        leads = (cluster.leader >= 0) & subjects[cluster.leader]
        return leads | ((cluster.leader >= 0) & subjects[cluster.replicas[:, 0]])

    def measured(self) -> tuple[Any, Any]:
        """Values of the cells and their distances from the range."""
        values = self._beyond().astype(np.int64)
        return values, values

    def limit(self, limits: GoalLimits) -> None:
        """Nothing to lay down: demoted brokers are never given a leadership."""

    def improve(self, search: Search) -> int:
        """Make moves until none is found."""
        cluster, scope = self.cluster, self.scope
        rows = np.nonzero(self._beyond() & ~scope.frozen)[0].tolist()
        made = 0
        for number, partition in enumerate(rows):
            search.advance(number, len(rows))
            leader = int(cluster.leader[partition])
            if scope.subjects[leader]:
                to = np.array(cluster.holders(partition))
                partitions = np.full(len(to), partition)
                found = (to != leader) & search.switches(partitions, to)
                if not found.any():
                    continue
                to = to[found]
                sums = cluster.sums
                load = sums[Measure.LEADER_IN] if sums[Measure.LEADER_IN].any() else sums[Measure.LEADERS]
                search.switch(partition, int(to[np.lexsort((to, load[to]))[0]]))
            else:
                search.make(Reorder(partition, 0, cluster.holders(partition).index(leader)))
            made += 1
        return made

    def witness(self, search: Search) -> str:  # noqa: ARG002 - others need it
        """Where it is not met, and why."""
        cluster = self.cluster
        rows = np.nonzero(self._beyond())[0]
        partition = int(rows[0])
        holders = ", ".join(str(cluster.broker_ids[one]) for one in cluster.holders(partition))
        why = "it may not be changed" if self.scope.frozen[partition] else "no other replica may lead"
        return f"{len(rows)} partitions stay, such as {cluster.name_of(partition)} on brokers {holders}: {why}"


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

    def prepare(self) -> str | None:
        """Work out the ranges."""
        return None

    def measured(self) -> tuple[Any, Any]:
        """Values of the cells and their distances from the range."""
        cluster = self.cluster
        counted = ~self.scope.frozen & (cluster.leader >= 0)
        values = (cluster.leader != cluster.replicas[:, 0])[counted].astype(np.int64)
        return values, values

    def limit(self, limits: GoalLimits) -> None:
        """Nothing to lay down: whatever later goals move or switch gets its leader put first."""

    def improve(self, search: Search) -> int:
        """Make moves until none is found."""
        cluster = self.cluster
        beyond = (cluster.leader != cluster.replicas[:, 0]) & ~self.scope.frozen & (cluster.leader >= 0)
        rows = np.nonzero(beyond)[0]
        for number, partition in enumerate(rows.tolist()):
            search.advance(number, len(rows))
            one, first = np.array([partition]), cluster.replicas[partition, :1]
            if search.scope.may_switch(one)[0] and search.switches(one, first)[0]:
                search.switch(partition, int(first[0]))
            else:
                search.make(Reorder(partition, 0, cluster.holders(partition).index(int(cluster.leader[partition]))))
        return len(rows)

    def witness(self, search: Search) -> str:  # noqa: ARG002 - others need it
        """Where it is not met, and why."""
        return "some leaders do not stand first"
