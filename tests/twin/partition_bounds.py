"""Bytes that any plan has to copy: what a plan for new brokers, or for brokers that go, is held against.

**Brokers that go**: each replica on them that may move is copied once, whatever else is done. No plan copies less.

**New brokers**: replicas move only to them, so each goal that is met at the end asks for two things. A new broker below
the range needs what lies between it and the range's low end; an old one above the range has to lose what is beyond the
high end. For each goal alone the cheapest copies that give so much are taken, cut in pieces where that is cheaper
(values and sizes of replicas, best value a byte first); the bound is the largest one of all goals. Sizes are indivisible:
where one new broker can be filled by at most EXACT_MAX replicas its smallest sum that is enough is used instead. Goals that
the plan did not meet ask for nothing. It is a lower bound, not the optimum: goals that need different replicas each may
need more together than the largest of them alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from loaddata.partitions.layout import ClusterLayout
from loaddata.partitions.loads import PartitionLoads
from shedders.partitions.request import PlanRequest
from tests.twin import partition_measures as measures
from tests.twin.partition_state import may_move, state_of, to_empty

EXACT_MAX = 14


@dataclass(frozen=True, slots=True)
class Item:
    """A copy that may be made: what it gives, what it costs."""

    value: int
    cost: int


def least_cost(items: Iterable[Item], need: int) -> int:
    """Of copies that give at least so much together, the last one cut; what all give where they do not suffice."""
    cost = 0.0
    for item in sorted((one for one in items if one.value > 0), key=lambda one: one.cost / one.value):
        if need <= 0:
            break
        part = min(1.0, need / item.value)
        cost += part * item.cost
        need -= item.value
    return ceil(cost - 1e-6)


def smallest_sum(sizes: Sequence[int], need: int) -> int:
    """The smallest sum of some of these that is at least so much; of many only the need itself."""
    useful = [one for one in sizes if one > 0]
    if need <= 0:
        return 0
    if len(useful) > EXACT_MAX or sum(useful) < need:
        return need
    sums = {0}
    for size in useful:
        sums |= {one + size for one in sums}
    return min(one for one in sums if one >= need)


def bytes_of_removal(layout: ClusterLayout, loads: PartitionLoads, request: PlanRequest) -> int:
    """What is on the brokers that go, and may move."""
    leaving = to_empty(layout, request)
    return sum(
        _size(loads, key, request) * len(leaving & set(replicas))
        for key, (replicas, _) in state_of(layout).items()
        if may_move(request, key[0])
    )


def bytes_for_new(
    layout: ClusterLayout, loads: PartitionLoads, request: PlanRequest, met: Mapping[str, float]
) -> Mapping[str, int]:
    """The bound by each goal that was met, with its share of the range; the largest of them is the bound."""
    return {goal: _for_goal(goal, share, layout, loads, request) for goal, share in met.items() if goal in _WITH_RANGE}


_WITH_RANGE = (*measures.BY_TOPIC, *measures.BY_BROKER)


def _for_goal(goal: str, share: float, layout: ClusterLayout, loads: PartitionLoads, request: PlanRequest) -> int:
    found = measures.cells(goal, state_of(layout), layout, loads, request)
    within = measures.ranges(goal, layout, loads, request, share)
    total = 0
    for name in {name for name, _ in found}:
        mine = {broker: (value, *within[name, broker]) for (other, broker), value in found.items() if other == name}
        total += _for_group(goal, name, mine, layout, loads, request)
    return total


def _for_group(
    goal: str,
    topic: str,
    of: Mapping[int, tuple[int, int, int]],
    layout: ClusterLayout,
    loads: PartitionLoads,
    request: PlanRequest,
) -> int:
    """Of the cells of one topic, or of all brokers: value, low and high of each."""
    new = set(request.subjects)
    items, on = _items(goal, topic, layout, loads, request)
    needs = [low - value for broker, (value, low, _) in of.items() if broker in new and value < low]
    if goal == "disk":
        filled = sum(smallest_sum([item.cost for item in items], need) for need in needs)
    else:
        filled = least_cost(items, sum(needs))
    if goal in measures.LED or goal == "cpu":
        return filled  # an old broker may as well hand leaderships to another old one
    lost = sum(
        least_cost(on.get(broker, ()), value - high) for broker, (value, _, high) in of.items() if broker not in new
    )
    return max(filled, lost)


def _items(
    goal: str, topic: str, layout: ClusterLayout, loads: PartitionLoads, request: PlanRequest
) -> tuple[list[Item], dict[int, list[Item]]]:
    """Copies that may be made to new brokers: all, and by the old broker that they leave."""
    new = set(request.subjects)
    every: list[Item] = []
    on: dict[int, list[Item]] = {}
    for key, (replicas, _) in state_of(layout).items():
        if topic not in ("", key[0]) or not may_move(request, key[0]):
            continue
        size = _size(loads, key, request)
        load = measures.load_of(loads, key, request.completeness_min)
        old = [one for one in replicas if one not in new]
        # The best case: the first copy is the leader's.
        for index in range(min(len(old), len(new))):
            every.append(Item(measures.weight(goal, load, len(replicas), leads=index == 0), size))
        for broker in old:
            on.setdefault(broker, []).append(Item(measures.weight(goal, load, len(replicas), leads=False), size))
    return every, on


def _size(loads: PartitionLoads, key: tuple[str, int], request: PlanRequest) -> int:
    return measures.load_of(loads, key, request.completeness_min).disk_bytes or 0
