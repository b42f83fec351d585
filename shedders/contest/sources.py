"""Sources of traces, by names of scenarios or paths of files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from shedders.contest.outcome import SourceKind, TraceSource
from shedders.contest.scenario import HELD_OUT, Scenario, load_scenario, scenarios
from shedders.contest.snapshot_trace import from_snapshot
from shedders.contest.trace import Trace
from shedders.contest.workload import UPSETTING, scenario_trace
from shedders.snapshots.file import SnapshotError, read_snapshot

USUAL_BUNDLES_MAX: Final = 5_000
"""With more a run takes minutes, and all contenders with five seeds hours."""
_SHALLOW: Final = 0.1
"""A wave that moves load by no more than this is noise."""


def scenario_source(where: str) -> TraceSource:
    """The source that a scenario is.

    Raises:
        ScenarioError: The scenario does not exist or is unusable.
    """
    scenario = load_scenario(where)
    return TraceSource(
        SourceKind.SCENARIO,
        name=scenario.name,
        where=where,
        digest=hashlib.sha256(scenario.model_dump_json().encode()).hexdigest(),
        about=scenario.about,
        steady=is_steady(scenario),
        scale_out=any(event.what == "join" for event in scenario.events),
        held_out=where.startswith(HELD_OUT),
        generated=scenario.generated_by_seed is not None,
    )


def is_steady(scenario: Scenario) -> bool:
    """Whether nothing in it calls for moves once balance is found: there is noise, and spikes that pass before a move helps."""
    later = any(group.created_at_min is not None for group in scenario.namespaces)
    upset = any(event.what in UPSETTING for event in scenario.events)
    wave = scenario.wave is not None and scenario.wave.height > _SHALLOW
    return not (scenario.changes or wave or later or upset)


def snapshot_source(path: Path, *, hours: float) -> TraceSource:
    """The source that a snapshot in a file is; its name is that of the file.

    Raises:
        SnapshotError: It cannot be read.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SnapshotError.unreadable(str(path), error) from error
    kind = SourceKind.SNAPSHOT
    digest = hashlib.sha256(f"{kind} {hours} ".encode() + content).hexdigest()
    return TraceSource(kind, path.stem, str(path), digest, hours=hours)


def make_trace(source: TraceSource, seed: int) -> Trace:
    """The trace of a source and a seed.

    Raises:
        StateChannelError: The scenario or file is missing or unusable.
    """
    match source.kind:
        case SourceKind.SCENARIO:
            return scenario_trace(load_scenario(source.where), seed)
        case SourceKind.SNAPSHOT:
            return from_snapshot(read_snapshot(Path(source.where)), name=source.name, seed=seed, hours=source.hours)


def usual_scenarios(*, held_out: bool) -> tuple[list[str], list[str]]:
    """Names of the shipped scenarios; and of those among them that are too large to be run unless they are named.

    Args:
        held_out: Also those that were not looked at while tuning.
    """
    names = [*scenarios(), *(scenarios(held_out=True) if held_out else [])]
    large = [name for name in names if load_scenario(name).bundle_count > USUAL_BUNDLES_MAX]
    return [name for name in names if name not in large], large


def chosen_scenarios(names: Iterable[str]) -> list[TraceSource]:
    """Sources of the scenarios with these names.

    Raises:
        ScenarioError: One of them is not there, or cannot be used.
    """
    return name_apart(scenario_source(name) for name in dict.fromkeys(names))


def name_apart(sources: Iterable[TraceSource]) -> list[TraceSource]:
    """Sources with names of their own: a user's file may be called as a shipped one."""
    by_name: dict[str, TraceSource] = {}
    for source in sources:
        name = source.name if source.name not in by_name else source.where
        by_name[name] = replace(source, name=name)
    return list(by_name.values())
