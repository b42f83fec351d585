"""Active strategies: those of the profile, the settings and the policies, created once for each change.

Names of policies of kind `setting`: `shedding`, `placement`, `split` and `profile` choose a strategy or a profile;
`KIND.STRATEGY.NAME` is a setting of a strategy, `parts.filters.NAME` and `parts.splitting.NAME` (short: `filters.NAME`,
`splitting.NAME`) of the filters and of splits, `balancer.NAME` and `balancer.budget.NAME` of the balancer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic import BaseModel

from shedders.balancer.settings import BalancerSettings
from shedders.decision.booked_moves import BudgetSettings
from shedders.decision.placing import Pipeline
from shedders.errors import StrategyFailedError
from shedders.filters.isolation import Isolation
from shedders.filters.rules import FilterSettings
from shedders.model.cuts import algorithm_name
from shedders.model.profiles import DEFAULT, profile
from shedders.model.strategy import KINDS, SheddingMaker, available, find, instantiate, settings_of, shedding_maker
from shedders.policies.effective import EffectivePolicies
from shedders.policies.kinds import canonical
from shedders.split.triggers import SplitSettings
from statechannel.errors import ExitCode, StateChannelError
from statechannel.suggestions import nearest

if TYPE_CHECKING:
    from shedders.model.cluster import Policies
    from shedders.model.strategy import Placing, SplitAlgorithm, StrategySettings


PROFILE: Final = "profile"
PARTS: Final[Mapping[str, type[BaseModel]]] = {"filters": FilterSettings, "splitting": SplitSettings}
BALANCER: Final = (
    "balancing",
    "splitting",
    "interval_s",
    "trigger_gap_s",
    "split_interval_s",
    "splits_at_once",
    "split_again_s",
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
        if field in model.gone:
            settings_of(model, f"{kind}.{strategy}", {field: None})  # refuses it, and says what replaces it
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
    try:
        refuse_unknown([name])
    except StateChannelError:
        return False
    return True


def refuse_unknown(names: Iterable[str]) -> None:
    """Refuse unknown names of settings: ignoring one could allow what it was meant to prevent.

    Raises:
        UnknownSettingError, UnknownStrategyError, StrategyFailedError: One is unknown.
        StrategySettingsError: One is of a former version.
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


Values = dict[str, dict[str, dict[str, Any]]]
EXTENSIBLE, MODULAR = "extensible", "modular"  # the two load managers


@dataclass(frozen=True, slots=True)
class ActiveStrategies:
    """Strategies, ready to decide.

    Attributes:
        names: By kind.
        settings: Of each, by kind, including `filters` and `splitting`.
        pipeline: Filters and placement of decisions, with the strategy's memory. Decisions run in a thread, and nothing else
            may use it meanwhile.
        placing: The same for placements, in the loop's thread.
    """

    profile: str
    names: Mapping[str, str]
    settings: Mapping[str, StrategySettings]
    shedding: SheddingMaker
    pipeline: Pipeline
    placing: Pipeline
    algorithm: SplitAlgorithm
    splitting: SplitSettings

    def settings_json(self, *names: str) -> dict[str, Any]:
        """The settings of these, JSON-able; all without a name."""
        return {name: self.settings[name].model_dump(mode="json") for name in names or self.settings}

    def share(self) -> None:
        """Pass the memory of a decision to placements, if one strategy does both."""
        if self.pipeline.name == self.names["shedding"]:
            self.placing.memory = dict(self.pipeline.memory)


def choose(
    settings: BalancerSettings,
    overrides: Mapping[str, Any] | None = None,
    *,
    manager: str = EXTENSIBLE,
    common: Mapping[str, Any] | None = None,
) -> ActiveStrategies:
    """Create the strategies that settings and policies select.

    Args:
        overrides: From policies, by dotted name: `shedding`, `placement`, `split`, `profile` name a strategy or profile;
            `KIND.STRATEGY.NAME`, `parts.filters.NAME` and `parts.splitting.NAME` are settings.
        manager: Selects the profile if none is set.
        common: From policies for the whole cluster: settings of every strategy that has one of that name. `overrides` take
            precedence over them.

    Raises:
        UnknownStrategyError, UnknownProfileError, UnknownSettingError: The name is unknown; the error lists what exists.
        StrategyFailedError: One cannot be used.
        StrategySettingsError: One does not accept its settings; those that are not selected are checked as well.
    """
    refuse_unknown(overrides or {})
    plain = {name: checked(name, value) for name, value in (overrides or {}).items() if "." not in name}
    modular = profile(settings.modular_profile)  # checked before it is needed, not only when the manager is switched
    usual = modular.name if manager == MODULAR else DEFAULT.name
    base = profile(plain.get("profile") or settings.profile or usual)
    names = {
        kind: plain.get(kind) or getattr(settings, kind) or base.strategies[kind]
        for kind in ("shedding", "placement", "split")
    }
    classes = {kind: find(kind, name) for kind, name in names.items()}
    shared = {
        kind: {
            names[kind]: {
                name: value for name, value in (common or {}).items() if name in strategy.Settings.model_fields
            }
        }
        for kind, strategy in classes.items()
    }
    nested = _nested(overrides or {})
    values = _layered(base.settings, settings.strategies, shared, nested)
    own = {
        kind: settings_of(strategy.Settings, f"{kind}.{names[kind]}", values.get(kind, {}).get(names[kind], {}))
        for kind, strategy in classes.items()
    }
    _check_others(values, settings.strategies, nested)
    parts = values.get("parts", {})
    filters = settings_of(FilterSettings, "parts.filters", parts.get("filters", {}))
    splitting = settings_of(SplitSettings, "parts.splitting", parts.get("splitting", {}))
    placing: Sequence[Placing] = [instantiate("placement", classes["placement"], own["placement"]) for _ in range(2)]
    algorithm: SplitAlgorithm = instantiate("split", classes["split"], own["split"])
    return ActiveStrategies(
        base.name,
        names,
        {**own, "filters": filters, "splitting": splitting},
        shedding_maker(classes["shedding"], own["shedding"]),
        Pipeline(placing[0], filters),
        Pipeline(placing[1], filters),
        algorithm,
        splitting,
    )


def in_force(
    settings: BalancerSettings, effective: EffectivePolicies | None
) -> tuple[BalancerSettings, ActiveStrategies]:
    """The settings and strategies in force: a broker's settings, overridden by policies.

    Args:
        effective: The policies in effect; None if they are not known.

    Returns:
        The balancer's own settings, and the strategies.

    Raises:
        StateChannelError: As `choose` and `balanced_by`.
    """
    overrides = {} if effective is None else effective.settings
    own = balanced_by(settings, overrides)
    others = {name: value for name, value in overrides.items() if not name.startswith("balancer.")}
    manager = (None if effective is None else effective.manager) or own.manager
    return own, choose(own, others, manager=manager, common=common_settings(effective))


def common_settings(effective: EffectivePolicies | None) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if effective is not None and effective.weights is not None:
        values |= {f"{name}_weight": value for name, value in effective.weights._asdict().items()}
    if effective is not None and effective.shed_with_policies is not None:
        values["shed_with_policies"] = effective.shed_with_policies
    return values


def _check_others(values: Values, *layers: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Check the settings of strategies that are not selected: a mistake would otherwise show only when they are."""
    for kind, name in sorted({(kind, name) for layer in layers for kind, by_name in layer.items() for name in by_name}):
        if kind in KINDS:
            settings_of(find(kind, name).Settings, f"{kind}.{name}", values[kind][name])
        elif kind != "parts" or name not in PARTS:
            raise UnknownSettingError(f"{kind}.{name}", sorted(known_settings()))


def _layered(*layers: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Values:
    values: Values = {}
    for layer in layers:
        for kind, by_name in layer.items():
            for name, own in by_name.items():
                values.setdefault(kind, {}).setdefault(name, {}).update(deepcopy(dict(own)))
    return values


def _nested(overrides: Mapping[str, Any]) -> Values:
    values: Values = {}
    for dotted, value in sorted(overrides.items()):
        kind, _, rest = dotted.partition(".")
        name, _, field = rest.partition(".")
        if field:
            values.setdefault(kind, {}).setdefault(name, {})[field] = value
    return values


class PoliciesUnusableError(StateChannelError):
    """Strategies could not be created from the policies, due to an error in a plug-in or a bug."""

    def __init__(self, error: Exception) -> None:
        super().__init__(
            f"the policies' settings cannot be used: {type(error).__name__}: {error}",
            hint="`statechannel policy list` shows the settings and who set them; delete the wrong one.",
        )
        self.__cause__ = error


class StrategiesInForce:
    """The settings and strategies in force. In the loop's thread.

    Attributes:
        chosen: Strategies; the same objects until their settings change, since they have a memory.
        unusable: Why the policies cannot be used; None if they can. If not, settings and strategies are the former ones.

    Raises:
        StateChannelError: The broker's own settings cannot be used.
    """

    def __init__(self, configured: BalancerSettings) -> None:
        self._configured = configured
        self.settings, self.chosen = in_force(configured, None)
        self.unusable: str | None = None
        self._chosen_for = self._selectors(EffectivePolicies())
        self._isolation: tuple[Policies, Isolation] | None = None

    def follow(self, effective: EffectivePolicies) -> StateChannelError | None:
        """Apply these policies; what is wrong with them, if they are new and cannot be used."""
        selectors = self._selectors(effective)
        if selectors == self._chosen_for:
            return None
        self._chosen_for = selectors
        try:
            self.settings, self.chosen = in_force(self._configured, effective)
        except Exception as error:
            # Placements go on as before, and no bundle is moved: the policy may have been meant to prevent it.
            fault = error if isinstance(error, StateChannelError) else PoliciesUnusableError(error)
            self.unusable = str(fault)
            return fault
        self.unusable = None
        return None

    def keeps(self, effective: EffectivePolicies | None, namespace: str) -> bool:
        """Whether policies of a namespace keep its bundles from being shed."""
        if effective is None:
            return False
        allowed = effective.shed_with_policies
        if self._configured.load.top_with_policies if allowed is None else allowed:
            return False
        policies = effective.policies
        if namespace in policies.anti_affinity:
            return True
        if self._isolation is None or self._isolation[0] is not policies:
            self._isolation = policies, Isolation(policies.isolation, {})
        zone = self._isolation[1].zone(namespace)
        return zone is not None and (zone.policy is not None or zone.broken is not None)

    def cool_down_s(self) -> float | None:
        cool_down_s = getattr(self.chosen.settings["shedding"], "cool_down_s", None)
        return cool_down_s if isinstance(cool_down_s, int | float) else None

    def _selectors(self, effective: EffectivePolicies) -> tuple[object, ...]:
        return effective.settings, effective.manager or self._configured.manager, common_settings(effective)
