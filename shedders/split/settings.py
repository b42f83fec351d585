"""Settings of automatic splits."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shedders.model.strategy import StrategySettings
from statechannel.protocol.bundle import MAX_CHILDREN


class SplitSettings(StrategySettings):
    """When bundles are split; defaults are upstream's if upstream has the setting."""

    upstream: bool = Field(default=False, description="Choose as Pulsar does, one cut each, in order of the names.")
    max_topics: int = Field(
        default=1000, ge=0, description="Topics of a bundle (loadBalancerNamespaceBundleMaxTopics)."
    )
    max_sessions: int = Field(
        default=1000,
        description="Producers and consumers of a bundle; 0 or less: no limit (loadBalancerNamespaceBundleMaxSessions).",
    )
    max_msg_rate: int = Field(
        default=30_000, ge=1, description="Messages a second, both ways (loadBalancerNamespaceBundleMaxMsgRate)."
    )
    max_bandwidth_mib: int = Field(
        default=100, ge=1, description="MiB a second, both ways (loadBalancerNamespaceBundleMaxBandwidthMbytes)."
    )
    max_bundles: int = Field(
        default=128,
        ge=1,
        le=MAX_CHILDREN,
        description="Bundles of a namespace, for automatic splits (loadBalancerNamespaceMaximumBundles).",
    )
    max_per_cycle: int = Field(
        default=10,
        ge=0,
        description="Bundles split in one cycle; 0: no limit (loadBalancerMaxNumberOfBundlesToSplitPerCycle).",
    )
    hit_threshold: int = Field(
        default=3,
        ge=0,
        description="A bundle is split if the condition held more than this many times in a row "
        "(loadBalancerNamespaceBundleSplitConditionHitCountThreshold).",
    )
    measure: Literal["now", "short", "long"] = Field(
        default="now",
        description="Traffic at this moment, or which average (upstream's newer manager: now; its older one: long).",
    )
    unload_children: bool = Field(
        default=False,
        description="Unload the children, so that they are placed again (loadBalancerAutoUnloadSplitBundlesEnabled; upstream's "
        "older manager: true). Without it the shedder may move them.",
    )
    worth_percent: float = Field(
        default=10.0,
        ge=0,
        description="A bundle with a hot topic is split only if its other topics have this percentage of the limit; upstream: "
        "no such rule.",
    )
    fruitless_percent: float = Field(
        default=10.0, ge=0, le=100, description="A split that takes less than this off a bundle was fruitless."
    )
    fruitless_max: int = Field(
        default=3,
        ge=1,
        description="After this many fruitless splits in a row a bundle is left whole; upstream: no such rule.",
    )
