"""Choice of profile, strategies and settings of a live cluster, in the form of a snapshot. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from shedders.filters.rules import FilterSettings
from shedders.model.profiles import DEFAULT, PROFILES
from shedders.model.registry import KINDS, StrategySettingsError, find, settings_of
from shedders.policies.kinds import PolicyKind
from shedders.snapshots.model import ByStrategy, StrategyNames
from shedders.split.settings import SplitSettings
from statechannel.errors import StateChannelError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from shedders.balancer.active_strategies import ActiveStrategies
    from shedders.decisions.record import DecisionRecord
    from shedders.policies.effective import EffectivePolicies

STRATEGIES = "strategies"
_CHOSEN_BY = frozenset((PolicyKind.SETTING, PolicyKind.MANAGER, PolicyKind.WEIGHTS, PolicyKind.SHED_WITH_POLICIES))
_PARTS: Mapping[str, type[BaseModel]] = {"filters": FilterSettings, "splitting": SplitSettings}


class Choice(NamedTuple):
    """The profile, strategies and settings in force.

    Attributes:
        names: Strategies by kind; unknown ones are left to the profile.
        settings: All of them, JSON-able: by `shedding`, `placement`, `split`, `filters`, `splitting`.
    """

    profile: str
    names: Mapping[str, str]
    settings: Mapping[str, Mapping[str, Any]]


def of_chosen(chosen: ActiveStrategies) -> Choice:
    return Choice(
        chosen.profile,
        dict(chosen.names),
        {name: setting.model_dump(mode="json") for name, setting in chosen.settings.items()},
    )


def of_decision(decision: DecisionRecord, with_settings: DecisionRecord) -> Choice:
    """The choice of the newest decision.

    Args:
        with_settings: A decision with the same settings whose record has them.
    """
    settings = {name: setting for name, setting in (with_settings.settings or {}).items() if isinstance(setting, dict)}
    named = settings.get(STRATEGIES, {})
    names = {kind: str(named[kind]) for kind in KINDS if kind in named}
    names["shedding"] = decision.strategy
    if decision.placement is not None:
        names["placement"] = decision.placement
    return Choice(decision.profile, names, settings)


def changed_since(decision: DecisionRecord, effective: EffectivePolicies | None) -> Sequence[str]:
    """Names of policies that select strategies and that were set, deleted or expired after a decision."""
    known = decision.inputs.policies
    if effective is None or known is None:
        return []
    late = [entry.key for entry in effective.entries if entry.offset > known]
    late += [entry.key for entry in effective.lapsed if entry.offset > known or (entry.until_ms or 0) > decision.at_ms]
    late += [key for key, offset in effective.deleted.items() if offset > known]
    return sorted(key.text for key in late if key.kind in _CHOSEN_BY)


def parts_of(choice: Choice, remarks: list[str]) -> tuple[str, StrategyNames, ByStrategy]:
    """Profile, names and settings for a snapshot: of the settings those that differ from the profile's.

    Args:
        remarks: Is added to.
    """
    profile = choice.profile
    if profile not in PROFILES:
        remarks.append(f"profile {profile} is not known here; {DEFAULT.name} with its settings is used instead")
        profile = DEFAULT.name
    differing: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in (*KINDS, "parts")}
    for kind, name in choice.names.items():
        try:
            model: type[BaseModel] | None = find(kind, name).Settings
        except StateChannelError as error:
            remarks.append(f"{kind} strategy {name} cannot be used here: {error}")
            model = None
        differing[kind][name] = _differing(model, profile, kind, name, choice.settings.get(kind, {}))
    for part, part_model in _PARTS.items():
        differing["parts"][part] = _differing(part_model, profile, "parts", part, choice.settings.get(part, {}))
    names = StrategyNames(**choice.names)
    kept = {kind: {name: values for name, values in by.items() if values} for kind, by in differing.items()}
    return profile, names, ByStrategy(**kept)


def _differing(
    model: type[BaseModel] | None, profile: str, kind: str, name: str, values: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings that differ from the profile's."""
    if model is None:
        return dict(values)
    base = PROFILES[profile].settings.get(kind, {}).get(name, {})
    try:
        usual = settings_of(model, f"{kind}.{name}", base).model_dump(mode="json")  # type: ignore[type-var]
    except StrategySettingsError:
        return dict(values)
    return {field: value for field, value in values.items() if field not in usual or usual[field] != value}
