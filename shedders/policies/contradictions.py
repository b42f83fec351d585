"""Contradictions among policies, each with a namespace or bundle as a witness.

No bundle is placed or moved against a policy (the filters fail closed); a contradiction explains that in advance. Kinds:

* `unreadable`: a pattern of an isolation policy is not a regular expression, or it names no brokers.
* `nobody`: no registered broker satisfies all policies that apply to a bundle. The smallest set of them that has no broker
  in common is named: a pin, an isolation policy (or those that leave no shared broker), cordons, the kind of topics.
* `unknown-broker`: a pin, or a cordon, names a broker that is not registered.
* * `unknown-bundle`: a pin is for a bundle or namespace that does not exist.
* `together`: policies put all namespaces of an anti-affinity group on one broker.
* `unknown-domain`: some brokers have a failure domain, these have none, and there are anti-affinity groups.
* * `min-available`: the patterns of an isolation policy match fewer than `min_available` brokers, and it has no secondaries.

Worked example: bundle `t/n/0x00000000_0x80000000` is pinned to b3, policy `gold` gives `t/n` the brokers b1 and b2: kind
`nobody`, policies `pin t/n/0x00000000_0x80000000 -> b3` and `isolation gold`, witness the bundle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from shedders.filters.anti_affinity import group_of
from shedders.filters.isolation import Isolation, Zone
from shedders.filters.rules import incapable, needs, pin_of, split_up
from shedders.model.cluster import Bundle, Cluster, IsolationPolicy
from shedders.model.patterns import compiled


@dataclass(frozen=True, slots=True, order=True)
class Contradiction:
    """Policies that cannot be kept.

    Attributes:
        kind: A stable word.
        policies: Which ones, each by kind and name.
        witness: A namespace, bundle or broker that shows it.
        blocks: Bundles get no broker until it is resolved.
    """

    kind: str
    policies: tuple[str, ...]
    witness: str
    why: str
    blocks: bool


def contradictions(cluster: Cluster) -> Sequence[Contradiction]:
    """All contradictions on this cluster, sorted; one witness for each set of policies."""
    isolation = Isolation(cluster.policies.isolation, cluster.brokers)
    first: dict[tuple[str, tuple[str, ...]], Contradiction] = {}
    for contradiction in (
        *_unreadable(cluster.policies.isolation),
        *_unknown(cluster),
        *_nobody(cluster, isolation),
        *_together(cluster, isolation),
        *_domains(cluster),
        *_too_few(cluster, isolation),
    ):
        first.setdefault((contradiction.kind, contradiction.policies), contradiction)
    return sorted(first.values())


def _unreadable(policies: Sequence[IsolationPolicy]) -> Iterator[Contradiction]:
    for policy in policies:
        if not policy.primary and not policy.secondary:
            why = f"isolation policy `{policy.name}` names no brokers; its namespaces get none"
            yield Contradiction("unreadable", (_isolation(policy.name),), f"primary of `{policy.name}`", why, True)
        for part, patterns in (
            ("namespaces", policy.namespaces),
            ("primary", policy.primary),
            ("secondary", policy.secondary),
        ):
            trouble = compiled(patterns)
            if isinstance(trouble, str):
                why = f"{part} of isolation policy `{policy.name}`: {trouble}; bundles that depend on it get no broker"
                yield Contradiction("unreadable", (_isolation(policy.name),), f"{part} of `{policy.name}`", why, True)


def _unknown(cluster: Cluster) -> Iterator[Contradiction]:
    namespaces = cluster.bundles_in.keys()
    parents = split_up(cluster.policies, cluster.bundles)
    for name, broker in sorted(cluster.policies.pins.items()):
        there = name in cluster.bundles or name in namespaces or name in parents
        if not there:
            yield Contradiction("unknown-bundle", (_pin(name, broker),), name, f"`{name}` does not exist", False)
        if broker not in cluster.brokers:
            why = f"`{name}` is pinned to `{broker}`, which is not registered"
            yield Contradiction("unknown-broker", (_pin(name, broker),), broker, why, there)
    for broker in sorted(cluster.policies.cordons.keys() - cluster.brokers.keys()):
        why = f"`{broker}` is cordoned and not registered"
        yield Contradiction("unknown-broker", (f"cordon {broker}",), broker, why, False)


def _nobody(cluster: Cluster, isolation: Isolation) -> Iterator[Contradiction]:
    seen: set[tuple[object, ...]] = set()
    for name in sorted(cluster.bundles):
        bundle = cluster.bundles[name]
        zone, pin = isolation.zone(bundle.namespace), pin_of(cluster.policies, bundle)
        # Bundles under the same policies are in the same position.
        key = (id(zone), pin, name if name in cluster.policies.pins else None, needs(bundle))
        if key in seen:
            continue
        seen.add(key)
        yield from _smallest(cluster, bundle, _demands(cluster, isolation, zone, bundle))


def _demands(cluster: Cluster, isolation: Isolation, zone: Zone | None, bundle: Bundle) -> dict[str, frozenset[str]]:
    brokers = cluster.brokers
    demands: dict[str, frozenset[str]] = {}
    pin = pin_of(cluster.policies, bundle)
    if pin is not None:
        subject = bundle.name if bundle.name in cluster.policies.pins else bundle.namespace
        demands[_pin(subject, pin)] = frozenset({pin} & brokers.keys())
    if zone is not None and zone.broken is None:
        if zone.policy is not None:
            # There are never fewer than 0 primaries, so secondaries are not used.
            helpers = zone.secondary if zone.min_available > 0 else frozenset[str]()
            demands[_isolation(zone.policy)] = zone.primary | helpers
        else:
            names = ", ".join(sorted(set(isolation.owners.values())))
            demands[f"isolation {names or 'of shared brokers'} (the namespace has none)"] = zone.primary
    cordoned = sorted(cluster.policies.cordons.keys() & brokers.keys())
    if cordoned:
        demands[f"cordon {', '.join(cordoned)}"] = frozenset(brokers.keys() - set(cordoned))
    persistent, non_persistent = needs(bundle)
    capable = frozenset(
        name for name, broker in brokers.items() if incapable(broker, persistent, non_persistent) is None
    )
    if len(capable) < len(brokers):
        kinds = [word for word, needed in (("persistent", persistent), ("non-persistent", non_persistent)) if needed]
        demands[f"brokers for {' and '.join(kinds)} topics"] = capable
    return demands


def _smallest(cluster: Cluster, bundle: Bundle, demands: Mapping[str, frozenset[str]]) -> Iterator[Contradiction]:
    all_brokers = frozenset(cluster.brokers)
    if not all_brokers or all_brokers.intersection(*demands.values()):
        return
    for size in range(1, len(demands) + 1):
        for names in combinations(demands, size):
            if all_brokers.intersection(*(demands[name] for name in names)):
                continue
            allowed = "; ".join(f"{name} allows {_some(demands[name])}" for name in names)
            yield Contradiction("nobody", names, bundle.name, f"no broker may take `{bundle.name}`: {allowed}", True)
            return


def _together(cluster: Cluster, isolation: Isolation) -> Iterator[Contradiction]:
    groups: dict[str, list[str]] = {}
    for namespace in sorted(cluster.policies.anti_affinity):
        group = group_of(cluster.policies, namespace)
        if group is not None and namespace in cluster.bundles_in:
            groups.setdefault(group, []).append(namespace)
    for group, namespaces in sorted(groups.items()):
        alone: dict[str, list[tuple[str, Sequence[str]]]] = {}
        for namespace in namespaces:
            first = cluster.bundles_in[namespace][0]
            demands = _demands(cluster, isolation, isolation.zone(namespace), first)
            left = frozenset(cluster.brokers).intersection(*demands.values())
            if len(left) == 1 and len(cluster.brokers) > 1:
                alone.setdefault(min(left), []).append((namespace, list(demands)))
        for broker, bound in sorted(alone.items()):
            if len(bound) > 1:
                policies = (f"anti-affinity {group}", *sorted({name for _, names in bound for name in names}))
                names = ", ".join(name for name, _ in bound)
                why = f"group `{group}` should be spread, but {names} may only be on {broker}"
                yield Contradiction("together", policies, bound[0][0], why, False)


def _domains(cluster: Cluster) -> Iterator[Contradiction]:
    if not any(group_of(cluster.policies, namespace) for namespace in cluster.policies.anti_affinity):
        return
    without = [name for name in cluster.broker_names if not (cluster.brokers[name].domain or "").strip()]
    if without and len(without) < len(cluster.brokers):
        why = f"{_some(without)} have no failure domain and count as one domain, others have one"
        groups = sorted({group_of(cluster.policies, namespace) or "" for namespace in cluster.policies.anti_affinity})
        policies = tuple(f"anti-affinity {group}" for group in groups if group)
        yield Contradiction("unknown-domain", policies, without[0], why, False)


def _too_few(cluster: Cluster, isolation: Isolation) -> Iterator[Contradiction]:
    for namespace in sorted(cluster.bundles_in):
        zone = isolation.zone(namespace)
        if zone is None or zone.policy is None or zone.broken is not None:
            continue
        # No primary at all is a contradiction `nobody`.
        if 0 < len(zone.primary) < zone.min_available and not zone.secondary:
            why = (
                f"policy `{zone.policy}` requires {zone.min_available} primaries, its patterns match {len(zone.primary)}, "
                "and it has no secondaries"
            )
            yield Contradiction("min-available", (_isolation(zone.policy),), namespace, why, False)


def _pin(name: str, broker: str) -> str:
    return f"pin {name} -> {broker}"


def _isolation(name: str) -> str:
    return f"isolation {name}"


_SHOWN = 5


def _some(names: Sequence[str] | frozenset[str]) -> str:
    ordered = sorted(names)
    if not ordered:
        return "no broker"
    more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return f"{', '.join(ordered[:_SHOWN])}{more}"
