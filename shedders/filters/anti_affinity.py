"""Anti-affinity groups: namespaces that should not fail together (upstream `AntiAffinityGroupPolicyHelper`, Pulsar PIP-7).

A broker counts as many as it serves namespaces of the group, a failure domain likewise. A bundle goes to one of the brokers
with the fewest, of the domains with the fewest. Ours leaves out the bundle's own namespace and looks at whole domains;
`upstream` counts the own namespace as well, and of a domain only the candidates (decision record 40). Its newer manager counts
bundles instead of namespaces, and only those that a broker owns at this moment.

Worked example (upstream's own): domain d1 has b1 with 2 namespaces of the group and b2 with 1, d2 has b3 with 2 and b4 with 1,
d3 has b5 and b6 with 2 each. d1 and d2 count 3, d3 counts 4: b5 and b6 go out. Of the rest b2 and b4 have the fewest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from shedders.model.cluster import Cluster, Policies

DEFAULT_DOMAIN = "default"
"""Brokers of which no domain is known count as one, as if they failed together."""


def group_of(policies: Policies, namespace: str) -> str | None:
    """The group of a namespace in small letters (groups are compared without regard to case); None without one."""
    group = policies.anti_affinity.get(namespace)
    return group.strip().lower() or None if group else None


@dataclass(frozen=True, slots=True)
class Apart:
    """What is compared for one namespace among some candidates.

    Attributes:
        all_counts: Namespaces of the group by the broker that serves them.
        own: Brokers of which the namespace itself is taken off.
        fewest: The fewest that any candidate of the best domains serves.
        domains: Namespaces by domain; None where domains are not compared.
        least: The fewest of these.
        counted: What is counted, for people.
    """

    group: str
    all_counts: Mapping[str, int]
    own: Collection[str]
    fewest: int
    domains: Mapping[str, int] | None
    least: int
    counted: str = "namespaces"

    def count(self, name: str) -> int:
        """Namespaces of the group that a broker serves."""
        return self.all_counts.get(name, 0) - (name in self.own)


@dataclass(frozen=True, slots=True)
class _Group:
    """One group: namespaces by broker, brokers by namespace, how many by broker, which by domain."""

    held: dict[str, set[str]] = field(default_factory=dict)
    brokers: dict[str, set[str]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    domains: dict[str, set[str]] = field(default_factory=dict)

    def add(self, broker: str, name: str, domain: str | None) -> bool:
        """A broker serves a namespace, or owns a bundle where these are counted; whether that is new."""
        names = self.held.setdefault(broker, set())
        if name in names:
            return False
        names.add(name)
        self.brokers.setdefault(name, set()).add(broker)
        self.counts[broker] = len(names)
        if domain is not None:
            self.domains.setdefault(domain, set()).add(name)
        return True


class AntiAffinity:
    """Who serves what of each group, by the channel's ownership and by what is on its way.

    Args:
        domains: Compare failure domains before brokers.
        upstream: Count as upstream does.
        bundles: Count bundles, as upstream's newer manager does: those that a broker owns and that are not on their way.
    """

    def __init__(self, cluster: Cluster, *, domains: bool, upstream: bool, bundles: bool = False) -> None:
        self._cluster = cluster
        self._upstream = upstream
        self._bundles = bundles
        known = any((broker.domain or "").strip() for broker in cluster.brokers.values())
        self._domains = domains and known
        self._changes: dict[str, int] = {}
        self._tables: dict[str, _Group] = {}

    def group(self, namespace: str) -> str | None:
        """The group of a namespace."""
        return self._groups.get(namespace)

    def changes(self, group: str) -> int:
        """How often what is known about a group has changed: answers are the same as long as this is."""
        return self._changes.get(group, 0)

    def add(self, broker: str, namespace: str) -> None:
        """A bundle of this namespace will soon be on this broker."""
        group = self._groups.get(namespace)
        if group is None or self._bundles:
            return
        if self._table(group).add(broker, namespace, self._domain.get(broker)):
            self._changes[group] = self._changes.get(group, 0) + 1

    def counts(self, group: str, namespace: str) -> dict[str, int]:
        """How many namespaces of the group each broker serves; the own one counts with `upstream` only."""
        own = self._own(group, namespace)
        return {broker: count - (broker in own) for broker, count in self._table(group).counts.items()}

    def apart(self, namespace: str, candidates: Sequence[str]) -> Apart | None:
        """What to compare the candidates by; None if there is nothing to compare."""
        group = self._groups.get(namespace)
        if group is None or not candidates:
            return None
        counts, own = self._table(group).counts, self._own(group, namespace)
        if not self._domains:
            fewest = min(counts.get(name, 0) - (name in own) for name in candidates)
            return Apart(group, counts, own, fewest, None, 0, self._counted)
        sums, domain = self._by_domain(group, namespace, candidates), self._domain
        least = min(sums.values())
        best = {one for one, count in sums.items() if count == least}
        fewest = min(counts.get(name, 0) - (name in own) for name in candidates if domain[name] in best)
        return Apart(group, counts, own, fewest, sums, least, self._counted)

    def refusal(self, apart: Apart, name: str) -> str | None:
        """Why one of these candidates should not take a bundle of the namespace."""
        if apart.domains is not None:
            domain = self._domain[name]
            if apart.domains[domain] > apart.least:
                count = apart.domains[domain]
                return f"domain `{domain}` has {count} {apart.counted} of group `{apart.group}`, another {apart.least}"
        count = apart.count(name)
        if count > apart.fewest:
            other = "" if self._bundles else "other "
            return f"serves {count} {other}{apart.counted} of group `{apart.group}`, another broker {apart.fewest}"
        return None

    def away(self, namespace: str, candidates: Sequence[str]) -> dict[str, str]:
        """Candidates that should not take a bundle of the namespace, each with the reason."""
        apart = self.apart(namespace, candidates)
        if apart is None:
            return {}
        # The same words for the same numbers: most of a large cluster is in the same position.
        said: dict[tuple[str | None, int], str | None] = {}
        found = {}
        for name in candidates:
            domain = None if apart.domains is None else self._domain[name]
            position = (domain, apart.count(name))
            if position not in said:
                said[position] = self.refusal(apart, name)
            why = said[position]
            if why is not None:
                found[name] = why
        return found

    @property
    def _counted(self) -> str:
        return "bundles" if self._bundles else "namespaces"

    @cached_property
    def _groups(self) -> Mapping[str, str]:
        policies = self._cluster.policies
        found = ((namespace, group_of(policies, namespace)) for namespace in policies.anti_affinity)
        return {namespace: group for namespace, group in found if group is not None}

    @cached_property
    def _domain(self) -> Mapping[str, str]:
        brokers = self._cluster.brokers.items()
        return {name: (broker.domain or "").strip() or DEFAULT_DOMAIN for name, broker in brokers}

    @cached_property
    def _members(self) -> Mapping[str, Sequence[str]]:
        found: dict[str, list[str]] = {}
        for namespace, group in self._groups.items():
            found.setdefault(group, []).append(namespace)
        return found

    def _table(self, group: str) -> _Group:
        """What the channel says of a group, and what was added; made when it is first asked for."""
        table = self._tables.get(group)
        if table is None:
            table = self._tables[group] = _Group()
            for namespace in self._members.get(group, ()):
                bundles = self._cluster.bundles_in.unsorted(namespace)
                if self._bundles:
                    for bundle in bundles:
                        if bundle.owner is not None and not bundle.in_flight:
                            table.add(bundle.owner, bundle.name, None)
                    continue
                for owner in {bundle.owner for bundle in bundles if bundle.owner is not None}:
                    table.add(owner, namespace, self._domain.get(owner))
        return table

    def _own(self, group: str, namespace: str) -> Collection[str]:
        return () if self._upstream else self._table(group).brokers.get(namespace, ())

    def _by_domain(self, group: str, namespace: str, candidates: Sequence[str]) -> dict[str, int]:
        """Namespaces of the group by domain, of domains that have a candidate."""
        domain, table = self._domain, self._table(group)
        if self._upstream:
            sums: dict[str, int] = {}
            for name in candidates:
                sums[domain[name]] = sums.get(domain[name], 0) + table.counts.get(name, 0)
            return sums
        found = {domain[name] for name in candidates}
        held = {one: table.domains.get(one, set()) for one in sorted(found)}
        return {one: len(names) - (namespace in names) for one, names in held.items()}


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
