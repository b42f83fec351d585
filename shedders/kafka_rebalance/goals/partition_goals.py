"""Goals of single partitions: racks, preferred leaders, and those of a mode: evacuation, demotion, a new replication factor."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from shedders.kafka_rebalance.goals.goal import Goal
from shedders.kafka_rebalance.planning.scope import RackSpread, most_in_rack
from shedders.kafka_rebalance.planning.virtual_cluster import AddReplica, LoadColumn, Measure, RemoveReplica, Reorder
from shedders.model.amounts import count

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shedders.kafka_rebalance.planning.limits import GoalLimits
    from shedders.kafka_rebalance.planning.search import Search


class RackAwareness(Goal):
    """Replicas of a partition are spread over racks; its rule holds for all later goals."""

    hard = True

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
                f"rack-awareness: {count(len(without), 'broker')} without a rack ({names}): each is taken for a rack of its own"
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
            f"{cluster.name_of(worst)} has {count(len(here), 'replica')} on brokers "
            f"{', '.join(str(cluster.broker_ids[broker]) for broker in here)}, {int(self.most[len(here)])} may share one of the "
            f"{self.usable} usable racks"
        )
        homes = int(np.count_nonzero(self.scope.homes))
        if homes < len(here):
            return f"{text}; with {count(homes, 'usable broker')} only"
        movable = self.scope.movable(np.full(len(here), worst), np.array(here))
        if not movable.any():
            return f"{text}; none of them may move"
        return f"{text}; no broker of another rack may take one"


class PreferredLeader(Goal):
    """The first of the replicas leads."""

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


class Evacuation(Goal):
    """Replicas leave: the largest first; later goals may place them better, which copies nothing more."""

    hard = True
    what: ClassVar[str]

    @abstractmethod
    def leaving(self) -> NDArray[np.bool_]:
        """Which replicas are to leave. P x R."""

    def rows(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The same as partitions and brokers."""
        rows, places = np.nonzero(self.leaving() & ~self.scope.staying[:, None])
        return rows, self.cluster.replicas[rows, places]

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
        text = f"{count(len(rows), 'replica')} {self.what}"
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
    """Off brokers that are removed, or going offline."""

    what = "on brokers that are going"

    def leaving(self) -> NDArray[np.bool_]:
        leaving: NDArray[np.bool_] = np.append(self.scope.leaving, np.False_)[self.cluster.replicas]
        return leaving


class ChosenBrokers(Evacuation):
    """Of the chosen topics, off brokers that were not chosen."""

    what = "of the chosen topics on other brokers"

    def leaving(self) -> NDArray[np.bool_]:
        scope = self.scope
        leaving: NDArray[np.bool_] = np.append(~scope.homes, np.False_)[self.cluster.replicas] & scope.chosen[:, None]
        return leaving


class OfflineReplicas(Evacuation):
    """Off brokers and log directories that are away."""

    what = "offline"

    def leaving(self) -> NDArray[np.bool_]:
        held, lost = self.cluster.replicas, self.scope.lost
        if lost is None:  # another mode
            return np.zeros(held.shape, dtype=bool)
        leaving: NDArray[np.bool_] = (held >= 0) & (held[:, :, None] == lost[:, None, :]).any(axis=2)
        return leaving


class Demotion(Goal):
    """Leaderships leave the brokers of the mode."""

    hard = True

    def _beyond(self) -> Any:
        cluster, subjects = self.cluster, self.scope.subjects
        leads = (cluster.leader >= 0) & subjects[cluster.leader]
        return (leads | ((cluster.leader >= 0) & subjects[cluster.replicas[:, 0]])) & ~self.scope.staying

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
        return f"{count(len(rows), 'partition')} left, such as {cluster.name_of(partition)} on brokers {holders}: {why}"


class ReplicationFactor(Goal):
    """Replicas are added or removed."""

    hard = True

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
            f"{count(int(np.count_nonzero(missing)), 'partition')}, such as {cluster.name_of(partition)} with "
            f"{count(len(cluster.holders(partition)), 'replica')}: no broker has room for another"
        )
