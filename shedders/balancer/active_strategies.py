"""Active strategies: those of the profile, the settings and the policies, created once for each change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shedders.balancer.setting_names import (
    PARTS,
    UnknownSettingError,
    balanced_by,
    checked,
    known_settings,
    refuse_unknown,
)
from shedders.decision.placing import Pipeline
from shedders.filters.isolation import Isolation
from shedders.filters.rules import FilterSettings
from shedders.model.profiles import DEFAULT, profile
from shedders.model.registry import KINDS, SheddingMaker, find, instantiate, settings_of, shedding_maker
from shedders.policies.effective import EffectivePolicies
from shedders.split.settings import SplitSettings
from statechannel.errors import StateChannelError

if TYPE_CHECKING:
    from shedders.balancer.settings import BalancerSettings
    from shedders.model.cluster import Policies
    from shedders.model.strategy import Placing, SplitAlgorithm, StrategySettings


Values = dict[str, dict[str, dict[str, Any]]]
EXTENSIBLE, MODULAR = "extensible", "modular"
"""The two load managers."""


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
    """Settings of strategies from policies for the whole cluster, by name."""
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

    Args:
        configured: The broker's own settings.

    Attributes:
        settings: The balancer's, overridden by policies.
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
        """The shedding strategy's; None if it has none."""
        cool_down_s = getattr(self.chosen.settings["shedding"], "cool_down_s", None)
        return cool_down_s if isinstance(cool_down_s, int | float) else None

    def _selectors(self, effective: EffectivePolicies) -> tuple[object, ...]:
        """The values that select strategies."""
        return effective.settings, effective.manager or self._configured.manager, common_settings(effective)
