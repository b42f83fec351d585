"""Bytes that any plan has to copy: what a plan for new brokers, or for brokers that go, is held against.

**Brokers that go**: each replica on them that may move is copied once, whatever else is done. No plan copies less.

**New brokers**: replicas move only to them. The bound is for bringing each goal alone as far as the plan has brought it:
where the plan fills a new broker up to (or towards) the low end of its range, so much has to be copied to it; where it takes
from an old broker what is beyond the high end, so much has to leave that; where it spreads a partition over more racks, so
many replicas of it are copied. For each goal the cheapest copies that do so are taken, cut in pieces where that is cheaper
(best value a byte first), and the bound is the largest one of all goals; of bytes, the limit of disks, their range and spreading
over racks are taken together. What is beyond a range's end counts for nothing: a
plan that fills a new broker further than its low end has no higher bound for it. Sizes are indivisible: where a new broker can
be filled by at most EXACT_MAX replicas the smallest sum that is enough is used. It is a lower bound, not the optimum: goals
that need different replicas each need more together than the largest of them alone, which `partition_optimum` has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from loaddata.samples.partitions import ClusterLayout, PartitionLoads
from shedders.kafka_rebalance.planning.request import PlanRequest
from tests.twin import partition_measures as measures
from tests.twin.partition_measures import rack_excess
from tests.twin.partition_state import Key, State, free, state_of, to_empty

EXACT_MAX = 16


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


def smallest_sum(groups: Iterable[tuple[Sequence[int], int]], need: int) -> int:
    """The smallest sum of indivisible sizes that is enough: of each group at least what it has to lose, of all the need.

    Of many sizes, and where they do not suffice, only what is needed itself.
    """
    groups = [([size for size in sizes if size > 0], max(0, gone)) for sizes, gone in groups]
    least = max(need, sum(gone for _, gone in groups))
    if least <= 0 or sum(len(sizes) for sizes, _ in groups) > EXACT_MAX:
        return max(0, least)
    sums = {0}
    for sizes, gone in groups:
        mine = {0}
        for size in sizes:
            mine |= {one + size for one in mine}
        sums = {one + other for one in sums for other in mine if other >= gone}
    return min((one for one in sums if one >= need), default=least)


def bytes_of_removal(layout: ClusterLayout, loads: PartitionLoads, request: PlanRequest) -> int:
    """What is on the brokers that go, and may move."""
    leaving, may = to_empty(layout, request), free(layout, request)
    return sum(
        measures.size_of(loads, key, request) * len(leaving & set(replicas))
        for key, (replicas, _) in state_of(layout).items()
        if key in may
    )


def bytes_for_new(
    layout: ClusterLayout, loads: PartitionLoads, request: PlanRequest, after: State, shares: Mapping[str, float]
) -> Mapping[str, int]:
    """The bound by each goal; the largest of them is the bound.

    Args:
        layout: The cluster before.
        loads: Of its partitions.
        request: For new brokers.
        after: Where the plan has brought it.
        shares: Range of each goal that counts.
    """
    found = {
        goal: _for_goal(goal, share, layout, loads, request, after)
        for goal, share in shares.items()
        if goal in _WITH_RANGE and goal not in _OF_BYTES
    }
    spread = _spread_out(layout, request, after) if "rack-awareness" in shares else {}
    if "rack-awareness" in shares:
        found["rack-awareness"] = sum(measures.size_of(loads, key, request) * count for key, count in spread.items())
    of_bytes = [_came_and_gone(one, shares[one], layout, loads, request, after) for one in _OF_BYTES if one in shares]
    if of_bytes:
        found["disk"] = _bytes(of_bytes, spread, layout, loads, request)
    return found


_WITH_RANGE = (*measures.BY_TOPIC, *measures.BY_BROKER, *measures.CAPACITIES)
_OF_BYTES = ("disk", "disk-capacity")
_CameAndGone = tuple[dict[str, list[int]], dict[str, dict[int, int]]]


def _spread_out(layout: ClusterLayout, request: PlanRequest, after: State) -> dict[Key, int]:
    """Of partitions that the plan spreads over more racks, how many replicas had to move for it."""
    found = {}
    for key, (was, _) in state_of(layout).items():
        if after[key][0] != was:
            found[key] = max(0, rack_excess(was, layout, request) - rack_excess(after[key][0], layout, request))
    return found


def _came_and_gone(
    goal: str, share: float, layout: ClusterLayout, loads: PartitionLoads, request: PlanRequest, after: State
) -> _CameAndGone:
    """By topic (or of all): what new brokers had to get, and what each old one had to lose."""
    new = set(request.subjects)
    before = measures.cells(goal, state_of(layout), layout, loads, request)
    reached = measures.cells(goal, after, layout, loads, request)
    within = measures.ranges(goal, layout, loads, request, share)
    came: dict[str, list[int]] = {}
    gone: dict[str, dict[int, int]] = {}
    for (name, broker), value in before.items():
        low, high = within[name, broker]
        if broker in new:
            came.setdefault(name, []).append(max(0, min(low, reached[name, broker]) - value))
        else:
            gone.setdefault(name, {})[broker] = max(0, value - max(high, reached[name, broker]))
    return came, gone


def _for_goal(
    goal: str, share: float, layout: ClusterLayout, loads: PartitionLoads, request: PlanRequest, after: State
) -> int:
    came, gone = _came_and_gone(goal, share, layout, loads, request, after)
    total = 0
    for name in came:
        items, on = _items(goal, name, layout, loads, request)
        filled = least_cost(items, sum(came[name]))
        # Leaderships an old broker may as well hand to another old one.
        handed = goal in measures.LED or goal in {"cpu", "cpu-capacity", "network-out-capacity"}
        lost = 0 if handed else sum(least_cost(on.get(one, ()), need) for one, need in gone.get(name, {}).items())
        total += max(filled, lost)
    return total


def _bytes(
    of_bytes: Sequence[_CameAndGone],
    spread: Mapping[Key, int],
    layout: ClusterLayout,
    loads: PartitionLoads,
    request: PlanRequest,
) -> int:
    """What disks had to get and lose, by all goals of bytes, and beside it partitions that are spread and on no such disk."""
    came = [max(needs) for needs in zip(*(one[0].get("", []) for one in of_bytes), strict=True)]
    gone = {one: max(each[1][""][one] for each in of_bytes) for one in of_bytes[0][1].get("", {})}
    _, on = _items("disk", "", layout, loads, request)
    sizes = {broker: [item.cost for item in mine] for broker, mine in on.items()}
    every = [size for mine in sizes.values() for size in mine]
    losing = {broker for broker, need in gone.items() if need > 0}
    state = state_of(layout)
    apart = sum(
        measures.size_of(loads, key, request) * count
        for key, count in spread.items()
        if not losing & set(state[key][0])
    )
    return max(
        smallest_sum([(sizes.get(broker, []), need) for broker, need in gone.items()], sum(came)),
        sum(smallest_sum([(every, 0)], need) for need in came),
        sum(smallest_sum([(sizes.get(broker, []), 0)], need) for broker, need in gone.items()) + apart,
    )


def _items(
    goal: str, topic: str, layout: ClusterLayout, loads: PartitionLoads, request: PlanRequest
) -> tuple[list[Item], dict[int, list[Item]]]:
    """Copies that may be made to new brokers: all, and by the old broker that they leave."""
    new, may = set(request.subjects), free(layout, request)
    every: list[Item] = []
    on: dict[int, list[Item]] = {}
    for key, (replicas, _) in state_of(layout).items():
        if topic not in ("", key[0]) or key not in may:
            continue
        size = measures.size_of(loads, key, request)
        load = measures.load_of(loads, key, request.completeness_min)
        old = [one for one in replicas if one not in new]
        # The best case: the first copy is the leader's.
        for index in range(min(len(old), len(new))):
            every.append(Item(measures.weight(goal, load, len(replicas), leads=index == 0), size))
        for broker in old:
            on.setdefault(broker, []).append(Item(measures.weight(goal, load, len(replicas), leads=False), size))
    return every, on
