"""Moving averages of brokers' usage that strategies keep themselves.

Upstream's older manager advances them whenever it is asked: by the minute in the shedder (twice where the lower boundary is
looked at), with every placement in the placement. Ours advance by the time between two measurements on the broker, so that
"0.9" means the same whoever asks how often:

    average = average * history ** (seconds / interval) + usage * (1 - history ** (seconds / interval))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from shedders.model.readings import UsageSettings, remembered


class HistorySettings(UsageSettings):
    """How much history counts."""

    history_share: float = Field(
        default=0.9,
        ge=0,
        le=1,
        description="Part of the average that one interval leaves standing (loadBalancerHistoryResourcePercentage).",
    )
    history_interval_s: float = Field(
        default=60.0,
        ge=0.001,
        description="The time for which history_share stands, in seconds; upstream: one call, whenever that is.",
    )


@dataclass(slots=True)
class Smoothed:
    """Averages by broker, with the broker's own time of the measurement that went in last."""

    usage: dict[str, float] = field(default_factory=dict)
    measured_at_ms: dict[str, float] = field(default_factory=dict)

    @classmethod
    def recall(cls, memory: Mapping[str, Any], present: Mapping[str, object]) -> Smoothed:
        """Out of a strategy's memory; brokers that left are forgotten."""
        usage = {name: value for name, value in remembered(memory, "usage").items() if name in present}
        times = {name: value for name, value in remembered(memory, "measured_at_ms").items() if name in usage}
        return cls(usage, times)

    def as_memory(self) -> dict[str, Any]:
        """What `recall` reads."""
        return {"measured_at_ms": dict(sorted(self.measured_at_ms.items())), "usage": dict(sorted(self.usage.items()))}

    def forget(self, name: str) -> None:
        """Start anew with the next measurement."""
        self.usage.pop(name, None)
        self.measured_at_ms.pop(name, None)

    def count(self, name: str, usage: float, history: float) -> float:
        """One more sample, whenever it comes (upstream)."""
        before = self.usage.get(name)
        after = usage if before is None else before * history + (1 - history) * usage
        self.usage[name] = after
        return after

    def advance(self, name: str, usage: float, measured_at_ms: int, settings: HistorySettings) -> float:
        """The usage since the last measurement, by the time that went by; the same measurement twice changes nothing."""
        before, last_ms = self.usage.get(name), self.measured_at_ms.get(name)
        self.measured_at_ms[name] = measured_at_ms
        if before is None or last_ms is None:
            after = usage if before is None else before
        else:
            # A clock that went back says nothing about the time that passed: one interval is taken for it.
            interval_ms = settings.history_interval_s * 1000
            passed_ms = measured_at_ms - last_ms if measured_at_ms >= last_ms else interval_ms
            kept = settings.history_share ** (passed_ms / interval_ms) if passed_ms else 1.0
            after = before * kept + usage * (1 - kept)
        self.usage[name] = after
        return after
