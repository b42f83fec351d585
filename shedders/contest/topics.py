"""Topics of a scenario: positions on the ring and average demand.

The load of a topic is its *dominant part*: what it needs of an average machine in the resource of which it needs most. Loads
are shared out by Zipf's law; the kind of the topic then says which resource that is, and how much it needs of the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

import numpy as np

from shedders.contest.draws import alike, drawn, shuffled
from shedders.contest.scenario import ScenarioError
from shedders.contest.scenario_model import Scenario, TopicKind
from shedders.contest.trace import CORE, Demand, TraceMachine, Units

if TYPE_CHECKING:
    from shedders.contest.scenario_model import Namespaces
    from shedders.contest.trace import Floats, Ints

KBIT_BYTES: Final = 125.0
MIB_BYTES: Final = 1_048_576.0
_SIZES: Final = 1_024
_ROUNDS_MAX: Final = 200
_CLOSE: Final = 1e-9


class TotalCapacity(NamedTuple):
    """Of some machines together: CPU in percent of one core, network in kbit/s; `idle`: CPU used without traffic."""

    cpu: float
    bandwidth_in: float
    bandwidth_out: float
    idle: float
    machines: int

    @staticmethod
    def of(machines: Sequence[TraceMachine]) -> TotalCapacity:
        """Of these."""
        return TotalCapacity(
            math.fsum(machine.cores * CORE for machine in machines),
            math.fsum(machine.bandwidth_in_kbit for machine in machines),
            math.fsum(machine.bandwidth_out_kbit for machine in machines),
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
    """Make them.

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
    )
    widest = np.maximum(np.maximum(sides[0], sides[1]), sides[2])
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


def total(values: Floats) -> float:
    """Sum, one after the other: the same on every machine."""
    return float(np.bincount(np.zeros(len(values), np.int64), weights=values)[0])


def namespace_names(scenario: Scenario) -> list[tuple[str, int]]:
    """Name of each namespace, and index of its group."""
    return [
        (f"sim/{group.group}-{number}", index)
        for index, group in enumerate(scenario.namespaces)
        for number in range(1, group.count + 1)
    ]


def _drawn_units(scenario: Scenario, seed: int) -> tuple[Units, Floats, Ints, Ints]:
    positions, weights, kinds = list["Ints"](), list["Floats"](), list["Ints"]()
    tables = [_zipf(group) for group in scenario.namespaces]
    choices = [_kinds_of(group, scenario.kinds) for group in scenario.namespaces]
    names = namespace_names(scenario)
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
    weights = [alike(math.pow(rank, -group.zipf)) for rank in range(1, group.topics + 1)]
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
    sizes = np.array([[each.msg_bytes * alike(math.pow(each.spread, step)) for step in steps] for each in kinds])
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
        parts: For CPU and both directions of the network: what a topic needs of it, in parts of its dominant need.
    """
    wanted = scenario.utilisation
    rooms = (wanted - capacity.idle / capacity.cpu, wanted, wanted)
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
