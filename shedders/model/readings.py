"""Validation of brokers' reports, with the settings that strategies share, and moving averages that strategies keep themselves.

Upstream's older manager advances its averages with every call: by the minute in the shedder (twice if the lower boundary is
checked), with every placement in the placement. Ours advance by the time between two measurements on the broker, so that
"0.9" means the same however often they are read:

    average = average * history ** (seconds / interval) + usage * (1 - history ** (seconds / interval))
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from loaddata.model.broker_load import BrokerLoad, ResourceWeights
from loaddata.model.bundle_load import TrafficRates
from shedders.model.amounts import seconds
from shedders.model.cluster import Broker, Cluster
from shedders.model.plan import Left, Reason
from shedders.model.strategy import StrategySettings

MIB = 1024.0 * 1024.0
MOST = 1e30  # largest valid amount; sums and products of amounts stay finite
LEAST_LIMIT = 1e-30  # a smaller limit of a resource counts as no limit


class ReadingSettings(StrategySettings):
    """Settings for the validation of reports."""

    upstream: bool = Field(
        default=False, description="Behave as Pulsar 4.2.4 does, bit for bit, where this strategy is corrected."
    )
    max_age_s: float = Field(
        default=1800.0,
        gt=0,
        description="A broker whose report is older is left alone, in seconds; upstream's older manager has no such limit "
        "(the newer: loadBalancerBrokerLoadDataTTLInSeconds).",
    )


class GraceSettings(ReadingSettings):
    """Settings for the validation of reports, and the grace period of bundles."""

    grace_s: float = Field(
        default=1800.0,
        ge=0,
        description="A bundle is not moved again within this time, in seconds (loadBalancerSheddingGracePeriodMinutes).",
    )


class SheddingSettings(GraceSettings):
    """Settings shared by the shedders of the older load manager."""

    transfer: bool = Field(
        default=True,
        description="Name the planned destination; off: unload, and let the placement choose. "
        "With upstream only `avg` names destinations, always.",
    )
    max_destinations_per_bundle: int = Field(
        default=16, ge=1, description="Number of the least loaded brokers that are tried as destination of a bundle."
    )


class UsageSettings(ReadingSettings):
    """Weights of the resources in a broker's usage."""

    cpu_weight: float = Field(default=1.0, ge=0, description="Weight of CPU (loadBalancerCPUResourceWeight).")
    direct_memory_weight: float = Field(
        default=0.0, ge=0, description="Weight of direct memory (loadBalancerDirectMemoryResourceWeight)."
    )
    bandwidth_in_weight: float = Field(
        default=1.0, ge=0, description="Weight of bytes received (loadBalancerBandwidthInResourceWeight)."
    )
    bandwidth_out_weight: float = Field(
        default=1.0, ge=0, description="Weight of bytes sent (loadBalancerBandwidthOutResourceWeight)."
    )

    @property
    def weights(self) -> ResourceWeights:
        """The four weights; heap memory does not count, as upstream since 3.0."""
        return ResourceWeights(
            self.cpu_weight, 0.0, self.direct_memory_weight, self.bandwidth_in_weight, self.bandwidth_out_weight
        )


@dataclass(frozen=True, slots=True)
class Readings:
    """Usable reports by broker, sorted, and the brokers left out with the reason.

    Attributes:
        usages: Their weighted maximum, where usage decides.
    """

    loads: Mapping[str, BrokerLoad]
    usages: Mapping[str, float]
    left: Sequence[Left]


def is_amount(value: float) -> bool:
    """Whether a value is a valid amount: finite and not negative."""
    return 0.0 <= value <= MOST


def is_sound(traffic: TrafficRates) -> bool:
    """Whether all figures of the traffic are valid amounts."""
    return (
        0.0 <= traffic.msg_throughput_in <= MOST
        and 0.0 <= traffic.msg_throughput_out <= MOST
        and 0.0 <= traffic.msg_rate_in <= MOST
        and 0.0 <= traffic.msg_rate_out <= MOST
    )


def read(
    cluster: Cluster, settings: ReadingSettings, weights: ResourceWeights | None, *, lapsed: bool = False
) -> Readings:
    """Read the usable reports.

    Args:
        lapsed: Whether stale reports count: for placements, which add the bundles that have come since.
        weights: If usage decides: a broker must have a limit for one of the resources that count.
    """
    loads: dict[str, BrokerLoad] = {}
    usages: dict[str, float] = {}
    left: list[Left] = []
    for name in cluster.broker_names:
        broker = cluster.brokers[name]
        fault = why_unreadable(broker, settings, weights, lapsed=lapsed)
        if fault is None and broker.load is not None:
            if weights is not None:
                usages[name] = usage = broker.load.weighted_max(weights)
                if not is_amount(usage):
                    left.append(Left(name, "bad-load", f"its usage is {usage}"))
                    continue
            loads[name] = broker.load
        elif fault is not None:
            left.append(Left(name, *fault))
    return Readings(loads, {name: usages[name] for name in loads if name in usages}, left)


def why_unreadable(
    broker: Broker, settings: ReadingSettings, weights: ResourceWeights | None, *, lapsed: bool = False
) -> tuple[str, str] | None:
    """Why a broker's report is not usable: a stable word and a sentence; None if it is.

    Args:
        lapsed: Whether a stale report is usable.
    """
    load = broker.load
    if load is None:
        return "no-load-data", "it has reported no load"
    wrong = _unsound(load)
    if wrong is not None:
        return "bad-load", f"its report has invalid figures: {wrong}"
    if settings.upstream:
        return None
    if not broker.load_age_s <= settings.max_age_s:
        return "outdated", f"its report is {seconds(broker.load_age_s)} old, more than {seconds(settings.max_age_s)}"
    if broker.load_lapsed and not lapsed:
        return "lapsed", "its report is older than the last change of ownership of its bundles"
    if weights is not None and not _has_limit(load, weights):
        return "no-limits", "its report has no limit for any resource that counts"
    return None


def no_decision(reasons: Collection[str]) -> Reason:
    """Upstream's reason when too few brokers have usable reports."""
    if "outdated" in reasons or "lapsed" in reasons:
        return Reason.OUTDATED_DATA
    return Reason.NO_LOAD_DATA if reasons else Reason.NO_BROKERS


def may_receive(cluster: Cluster, name: str) -> bool:
    """Whether a broker takes bundles at all; the filters decide which ones."""
    return cluster.brokers[name].accepting and name not in cluster.policies.cordons


def remembered(memory: Mapping[str, Any], key: str) -> dict[str, float]:
    """A table of amounts by name from a strategy's memory; invalid entries are dropped."""
    table = memory.get(key)
    if not isinstance(table, Mapping):
        return {}
    return {
        str(name): float(value)
        for name, value in table.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and is_amount(value)
    }


# The number types of JSON, without `bool`. Exact types are compared as each decision reads tens of thousands of figures.
_NUMBERS = frozenset((int, float))


def numbers(row: Any, count: int) -> list[float] | None:
    """A row of `count` amounts; None if it is not one."""
    if not isinstance(row, list | tuple) or len(row) != count:
        return None
    values = [float(value) for value in row if type(value) in _NUMBERS and 0.0 <= value <= MOST]
    return values if len(values) == count else None


def share_of(part: float, whole: float) -> float:
    """The part, at most 1, that something has of a whole; 0 if either is nothing."""
    return min(1.0, part / whole) if part > 0 and whole > 0 else 0.0


def _unsound(load: BrokerLoad) -> str | None:
    amounts = (
        ("cpu", load.cpu.usage, load.cpu.limit),
        ("memory", load.memory.usage, load.memory.limit),
        ("direct memory", load.direct_memory.usage, load.direct_memory.limit),
        ("bandwidth in", load.bandwidth_in.usage, load.bandwidth_in.limit),
        ("bandwidth out", load.bandwidth_out.usage, load.bandwidth_out.limit),
        ("message rate", load.msg_rate_in, load.msg_rate_out),
        ("throughput", load.msg_throughput_in, load.msg_throughput_out),
        ("moving averages", load.weighted_max_ema, load.msg_throughput_ema),
        ("peak", load.peak_usage, load.peak_share),
    )
    for what, value, other in amounts:
        if not (0.0 <= value <= MOST and 0.0 <= other <= MOST):
            return f"{what} {value}, {other}"
    for what, resource in (
        ("cpu", load.cpu),
        ("memory", load.memory),
        ("direct memory", load.direct_memory),
        ("bandwidth in", load.bandwidth_in),
        ("bandwidth out", load.bandwidth_out),
    ):
        if 0.0 < resource.limit < LEAST_LIMIT:
            return f"{what} has a limit of {resource.limit}"
    return None


def _has_limit(load: BrokerLoad, weights: ResourceWeights) -> bool:
    return (
        (weights.cpu > 0 and load.cpu.limit > 0)
        or (weights.direct_memory > 0 and load.direct_memory.limit > 0)
        or (weights.bandwidth_in > 0 and load.bandwidth_in.limit > 0)
        or (weights.bandwidth_out > 0 and load.bandwidth_out.limit > 0)
    )


class HistorySettings(UsageSettings):
    """Settings of the moving averages."""

    history_share: float = Field(
        default=0.9,
        ge=0,
        le=1,
        description="Part of the average that remains after one interval (loadBalancerHistoryResourcePercentage).",
    )
    history_interval_s: float = Field(
        default=60.0,
        ge=0.001,
        description="The interval of history_share, in seconds; upstream: one call, whenever that is.",
    )


@dataclass(slots=True)
class Smoothed:
    """Averages by broker, with the broker's own time of the newest measurement."""

    usage: dict[str, float] = field(default_factory=dict)
    measured_at_ms: dict[str, float] = field(default_factory=dict)

    @classmethod
    def recall(cls, memory: Mapping[str, Any], present: Mapping[str, object]) -> Smoothed:
        """Averages from a strategy's memory; brokers that left are dropped."""
        usage = {name: value for name, value in remembered(memory, "usage").items() if name in present}
        times = {name: value for name, value in remembered(memory, "measured_at_ms").items() if name in usage}
        return cls(usage, times)

    def as_memory(self) -> dict[str, Any]:
        return {"measured_at_ms": dict(sorted(self.measured_at_ms.items())), "usage": dict(sorted(self.usage.items()))}

    def forget(self, name: str) -> None:
        """Restart with the next measurement."""
        self.usage.pop(name, None)
        self.measured_at_ms.pop(name, None)

    def count(self, name: str, usage: float, history: float) -> float:
        """Add a sample regardless of time (upstream)."""
        before = self.usage.get(name)
        after = usage if before is None else before * history + (1 - history) * usage
        self.usage[name] = after
        return after

    def advance(self, name: str, usage: float, measured_at_ms: int, settings: HistorySettings) -> float:
        """Add a measurement, weighted by the time since the last one; the same measurement twice changes nothing."""
        before, last_ms = self.usage.get(name), self.measured_at_ms.get(name)
        self.measured_at_ms[name] = measured_at_ms
        if before is None or last_ms is None:
            after = usage if before is None else before
        else:
            # If the clock went back, the time that passed is unknown: assume one interval.
            interval_ms = settings.history_interval_s * 1000
            passed_ms = measured_at_ms - last_ms if measured_at_ms >= last_ms else interval_ms
            kept = settings.history_share ** (passed_ms / interval_ms) if passed_ms else 1.0
            after = before * kept + usage * (1 - kept)
        self.usage[name] = after
        return after
