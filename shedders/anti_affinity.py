"""Anti-affinity groups: namespaces that should not fail together (upstream `AntiAffinityGroupPolicyHelper`, Pulsar PIP-7).

A broker counts as many as it serves namespaces of the group, a failure domain likewise. A bundle goes to one of the brokers
with the fewest, of the domains with the fewest. Ours leaves out the bundle's own namespace and looks at whole domains;
`upstream` counts the own namespace as well, and of a domain only the candidates (decision record 51).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from shedders.cluster import Cluster, Policies

DEFAULT_DOMAIN = "default"

Held = Mapping[str, Collection[str]]
"""Namespaces of one group by the broker that serves bundles of them."""


def group_of(policies: Policies, namespace: str) -> str | None:
    """The group of a namespace in small letters (groups are compared without regard to case); None without one."""
    group = policies.anti_affinity.get(namespace)
    return group.lower() if group and not group.isspace() else None


def held(cluster: Cluster, group: str) -> dict[str, set[str]]:
    """Who serves namespaces of a group, by the channel's ownership."""
    found: dict[str, set[str]] = {}
    for namespace in cluster.policies.anti_affinity:
        if group_of(cluster.policies, namespace) == group:
            for bundle in cluster.bundles_in.get(namespace, ()):
                if bundle.owner is not None:
                    found.setdefault(bundle.owner, set()).add(namespace)
    return found


def others(found: Held, namespace: str) -> dict[str, set[str]]:
    """The same without one namespace."""
    return {broker: set(names) - {namespace} for broker, names in found.items()}


def too_many(cluster: Cluster, candidates: Sequence[str], found: Held, *, domains: bool, upstream: bool) -> dict[str, str]:
    """Candidates that should not take the bundle, each with the reason.

    Args:
        found: Namespaces by broker; without the bundle's own where that is wanted.
        domains: Compare failure domains before brokers.
        upstream: A domain is the sum over the candidates in it, not all its namespaces.
    """
    away: dict[str, str] = {}
    left = list(candidates)
    if left and domains and any(broker.domain for broker in cluster.brokers.values()):
        counts = _domain_counts(cluster, left, found, upstream=upstream)
        least = min(counts.values())
        for name in left:
            domain = _domain(cluster, name)
            if counts[domain] > least:
                away[name] = f"domain `{domain}` has {counts[domain]} namespaces of the group, another {least}"
        left = [name for name in left if name not in away]
    if left:
        fewest = min(len(found.get(name, ())) for name in left)
        for name in left:
            count = len(found.get(name, ()))
            if count > fewest:
                away[name] = f"serves {count} namespaces of the group, another {fewest}"
    return away


def worth_leaving(current: str, candidates: Collection[str], found: Held) -> bool:
    """Upstream `shouldAntiAffinityNamespaceUnload` (modular manager): whether a bundle may leave its broker.

    [Its last answer is also yes where the broker has the fewest and another has more: no better home, but upstream says so.]
    """
    if not any(found.values()) or not candidates:
        return True
    counts = [len(found.get(name, ())) for name in candidates]
    least = min(counts)
    here = len(found.get(current, ())) if current in candidates else 0
    return least == 0 or here > least or any(count != least for count in counts)


def _domain(cluster: Cluster, name: str) -> str:
    return cluster.brokers[name].domain or DEFAULT_DOMAIN


def _domain_counts(cluster: Cluster, candidates: Sequence[str], found: Held, *, upstream: bool) -> dict[str, int]:
    counts = {_domain(cluster, name): 0 for name in candidates}
    if upstream:
        for name in candidates:
            counts[_domain(cluster, name)] += len(found.get(name, ()))
        return counts
    namespaces: dict[str, set[str]] = {domain: set() for domain in counts}
    for name, names in found.items():
        if name in cluster.brokers:
            namespaces.get(_domain(cluster, name), set()).update(names)
    return {domain: len(names) for domain, names in namespaces.items()}
