"""Format of snapshots: one JSON file with all inputs of a decision (design/snapshot.md).

The models below are the format; snapshot.schema.json is made from them (`python -m shedders.schemas`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from loaddata.model.broker_load import UNKNOWN_IS_FULL
from loaddata.model.bundle_load import UNSEEN
from statechannel.protocol.bundle import FULL_UPPER

KIND = "statechannel-snapshot"
FORMAT = 1

BundleState = Literal["Unassigned", "Assigning", "Assigned", "Releasing", "Splitting"]
IN_FLIGHT = ("Assigning", "Releasing", "Splitting")

Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Millis = Annotated[int, Field(ge=0, le=2**53)]
Seconds = Annotated[float, Field(ge=0)]
Amount = Annotated[float, Field(ge=0)]
BySetting = dict[Name, JsonValue]


class SnapshotPart(BaseModel):
    """Base of all parts: unknown fields, numbers as text, and numbers that are negative or not finite are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class Clock(SnapshotPart):
    """When the snapshot was taken."""

    now_ms: Millis = Field(0, description="Wall time, milliseconds since 1970. Ages elsewhere are relative to it.")


class UsageEntry(SnapshotPart):
    """Use of one resource, in its own unit."""

    usage: Amount = Field(0.0, description="What is used. CPU: percent of one core; memory: MiB; bandwidth: kbit/s.")
    limit: Amount = Field(0.0, description="Maximum, in the same unit; 0: unknown.")


class Rates(SnapshotPart):
    """Traffic a second."""

    msg_rate_in: Amount = Field(0.0, description="Messages a second that come in.")
    msg_rate_out: Amount = Field(0.0, description="Messages a second that go out.")
    msg_throughput_in: Amount = Field(0.0, description="Bytes a second that come in.")
    msg_throughput_out: Amount = Field(0.0, description="Bytes a second that go out.")


class LoadReport(Rates):
    """Newest load report of a broker (PIP-192 `BrokerLoadData`)."""

    cpu: UsageEntry = Field(UsageEntry(), description="In percent of one core.")
    memory: UsageEntry = Field(UsageEntry(), description="Heap, in MiB; counts in no weighted maximum.")
    direct_memory: UsageEntry = Field(UsageEntry(), description="In MiB.")
    bandwidth_in: UsageEntry = Field(UsageEntry(), description="In kbit/s.")
    bandwidth_out: UsageEntry = Field(UsageEntry(), description="In kbit/s.")
    bundles: Count = Field(0, description="Bundles that the broker serves.")
    topics: Count = Field(0, description="Topics in them.")
    max_resource_usage: Amount = Field(
        UNKNOWN_IS_FULL, description="Largest of CPU, direct memory and bandwidths at that moment; 1 is full."
    )
    weighted_max_ema: Amount = Field(UNKNOWN_IS_FULL, description="Moving average of the weighted maximum; 1 is full.")
    msg_throughput_ema: Amount = Field(0.0, description="Moving average of the bytes a second in both directions.")
    peak_usage: Amount = Field(
        0.0, description="Highest usage of CPU or a bandwidth in the last ten minutes; 1 is full."
    )
    peak_share: Amount = Field(0.0, description="Part of the samples of that time that are at it.")
    updated_at_ms: Millis = Field(0, description="When it was measured, wall time of that broker; 0: never.")
    reported_at_ms: Millis = Field(0, description="When it was reported, wall time of that broker.")


class BrokerPart(SnapshotPart):
    """One registered broker."""

    load: LoadReport | None = Field(None, description="Its newest report; null: none.")
    load_age_s: Seconds = Field(0.0, description="Age of that report by the reader's own clock.")
    load_lapsed: bool = Field(False, description="The report is older than the last change of what the broker owns.")
    version: str | None = Field(None, description="Software version from the registry.")
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

    topics: Count = Field(0, description="Topics in it.")
    consumers: Count = Field(0, description="Consumers of them; with the producers its sessions.")
    producers: Count = Field(0, description="Producers to them.")
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


class BundlePart(SnapshotPart):
    """One live bundle."""

    state: BundleState | None = Field(None, description="State on the channel; null: derived from the owner.")
    owner: Name | None = Field(None, description="Broker that serves it; null: no broker.")
    stats: StatsPart | None = Field(None, description="Present figures; null: not reported.")
    short: AveragePart = Field(_UNSEEN, description="Short-term average (10 samples).")
    long: AveragePart = Field(_UNSEEN, description="Long-term average (1,000 samples).")
    rank: Count | None = Field(
        None, description="Place among the top bundles that its owner names, 0 first; null: not one of them."
    )
    topics: list[TopicPart] = Field([], description="Its topics, where they are known.")
    non_persistent: bool = Field(False, description="It holds a non-persistent topic.")
    estimated: bool = Field(False, description="Just split off; its figures are computed from its parent's.")
    secondhand: bool = Field(
        False, description="Its averages are from before it came to its owner: only placements use them."
    )


class IsolationPart(SnapshotPart):
    """Which brokers some namespaces may use (upstream `NamespaceIsolationData`)."""

    name: Name = Field(description="Unique name.")
    namespaces: list[str] = Field(description="Regular expressions of whole names tenant/namespace.")
    primary: list[str] = Field(description="Regular expressions of whole addresses of brokers.")
    secondary: list[str] = Field([], description="Those that help out.")
    min_available: Count = Field(1, description="With fewer primaries than this that can take it, secondaries may.")


class PoliciesPart(SnapshotPart):
    """Policies of operators."""

    isolation: list[IsolationPart] = Field([], description="In the order in which they are matched.")
    anti_affinity: dict[Name, Name] = Field({}, description="Group by namespace.")
    pins: dict[Name, Name] = Field({}, description="Broker by bundle or namespace.")
    cordons: dict[Name, str] = Field({}, description="Brokers that take nothing, with the reason.")
    excluded: list[Name] = Field([], description="Namespaces that are never shed.")


class RecentPart(SnapshotPart):
    """Recent moves."""

    bundles: dict[Name, Seconds] = Field({}, description="Seconds since a bundle was moved.")
    brokers: dict[Name, Seconds] = Field({}, description="Seconds since a broker gave a bundle away or got one.")


class CargoPart(Rates):
    """The load that goes with a bundle: its traffic, and its part of the source's usage."""

    topics: Count = Field(0, description="Topics in it.")
    cpu: Amount = Field(0.0, description="In percent of one core.")
    direct_memory: Amount = Field(0.0, description="In MiB.")
    bandwidth_in: Amount = Field(0.0, description="In kbit/s.")
    bandwidth_out: Amount = Field(0.0, description="In kbit/s.")
    weighted_max: Amount = Field(0.0, description="Part of the source's weighted_max_ema; 1 is full.")
    throughput: Amount = Field(0.0, description="Part of the source's msg_throughput_ema.")


class BookedPart(SnapshotPart):
    """A move that was decided on."""

    bundle: Name = Field(description="Its key.")
    source: Name = Field(description="Broker that gives it.")
    destination: Name | None = Field(None, description="Broker that gets it; null while that is open.")
    cargo: CargoPart | None = Field(None, description="Its load; null: computed from the figures here.")
    arrived: bool = Field(False, description="The destination owns it, but the reports do not both show it.")
    source_knows: bool = Field(False, description="The source's report leaves it out already.")
    destination_knows: bool = Field(False, description="The destination's report counts it already.")


class BudgetPart(SnapshotPart):
    """Limits of moves in flight (`shedders.decision.booked_moves`)."""

    moves: Annotated[int, Field(ge=1, le=100_000)] = Field(description="Bundles.")
    load_percent: Annotated[float, Field(gt=0, le=100)] = Field(description="Percent of the cluster's traffic.")


class BalancingPart(SnapshotPart):
    """Rules that apply to the plans of strategies."""

    budget: BudgetPart | None = Field(None, description="Budget of moves; null: no limit.")
    unload_mode: Literal["transfer", "unload"] = Field(
        "transfer", description="unload: bundles are unloaded without a destination, and not swapped."
    )
    shedding_off: str | None = Field(None, description="Why shedding is off; null: it is on.")


class StrategyNames(SnapshotPart):
    """Chosen strategies; null: that of the profile."""

    shedding: Name | None = Field(None, description="Which bundles move.")
    placement: Name | None = Field(None, description="Where bundles go.")
    split: Name | None = Field(None, description="Where bundles are cut.")


class ByStrategy(SnapshotPart):
    """Values by strategy, for each kind of strategy."""

    shedding: dict[Name, BySetting] = Field({}, description="By shedding strategy.")
    placement: dict[Name, BySetting] = Field({}, description="By placement strategy.")
    split: dict[Name, BySetting] = Field({}, description="By split algorithm.")
    parts: dict[Name, BySetting] = Field({}, description="Of what surrounds the strategies: `filters`, `splitting`.")


class Snapshot(SnapshotPart):
    """A cluster at one moment, and how it is balanced."""

    kind: Literal["statechannel-snapshot"]
    format: Literal[1] = Field(description="Version of this format; fields may be added without a new one.")
    clock: Clock = Clock()
    profile: Name = Field("default", description="Named set of default strategies and settings.")
    strategies: StrategyNames = StrategyNames()
    settings: ByStrategy = Field(ByStrategy(), description="Settings that differ from the profile's.")
    brokers: dict[Name, BrokerPart] = Field(description="By broker id; order means nothing.")
    bundles: dict[Name, BundlePart] = Field(description="By key, tenant/namespace/0xLLLLLLLL_0xUUUUUUUU.")
    gone: list[Name] = Field([], description="Brokers that are no longer registered, and own bundles until the repair.")
    booked: list[BookedPart] = Field([], description="Moves in flight, and those that the reports do not show yet.")
    balancing: BalancingPart = BalancingPart()
    policies: PoliciesPart = PoliciesPart()
    recent: RecentPart = RecentPart()
    memory: ByStrategy = Field(ByStrategy(), description="What strategies remember from one decision to the next.")
    safe: str | None = Field(None, description="Why the cluster must be left alone; null: it is well.")
    remarks: list[str] = Field([], description="Remarks of its source, shown with every plan.")
