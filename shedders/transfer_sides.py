"""Who takes part in a cycle of TransferShedder: brokers with something to go by, and bundles that may move.

Everything else is left alone with a word for the reason. Words for brokers: `not-accepting`, `no-load-data`, `bad-load`, `no-limits`,
`outdated`, `lapsed`, `cooling`, `cordoned`. Words for bundles: `in-flight`, `excluded`, `policies`, `recently-moved`, `no-stats`,
`bad-load`, `no-traffic`, `pinned`, `filtered`, `filter-failed`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from loaddata.broker_load import BrokerLoad, ResourceWeights
from shedders.cluster import Broker, Bundle, Cluster, Policies
from shedders.plan import Left
from shedders.readings import why_unreadable
from shedders.transfer_pairs import Cargo
from shedders.transfer_settings import TransferSettings

CanTake = Callable[[Bundle, str, str], bool]
"""Whether a bundle may go from its source to a destination, as far as filters are concerned."""

MOST_LOAD = 1e6
MOST_TRAFFIC = 1e18
"""Beyond these a figure is taken for a mistake of who measured it."""

ANY_RESOURCE = ResourceWeights(direct_memory=1.0)
"""A report has to have a limit for one of these, else its load of 0 means nothing."""


@dataclass(frozen=True, slots=True)
class Side:
    """A broker that takes part.

    Attributes:
        gives_only: It takes no bundles (cordoned).
    """

    name: str
    report: BrokerLoad
    gives_only: bool

    @property
    def load(self) -> float:
        """Moving average of its weighted maximum."""
        return self.report.weighted_max_ema


def sides(cluster: Cluster, settings: TransferSettings) -> tuple[list[Side], list[Left]]:
    """Brokers that take part, lightest first, and the others with the reason."""
    found, left = [], []
    for name in cluster.broker_names:
        broker = cluster.brokers[name]
        trouble = _trouble(cluster, broker, settings)
        if trouble is None and broker.load is not None:
            found.append(Side(name, broker.load, name in cluster.policies.cordons))
        elif trouble is not None:
            left.append(Left(name, *trouble))
    takers = [side.load for side in found if not side.gives_only]
    mean = math.fsum(takers) / len(takers) if takers else math.inf
    left += [
        Left(side.name, "cordoned", f"takes nothing, and its load {side.load:.3f} needs no relief")
        for side in found
        if side.gives_only and not side.load > mean
    ]
    part = [side for side in found if not side.gives_only or side.load > mean]
    return sorted(part, key=lambda side: (side.load, side.name)), left


def _trouble(cluster: Cluster, broker: Broker, settings: TransferSettings) -> tuple[str, str] | None:
    if not broker.accepting:
        return "not-accepting", "not caught up, draining, or in safe mode"
    fault = why_unreadable(broker, settings, ANY_RESOURCE)
    if fault is not None:
        return fault
    load, age_s = broker.load, broker.load_age_s
    if load is None or load.updated_at_ms <= 0:
        return "no-load-data", "it has measured nothing yet"
    if load.weighted_max_ema > MOST_LOAD or max(load.msg_throughput, load.msg_throughput_ema) > MOST_TRAFFIC:
        return "bad-load", f"load {load.weighted_max_ema:g}, traffic {load.msg_throughput:g} B/s cannot be"
    moved_s = cluster.recent.brokers.get(broker.name)
    if moved_s is not None and not moved_s - age_s >= settings.cool_down_s:
        why = f"gave or got a bundle {moved_s:.0f} s ago, its report is {age_s:.0f} s old"
        return "cooling", f"{why}; {settings.cool_down_s:.0f} s have to lie between"
    return None


def plausible(figure: float, most: float) -> bool:
    """Whether it is a number from 0 up to what can be."""
    return 0 <= figure <= most


class Bundles:
    """Which bundles may move, asked about as late as possible, and each question once."""

    def __init__(self, cluster: Cluster, settings: TransferSettings, can_take: CanTake) -> None:
        self._cluster = cluster
        self._settings = settings
        self._can_take = can_take
        self._cargo: dict[str, list[Cargo]] = {}
        self._answers: dict[tuple[str, str], str | None] = {}
        self._policies: dict[str, bool] = {}
        self.left: dict[str, Left] = {}

    def cargo(self, broker: str) -> list[Cargo]:
        """Bundles of a broker that could go somewhere, with their traffic."""
        if broker not in self._cargo:
            self._cargo[broker] = self._find(broker)
        return self._cargo[broker]

    def may_go(self, bundle: Bundle, source: str, destination: str) -> bool:
        """Whether pins and filters let it go there; a filter that fails says no."""
        key = (bundle.name, destination)
        if key not in self._answers:
            self._answers[key] = self._refusal(bundle, source, destination)
        word = self._answers[key]
        if word is not None:
            self.left[bundle.name] = Left(bundle.name, word, f"may not go from {source} to {destination}")
        return word is None

    def has_policies(self, namespace: str) -> bool:
        """Whether an isolation policy or an anti-affinity group speaks of the namespace."""
        if namespace not in self._policies:
            self._policies[namespace] = has_policies(self._cluster.policies, namespace)
        return self._policies[namespace]

    def _find(self, broker: str) -> list[Cargo]:
        found = []
        for bundle in self._cluster.bundles_of.get(broker, ()):
            trouble = self._trouble(bundle)
            if trouble is None and bundle.stats is not None:
                found.append(Cargo(bundle, bundle.stats.msg_throughput))
            elif trouble is not None:
                self.left[bundle.name] = Left(bundle.name, *trouble)
        return found

    def _refusal(self, bundle: Bundle, source: str, destination: str) -> str | None:
        pins = self._cluster.policies.pins
        if pins.get(bundle.name, pins.get(bundle.namespace, destination)) != destination:
            return "pinned"
        try:
            return None if self._can_take(bundle, source, destination) else "filtered"
        except Exception:
            return "filter-failed"

    def _trouble(self, bundle: Bundle) -> tuple[str, str] | None:
        if bundle.in_flight:
            return "in-flight", "it is on its way or being split"
        if bundle.namespace in self._cluster.policies.excluded:
            return "excluded", f"{bundle.namespace} is never shed"
        if not self._settings.shed_with_policies and self.has_policies(bundle.namespace):
            return "policies", f"{bundle.namespace} has an isolation policy or an anti-affinity group"
        age_s = self._cluster.recent.bundles.get(bundle.name)
        if age_s is not None and not age_s > self._settings.grace_s:
            return "recently-moved", f"moved {age_s:.0f} s ago, stays put for {self._settings.grace_s:.0f} s"
        if bundle.stats is None:
            return "no-stats", "its owner does not report it"
        traffic = (bundle.stats.msg_throughput_in, bundle.stats.msg_throughput_out)
        if not all(plausible(figure, MOST_TRAFFIC) for figure in traffic):
            return "bad-load", f"traffic {traffic[0]} in, {traffic[1]} out"
        return None if sum(traffic) else ("no-traffic", "moving it changes nothing")


def has_policies(policies: Policies, namespace: str) -> bool:
    """Whether an isolation policy or an anti-affinity group speaks of a namespace; a broken pattern does of all."""
    if namespace in policies.anti_affinity:
        return True
    return any(_matches(pattern, namespace) for policy in policies.isolation for pattern in policy.namespaces)


def _matches(pattern: str, text: str) -> bool:
    try:
        return re.fullmatch(pattern, text) is not None
    except re.error:
        return True
