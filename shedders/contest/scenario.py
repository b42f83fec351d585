"""Reader of scenarios, built-in ones by name, with errors that name the invalid field."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from shedders.contest.scenario_model import LoadChange, Scenario, ScenarioEvent
from shedders.snapshots.faults import FaultyFileError, cut, sentence
from statechannel.suggestions import nearest, shown

__all__ = ["HELD_OUT", "Scenario", "ScenarioError", "load_scenario", "parse_scenario", "scenarios"]

SIZE_MAX_BYTES: Final = 1 << 20
SLOWEST: Final = 0.001
"""A slow broker can do this part of what its machine promises, or more."""
STEPS_MAX: Final = 50_000
BUNDLES_MAX: Final = 200_000
TOPICS_MAX: Final = 2_000_000
HELD_OUT: Final = "held-out/"
"""Prefix of the names of scenarios that were not used for tuning."""


class ScenarioError(FaultyFileError):
    """A scenario cannot be read or is invalid."""

    usual_hint = "design/scenarios.md explains every field."


def scenarios(*, held_out: bool = False) -> list[str]:
    """Names of the built-in scenarios, sorted; held-out ones only on request."""
    folder = resources.files("shedders.contest") / "scenarios"
    prefix = ""
    if held_out:
        folder, prefix = folder / HELD_OUT.rstrip("/"), HELD_OUT
    return sorted(prefix + file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def load_scenario(path_or_name: str) -> Scenario:
    """Read and check a scenario: a built-in one by name, or a file.

    Raises:
        ScenarioError: It does not exist, cannot be read, is malformed, or contradicts itself.
    """
    known = [*scenarios(), *scenarios(held_out=True)]
    if path_or_name in known:
        shipped = resources.files("shedders.contest") / "scenarios"
        return parse_scenario((shipped / f"{path_or_name}.toml").read_bytes(), f"scenario {path_or_name}")
    if not _like_a_path(path_or_name):
        near = nearest(path_or_name, known)
        meant = f"did you mean {near[0]}? " if near else ""
        raise ScenarioError(
            f"scenario {shown(path_or_name)}",
            ["unknown name"],
            hint=f"{meant}`statechannel simulate list` shows all; name a file by its path, which ends with .toml.",
        )
    try:
        path = Path(path_or_name)
        size_bytes = path.stat().st_size
        if size_bytes > SIZE_MAX_BYTES:
            raise ScenarioError(
                path_or_name, [f"it has {size_bytes} bytes, more than {SIZE_MAX_BYTES}"], hint="Check the path."
            )
        raw = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        why = getattr(error, "strerror", None) or error
        raise ScenarioError(shown(path_or_name), [f"it cannot be read: {why}"], hint="Check the path.") from error
    return parse_scenario(raw, path_or_name)


def _like_a_path(text: str) -> bool:
    return text.endswith(".toml") or text.startswith((".", "/", "~"))


def parse_scenario(raw: bytes, where: str = "scenario") -> Scenario:
    """Parse a scenario.

    Raises:
        ScenarioError: As `load_scenario`.
    """
    try:
        value = tomllib.loads(raw.decode())
    except UnicodeDecodeError as error:
        raise ScenarioError(where, [f"it is not UTF-8: byte {error.start}"]) from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ScenarioError(where, [f"it is not TOML: {cut(str(error))}"]) from error
    try:
        scenario = Scenario.model_validate(value)
    except ValidationError as error:
        problems = [sentence(fault, Scenario) for fault in error.errors(include_url=False)]
        raise ScenarioError(where, problems) from error
    wrong = list(_contradictions(scenario))
    if wrong:
        raise ScenarioError(where, wrong)
    return scenario


def _contradictions(scenario: Scenario) -> Iterator[str]:
    """Contradictions of a scenario whose fields are all of the right type."""
    yield from _twice(scenario)
    yield from _too_much(scenario)
    yield from _namespace_faults(scenario)
    for number, change in enumerate(scenario.changes):
        yield from _change_faults(f"changes[{number}]", change, scenario)
    groups = [namespace.group for namespace in scenario.namespaces]
    for number, spikes in enumerate(scenario.spikes):
        yield from _unknown(f"spikes[{number}].group", spikes.group, groups)
    for number, event in enumerate(scenario.events):
        yield from _event_faults(f"events[{number}]", event, scenario)
    end_min = scenario.hours * 60
    for index, (from_min, to_min) in enumerate(scenario.judged_min or []):
        if not from_min < to_min <= end_min:
            yield f"judged_min[{index}]: expected a span within the {end_min:g} minutes, got [{from_min:g}, {to_min:g}]"
    for index, at_min in enumerate(scenario.disturbances_min or []):
        if at_min >= end_min:
            yield f"disturbances_min[{index}]: {at_min:g} is after the end, {end_min:g}"


def _twice(scenario: Scenario) -> Iterator[str]:
    named = {
        "fleet": [fleet.group for fleet in scenario.fleet],
        "kinds": [kind.name for kind in scenario.kinds],
        "namespaces": [namespace.group for namespace in scenario.namespaces],
    }
    for field, names in named.items():
        for index, name in enumerate(names):
            if names.index(name) != index:
                yield f"{field}[{index}]: {name} duplicates {field}[{names.index(name)}]"


def _too_much(scenario: Scenario) -> Iterator[str]:
    counts = {
        "steps": (scenario.hours * 3_600 / scenario.step_s, STEPS_MAX, "raise step_s or lower hours"),
        "bundles": (
            sum(namespace.count * namespace.bundles for namespace in scenario.namespaces),
            BUNDLES_MAX,
            "lower count or bundles",
        ),
        "topics": (
            sum(namespace.count * namespace.topics for namespace in scenario.namespaces),
            TOPICS_MAX,
            "lower count or topics",
        ),
    }
    for what, (number, most, advice) in counts.items():
        if number > most:
            yield f"it has {number:,.0f} {what}, more than {most:,}: {advice}"
    if scenario.hours * 3_600 < scenario.step_s:
        yield f"hours: shorter than one step of {scenario.step_s:g} s"


def _namespace_faults(scenario: Scenario) -> Iterator[str]:
    fleets, kinds = [fleet.group for fleet in scenario.fleet], [kind.name for kind in scenario.kinds]
    joining = {
        event.group for event in scenario.events if event.what == "join" and not event.numbers and event.pick is None
    }
    for number, group in enumerate(scenario.namespaces):
        where = f"namespaces[{number}]"
        for kind in group.kinds:
            yield from _unknown(f"{where}.kinds", kind, kinds)
        for fleet in group.owners_in:
            yield from _unknown(f"{where}.owners_in", fleet, fleets)
            if fleet in joining:
                yield f"{where}.owners_in: {fleet} joins later, so it owns nothing at the start"
        if (group.owners == "parts") is not bool(group.parts):
            yield f'{where}.parts: required for owners = "parts", and only there'
        if group.created_at_min is not None and group.owners != "placed":
            yield f'{where}.owners: expected "placed", as it is created later'
        if group.created_at_min is not None and group.created_at_min >= scenario.hours * 60:
            yield f"{where}.created_at_min: {group.created_at_min:g} is after the end, {scenario.hours * 60:g}"


def _change_faults(where: str, change: LoadChange, scenario: Scenario) -> Iterator[str]:
    yield from _unknown(f"{where}.group", change.group, [namespace.group for namespace in scenario.namespaces])
    if (change.times is None) is (change.machine_part is None):
        yield f"{where}: expected either times or machine_part"
    if (change.topics is None) is (change.topics_share is None):
        yield f"{where}: expected either topics or topics_share"
    if change.namespace is not None:
        count = next((namespace.count for namespace in scenario.namespaces if namespace.group == change.group), 0)
        if change.namespace > count:
            yield (
                f"{where}.namespace: the group has {count}"
                if change.group
                else f"{where}.group: required with namespace"
            )
    if change.at_min >= scenario.hours * 60:
        yield f"{where}.at_min: {change.at_min:g} is after the end, {scenario.hours * 60:g}"
    if change.for_min is not None and change.for_min < change.rising_min:
        yield f"{where}.for_min: expected at least rising_min, {change.rising_min:g}"


def _event_faults(where: str, event: ScenarioEvent, scenario: Scenario) -> Iterator[str]:
    count = next((fleet.count for fleet in scenario.fleet if fleet.group == event.group), None)
    if count is None:
        yield from _unknown(f"{where}.group", event.group, [fleet.group for fleet in scenario.fleet])
        return
    if max([*event.numbers, event.pick or 0]) > count:
        yield f"{where}: {event.group} has {count} machines"
    if event.numbers and event.pick is not None:
        yield f"{where}: numbers or pick, not both"
    if (event.what in ("slow", "lossy", "lying")) is (event.factor is None):
        yield f"{where}.factor: required for slow, lossy and lying, and only there"
    if event.what == "slow" and event.factor is not None and event.factor < SLOWEST:
        yield f"{where}.factor: expected at least {SLOWEST:g}; for a broker that does nothing, use lost"
    if event.what == "lossy" and (event.factor or 0) > 1:
        yield f"{where}.factor: expected 0 to 1"
    if event.at_min >= scenario.hours * 60:
        yield f"{where}.at_min: {event.at_min:g} is after the end, {scenario.hours * 60:g}"


def _unknown(where: str, name: str | None, known: list[str]) -> Iterator[str]:
    if name is not None and name not in known:
        near = nearest(name, known)
        meant = f"; did you mean {near[0]}?" if near else f", only {', '.join(known)}"
        yield f"{where}: unknown name {cut(name)}{meant}"
