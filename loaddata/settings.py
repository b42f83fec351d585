"""Settings of load data: what each does, why its default, and upstream's name for it."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from loaddata.model.broker_load import ResourceWeights, UpdateRules
from loaddata.model.bundle_load import SampleClock, TopRules
from loaddata.report.record import BUNDLES_MAX, VALUE_MAX_BYTES
from loaddata.view.table_view import ExpiryRules, ViewRules
from statechannel.settings.field import SettingsGroup, setting

DAY_S = 86_400.0


class LoadSettings(SettingsGroup):
    """How load is measured, reported, and held. Times are seconds unless the name says otherwise."""

    measure_interval_s: float = setting(
        5.0,
        "Time between two readings of the bundles and of the host: upstream's report tick; its host readings are a minute apart.",
        pip_192="loadBalancerReportUpdateMinIntervalMillis, loadBalancerHostUsageCheckIntervalMinutes",
        ge=0.05,
        le=3_600,
    )
    tick_s: float = setting(1.0, "Time between two checks whether something is due.", ge=0.02, le=60)
    sample_interval_s: float = setting(
        5.0,
        "Time that one sample stands for in every average: ten of them, the short-term window, are 50 s.",
        pip_192="(each report of any broker is a sample)",
        ge=0.05,
        le=3_600,
    )
    catch_up_max: int = setting(
        10, "Samples that the newest reading may stand for after a gap: the short-term window, no more.", ge=1, le=1_000
    )
    history: float = setting(
        0.9,
        "Weight of the past in the broker's moving averages at each sample.",
        pip_192="loadBalancerHistoryResourcePercentage",
        ge=0,
        lt=1,
    )
    cpu_weight: float = setting(
        1.0, "Weight of CPU in the weighted maximum.", pip_192="loadBalancerCPUResourceWeight", ge=0, le=100
    )
    memory_weight: float = setting(
        0.0,
        "Weight of memory: left out, as upstream, since a full heap or cache is not load.",
        pip_192="loadBalancerMemoryResourceWeight",
        ge=0,
        le=100,
    )
    direct_memory_weight: float = setting(
        0.0, "Weight of direct memory.", pip_192="loadBalancerDirectMemoryResourceWeight", ge=0, le=100
    )
    bandwidth_in_weight: float = setting(
        1.0,
        "Weight of incoming bandwidth.",
        pip_192="loadBalancerBandwidthInResourceWeight (loadBalancerBandwithInResourceWeight)",
        ge=0,
        le=100,
    )
    bandwidth_out_weight: float = setting(
        1.0,
        "Weight of outgoing bandwidth.",
        pip_192="loadBalancerBandwidthOutResourceWeight (loadBalancerBandwithOutResourceWeight)",
        ge=0,
        le=100,
    )
    nic_speed_gbit: float | None = setting(
        None,
        "Speed of each network interface in Gbit/s, where the machine reports none or a wrong one. None: as reported.",
        pip_192="loadBalancerOverrideBrokerNicSpeedGbps",
        gt=0,
        le=10_000,
    )
    report_threshold_percent: float = setting(
        10.0,
        "A change of usage (points), message rate, throughput or number of bundles beyond this is reported at once.",
        pip_192="loadBalancerReportUpdateThresholdPercentage",
        ge=0,
        le=10_000,
    )
    report_peak_percent: float = setting(
        90.0,
        "A broker reports at once when this part of the samples of ten minutes is at the highest usage, and when it no longer "
        "is: something may limit it below the limit that it reports; 0: never, as Pulsar.",
        ge=0,
        le=100,
    )
    report_compares: Literal["maximum", "weighted"] = setting(
        "maximum",
        "Which usage is compared: the largest of all resources, as the extensible manager does, or the weighted one, as the "
        "modular manager does.",
    )
    report_max_age_s: float = setting(
        900.0,
        "A report older than this is renewed even if nothing has changed.",
        pip_192="loadBalancerReportUpdateMaxIntervalMinutes",
        ge=0.1,
        le=DAY_S,
    )
    top_interval_s: float = setting(
        15.0,
        "Shortest time between two reports of the heaviest bundles: four for each decision of the shedder.",
        pip_192="(whenever the broker's statistics are newer, a minute by default)",
        ge=0.05,
        le=3_600,
    )
    top_bundles_max: int = setting(
        10,
        "Bundles in a report of the heaviest, in Pulsar's order; 0: as many as a report can hold.",
        pip_192="loadBalancerMaxNumberOfBundlesInBundleLoadReport",
        ge=0,
        le=BUNDLES_MAX,
    )
    top_by_resource_max: int = setting(
        5,
        "Further bundles in that report: the heaviest by messages a second, and as many by bytes sent, so that the leader knows "
        "what fills each resource; 0: none, as Pulsar.",
        pip_192="(the order of TopKBundles is by bytes received)",
        ge=0,
        le=BUNDLES_MAX,
    )
    top_recent_max: int = setting(
        10,
        "Further bundles in that report: the heaviest that came within ten minutes. What they did at their former broker shows "
        "whose figures are wrong; 0: none, as Pulsar.",
        ge=0,
        le=BUNDLES_MAX,
    )
    top_with_policies: bool = setting(
        False,
        "Whether bundles whose namespace has an isolation policy or an anti-affinity group are reported, too.",
        pip_192="loadBalancerSheddingBundlesWithPoliciesEnabled",
    )
    top_idle: bool = setting(
        False,
        "Whether bundles without any throughput are reported, too: the modular manager needs every bundle.",
        pip_192="(TopKBundles drops them)",
    )
    excluded_namespaces: frozenset[str] = setting(
        frozenset(), "Namespaces that are never shed.", pip_192="loadBalancerSheddingExcludedNamespaces"
    )
    settle_s: float = setting(5.0, "Time until rates show a bundle that came or went: one reading.", ge=0, le=600)
    stale_s: float = setting(
        30.0,
        "Figures older than this are not reported: a source that has failed must not look healthy.",
        ge=0.1,
        le=DAY_S,
    )
    ttl_s: float = setting(
        1_800.0,
        "Age, by the reader's own clock, beyond which a report counts as outdated: two renewals.",
        pip_192="loadBalancerBrokerLoadDataTTLInSeconds",
        ge=0.2,
        le=30 * DAY_S,
    )
    grace_s: float = setting(
        30.0,
        "Time that the leader leaves for the renewal of an outdated report before it writes a tombstone for it.",
        ge=0,
        le=DAY_S,
    )
    tombstones: Literal["leader", "spark"] = setting(
        "leader", "Who writes tombstones for outdated reports: the leader, or the Spark job of the load topics."
    )
    confirm_s: float = setting(
        10.0, "A report that was not read back within this time is written again.", ge=0.1, le=3_600
    )
    repeat_s: float = setting(
        10.0,
        "Shortest time between two reports that tombstones provoke.",
        pip_192="(a broker deletes its own report at most once in 10 s)",
        ge=0.05,
        le=3_600,
    )
    clock_differs_max_s: float = setting(
        DAY_S,
        "A writer whose wall clock differs from the log's by more than this counts as broken.",
        ge=1,
        le=365 * DAY_S,
    )
    brokers_max: int = setting(10_000, "Brokers that are remembered; beyond it, new ones are refused.", ge=1)
    bundles_max: int = setting(100_000, "Bundles of this broker that are measured; the others are left out.", ge=1)
    strangers_max: int = setting(
        100,
        "Of them, brokers that are not registered (yet): their reports do not count; beyond it, the oldest is forgotten.",
        ge=1,
        le=10_000,
    )
    held_bytes: int = setting(
        64 * 2**20,
        "Size of all held reports of a topic, as they are in the topic; in memory they take about twice as much. Beyond it "
        "those that do not count are dropped, then reports are refused. A thousand brokers with a hundred bundles have 45 MB.",
        ge=VALUE_MAX_BYTES,
        le=2**40,
    )
    acks: Literal[0, 1] = setting(
        1, "1: a report is in the log of one Kafka broker; 0: it was sent. A lost one is written again."
    )
    linger_ms: int = setting(
        20, "Longest time that a report waits for others, to share a request with them.", ge=0, le=1_000
    )
    queue_records: int = setting(
        256,
        "Reports and tombstones that may wait for Kafka; beyond it, the oldest is dropped and counted.",
        ge=8,
        le=100_000,
    )
    delivery_timeout_ms: int = setting(
        5_000,
        "A report that Kafka has not accepted within this time is given up: a newer one follows.",
        ge=1_001,
        le=300_000,
    )
    retention_s: float = setting(
        3_600.0, "Time that the load topics keep a report that is not renewed.", ge=60, le=30 * DAY_S
    )
    segment_s: float = setting(600.0, "Age at which a segment of the load topics is closed and can be cleaned.", ge=1)
    watch_max: int = setting(100_000, "Changes of ownership that may wait to be applied.", ge=100)
    close_timeout_s: float = setting(3.0, "Longest time for the last records when the broker shuts down.", ge=0, le=60)

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        if self.ttl_s <= self.report_max_age_s:
            raise ValueError(
                "ttl_s must be larger than report_max_age_s: a report would be outdated before it is renewed"
            )
        if self.retention_s < 2 * self.report_max_age_s:
            raise ValueError("retention_s must be at least twice report_max_age_s: Kafka would drop a report too early")
        if self.stale_s < 2 * self.measure_interval_s:
            raise ValueError(
                "stale_s must be at least twice measure_interval_s: one late reading would silence the broker"
            )
        return self

    def weights(self) -> ResourceWeights:
        return ResourceWeights(
            self.cpu_weight,
            self.memory_weight,
            self.direct_memory_weight,
            self.bandwidth_in_weight,
            self.bandwidth_out_weight,
        )

    def update_rules(self) -> UpdateRules:
        return UpdateRules(self.weights(), self.history)

    def sample_clock(self) -> SampleClock:
        return SampleClock(self.sample_interval_s, self.catch_up_max)

    def top_rules(self) -> TopRules:
        added = 2 * self.top_by_resource_max + self.top_recent_max
        return TopRules(
            count_max=max(1, min(self.top_bundles_max or BUNDLES_MAX, BUNDLES_MAX - added)),
            by_resource_max=self.top_by_resource_max,
            recent_max=self.top_recent_max,
            with_policies=self.top_with_policies,
            excluded=self.excluded_namespaces,
            idle=self.top_idle,
        )

    def view_rules(self) -> ViewRules:
        return ViewRules(self.ttl_s, self.brokers_max, self.clock_differs_max_s, self.strangers_max, self.held_bytes)

    def expiry_rules(self) -> ExpiryRules:
        return ExpiryRules(self.ttl_s, self.grace_s)
