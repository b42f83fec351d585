"""Anti-affinity groups: namespaces that should not fail together (upstream `AntiAffinityGroupPolicyHelper`, Pulsar PIP-7).

A broker counts as many as it serves namespaces of the group, a failure domain likewise. A bundle goes to one of the brokers
with the fewest, of the domains with the fewest. Ours leaves out the bundle's own namespace and looks at whole domains;
`upstream` counts the own namespace as well, and of a domain only the candidates (decision record 51).

Worked example (upstream's own): domain d1 has b1 with 2 namespaces of the group and b2 with 1, d2 has b3 with 2 and b4 with 1,
d3 has b5 and b6 with 2 each. d1 and d2 count 3, d3 counts 4: b5 and b6 go out. Of the rest b2 and b4 have the fewest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from shedders.cluster import Cluster, Policies

DEFAULT_DOMAIN = "default"
"""Brokers of which no domain is known count as one, as if they failed together."""

Held = Mapping[str, Collection[str]]
"""Namespaces of one group by the broker that serves bundles of them."""


def group_of(policies: Policies, namespace: str) -> str | None:
    """The group of a namespace in small letters (groups are compared without regard to case); None without one."""
    group = policies.anti_affinity.get(namespace)
    return group.strip().lower() or None if group else None


class AntiAffinity:
    """Who serves what of each group, by the channel's ownership and by what is on its way.

    Args:
        domains: Compare failure domains before brokers.
        upstream: Count as upstream does.
    """

    def __init__(self, cluster: Cluster, *, domains: bool, upstream: bool) -> None:
        self._cluster = cluster
        self._upstream = upstream
        self._domain = {
            name: (broker.domain or "").strip() or DEFAULT_DOMAIN for name, broker in cluster.brokers.items()
        }
        known = any((broker.domain or "").strip() for broker in cluster.brokers.values())
        self._domains = domains and known
        self._held: dict[str, dict[str, set[str]]] = {}
        self._changes: dict[str, int] = {}
        for namespace in cluster.policies.anti_affinity:
            for bundle in cluster.bundles_in.get(namespace, ()):
                if bundle.owner is not None:
                    self.add(bundle.owner, namespace)

    def group(self, namespace: str) -> str | None:
        """The group of a namespace."""
        return group_of(self._cluster.policies, namespace)

    def changes(self, group: str) -> int:
        """How often what is known about a group has changed: answers are the same as long as this is."""
        return self._changes.get(group, 0)

    def add(self, broker: str, namespace: str) -> None:
        """A bundle of this namespace is, or will soon be, on this broker."""
        group = self.group(namespace)
        if group is None:
            return
        names = self._held.setdefault(group, {}).setdefault(broker, set())
        if namespace not in names:
            names.add(namespace)
            self._changes[group] = self._changes.get(group, 0) + 1

    def counts(self, group: str, namespace: str) -> dict[str, int]:
        """How many namespaces of the group each broker serves; the own one counts with `upstream` only."""
        return {
            broker: len(names) - (not self._upstream and namespace in names)
            for broker, names in self._held.get(group, {}).items()
        }

    def away(self, namespace: str, candidates: Sequence[str]) -> dict[str, str]:
        """Candidates that should not take a bundle of the namespace, each with the reason."""
        group = self.group(namespace)
        if group is None or not candidates:
            return {}
        counts, found, left = self.counts(group, namespace), {}, candidates
        if self._domains:
            found = self._by_domain(group, namespace, candidates, counts)
            left = [name for name in candidates if name not in found]
        fewest = min(counts.get(name, 0) for name in left)
        for name in left:
            count = counts.get(name, 0)
            if count > fewest:
                found[name] = f"serves {count} other namespaces of group `{group}`, another broker {fewest}"
        return found

    def _by_domain(
        self, group: str, namespace: str, candidates: Sequence[str], counts: Mapping[str, int]
    ) -> dict[str, str]:
        domains = self._domain
        if self._upstream:
            sums = dict.fromkeys((domains[name] for name in candidates), 0)
            for name in candidates:
                sums[domains[name]] += counts.get(name, 0)
        else:
            members: dict[str, set[str]] = {domains[name]: set() for name in candidates}
            for name, names in self._held.get(group, {}).items():
                if name in domains and domains[name] in members:
                    members[domains[name]] |= names
            sums = {domain: len(names - {namespace}) for domain, names in members.items()}
        least = min(sums.values())
        return {
            name: f"domain `{domains[name]}` has {sums[domains[name]]} namespaces of group `{group}`, another {least}"
            for name in candidates
            if sums[domains[name]] > least
        }


def worth_leaving(current: str, candidates: Collection[str], counts: Mapping[str, int]) -> bool:
    """Upstream `shouldAntiAffinityNamespaceUnload` (modular manager): whether a bundle may leave its broker.

    Its last answer is also yes where the broker has the fewest and another has more: no better home, but upstream says so.
    """
    if not any(counts.values()) or not candidates:
        return True
    found = [counts.get(name, 0) for name in candidates]
    least = min(found)
    here = counts.get(current, 0) if current in candidates else 0
    return least == 0 or here > least or any(count != least for count in found)
