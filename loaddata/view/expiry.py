"""Expiry of reports that are not renewed, by the leader: suspect, then grace period, then tombstone. Pure.

The Spark job does the same if it is on; the leader's own tombstones are off then. A new leader starts without suspects, so that
it never writes a tombstone before it has seen a whole grace period.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from loaddata.model.figures import wall_ms
from loaddata.report.tombstone import EXPIRED, Tombstone


class HeldReport(Protocol):
    """A held report; `table_view.ReportView` implements it."""

    @property
    def offset(self) -> int: ...

    @property
    def age_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class ExpiryRules:
    """Times of the expiry.

    Attributes:
        ttl_s: Time to live of a report; one that is older is suspect.
        grace_s: Grace period in which a suspect may be renewed.
        repeat_s: A tombstone without effect is written again after this time: it may have been lost.
        batch_max: Tombstones in one step; the others wait for the next.
    """

    ttl_s: float = 1_800.0
    grace_s: float = 30.0
    repeat_s: float = 60.0
    batch_max: int = 100


@dataclass(slots=True)
class _Suspect:
    offset: int
    since_s: float
    written_s: float | None = None


@dataclass(slots=True)
class Expiry:
    """Suspects of one load topic. They are dropped when they report, or are gone."""

    rules: ExpiryRules = field(default_factory=ExpiryRules)
    _suspects: dict[str, _Suspect] = field(default_factory=dict)

    @property
    def suspects(self) -> list[str]:
        """Brokers whose reports are older than their time to live, sorted."""
        return sorted(self._suspects)

    def reset(self) -> None:
        """Drop all suspects, when leadership changes."""
        self._suspects.clear()

    def step(self, held: Mapping[str, HeldReport], now_s: float, now_ms: int) -> dict[str, Tombstone]:
        """The tombstones to write now, by broker.

        Args:
            held: Newest report of each broker, as this leader holds it.
            now_s: Monotonic.
            now_ms: Wall time, for the header that people read.
        """
        due: dict[str, Tombstone] = {}
        suspects: dict[str, _Suspect] = {}
        for name in sorted(held):
            report = held[name]
            if not report.age_s > self.rules.ttl_s:
                continue
            suspect = self._suspects.get(name)
            if suspect is None or suspect.offset != report.offset:
                suspect = _Suspect(report.offset, now_s)
            suspects[name] = suspect
            if len(due) < self.rules.batch_max and self._is_due(suspect, now_s):
                suspect.written_s = now_s
                overdue_ms = min(report.age_s - self.rules.ttl_s, 1e9) * 1_000
                due[name] = Tombstone(EXPIRED, report.offset, wall_ms(now_ms - round(overdue_ms)))
        self._suspects = suspects
        return due

    def _is_due(self, suspect: _Suspect, now_s: float) -> bool:
        if now_s - suspect.since_s < self.rules.grace_s:
            return False
        return suspect.written_s is None or now_s - suspect.written_s >= self.rules.repeat_s
