"""Load of one broker, as it reports it (PIP-192 `BrokerLoadData`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from loaddata.model.usage import ResourceUsage

UNKNOWN_IS_FULL = 1.0


class ResourceWeights(NamedTuple):
    """Weights of the resources in the weighted maximum; upstream's defaults leave memory out."""

    cpu: float = 1.0
    memory: float = 0.0
    direct_memory: float = 0.0
    bandwidth_in: float = 1.0
    bandwidth_out: float = 1.0


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """One report of a broker.

    Attributes:
        msg_rate_in: Messages a second, received; `_out` sent.
        msg_throughput_in: Bytes a second, received; `_out` sent.
        bundles: Bundles that it owns; `topics` in them.
        max_resource_usage: Largest of CPU, direct memory and bandwidths, 0 to 1 (and more); unweighted, at this moment.
        weighted_max_ema: Moving average of the weighted maximum; 1 ("unknown is full") before the first update.
        msg_throughput_ema: Moving average of the bytes a second in both directions.
        updated_at_ms: Wall time of the measurement on the broker; 0 before the first.
        reported_at_ms: Wall time of the report on the broker.
    """

    cpu: ResourceUsage = field(default_factory=ResourceUsage)
    memory: ResourceUsage = field(default_factory=ResourceUsage)
    direct_memory: ResourceUsage = field(default_factory=ResourceUsage)
    bandwidth_in: ResourceUsage = field(default_factory=ResourceUsage)
    bandwidth_out: ResourceUsage = field(default_factory=ResourceUsage)
    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    msg_throughput_in: float = 0.0
    msg_throughput_out: float = 0.0
    bundles: int = 0
    topics: int = 0
    max_resource_usage: float = UNKNOWN_IS_FULL
    weighted_max_ema: float = UNKNOWN_IS_FULL
    msg_throughput_ema: float = 0.0
    updated_at_ms: int = 0
    reported_at_ms: int = 0

    @property
    def msg_rate(self) -> float:
        """Messages a second in both directions."""
        return self.msg_rate_in + self.msg_rate_out

    @property
    def msg_throughput(self) -> float:
        """Bytes a second in both directions."""
        return self.msg_throughput_in + self.msg_throughput_out

    def weighted_max(self, weights: ResourceWeights) -> float:
        """Largest weighted usage, 0 to 1 (and more) (upstream `getMaxResourceUsageWithWeight`)."""
        return (
            max(
                self.cpu.percent * weights.cpu,
                self.memory.percent * weights.memory,
                self.direct_memory.percent * weights.direct_memory,
                self.bandwidth_in.percent * weights.bandwidth_in,
                self.bandwidth_out.percent * weights.bandwidth_out,
            )
            / 100
        )
