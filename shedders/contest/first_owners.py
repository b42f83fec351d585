"""Owners of bundles at the start of a scenario."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from shedders.contest.draws import drawn
from shedders.contest.timeline import machine_name
from shedders.contest.topics import KBIT_BYTES, Topics, namespace_names
from shedders.contest.trace import CORE
from statechannel.protocol.bundle import namespace_bounds

if TYPE_CHECKING:
    from shedders.contest.scenario_model import Namespaces, Scenario
    from shedders.contest.trace import Floats, Ints, TraceMachine


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
    names = namespace_names(scenario)
    for index, group in enumerate(scenario.namespaces):
        own = [place for place, (_, of) in enumerate(names) if of == index]
        bundles = np.arange(starts[own[0]], starts[own[-1] + 1])
        places = _DEALT[group.owners](group, seed, _open_to(scenario, group, machines), bundles, state)
        owners: list[str | None] = (
            [None] * len(bundles) if places is None else [machines[place].name for place in places.tolist()]
        )
        owner_lists += [owners[begin : begin + group.bundles] for begin in range(0, len(owners), group.bundles)]
    return owner_lists


def _bundle_loads(scenario: Scenario, topics: Topics) -> tuple[Floats, list[int]]:
    """What each bundle needs (CPU, network in and out), and the first bundle of each namespace."""
    starts, unit_bundle = [0], np.zeros(len(topics.dominant), np.int64)
    ends = np.cumsum(np.bincount(topics.units.namespace))
    for place, (_, group) in enumerate(namespace_names(scenario)):
        bundles = scenario.namespaces[group].bundles
        cuts = np.array(namespace_bounds(bundles)[1:-1], np.int64)
        own = slice(0 if place == 0 else ends[place - 1], ends[place])
        unit_bundle[own] = starts[-1] + np.searchsorted(cuts, topics.units.position[own], side="right")
        starts.append(starts[-1] + bundles)
    base = topics.base
    sides = (base.cpu, base.msg_throughput_in / KBIT_BYTES, base.msg_throughput_out / KBIT_BYTES)
    return np.stack([np.bincount(unit_bundle, weights=side, minlength=starts[-1]) for side in sides], axis=1), starts


class _State:
    """What the brokers have so far, over all groups of namespaces."""

    def __init__(self, machines: Sequence[TraceMachine], loads: Floats) -> None:
        self.loads = loads
        self.limits = np.array(
            [[machine.cores * CORE, machine.bandwidth_in_kbit, machine.bandwidth_out_kbit] for machine in machines]
        )
        self.used = np.array([[machine.cores * machine.idle_percent, 0.0, 0.0] for machine in machines])

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


_Dealer = Callable[["Namespaces", int, "Ints", "Ints", _State], "Ints | None"]


def _open_to(scenario: Scenario, group: Namespaces, machines: Sequence[TraceMachine]) -> Ints:
    """Indexes of the machines that may have the bundles of a group."""
    names = {
        machine_name(fleet, number)
        for fleet in scenario.fleet
        if not group.owners_in or fleet.group in group.owners_in
        for number in range(1, fleet.count + 1)
    }
    places = [place for place, machine in enumerate(machines) if machine.name in names]
    return np.array(places, np.int64)


def _placed(group: Namespaces, seed: int, brokers: Ints, bundles: Ints, state: _State) -> None:  # noqa: ARG001
    return None


def _even(group: Namespaces, seed: int, brokers: Ints, bundles: Ints, state: _State) -> Ints:  # noqa: ARG001
    return _owners_at(brokers[np.arange(len(bundles)) % len(brokers)], bundles, state)


def _random(group: Namespaces, seed: int, brokers: Ints, bundles: Ints, state: _State) -> Ints:
    draws = drawn(seed, len(bundles), "owners", group.group)
    return _owners_at(brokers[(draws * len(brokers)).astype(np.int64)], bundles, state)


def _one_broker(group: Namespaces, seed: int, brokers: Ints, bundles: Ints, state: _State) -> Ints:  # noqa: ARG001
    return _owners_at(np.repeat(brokers[:1], len(bundles)), bundles, state)


def _balanced(group: Namespaces, seed: int, brokers: Ints, bundles: Ints, state: _State) -> Ints:  # noqa: ARG001
    """The heaviest first, each to the broker with the least resulting maximum usage."""

    def best(bundle: int) -> int:
        then = ((state.used[brokers] + state.loads[bundle]) / state.limits[brokers]).max(axis=1)
        return int(np.argmin(then))

    return _one_by_one(best, brokers, bundles, state)


def _parts(group: Namespaces, seed: int, brokers: Ints, bundles: Ints, state: _State) -> Ints:  # noqa: ARG001
    """The heaviest first, each to the broker that is furthest below its part."""
    wanted = np.array([group.parts[place % len(group.parts)] for place in range(len(brokers))])
    weights = (state.loads[bundles] / state.limits.mean(axis=0)).max(axis=1)
    lacking = wanted / math.fsum(wanted.tolist()) * math.fsum(weights.tolist())

    def best(bundle: int) -> int:
        place = int(np.argmax(lacking))
        lacking[place] -= weights[bundle - bundles[0]]
        return place

    return _one_by_one(best, brokers, bundles, state)


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


def _owners_at(places: Ints, bundles: Ints, state: _State) -> Ints:
    for bundle, broker in zip(bundles.tolist(), places.tolist(), strict=True):
        state.give(bundle, broker)
    return places


_DEALT: dict[str, _Dealer] = {
    "placed": _placed,
    "even": _even,
    "random": _random,
    "balanced": _balanced,
    "one-broker": _one_broker,
    "parts": _parts,
}
