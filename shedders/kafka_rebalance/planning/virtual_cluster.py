"""Virtual cluster: a copy of the real one in arrays, changed only by reversible moves.

Brokers, topics, partitions and places (of a replica in its list) are indexes of arrays here; all loads are whole numbers, so that
a move and its inverse leave every sum exactly as it was. The loads of brokers are updated with each move, in `sums`, one row per
`Measure`. A follower takes a third of its leader's CPU (design/partitions.md); a follower's bytes in are those of its leader,
and bytes fetched by followers count as bytes out of the leader.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from loaddata.samples.partitions import ClusterLayout, PartitionLoads


class SwitchLeader(NamedTuple):
    """Switch of the leader to another replica; no data is moved."""

    partition: int
    to: int


class MoveReplica(NamedTuple):
    """Move of the replica at a place of the list to another broker, with its leadership if it leads."""

    partition: int
    place: int
    to: int


class Swap(NamedTuple):
    """Swap of the brokers of two replicas."""

    partition: int
    place: int
    other: int
    other_place: int


class AddReplica(NamedTuple):
    """Addition of a follower at a place."""

    partition: int
    place: int
    broker: int


class RemoveReplica(NamedTuple):
    """Removal of the follower at a place."""

    partition: int
    place: int


class Reorder(NamedTuple):
    """Swap of two places of the list; the leader stays."""

    partition: int
    place: int
    other_place: int


Move = SwitchLeader | MoveReplica | Swap | AddReplica | RemoveReplica | Reorder


def between(partition: int, here: Sequence[int], leader: int, there: Sequence[int], leads: int) -> list[Move]:
    """Changes from one list of replicas to another of the same length, with another leader.

    Args:
        here: Present replicas. leader: One of them, or -1.
        there: New replicas. leads: New leader.
    """
    now = list(here)
    moves: list[Move] = []
    coming = [broker for broker in there if broker not in here]
    for place, broker in enumerate(here):
        if broker not in there:
            now[place] = coming.pop(0)
            leader = now[place] if leader == broker else leader
            moves.append(MoveReplica(partition, place, now[place]))
    if leader != leads:
        moves.append(SwitchLeader(partition, leads))
    for place, target in enumerate(there):
        if now[place] != target:
            other = now.index(target)
            now[place], now[other] = now[other], now[place]
            moves.append(Reorder(partition, place, other))
    return moves


NOBODY: Final = -1
FOLLOWER_CPU: Final = 3
"""Share of the leader's CPU that a follower takes: one third."""


class Measure(IntEnum):
    """Rows of `VirtualCluster.sums`: measures of a broker's load."""

    REPLICAS = 0
    LEADERS = 1
    DISK = 2
    LEADER_IN = 3
    LEADER_OUT = 4
    NET_IN = 5
    NET_OUT = 6
    CPU = 7


class LoadColumn(IntEnum):
    """Columns of `VirtualCluster.load` and `known`."""

    DISK = 0
    BYTES_IN = 1
    BYTES_OUT = 2
    CPU = 3


class VirtualCluster:
    """Brokers, partitions and their loads, as arrays. P partitions, R places for replicas, B brokers, T topics.

    Attributes:
        broker_ids: Kafka's ids, ascending. B.
        alive: Whether a broker is alive. B.
        racks: Names of the racks, sorted. A broker without one has rack -1. `rack_of`: B.
        topics: Names, sorted. T.
        topic_of: P. `partition_of`: number within the topic. P. `first_of`: first partition of each topic, T + 1.
        replicas: Brokers in preferred order, then -1. P x R.
        leader: Broker, or -1. P.
        in_sync: Whether a replica was in sync at the beginning, by the places of the beginning. P x R.
        offline: Whether a replica was offline at the beginning. P x R.
        in_motion: Whether a reassignment is under way. P.
        load: Disk, bytes in, bytes out, CPU of the leader; 0 where not known. P x 4. `known`: P x 4.
        as_leader: Load of a leader of each partition, one row per `Measure`. 8 x P. `as_follower`: of a follower.
        sums: Loads of brokers. 8 x B.
        changes: Number of changes to a broker's replicas or leaders. B. `changed_partitions`: those of all changes, in order.
        topic_replicas: Replicas of a topic on a broker. T x B. `topic_leaders`: its leaders.
    """

    def __init__(self, layout: ClusterLayout, loads: PartitionLoads, *, completeness_min: float = 0.0, room: int = 1):
        named = {broker for _, part in layout.partitions() for broker in part.replicas}
        of_id = {broker.id: broker for broker in layout.brokers}
        ids = sorted(named | set(of_id))
        self.broker_ids: list[int] = ids
        self.index: dict[int, int] = {broker: place for place, broker in enumerate(ids)}
        self.alive = np.array([id_ in of_id and of_id[id_].alive for id_ in ids], dtype=bool)
        names = [of_id[id_].rack if id_ in of_id else None for id_ in ids]
        self.racks: list[str] = sorted({name for name in names if name is not None})
        rack_place = {name: place for place, name in enumerate(self.racks)}
        self.rack_of = np.array([NOBODY if name is None else rack_place[name] for name in names], dtype=np.int32)
        self.topics: list[str] = sorted(layout.topics)
        self._read_partitions(layout, room)
        self._read_loads(loads, completeness_min)
        self._count()

    # --- reading ---------------------------------------------------------------------------

    def _read_partitions(self, layout: ClusterLayout, room: int) -> None:
        index = self.index
        lists: list[tuple[int, ...]] = []
        leaders: list[int] = []
        topic_of: list[int] = []
        numbers: list[int] = []
        synced: list[tuple[int, int]] = []
        lost: list[tuple[int, int]] = []
        moving: list[int] = []
        first = [0]
        for topic, name in enumerate(self.topics):
            for part in layout.topics[name].partitions:
                row = len(lists)
                lists.append(tuple([index[broker] for broker in part.replicas]))
                leaders.append(NOBODY if part.leader not in part.replicas else index[part.leader])
                topic_of.append(topic)
                numbers.append(part.partition)
                for place, broker in enumerate(part.replicas):
                    if broker in part.offline or not self.alive[index[broker]]:
                        lost.append((row, place))
                    if part.isr and broker not in part.isr:
                        synced.append((row, place))
                if part.in_motion:
                    moving.append(row)
            first.append(len(lists))
        places = max([room, 1, *map(len, lists)])
        count = len(lists)
        self.replicas = np.full((count, places), NOBODY, dtype=np.int32)
        for length in {len(brokers) for brokers in lists} - {0}:
            rows = [row for row, brokers in enumerate(lists) if len(brokers) == length]
            self.replicas[rows, :length] = [lists[row] for row in rows]
        self.leader = np.array(leaders, dtype=np.int32)
        self.topic_of = np.array(topic_of, dtype=np.int32)
        self.partition_of = np.array(numbers, dtype=np.int32)
        self.first_of = np.array(first, dtype=np.int64)
        self.in_sync = self.replicas >= 0
        self.in_sync[tuple(np.array(synced, dtype=np.int64).reshape(-1, 2).T)] = False
        self.offline = np.zeros_like(self.in_sync)
        self.offline[tuple(np.array(lost, dtype=np.int64).reshape(-1, 2).T)] = True
        self.in_motion = np.zeros(count, dtype=bool)
        self.in_motion[moving] = True

    def _read_loads(self, loads: PartitionLoads, completeness_min: float) -> None:
        count = len(self.leader)
        figures = np.zeros((count, len(LoadColumn)), dtype=np.int64)
        known = np.zeros((count, len(LoadColumn)), dtype=bool)
        start = {name: int(self.first_of[topic]) for topic, name in enumerate(self.topics)}
        end = {name: int(self.first_of[topic + 1]) for topic, name in enumerate(self.topics)}
        for (name, number), load in loads.of.items():
            row = start.get(name, count) + number
            if row >= end.get(name, 0) or number < 0 or load.completeness < completeness_min:
                continue
            if self.partition_of[row] != number:
                continue
            for column, value in enumerate(
                (load.disk_bytes, load.bytes_in_per_s, load.bytes_out_per_s, load.cpu_units)
            ):
                if value is not None and value >= 0:
                    figures[row, column] = value
                    known[row, column] = True
        self.load, self.known = figures, known
        disk, taken, measured, cpu = figures.T
        self.as_leader = np.zeros((len(Measure), count), dtype=np.int64, order="F")
        self.as_follower = np.zeros((len(Measure), count), dtype=np.int64, order="F")
        followers = (self.replicas >= 0).sum(axis=1) - 1
        weighing: dict[Measure, tuple[Any, Any]] = {
            Measure.REPLICAS: (1, 1),
            Measure.LEADERS: (1, 0),
            Measure.DISK: (disk, disk),
            Measure.LEADER_IN: (taken, 0),
            Measure.LEADER_OUT: (measured, 0),
            Measure.NET_IN: (taken, taken),
            Measure.NET_OUT: (measured + taken * np.maximum(followers, 0), 0),
            Measure.CPU: (cpu, cpu // FOLLOWER_CPU),
        }
        for column, (leads, follows) in weighing.items():
            self.as_leader[column] = leads
            self.as_follower[column] = follows

    def _count(self) -> None:
        brokers, topics = len(self.broker_ids), len(self.topics)
        self.sums = np.zeros((len(Measure), brokers), dtype=np.int64)
        self.topic_replicas = np.zeros((topics, brokers), dtype=np.int32)
        self.topic_leaders = np.zeros((topics, brokers), dtype=np.int32)
        rows, places = np.nonzero(self.replicas >= 0)
        at = self.replicas[rows, places]
        leads = self.leader[rows] == at
        for measure in Measure:
            weights = np.where(leads, self.as_leader[measure, rows], self.as_follower[measure, rows])
            np.add.at(self.sums[measure], at, weights)
        np.add.at(self.topic_replicas, (self.topic_of[rows], at), 1)
        np.add.at(self.topic_leaders, (self.topic_of[rows[leads]], at[leads]), 1)
        order = np.argsort(at, kind="stable")
        self._held = np.split(rows[order], np.searchsorted(at[order], np.arange(1, brokers)))
        self.changes = [0] * brokers
        self.changed_partitions: list[int] = []
        self._came: list[list[int]] = [[] for _ in range(brokers)]
        self._moved: set[int] = set()

    # --- asking ----------------------------------------------------------------------------

    @property
    def size(self) -> int:
        return len(self.leader)

    def holders(self, partition: int) -> list[int]:
        """Brokers that hold it, in order."""
        brokers: list[int] = self.replicas[partition].tolist()
        return [broker for broker in brokers if broker >= 0]

    def on_broker(self, broker: int) -> NDArray[np.int64]:
        """Partitions that it holds, ascending: the same array as long as they are the same."""
        if broker in self._moved:
            rows = self._held[broker]
            if self._came[broker]:
                rows = np.union1d(rows, np.array(self._came[broker], dtype=rows.dtype))
                self._came[broker] = []
            self._held[broker] = rows[(self.replicas[rows] == broker).any(axis=1)]
            self._moved.discard(broker)
        return self._held[broker]

    def name_of(self, partition: int) -> str:
        return f"{self.topics[self.topic_of[partition]]}-{self.partition_of[partition]}"

    def weight(self, partitions: Any, leads: Any, measure: int) -> NDArray[np.int64]:
        """Weights of replicas by one measure, n."""
        weights: NDArray[np.int64] = np.where(
            leads, self.as_leader[measure][partitions], self.as_follower[measure][partitions]
        )
        return weights

    def ids(self, brokers: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.broker_ids[broker] for broker in brokers)

    # --- changing --------------------------------------------------------------------------

    def apply(self, move: Move) -> Move:
        """Apply a move; returns its inverse, which restores the state before it."""
        self.changed_partitions += [move.partition, move.other] if isinstance(move, Swap) else [move.partition]
        match move:
            case SwitchLeader(partition, to):
                before = int(self.leader[partition])
                self._lead(partition, before, -1)
                self.leader[partition] = to
                self._lead(partition, to, 1)
                return SwitchLeader(partition, before)
            case MoveReplica(partition, place, to):
                return MoveReplica(partition, place, self._relocate(partition, place, to))
            case Swap(one, place, other, other_place):
                here, there = int(self.replicas[one, place]), int(self.replicas[other, other_place])
                self._relocate(one, place, there)
                self._relocate(other, other_place, here)
                return move
            case AddReplica(partition, place, broker):
                self._insert(partition, place, broker)
                return RemoveReplica(partition, place)
            case RemoveReplica(partition, place):
                return AddReplica(partition, place, self._delete(partition, place))
            case Reorder(partition, place, other_place):
                row = self.replicas[partition]
                row[place], row[other_place] = int(row[other_place]), int(row[place])
                return move

    def _lead(self, partition: int, broker: int, sign: int) -> None:
        """Add (1) or subtract (-1) a leadership: the difference between leading and following."""
        if broker < 0:
            return
        self.sums[:, broker] += sign * (self.as_leader[:, partition] - self.as_follower[:, partition])
        self.topic_leaders[self.topic_of[partition], broker] += sign
        self.changes[broker] += 1

    def _relocate(self, partition: int, place: int, to: int) -> int:
        source = int(self.replicas[partition, place])
        leads = self.leader[partition] == source
        weight = self.as_leader[:, partition] if leads else self.as_follower[:, partition]
        topic = self.topic_of[partition]
        self.sums[:, source] -= weight
        self.sums[:, to] += weight
        self.topic_replicas[topic, source] -= 1
        self.topic_replicas[topic, to] += 1
        if leads:
            self.topic_leaders[topic, source] -= 1
            self.topic_leaders[topic, to] += 1
            self.leader[partition] = to
        self.replicas[partition, place] = to
        self.changes[source] += 1
        self.changes[to] += 1
        self._came[to].append(partition)
        self._moved |= {source, to}
        return source

    def _insert(self, partition: int, place: int, broker: int) -> None:
        row = self.replicas[partition]
        row[place + 1 :] = row[place:-1].copy()
        row[place] = broker
        self._followers(partition, 1)
        self.changes[broker] += 1
        self.sums[:, broker] += self.as_follower[:, partition]
        self.topic_replicas[self.topic_of[partition], broker] += 1
        self._came[broker].append(partition)
        self._moved.add(broker)

    def _delete(self, partition: int, place: int) -> int:
        row = self.replicas[partition]
        broker = int(row[place])
        if self.leader[partition] == broker:
            raise ValueError("a leader's replica is not removed: switch first")
        row[place:-1] = row[place + 1 :].copy()
        row[-1] = NOBODY
        self._followers(partition, -1)
        self.changes[broker] += 1
        self.sums[:, broker] -= self.as_follower[:, partition]
        self.topic_replicas[self.topic_of[partition], broker] -= 1
        self._moved.add(broker)
        return broker

    def _followers(self, partition: int, more: int) -> None:
        """Update the leader's load for one follower more or less."""
        extra = more * int(self.load[partition, LoadColumn.BYTES_IN])
        self.as_leader[Measure.NET_OUT, partition] += extra
        if self.leader[partition] >= 0:
            self.sums[Measure.NET_OUT, self.leader[partition]] += extra
