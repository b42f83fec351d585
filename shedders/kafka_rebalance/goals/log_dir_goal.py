"""Goal of the log directories of a broker (JBOD): its replicas are spread over its disks."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from shedders.kafka_rebalance.goals.broker_goals import DiskCapacity
from shedders.kafka_rebalance.goals.goal import Goal, exact
from shedders.kafka_rebalance.planning.disk_leveling import (
    DiskBudget,
    OpenDirectory,
    level,
    place_arrivals,
    place_leaving,
    set_ranges,
)
from shedders.kafka_rebalance.planning.limits import FAR
from shedders.kafka_rebalance.planning.plan import LogDirMove, amount
from shedders.kafka_rebalance.planning.virtual_cluster import LoadColumn
from shedders.model.amounts import count

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


class LogDirGoal(Goal):
    """A goal that moves replicas between the log directories of their brokers.

    Attributes:
        dir_moves: What it has planned.
    """

    dir_moves: tuple[LogDirMove, ...] = ()

    def _rows_by_name(self) -> dict[Place, int]:
        return {
            (self.cluster.topics[topic], int(number)): row
            for row, (topic, number) in enumerate(
                zip(self.cluster.topic_of.tolist(), self.cluster.partition_of.tolist(), strict=True)
            )
        }

    def _move(self, place: Place, row: int, broker: int, before: str | None, after: str, size: int) -> LogDirMove:
        return LogDirMove(
            topic=place[0],
            partition=place[1],
            broker=broker,
            replicas=self.cluster.ids(self.cluster.holders(row)),
            before=before,
            after=after,
            size_bytes=size,
        )


class LogDirs(LogDirGoal):
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
        self._rows = self._rows_by_name()
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
                moves.append(self._move((topic, number), self._rows[topic, number], broker.id, old, path, size))
        self.dir_moves = tuple(sorted(moves, key=lambda move: move.key))
        if search is not None and budget is not None and budget.stinted:
            search.stinted = True

    def _disks_of(self, broker: KafkaBroker) -> tuple[list[OpenDirectory], dict[Place, str], dict[Place, int]]:
        """Open directories with what stays on the broker, where that is now, and sizes of what comes."""
        cluster, place = self.cluster, self.cluster.index[broker.id]
        rows = cluster.on_broker(place)
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


class LogDirsLeave(LogDirGoal):
    """No replica is left in the log directories that are to be emptied.

    Formula, for each of these directories:

        replicas in the directory = 0

    and for each other one that is neither offline nor cordoned:

        bytes of its replicas <= size x range of disk-capacity
        bytes that come <= free bytes of its volume

    Moves: replicas go to other directories of the same broker, the largest first into the emptiest; no data crosses the network.
    Where not all of them fit like that, each goes into the fullest that it fits into.

    Example: `--remove-log-dirs 1:/d1`: 40 and 10 GB of it go to /d2 and /d3 of broker 1.

    Source: Cruise Control's remove_disks; KIP-113.
    """

    name = "log-dirs-leave"
    hard = True
    unit = "replicas"

    def prepare(self) -> str | None:
        self._rows = self._rows_by_name()
        emptied: defaultdict[int, set[str]] = defaultdict(set)
        for broker, path in self.request.log_dirs:
            emptied[broker].add(path)
        self._brokers = [(broker, emptied[broker.id]) for broker in self.scope.layout.brokers if broker.id in emptied]
        shares = [choice.range_share for choice in self.request.goals if choice.name == DiskCapacity.name]
        share = next((share for share in shares if share is not None), DiskCapacity.default_share)
        self._capacity_share = exact(share)
        self._room = {broker.id: self._targets(broker, paths) for broker, paths in self._brokers}
        open_ = [
            f"{broker.id}:{each.path}"
            for broker, paths in self._brokers
            for each in broker.log_dirs
            if each.path in paths and not each.cordoned
        ]
        if open_:
            self.remarks.append(
                f"{self.name}: {', '.join(open_[:NAMED_MAX])}{', ...' if open_[NAMED_MAX:] else ''} are not cordoned: their "
                "brokers may place new replicas there (cordoned.log.dirs, Kafka 4.3)"
            )
        return None

    def _leaving(self, broker: KafkaBroker, paths: set[str]) -> dict[Place, tuple[str, int, int]]:
        """Replicas in directories to be emptied: directory, size, row."""
        return {
            (topic, number): (directory.path, size, self._rows[topic, number])
            for directory in broker.log_dirs
            if directory.path in paths
            for topic, number, size in directory.replicas
            if (topic, number) in self._rows
        }

    def _targets(self, broker: KafkaBroker, paths: set[str]) -> list[OpenDirectory]:
        """Directories that may get replicas; `high` is what each may hold."""
        dirs = [each for each in broker.log_dirs if not (each.offline or each.cordoned or each.path in paths)]
        known = all(each.total_bytes for each in dirs)
        targets = []
        for each in dirs:
            used = sum(size for _, _, size in each.replicas)
            bounds = [] if each.total_bytes is None else [int(each.total_bytes * self._capacity_share)]
            bounds += [] if each.usable_bytes is None else [used + each.usable_bytes]
            mean = (each.total_bytes or 1) if known else 1
            targets.append(OpenDirectory(each.path, mean=mean, high=min(bounds, default=FAR), used=used))
        return targets

    def measured(self) -> tuple[Any, Any]:
        moved = {(move.broker, move.before, move.topic, move.partition) for move in self.dir_moves}
        left = [
            sum(
                before == path and (broker.id, before, *place) not in moved
                for place, (before, _, _) in self._leaving(broker, paths).items()
            )
            for broker, paths in self._brokers
            for path in sorted(paths)
        ]
        values = np.array(left, dtype=np.int64)
        return values, values

    def improve(self, search: Search) -> None:
        budget = DiskBudget(*search.budget_left)
        moves: list[LogDirMove] = []
        for broker, paths in self._brokers:
            leaving = self._leaving(broker, paths)
            free = {place: size for place, (_, size, row) in leaving.items() if not self.scope.frozen[row]}
            targets = self._targets(broker, paths)
            for place, path in place_leaving(targets, free, budget).items():
                before, size, row = leaving[place]
                moves.append(self._move(place, row, broker.id, before, path, size))
            self._room[broker.id] = targets
        self.dir_moves = tuple(sorted(moves, key=lambda move: move.key))
        search.stinted = search.stinted or budget.stinted

    def witness(self, search: Search) -> str:  # noqa: ARG002 - others need it
        moved = {move.key for move in self.dir_moves}
        left = [
            (size, broker.id, path, place, row)
            for broker, paths in self._brokers
            for place, (path, size, row) in self._leaving(broker, paths).items()
            if (*place, broker.id) not in moved
        ]
        may = [entry for entry in left if not self.scope.frozen[entry[-1]]]
        size, broker_id, path, (topic, number), _ = max(may or left)
        text = f"{count(len(left), 'replica')} left, such as {topic}-{number} ({amount(size, 'bytes')}) in {broker_id}:{path}"
        if not may:
            return f"{text}: none of them may move"
        room = max(max(0, disk.high - disk.used) for disk in self._room[broker_id])
        return f"{text}: no other log directory of that broker has more room than {amount(room, 'bytes')}"
