"""Topics and times of a scenario's load changes and spikes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from shedders.contest.demand_noise import DemandVariation, LoadSwell, NamespaceWave, NoiseLayer
from shedders.contest.draws import drawn, shuffled
from shedders.contest.scenario_model import LoadChange, Scenario, Spikes

if TYPE_CHECKING:
    from shedders.contest.topics import Topics
    from shedders.contest.trace import Ints


def wavering_of(scenario: Scenario, seed: int, topics: Topics) -> DemandVariation:
    """How the demand of these topics changes over time."""
    count = len(topics.dominant)
    swells = [
        swell
        for number, change in enumerate(scenario.changes)
        for swell in _changed(scenario, change, number, seed, topics)
    ]
    swells += [
        swell
        for number, spikes in enumerate(scenario.spikes)
        for swell in _spiked(scenario, spikes, number, seed, topics)
    ]
    return DemandVariation(
        count,
        [NoiseLayer(seed, number, layer.sd, layer.every_s, count) for number, layer in enumerate(scenario.noise)],
        _wave(scenario, seed, topics.units.namespace),
        swells,
        list(_absent(scenario, topics)),
    )


def creations(scenario: Scenario) -> Iterator[tuple[float, int]]:
    """Time and index of each namespace that is created later."""
    index = 0
    for group in scenario.namespaces:
        for number in range(group.count):
            if group.created_at_min is not None:
                yield group.created_at_min * 60 + number * group.created_every_s, index
            index += 1


def starts_of(scenario: Scenario, change: LoadChange) -> list[float]:
    """When a change begins, each time, in seconds."""
    end_s, at_s = scenario.hours * 3_600, change.at_min * 60
    if change.every_min is None:
        return [at_s]
    count = math.ceil((end_s - at_s) / (change.every_min * 60))
    return [at_s + number * change.every_min * 60 for number in range(count)]


def _changed(scenario: Scenario, change: LoadChange, number: int, seed: int, topics: Topics) -> Iterator[LoadSwell]:
    candidates = _candidates(scenario, change.group, change.namespace, topics)
    if change.machine_part is not None:
        candidates = candidates[topics.dominant[candidates] < change.machine_part]
    count = change.topics if change.topics is not None else max(1, round((change.topics_share or 0) * len(candidates)))
    if change.heaviest:
        candidates = candidates[np.argsort(-topics.dominant[candidates], kind="stable")]
    else:
        candidates = candidates[shuffled(seed, len(candidates), "change", number)]
    for turn, from_s in enumerate(starts_of(scenario, change)):
        first = turn * count % max(1, len(candidates))
        units = candidates[first : first + count]
        peak = np.full(len(units), change.times)
        if change.machine_part is not None:
            peak = change.machine_part / topics.dominant[units]
        until_s = math.inf if change.for_min is None else from_s + change.for_min * 60
        yield LoadSwell(units, peak, from_s, from_s + change.rising_min * 60, until_s)


def _spiked(scenario: Scenario, spikes: Spikes, number: int, seed: int, topics: Topics) -> Iterator[LoadSwell]:
    candidates = _candidates(scenario, spikes.group, None, topics)
    candidates = candidates[topics.dominant[candidates] < spikes.machine_part]
    order = candidates[shuffled(seed, len(candidates), "spiked", number)]
    times = drawn(seed, math.floor(spikes.per_h * scenario.hours), "spikes", number) * (scenario.hours * 3_600)
    for turn, from_s in enumerate(np.sort(times).tolist() if len(order) else []):
        unit = order[turn % len(order) :][:1]
        yield LoadSwell(unit, spikes.machine_part / topics.dominant[unit], from_s, from_s, from_s + spikes.minutes * 60)


def _candidates(scenario: Scenario, group: str | None, namespace: int | None, topics: Topics) -> Ints:
    if group is None:
        return np.arange(len(topics.dominant), dtype=np.int64)
    index = next(place for place, candidate in enumerate(scenario.namespaces) if candidate.group == group)
    chosen = topics.group == index
    if namespace is not None:
        before = sum(group.count for group in scenario.namespaces[:index])
        chosen &= topics.units.namespace == before + namespace - 1
    return np.flatnonzero(chosen)


def _wave(scenario: Scenario, seed: int, namespace: Ints) -> NamespaceWave | None:
    wave = scenario.wave
    if wave is None:
        return None
    count = sum(group.count for group in scenario.namespaces)
    ahead = [(wave.start_h + draw * wave.spread_h) * 3_600 for draw in drawn(seed, count, "wave").tolist()]
    return NamespaceWave(wave.height, wave.period_h * 3_600, ahead, namespace)


def _absent(scenario: Scenario, topics: Topics) -> Iterator[tuple[float, Ints]]:
    for at_s, index in creations(scenario):
        yield at_s, np.flatnonzero(topics.units.namespace == index)
