"""The strategies that are in force: those of the profile, the settings and the policies, made once for each change."""

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
        settings: Of each, by kind; `filters` and `splitting` with them.
        pipeline: Filters and placement of decisions; it remembers what its strategy wants to. Decisions are made in a thread,
            and nothing else may use it meanwhile.
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
        """After a decision: a strategy that sheds and places, places by what it has just planned."""
        if self.pipeline.name == self.names["shedding"]:
            self.placing.memory = dict(self.pipeline.memory)


def choose(
    settings: BalancerSettings,
    overrides: Mapping[str, Any] | None = None,
    *,
    manager: str = EXTENSIBLE,
    common: Mapping[str, Any] | None = None,
) -> ActiveStrategies:
    """Make the strategies that settings and policies ask for.

    Args:
        overrides: From policies, by dotted name: `shedding`, `placement`, `split`, `profile` name a strategy or profile;
            `KIND.STRATEGY.NAME`, `parts.filters.NAME` and `parts.splitting.NAME` are settings.
        manager: Chooses the profile where nobody names one.
        common: From policies about the whole cluster: settings of every strategy that has one of that name. What
            `overrides` say of a strategy stands over them.

    Raises:
        UnknownStrategyError, UnknownProfileError, UnknownSettingError: There is none of that name; the error lists what exists.
        StrategyFailedError: One cannot be used.
        StrategySettingsError: One does not take its settings; those that are not chosen are asked, too.
    """
    refuse_unknown(overrides or {})
    plain = {name: checked(name, value) for name, value in (overrides or {}).items() if "." not in name}
    modular = profile(settings.modular_profile)  # looked at before it is needed: the switch is no time to find out
    usual = modular.name if manager == MODULAR else DEFAULT.name
    base = profile(plain.get("profile") or settings.profile or usual)
    names = {
        kind: plain.get(kind) or getattr(settings, kind) or base.strategies[kind]
        for kind in ("shedding", "placement", "split")
    }
    classes = {kind: find(kind, name) for kind, name in names.items()}
    shared = {
        kind: {
            names[kind]: {name: value for name, value in (common or {}).items() if name in one.Settings.model_fields}
        }
        for kind, one in classes.items()
    }
    nested = _nested(overrides or {})
    values = _layered(base.settings, settings.strategies, shared, nested)
    found = {
        kind: settings_of(one.Settings, f"{kind}.{names[kind]}", values.get(kind, {}).get(names[kind], {}))
        for kind, one in classes.items()
    }
    _check_others(values, settings.strategies, nested)
    parts = values.get("parts", {})
    filters = settings_of(FilterSettings, "parts.filters", parts.get("filters", {}))
    splitting = settings_of(SplitSettings, "parts.splitting", parts.get("splitting", {}))
    placing: Sequence[Placing] = [instantiate("placement", classes["placement"], found["placement"]) for _ in range(2)]
    algorithm: SplitAlgorithm = instantiate("split", classes["split"], found["split"])
    return ActiveStrategies(
        base.name,
        names,
        {**found, "filters": filters, "splitting": splitting},
        shedding_maker(classes["shedding"], found["shedding"]),
        Pipeline(placing[0], filters),
        Pipeline(placing[1], filters),
        algorithm,
        splitting,
    )


def in_force(
    settings: BalancerSettings, standing: EffectivePolicies | None
) -> tuple[BalancerSettings, ActiveStrategies]:
    """What a cluster is balanced with: a broker's settings under all policies that speak of them.

    Args:
        standing: None where no policies are known.

    Returns:
        The balancer's own settings, and the strategies.

    Raises:
        StateChannelError: As `choose` and `balanced_by`.
    """
    overrides = {} if standing is None else standing.settings
    own = balanced_by(settings, overrides)
    others = {name: value for name, value in overrides.items() if not name.startswith("balancer.")}
    manager = (None if standing is None else standing.manager) or own.manager
    return own, choose(own, others, manager=manager, common=laid_down(standing))


def laid_down(standing: EffectivePolicies | None) -> dict[str, Any]:
    """What policies about the whole cluster say of the settings of strategies, by a setting's name."""
    found: dict[str, Any] = {}
    if standing is not None and standing.weights is not None:
        found |= {f"{name}_weight": value for name, value in standing.weights._asdict().items()}
    if standing is not None and standing.shed_with_policies is not None:
        found["shed_with_policies"] = standing.shed_with_policies
    return found


def _check_others(values: Values, *layers: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """What somebody says of a strategy must hold although it is not chosen: a slip would be found out when it is."""
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
    """Making strategies of what policies lay down failed by something that is no word about a setting: a plug-in, or a bug."""

    def __init__(self, error: Exception) -> None:
        super().__init__(
            f"what the policies lay down cannot be used: {type(error).__name__}: {error}",
            hint="`statechannel policy list` shows the settings and who set them; delete the one that is meant.",
        )
        self.__cause__ = error


class InForce:
    """See the module. In the loop's thread.

    Args:
        configured: The broker's own settings.

    Attributes:
        settings: The balancer's, with what policies say in place of them.
        chosen: Strategies; the same as long as nothing changes for them, since they remember.
        unusable: Why the policies cannot be used as they stand; None if they can. Settings and strategies are those before then.

    Raises:
        StateChannelError: The broker's own settings cannot be used.
    """

    def __init__(self, configured: BalancerSettings) -> None:
        self._configured = configured
        self.settings, self.chosen = in_force(configured, None)
        self.unusable: str | None = None
        self._chosen_for = self._asked_for(EffectivePolicies())
        self._isolation: tuple[Policies, Isolation] | None = None

    def follow(self, standing: EffectivePolicies) -> StateChannelError | None:
        """Go by these policies from now on; what is wrong with them, if they are new and cannot be used."""
        asked_for = self._asked_for(standing)
        if asked_for == self._chosen_for:
            return None
        self._chosen_for = asked_for
        try:
            self.settings, self.chosen = in_force(self._configured, standing)
        except Exception as error:
            # Placements go on as before, and nothing is moved: who knows what the policy was to prevent.
            fault = error if isinstance(error, StateChannelError) else PoliciesUnusableError(error)
            self.unusable = str(fault)
            return fault
        self.unusable = None
        return None

    def keeps(self, standing: EffectivePolicies | None, namespace: str) -> bool:
        """Whether the bundles of a namespace are kept from being shed for its policies' sake."""
        if standing is None:
            return False
        allowed = standing.shed_with_policies
        if self._configured.load.top_with_policies if allowed is None else allowed:
            return False
        policies = standing.policies
        if namespace in policies.anti_affinity:
            return True
        if self._isolation is None or self._isolation[0] is not policies:
            self._isolation = policies, Isolation(policies.isolation, {})
        zone = self._isolation[1].zone(namespace)
        return zone is not None and (zone.policy is not None or zone.broken is not None)

    def cool_down_s(self) -> float | None:
        """Of the shedding strategy; None: it has none."""
        found = getattr(self.chosen.settings["shedding"], "cool_down_s", None)
        return found if isinstance(found, int | float) else None

    def _asked_for(self, standing: EffectivePolicies) -> tuple[object, ...]:
        """What strategies are chosen by."""
        return standing.settings, standing.manager or self._configured.manager, laid_down(standing)
