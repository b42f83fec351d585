"""Settings of the balancing extension: `extensions.balancer.*`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from loaddata.measure.synthetic import SimulatedSettings
from loaddata.settings import LoadSettings
from shedders.decision.booked_moves import BudgetSettings
from shedders.decisions.builder import RECORD_MIN_BYTES, TEXT_MAX_CHARS, TEXT_MIN_CHARS, RecordBounds
from shedders.decisions.history import RecallBounds
from shedders.decisions.record import VALUE_MAX_BYTES
from shedders.model import extension_settings
from statechannel.settings.field import SettingsGroup, setting

HOUR_S = 3_600.0


class DrainSettings(SettingsGroup):
    """How a broker is emptied for maintenance."""

    rate_per_s: float = setting(
        10.0,
        "Bundles that start to move per second, unless the command says otherwise: clients look each of them up again.",
        gt=0,
        le=10_000,
    )
    moves_at_once: int = setting(16, "Maximum number of concurrent moves of one drain.", ge=1, le=10_000)
    ahead_max: int = setting(
        20,
        "Maximum number of bundles that a broker receives before its load report includes any of them.",
        ge=1,
        le=100_000,
    )
    report_wait_s: float = setting(30.0, "Longest wait for a receiver's report.", ge=0, le=HOUR_S)
    attempts_max: int = setting(5, "Attempts for each bundle; then it stays, and the answer says why.", ge=1, le=1_000)
    retry_s: float = setting(1.0, "Wait before the second attempt for a bundle, doubled each time.", ge=0, le=600)
    patience_s: float = setting(
        5.0,
        "Time without a possible move after which the remaining bundles are given up: a receiver may be about to return.",
        ge=0,
        le=HOUR_S,
    )
    quiet_s: float = setting(
        1.5,
        "Time that the broker must stay empty: brokers read a cordon within a second, and may place a bundle there until then.",
        ge=0,
        le=600,
    )
    cordon_wait_s: float = setting(
        10.0, "Longest time that the leader waits until it has read that the broker is cordoned.", ge=0, le=600
    )
    order: Literal["largest", "name"] = setting(
        "largest", "Order of the bundles: by traffic, largest first, or by name."
    )


NAME = "balancer"
DAY_S = 86_400.0


class BalancerSettings(SettingsGroup):
    """How a broker reports its load, places bundles, and balances the cluster while it leads."""

    source: Literal["none", "host", "simulated"] = setting(
        "host",
        "Source of the broker's load if no embedder supplies it: the host alone, or synthetic as in the demo (then bundles "
        "have load, too). none: this broker reports nothing, and no bundles are moved to or from it.",
    )
    simulated_seed: int = setting(
        1, "Seed of the synthetic load: the same on all brokers, so that a bundle's load moves with it.", ge=0
    )
    simulated: SimulatedSettings = Field(default_factory=SimulatedSettings, description="Amount of the synthetic load.")
    manager: Literal["extensible", "modular"] = setting(
        "extensible",
        "Who places bundles: every broker by itself, or the leader on request. The policy `manager` takes precedence.",
        pip_192="loadManagerClassName",
    )
    balancing: bool = setting(
        True, "Whether this broker balances while it leads.", pip_192="loadBalancerSheddingEnabled"
    )
    profile: str | None = setting(
        None,
        "Strategies with their settings, by one name (`statechannel strategy list`). None: `default`, and with the modular "
        "manager `modular_profile`. The policy setting `profile` takes precedence.",
    )
    modular_profile: str = setting("modular", "Profile with the modular manager if no other is configured.")
    shedding: str | None = setting(
        None, "Shedding strategy; None takes the profile's.", pip_192="loadBalancerLoadSheddingStrategy"
    )
    placement: str | None = setting(
        None, "Placement strategy; None takes the profile's.", pip_192="loadBalancerLoadPlacementStrategy"
    )
    split: str | None = setting(
        None, "Split algorithm; None takes the profile's.", pip_192="defaultNamespaceBundleSplitAlgorithm"
    )
    strategies: dict[str, dict[str, dict[str, Any]]] = Field(
        default_factory=dict,
        description="Settings that override the profile's, by kind and strategy, as in a snapshot.",
    )
    interval_s: float = setting(
        60.0, "Time between two decisions.", pip_192="loadBalancerSheddingIntervalMinutes", ge=0.2, le=DAY_S
    )
    trigger_gap_s: float = setting(
        5.0, "Shortest time between two decisions if an event triggers one.", ge=0.1, le=DAY_S
    )
    settle_s: float = setting(
        20.0,
        "Time that a new leader observes before its first decision: every broker reports its heaviest bundles within 15 s.",
        ge=0,
        le=DAY_S,
    )
    splitting: bool = setting(
        True,
        "Whether this broker splits its own bundles that are too large.",
        pip_192="loadBalancerAutoBundleSplitEnabled",
    )
    split_interval_s: float = setting(
        60.0, "Time between two checks for bundles to split.", pip_192="(each report)", ge=0.2, le=DAY_S
    )
    split_known_within_s: float = setting(
        0.5,
        "A requested split whose bundle is gone: longest time until the channel confirms that another broker, which has died "
        "since, has performed it.",
        ge=0.05,
        le=60,
    )
    splits_at_once: int = setting(
        4,
        "Maximum number of concurrent splits of the leader's strategy; the others wait for a later decision. 0: none.",
        ge=0,
        le=1_000,
    )
    split_again_s: float = setting(
        600.0,
        "Time until the leader again requests a split that the owner could not perform: the obstacle, such as a single topic, "
        "rarely disappears sooner.",
        ge=0,
        le=DAY_S,
    )
    move_timeout_s: float = setting(
        120.0,
        "A move that takes longer counts as failed; its load is no longer booked.",
        pip_192="namespaceBundleUnloadingTimeoutMs",
        ge=1,
        le=DAY_S,
    )
    move_memory_s: float = setting(
        1_800.0, "Time that strategies see that a bundle or broker took part in a move.", ge=1, le=DAY_S
    )
    moves_remembered_max: int = setting(
        100_000, "Bundles and brokers that are remembered as moved; beyond it, the oldest is forgotten.", ge=1_000
    )
    children_estimated_max: int = setting(
        10_000,
        "Bundles of splits whose load is estimated from their parent's until it is measured; beyond it, the oldest is forgotten.",
        ge=10,
    )
    moves_at_once: int = setting(8, "Maximum number of concurrent moves of one decision.", ge=1, le=10_000)
    budget: BudgetSettings = Field(default_factory=BudgetSettings, description="Limits on the moves in flight.")
    drain: DrainSettings = Field(default_factory=DrainSettings, description="How a broker is emptied for maintenance.")
    placement_refresh_s: float = setting(
        1.0, "Age at which the loads used for placements are refreshed.", ge=0.02, le=60
    )
    placement_booked_s: float = setting(
        60.0,
        "Longest time that a placed bundle counts as load of its broker without a later report of the broker.",
        ge=1,
        le=DAY_S,
    )
    placements_told_every_s: float = setting(
        1.0, "Time between two records of placements: they come in storms, and are recorded together.", ge=0.05, le=600
    )
    placements_noted_max: int = setting(
        10_000,
        "Placements that may wait to be recorded or read back; beyond it, the oldest are left out of records and metrics, but "
        "are placed nevertheless.",
        ge=100,
        le=1_000_000,
    )
    homeless_again_s: float = setting(
        60.0,
        "Time between two records of a bundle that no broker may take; its placement is tried many times a second.",
        ge=1,
        le=DAY_S,
    )
    leader_wait_s: float = setting(
        3.0,
        "Modular manager: time after which this broker places a bundle that the leader has not placed; lookups do not depend on "
        "one process.",
        ge=0.1,
        le=600,
    )
    leader_asks_max: int = setting(
        1_000,
        "Modular manager: maximum number of this broker's bundles that wait for the leader; it places the others by itself, so "
        "that a cold start does not fill the requests topic.",
        ge=1,
        le=100_000,
    )
    record_bytes: int = setting(
        128 * 1024,
        "Maximum size of a decision record; what does not fit is counted in it. Every broker's score fits, and it is far below "
        "Kafka's limit.",
        ge=RECORD_MIN_BYTES,
        le=VALUE_MAX_BYTES,
    )
    memory_bytes: int = setting(
        640 * 1024,
        "Bytes beyond `record_bytes` for the shedding strategy's memory (about 350 per broker, 100 per bundle moved in the last "
        "day and per bundle whose habits are known, at most 1,000 of each): a new leader continues from it, or starts without "
        "memory if it did not fit.",
        ge=0,
        le=VALUE_MAX_BYTES,
    )
    text_chars: int = setting(500, "Longest sentence in a decision record.", ge=TEXT_MIN_CHARS, le=TEXT_MAX_CHARS)
    decisions_retention_s: float = setting(7 * DAY_S, "Time that decisions are kept.", ge=60, le=3_650 * DAY_S)
    decisions_segment_s: float = setting(
        DAY_S,
        "Age at which a segment is closed; Kafka drops whole segments, so decisions may be kept longer by this.",
        ge=1,
        le=3_650 * DAY_S,
    )
    decision_queue_records: int = setting(
        1_000,
        "Decision records that may wait for Kafka; beyond it, the oldest is dropped and counted.",
        ge=1,
        le=1_000_000,
    )
    decision_delivery_timeout_ms: int = setting(
        30_000,
        "A decision record that Kafka has not accepted within this time is given up and counted: the restart of a Kafka broker.",
        ge=1_001,
        le=600_000,
    )
    decision_close_timeout_s: float = setting(
        2.0, "Longest time for the last records when the broker shuts down.", ge=0, le=60
    )
    recall_records: int = setting(
        50_000,
        "Records that are searched for the newest decisions (by a new leader for the memory, by `why-not` and `snapshot take`).",
        ge=1,
        le=10_000_000,
    )
    recall_bytes: int = setting(
        32 * 2**20,
        "Bytes that are held of them meanwhile, as in the topic; decoded they take a few times as much.",
        ge=VALUE_MAX_BYTES,
        le=4_000_000_000,
    )
    recall_s: float = setting(
        10.0,
        "Longest time of that search; then a new leader starts without memory, and a command reports how far it got.",
        ge=0.1,
        le=600,
    )
    debug_scores: bool = setting(False, "Log every score of every decision.", pip_192="loadBalancerDebugModeEnabled")
    restart_wait_s: float = setting(
        1.0,
        "Wait before a failed duty of this extension is restarted, doubled each time up to `restart_wait_max_s`.",
        ge=0.01,
        le=60,
    )
    restart_wait_max_s: float = setting(
        60.0, "Longest such wait; a duty that has run for this time has recovered.", ge=0.01, le=3_600
    )
    policies_wait_s: float = setting(
        10.0,
        "Longest time that the start waits until all policies are read; then the broker starts nevertheless, but places and "
        "moves nothing until they are.",
        ge=0,
        le=600,
    )
    contradictions_s: float = setting(
        60.0,
        "Time between two checks of the leader whether the cluster can satisfy the policies; changes are checked at once.",
        ge=0.1,
        le=DAY_S,
    )
    policies_max: int = setting(
        5_000,
        "Maximum number of policies. Beyond it, `policy set` refuses new ones; if the topic has more nevertheless, nothing is "
        "moved until some are deleted.",
        ge=10,
        le=100_000,
    )
    policies_bytes: int = setting(
        64 * 1024 * 1024,
        "The same for the memory that they take, including compiled patterns of isolation policies.",
        ge=200_000,
        le=4 * 1024**3,
    )
    policies_look_s: float = setting(
        30.0,
        "Time between two checks whether the topic of policies is still the one that was read, with suitable settings.",
        ge=1,
        le=3_600,
    )
    watch_max: int = setting(
        100_000, "Accepted records that may wait for the balancer; beyond it, those in between are skipped.", ge=100
    )
    load: LoadSettings = Field(default_factory=LoadSettings, description="Load data.")

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        if self.restart_wait_max_s < self.restart_wait_s:
            raise ValueError("restart_wait_max_s must be at least restart_wait_s")
        return self

    def record_bounds(self) -> RecordBounds:
        return RecordBounds(self.record_bytes, self.text_chars, self.memory_bytes)

    def recall_bounds(self) -> RecallBounds:
        return RecallBounds(self.recall_records, self.recall_bytes, self.recall_s)


def configured(values: Mapping[str, Any]) -> BalancerSettings:
    """Settings as `extensions.balancer.*` has them.

    Raises:
        SettingsError: A setting is unknown, malformed or out of bounds.
    """
    return extension_settings.configured(NAME, BalancerSettings, values)
