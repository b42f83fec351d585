"""The snapshot: one JSON file of everything that a decision is made from (design/snapshot.md).

It is read into a `Cluster` and made of one; both ways keep every number bit for bit, so that a plan of a snapshot is the
plan of the cluster that it was taken from. The models below are the format; snapshot.schema.json is made from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from loaddata.broker_load import UNKNOWN_IS_FULL, BrokerLoad
from loaddata.bundle_load import UNSEEN, BundleAverages, BundleStats, MessageAverage
from loaddata.usage import ResourceUsage
from shedders.cluster import Broker, Bundle, Cluster, IsolationPolicy, Policies, RecentMoves, TopicLoad
from statechannel.core.bundle import FULL_UPPER, topic_hash

KIND = "statechannel-snapshot"

BundleState = Literal["Unassigned", "Assigning", "Assigned", "Releasing", "Splitting"]
IN_FLIGHT = ("Assigning", "Releasing", "Splitting")

Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Millis = Annotated[int, Field(ge=0, le=2**53)]
Seconds = Annotated[float, Field(ge=0)]
BySetting = dict[Name, JsonValue]


class Part(BaseModel):
    """Base of all parts: unknown fields, numbers as text and numbers that are not finite are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class Clock(Part):
    """When the snapshot was taken."""

    now_ms: Millis = Field(0, description="Wall time, milliseconds since 1970. Ages elsewhere are relative to it.")


class Usage(Part):
    """Use of one resource, in its own unit."""

    usage: float = Field(0.0, description="What is used. CPU: percent of one core; memory: MiB; bandwidth: kbit/s.")
    limit: float = Field(0.0, description="The most there is, in the same unit; 0 where it is not known.")


class Rates(Part):
    """Traffic a second."""

    msg_rate_in: float = Field(0.0, description="Messages a second that come in.")
    msg_rate_out: float = Field(0.0, description="Messages a second that go out.")
    msg_throughput_in: float = Field(0.0, description="Bytes a second that come in.")
    msg_throughput_out: float = Field(0.0, description="Bytes a second that go out.")


class LoadReport(Rates):
    """Newest load report of a broker (PIP-192 `BrokerLoadData`)."""

    cpu: Usage = Usage()
    memory: Usage = Usage()
    direct_memory: Usage = Usage()
    bandwidth_in: Usage = Usage()
    bandwidth_out: Usage = Usage()
    bundles: Count = Field(0, description="Bundles that the broker serves.")
    topics: Count = Field(0, description="Topics in them.")
    max_resource_usage: float = Field(
        UNKNOWN_IS_FULL, description="Largest of CPU, direct memory and bandwidths at that moment; 1 is full."
    )
    weighted_max_ema: float = Field(UNKNOWN_IS_FULL, description="Moving average of the weighted maximum; 1 is full.")
    msg_throughput_ema: float = Field(0.0, description="Moving average of the bytes a second in both directions.")
    updated_at_ms: Millis = Field(0, description="When it was measured, wall time of that broker; 0: never.")
    reported_at_ms: Millis = Field(0, description="When it was reported, wall time of that broker.")


class BrokerPart(Part):
    """One registered broker."""

    load: LoadReport | None = Field(None, description="Its newest report; null where there is none.")
    load_age_s: Seconds = Field(0.0, description="Age of that report by the reader's own clock.")
    load_lapsed: bool = Field(False, description="The report is older than the last change of what the broker owns.")
    version: str | None = Field(None, description="Software version as the registry tells it.")
    manager: str = Field("extensible", description="Its load manager: extensible or modular.")
    accepting: bool = Field(True, description="Caught up, not draining, not in safe mode.")
    persistent: bool = Field(True, description="It takes persistent topics.")
    non_persistent: bool = Field(True, description="It takes non-persistent topics.")
    domain: str | None = Field(None, description="Failure domain; null without one.")
    web_address: str | None = Field(None, description="What isolation policies match; null: the broker's id.")


class TopicPart(Rates):
    """One topic."""

    name: Name = Field(description="Full name: persistent://tenant/namespace/topic.")
    position: Annotated[int, Field(ge=0, le=FULL_UPPER)] | None = Field(
        None, description="Hash of the full name, inside the bundle; null: CRC-32 is taken of the name."
    )


class StatsPart(Rates):
    """What a bundle does at this moment (upstream `NamespaceBundleStats`)."""

    topics: Count = 0
    consumers: Count = 0
    producers: Count = 0
    cache_size_bytes: Count = Field(0, description="Bytes of its topics in the broker's cache.")


class AveragePart(Rates):
    """Average over time (upstream `TimeAverageMessageData`)."""

    samples: Count = Field(0, description="Samples in it; 0: a default that the first sample replaces.")


_UNSEEN = AveragePart(
    msg_rate_in=UNSEEN.msg_rate_in,
    msg_rate_out=UNSEEN.msg_rate_out,
    msg_throughput_in=UNSEEN.msg_throughput_in,
    msg_throughput_out=UNSEEN.msg_throughput_out,
    samples=UNSEEN.samples,
)


class BundlePart(Part):
    """One live bundle."""

    state: BundleState | None = Field(
        None, description="State on the channel; null: by the owner, who serves it or not."
    )
    owner: Name | None = Field(None, description="Broker that serves it; null where nobody does.")
    stats: StatsPart | None = Field(None, description="This moment's figures; null where nobody reported any.")
    short: AveragePart = Field(_UNSEEN, description="Short-term average (10 samples).")
    long: AveragePart = Field(_UNSEEN, description="Long-term average (1,000 samples).")
    rank: Count | None = Field(
        None, description="Place among the top bundles that its owner names, 0 first; null: not one of them."
    )
    topics: list[TopicPart] = Field([], description="Its topics, where they are known.")
    non_persistent: bool = Field(False, description="It holds a non-persistent topic.")


class IsolationPart(Part):
    """Which brokers some namespaces may use (upstream `NamespaceIsolationData`)."""

    name: Name
    namespaces: list[str] = Field(description="Regular expressions of whole names tenant/namespace.")
    primary: list[str] = Field(description="Regular expressions of whole addresses of brokers.")
    secondary: list[str] = Field([], description="Those that help out.")
    min_available: Count = Field(1, description="With fewer primaries than this that can take it, secondaries may.")


class PoliciesPart(Part):
    """What operators have laid down."""

    isolation: list[IsolationPart] = Field([], description="In the order in which they are matched.")
    anti_affinity: dict[Name, Name] = Field({}, description="Group by namespace.")
    pins: dict[Name, Name] = Field({}, description="Broker by bundle or namespace.")
    cordons: dict[Name, str] = Field({}, description="Brokers that take nothing, with the reason.")
    excluded: list[Name] = Field([], description="Namespaces that are never shed.")


class RecentPart(Part):
    """What was moved lately."""

    bundles: dict[Name, Seconds] = Field({}, description="Seconds since a bundle was moved.")
    brokers: dict[Name, Seconds] = Field({}, description="Seconds since a broker gave a bundle away or got one.")


class StrategyNames(Part):
    """Strategies that are chosen; null leaves the choice to the profile."""

    shedding: Name | None = None
    placement: Name | None = None
    split: Name | None = None


class ByStrategy(Part):
    """Values by strategy, for each kind of strategy."""

    shedding: dict[Name, BySetting] = {}
    placement: dict[Name, BySetting] = {}
    split: dict[Name, BySetting] = {}
    parts: dict[Name, BySetting] = Field({}, description="Of what surrounds the strategies: `filters`, `splitting`.")


class Snapshot(Part):
    """A cluster at one moment, and how it is balanced."""

    kind: Literal["statechannel-snapshot"]
    format: Literal[1] = Field(description="Version of this format; fields may be added without a new one.")
    clock: Clock = Clock()
    profile: Name = Field("default", description="Named set of strategies and settings that all others stand upon.")
    strategies: StrategyNames = StrategyNames()
    settings: ByStrategy = Field(ByStrategy(), description="Settings that differ from the profile's.")
    brokers: dict[Name, BrokerPart] = Field(description="By broker id; order means nothing.")
    bundles: dict[Name, BundlePart] = Field(description="By key, tenant/namespace/0xLLLLLLLL_0xUUUUUUUU.")
    policies: PoliciesPart = PoliciesPart()
    recent: RecentPart = RecentPart()
    memory: ByStrategy = Field(ByStrategy(), description="What strategies remember from one decision to the next.")
    safe: str | None = Field(None, description="Why the cluster must be left alone; null while it is well.")

    def to_cluster(self) -> Cluster:
        """The cluster as strategies see it."""
        policies = self.policies
        return Cluster(
            brokers={name: _broker(name, part) for name, part in self.brokers.items()},
            bundles={name: _bundle(name, part) for name, part in self.bundles.items()},
            policies=Policies(
                isolation=tuple(_isolation(one) for one in policies.isolation),
                anti_affinity=dict(policies.anti_affinity),
                pins=dict(policies.pins),
                cordons=dict(policies.cordons),
                excluded=frozenset(policies.excluded),
            ),
            recent=RecentMoves(bundles=dict(self.recent.bundles), brokers=dict(self.recent.brokers)),
            now_ms=self.clock.now_ms,
            safe=self.safe,
        )

    def with_cluster(self, cluster: Cluster) -> Snapshot:
        """This snapshot with another cluster in it: profile, settings and memory stay; states stay where they fit.

        Raises:
            pydantic.ValidationError: A number of the cluster is not finite, or one that counts things is negative.
        """
        return Snapshot.model_validate(_fields(self) | _cluster_fields(cluster, self.bundles))


def _fields(part: Part) -> dict[str, Any]:
    return dict(part)


def _isolation(part: IsolationPart) -> IsolationPolicy:
    return IsolationPolicy(
        part.name, tuple(part.namespaces), tuple(part.primary), tuple(part.secondary), part.min_available
    )


def _broker(name: str, part: BrokerPart) -> Broker:
    values = dict(part)
    report = values.pop("load")
    return Broker(name=name, load=None if report is None else _report(report), **values)


def _report(part: LoadReport) -> BrokerLoad:
    values: dict[str, Any] = {
        name: ResourceUsage(value.usage, value.limit) if isinstance(value, Usage) else value for name, value in part
    }
    return BrokerLoad(**values)


def _bundle(name: str, part: BundlePart) -> Bundle:
    return Bundle(
        name=name,
        owner=part.owner,
        in_flight=part.state in IN_FLIGHT,
        stats=None if part.stats is None else BundleStats(**dict(part.stats)),
        averages=BundleAverages(MessageAverage(**dict(part.short)), MessageAverage(**dict(part.long))),
        rank=part.rank,
        topics=tuple(_topic(one) for one in part.topics),
        non_persistent=part.non_persistent,
    )


def _topic(part: TopicPart) -> TopicLoad:
    values = dict(part)
    if part.position is None:
        values["position"] = topic_hash(part.name)
    return TopicLoad(**values)


def _cluster_fields(cluster: Cluster, known: Mapping[str, BundlePart]) -> dict[str, Any]:
    policies, recent = cluster.policies, cluster.recent
    return {
        "clock": {"now_ms": cluster.now_ms},
        "brokers": {name: _broker_fields(cluster.brokers[name]) for name in cluster.broker_names},
        "bundles": {name: _bundle_fields(one, known.get(name)) for name, one in sorted(cluster.bundles.items())},
        "policies": {
            "isolation": [_slots(one) | _lists(one) for one in policies.isolation],
            "anti_affinity": dict(policies.anti_affinity),
            "pins": dict(policies.pins),
            "cordons": dict(policies.cordons),
            "excluded": sorted(policies.excluded),
        },
        "recent": {"bundles": dict(recent.bundles), "brokers": dict(recent.brokers)},
        "safe": cluster.safe,
    }


def _slots(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


def _lists(policy: IsolationPolicy) -> dict[str, Any]:
    return {name: list(getattr(policy, name)) for name in ("namespaces", "primary", "secondary")}


def _broker_fields(broker: Broker) -> dict[str, Any]:
    values = _slots(broker)
    del values["name"]
    if broker.load is not None:
        report = _slots(broker.load)
        values["load"] = {
            name: _slots(value) if isinstance(value, ResourceUsage) else value for name, value in report.items()
        }
    return values


def _bundle_fields(bundle: Bundle, before: BundlePart | None) -> dict[str, Any]:
    return {
        "state": _state(bundle, before),
        "owner": bundle.owner,
        "stats": None if bundle.stats is None else _slots(bundle.stats),
        "short": _slots(bundle.averages.short),
        "long": _slots(bundle.averages.long),
        "rank": bundle.rank,
        "topics": [_slots(one) for one in bundle.topics],
        "non_persistent": bundle.non_persistent,
    }


def _state(bundle: Bundle, before: BundlePart | None) -> BundleState:
    """A cluster knows only that a bundle is on its way; which way is kept where it is known."""
    if not bundle.in_flight:
        return "Assigned" if bundle.owner is not None else "Unassigned"
    if before is not None and before.state in IN_FLIGHT:
        return before.state
    return "Assigning" if bundle.owner is None else "Releasing"


def snapshot_of(cluster: Cluster, *, profile: str = "default") -> Snapshot:
    """A snapshot of a cluster, with no settings of its own and nothing remembered."""
    empty = Snapshot(kind="statechannel-snapshot", format=1, profile=profile, brokers={}, bundles={})
    return empty.with_cluster(cluster)
