"""Anti-affinity groups: namespaces that should not fail together (upstream `AntiAffinityGroupPolicyHelper`, Pulsar PIP-7).

The count of a broker, or of a failure domain, is the number of the group's namespaces that it serves. A bundle goes to a broker
with the lowest count within the domains with the lowest count. Ours leaves out the bundle's own namespace and counts whole
domains; `upstream` counts the own namespace as well, and of a domain only the candidates (decision record 40). Its newer manager
counts bundles instead of namespaces, and only those that a broker owns at this moment.

Worked example (upstream's own): domain d1 has b1 with 2 namespaces of the group and b2 with 1, d2 has b3 with 2 and b4 with 1,
d3 has b5 and b6 with 2 each. d1 and d2 count 3, d3 counts 4: b5 and b6 are removed. Of the rest b2 and b4 have the fewest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from shedders.model.cluster import Cluster, Policies

DEFAULT_DOMAIN = "default"  # brokers without a known domain count as one domain, as if they failed together


def group_of(policies: Policies, namespace: str) -> str | None:
    """The group of a namespace in small letters (groups are compared without regard to case); None without one."""
    group = policies.anti_affinity.get(namespace)
    return group.strip().lower() or None if group else None


@dataclass(frozen=True, slots=True)
class Apart:
    """The counts by which the candidates for a bundle of one namespace are compared.

    Attributes:
        all_counts: Namespaces of the group by the broker that serves them.
        own: Brokers that serve the namespace itself; it is not counted.
        fewest: The fewest that any candidate of the best domains serves.
        domains: Namespaces by domain; None where domains are not compared.
        least: The fewest of these.
    """

    group: str
    all_counts: Mapping[str, int]
    own: Collection[str]
    fewest: int
    domains: Mapping[str, int] | None
    least: int
    counted: str = "namespaces"

    def count(self, name: str) -> int:
        return self.all_counts.get(name, 0) - (name in self.own)


@dataclass(frozen=True, slots=True)
class _Group:
    """One group: namespaces by broker, brokers by namespace, counts by broker, namespaces by domain."""

    held: dict[str, set[str]] = field(default_factory=dict)
    brokers: dict[str, set[str]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    domains: dict[str, set[str]] = field(default_factory=dict)

    def add(self, broker: str, name: str, domain: str | None) -> bool:
        """Count a namespace, or a bundle where these are counted, for a broker; whether it is new."""
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
    """Members of each group by broker, from the channel's ownership and the moves in flight.

    Args:
        domains: Compare failure domains before brokers.
        upstream: Count as upstream does.
        bundles: Count bundles, as upstream's newer manager does: those that a broker owns and that are not in flight.
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
        return self._groups.get(namespace)

    def changes(self, group: str) -> int:
        """Version of what is known about a group: answers are the same as long as this is."""
        return self._changes.get(group, 0)

    def add(self, broker: str, namespace: str) -> None:
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
        """The counts by which to compare the candidates; None if there is nothing to compare."""
        group = self._groups.get(namespace)
        if group is None or not candidates:
            return None
        counts, own = self._table(group).counts, self._own(group, namespace)
        if not self._domains:
            fewest = min(counts.get(name, 0) - (name in own) for name in candidates)
            return Apart(group, counts, own, fewest, None, 0, self._counted)
        sums, domain = self._by_domain(group, namespace, candidates), self._domain
        least = min(sums.values())
        best = {name for name, count in sums.items() if count == least}
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
        # One sentence for equal numbers: most of a large cluster is in the same position.
        refusals: dict[tuple[str | None, int], str | None] = {}
        removed = {}
        for name in candidates:
            domain = None if apart.domains is None else self._domain[name]
            position = (domain, apart.count(name))
            if position not in refusals:
                refusals[position] = self.refusal(apart, name)
            why = refusals[position]
            if why is not None:
                removed[name] = why
        return removed

    @property
    def _counted(self) -> str:
        return "bundles" if self._bundles else "namespaces"

    @cached_property
    def _groups(self) -> Mapping[str, str]:
        policies = self._cluster.policies
        groups = ((namespace, group_of(policies, namespace)) for namespace in policies.anti_affinity)
        return {namespace: group for namespace, group in groups if group is not None}

    @cached_property
    def _domain(self) -> Mapping[str, str]:
        brokers = self._cluster.brokers.items()
        return {name: (broker.domain or "").strip() or DEFAULT_DOMAIN for name, broker in brokers}

    @cached_property
    def _members(self) -> Mapping[str, Sequence[str]]:
        members: dict[str, list[str]] = {}
        for namespace, group in self._groups.items():
            members.setdefault(group, []).append(namespace)
        return members

    def _table(self, group: str) -> _Group:
        """The members of a group: those on the channel and those added since; built at first use."""
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
        compared = {domain[name] for name in candidates}
        held = {name: table.domains.get(name, set()) for name in sorted(compared)}
        return {name: len(names) - (namespace in names) for name, names in held.items()}


def worth_leaving(current: str, candidates: Collection[str], counts: Mapping[str, int]) -> bool:
    """Upstream `shouldAntiAffinityNamespaceUnload` (modular manager): whether a bundle may leave its broker.

    It is also true if the broker has the fewest and another has more: that other is not better, but upstream has it so.
    """
    if not any(counts.values()) or not candidates:
        return True
    present = [counts.get(name, 0) for name in candidates]
    least = min(present)
    here = counts.get(current, 0) if current in candidates else 0
    return least == 0 or here > least or any(count != least for count in present)
