"""Policies in effect at one moment, as the balancer and the filters use them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

from loaddata.model.broker_load import ResourceWeights
from loaddata.model.bundle_load import BundleAverages, MessageAverage
from shedders.model.cluster import Cluster, IsolationPolicy, Policies
from shedders.policies.contradictions import Contradiction, contradictions
from shedders.policies.kinds import PolicyKind, canonical
from shedders.policies.record import Author, PolicyKey

NOWHERE: Final = "(unreadable pin)"  # destination of an unreadable pin: no broker can have this name
QUOTA_SAMPLES: Final = 1_000  # a quota counts as measured, not as a default that the first sample replaces


class Force(StrEnum):
    """The state of an entry at that moment."""

    IN_FORCE = "in-force"
    OVERRIDDEN = "overridden"
    LAPSED = "lapsed"
    UNREADABLE = "unreadable"
    UNKNOWN = "unknown"
    """Of a setting: no installed strategy has it. Set only by callers that know the installed strategies."""


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """One record that is the newest of its key.

    Attributes:
        value: Fields of its kind; empty where it is unreadable.
        until_ms: When it expires; None: never.
        written_at_ms: By the writer's wall clock; `logged_at_ms` by the log's.
        trouble: Why it cannot be read; empty if it can.
    """

    key: PolicyKey
    force: Force
    offset: int
    logged_at_ms: int
    value: Mapping[str, Any] = field(default_factory=dict)
    by: str = ""
    why: str = ""
    until_ms: int | None = None
    written_at_ms: int = 0
    trouble: str = ""

    @property
    def author(self) -> Author:
        return Author.parse(self.by)

    def fields(self) -> dict[str, Any]:
        return {
            "kind": str(self.key.kind),
            "name": self.key.name,
            "override": self.key.override,
            "state": str(self.force),
            "value": dict(self.value),
            "by": self.author.person,
            "drain": self.author.drain,
            "why": self.why,
            "until_ms": self.until_ms,
            "written_at_ms": self.written_at_ms,
            "logged_at_ms": self.logged_at_ms,
            "offset": self.offset,
            "trouble": self.trouble or None,
        }


@dataclass(frozen=True, slots=True)
class EffectivePolicies:
    """All policies at one moment; the same object until something changes.

    Attributes:
        position: Offset of the newest record added; -1 before the first.
        policies: For filters and strategies.
        domains: Failure domain by broker; overrides the broker's own setting.
        manager: `extensible` or `modular`; None if not set.
        shedding_on: Bundles may be moved automatically; if not, `shedding_why` has who forbade it, and why.
        unload_mode: `transfer` or `unload`; None if not set.
        shed_with_policies: Whether bundles with policies may be shed; None if not set.
        settings: Replacements of configured settings, by dotted name (`shedders.balancer.active_strategies`).
        quotas: Rates by bundle, in place of its averages.
        weights: Of the resources; None if not set.
        entries: All entries that have not expired, sorted by kind and name, an override before the policy that it overrides.
        lapsed: Expired entries that are still in the topic.
        deleted: Deleted keys, with the offset of the deleting record, until Kafka drops that record.
        junk: Number of dropped records by reason (`InvalidPolicyReason`).
        closed: Restrictions due to unreadable records, each with the reason.
        overfull: Why not all policies are known; empty if they are.
        next_change_ms: When the next entry expires; None if none does.
    """

    position: int = -1
    policies: Policies = field(default_factory=Policies)
    domains: Mapping[str, str] = field(default_factory=dict)
    manager: str | None = None
    shedding_on: bool = True
    shedding_why: str = ""
    unload_mode: str | None = None
    shed_with_policies: bool | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    quotas: Mapping[str, MessageAverage] = field(default_factory=dict)
    weights: ResourceWeights | None = None
    entries: tuple[PolicyEntry, ...] = ()
    lapsed: tuple[PolicyEntry, ...] = ()
    deleted: Mapping[PolicyKey, int] = field(default_factory=dict)
    junk: Mapping[str, int] = field(default_factory=dict)
    closed: tuple[str, ...] = ()
    overfull: str = ""
    next_change_ms: int | None = None

    def find(self, kind: PolicyKind, name: str) -> Sequence[PolicyEntry]:
        """Entries of that name, the one in force first, expired ones last."""
        named = [entry for entry in (*self.entries, *self.lapsed) if (entry.key.kind, entry.key.name) == (kind, name)]
        order = list(Force)
        return sorted(named, key=lambda entry: order.index(entry.force) if entry.force is not Force.UNREADABLE else 0)

    def over(self, cluster: Cluster) -> Cluster:
        """The cluster with these policies, failure domains and quotas in place of its own."""
        brokers = {
            name: replace(broker, domain=self.domains[name]) if name in self.domains else broker
            for name, broker in cluster.brokers.items()
        }
        bundles = {
            name: replace(bundle, averages=BundleAverages(self.quotas[name], self.quotas[name]))
            if name in self.quotas
            else bundle
            for name, bundle in cluster.bundles.items()
        }
        return replace(cluster, brokers=brokers, bundles=bundles, policies=self.policies)

    def contradictions(self, cluster: Cluster) -> Sequence[Contradiction]:
        return contradictions(self.over(cluster))


class Effects(NamedTuple):
    isolation: list[IsolationPolicy]
    anti_affinity: dict[str, str]
    pins: dict[str, str]
    cordons: dict[str, str]
    excluded: set[str]
    domains: dict[str, str]
    settings: dict[str, Any]
    quotas: dict[str, MessageAverage]
    single: dict[PolicyKind, Mapping[str, Any]]
    forbids: list[str]
    closed: list[str]

    @classmethod
    def none(cls) -> Effects:
        return cls([], {}, {}, {}, set(), {}, {}, {}, {}, [], [])

    def policies(self) -> Policies:
        """For filters and strategies; isolation policies are matched in the order in which they were added."""
        return Policies(tuple(self.isolation), self.anti_affinity, self.pins, self.cordons, frozenset(self.excluded))

    def add(self, entry: PolicyEntry) -> None:
        kind, name, value = entry.key.kind, entry.key.name, entry.value
        match kind:
            case PolicyKind.ISOLATION:
                self.isolation.append(
                    IsolationPolicy(
                        name,
                        tuple(value["namespaces"]),
                        tuple(value["primary"]),
                        tuple(value["secondary"]),
                        value["min_available"],
                    )
                )
            case PolicyKind.ANTI_AFFINITY:
                self.anti_affinity[name] = value["group"]
            case PolicyKind.DOMAIN:
                self.domains[name] = value["domain"]
            case PolicyKind.PIN:
                self.pins[name] = value["broker"]
            case PolicyKind.CORDON:
                self.cordons[name] = _author(entry)
            case PolicyKind.EXCLUDE:
                self.excluded.add(name)
            case PolicyKind.QUOTA:
                self.quotas[name] = MessageAverage(
                    **{name: float(rate) for name, rate in value.items()}, samples=QUOTA_SAMPLES
                )
            case PolicyKind.SETTING:
                # A foreign writer may use the short name; entries are sorted, so that the full name takes precedence.
                self.settings[canonical(name)] = value["value"]
            case _:
                self.single[kind] = value
                if kind is PolicyKind.SHEDDING and not value["on"]:
                    self.forbids.append(f"shedding is off ({_author(entry)})")

    def close(self, entry: PolicyEntry) -> None:
        """Add an unreadable entry: what it may have forbidden is forbidden, until it is corrected."""
        kind, name = entry.key.kind, entry.key.name
        why = f"policy {entry.key.text} cannot be read ({entry.trouble})"
        match kind:
            case PolicyKind.ISOLATION:
                # An invalid pattern: `shedders.filters.isolation` then allows no broker for what depends on it.
                self.isolation.append(IsolationPolicy(name, (f"(?{why}",), (f"(?{why}",)))
                effect = "bundles that it may apply to get no broker"
            case PolicyKind.PIN:
                self.pins[name] = NOWHERE
                effect = "the pinned bundles get no broker and are not moved"
            case PolicyKind.CORDON:
                self.cordons[name] = why
                effect = "the broker takes no bundles"
            case PolicyKind.EXCLUDE | PolicyKind.ANTI_AFFINITY:
                self.excluded.add(name)
                effect = f"{name} is not shed"
            case PolicyKind.QUOTA:
                self.excluded.add(name.rpartition("/")[0])
                effect = f"{name.rpartition('/')[0]} is not shed"
            case _:
                self.forbids.append(why)
                effect = "no bundle is moved automatically"
        self.closed.append(f"{why}: {effect}")


def _author(entry: PolicyEntry) -> str:
    by = entry.author.text
    return f"{by}: {entry.why}" if entry.why else f"by {by}"
