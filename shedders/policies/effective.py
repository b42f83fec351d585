"""What holds at one moment: the policies of `NAME-policies` as the balancer and the filters use them. Pure."""

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
from shedders.policies.record import PolicyKey

NOWHERE: Final = "(unreadable pin)"
"""Where something is pinned to whose pin cannot be read: no broker can have this name, so nobody takes it."""
QUOTA_SAMPLES: Final = 1_000
"""A quota counts as measured, not as a default that the first sample replaces."""


class Force(StrEnum):
    """How an entry stands at that moment."""

    IN_FORCE = "in-force"
    OVERRIDDEN = "overridden"
    LAPSED = "lapsed"
    UNREADABLE = "unreadable"
    UNKNOWN = "unknown"
    """Of a setting: nothing that is installed has it. Only those who know what is installed call it so."""


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """One record that is the newest of its key.

    Attributes:
        value: Fields of its kind; empty where it is unreadable.
        by, why: Who wrote it, and why.
        until_ms: When it is taken back by itself; None: it stands.
        written_at_ms: By the writer's wall clock; `logged_at_ms` by the log's.
        trouble: Why it cannot be read; empty where it can.
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

    def fields(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "kind": str(self.key.kind),
            "name": self.key.name,
            "override": self.key.override,
            "state": str(self.force),
            "value": dict(self.value),
            "by": self.by,
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
        position: Offset of the newest record taken in; -1 before the first.
        policies: For filters and strategies.
        domains: Failure domain by broker; it stands over the broker's own word.
        manager: `extensible` or `modular`; None where nothing is laid down.
        shedding_on: Bundles may be moved by themselves; `shedding_why` says who forbade it, and why, where they may not.
        unload_mode: `transfer` or `unload`; None where nothing is laid down.
        shed_with_policies: Whether bundles with policies may be shed; None where nothing is laid down.
        settings: In place of configured ones, by dotted name (`policy_settings`).
        quotas: Rates by bundle, in place of its averages.
        weights: Of the resources; None where nothing is laid down.
        entries: Everything that is not lapsed, sorted by kind and name, an override before what it lies over.
        lapsed: What has been taken back by itself and lies in the topic still.
        deleted: What was deleted, and by the record at which offset, until Kafka drops that record.
        junk: Records that were dropped, by reason (`policy_record.Junk`).
        closed: What is forbidden because records cannot be read, each with the reason.
        overfull: Why not all policies are known; empty: they are.
        next_change_ms: When the next entry lapses; None where none will.
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
        """Entries of that name, the one in force first, lapsed ones last."""
        found = [one for one in (*self.entries, *self.lapsed) if (one.key.kind, one.key.name) == (kind, name)]
        return sorted(found, key=lambda one: list(Force).index(one.force) if one.force is not Force.UNREADABLE else 0)

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
        """What of these policies cannot be kept on that cluster."""
        return contradictions(self.over(cluster))


class Effects(NamedTuple):
    """A standing while it is put together, entry by entry."""

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
        """Nothing is laid down."""
        return cls([], {}, {}, {}, set(), {}, {}, {}, {}, [], [])

    def policies(self) -> Policies:
        """For filters and strategies; isolation policies are matched in the order in which they came."""
        return Policies(tuple(self.isolation), self.anti_affinity, self.pins, self.cordons, frozenset(self.excluded))

    def add(self, entry: PolicyEntry) -> None:
        """Take in an entry that is in force."""
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
                self.cordons[name] = _said(entry)
            case PolicyKind.EXCLUDE:
                self.excluded.add(name)
            case PolicyKind.QUOTA:
                self.quotas[name] = MessageAverage(
                    **{rate: float(one) for rate, one in value.items()}, samples=QUOTA_SAMPLES
                )
            case PolicyKind.SETTING:
                # A foreign writer may use the short name; entries come sorted, so that the whole name stands over it.
                self.settings[canonical(name)] = value["value"]
            case _:
                self.single[kind] = value
                if kind is PolicyKind.SHEDDING and not value["on"]:
                    self.forbids.append(f"shedding is off ({_said(entry)})")

    def close(self, entry: PolicyEntry) -> None:
        """Take in an entry that cannot be read: what it may have forbidden is forbidden, until somebody mends it."""
        kind, name = entry.key.kind, entry.key.name
        why = f"policy {entry.key.text} cannot be read ({entry.trouble})"
        match kind:
            case PolicyKind.ISOLATION:
                # No expression can be read like this one: `shedders.filters.isolation` then gives nobody what depends on it.
                self.isolation.append(IsolationPolicy(name, (f"(?{why}",), (f"(?{why}",)))
                effect = "whatever it may speak of gets no broker"
            case PolicyKind.PIN:
                self.pins[name] = NOWHERE
                effect = "what it pins gets no broker and is not moved"
            case PolicyKind.CORDON:
                self.cordons[name] = why
                effect = "the broker takes nothing"
            case PolicyKind.EXCLUDE | PolicyKind.ANTI_AFFINITY:
                self.excluded.add(name)
                effect = f"{name} is not shed"
            case PolicyKind.QUOTA:
                self.excluded.add(name.rpartition("/")[0])
                effect = f"{name.rpartition('/')[0]} is not shed"
            case _:
                self.forbids.append(why)
                effect = "nothing is moved by itself"
        self.closed.append(f"{why}: {effect}")


def _said(entry: PolicyEntry) -> str:
    return f"{entry.by}: {entry.why}" if entry.why else f"by {entry.by}"
