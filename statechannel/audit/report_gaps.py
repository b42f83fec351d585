"""Gaps in service for a report: sums over all of them, and the longest, in bounded memory."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from statechannel.audit.report_marks import TimeCounts, shown
from statechannel.audit.story import Gap, Gaps, gap_fields
from statechannel.core.bundle import parse_key
from statechannel.core.inputs import RecordRead
from statechannel.core.view import Judgement


@dataclass(slots=True)
class NamespaceGaps:
    """The gaps of one namespace: how many, the sum of their lengths, the longest, and the waits on request apart."""

    count: int = 0
    open: int = 0
    sum_ms: int = 0
    worst_ms: int = 0
    worst_bundle: str | None = None
    on_request_ms: int = 0
    causes: Counter[str] = field(default_factory=Counter)


class GapsFound:
    """Adds up gaps as they close.

    Args:
        kept: The longest so many are kept whole.
        points: Number of buckets on the axis of time.

    Attributes:
        worst: By bundle: number, and the sum of the lengths.
    """

    def __init__(self, kept: int, points: int) -> None:
        self._finder = Gaps()
        self._kept = kept
        self._longest: list[tuple[int, int, Gap]] = []
        self._number = 0
        self._times = TimeCounts(points)
        self._by_namespace: dict[str, NamespaceGaps] = {}
        self._open: list[Gap] = []
        self.by_cause: Counter[str] = Counter()
        self.sum_by_cause_ms: Counter[str] = Counter()
        self.worst: dict[str, list[int]] = {}

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        """Take in one judged record."""
        self._finder.observe(record, judgement)
        if self._finder.closed:
            for gap in self._finder.closed:
                self._take(gap)
            self._finder.closed.clear()

    def end(self) -> None:
        """The log has been read to its end: what is open now stays so."""
        for gap in self._finder.all():
            self._take(gap)
            self._open.append(gap)

    def _take(self, gap: Gap) -> None:
        self._number += 1
        length_ms = gap.length_ms
        self.by_cause[gap.cause.value] += 1
        self.sum_by_cause_ms[gap.cause.value] += length_ms or 0
        self._times.add(gap.start_ms, length_ms or 0)
        bundle = self.worst.setdefault(gap.bundle, [0, 0])
        bundle[0] += 1
        bundle[1] += length_ms or 0
        self._add_to_namespace(gap)
        if length_ms is None:
            return
        heapq.heappush(self._longest, (length_ms, -self._number, gap))
        if len(self._longest) > self._kept:
            heapq.heappop(self._longest)

    def _add_to_namespace(self, gap: Gap) -> None:
        parts = parse_key(gap.bundle.encode())
        held = self._by_namespace.setdefault(gap.bundle if parts is None else parts.namespace, NamespaceGaps())
        length_ms = gap.length_ms
        held.count += 1
        held.open += length_ms is None
        held.causes[gap.cause.value] += 1
        held.on_request_ms += gap.on_request_ms
        held.sum_ms += length_ms or 0
        if length_ms is not None and (held.worst_bundle is None or length_ms > held.worst_ms):
            held.worst_ms, held.worst_bundle = length_ms, gap.bundle

    def fields(self, namespaces: int) -> dict[str, Any]:
        """What the report has.

        Args:
            namespaces: At most so many, those with the longest gaps.
        """
        room = max(0, self._kept - len(self._open))
        longest = [gap for _, _, gap in heapq.nlargest(room, self._longest)]
        kept = sorted(
            [*self._open[: self._kept], *longest], key=lambda gap: (gap.start_ms, gap.partition, gap.start_offset)
        )
        ranked = sorted(self._by_namespace.items(), key=lambda one: (-one[1].open, -one[1].worst_ms, one[0]))
        return {
            "all": self._number,
            "open": len(self._open),
            "by_cause": [
                {"cause": cause, "count": count, "sum_ms": self.sum_by_cause_ms[cause]}
                for cause, count in sorted(self.by_cause.items())
            ],
            "namespaces_all": len(ranked),
            "namespaces": [_namespace_fields(name, held) for name, held in ranked[:namespaces]],
            "rows": [_row(gap) for gap in kept],
            "times": self._times.fields(),
        }


def _namespace_fields(name: str, held: NamespaceGaps) -> dict[str, Any]:
    return {
        "namespace": name,
        "count": held.count,
        "open": held.open,
        "sum_ms": held.sum_ms,
        "worst_ms": held.worst_ms if held.worst_bundle else None,
        "worst_bundle": held.worst_bundle,
        "on_request_ms": held.on_request_ms,
        "causes": ", ".join(f"{cause} {count}" for cause, count in sorted(held.causes.items())),
    }


def _row(gap: Gap) -> dict[str, Any]:
    return {name: shown(value) if isinstance(value, str) else value for name, value in gap_fields(gap).items()}
