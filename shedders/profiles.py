"""Profiles: strategies with their settings, by one name.

Settings of a profile stand over the strategies' own defaults; those of a snapshot or of an option stand over the profile's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shedders.near import nearest, shown
from statechannel.errors import StateChannelError

Settings = Mapping[str, Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Profile:
    """Strategies and settings.

    Attributes:
        about: What it is for.
        strategies: Name of the strategy of each kind.
        settings: By kind and strategy, where they differ from the strategy's defaults; kind `parts` has the settings of the
            `filters` and of when to split (`splitting`).
    """

    name: str
    about: str
    strategies: Mapping[str, str]
    settings: Settings = field(default_factory=dict)


class UnknownProfileError(StateChannelError):
    """There is no profile of that name."""

    def __init__(self, name: str) -> None:
        near = nearest(name, PROFILES)
        meant = f"did you mean {near[0]}? " if near else ""
        super().__init__(
            f"there is no profile `{shown(name)}`", hint=f"{meant}There are: {', '.join(PROFILES)}.", exit_code=8
        )


def profile(name: str) -> Profile:
    """The profile of that name.

    Raises:
        UnknownProfileError: There is none.
    """
    if name not in PROFILES:
        raise UnknownProfileError(name)
    return PROFILES[name]


_UPSTREAM: Mapping[str, Any] = {"upstream": True}

DEFAULT = Profile(
    "default",
    "Ours: sources and destinations chosen together, by gain for load moved (design/contest.md); splits in the middle.",
    {"shedding": "weighted-move", "placement": "weighted-move", "split": "range-equally-divide"},
)

UPSTREAM_DEFAULTS = Profile(
    "upstream-defaults",
    "Pulsar 4.x as it is installed: its modular load manager with the defaults of broker.conf, defects included.",
    {"shedding": "threshold", "placement": "least-long-term-rate", "split": "range-equally-divide"},
    {
        "shedding": {"threshold": _UPSTREAM},
        "placement": {"least-long-term-rate": _UPSTREAM},
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
)

UPSTREAM_EXTENSIBLE = Profile(
    "upstream-extensible",
    "Pulsar 4.x with ExtensibleLoadManagerImpl and the defaults of broker.conf, defects included.",
    {"shedding": "transfer", "placement": "least-resource-usage", "split": "range-equally-divide"},
    {
        "shedding": {"transfer": _UPSTREAM},
        "placement": {"least-resource-usage": _UPSTREAM},
        "parts": {
            "filters": {"upstream": True, "generation": "extensible", "failure_domains": False},
            # Children stay on the parent's broker; `loadBalancerAutoUnloadSplitBundlesEnabled` is the older manager's alone.
            "splitting": {"upstream": True, "unload_children": False},
        },
    },
)

MODULAR = Profile(
    "modular",
    "The strategies of Pulsar's modular load manager, mended: by usage against the average, placed by long-term rates. In force "
    "while the manager is `modular` and nobody names another profile.",
    {"shedding": "threshold", "placement": "least-long-term-rate", "split": "range-equally-divide"},
)

PRODUCTION = Profile(
    "production",
    "For brokers that share their machines with bookies: by traffic, not by the machines' usage; few and large steps; small "
    "bundles. The recommendation of a production report, on our mended strategies.",
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
        # Usage of machines that others use, too, keeps no broker from getting bundles.
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
    one.name: one for one in (DEFAULT, MODULAR, UPSTREAM_DEFAULTS, UPSTREAM_EXTENSIBLE, PRODUCTION)
}
