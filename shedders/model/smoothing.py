"""Moving averages of brokers' usage that strategies keep themselves.

Upstream's older manager advances them with every call: by the minute in the shedder (twice if the lower boundary is
checked), with every placement in the placement. Ours advance by the time between two measurements on the broker, so that
"0.9" means the same however often they are read:

    average = average * history ** (seconds / interval) + usage * (1 - history ** (seconds / interval))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from shedders.model.readings import UsageSettings, remembered


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
        """The memory that `recall` reads."""
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
