"""Goals that belong to a mode of the plan: brokers to empty, offline replicas, demotion, a new replication factor."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from shedders.kafka_rebalance.goals.goal import Goal
from shedders.kafka_rebalance.planning.virtual_cluster import AddReplica, LoadColumn, Measure, RemoveReplica, Reorder
from shedders.model.amounts import count

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shedders.kafka_rebalance.planning.search import Search


class Evacuation(Goal):
    """Replicas leave: the largest first; later goals may place them better, which copies nothing more."""

    hard = True
    unit = "replicas"
    what: ClassVar[str]

    @abstractmethod
    def rows(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Replicas that are to leave: partitions, brokers."""

    def measured(self) -> tuple[Any, Any]:
        _, brokers = self.rows()
        values = np.bincount(brokers, minlength=len(self.cluster.broker_ids))
        return values, values

    def improve(self, search: Search) -> None:
        cluster = self.cluster
        rows, brokers = self.rows()
        fits = self.scope.movable(rows, brokers)
        rows, brokers = rows[fits], brokers[fits]
        order = np.lexsort((brokers, rows, -cluster.load[rows, LoadColumn.DISK]))
        homes = np.nonzero(self.scope.takers)[0]
        for number, place in enumerate(order.tolist()):
            search.advance(number, len(order))
            single, here = rows[place : place + 1], brokers[place : place + 1]
            allowed = search.moves(single, here, homes)[0]
            if not allowed.any():
                continue
            takers = homes[allowed]
            partition = int(single[0])
            counts = cluster.topic_replicas[cluster.topic_of[partition]]
            to = int(takers[np.lexsort((takers, counts[takers], search.fullness()[takers]))[0]])
            search.move(partition, int(here[0]), to)

    def witness(self, search: Search) -> str:
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
        against = search.forbidden(np.array([partition]), np.array([broker]), scope.takers[None, :].copy())
        return f"{text} among {count(homes, 'usable broker')}: {against}"


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
        cluster = self.cluster
        rows, places = np.nonzero(np.append(self.scope.leaving, False)[cluster.replicas])
        return rows, cluster.replicas[rows, places]


class ChosenBrokers(Evacuation):
    """All replicas of the chosen topics are on the chosen brokers.

    Formula, for each broker that was not chosen:

        replicas of the chosen topics on the broker = 0

    Moves: as those of brokers-leave. What is on a chosen broker already stays there, unless a later goal needs it elsewhere
    among them; other topics stay.

    Example: `--topics orders --brokers 4,5,6`: the replicas of orders on 1, 2 and 3 go to 4, 5 and 6, each to another rack.

    Source: Cruise Control's destination_broker_ids.
    """

    name = "chosen-brokers"
    what = "of the chosen topics are on other brokers"

    def rows(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        cluster, scope = self.cluster, self.scope
        away = np.append(~scope.homes, False)[cluster.replicas] & scope.chosen[:, None]
        rows, places = np.nonzero(away)
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
        cluster = self.cluster
        lost = self.scope.lost
        if lost is None:  # another mode
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
        offline = np.zeros(lost.shape, dtype=bool)
        for place in range(lost.shape[1]):
            offline |= (cluster.replicas == lost[:, place, None]) & (cluster.replicas >= 0)
        rows, places = np.nonzero(offline)
        return rows, cluster.replicas[rows, places]


class Demotion(Goal):
    """Brokers that are demoted lead nothing and are the preferred leader of no partition.

    Formula, for each partition with a leader:

        neither the leader nor the first of its replicas is a demoted broker

    Moves: leader switches to the replica on the broker that leads least, and order changes; no data is moved.

    Example: broker 1 is demoted; replicas 1, 2, 3 led by 1 become 2, 1, 3 led by 2.

    Source: Cruise Control's demote_broker.
    """

    name = "demotion"
    hard = True
    unit = "partitions"

    def _beyond(self) -> Any:
        cluster, subjects = self.cluster, self.scope.subjects
        leads = (cluster.leader >= 0) & subjects[cluster.leader]
        return leads | ((cluster.leader >= 0) & subjects[cluster.replicas[:, 0]])

    def measured(self) -> tuple[Any, Any]:
        values = self._beyond().astype(np.int64)
        return values, values

    def improve(self, search: Search) -> None:
        cluster, scope = self.cluster, self.scope
        rows = np.nonzero(self._beyond() & ~scope.frozen)[0].tolist()
        for number, partition in enumerate(rows):
            search.advance(number, len(rows))
            leader = int(cluster.leader[partition])
            if scope.subjects[leader]:
                to = np.array(cluster.holders(partition))
                partitions = np.full(len(to), partition)
                allowed = (to != leader) & search.switches(partitions, to)
                if not allowed.any():
                    continue
                to = to[allowed]
                sums = cluster.sums
                load = sums[Measure.LEADER_IN] if sums[Measure.LEADER_IN].any() else sums[Measure.LEADERS]
                search.switch(partition, int(to[np.lexsort((to, load[to]))[0]]))
            else:
                search.make(Reorder(partition, 0, cluster.holders(partition).index(leader)))

    def witness(self, search: Search) -> str:  # noqa: ARG002 - others need it
        cluster = self.cluster
        rows = np.nonzero(self._beyond())[0]
        partition = int(rows[0])
        holders = ", ".join(str(cluster.broker_ids[broker]) for broker in cluster.holders(partition))
        why = "it may not be changed" if self.scope.frozen[partition] else "no other replica may lead"
        return f"{len(rows)} partitions stay, such as {cluster.name_of(partition)} on brokers {holders}: {why}"


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
        self.wanted = self.request.replication_factor or 0
        return None

    def _missing(self) -> Any:
        missing = self.wanted - (self.cluster.replicas >= 0).sum(axis=1)
        return np.where(self.scope.frozen, 0, missing)

    def measured(self) -> tuple[Any, Any]:
        values = np.abs(self._missing()[~self.scope.frozen])
        return values, values

    def improve(self, search: Search) -> None:
        missing = self._missing()
        rows = np.nonzero(missing)[0]
        order = rows[np.lexsort((rows, -self.cluster.load[rows, LoadColumn.DISK]))].tolist()
        for number, partition in enumerate(order):
            search.advance(number, len(order))
            search.look()
            step = self._add if missing[partition] > 0 else self._drop
            for _ in range(abs(int(missing[partition]))):
                if not step(search, partition):
                    break

    def _racks(self, partition: int) -> Any:
        """How many replicas of the partition are in the rack of each broker. B."""
        cluster = self.cluster
        held = cluster.rack_of[cluster.holders(partition)]
        return np.where(cluster.rack_of >= 0, (held[:, None] == cluster.rack_of).sum(axis=0), 0)

    def _add(self, search: Search, partition: int) -> bool:
        cluster, scope = self.cluster, self.scope
        weight = cluster.as_follower[:, partition]
        room = np.maximum(search.limits.high - cluster.sums, 0)
        allowed = scope.takers & (weight[:, None] <= room).all(axis=0)
        here = cluster.holders(partition)
        allowed[here] = False
        if not allowed.any() or not search.affordable_new(partition):
            return False
        takers = np.nonzero(allowed)[0]
        counts = cluster.topic_replicas[cluster.topic_of[partition]]
        racks, fullness = self._racks(partition), search.fullness()
        to = int(takers[np.lexsort((takers, counts[takers], fullness[takers], racks[takers]))[0]])
        search.make(AddReplica(partition, len(here), to))
        return True

    def _drop(self, search: Search, partition: int) -> bool:
        cluster, scope = self.cluster, self.scope
        leader = int(cluster.leader[partition])
        here = np.array([broker for broker in cluster.holders(partition) if broker != leader])
        if not len(here):
            return False
        racks, fullness = self._racks(partition), search.fullness()
        unwanted = ~scope.homes[here]
        best = int(here[np.lexsort((here, -fullness[here], -racks[here], ~unwanted))[0]])
        search.make(RemoveReplica(partition, cluster.holders(partition).index(best)))
        return True

    def witness(self, search: Search) -> str:  # noqa: ARG002 - others need it
        cluster = self.cluster
        missing = self._missing()
        partition = int(np.abs(missing).argmax())
        return (
            f"{int(np.count_nonzero(missing))} partitions, such as {cluster.name_of(partition)} with "
            f"{len(cluster.holders(partition))} replicas: no broker has room for another"
        )
