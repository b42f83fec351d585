"""Names and validation of policies of kind `setting`, from the installed strategies.

Names: `shedding`, `placement`, `split` and `profile` choose a strategy or a profile; `KIND.STRATEGY.NAME` is a setting of a
strategy, `parts.filters.NAME` and `parts.splitting.NAME` (short: `filters.NAME`, `splitting.NAME`) of the filters and of splits,
`balancer.NAME` and `balancer.budget.NAME` of the balancer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from pydantic import BaseModel

from shedders.balancer.settings import BalancerSettings
from shedders.decision.budget import BudgetSettings
from shedders.errors import StrategyFailedError
from shedders.filters.rules import FilterSettings
from shedders.model.cuts import algorithm_name
from shedders.model.profiles import profile
from shedders.model.registry import KINDS, find, settings_of
from shedders.model.strategy import available
from shedders.policies.kinds import canonical
from shedders.split.settings import SplitSettings
from statechannel.errors import ExitCode, StateChannelError
from statechannel.suggestions import nearest

PROFILE: Final = "profile"
PARTS: Final[Mapping[str, type[BaseModel]]] = {"filters": FilterSettings, "splitting": SplitSettings}
BALANCER: Final = (
    "balancing",
    "splitting",
    "interval_s",
    "trigger_gap_s",
    "split_interval_s",
    "move_timeout_s",
    "move_memory_s",
    "moves_at_once",
    "placement_refresh_s",
    "leader_wait_s",
    "leader_asks_max",
    "debug_scores",
)
"""Settings of the balancer that can be changed while it runs, in addition to `budget.*`."""


class UnknownSettingError(StateChannelError):
    """The setting does not exist."""

    def __init__(self, name: str, known: list[str]) -> None:
        near = nearest(name, known, 0.5)
        leaf = name.rpartition(".")[2]
        same = next((setting for setting in known if setting.rpartition(".")[2] == leaf), None)
        guess = near[0] if near else same
        meant = f"did you mean {guess}? " if guess else ""
        super().__init__(
            f"unknown setting `{name}`",
            hint=f"{meant}Use KIND.STRATEGY.NAME, filters.NAME, splitting.NAME or balancer.NAME; "
            "`statechannel strategy show` lists the settings of a strategy.",
            exit_code=ExitCode.BAD_SETTINGS,
        )


class SettingPlace(NamedTuple):
    """The place of a setting: its full name, its owner for messages, the model, the name in the model."""

    name: str
    owner: str
    model: type[BaseModel]
    field: str


def checked(name: str, value: Any, others: Mapping[str, Any] | None = None) -> Any:
    """The validated value; texts are converted to the field's type.

    Args:
        name: As `canonical` gives it.
        others: Settings from policies: those of the same model are validated together with it.

    Raises:
        UnknownSettingError: The setting does not exist.
        UnknownStrategyError, UnknownProfileError, StrategyFailedError: The strategy or profile cannot be used.
        StrategySettingsError: The value is not valid.
    """
    if name == PROFILE:
        return profile(str(value)).name
    if name in KINDS:
        wanted = algorithm_name(str(value)) if name == "split" else str(value)
        find(name, wanted)
        return wanted
    place = _place(name)
    siblings = {
        other.removeprefix(f"{place.owner}."): sibling
        for other, sibling in (others or {}).items()
        if other.startswith(f"{place.owner}.") and other != name
    }
    known = {field: sibling for field, sibling in siblings.items() if field in place.model.model_fields}
    validated: BaseModel = settings_of(place.model, place.owner, {**known, place.field: value})  # type: ignore[type-var]
    return validated.model_dump(mode="json")[place.field]


def _place(name: str) -> SettingPlace:
    kind, _, rest = name.partition(".")
    if kind in KINDS and "." in rest:
        strategy, _, field = rest.partition(".")
        model = find(kind, strategy).Settings
        if field in model.model_fields:
            return SettingPlace(name, f"{kind}.{strategy}", model, field)
    elif kind == "parts":
        part, _, field = rest.partition(".")
        if part in PARTS and field in PARTS[part].model_fields:
            return SettingPlace(name, f"parts.{part}", PARTS[part], field)
    elif kind == "balancer":
        group, _, field = rest.rpartition(".")
        if group == "budget" and field in BudgetSettings.model_fields:
            return SettingPlace(name, "balancer.budget", BudgetSettings, field)
        if not group and field in BALANCER:
            return SettingPlace(name, "balancer", BalancerSettings, field)
    raise UnknownSettingError(name, sorted(known_settings()))


def known_settings() -> Iterator[str]:
    """The names of all settings; those of strategies that cannot be loaded are left out."""
    yield PROFILE
    for kind, strategy_kind in KINDS.items():
        yield kind
        for strategy in available(strategy_kind.group):
            try:
                model = find(kind, strategy).Settings
            except StrategyFailedError:
                continue
            yield from (f"{kind}.{strategy}.{field}" for field in model.model_fields)
    for part, model in PARTS.items():
        yield from (f"{part}.{field}" for field in model.model_fields)
    yield from (f"balancer.{field}" for field in BALANCER)
    yield from (f"balancer.budget.{field}" for field in BudgetSettings.model_fields)


def is_known(name: str) -> bool:
    """Whether the setting exists with the installed strategies."""
    try:
        refuse_unknown([name])
    except StateChannelError:
        return False
    return True


def refuse_unknown(names: Iterable[str]) -> None:
    """Refuse unknown names of settings: ignoring one could allow what it was meant to prevent.

    Raises:
        UnknownSettingError, UnknownStrategyError, StrategyFailedError: One is unknown.
    """
    for name in sorted(names):
        if name != PROFILE and name not in KINDS:
            _place(canonical(name))


def balanced_by(settings: BalancerSettings, overrides: Mapping[str, Any]) -> BalancerSettings:
    """The balancer's settings, overridden by policies.

    Args:
        overrides: `EffectivePolicies.settings`; those of others are ignored.

    Raises:
        UnknownSettingError, StrategySettingsError: One of them cannot be used; nothing should be decided then.
    """
    own: dict[str, Any] = {}
    budget = settings.budget.model_dump(mode="json")
    for name in sorted(overrides):
        if name.partition(".")[0] != "balancer":
            continue
        place = _place(name)
        value = checked(name, overrides[name], overrides)
        if place.model is BudgetSettings:
            budget[place.field] = value
        else:
            own[place.field] = value
    validated: BudgetSettings = settings_of(BudgetSettings, "balancer.budget", budget)
    return settings.model_copy(update={**own, "budget": validated})
