"""Topics of a scenario: positions on the ring, average demand, and the owners of their bundles at the start.

The load of a topic is its *dominant part*: what it needs of an average machine in the resource of which it needs most. Loads
are shared out by Zipf's law; the kind of the topic then says which resource that is, and how much it needs of the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

import numpy as np

from shedders.contest.demand_noise import drawn, round_digits, shuffled
from shedders.contest.scenario import Scenario, ScenarioError, TopicKind
from shedders.contest.trace import CORE, Demand, TraceMachine, Units, total
from statechannel.protocol.bundle import namespace_bounds

if TYPE_CHECKING:
    from shedders.contest.scenario import Namespaces
    from shedders.contest.trace import Floats, Ints


KBIT_BYTES: Final = 125.0
MIB_BYTES: Final = 1_048_576.0
_SIZES: Final = 1_024
_ROUNDS_MAX: Final = 200
_CLOSE: Final = 1e-9


class TotalCapacity(NamedTuple):
    """Of some machines together: CPU in percent of one core, network in kbit/s, direct memory in MiB.

    Attributes:
        idle: CPU used without traffic.
    """

    cpu: float
    bandwidth_in: float
    bandwidth_out: float
    direct_memory: float
    idle: float
    machines: int

    @staticmethod
    def of(machines: Sequence[TraceMachine]) -> TotalCapacity:
        return TotalCapacity(
            math.fsum(machine.cores * CORE for machine in machines),
            math.fsum(machine.bandwidth_in_kbit for machine in machines),
            math.fsum(machine.bandwidth_out_kbit for machine in machines),
            math.fsum(machine.direct_memory_mib for machine in machines),
            math.fsum(machine.cores * machine.idle_percent for machine in machines),
            len(machines),
        )


@dataclass(frozen=True)
class Topics:
    """All topics of a scenario.

    Attributes:
        units: In the order of the namespaces, and of their places on the ring.
        base: What they want without noise, waves and changes.
        dominant: What each needs of an average machine, in the resource of which it needs most.
        group: Index of its group of namespaces.
    """

    units: Units
    base: Demand
    dominant: Floats
    group: Ints


class _Costs(NamedTuple):
    """Of one message that comes in, for each topic."""

    msg_bytes: Floats
    fan_out: Floats
    cpu: Floats
    cache_s: Floats


def topics_of(scenario: Scenario, seed: int, machines: Sequence[TraceMachine]) -> Topics:
    """Place the topics of a scenario on the ring, and scale their demand to the required utilisation.

    Args:
        machines: Those that are there at the start: utilisation is of them.

    Raises:
        ScenarioError: The topics cannot load the machines as required.
    """
    units, weights, kinds, group = _drawn_units(scenario, seed)
    costs = _costs(scenario.kinds, kinds, seed)
    capacity = TotalCapacity.of(machines)
    sides = (
        costs.cpu * (capacity.machines / capacity.cpu),
        costs.msg_bytes / KBIT_BYTES * (capacity.machines / capacity.bandwidth_in),
        costs.msg_bytes * costs.fan_out / KBIT_BYTES * (capacity.machines / capacity.bandwidth_out),
        costs.msg_bytes * costs.cache_s / MIB_BYTES * (capacity.machines / capacity.direct_memory),
    )
    widest = np.maximum(np.maximum(np.maximum(sides[0], sides[1]), sides[2]), sides[3])
    tops = np.array([group.topic_max for group in scenario.namespaces])[group]
    dominant = _calibrated(scenario, weights, tops, [side / widest for side in sides], capacity)
    rate = dominant / widest
    bytes_in = rate * costs.msg_bytes
    base = Demand(
        msg_rate_in=rate,
        msg_rate_out=rate * costs.fan_out,
        msg_throughput_in=bytes_in,
        msg_throughput_out=bytes_in * costs.fan_out,
        cpu=rate * costs.cpu,
        direct_memory_mib=bytes_in * costs.cache_s / MIB_BYTES,
    )
    return Topics(units, base, dominant, group)


def _drawn_units(scenario: Scenario, seed: int) -> tuple[Units, Floats, Ints, Ints]:
    positions, weights, kinds = list["Ints"](), list["Floats"](), list["Ints"]()
    tables = [_zipf(group) for group in scenario.namespaces]
    choices = [_kinds_of(group, scenario.kinds) for group in scenario.namespaces]
    names = scenario.namespace_names()
    for name, index in names:
        count = scenario.namespaces[index].topics
        prefix = f"persistent://{name}/t-".encode()
        place = np.array([crc32(b"%b%d" % (prefix, number)) for number in range(count)], np.int64)
        order = np.argsort(place, kind="stable")
        positions.append(place[order])
        weights.append(tables[index][shuffled(seed, count, "rank", name)])
        kinds.append(_chosen(choices[index], drawn(seed, count, "kind", name)))
    counts = [len(position) for position in positions]
    kind = np.concatenate(kinds)
    units = Units(
        np.repeat(np.arange(len(names), dtype=np.int64), counts),
        np.concatenate(positions),
        np.array([kind.sessions for kind in scenario.kinds], np.int64)[kind],
    )
    group = np.array([index for _, index in names], np.int64)[units.namespace]
    return units, np.concatenate(weights), kind, group


def _zipf(group: Namespaces) -> Floats:
    """Weights of the ranks of one namespace; those of the whole group add up to its share."""
    weights = [round_digits(math.pow(rank, -group.zipf)) for rank in range(1, group.topics + 1)]
    scale = group.share / (group.count * math.fsum(weights))
    return np.array(weights) * scale


def _kinds_of(group: Namespaces, kinds: Sequence[TopicKind]) -> list[tuple[int, float]]:
    """Indexes of its kinds, each with the part of the topics that are of it or of one before."""
    own = [(index, kind.part) for index, kind in enumerate(kinds) if not group.kinds or kind.name in group.kinds]
    whole = math.fsum(part for _, part in own)
    return [(index, math.fsum(part for _, part in own[: place + 1]) / whole) for place, (index, _) in enumerate(own)]


def _chosen(kinds: list[tuple[int, float]], draws: Floats) -> Ints:
    places = np.searchsorted(np.array([until for _, until in kinds[:-1]]), draws, side="right")
    return np.array([index for index, _ in kinds], np.int64)[places]


def _costs(kinds: Sequence[TopicKind], kind: Ints, seed: int) -> _Costs:
    # Sizes come from a table: powers of whole arrays are not the same on every machine.
    steps = [(2 * place + 1) / _SIZES - 1 for place in range(_SIZES)]
    sizes = np.array([[each.msg_bytes * round_digits(math.pow(each.spread, step)) for step in steps] for each in kinds])
    msg_bytes = sizes[kind, (drawn(seed, len(kind), "size") * _SIZES).astype(np.int64)]
    fan_out = np.array([each.fan_out for each in kinds])[kind]
    per_message = np.array([each.cpu_us for each in kinds])[kind] * 1e-6 * CORE
    per_byte = np.array([each.cpu_ns_per_byte for each in kinds])[kind] * 1e-9 * CORE
    cpu = (per_message + per_byte * msg_bytes) * (1 + fan_out)
    return _Costs(msg_bytes, fan_out, cpu, np.array([each.cache_s for each in kinds])[kind])


def _calibrated(
    scenario: Scenario, weights: Floats, tops: Floats, parts: Sequence[Floats], capacity: TotalCapacity
) -> Floats:
    """Dominant parts as the weights say, none above its top, that use the machines as far as the scenario wants.

    Args:
        parts: For CPU, both directions of the network and direct memory: what a topic needs of it, in parts of its dominant
            need.
    """
    wanted = scenario.utilisation
    rooms = (wanted - capacity.idle / capacity.cpu, wanted, wanted, wanted)
    if rooms[0] <= 0:
        raise ScenarioError(scenario.name, [f"utilisation: {wanted:g} is used by idle machines already"])
    scale = capacity.machines * wanted / total(weights)
    used = math.inf
    for _ in range(_ROUNDS_MAX):
        dominant = np.minimum(weights * scale, tops)
        used = max(total(dominant * part) / capacity.machines / room for part, room in zip(parts, rooms, strict=True))
        if abs(used - 1) < _CLOSE:
            return dominant
        if used < 1 and np.all(dominant >= tops):
            break
        scale /= used
    raise ScenarioError(
        scenario.name,
        [f"utilisation: {wanted:g} is out of reach, {wanted * used:.3g} with every topic at its topic_max"],
        hint="Use more topics, a larger topic_max, fewer or smaller machines, or less utilisation.",
    )


def first_owners(
    scenario: Scenario, seed: int, machines: Sequence[TraceMachine], topics: Topics
) -> list[list[str | None]]:
    """Owners of the bundles of each namespace.

    Args:
        machines: Those that are there at the start.
    """
    loads, starts = _bundle_loads(scenario, topics)
    state = _State(machines, loads)
    owner_lists: list[list[str | None]] = []
    names = scenario.namespace_names()
    for index, group in enumerate(scenario.namespaces):
        own = [place for place, (_, of) in enumerate(names) if of == index]
        bundles = np.arange(starts[own[0]], starts[own[-1] + 1])
        places = _owners(group, seed, _open_to(scenario, group, machines), bundles, state)
        owners: list[str | None] = (
            [None] * len(bundles) if places is None else [machines[place].name for place in places.tolist()]
        )
        owner_lists += [owners[begin : begin + group.bundles] for begin in range(0, len(owners), group.bundles)]
    _pin(scenario, owner_lists, {machine.name for machine in machines})
    return owner_lists


def _pin(scenario: Scenario, owner_lists: Sequence[list[str | None]], there: Collection[str]) -> None:
    """Give what is pinned to a machine that is there to it; a pin by itself moves nothing."""
    for pin in scenario.policies.pins:
        for (name, index), owners in zip(scenario.namespace_names(), owner_lists, strict=True):
            group = scenario.namespaces[index]
            if pin.broker not in there or group.group != pin.group or group.created_at_min is not None:
                continue
            if pin.namespace in (None, int(name.rpartition("-")[2])):
                for number in pin.bundles or range(1, len(owners) + 1):
                    owners[number - 1] = pin.broker


def _bundle_loads(scenario: Scenario, topics: Topics) -> tuple[Floats, list[int]]:
    """What each bundle needs (CPU, network in and out, direct memory), and the first bundle of each namespace."""
    starts, unit_bundle = [0], np.zeros(len(topics.dominant), np.int64)
    ends = np.cumsum(np.bincount(topics.units.namespace))
    for place, (_, group) in enumerate(scenario.namespace_names()):
        bundles = scenario.namespaces[group].bundles
        cuts = np.array(namespace_bounds(bundles)[1:-1], np.int64)
        own = slice(0 if place == 0 else ends[place - 1], ends[place])
        unit_bundle[own] = starts[-1] + np.searchsorted(cuts, topics.units.position[own], side="right")
        starts.append(starts[-1] + bundles)
    base = topics.base
    sides = (
        base.cpu,
        base.msg_throughput_in / KBIT_BYTES,
        base.msg_throughput_out / KBIT_BYTES,
        base.direct_memory_mib,
    )
    return np.stack([np.bincount(unit_bundle, weights=side, minlength=starts[-1]) for side in sides], axis=1), starts


class _State:
    """Load and bundles that were assigned to each broker so far, over all groups of namespaces."""

    def __init__(self, machines: Sequence[TraceMachine], loads: Floats) -> None:
        self.loads = loads
        self.limits = np.array(
            [
                [machine.cores * CORE, machine.bandwidth_in_kbit, machine.bandwidth_out_kbit, machine.direct_memory_mib]
                for machine in machines
            ]
        )
        self.used = np.array([[machine.cores * machine.idle_percent, 0.0, 0.0, 0.0] for machine in machines])

    def heaviest_first(self, bundles: Ints) -> Ints:
        parts = (self.loads[bundles] / self.limits.mean(axis=0)).max(axis=1)
        order: Ints = bundles[np.argsort(-parts, kind="stable")]
        return order

    def give(self, bundle: int, broker: int) -> None:
        self.used[broker] += self.loads[bundle]

    def idle(self, bundles: Ints) -> Ints:
        """Those without any load: only their number counts."""
        without_load: Ints = bundles[self.loads[bundles].max(axis=1) <= 0]
        return without_load


def _open_to(scenario: Scenario, group: Namespaces, machines: Sequence[TraceMachine]) -> Ints:
    names = {
        fleet.machine_name(number)
        for fleet in scenario.fleet
        if not group.owners_in or fleet.group in group.owners_in
        for number in range(1, fleet.count + 1)
    }
    places = [place for place, machine in enumerate(machines) if machine.name in names]
    return np.array(places, np.int64)


def _owners(group: Namespaces, seed: int, brokers: Ints, bundles: Ints, state: _State) -> Ints | None:
    """Owners of the bundles of a group; None: they are looked up, and placed."""
    match group.owners:
        case "placed":
            return None
        case "balanced":
            return _one_by_one(_least_used(brokers, state), brokers, bundles, state)
        case "parts":
            return _one_by_one(_furthest_below(group.parts, brokers, bundles, state), brokers, bundles, state)
        case "even":
            places = brokers[np.arange(len(bundles)) % len(brokers)]
        case "random":
            draws = drawn(seed, len(bundles), "owners", group.group)
            places = brokers[(draws * len(brokers)).astype(np.int64)]
        case _:  # one-broker
            places = np.repeat(brokers[:1], len(bundles))
    for bundle, broker in zip(bundles.tolist(), places.tolist(), strict=True):
        state.give(bundle, broker)
    return places


def _least_used(brokers: Ints, state: _State) -> Callable[[int], int]:
    def best(bundle: int) -> int:
        then = ((state.used[brokers] + state.loads[bundle]) / state.limits[brokers]).max(axis=1)
        return int(np.argmin(then))

    return best


def _furthest_below(parts: Sequence[float], brokers: Ints, bundles: Ints, state: _State) -> Callable[[int], int]:
    wanted = np.array([parts[place % len(parts)] for place in range(len(brokers))])
    weights = (state.loads[bundles] / state.limits.mean(axis=0)).max(axis=1)
    lacking = wanted / math.fsum(wanted.tolist()) * math.fsum(weights.tolist())

    def best(bundle: int) -> int:
        place = int(np.argmax(lacking))
        lacking[place] -= weights[bundle - bundles[0]]
        return place

    return best


def _one_by_one(best: Callable[[int], int], brokers: Ints, bundles: Ints, state: _State) -> Ints:
    """The heaviest first, each to its best broker; bundles without load to the brokers with the fewest."""
    places_of = np.zeros(len(bundles), np.int64)
    counts = np.zeros(len(brokers), np.int64)
    idle = set(state.idle(bundles).tolist())
    for bundle in state.heaviest_first(bundles).tolist():
        place = int(np.argmin(counts)) if bundle in idle else best(bundle)
        counts[place] += 1
        places_of[bundle - bundles[0]] = brokers[place]
        state.give(bundle, int(brokers[place]))
    return places_of
