"""Upstream's filters: those of its two load managers, in their order, failing open where they do (decision record 39).

* `extensible` (PIP-192): load manager class; topics (reported >= limit; no report passes); version (if one cannot be read, the
  filter is skipped in placement and removes all brokers in shedding); anti-affinity; isolation, which checks the kind of
  topics only if the namespace has no policy. If a filter removes all brokers, none is left.
* `modular` (`ModularLoadManagerImpl.selectBrokerForAssignment`): isolation and kind of topics; topics (> limit, those in
  flight included; not applied if no broker would be left); anti-affinity; fewest bundles of the namespace, the bundle itself
  included; load manager class; version. If no broker is left, or a version is invalid, all filters but the first are undone.

If the placement's choice is overloaded, it chooses again with all filters but the first undone (`allowed`, `Pipeline.place`).

Both managers forget what a bundle holds when they shed it: it counts as one of persistent topics (`kind_forgotten`); so does the
older manager where it places what it sheds. The newer one counts bundles of an anti-affinity group, the older one namespaces.

An invalid pattern leaves no broker, as in ours (upstream: the namespace counts as having no policy, and no broker as
shared): `departures` of the profiles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from shedders.filters.anti_affinity import AntiAffinity, worth_leaving
from shedders.filters.isolation import Isolation
from shedders.filters.rules import (
    Bookings,
    FilterSettings,
    Passed,
    Removed,
    incapable,
    isolated,
    older_versions,
    parse_version,
)
from shedders.model.cluster import Broker, Bundle, Cluster

SYSTEM_NAMESPACE = "pulsar/system"


def kind_forgotten(bundle: Bundle) -> Bundle:
    """A bundle as upstream sees it while it sheds: made from the name alone, it counts as one of persistent topics."""
    return replace(bundle, non_persistent=False) if bundle.non_persistent else bundle


class UpstreamFilters:
    """Upstream's filters on one cluster."""

    def __init__(
        self, cluster: Cluster, settings: FilterSettings, isolation: Isolation, groups: AntiAffinity, bookings: Bookings
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._isolation = isolation
        self._groups = groups
        self._bookings = bookings

    def passed(self, bundle: Bundle, names: Sequence[str], *, shedding: bool) -> Passed:
        """The brokers that may take a bundle.

        Args:
            names: Registered brokers, sorted.
            shedding: For a move, not for a placement: then a filter that fails refuses.
        """
        if self._settings.generation == "modular":
            return self._modular(bundle, names)
        return self._extensible(bundle, names, shedding=shedding)

    def allowed(self, bundle: Bundle, names: Sequence[str]) -> Sequence[str]:
        outside = self._outside(bundle, names)
        return [name for name in names if name not in outside]

    def cannot_leave(self, bundle: Bundle, names: Sequence[str]) -> str | None:
        """Why the modular manager does not search for another broker for a bundle; None if it does.

        Args:
            names: Registered brokers, sorted.
        """
        allowed = self.allowed(bundle, names)
        if not any(name != bundle.owner for name in allowed):
            return "isolation leaves no other broker"
        group = self._groups.group(bundle.namespace)
        if group is not None and bundle.owner is not None:
            if not worth_leaving(bundle.owner, allowed, self._groups.counts(group, bundle.namespace)):
                return f"all brokers serve equally many namespaces of group `{group}`"
        return None

    def _extensible(self, bundle: Bundle, names: Sequence[str], *, shedding: bool) -> Passed:
        sieve = _Sieve(names)
        sieve.take("manager", self._other_managers(sieve.left))
        most = self._settings.max_topics
        loads = {name: self._cluster.brokers[name].load for name in sieve.left}
        reported = {name: load.topics for name, load in loads.items() if load is not None}
        sieve.take("topics", {name: f"{count} topics" for name, count in reported.items() if count >= most})
        if self._settings.prefer_later_versions and sieve.left:
            if self._versions_known(sieve.left):
                sieve.take("version", older_versions(self._cluster, sieve.left))
            elif shedding:
                sieve.take("version", dict.fromkeys(sieve.left, "a broker's version cannot be read"))
        sieve.take("anti-affinity", self._groups.away(bundle.namespace, sieve.left))
        sieve.take("isolation", self._outside(bundle, sieve.left))
        return sieve.passed()

    def _modular(self, bundle: Bundle, names: Sequence[str]) -> Passed:
        sieve = _Sieve(names)
        sieve.take("isolation", self._outside(bundle, sieve.left))
        allowed = sieve.passed()
        most = self._settings.max_topics
        crowded = {name: f"{count} topics" for name in sieve.left if (count := self._topics(name)) > most}
        if len(crowded) < len(sieve.left):
            sieve.take("topics", crowded)
        sieve.take("anti-affinity", self._groups.away(bundle.namespace, sieve.left))
        if self._settings.fewest_bundles or bundle.namespace == SYSTEM_NAMESPACE:
            sieve.take("fewest", self._most_servicing(bundle, sieve.left))
        sieve.take("manager", self._other_managers(sieve.left))
        if self._settings.prefer_later_versions:
            if not self._versions_known(sieve.left):
                return allowed
            sieve.take("version", older_versions(self._cluster, sieve.left))
        return sieve.passed() if sieve.left else allowed

    def _outside(self, bundle: Bundle, names: Sequence[str]) -> dict[str, str]:
        zone = self._isolation.zone(bundle.namespace)
        removed = {}
        if zone is None or (zone.policy is None and zone.broken is None):
            for name in names:
                fault = self._incapable(self._cluster.brokers[name], bundle)
                if fault is not None:
                    removed[name] = fault
        return {**isolated(self._isolation, zone, [name for name in names if name not in removed]), **removed}

    def _incapable(self, broker: Broker, bundle: Bundle) -> str | None:
        if self._settings.generation == "modular" and broker.load is None:
            return "it has no report, so the kinds of topics that it takes are unknown"
        return incapable(broker, not bundle.non_persistent, bundle.non_persistent)

    def _other_managers(self, names: Sequence[str]) -> dict[str, str]:
        brokers, wanted = self._cluster.brokers, self._settings.manager
        return {name: f"`{brokers[name].manager}`" for name in names if brokers[name].manager != wanted}

    def _versions_known(self, names: Sequence[str]) -> bool:
        versions = [self._cluster.brokers[name].version for name in names]
        return bool(versions) and all(text is not None and parse_version(text) is not None for text in versions)

    def _topics(self, name: str) -> int:
        load = self._cluster.brokers[name].load
        return 0 if load is None else load.topics + self._bookings.topics[name]

    def _most_servicing(self, bundle: Bundle, names: Sequence[str]) -> dict[str, str]:
        owners = (other.owner for other in self._cluster.bundles_in.unsorted(bundle.namespace))
        counts = Counter(owner for owner in owners if owner is not None)
        counts += self._bookings.of_namespace(bundle.namespace)
        least = min((counts[name] for name in names), default=0)
        return {name: f"{counts[name]} bundles, another {least}" for name in names if counts[name] > least}


class _Sieve:
    """The remaining names, and the removed ones, each with its filter."""

    def __init__(self, names: Sequence[str]) -> None:
        self.left = list(names)
        self._removed: dict[str, Removed] = {}

    def take(self, word: str, away: Mapping[str, str]) -> None:
        if away:
            self._removed.update({name: (word, why) for name, why in away.items()})
            self.left = [name for name in self.left if name not in away]

    def passed(self) -> Passed:
        return Passed(list(self.left), dict(self._removed))
