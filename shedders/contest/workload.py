"""Trace of a scenario and a seed: events of machines, disturbances, judged spans, and the demand of topics over time.

Demand is computed step by step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from shedders.contest.demand_noise import DemandVariation, LoadSwell, NamespaceWave, drawn, noise_layers, shuffled
from shedders.contest.scenario import Fleet, LoadChange, Scenario, ScenarioError, ScenarioEvent, ScenarioPin, Spikes
from shedders.contest.topics import first_owners, topics_of
from shedders.contest.trace import (
    Costs,
    Namespace,
    Trace,
    TraceEvent,
    TraceEventKind,
    TraceMachine,
    absent_at_start,
    settled_spans,
    together,
)
from shedders.model.cluster import IsolationPolicy, Policies
from statechannel.protocol.bundle import children_of, namespace_bounds

if TYPE_CHECKING:
    from shedders.contest.topics import Topics
    from shedders.contest.trace import Ints


def scenario_trace(scenario: Scenario, seed: int) -> Trace:
    """The trace of a scenario and a seed.

    Raises:
        ScenarioError: The scenario contradicts itself in what only shows now: events at odds, too few topics.
    """
    machines = machines_of(scenario)
    events = events_of(scenario, seed)
    away = absent_at_start(events)
    there = [machine for machine in machines if machine.name not in away]
    if not there:
        raise ScenarioError(scenario.name, ["events: every machine joins later, so there is none at the start"])
    topics = topics_of(scenario, seed, there)
    owners = first_owners(scenario, seed, there, topics)
    upsets = upsets_of(scenario, events)
    variation = variation_of(scenario, seed, topics)
    return Trace(
        name=scenario.name,
        about=scenario.about,
        seed=seed,
        step_s=scenario.step_s,
        steps=int(scenario.hours * 3_600 // scenario.step_s),
        machines=machines,
        namespaces=[
            Namespace(name, scenario.namespaces[group].bundles, owners=tuple(owners[place]))
            for place, (name, group) in enumerate(scenario.namespace_names())
        ],
        units=topics.units,
        events=events,
        disturbances=[last for _, last in upsets],
        judged=judged_of(scenario, upsets),
        costs=Costs(**scenario.costs.model_dump()),
        policies=policies_of(scenario),
        base=topics.base,
        rows=lambda step: variation.at(step * scenario.step_s),
    )


UPSETTING: Final = frozenset(
    {TraceEventKind.JOIN, TraceEventKind.LOST, TraceEventKind.LEAVE, TraceEventKind.SLOW, TraceEventKind.CREATE}
)
_AFTER: Final = {
    "join": (TraceEventKind.LEAVE, 1.0),
    "lost": (TraceEventKind.JOIN, 1.0),
    "leave": (TraceEventKind.JOIN, 1.0),
    "slow": (TraceEventKind.SLOW, 1.0),
    "silent": (TraceEventKind.SILENT, 1.0),
    "lossy": (TraceEventKind.LOSSY, 0.0),
    "lying": (TraceEventKind.LYING, 1.0),
}


def machines_of(scenario: Scenario) -> list[TraceMachine]:
    machines = [machine for group in scenario.fleet for machine in _machines(group)]
    return sorted(machines, key=lambda machine: machine.name)


def _machines(group: Fleet) -> Iterator[TraceMachine]:
    for number in range(1, group.count + 1):
        yield TraceMachine(
            group.machine_name(number),
            group.cores,
            group.memory_mib,
            group.direct_memory_mib,
            group.bandwidth_in_mbit * 1e3,
            group.bandwidth_out_mbit * 1e3,
            group.idle_percent,
            f"domain-{(number - 1) % group.domains + 1}" if group.domains else None,
        )


def policies_of(scenario: Scenario) -> Policies:
    written, groups = scenario.policies, {fleet.group for fleet in scenario.fleet}

    def patterns(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(f"{name}-[0-9]+" if name in groups else name for name in names)

    return Policies(
        isolation=tuple(
            IsolationPolicy(
                entry.name,
                tuple(f"sim/{name}-[0-9]+" for name in entry.namespaces),
                patterns(entry.primary),
                patterns(entry.secondary),
                entry.min_available,
            )
            for entry in written.isolation
        ),
        anti_affinity={
            name: entry.name
            for entry in written.anti_affinity
            for name, index in scenario.namespace_names()
            if scenario.namespaces[index].group in entry.namespaces
        },
        pins=dict(pin for entry in written.pins for pin in _pinned(scenario, entry)),
    )


def _pinned(scenario: Scenario, pin: ScenarioPin) -> Iterator[tuple[str, str]]:
    for name, index in scenario.namespace_names():
        group = scenario.namespaces[index]
        if group.group != pin.group or (pin.namespace is not None and name != f"sim/{pin.group}-{pin.namespace}"):
            continue
        ranges = children_of(namespace_bounds(group.bundles))
        yield from ((f"{name}/{ranges[number - 1]}", pin.broker) for number in pin.bundles)
        if not pin.bundles:
            yield name, pin.broker


def events_of(scenario: Scenario, seed: int) -> list[TraceEvent]:
    """All events before the end, by time.

    Raises:
        ScenarioError: Something happens to a machine that is not there, or one joins that is.
    """
    names = [name for name, _ in scenario.namespace_names()]
    candidates = [
        TraceEvent(at_s, TraceEventKind.CREATE, namespace=names[index]) for at_s, index in creations(scenario)
    ]
    for number, happens in enumerate(scenario.events):
        candidates += _expanded(scenario, happens, number, seed)
    end_s = scenario.hours * 3_600
    events = sorted((event for event in candidates if event.at_s < end_s), key=lambda event: event.at_s)
    wrong = list(_impossible(events))
    if wrong:
        raise ScenarioError(
            scenario.name, wrong, hint="Two entries of events contradict each other, or one contradicts itself."
        )
    return events


def _expanded(scenario: Scenario, happens: ScenarioEvent, number: int, seed: int) -> Iterator[TraceEvent]:
    group = next(fleet for fleet in scenario.fleet if fleet.group == happens.group)
    numbers = happens.numbers or list(range(1, group.count + 1))
    if happens.pick is not None:
        numbers = sorted(shuffled(seed, group.count, "event", number)[: happens.pick] + 1)
    what = TraceEventKind(happens.what)
    factor = 0.0 if what is TraceEventKind.SILENT else 1.0 if happens.factor is None else happens.factor
    for turn, machine in enumerate(numbers):
        at_s, name = happens.at_min * 60 + turn * happens.every_s, group.machine_name(machine)
        resources = tuple(happens.resources)
        yield TraceEvent(at_s, what, name, factor, resources=resources, planned=happens.planned)
        if happens.for_min is not None:
            then, back = _AFTER[happens.what]
            yield TraceEvent(at_s + happens.for_min * 60, then, name, back, resources=resources)


def _impossible(events: Sequence[TraceEvent]) -> Iterator[str]:
    away = absent_at_start(events)
    for event in events:
        if not event.broker:
            continue
        where = f"events: {event.broker} at {event.at_s / 60:g} min"
        if event.what is TraceEventKind.JOIN:
            if event.broker not in away:
                yield f"{where}: it joins, but is present already"
            away.discard(event.broker)
        elif event.broker in away:
            yield f"{where}: {event.what}, but it is absent"
        elif event.what in (TraceEventKind.LOST, TraceEventKind.LEAVE):
            away.add(event.broker)


def upsets_of(scenario: Scenario, events: Iterable[TraceEvent]) -> list[tuple[float, float]]:
    """Disturbances, the start among them: first and last time of those that follow each other closely, in seconds.

    Those less than `settle_min` apart are one: nothing can settle between the steps of a rolling restart.
    """
    end_s = scenario.hours * 3_600
    if scenario.disturbances_min is not None:
        times = {minute * 60 for minute in scenario.disturbances_min}
    else:
        times = {event.at_s for event in events if event.what in UPSETTING}
        for change in scenario.changes:
            if change.upsets:
                starts = starts_of(scenario, change)
                lasts = change.for_min
                times.update(starts)
                times.update(() if lasts is None else (start + lasts * 60 for start in starts))
    return together(times, scenario.settle_min * 60, end_s)


def judged_of(scenario: Scenario, upsets: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Spans in which balance is to be good, in seconds."""
    if scenario.judged_min is not None:
        return [(from_min * 60, to_min * 60) for from_min, to_min in scenario.judged_min]
    return settled_spans(upsets, scenario.settle_min * 60, scenario.hours * 3_600)


def variation_of(scenario: Scenario, seed: int, topics: Topics) -> DemandVariation:
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
        noise_layers(seed, [(layer.sd, layer.every_s) for layer in scenario.noise], count),
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
