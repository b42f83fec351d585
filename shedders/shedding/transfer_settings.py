"""Settings of TransferShedder and of its twin that behaves as upstream."""

from __future__ import annotations

from pydantic import Field

from shedders.model.readings import GraceSettings


class TransferSettings(GraceSettings):
    """Settings of `transfer`; defaults are upstream's where upstream has the setting.

    `max_age_s` (loadBalancerBrokerLoadDataTTLInSeconds) also holds with `upstream`, by upstream's clocks.
    """

    target_std: float = Field(
        default=0.25,
        ge=0,
        description="Spread of the brokers' loads that is aimed at; 1.0 is a full broker (loadBalancerBrokerLoadTargetStd)",
    )
    overloaded_percent: float = Field(
        default=85.0,
        ge=0,
        description="A broker above this, and above the average by target_std, is relieved in any case "
        "(loadBalancerBrokerOverloadedThresholdPercentage)",
    )
    hit_threshold: int = Field(
        default=3,
        ge=0,
        description="Bundles move if the condition was met more than this many times in a row "
        "(loadBalancerSheddingConditionHitCountThreshold)",
    )
    transfer: bool = Field(
        default=True,
        description="Name the destination; off: unload, and let the placement choose (loadBalancerTransferEnabled)",
    )
    max_pairs_per_cycle: int = Field(
        default=3,
        ge=0,
        description="Pairs of brokers evened out in one cycle (loadBalancerMaxNumberOfBrokerSheddingPerCycle)",
    )
    cool_down_s: float = Field(
        default=180.0,
        ge=0,
        description="A broker that gave or got a bundle stays out until it has made a report this long afterwards "
        "(loadBalanceSheddingDelayInSeconds)",
    )
    shed_with_policies: bool = Field(
        default=False,
        description="Bundles whose namespace has an isolation policy or an anti-affinity group may move as well "
        "(loadBalancerSheddingBundlesWithPoliciesEnabled)",
    )
    max_bundles_per_pair: int = Field(
        default=10,
        ge=1,
        description="Bundles that one pair exchanges at most, both ways together; upstream: as many as are reported",
    )
    enough_share: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="A pair that has moved this share of what would even it out needs no swap, and a swap has to bring "
        "this share of the rest; upstream has a fixed rule instead",
    )
    max_destinations_per_source: int = Field(
        default=8,
        ge=1,
        description="Destinations tried for a source whose bundles may not go to the least loaded one; upstream: 1",
    )
    max_tries_per_cycle: int = Field(
        default=64, ge=1, description="Pairs examined in one cycle, with or without a result; upstream: no limit"
    )
    max_refusals_per_pair: int = Field(
        default=100,
        ge=1,
        description="A pair is given up after filters refused this many of its bundles; upstream: no limit",
    )
    min_reporting_share: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Nothing moves if fewer than this share of the brokers have a usable report; upstream: all must have one",
    )
    upstream_debug: bool = Field(
        default=False,
        description="With upstream: count bundles that swaps return, as only its debug mode does (loadBalancerDebugModeEnabled)",
    )

    @property
    def underloaded_share(self) -> float:
        """Below this share of the average load, or of the busiest broker's traffic, a broker counts as all but idle."""
        return min(0.5, max(0.0, self.target_std / 2))
