"""What each goal measures, counted anew from plain dicts: the cells, their ranges, and how far outside of them they are.

A cell of a goal of distribution is a broker that counts, or a topic on such a broker; of one of placement, a partition.
Ranges are about what the brokers that count carry together at the end: what is on them, and what has to come to them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

from loaddata.samples.partitions import CPU_UNITS, ClusterLayout, KafkaBroker, PartitionLoad, PartitionLoads
from shedders.kafka_rebalance.planning.request import PlanMode, PlanRequest
from tests.twin import partition_reach
from tests.twin.partition_state import Key, State, allowed_brokers, free, state_of, to_empty

BY_BROKER = ("disk", "bytes-in", "bytes-out", "cpu", "replicas", "leaders")
BY_TOPIC = ("topic-replicas", "topic-leaders")
BY_PARTITION = ("rack-awareness", "preferred-leader")
CAPACITIES = ("replica-capacity", "disk-capacity", "network-in-capacity", "network-out-capacity", "cpu-capacity")
MEASURED = frozenset((*BY_BROKER, *BY_TOPIC, *BY_PARTITION, *CAPACITIES))
"""What a mode is about (brokers that leave, replicas that are offline) is no goal to measure: `partition_rules` has it."""
LED = frozenset({"leaders", "topic-leaders", "bytes-in", "bytes-out"})
"""Of these only the leader counts, and only brokers that may lead have a range."""
NOTHING = PartitionLoad()
INFINITE = 10**30
Ranges = Mapping[Hashable, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one goal: cells outside of their ranges, and the sum of their distances."""

    violations: int
    excess: int


def weight(goal: str, load: PartitionLoad, replicas: int, *, leads: bool) -> int:
    """What one of so many replicas adds to its broker's cell."""
    taken, given, units = load.bytes_in_per_s or 0, load.bytes_out_per_s or 0, load.cpu_units or 0
    if goal in {"replicas", "topic-replicas", "replica-capacity"}:
        return 1
    if goal in {"disk", "disk-capacity"}:
        return load.disk_bytes or 0
    if goal in {"cpu", "cpu-capacity"}:
        return units if leads else units // 3
    if goal == "network-in-capacity":
        return taken
    if not leads:
        return 0
    return {"bytes-in": taken, "bytes-out": given, "network-out-capacity": given + taken * (replicas - 1)}.get(goal, 1)


def load_of(loads: PartitionLoads, key: Key, completeness_min: float) -> PartitionLoad:
    found = loads.of.get(key, NOTHING)
    return found if found.completeness >= completeness_min else NOTHING


def size_of(loads: PartitionLoads, key: Key, request: PlanRequest) -> int:
    """Bytes of a replica; 0 where they are not known."""
    return load_of(loads, key, request.completeness_min).disk_bytes or 0


def counted(goal: str, layout: ClusterLayout, request: PlanRequest) -> list[int]:
    """Brokers that have cells."""
    away = set(request.subjects) if goal in LED and request.mode is PlanMode.DEMOTE else set()
    return [one for one in allowed_brokers(layout, request) if one not in away]


def coming(layout: ClusterLayout, request: PlanRequest) -> Iterator[tuple[Key, int]]:
    """Replicas that are on no broker that counts, and have to go to one."""
    allowed, leaving, may = set(allowed_brokers(layout, request)), to_empty(layout, request), free(layout, request)
    for topic, partition in layout.partitions():
        for one in partition.replicas:
            lost = request.mode is PlanMode.FIX_OFFLINE and one in partition.offline
            if (
                one not in allowed
                and (one in leaving or lost or request.migrates)
                and (topic.name, partition.partition) in may
            ):
                yield (topic.name, partition.partition), one


def cells(
    goal: str, state: State, layout: ClusterLayout, loads: PartitionLoads, request: PlanRequest
) -> dict[Hashable, int]:
    """The value of each cell."""
    found: dict[Hashable, int] = {}
    for name in _groups(goal, layout, request):
        for one in counted(goal, layout, request):
            found[name, one] = 0
    for key, (replicas, leader) in state.items():
        load = load_of(loads, key, request.completeness_min)
        for one in replicas:
            cell = (key[0] if goal in BY_TOPIC else "", one)
            if cell in found:
                found[cell] += weight(goal, load, len(replicas), leads=one == leader)
    return found


def _groups(goal: str, layout: ClusterLayout, request: PlanRequest) -> list[str]:
    return sorted({topic for topic, _ in free(layout, request)}) if goal in BY_TOPIC else [""]


def ranges(
    goal: str,
    layout: ClusterLayout,
    loads: PartitionLoads,
    request: PlanRequest,
    share: float,
    *,
    levelled: bool = False,
) -> Ranges:
    """The range of each cell, by the cluster as it is before the plan.

    Args:
        goal: Name.
        layout: Before the plan.
        loads: Of its partitions.
        request: Of the plan.
        share: Range of the goal.
        levelled: Of a limit that brokers cannot keep, what they are levelled to instead.
    """
    if goal in CAPACITIES:
        return _limits(goal, layout, loads, request, share, levelled=levelled)
    before = state_of(layout)
    allowed = allowed_brokers(layout, request)
    totals: Counter[str] = Counter()
    there = [(key, one) for key, (replicas, _) in before.items() for one in replicas if one in allowed]
    for key, one in (*there, *coming(layout, request)):
        replicas, leader = before[key]
        load = load_of(loads, key, request.completeness_min)
        totals[key[0] if goal in BY_TOPIC else ""] += weight(goal, load, len(replicas), leads=one == leader)
    parts = _parts(goal, layout, request)
    near: dict[str, Mapping[int, Fraction]] = {}
    for name in _groups(goal, layout, request):
        near[name] = {one: totals[name] * part for one, part in parts.items()}
        if goal in BY_BROKER and set(parts) == set(allowed):
            near[name] = partition_reach.near_means(goal, layout, loads, request, parts)
        elif goal == "topic-replicas" and partition_reach.ruled(goal, layout, request):
            near[name] = partition_reach.near_means_of_topic(name, goal, layout, request, parts)
    return {
        (name, one): partition_reach.bounds(totals[name] * part, share, near[name][one])
        for name in near
        for one, part in parts.items()
    }


def _limits(
    goal: str, layout: ClusterLayout, loads: PartitionLoads, request: PlanRequest, share: float, *, levelled: bool
) -> Ranges:
    capacities = {one: _capacity(goal, layout, request, one) for one in counted(goal, layout, request)}
    limits = {one: None if has is None else floor(has * Fraction(str(share))) for one, has in capacities.items()}
    known = {one: limit for one, limit in limits.items() if limit is not None}
    whole = sum(known.values())
    stays = request.mode is PlanMode.REBALANCE and not to_empty(layout, request) and not request.migrates
    if levelled and stays and whole and len(known) == len(limits):
        parts = {one: Fraction(limit, whole) for one, limit in known.items()}
        for one, mean in partition_reach.near_means(goal, layout, loads, request, parts).items():
            if mean > known[one]:
                limits[one] = max(known[one], floor(mean * Fraction(11, 10)), ceil(mean))
    return {("", one): (0, INFINITE if limit is None else limit) for one, limit in limits.items()}


def _parts(goal: str, layout: ClusterLayout, request: PlanRequest) -> dict[int, Fraction]:
    """What part of the whole is each broker's: the same, but of disks by their size where all are known."""
    brokers = counted(goal, layout, request)
    if goal == "disk":
        disks = {one: _capacity("disk-capacity", layout, request, one) for one in brokers}
        if all(disks.values()):
            return {one: Fraction(disk, sum(disks.values())) for one, disk in disks.items()}
    return {one: Fraction(1, len(brokers)) for one in brokers}


def _capacity(goal: str, layout: ClusterLayout, request: PlanRequest, broker: int) -> int | None:
    """What a broker can carry; None: not known."""
    if goal == "replica-capacity":
        return request.replicas_max
    asked, default = request.capacities.of.get(broker, request.capacities.default), request.capacities.default
    field = {
        "disk-capacity": "disk_bytes",
        "network-in-capacity": "bytes_in_per_s",
        "network-out-capacity": "bytes_out_per_s",
        "cpu-capacity": "cpu",
    }[goal]
    value = getattr(asked, field) if getattr(asked, field) is not None else getattr(default, field)
    if goal == "cpu-capacity":
        return None if value is None else round(value * CPU_UNITS)
    if goal == "disk-capacity" and value is None:
        return _disks(next(one for one in layout.brokers if one.id == broker))
    return value


def _disks(broker: KafkaBroker) -> int | None:
    sizes = [one.total_bytes for one in broker.log_dirs if not one.offline]
    return sum(sizes) if sizes and None not in sizes else None


class Meter:
    """Measures states of one cluster for one request; remembers the ranges, which no move changes."""

    def __init__(self, layout: ClusterLayout, loads: PartitionLoads, request: PlanRequest) -> None:
        self.layout, self.loads, self.request = layout, loads, request
        self._ranges: dict[tuple[str, float, bool], Ranges] = {}
        self._free = free(layout, request)
        self._most = {
            count: most_in_rack(count, layout, request)
            for count in {len(partition.replicas) for _, partition in layout.partitions()}
        }
        self._rack_of = racks_of(layout)

    def __call__(self, goal: str, state: State, share: float, *, levelled: bool = False) -> Measured:
        """How far a goal is from being met in a state; `levelled` as of `ranges`."""
        if goal in BY_PARTITION:
            places = [state[key] for key in sorted(self._free)]
            if goal == "preferred-leader":
                return _of(int(leader not in (None, replicas[0])) for replicas, leader in places)
            return _of(self._surplus(replicas) for replicas, _ in places)
        if (goal, share, levelled) not in self._ranges:
            self._ranges[goal, share, levelled] = ranges(
                goal, self.layout, self.loads, self.request, share, levelled=levelled
            )
        within = self._ranges[goal, share, levelled]
        distances = []
        for cell, value in cells(goal, state, self.layout, self.loads, self.request).items():
            low, high = within[cell]
            distances.append(max(0, value - high) + max(0, low - value))
        return _of(distances)

    def _surplus(self, replicas: tuple[int, ...]) -> int:
        most = self._most[len(replicas)]
        return sum(max(0, count - most) for count in Counter(self._rack_of[one] for one in replicas).values())


def racks_of(layout: ClusterLayout) -> Mapping[int, str]:
    """Racks; a broker without one is a rack of its own."""
    return {one.id: one.rack if one.rack is not None else f"\0{one.id}" for one in layout.brokers}


def rack_excess(replicas: tuple[int, ...], layout: ClusterLayout, request: PlanRequest) -> int:
    """Replicas beyond what has to share a rack."""
    rack_of, most = racks_of(layout), most_in_rack(len(replicas), layout, request)
    return sum(max(0, count - most) for count in Counter(rack_of[one] for one in replicas).values())


def most_in_rack(replicas: int, layout: ClusterLayout, request: PlanRequest) -> int:
    """The least number of replicas in one rack with which so many have a place."""
    rack_of = racks_of(layout)
    sizes = Counter(rack_of[one] for one in allowed_brokers(layout, request))
    return next(
        (most for most in range(1, replicas) if sum(min(most, size) for size in sizes.values()) >= replicas), replicas
    )


def _of(distances: Iterable[int]) -> Measured:
    found = list(distances)
    return Measured(sum(one > 0 for one in found), sum(found))
