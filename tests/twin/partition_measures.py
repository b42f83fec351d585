"""What each goal measures, counted anew from plain dicts: the cells, the range, and how far outside of it they are.

A cell of a goal of distribution is a broker that counts, or a topic on such a broker; of one of placement, a partition.
Sums are over all replicas, also of topics that may not move.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

from loaddata.partitions.layout import ClusterLayout
from loaddata.partitions.loads import PartitionLoad, PartitionLoads
from tests.twin.partition_state import State

BY_BROKER = ("disk", "bytes-in", "bytes-out", "cpu", "replicas", "leaders")
BY_TOPIC = ("topic-replicas", "topic-leaders")
MEASURED = ("rack-awareness", *BY_TOPIC, *BY_BROKER, "preferred-leader")
NOTHING = PartitionLoad()


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one goal: cells outside of its range, and the sum of their distances."""

    violations: int
    excess: int


def weight(goal: str, load: PartitionLoad, *, leads: bool) -> int:
    """What one replica adds to its broker's cell."""
    if goal in {"replicas", "topic-replicas"}:
        return 1
    if goal in {"leaders", "topic-leaders"}:
        return int(leads)
    if goal == "disk":
        return load.disk_bytes or 0
    if goal == "cpu":
        units = load.cpu_units or 0
        return units if leads else units // 3
    rate = load.bytes_in_per_s if goal == "bytes-in" else load.bytes_out_per_s
    return (rate or 0) if leads else 0


def load_of(loads: PartitionLoads, topic: str, number: int, completeness_min: float) -> PartitionLoad:
    found = loads.of.get((topic, number), NOTHING)
    return found if found.completeness >= completeness_min else NOTHING


def cells(
    goal: str, state: State, loads: PartitionLoads, counted: Iterable[int], *, completeness_min: float = 0.0
) -> Mapping[Hashable, int]:
    """The value of each cell, brokers that count only."""
    topics = sorted({topic for topic, _ in state})
    counted = list(counted)
    of_topic = goal in BY_TOPIC
    found: dict[Hashable, int] = (
        {(topic, one): 0 for topic in topics for one in counted} if of_topic else dict.fromkeys(counted, 0)
    )
    for (topic, number), (replicas, leader) in state.items():
        load = load_of(loads, topic, number, completeness_min)
        for one in replicas:
            cell = (topic, one) if of_topic else one
            if cell in found:
                found[cell] += weight(goal, load, leads=one == leader)
    return found


def bounds(total: int, cells_: int, share: float) -> tuple[int, int]:
    """The range about the mean, as whole numbers; the mean itself, rounded either way, is always inside."""
    mean = Fraction(total, cells_)
    part = Fraction(str(share))
    return max(0, min(ceil(mean * (1 - part)), floor(mean))), max(floor(mean * (1 + part)), ceil(mean))


def measured(
    goal: str,
    state: State,
    layout: ClusterLayout,
    loads: PartitionLoads,
    counted: Iterable[int],
    share: float,
    *,
    completeness_min: float = 0.0,
) -> Measured:
    """How far a goal is from being met."""
    counted = list(counted)
    if goal == "rack-awareness":
        return _of([rack_excess(replicas, layout, counted) for replicas, _ in state.values()])
    if goal == "preferred-leader":
        return _of([int(leader != replicas[0]) for replicas, leader in state.values()])
    found = cells(goal, state, loads, counted, completeness_min=completeness_min)
    if goal in BY_TOPIC:
        distances = []
        for topic in {topic for topic, _ in found}:
            mine = [value for (other, _), value in found.items() if other == topic]
            distances += _distances(mine, share)
        return _of(distances)
    return _of(_distances(list(found.values()), share))


def rack_excess(replicas: tuple[int, ...], layout: ClusterLayout, counted: Iterable[int]) -> int:
    """Replicas beyond what is even over the racks; a broker without rack is a rack of its own."""
    rack_of = {one.id: one.rack if one.rack is not None else f"\0{one.id}" for one in layout.brokers}
    racks = len({rack_of[one] for one in counted})
    most = -(-len(replicas) // max(1, racks))
    return sum(max(0, count - most) for count in Counter(rack_of[one] for one in replicas).values())


def _distances(values: list[int], share: float) -> list[int]:
    low, high = bounds(values, share)
    return [max(0, value - high) + max(0, low - value) for value in values]


def _of(distances: list[int]) -> Measured:
    return Measured(sum(one > 0 for one in distances), sum(distances))
