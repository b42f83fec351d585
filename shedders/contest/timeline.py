"""Timeline of a scenario: events of machines, disturbances, and the spans in which balance is judged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from shedders.contest.changes import creations, starts_of
from shedders.contest.draws import shuffled
from shedders.contest.scenario import ScenarioError
from shedders.contest.scenario_model import Fleet, Scenario, ScenarioEvent
from shedders.contest.topics import namespace_names
from shedders.contest.trace import TraceEvent, TraceEventKind, TraceMachine

SETTLE_S: Final = 900.0
"""Time after a disturbance from which balance is judged, in traces without a scenario."""
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
    """All machines that ever take part, sorted by name."""
    machines = [machine for group in scenario.fleet for machine in _machines(group)]
    return sorted(machines, key=lambda machine: machine.name)


def _machines(group: Fleet) -> Iterator[TraceMachine]:
    for number in range(1, group.count + 1):
        yield TraceMachine(
            machine_name(group, number),
            group.cores,
            group.memory_mib,
            group.direct_memory_mib,
            group.bandwidth_in_mbit * 1e3,
            group.bandwidth_out_mbit * 1e3,
            group.idle_percent,
            f"domain-{(number - 1) % group.domains + 1}" if group.domains else None,
        )


def machine_name(group: Fleet, number: int) -> str:
    """Name of a machine; all of a group are of one length, so that they are sorted by number."""
    return f"{group.group}-{number:0{len(str(group.count))}d}"


def events_of(scenario: Scenario, seed: int) -> list[TraceEvent]:
    """All events before the end, by time.

    Raises:
        ScenarioError: Something happens to a machine that is not there, or one joins that is.
    """
    names = [name for name, _ in namespace_names(scenario)]
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
        at_s, name = happens.at_min * 60 + turn * happens.every_s, machine_name(group, machine)
        yield TraceEvent(at_s, what, name, factor)
        if happens.for_min is not None:
            then, back = _AFTER[happens.what]
            yield TraceEvent(at_s + happens.for_min * 60, then, name, back)


def absent_at_start(events: Iterable[TraceEvent]) -> set[str]:
    """Machines whose first event is to join."""
    first: dict[str, TraceEventKind] = {}
    for event in events:
        if event.broker:
            first.setdefault(event.broker, event.what)
    return {name for name, what in first.items() if what is TraceEventKind.JOIN}


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


def together(times: Iterable[float], settle_s: float, end_s: float) -> list[tuple[float, float]]:
    """Times before the end, and the start: first and last of those that are less than `settle_s` apart."""
    spans = [(0.0, 0.0)]
    for at_s in sorted(time_s for time_s in times if 0 < time_s < end_s):
        if spans[-1][0] > 0 and at_s - spans[-1][1] < settle_s:
            spans[-1] = (spans[-1][0], at_s)
        else:
            spans.append((at_s, at_s))
    return spans


def judged_of(scenario: Scenario, upsets: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Spans in which balance is to be good, in seconds."""
    if scenario.judged_min is not None:
        return [(from_min * 60, to_min * 60) for from_min, to_min in scenario.judged_min]
    return settled_spans(upsets, scenario.settle_min * 60, scenario.hours * 3_600)


def settled_spans(upsets: Sequence[tuple[float, float]], settle_s: float, end_s: float) -> list[tuple[float, float]]:
    """From `settle_s` after each disturbance until the next."""
    spans = [(last + settle_s, until) for (_, last), (until, _) in pairwise([*upsets, (end_s, end_s)])]
    return [(from_s, until_s) for from_s, until_s in spans if from_s < until_s]
