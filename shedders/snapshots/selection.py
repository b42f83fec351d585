"""Selection of strategies and their settings, from a snapshot and the options of a command."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from shedders.decision.placing import Pipeline
from shedders.filters.rules import FilterSettings
from shedders.model.cuts import algorithm_name
from shedders.model.profiles import profile as profile_of
from shedders.model.strategy import (
    Settings,
    SheddingMaker,
    StrategySettings,
    StrategySettingsError,
    find,
    instantiate,
    parse_flags,
    settings_of,
    shedding_maker,
)
from shedders.snapshots.model import Snapshot

FILTERS, SPLITTING = "filters", "splitting"
AROUND = ("placement", FILTERS, SPLITTING)
"""Parts that can be set in addition to a strategy: `--set filters.max_topics=100`."""


@dataclass(frozen=True, slots=True)
class StrategyChoice:
    """A strategy with its settings, not instantiated yet."""

    kind: str
    name: str
    profile: str
    settings: StrategySettings
    strategy: type[Any]

    @property
    def settings_fields(self) -> dict[str, Any]:
        return dumped(self.settings)


@dataclass(frozen=True, slots=True)
class Flags:
    """Settings from the command line, by part; `own`: those of the command's strategy."""

    own: Mapping[str, Any]
    around: Mapping[str, Mapping[str, Any]]

    @classmethod
    def parse(cls, flags: Sequence[str], used: Collection[str] = AROUND) -> Flags:
        """Sort `name=value` and `filters.name=value`.

        Args:
            used: Parts that the command uses; settings of others are rejected, as they would be ignored.

        Raises:
            StrategySettingsError: A setting is malformed, or of a part that is not used.
        """
        own: dict[str, Any] = {}
        around: dict[str, dict[str, Any]] = {part: {} for part in AROUND}
        for name, value in parse_flags(flags).items():
            part, dot, rest = name.partition(".")
            if dot and part in around:
                if part not in used:
                    raise StrategySettingsError(
                        "this plan", [f"--set {name}: this plan does not use settings of {part}"], []
                    )
                around[part][rest] = value
            else:
                own[name] = value
        return cls(own, around)


def choose(
    snapshot: Snapshot,
    kind: str,
    *,
    name: str | None = None,
    profile: str | None = None,
    values: Mapping[str, Any] | None = None,
) -> StrategyChoice:
    """Find a strategy and its settings.

    The name is the one given, else the snapshot's, else the profile's. Settings, weakest first: the strategy's defaults, the
    profile's, the snapshot's, `values`. A profile that is named here takes the place of the snapshot's profile *and* settings.

    Args:
        kind: `shedding`, `placement` or `split`.

    Raises:
        UnknownProfileError: The profile is unknown.
        UnknownStrategyError: The strategy is unknown.
        StrategyFailedError: It cannot be used.
        StrategySettingsError: It does not take these settings.
    """
    base = profile_of(snapshot.profile if profile is None else profile)
    if name is None:
        own = getattr(snapshot.strategies, kind) if profile is None else None
        wanted = own or base.strategies[kind]
    else:
        wanted = algorithm_name(name) if kind == "split" else name
    strategy = find(kind, wanted)
    merged = {**_values(snapshot, kind, wanted, profile), **(values or {})}
    return StrategyChoice(kind, wanted, base.name, settings_of(strategy.Settings, f"{kind}.{wanted}", merged), strategy)


def shedding_of(chosen: StrategyChoice) -> SheddingMaker:
    return shedding_maker(chosen.strategy, chosen.settings)


def pipeline_of(
    snapshot: Snapshot, *, name: str | None = None, profile: str | None = None, flags: Flags | None = None
) -> tuple[StrategyChoice, Pipeline]:
    """Filters and placement, with what the placement remembers; raises as `choose`.

    Args:
        flags: Of a command about something else; `around` is looked at.
    """
    around = {} if flags is None else flags.around
    chosen = choose(snapshot, "placement", name=name, profile=profile, values=around.get("placement"))
    filters = part_settings(snapshot, FILTERS, FilterSettings, profile=profile, values=around.get(FILTERS))
    strategy = instantiate("placement", chosen.strategy, chosen.settings)
    return chosen, Pipeline(strategy, filters, remembered_by(snapshot, "placement", chosen.name))


def part_settings(
    snapshot: Snapshot,
    part: str,
    model: type[Settings],
    *,
    profile: str | None = None,
    values: Mapping[str, Any] | None = None,
) -> Settings:
    """Settings of what stands around the strategies.

    Raises:
        StrategySettingsError: It does not take them.
    """
    return settings_of(model, part, {**_values(snapshot, "parts", part, profile), **(values or {})})


def remembered_by(snapshot: Snapshot, kind: str, name: str) -> Mapping[str, Any]:
    """What a strategy is given first; one that sheds and places remembers the same for both."""
    memory = getattr(snapshot.memory, kind).get(name)
    other = {"shedding": snapshot.memory.placement, "placement": snapshot.memory.shedding}.get(kind, {})
    memory_: Mapping[str, Any] = other.get(name, {}) if memory is None else memory
    return memory_


def split_memory(snapshot: Snapshot, algorithm: str) -> Mapping[str, Any]:
    """Initial memory of the split trigger: `memory.parts.splitting`, else `memory.split.ALGORITHM`."""
    parts, split = snapshot.memory.parts, snapshot.memory.split
    return parts[SPLITTING] if SPLITTING in parts else split.get(algorithm, {})


def own_way(*chosen: StrategyChoice) -> list[str]:
    """Strategies that run their own way although the profile is Pulsar's, for people: a profile has settings of its own only."""
    notes = []
    for choice in chosen:
        base = profile_of(choice.profile)
        if (
            base.departures
            and choice.name != base.strategies[choice.kind]
            and getattr(choice.settings, "upstream", None) is False
        ):
            notes.append(
                f"{choice.kind} strategy {choice.name} does not run as in Pulsar: profile {base.name} has settings of "
                f"{base.strategies[choice.kind]} only; set upstream=true of {choice.name} for Pulsar's"
            )
    return notes


def dumped(settings: BaseModel) -> dict[str, Any]:
    return settings.model_dump(mode="json")


def _values(snapshot: Snapshot, kind: str, name: str, profile: str | None) -> dict[str, Any]:
    """Settings that differ from the defaults, as the profile and the snapshot have them."""
    base = profile_of(snapshot.profile if profile is None else profile)
    own = {} if profile is not None else getattr(snapshot.settings, kind).get(name, {})
    return {**base.settings.get(kind, {}).get(name, {}), **own}
