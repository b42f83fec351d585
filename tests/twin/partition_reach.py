"""Ranges about the nearest means that racks, and partitions that stay, allow: from plain dicts.

How loads are divided over groups is `nearest_loads`, which has its own test beside a solver; here is counted anew what there is
to be divided, and by which rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from math import ceil, floor

from loaddata.samples.partitions import ClusterLayout, PartitionLoads
from shedders.kafka_rebalance.planning.reachable import ReplicaKind, kind_in, nearest_loads
from shedders.kafka_rebalance.planning.request import PlanRequest
from tests.twin import partition_measures as measures
from tests.twin.partition_state import Key, free, state_of

TIGHT = Fraction(1, 10)
"""Of a range, for brokers that have to carry more than it."""


def bounds(mean: Fraction, share: float, near: Fraction) -> tuple[int, int]:
    """The range about the mean of all, or about a nearest mean beyond it."""
    low, high = _about(mean, Fraction(str(share)))
    if low <= near <= high:
        return low, high
    own = _about(near, Fraction(str(share)))
    return own if near < low else (own[0], _about(near, Fraction(str(share)) * TIGHT)[1])


def _about(mean: Fraction, part: Fraction) -> tuple[int, int]:
    """As whole numbers; the mean itself, rounded either way, is always inside."""
    return max(0, min(ceil(mean * (1 - part)), floor(mean))), max(floor(mean * (1 + part)), ceil(mean))


def ruled(goal: str, layout: ClusterLayout, request: PlanRequest) -> bool:
    """Whether the rule of racks comes before the goal, and there are racks."""
    names = [choice.name for choice in request.goals]
    before = not names or (
        "rack-awareness" in names and goal in names and names.index("rack-awareness") < names.index(goal)
    )
    return before and any(one.rack is not None for one in layout.brokers)


def near_means(
    goal: str, layout: ClusterLayout, loads: PartitionLoads, request: PlanRequest, parts: Mapping[int, Fraction]
) -> Mapping[int, Fraction]:
    """Of each broker, for a goal whose cells are brokers."""
    may, before = free(layout, request), state_of(layout)
    groups = _groups(goal, layout, request, parts)
    counts = _counts(layout, request, parts)
    stays: Counter[int] = Counter()
    weights: Counter[tuple[int, int]] = Counter()
    extra = 0
    homes = {*((key, one) for key, (held, _) in before.items() for one in held if one in parts)}
    homes |= set(measures.coming(layout, request))
    for key, (replicas, leader) in before.items():
        load, count = measures.load_of(loads, key, request.completeness_min), len(replicas)
        follows = measures.weight(goal, load, count, leads=False)
        leads = measures.weight(goal, load, count, leads=True)
        if key not in may:
            for one in replicas:
                stays[one] += leads if one == leader else follows
            continue
        weights[count, counts[key]] += follows
        extra += leads - follows if (key, leader) in homes else 0
    sizes = [len(group) for group in groups]
    kinds = [
        kind_in(sizes, weight, own, _most(goal, layout, request, count))
        for (count, own), weight in sorted(weights.items())
        if weight and own
    ]
    kinds += [kind_in(sizes, extra, 1, 1)] if extra else []
    found = nearest_loads(
        [sum((parts[one] for one in group), Fraction(0)) for group in groups],
        kinds,
        [sum(stays[one] for one in group) for group in groups],
    )
    means: dict[int, Fraction] = {}
    for group, load in zip(groups, found, strict=True):
        own_stays = [stays[one] for one in group]
        moving = ReplicaKind(load - sum(own_stays), 1, (0,) * len(group), (1,) * len(group))
        means.update(zip(group, nearest_loads([parts[one] for one in group], [moving], own_stays), strict=True))
    return means


def near_means_of_topic(
    topic: str, goal: str, layout: ClusterLayout, request: PlanRequest, parts: Mapping[int, Fraction]
) -> Mapping[int, Fraction]:
    """Replicas of a topic that each broker of a rack can have."""
    groups, counts = _groups(goal, layout, request, parts), _counts(layout, request, parts)
    sizes = [len(group) for group in groups]
    numbers = Counter(
        (len(replicas), counts[key]) for key, (replicas, _) in state_of(layout).items() if key[0] == topic
    )
    kinds = [
        kind_in(sizes, number, own, _most(goal, layout, request, count))
        for (count, own), number in sorted(numbers.items())
        if own
    ]
    found = nearest_loads([sum((parts[one] for one in group), Fraction(0)) for group in groups], kinds)
    return {one: load / len(group) for group, load in zip(groups, found, strict=True) for one in group}


def _groups(goal: str, layout: ClusterLayout, request: PlanRequest, parts: Mapping[int, Fraction]) -> list[list[int]]:
    rack_of: dict[int, str] = dict(measures.racks_of(layout))
    if not ruled(goal, layout, request):
        return [[one] for one in sorted(parts)]
    return [[one for one in sorted(parts) if rack_of[one] == rack] for rack in sorted({rack_of[one] for one in parts})]


def _most(goal: str, layout: ClusterLayout, request: PlanRequest, replicas: int) -> int:
    return measures.most_in_rack(replicas, layout, request) if ruled(goal, layout, request) else 1


def _counts(layout: ClusterLayout, request: PlanRequest, parts: Mapping[int, Fraction]) -> Mapping[Key, int]:
    """How many replicas of each partition are on brokers that count at the end."""
    counts = Counter({key: sum(one in parts for one in held) for key, (held, _) in state_of(layout).items()})
    counts.update(key for key, _ in measures.coming(layout, request))
    return counts
