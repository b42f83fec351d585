"""Contenders: every manager with every shedder and placement, as in Pulsar and corrected, and ours.

    MANAGER/SHEDDING+PLACEMENT@SETTINGS[,NAME=VALUE...]     modular/avg+avg@upstream
    profile/NAME[,NAME=VALUE...]                            profile/production
    ours                                                    weighted-move for shedding and placement

Managers: `modular` (the leader places and knows every bundle; Pulsar unloads, and has bundles looked up again), `extensible`
(every broker places, the leader knows each broker's heaviest bundles, and transfers them). Settings: `upstream` (Pulsar 4.2.4,
defects included), `recommended` (corrected, our defaults).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from shedders.model.profiles import PROFILES, profile
from shedders.model.strategy import PLACEMENT, SHEDDING, available, find, parse_flags
from shedders.policies.kinds import canonical
from statechannel.errors import ExitCode, StateChannelError
from statechannel.suggestions import nearest, shown

AS_IT_IS: Final = "as-it-is"
"""Name of the present configuration of a real cluster."""


@dataclass(frozen=True, slots=True)
class Contender:
    """Manager with strategies.

    Attributes:
        about: One line, for people.
        manager: `modular` or `extensible`.
        upstream: Pulsar's behaviour in everything: strategies, filters, splits, placements that ignore bundles in flight.
        overrides: Settings by dotted name, as policies have them: `shedding.transfer.hit_threshold`, `balancer.interval_s`.
    """

    name: str
    about: str
    manager: str
    shedding: str
    placement: str
    split: str = "range-equally-divide"
    upstream: bool = False
    overrides: Mapping[str, Any] = field(default_factory=dict)


MODULAR, EXTENSIBLE = "modular", "extensible"
MANAGERS = (MODULAR, EXTENSIBLE)
UPSTREAM, RECOMMENDED = "upstream", "recommended"
OURS = "ours"
PAIRS: Sequence[tuple[str, str, str, str]] = (
    (MODULAR, "threshold", "least-long-term-rate", "the modular manager as Pulsar 4 installs it"),
    (MODULAR, "threshold", "least-resource-usage-modular", "the pair that PIP-364 measured and was meant to replace"),
    (MODULAR, "avg", "avg", "the modular manager as Pulsar 5 installs it (PIP-364)"),
    (MODULAR, "uniform", "least-long-term-rate", "by traffic, not by the machines' usage"),
    (MODULAR, "overload", "least-long-term-rate", "Pulsar's oldest shedder"),
    (
        MODULAR,
        "range-threshold",
        "least-resource-usage-modular",
        "the threshold shedder with the lower boundary of PR 17456",
    ),
    (EXTENSIBLE, "transfer", "least-resource-usage", "the extensible manager of PIP-192, PIP-220"),
)
"""Pairs in use or proposed: manager, shedding, placement, description."""


class UnknownContenderError(StateChannelError):
    """A contender's name is unknown."""

    def __init__(self, name: str, why: str, known: Sequence[str]) -> None:
        near = nearest(name, known)
        meant = f"did you mean {near[0]}? " if near else ""
        super().__init__(
            f"unknown contender `{shown(name)}`: {why}",
            hint=f"{meant}Use MANAGER/SHEDDING+PLACEMENT@SETTINGS, profile/NAME or ours; see `statechannel simulate list`.",
            exit_code=ExitCode.BAD_SETTINGS,
        )


def default_contenders() -> Sequence[Contender]:
    """Default contenders: the pairs in use, as in Pulsar and corrected, and ours."""
    chosen = [contender(OURS)]
    for settings in (UPSTREAM, RECOMMENDED):
        chosen += [contender(f"{manager}/{shedder}+{other}@{settings}") for manager, shedder, other, _ in PAIRS]
    return [
        *chosen,
        contender(f"extensible/deviation+least-resource-usage@{RECOMMENDED}"),
        contender("profile/production"),
    ]


def all_contenders() -> Sequence[Contender]:
    """Every manager with every installed shedder and placement, as in Pulsar and corrected, and the default contenders."""
    first = list(default_contenders())
    known = {pair.name for pair in first}
    names = (
        f"{manager}/{shedder}+{other}@{settings}"
        for manager in MANAGERS
        for shedder in available(SHEDDING)
        for other in available(PLACEMENT)
        for settings in (UPSTREAM, RECOMMENDED)
    )
    return first + [contender(name) for name in names if name not in known]


def contenders(text: str) -> Sequence[Contender]:
    """Contenders by names, separated by blanks or semicolons; `default` and `all` are groups.

    Raises:
        UnknownContenderError: A name is unknown.
    """
    by_name: dict[str, Contender] = {}
    for name in text.replace(";", " ").split():
        selected = (
            default_contenders() if name == "default" else all_contenders() if name == "all" else [contender(name)]
        )
        by_name |= {contender.name: contender for contender in selected}
    if not by_name:
        raise UnknownContenderError(text, "no name", ["default", "all", OURS])
    return list(by_name.values())


def contender(name: str) -> Contender:
    """Contender of a name.

    Raises:
        UnknownContenderError: The name is unknown.
        StateChannelError: A strategy or setting in it does not exist.
    """
    base, *flags = name.split(",")
    # `splitting.NAME` stands for `parts.splitting.NAME`, as in policies.
    overrides = {canonical(flag): value for flag, value in parse_flags(flags).items()}
    if base == OURS:
        return Contender(
            name,
            "ours: one score, one plan, by gain for churn",
            EXTENSIBLE,
            "weighted-move",
            "weighted-move",
            overrides=overrides,
        )
    manager, slash, rest = base.partition("/")
    if not slash:
        raise UnknownContenderError(name, "it has no manager", [OURS, *(_name(*pair[:3]) for pair in PAIRS)])
    if manager == "profile":
        return _of_profile(name, rest, overrides)
    pair, at, settings = rest.partition("@")
    shedding, plus, placement = pair.partition("+")
    if manager not in MANAGERS or not (at and plus) or settings not in (UPSTREAM, RECOMMENDED):
        raise UnknownContenderError(
            name, "it is not of that form", [OURS, *(_name(*pair[:3]) for pair in PAIRS), *MANAGERS]
        )
    for kind, strategy in (("shedding", shedding), ("placement", placement)):
        find(kind, strategy)
    upstream = settings == UPSTREAM
    about = next((pair[3] for pair in PAIRS if pair[:3] == (manager, shedding, placement)), f"{shedding}, {placement}")
    about += ", defects included" if upstream else ", mended"
    usual = _as_upstream(manager, shedding, placement) if upstream else {}
    return Contender(name, about, manager, shedding, placement, upstream=upstream, overrides={**usual, **overrides})


def _name(manager: str, shedding: str, placement: str, settings: str = UPSTREAM) -> str:
    return f"{manager}/{shedding}+{placement}@{settings}"


def _of_profile(name: str, which: str, overrides: Mapping[str, Any]) -> Contender:
    if which not in PROFILES:
        raise UnknownContenderError(
            name, f"unknown profile `{shown(which)}`", [f"profile/{profile_name}" for profile_name in PROFILES]
        )
    base = profile(which)
    filters = base.settings.get("parts", {}).get("filters", {})
    manager = str(filters.get("generation", MODULAR if which == MODULAR else EXTENSIBLE))
    upstream = filters.get("upstream") is True
    strategies = base.strategies
    return Contender(
        name,
        base.about,
        manager,
        strategies["shedding"],
        strategies["placement"],
        strategies["split"],
        upstream,
        {"profile": which, **overrides},
    )


def _as_upstream(manager: str, shedding: str, placement: str) -> dict[str, Any]:
    """Settings that make strategies, filters and splits behave as Pulsar's (as profiles `upstream-*` do for their pairs)."""
    settings: dict[str, Any] = {
        f"{kind}.{strategy}.upstream": True
        for kind, strategy in (("shedding", shedding), ("placement", placement))
        if "upstream" in find(kind, strategy).Settings.model_fields
    }
    like = profile("upstream-defaults" if manager == MODULAR else "upstream-extensible")
    for kind in ("parts", "split"):
        for name, values in like.settings[kind].items():
            settings |= {f"{kind}.{name}.{setting}": value for setting, value in values.items()}
    return settings
