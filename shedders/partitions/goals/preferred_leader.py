"""Leaders are those that stand first in the list of replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from loaddata.partitions.moves import Reorder
from shedders.partitions.goals.goal import Goal

if TYPE_CHECKING:
    from shedders.partitions.limits import Limits
    from shedders.partitions.search import Search


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

    def limit(self, limits: Limits) -> None:
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
