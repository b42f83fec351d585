"""Lists of gaps in service: what is selected, and their sums by namespace, which add up over parts of a log. Pure.

Gaps are given as rows of the JSON output (`statechannel.audit.gaps.gap_fields`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from statechannel.audit.moments import WHOLE_LOG, LogWindow


@dataclass(frozen=True, slots=True)
class GapFilter:
    """Which gaps are listed and summed up; a gap must fit all.

    Attributes:
        window: Any part of the gap lies in it.
        causes: One of these; empty: any.
        longer_than_ms: Longer than this, without the time on request. Open gaps have no length yet, and are always listed.
        open_only: Only gaps that have not ended.
        broker: The owner before or after.
    """

    window: LogWindow = WHOLE_LOG
    causes: frozenset[str] = frozenset()
    longer_than_ms: int | None = None
    open_only: bool = False
    broker: str | None = None

    def has(self, gap: Mapping[str, Any]) -> bool:
        """Whether the gap is selected."""
        if self.causes and gap["cause"] not in self.causes:
            return False
        if self.broker is not None and self.broker not in (gap["from"], gap["to"]):
            return False
        if self.open_only and gap["end_ms"] is not None:
            return False
        if self.longer_than_ms is not None and gap["length_ms"] is not None and gap["length_ms"] <= self.longer_than_ms:
            return False
        return self.window.meets((gap["start_offset"], gap["start_ms"]), (gap["end_offset"], gap["end_ms"]))


ALL_GAPS = GapFilter()


@dataclass(slots=True)
class GapSum:
    """Of one namespace, or of all.

    Attributes:
        open: Gaps that have not ended; they have no length.
        sum_ms: Of ended gaps, without the time Unassigned on request.
        on_request_ms: That time.
        worst_ms: The longest that has ended, of `worst_bundle` from `worst_offset` on.
        open_since_ms: When the oldest open one began; None without one.
        uncertain: Gaps before which the bundle may never have been served, as the log is compacted; not counted elsewhere.
    """

    gaps: int = 0
    open: int = 0
    sum_ms: int = 0
    on_request_ms: int = 0
    worst_ms: int = 0
    worst_bundle: str | None = None
    worst_offset: int | None = None
    open_since_ms: int | None = None
    uncertain: int = 0

    def take(self, gap: Mapping[str, Any]) -> None:
        """Count one gap, given in the form of the JSON output."""
        if not gap["certain"]:
            self.uncertain += 1
            return
        self.gaps += 1
        self.on_request_ms += gap["on_request_ms"]
        length_ms = gap["length_ms"]
        if length_ms is None:
            self.open += 1
            self._open_since(gap["start_ms"])
            return
        self.sum_ms += length_ms
        self._worst(length_ms, gap["bundle"], gap["start_offset"])

    def add(self, other: GapSum) -> None:
        self.gaps += other.gaps
        self.open += other.open
        self.uncertain += other.uncertain
        self.sum_ms += other.sum_ms
        self.on_request_ms += other.on_request_ms
        if other.worst_bundle is not None and other.worst_offset is not None:
            self._worst(other.worst_ms, other.worst_bundle, other.worst_offset)
        if other.open_since_ms is not None:
            self._open_since(other.open_since_ms)

    def _open_since(self, start_ms: int) -> None:
        self.open_since_ms = start_ms if self.open_since_ms is None else min(self.open_since_ms, start_ms)

    def _worst(self, length_ms: int, bundle: str, offset: int) -> None:
        """Update the longest; of equal ones the first by bundle and offset, independent of their order."""
        worse = (-length_ms, bundle, offset)
        if self.worst_bundle is None or worse < (-self.worst_ms, self.worst_bundle, self.worst_offset or 0):
            self.worst_ms, self.worst_bundle, self.worst_offset = length_ms, bundle, offset


class GapSums:
    """By namespace."""

    def __init__(self) -> None:
        self.sums: dict[str, GapSum] = {}

    def take(self, gap: Mapping[str, Any]) -> None:
        """Count one gap, given in the form of the JSON output."""
        self.sums.setdefault(gap["bundle"].rpartition("/")[0], GapSum()).take(gap)

    def rows(self) -> list[dict[str, Any]]:
        return [{"namespace": name} | asdict(sums) for name, sums in sorted(self.sums.items())]


def sum_gap_rows(parts: Iterable[Iterable[Mapping[str, Any]]]) -> GapSums:
    """The sums of several parts of a log, from their rows."""
    total = GapSums()
    for part in parts:
        for row in part:
            total.sums.setdefault(row["namespace"], GapSum()).add(_sum_of(row))
    return total


def total_gap_sum(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The sum over all namespaces, for the JSON output."""
    total = GapSum()
    for row in rows:
        total.add(_sum_of(row))
    return asdict(total)


def _sum_of(row: Mapping[str, Any]) -> GapSum:
    return GapSum(**{name: value for name, value in row.items() if name != "namespace"})
