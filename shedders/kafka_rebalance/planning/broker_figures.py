"""Load of each broker before and after moves, for reassignments of other tools. Pure.

Plain sums, broker by broker; the planner has its own, by arrays, and a test compares the two.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from loaddata.samples.formulas import FOLLOWER_PART
from loaddata.samples.layout import ClusterLayout
from loaddata.samples.loads import CPU_UNITS, PartitionLoad, PartitionLoads
from shedders.kafka_rebalance.planning.plan import BrokerChange, BrokerFigures, PartitionMove

_KNOWN = ("disk_bytes", "bytes_in_per_s", "bytes_out_per_s", "cpu_units")


@dataclass(slots=True)
class _Sums:
    replicas: int = 0
    leaders: int = 0
    disk_bytes: int | None = None
    bytes_in_per_s: int | None = None
    bytes_out_per_s: int | None = None
    cpu_units: int | None = None

    def add(self, load: PartitionLoad | None, *, leads: bool) -> None:
        self.replicas += 1
        self.leaders += leads
        if load is None:
            return
        for name in _KNOWN:
            value = getattr(load, name)
            if value is None or (name.startswith("bytes_") and not leads):
                continue
            part = value if leads or name != "cpu_units" else value // FOLLOWER_PART
            setattr(self, name, getattr(self, name) + part)

    def figures(self) -> BrokerFigures:
        return BrokerFigures(
            replicas=self.replicas,
            leaders=self.leaders,
            disk_bytes=self.disk_bytes,
            bytes_in_per_s=self.bytes_in_per_s,
            bytes_out_per_s=self.bytes_out_per_s,
            cpu=None if self.cpu_units is None else self.cpu_units / CPU_UNITS,
        )


def broker_changes(
    layout: ClusterLayout, loads: PartitionLoads, moves: Iterable[PartitionMove]
) -> tuple[BrokerChange, ...]:
    """Changes of each broker of the cluster, by id.

    Args:
        layout: Layout before the moves.
        loads: Known loads of its partitions.
        moves: Moves to apply.
    """
    moved = {(move.topic, move.partition): move for move in moves}
    # A measure that is known of any partition starts at 0 on every broker, as an empty broker carries nothing.
    known = {name: 0 for name in _KNOWN if any(getattr(load, name) is not None for load in loads.of.values())}
    before, after = (defaultdict[int, _Sums](lambda: _Sums(**known)) for _ in range(2))
    for topic, partition in layout.partitions():
        load = loads.of.get((topic.name, partition.partition))
        _count(before, partition.replicas, partition.leader, load)
        move = moved.get((topic.name, partition.partition))
        if move is None:
            _count(after, partition.replicas, partition.leader, load)
        else:
            _count(after, move.after, move.leader_after, load)
    comes, goes = _traffic(moved.values())
    return tuple(
        BrokerChange(
            id=broker.id,
            rack=broker.rack,
            alive=broker.alive,
            before=before[broker.id].figures(),
            after=after[broker.id].figures(),
            replicas_in=len(comes[broker.id]),
            replicas_out=len(goes[broker.id]),
            bytes_in=sum(comes[broker.id]),
            bytes_out=sum(goes[broker.id]),
        )
        for broker in layout.brokers
    )


def _count(sums: Mapping[int, _Sums], replicas: Iterable[int], leader: int | None, load: PartitionLoad | None) -> None:
    for broker in replicas:
        sums[broker].add(load, leads=broker == leader)


def _traffic(moves: Iterable[PartitionMove]) -> tuple[Mapping[int, list[int]], Mapping[int, list[int]]]:
    """Sizes of incoming and outgoing replicas, by broker."""
    comes, goes = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for move in moves:
        for broker in move.added:
            comes[broker].append(move.size_bytes or 0)
        for broker in move.removed:
            goes[broker].append(move.size_bytes or 0)
    return comes, goes
