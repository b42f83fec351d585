"""Profiles: named sets of strategies with their settings.

Settings of a profile override the strategies' defaults; those of a snapshot or of an option override the profile's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from statechannel.errors import ExitCode, StateChannelError
from statechannel.suggestions import nearest, shown

Settings = Mapping[str, Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Profile:
    """Strategies and settings.

    Attributes:
        strategies: Name of the strategy of each kind.
        settings: By kind and strategy, where they differ from the strategy's defaults; kind `parts` has the settings of the
            `filters` and of when to split (`splitting`).
        departures: Where it deliberately differs from upstream: by a stable word, why.
    """

    name: str
    about: str
    strategies: Mapping[str, str]
    settings: Settings = field(default_factory=dict)
    departures: Mapping[str, str] = field(default_factory=dict)


class UnknownProfileError(StateChannelError):
    """The profile does not exist."""

    def __init__(self, name: str) -> None:
        near = nearest(name, PROFILES)
        meant = f"did you mean {near[0]}? " if near else ""
        super().__init__(
            f"unknown profile `{shown(name)}`",
            hint=f"{meant}Known profiles: {', '.join(PROFILES)}.",
            exit_code=ExitCode.BAD_SETTINGS,
        )


def profile(name: str) -> Profile:
    if name not in PROFILES:
        raise UnknownProfileError(name)
    return PROFILES[name]


_UPSTREAM: Mapping[str, Any] = {"upstream": True}
_SPLIT: Mapping[str, Mapping[str, Any]] = {"range-equally-divide": _UPSTREAM}

_DEPARTURES: Mapping[str, str] = {
    "takers": "Live and in plans no bundle that is shed goes to a broker without a usable report, nor does a placement choose "
    "one that would end above the source (decision record 49); each refusal is in the record. The contest has no such rule.",
    "on-the-way": "Live, moves of earlier decisions count until reports show them (decision record 26); moves of one plan do "
    "not count for each other.",
    "swap-in-flight": "A swap may return a bundle that is in flight. Pulsar publishes that move and its channel drops it; "
    "here it is refused at once, with the reason. The other half is made in both.",
    "unreadable-pattern": "An isolation policy with an invalid pattern leaves no broker. Pulsar treats the namespace as one "
    "without a policy: bundles that an operator meant to isolate would be mixed.",
    "pins-and-cordons": "Pins, cordons and brokers that do not accept bundles are respected under these profiles as well: "
    "Pulsar has none of them.",
    "split-beside-split": "Pulsar splits no bundle that shares an end with one in Splitting; here a split is one record.",
    "range-of-one-hash": "A bundle of one hash is not cut. Pulsar returns its lower end, which its executor refuses.",
    "blank-topic-name": "A topic with a blank local name belongs to a bundle; Pulsar's clients refuse such a name before they "
    "contact any broker. Names belong to the channel, and no strategy changes them.",
    "other-strategies": "The settings are those of the profile's own strategies: another strategy chosen in addition "
    "keeps its own behavior unless its `upstream` is set.",
}
"""Where both upstream profiles deliberately differ from Pulsar 4.2.4."""
_EXCLUDED_PLACED = (
    "Namespaces that are excluded from shedding are placed by the profile's strategy; Pulsar's older manager places them by "
    "round robin."
)

DEFAULT = Profile(
    "default",
    "Ours: sources and destinations chosen together, by gain for load moved (design/evidence/contest.md); splits in the middle.",
    {"shedding": "weighted-move", "placement": "weighted-move", "split": "range-equally-divide"},
)

UPSTREAM_DEFAULTS = Profile(
    "upstream-defaults",
    "Pulsar 4.x as it is installed: its modular load manager with the defaults of broker.conf, defects included.",
    {"shedding": "threshold", "placement": "least-long-term-rate", "split": "range-equally-divide"},
    {
        "shedding": {"threshold": _UPSTREAM},
        "placement": {"least-long-term-rate": _UPSTREAM},
        "split": _SPLIT,
        "parts": {
            "filters": {"upstream": True, "generation": "modular", "failure_domains": False, "fewest_bundles": True},
            # BundleSplitterTask: long-term averages, at once, as many as there are.
            "splitting": {
                "upstream": True,
                "measure": "long",
                "hit_threshold": 0,
                "max_per_cycle": 0,
                "unload_children": True,
            },
        },
    },
    {**_DEPARTURES, "excluded-namespaces": _EXCLUDED_PLACED},
)

UPSTREAM_EXTENSIBLE = Profile(
    "upstream-extensible",
    "Pulsar 4.x with ExtensibleLoadManagerImpl and the defaults of broker.conf, defects included.",
    {"shedding": "transfer", "placement": "least-resource-usage", "split": "range-equally-divide"},
    {
        "shedding": {"transfer": _UPSTREAM},
        "placement": {"least-resource-usage": _UPSTREAM},
        "split": _SPLIT,
        "parts": {
            "filters": {"upstream": True, "generation": "extensible", "failure_domains": False},
            # Children stay on the parent's broker; `loadBalancerAutoUnloadSplitBundlesEnabled` is the older manager's alone.
            "splitting": {"upstream": True, "hit_threshold": 3, "unload_children": False},
        },
    },
    _DEPARTURES,
)

MODULAR = Profile(
    "modular",
    "The strategies of Pulsar's modular load manager, corrected: by usage against the average, placed by long-term rates. Used "
    "while the manager is `modular` and no other profile is set.",
    {"shedding": "threshold", "placement": "least-long-term-rate", "split": "range-equally-divide"},
)

PRODUCTION = Profile(
    "production",
    "For brokers that share their machines with bookies: by traffic, not by the machines' usage; few and large steps; small "
    "bundles. The recommendation of a production report, on our corrected strategies.",
    {"shedding": "uniform", "placement": "least-long-term-rate", "split": "flow-or-qps-equally-divide"},
    {
        "shedding": {
            "uniform": {
                "max_rate_difference_percent": 50.0,
                "max_throughput_ratio": 4.0,
                "max_bundles_per_cycle": 5,
                "max_unload_share": 0.5,
            }
        },
        # Usage of shared machines does not keep a broker from getting bundles.
        "placement": {"least-long-term-rate": {"overloaded_percent": 120.0}},
        "split": {"flow-or-qps-equally-divide": {"max_msg_rate": 10_000, "max_bandwidth_mib": 100}},
        "parts": {
            "splitting": {
                "max_bundles": 512,
                "max_topics": 100,
                "max_sessions": 1000,
                "max_msg_rate": 10_000,
                "max_bandwidth_mib": 100,
                "unload_children": False,
            }
        },
    },
)

PROFILES: Mapping[str, Profile] = {
    profile.name: profile for profile in (DEFAULT, MODULAR, UPSTREAM_DEFAULTS, UPSTREAM_EXTENSIBLE, PRODUCTION)
}
