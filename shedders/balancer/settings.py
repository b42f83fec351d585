"""Settings of the balancing extension: `extensions.balancer.*`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from loaddata.measure.synthetic import SimulatedSettings
from loaddata.settings import LoadSettings
from shedders.balancer.drain_plan import DrainRules
from shedders.balancer.placement import PlacementBounds
from shedders.decision.budget import BudgetSettings
from shedders.decisions.builder import RECORD_MIN_BYTES, TEXT_MAX_CHARS, TEXT_MIN_CHARS, RecordBounds
from shedders.decisions.recall import RecallBounds
from shedders.decisions.record import VALUE_MAX_BYTES
from shedders.model import extension_settings
from statechannel.settings.field import SettingsGroup, setting

HOUR_S = 3_600.0


class DrainSettings(SettingsGroup):
    """How a broker is emptied for maintenance."""

    rate_per_s: float = setting(
        10.0,
        "Bundles a second that set out where the command does not say: clients look each of them up anew.",
        gt=0,
        le=10_000,
    )
    moves_at_once: int = setting(16, "Moves of one drain that are under way at the same time.", ge=1, le=10_000)
    ahead_max: int = setting(
        20, "Bundles that a broker is given before its load report counts any of them.", ge=1, le=100_000
    )
    report_wait_s: float = setting(
        30.0, "A receiver's report that does not come within this is waited for no longer.", ge=0, le=HOUR_S
    )
    attempts_max: int = setting(
        5, "So often a bundle is tried; then it stays, and the answer says why.", ge=1, le=1_000
    )
    retry_s: float = setting(1.0, "Wait before the second try of a bundle; it is doubled each time.", ge=0, le=600)
    patience_s: float = setting(
        5.0,
        "So long nothing can go before what is left is given up: a receiver may be about to come back.",
        ge=0,
        le=HOUR_S,
    )
    quiet_s: float = setting(
        1.5,
        "So long the broker has to be empty: brokers read of a cordon within a second, and may place a bundle there until then.",
        ge=0,
        le=600,
    )
    cordon_wait_s: float = setting(
        10.0, "The leader waits for so long until it has read that the broker is cordoned.", ge=0, le=600
    )
    order: Literal["largest", "name"] = setting(
        "largest", "Which bundles go first: those with most traffic, or by name."
    )

    def rules(self) -> DrainRules:
        """As the plan takes them."""
        return DrainRules(
            at_once=self.moves_at_once,
            attempts_max=self.attempts_max,
            retry_s=self.retry_s,
            patience_s=self.patience_s,
            quiet_s=self.quiet_s,
            largest_first=self.order == "largest",
        )


NAME = "balancer"
DAY_S = 86_400.0


class BalancerSettings(SettingsGroup):
    """How a broker reports its load, places bundles, and balances the cluster while it leads."""

    source: Literal["none", "host", "simulated"] = setting(
        "host",
        "Where the broker's load comes from where no embedder supplies it: the host alone, or made up as in the demo (then "
        "bundles have load, too). none: this broker reports nothing, and nobody moves bundles to or from it.",
    )
    simulated_seed: int = setting(
        1, "Seed of the load that is made up: the same on all brokers, so that a bundle's load moves with it.", ge=0
    )
    simulated: SimulatedSettings = Field(
        default_factory=SimulatedSettings, description="Load that is made up: how much of it."
    )
    manager: Literal["extensible", "modular"] = setting(
        "extensible",
        "Who places bundles: every broker by itself, or the leader on request. The policy `manager` stands over it.",
        pip_192="loadManagerClassName",
    )
    balancing: bool = setting(
        True, "Whether this broker balances while it leads.", pip_192="loadBalancerSheddingEnabled"
    )
    profile: str | None = setting(
        None,
        "Strategies with their settings, by one name (`statechannel strategy list`). None: `default`, and with the modular "
        "manager `modular_profile`. The policy setting `profile` stands over it.",
    )
    modular_profile: str = setting("modular", "The profile with the modular manager where no other is named.")
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
        default_factory=dict, description="Settings over the profile's: by kind and strategy, as a snapshot has them."
    )
    interval_s: float = setting(
        60.0, "Time between two decisions.", pip_192="loadBalancerSheddingIntervalMinutes", ge=0.2, le=DAY_S
    )
    trigger_gap_s: float = setting(
        5.0, "Shortest time between two decisions where something new asks for one at once.", ge=0.1, le=DAY_S
    )
    settle_s: float = setting(
        20.0,
        "A new leader watches for so long before it decides: every broker reports its heaviest bundles within 15 s.",
        ge=0,
        le=DAY_S,
    )
    splitting: bool = setting(
        True,
        "Whether this broker splits bundles of its own that are too big.",
        pip_192="loadBalancerAutoBundleSplitEnabled",
    )
    split_interval_s: float = setting(
        60.0, "Time between two looks for bundles to split.", pip_192="(each report)", ge=0.2, le=DAY_S
    )
    split_known_within_s: float = setting(
        0.5,
        "A split that was asked for and whose bundle is gone: so long the channel may take to say that it was done by another "
        "broker that has died since.",
        ge=0.05,
        le=60,
    )
    splits_at_once: int = setting(
        4,
        "Splits that the leader's strategy wants: so many are asked for at once, and under way at the same time; the others wait "
        "for a later decision. 0: none.",
        ge=0,
        le=1_000,
    )
    split_again_s: float = setting(
        600.0,
        "A bundle that its owner could not split when the leader asked for it is not asked for again for so long: what keeps it "
        "whole, such as a single topic, seldom changes sooner.",
        ge=0,
        le=DAY_S,
    )
    move_timeout_s: float = setting(
        120.0,
        "A move that is not done by then counts as failed; its load is no longer booked.",
        pip_192="namespaceBundleUnloadingTimeoutMs",
        ge=1,
        le=DAY_S,
    )
    move_memory_s: float = setting(
        1_800.0, "For so long a strategy is told that a bundle or broker took part in a move.", ge=1, le=DAY_S
    )
    moves_remembered_max: int = setting(
        100_000, "So many bundles and brokers are remembered as moved; beyond it the oldest is forgotten.", ge=1_000
    )
    children_estimated_max: int = setting(
        10_000,
        "Bundles of splits whose load is reckoned from their parent's until it is measured; beyond it the oldest is forgotten.",
        ge=10,
    )
    moves_at_once: int = setting(8, "Moves of one decision that are under way at the same time.", ge=1, le=10_000)
    budget: BudgetSettings = Field(default_factory=BudgetSettings, description="What may be on its way at once.")
    drain: DrainSettings = Field(default_factory=DrainSettings, description="How a broker is emptied for maintenance.")
    placement_refresh_s: float = setting(
        1.0, "Age at which the loads that placements go by are taken anew.", ge=0.02, le=60
    )
    placement_booked_s: float = setting(
        60.0,
        "A bundle that was placed counts as load of its broker until a report of it was made afterwards, at most for so long.",
        ge=1,
        le=DAY_S,
    )
    placements_told_every_s: float = setting(
        1.0, "Placements come in storms: they are written down together, once in so long.", ge=0.05, le=600
    )
    placements_noted_max: int = setting(
        10_000,
        "Placements that may wait to be written down or to be read back; beyond it the older are left out of records and "
        "metrics, never out of the placement.",
        ge=100,
        le=1_000_000,
    )
    homeless_again_s: float = setting(
        60.0,
        "A bundle that nobody may take is looked at many times a second, and spoken of once in so long.",
        ge=1,
        le=DAY_S,
    )
    leader_wait_s: float = setting(
        3.0,
        "Modular manager: if the leader has not placed a bundle by then, this broker does; lookups do not hang on one process.",
        ge=0.1,
        le=600,
    )
    leader_asks_max: int = setting(
        1_000,
        "Modular manager: so many bundles of this broker may wait for the leader; it places the others by itself, so that a "
        "cold start does not fill the requests topic.",
        ge=1,
        le=100_000,
    )
    record_bytes: int = setting(
        128 * 1024,
        "Longest decision record; what finds no room is counted in it. Room for every broker's score, far below Kafka's limit.",
        ge=RECORD_MIN_BYTES,
        le=VALUE_MAX_BYTES,
    )
    memory_bytes: int = setting(
        512 * 1024,
        "So much may come on top of `record_bytes` for what the shedding strategy remembers (some 300 bytes a broker, "
        "100 a bundle moved in the last half hour): a new leader goes on from it, or begins anew where it found no room.",
        ge=0,
        le=VALUE_MAX_BYTES,
    )
    text_chars: int = setting(500, "Longest sentence in a decision record.", ge=TEXT_MIN_CHARS, le=TEXT_MAX_CHARS)
    decisions_retention_s: float = setting(
        7 * DAY_S, "How long decisions are kept: a week of questions.", ge=60, le=3_650 * DAY_S
    )
    decisions_segment_s: float = setting(
        DAY_S, "Kafka drops whole segments: a decision may live longer by this.", ge=1, le=3_650 * DAY_S
    )
    decision_queue_records: int = setting(
        1_000,
        "Decision records that may wait for Kafka; beyond it the oldest is dropped, and counted.",
        ge=1,
        le=1_000_000,
    )
    decision_delivery_timeout_ms: int = setting(
        30_000,
        "A decision record that Kafka has not taken by then is given up, and counted: as long as the restart of a Kafka broker.",
        ge=1_001,
        le=600_000,
    )
    decision_writers_max: int = setting(
        100,
        "A writer of decisions that has ended is replaced so often; then none are written any more.",
        ge=0,
        le=1_000_000,
    )
    decision_close_timeout_s: float = setting(
        2.0, "Longest time for the last records when the broker leaves.", ge=0, le=60
    )
    recall_records: int = setting(
        50_000,
        "Who looks for the newest decisions (a new leader for what was remembered, `why-not`, `snapshot take`) looks back no "
        "further than so many records.",
        ge=1,
        le=10_000_000,
    )
    recall_bytes: int = setting(
        32 * 2**20,
        "So much is held of them meanwhile, as it lies in the topic; decoded it takes a few times as much.",
        ge=VALUE_MAX_BYTES,
        le=4_000_000_000,
    )
    recall_s: float = setting(
        10.0,
        "So long it may take; then a new leader begins without memory, and a command says how far it came.",
        ge=0.1,
        le=600,
    )
    debug_scores: bool = setting(False, "Log every score of every decision.", pip_192="loadBalancerDebugModeEnabled")
    restart_wait_s: float = setting(
        1.0,
        "A duty of this extension that fails begins again after so long, doubled each time up to `restart_wait_max_s`.",
        ge=0.01,
        le=60,
    )
    restart_wait_max_s: float = setting(
        60.0, "Longest such wait; a duty that has run for so long has recovered.", ge=0.01, le=3_600
    )
    policies_wait_s: float = setting(
        10.0,
        "The start waits so long for the policies to be read to their end; then the broker starts all the same, places nothing "
        "and moves nothing until they are.",
        ge=0,
        le=600,
    )
    contradictions_s: float = setting(
        60.0,
        "The leader looks this often, and when policies change, whether they can be kept on the cluster as it is.",
        ge=0.1,
        le=DAY_S,
    )
    policies_max: int = setting(
        5_000,
        "Policies that are taken in. Beyond it `policy set` refuses new ones; if they are in the topic all the same, nothing is "
        "moved until some are deleted.",
        ge=10,
        le=100_000,
    )
    policies_bytes: int = setting(
        64 * 1024 * 1024,
        "The same for the memory that they take, the patterns of isolation policies made ready included.",
        ge=200_000,
        le=4 * 1024**3,
    )
    policies_look_s: float = setting(
        30.0,
        "How often it is looked whether the topic of policies is still the one that was read, with settings that will do.",
        ge=1,
        le=3_600,
    )
    watch_max: int = setting(
        100_000,
        "Accepted records that may wait for the balancer; beyond it those in between are not looked at.",
        ge=100,
    )
    load: LoadSettings = Field(default_factory=LoadSettings, description="Load data.")

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        if self.restart_wait_max_s < self.restart_wait_s:
            raise ValueError("restart_wait_max_s must be at least restart_wait_s")
        return self

    def placement_bounds(self) -> PlacementBounds:
        """What is kept of placements."""
        return PlacementBounds(self.placements_noted_max, self.placement_booked_s, self.homeless_again_s)

    def record_bounds(self) -> RecordBounds:
        """How large a decision record may be."""
        return RecordBounds(self.record_bytes, self.text_chars, self.memory_bytes)

    def recall_bounds(self) -> RecallBounds:
        """How far is looked back for decisions."""
        return RecallBounds(self.recall_records, self.recall_bytes, self.recall_s)


def configured(values: Mapping[str, Any]) -> BalancerSettings:
    """Settings as `extensions.balancer.*` has them.

    Raises:
        SettingsError: A setting is unknown, malformed or out of bounds.
    """
    return extension_settings.configured(NAME, BalancerSettings, values)
