"""Filters: which brokers may take a bundle, and which filter removed each of the others.

They run in this order; each removes brokers that the ones before left, and none is put back (fail-closed, decision record 39):

1. `pin`: the bundle is pinned to another broker (by bundle, else by namespace).
2. `offered`: the caller did not offer this broker.
3. `accepting`: the broker is not caught up, draining, in safe mode, or not registered.
4. `manager`: the broker runs another load manager.
5. `cordon`: the broker is cordoned.
6. `topics`: the broker would serve more than `max_topics`, those in flight included.
7. `persistence`: the broker does not take persistent, or non-persistent, topics.
8. `isolation`: an isolation policy (`shedders.filters.isolation`). Secondaries are allowed if fewer primaries than
   `min_available` got this far.
9. `version`: another broker that got this far has newer software (switch).
10. `anti-affinity`: another broker has fewer of the group's namespaces (`shedders.filters.anti_affinity`).
11. `fewest`: another broker has fewer bundles of the namespace, not counting this bundle (switch).

The first eight check brokers one by one, the last three compare the remaining ones, so that they never prefer a broker that may
not take the bundle. A pin leaves one broker and thus overrides the last three, never the others. With `upstream` the order and
the rules are upstream's (`shedders.filters.upstream`), after the first three and `cordon`, which it does not have.

Worked example: b1 drains, b2 is cordoned, policy `gold` names b1, b2 and b3 primary and b4 secondary for the namespace, with
`min_available` 2; no policy names b5. `accepting` removes b1, `cordon` b2; b3 is the only primary left, fewer than 2, so b4
is allowed as well; `isolation` removes b5. Left: b3, b4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from shedders.filters.anti_affinity import AntiAffinity, Apart
from shedders.filters.isolation import Isolation, Zone
from shedders.filters.rules import (
    Bookings,
    FilterSettings,
    Passed,
    Removed,
    incapable,
    isolated,
    needs,
    older_versions,
    pin_of,
    pinned_to,
    summary,
    topics_of,
    topics_on,
    without,
)
from shedders.filters.upstream import UpstreamFilters, kind_forgotten
from shedders.model.cluster import Broker, Bundle, Cluster


class Filters:
    """The filters on one cluster: answers are cached, as the cluster stays the same; bookings invalidate them.

    Args:
        booked: Bundles in flight to a broker that its report does not count yet.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: FilterSettings | None = None,
        booked: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.cluster = cluster
        self.settings = settings or FilterSettings()
        self.bookings = Bookings(cluster)
        self._isolation = Isolation(cluster.policies.isolation, cluster.brokers)
        upstream = self.settings.upstream
        self._groups = AntiAffinity(
            cluster,
            domains=self.settings.failure_domains,
            upstream=upstream,
            bundles=upstream and self.settings.generation == "extensible",
        )
        self._used = {name: topics_on(cluster, cluster.brokers[name]) for name in cluster.broker_names}
        self._most_used = max(self._used.values(), default=0)
        unfit = ((name, self._unfit(cluster.brokers[name])) for name in cluster.broker_names)
        self._gone: dict[str, Removed] = {name: fault for name, fault in unfit if fault is not None}
        self._bases: dict[tuple[int, bool, bool], Passed] = {}
        self._kept: set[int] = set()
        self._apart: dict[tuple[str, int], tuple[int, Apart | None]] = {}
        self._counts: dict[str, tuple[int, Counter[str]]] = {}
        self._least: dict[tuple[str, int], tuple[int, int]] = {}
        self._upstream = UpstreamFilters(cluster, self.settings, self._isolation, self._groups, self.bookings)
        self._upstream_kept: dict[tuple[str, bool, bool], Passed] = {}
        for broker in sorted(booked or {}):
            for name in (booked or {})[broker]:
                self.book(broker, name)

    def book(self, broker: str, name: str) -> None:
        if self.bookings.book(broker, name):
            self._groups.add(broker, name.rpartition("/")[0])
            self._upstream_kept.clear()

    def passed(self, bundle: Bundle, among: Collection[str] | None = None) -> Passed:
        """The brokers that may take a bundle.

        Args:
            among: Brokers that the caller offers; None: all.
        """
        away: dict[str, Removed] = {}
        if among is not None:
            offered = frozenset(among)
            away = {
                name: ("offered", "it declined the bundle lately, or takes none")
                for name in self.cluster.broker_names
                if name not in offered
            }
        base = self._looked_at(bundle, away, shedding=False)
        pin = pin_of(self.cluster.policies, bundle)
        if pin is not None:
            return pinned_to(pin, self.cluster.broker_names, base)
        compared = {} if self.settings.upstream else self._compared(bundle, base)
        return without(base, compared) if compared else base

    def can_take(self, bundle: Bundle, broker: str) -> str | None:
        """Why a broker may not take a bundle, as `filter: reason`; None if it may."""
        pin = pin_of(self.cluster.policies, bundle)
        if pin is not None and pin != broker:
            return f"pin: it is pinned to {pin}"
        if broker not in self.cluster.brokers:
            return "accepting: it is not registered"
        if self.settings.upstream:
            bundle = kind_forgotten(bundle)
        base = self._looked_at(bundle, {}, shedding=True)
        fault = base.removed.get(broker)
        if fault is None and pin is None and not self.settings.upstream:
            fault = self._compared_one(bundle, base, broker)
        return None if fault is None else f"{fault[0]}: {fault[1]}"

    def cannot_leave(self, bundle: Bundle) -> str | None:
        """Why an unloaded bundle would not move to another broker; None if it would.

        Upstream's older manager lets its placement choose, which may choose again among brokers that filters removed.
        """
        if self.settings.upstream and self.settings.generation == "modular":
            names = [name for name in self.cluster.broker_names if name not in self._gone]
            return self._upstream.cannot_leave(kind_forgotten(bundle), names)
        passed = self.passed(bundle)
        if any(name != bundle.owner for name in passed.names):
            return None
        removed = {name: removal for name, removal in passed.removed.items() if name != bundle.owner}
        return f"no other broker may take it: {summary(removed)}"

    def allowed(self, bundle: Bundle, among: Collection[str] | None = None) -> Sequence[str]:
        """Brokers among which upstream's older manager chooses again: all that are offered, fit, and left by isolation, sorted.

        Args:
            among: Brokers that the caller offers; None: all.
        """
        names = [
            name for name in self.cluster.broker_names if name not in self._gone and (among is None or name in among)
        ]
        return self._upstream.allowed(bundle, names)

    def topics(self, broker: str) -> int:
        return self._used.get(broker, 0) + self.bookings.topics[broker]

    def counts(self, namespace: str) -> Mapping[str, int]:
        known = self._counts.get(namespace)
        if known is None or known[0] != self.bookings.count:
            owners = (bundle.owner for bundle in self.cluster.bundles_in.unsorted(namespace))
            owned = Counter(owner for owner in owners if owner is not None)
            known = (self.bookings.count, owned + self.bookings.of_namespace(namespace))
            self._counts[namespace] = known
        return known[1]

    # --- filters that check one broker --------------------------------------------------

    def _unfit(self, broker: Broker) -> Removed | None:
        if not broker.accepting:
            return "accepting", "it is not caught up, draining, or in safe mode"
        if not self.settings.upstream and broker.manager != self.settings.manager:
            return "manager", f"its load manager is `{broker.manager}`, not `{self.settings.manager}`"
        if broker.name in self.cluster.policies.cordons:
            why = self.cluster.policies.cordons[broker.name]
            return "cordon", f"it is cordoned{f': {why}' if why else ''}"
        return None

    def _looked_at(self, bundle: Bundle, away: Mapping[str, Removed], *, shedding: bool) -> Passed:
        """The result of the filters that do not depend on the single bundle, or rarely; cached if they did not."""
        if self.settings.upstream:
            return self._looked_at_upstream(bundle, away, shedding=shedding)
        zone, kinds = self._isolation.zone(bundle.namespace), needs(bundle)
        full = self._full(bundle)
        if away or full:
            return self._look(zone, *kinds, {**full, **self._gone, **away})
        key = (id(zone), *kinds)
        if key not in self._bases:
            self._bases[key] = self._look(zone, *kinds, self._gone)
            self._kept.add(id(self._bases[key]))
        return self._bases[key]

    def _full(self, bundle: Bundle) -> dict[str, Removed]:
        """Brokers that have no room for its topics; nearly always none."""
        most, need = self.settings.max_topics, topics_of(bundle)
        if self._most_used + self.bookings.most_topics + need <= most:
            return {}
        removed: dict[str, Removed] = {}
        for name in self.cluster.broker_names:
            counted = name == bundle.owner or self.bookings.is_booked(name, bundle.name)
            total = self.topics(name) + (0 if counted else need)
            if total > most:
                removed[name] = ("topics", f"it would serve {total} topics, at most {most} are allowed")
        return removed

    def _look(self, zone: Zone | None, persistent: bool, non_persistent: bool, away: Mapping[str, Removed]) -> Passed:
        removed = dict(away)
        left = []
        for name in self.cluster.broker_names:
            fault = None if name in removed else incapable(self.cluster.brokers[name], persistent, non_persistent)
            if fault is not None:
                removed[name] = ("persistence", fault)
            elif name not in removed:
                left.append(name)
        outside = isolated(self._isolation, zone, left)
        removed.update({name: ("isolation", why) for name, why in outside.items()})
        left = [name for name in left if name not in outside]
        if self.settings.prefer_later_versions:
            older = older_versions(self.cluster, left)
            removed.update({name: ("version", why) for name, why in older.items()})
            left = [name for name in left if name not in older]
        return Passed(left, removed)

    # --- filters that compare ------------------------------------------------------------

    def _compared(self, bundle: Bundle, base: Passed) -> dict[str, Removed]:
        apart = self._groups.away(bundle.namespace, base.names)
        removed: dict[str, Removed] = {name: ("anti-affinity", why) for name, why in apart.items()}
        if self.settings.fewest_bundles:
            left = [name for name in base.names if name not in removed] if removed else base.names
            least, counts = self._least_of(bundle, left), self.counts(bundle.namespace)
            own = {bundle.owner, *self.bookings.of_bundle(bundle.name)}
            removals: dict[int, Removed] = {}
            for name in left:
                count = counts.get(name, 0) - (name in own)
                if count > least:
                    removed[name] = removals.setdefault(count, _more(count, least))
        return removed

    def _compared_one(self, bundle: Bundle, base: Passed, broker: str) -> Removed | None:
        apart = self._apart_from_group(bundle, base)
        why = None if apart is None else self._groups.refusal(apart, broker)
        if why is not None:
            return "anti-affinity", why
        if not self.settings.fewest_bundles:
            return None
        if apart is not None:
            least = self._least_of(bundle, [name for name in base.names if self._groups.refusal(apart, name) is None])
        elif id(base) in self._kept:
            least = self._least_kept(bundle, base)
        else:
            least = self._least_of(bundle, base.names)
        count = self._others(bundle, broker)
        return _more(count, least) if count > least else None

    def _apart_from_group(self, bundle: Bundle, base: Passed) -> Apart | None:
        namespace = bundle.namespace
        group = self._groups.group(namespace)
        if group is None:
            return None
        if id(base) not in self._kept:
            return self._groups.apart(namespace, base.names)
        key, changes = (namespace, id(base)), self._groups.changes(group)
        known = self._apart.get(key)
        if known is None or known[0] != changes:
            known = self._apart[key] = (changes, self._groups.apart(namespace, base.names))
        return known[1]

    def _others(self, bundle: Bundle, broker: str) -> int:
        here = broker == bundle.owner or self.bookings.is_booked(broker, bundle.name)
        return self.counts(bundle.namespace).get(broker, 0) - here

    def _least_of(self, bundle: Bundle, names: Sequence[str]) -> int:
        counts, own = self.counts(bundle.namespace), {bundle.owner, *self.bookings.of_bundle(bundle.name)}
        return min((counts.get(name, 0) - (name in own) for name in names), default=0)

    def _least_kept(self, bundle: Bundle, base: Passed) -> int:
        """The same for all brokers of a cached answer, without examining each of them again."""
        key, counts = (bundle.namespace, id(base)), self.counts(bundle.namespace)
        known = self._least.get(key)
        if known is None or known[0] != self.bookings.count:
            least = min((counts.get(name, 0) for name in base.names), default=0)
            known = self._least[key] = (self.bookings.count, least)
        least = known[1]
        for home in (bundle.owner, *self.bookings.of_bundle(bundle.name)):
            if home is not None and home in self.cluster.brokers and home not in base.removed:
                least = min(least, self._others(bundle, home))
        return least

    # --- upstream ------------------------------------------------------------------------

    def _looked_at_upstream(self, bundle: Bundle, away: Mapping[str, Removed], *, shedding: bool) -> Passed:
        key = (bundle.namespace, bundle.non_persistent, shedding)
        if not away and key in self._upstream_kept:
            return self._upstream_kept[key]
        removed = {**self._gone, **away}
        names = [name for name in self.cluster.broker_names if name not in removed]
        passed = self._upstream.passed(bundle, names, shedding=shedding)
        passed = Passed(passed.names, {**removed, **passed.removed})
        if not away:
            self._upstream_kept[key] = passed
        return passed


def _more(count: int, least: int) -> Removed:
    return "fewest", f"it has {count} other bundles of the namespace, another broker {least}"
