"""Goals of the log directories of a broker (JBOD), and the leveling of one broker's: which of its replicas go where. Pure.

    use of a directory = bytes of its replicas
    mean               = bytes of all open directories of the broker x size of the directory / size of all
    range              = mean x (1 - share) to mean x (1 + share)

Open are directories that are neither offline nor cordoned; a cordoned one keeps what it has and gets nothing. Where a size is not
known, all count as equal. Replicas that come from other brokers are placed first, the largest first into the emptiest directory;
then replicas are moved, or exchanged, from directories above the range to those below the mean, with the fewest bytes that bring
one of the two into the range.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shedders.kafka_rebalance.goals.broker_goals import CAPACITY_SHARE, DISK_CAPACITY
from shedders.kafka_rebalance.goals.goal import Goal, exact
from shedders.kafka_rebalance.planning.limits import FAR
from shedders.kafka_rebalance.planning.plan import LogDirMove, amount
from shedders.kafka_rebalance.planning.virtual_cluster import LoadColumn
from shedders.model.amounts import count

if TYPE_CHECKING:
    from loaddata.samples.partitions import ClusterLayout, KafkaBroker
    from shedders.kafka_rebalance.planning.search import Search


ROUNDS_MAX: Final = 100_000
Place = tuple[str, int]


@dataclass(slots=True)
class OpenDirectory:
    """One open directory: its range, its fixed bytes (replicas that must stay), and the replicas that may move, by size."""

    path: str
    low: int = 0
    mean: int = 0
    high: int = 0
    used: int = 0
    free: dict[Place, int] = field(default_factory=dict)

    @property
    def excess(self) -> int:
        return max(self.used - self.high, self.low - self.used, 0)

    def put(self, place: Place, size: int) -> None:
        self.free[place] = size
        self.used += size

    def take(self, place: Place) -> int:
        size = self.free.pop(place)
        self.used -= size
        return size


@dataclass(slots=True)
class DiskBudget:
    """Moves and bytes that may still be spent; None: no bound. `stinted`: whether a bound excluded a move."""

    moves: int | None = None
    size_bytes: int | None = None
    stinted: bool = False

    def spend(self, moves: int, size_bytes: int) -> bool:
        fits = (self.moves is None or moves <= self.moves) and (
            self.size_bytes is None or size_bytes <= self.size_bytes
        )
        self.stinted |= not fits
        if fits:
            self.moves = None if self.moves is None else self.moves - moves
            self.size_bytes = None if self.size_bytes is None else self.size_bytes - size_bytes
        return fits


def set_ranges(disks: Iterable[OpenDirectory], sizes: Mapping[str, int | None], total: int, share: float) -> None:
    """Set the ranges of a broker's directories.

    Args:
        total: Bytes of all replicas that the broker has in them at the end.
    """
    every = list(disks)
    known = [sizes[disk.path] or 0 for disk in every]
    weights = known if all(known) else [1] * len(every)
    for disk, weight in zip(every, weights, strict=True):
        disk.mean = total * weight // sum(weights)
        disk.low, disk.high = int(disk.mean * (1 - share)), int(disk.mean * (1 + share))


def place_arrivals(disks: list[OpenDirectory], arrivals: Mapping[Place, int]) -> dict[Place, str]:
    """Directory of each replica that comes to the broker."""
    result: dict[Place, str] = {}
    for place, size in sorted(arrivals.items(), key=lambda item: (-item[1], item[0])):
        emptiest = min(disks, key=lambda disk: ((disk.used + size) / max(1, disk.mean), disk.path))
        emptiest.put(place, size)
        result[place] = emptiest.path
    return result


def place_leaving(disks: list[OpenDirectory], leaving: Mapping[Place, int], budget: DiskBudget) -> dict[Place, str]:
    """Directory of each replica that leaves another one of the broker, as far as they fit below `high`.

    The largest first into the emptiest; if not all of them fit like that, into the fullest that they fit into.
    """
    ways = [_placed(disks, leaving, budget, sign) for sign in (1, -1)]
    best = max(ways, key=lambda way: (len(way[0]), sum(leaving[place] for place in way[0])))
    result, spent = best
    by_path = {disk.path: disk for disk in disks}
    for place, path in result.items():
        by_path[path].put(place, leaving[place])
    budget.moves, budget.size_bytes, budget.stinted = spent.moves, spent.size_bytes, spent.stinted
    return result


def _placed(
    disks: list[OpenDirectory], leaving: Mapping[Place, int], budget: DiskBudget, sign: int
) -> tuple[dict[Place, str], DiskBudget]:
    """Directories of replicas, and what is left of the budget; sign 1: the emptiest first, -1: the fullest first."""
    used, left = {disk.path: disk.used for disk in disks}, replace(budget)

    def fill(disk: OpenDirectory) -> tuple[float, str]:
        return sign * used[disk.path] / max(1, disk.mean), disk.path

    result: dict[Place, str] = {}
    for place, size in sorted(leaving.items(), key=lambda item: (-item[1], item[0])):
        fitting = [disk for disk in disks if used[disk.path] + size <= disk.high]
        if fitting and left.spend(1, size):
            chosen = min(fitting, key=fill)
            used[chosen.path] += size
            result[place] = chosen.path
    return result, left


def level(disks: list[OpenDirectory], budget: DiskBudget) -> dict[Place, str]:
    """Directory of each replica that moves; each step lessens the sum of the excesses."""
    result: dict[Place, str] = {}
    for _ in range(ROUNDS_MAX):
        step = _step(disks, budget)
        if step is None:
            break
        for place, source, to in step:
            to.put(place, source.take(place))
            result[place] = to.path
    return result


def _step(disks: list[OpenDirectory], budget: DiskBudget) -> list[tuple[Place, OpenDirectory, OpenDirectory]] | None:
    """Next move, or exchange of two replicas; None: nothing helps."""
    fullest = sorted(disks, key=lambda disk: (disk.mean - disk.used, disk.path))
    for over in fullest:
        for under in reversed(fullest):
            if over.used - over.mean <= 0 or under.used - under.mean >= 0 or not (over.excess or under.excess):
                continue
            chosen = _between(over, under)
            if chosen is None:
                continue
            place, other = chosen
            size = over.free[place]
            back = 0 if other is None else under.free[other]
            if budget.spend(1 if other is None else 2, size + back):
                return [(place, over, under), *([] if other is None else [(other, under, over)])]
    return None


def _between(over: OpenDirectory, under: OpenDirectory) -> tuple[Place, Place | None] | None:
    """Replica to move, and the one to get for it, if any: that which leaves the least excess, with the fewest bytes."""
    ordered = sorted((size, place) for place, size in over.free.items())
    sizes = [size for size, _ in ordered]
    wanted = max(over.used - over.high, under.low - under.used, 1)
    best: tuple[int, int, Place, Place | None] | None = None
    before = over.excess + under.excess
    for back, other in [(0, None), *((size, place) for place, size in sorted(under.free.items()))]:
        at = bisect_left(sizes, wanted + back)
        for near in (at, at - 1):
            if not 0 <= near < len(sizes) or sizes[near] <= back:
                continue
            difference = sizes[near] - back
            left = _excess(over, -difference) + _excess(under, difference)
            if left < before and (best is None or (left, sizes[near] + back) < best[:2]):
                best = left, sizes[near] + back, ordered[near][1], other
        if other is None and best is not None and best[0] == 0:
            break
    return None if best is None else best[2:]


def _excess(disk: OpenDirectory, change: int) -> int:
    used = disk.used + change
    return max(used - disk.high, disk.low - used, 0)


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
    """Directories of a broker are levelled."""

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
    """Directories are emptied."""

    hard = True

    def prepare(self) -> str | None:
        self._rows = self._rows_by_name()
        emptied: defaultdict[int, set[str]] = defaultdict(set)
        for broker, path in self.request.log_dirs:
            emptied[broker].add(path)
        self._brokers = [(broker, emptied[broker.id]) for broker in self.scope.layout.brokers if broker.id in emptied]
        shares = [choice.range_share for choice in self.request.goals if choice.name == DISK_CAPACITY]
        share = next((share for share in shares if share is not None), CAPACITY_SHARE)
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
            (topic, number): (directory.path, size, row)
            for directory in broker.log_dirs
            if directory.path in paths
            for topic, number, size in directory.replicas
            if (row := self._rows.get((topic, number))) is not None and not self.scope.staying[row]
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
