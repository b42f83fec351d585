"""Goals of modes: replicas that must leave where they are."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from shedders.kafka_rebalance.goals.goal import Goal
from shedders.kafka_rebalance.planning.virtual_cluster import LoadColumn
from shedders.model.amounts import count

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shedders.kafka_rebalance.planning.limits import GoalLimits
    from shedders.kafka_rebalance.planning.search import Search


class Evacuation(Goal):
    """Replicas leave: the largest first; later goals may place them better, which copies nothing more."""

    hard = True
    unit = "replicas"
    what: ClassVar[str]

    @abstractmethod
    def rows(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Replicas that are to leave: partitions, brokers."""

    def prepare(self) -> str | None:
        """Work out the ranges."""
        return None

    def measured(self) -> tuple[Any, Any]:
        """Values of the cells and their distances from the range."""
        _, brokers = self.rows()
        values = np.bincount(brokers, minlength=len(self.cluster.broker_ids))
        return values, values

    def limit(self, limits: GoalLimits) -> None:
        """Nothing to lay down: nothing is ever moved to where replicas must leave."""

    def improve(self, search: Search) -> int:
        """Make moves until none is found."""
        cluster = self.cluster
        rows, brokers = self.rows()
        fits = self.scope.movable(rows, brokers)
        rows, brokers = rows[fits], brokers[fits]
        order = np.lexsort((brokers, rows, -cluster.load[rows, LoadColumn.DISK]))
        made = 0
        homes = np.nonzero(self.scope.takers)[0]
        for number, place in enumerate(order.tolist()):
            search.advance(number, len(order))
            one, here = rows[place : place + 1], brokers[place : place + 1]
            found = search.moves(one, here, homes)[0]
            if not found.any():
                continue
            takers = homes[found]
            partition = int(one[0])
            counts = cluster.topic_replicas[cluster.topic_of[partition]]
            to = int(takers[np.lexsort((takers, counts[takers], search.fullness()[takers]))[0]])
            search.move(partition, int(here[0]), to)
            made += 1
        return made

    def witness(self, search: Search) -> str:
        """Where it is not met, and why."""
        cluster, scope = self.cluster, self.scope
        rows, brokers = self.rows()
        free = scope.movable(rows, brokers)
        text = f"{len(rows)} replicas {self.what}"
        if not free.any():
            name = cluster.name_of(int(rows[0]))
            return f"{text}, such as {name} on broker {cluster.broker_ids[int(brokers[0])]}: none of them may move"
        partition, broker = int(rows[free][0]), int(brokers[free][0])
        holders = len(cluster.holders(partition))
        homes = int(np.count_nonzero(scope.takers))
        text += f"; {cluster.name_of(partition)} on broker {cluster.broker_ids[broker]} finds no place"
        if homes < holders:
            return f"{text}: RF {holders} on {count(homes, 'usable broker')}"
        return f"{text} among {count(homes, 'usable broker')}: {self._against(search, partition, broker)}"

    def _against(self, search: Search, partition: int, broker: int) -> str:
        from shedders.kafka_rebalance.planning.tally import forbidden  # noqa: PLC0415 - tally is for witnesses only

        one, here = np.array([partition]), np.array([broker])
        return forbidden(search, one, here, self.scope.takers[None, :].copy())


class BrokersLeave(Evacuation):
    """No replica is left on brokers that are going: those to be removed, and those that are going offline.

    Formula, for each broker that is going:

        replicas of the broker = 0

    Moves: the largest replicas first, each to the emptiest broker that the hard goals allow.

    Example: broker 4 is removed with 10 replicas: each is copied once, nothing else is.

    Source: Cruise Control's remove_broker.
    """

    name = "brokers-leave"
    what = "are on brokers that are going"

    def rows(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Replicas that are to leave: partitions, brokers."""
        cluster = self.cluster
        found = np.append(self.scope.leaving, False)[cluster.replicas]
        rows, places = np.nonzero(found)
        return rows, cluster.replicas[rows, places]


class OfflineReplicas(Evacuation):
    """No replica stays on a broker or log directory that is away.

    Formula, for each broker:

        offline replicas of the broker = 0

    Moves: offline replicas only, as those of brokers-leave. A partition without any leader has nothing to be copied from; it
    stays, and is named.

    Example: broker 2 is dead with 10 replicas: each gets a new place.

    Source: Cruise Control's fix_offline_replicas.
    """

    name = "offline-replicas"
    what = "are offline"

    def rows(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Replicas that are to leave: partitions, brokers."""
        cluster = self.cluster
        lost = self.scope.lost
        if lost is None:  # another mode
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
        found = np.zeros(lost.shape, dtype=bool)
        for place in range(lost.shape[1]):
            found |= (cluster.replicas == lost[:, place, None]) & (cluster.replicas >= 0)
        rows, places = np.nonzero(found)
        return rows, cluster.replicas[rows, places]
