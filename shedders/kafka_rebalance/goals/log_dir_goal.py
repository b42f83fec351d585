"""Goal of the log directories of a broker (JBOD): its replicas are spread over its disks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shedders.kafka_rebalance.goals.goal import Goal
from shedders.kafka_rebalance.planning.disk_leveling import DiskBudget, OpenDirectory, level, place_arrivals, set_ranges
from shedders.kafka_rebalance.planning.plan import LogDirMove, amount
from shedders.kafka_rebalance.planning.virtual_cluster import LoadColumn

if TYPE_CHECKING:
    from loaddata.samples.partitions import ClusterLayout, KafkaBroker
    from shedders.kafka_rebalance.planning.disk_leveling import Place
    from shedders.kafka_rebalance.planning.search import Search

NAMED_MAX = 5


def has_several_disks(layout: ClusterLayout) -> bool:
    """Whether a live broker has several log directories whose replicas are known."""
    return any(broker.alive and _open_paths(broker) for broker in layout.brokers)


def _open_paths(broker: KafkaBroker) -> list[str]:
    """Directories that may get replicas, if there are several, or one beside a cordoned one; else none."""
    online = [directory for directory in broker.log_dirs if not directory.offline]
    known = any(directory.replicas for directory in online)
    return [directory.path for directory in online if not directory.cordoned] if len(online) > 1 and known else []


class LogDirs(Goal):
    """The replicas of a broker are spread over its log directories, by size (JBOD).

    Formula, for each directory of a broker that is neither offline nor cordoned:

        mean = bytes of the broker's replicas in such directories x size of the directory / size of all of them
        mean x (1 - range) <= bytes of its replicas <= mean x (1 + range)

    Moves: replicas go from one directory to another of the same broker, or two are exchanged; no data crosses the network. A
    replica that the plan brings to the broker gets its directory in advance. A cordoned directory keeps what it has and gets
    nothing.

    Example: 80, 30 and 10 GB on three equal disks: 40 GB leave the first one, 30 of them for the third.

    Source: Cruise Control's IntraBrokerDiskUsageDistributionGoal; KIP-113, KIP-1066.
    """

    name = "log-dirs"
    unit = "bytes"
    default_share = 0.1
    share_of = "of the mean of the broker's directories, up and down"

    def prepare(self) -> str | None:
        homes = self.scope.homes
        self.brokers = [
            broker
            for broker in self.scope.layout.brokers
            if broker.id in self.cluster.index and homes[self.cluster.index[broker.id]] and _open_paths(broker)
        ]
        self.dir_moves: tuple[LogDirMove, ...] = ()
        self._disks: list[OpenDirectory] = []
        if not self.brokers:
            return "no broker has several log directories with known replicas"
        cordoned = [
            f"{broker.id}:{directory.path}"
            for broker in self.brokers
            for directory in broker.log_dirs
            if directory.cordoned
        ]
        if cordoned:
            self.remarks.append(
                f"log-dirs: cordoned directories get nothing and keep what they have: {', '.join(cordoned[:NAMED_MAX])}"
                + (f" and {len(cordoned) - NAMED_MAX} more" if len(cordoned) > NAMED_MAX else "")
            )
        self._rows = {
            (self.cluster.topics[topic], int(number)): row
            for row, (topic, number) in enumerate(
                zip(self.cluster.topic_of.tolist(), self.cluster.partition_of.tolist(), strict=True)
            )
        }
        self._look(planned=False)
        return None

    def measured(self) -> tuple[Any, Any]:
        values = np.array([disk.used for disk in self._disks], dtype=np.int64)
        return values, np.array([disk.excess for disk in self._disks], dtype=np.int64)

    def improve(self, search: Search) -> None:
        """Plan all of it from the present state of the brokers: what was planned before is forgotten."""
        moves_left, bytes_left = search.budget_left
        self._look(planned=True, budget=DiskBudget(moves_left, bytes_left), search=search)

    def _look(self, *, planned: bool, budget: DiskBudget | None = None, search: Search | None = None) -> None:
        self._disks, moves = [], list[LogDirMove]()
        for broker in self.brokers:
            disks, before, arrivals = self._disks_of(broker)
            self._disks += disks
            if not planned or budget is None:
                continue
            placed = place_arrivals(disks, arrivals)
            moved = level(disks, budget)
            after = placed | moved
            for (topic, number), path in after.items():
                old = before.get((topic, number))
                if old == path:
                    continue
                size = next(disk.free[topic, number] for disk in disks if disk.path == path)
                moves.append(
                    LogDirMove(
                        topic=topic,
                        partition=number,
                        broker=broker.id,
                        replicas=self.cluster.ids(self.cluster.holders(self._rows[topic, number])),
                        before=old,
                        after=path,
                        size_bytes=size,
                    )
                )
        self.dir_moves = tuple(sorted(moves, key=lambda move: move.key))
        if search is not None and budget is not None and budget.stinted:
            search.stinted = True

    def _disks_of(self, broker: KafkaBroker) -> tuple[list[OpenDirectory], dict[Place, str], dict[Place, int]]:
        """Open directories with what stays on the broker, where that is now, and sizes of what comes."""
        cluster, place = self.cluster, self.cluster.index[broker.id]
        rows, _ = cluster.on_broker(place)
        held = {(cluster.topics[cluster.topic_of[row]], int(cluster.partition_of[row])): int(row) for row in rows}
        disks = {path: OpenDirectory(path) for path in _open_paths(broker)}
        before: dict[Place, str] = {}
        for directory in broker.log_dirs:
            for topic, number, size in directory.replicas:
                row = held.pop((topic, number), None)
                if row is None or directory.path not in disks:
                    continue
                before[topic, number] = directory.path
                disk = disks[directory.path]
                disk.used += size
                if not self.scope.frozen[row]:
                    disk.free[topic, number] = size
        fresh = np.array(list(held.values()), dtype=np.int64)
        comes = self.scope.placed(fresh, np.full(len(fresh), place)).tolist()
        arrivals = {
            key: int(cluster.load[row, LoadColumn.DISK])
            for (key, row), new in zip(held.items(), comes, strict=True)
            if new
        }
        total = sum(disk.used for disk in disks.values()) + sum(arrivals.values())
        sizes = {directory.path: directory.total_bytes for directory in broker.log_dirs}
        set_ranges(disks.values(), sizes, total, self.share)
        return list(disks.values()), before, arrivals

    def witness(self, search: Search) -> str:  # noqa: ARG002 - others need it
        worst = max(self._disks, key=lambda disk: disk.excess)
        bound = worst.high if worst.used > worst.high else worst.low
        than = "more" if worst.used > worst.high else "less"
        return (
            f"directory {worst.path} has {amount(worst.used, 'bytes')}, {than} than {amount(bound, 'bytes')}; "
            "no replica of its broker fits better"
        )
