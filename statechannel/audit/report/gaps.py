"""Gaps in service for a report: sums over all of them, and the longest, in bounded memory."""

from __future__ import annotations

import heapq
from collections import Counter
from typing import Any

from statechannel.audit.gap_sums import GapSums
from statechannel.audit.gaps import Gap, GapCause, Gaps, gap_fields
from statechannel.audit.report.time_buckets import TimeCounts, shown


class GapsFound:
    """Adds up gaps as they end.

    Args:
        kept: Number of longest gaps that are kept in full.
        points: Number of buckets on the axis of time.

    Attributes:
        finder: Observer of judged and of leniently read records.
        by_bundle: Number, and the sum of the lengths.
    """

    def __init__(self, kept: int, points: int) -> None:
        self.finder = Gaps(self._take)
        self._kept = kept
        self._longest: list[tuple[int, int, Gap]] = []
        self._number = 0
        self._times = TimeCounts(points)
        self._sums = GapSums()
        self._by_cause: Counter[tuple[str, str]] = Counter()
        self._sum_by_cause_ms: Counter[str] = Counter()
        self.by_bundle: dict[str, list[int]] = {}

    def _take(self, gap: Gap) -> None:
        if not gap.certain:
            return
        self._number += 1
        length_ms = gap.length_ms or 0
        self._sums.take(gap_fields(gap))
        self._by_cause[gap.bundle.rpartition("/")[0], gap.cause.value] += 1
        self._sum_by_cause_ms[gap.cause.value] += length_ms
        self._times.add(gap.start_ms, length_ms)
        bundle = self.by_bundle.setdefault(gap.bundle, [0, 0])
        bundle[0] += 1
        bundle[1] += length_ms
        if gap.length_ms is None:
            return
        heapq.heappush(self._longest, (gap.length_ms, -self._number, gap))
        if len(self._longest) > self._kept:
            heapq.heappop(self._longest)

    def end(self) -> list[Gap]:
        """End of the log: open gaps stay open. To be called once."""
        still = [gap for gap in self.finder.open() if gap.certain]
        for gap in still:
            self._take(gap)
        return still

    def fields(self, still: list[Gap], namespaces: int) -> dict[str, Any]:
        """Fields of the report.

        Args:
            still: Those that are open.
            namespaces: Maximum number of namespaces, those with the longest gaps.
        """
        longest = [gap for _, _, gap in heapq.nlargest(max(0, self._kept - len(still)), self._longest)]
        kept = sorted([*still[: self._kept], *longest], key=lambda gap: (gap.start_ms, gap.partition, gap.start_offset))
        ranked = sorted(self._sums.rows(), key=lambda row: (-row["open"], -row["worst_ms"], row["namespace"]))
        causes: Counter[str] = Counter()
        for (_, cause), count in self._by_cause.items():
            causes[cause] += count
        return {
            "all": self._number,
            "open": len(still),
            "by_cause": [
                {"cause": cause, "count": count, "sum_ms": self._sum_by_cause_ms[cause]}
                for cause, count in sorted(causes.items())
            ],
            "namespaces_all": len(ranked),
            "namespaces": [row | {"causes": self._causes(row["namespace"])} for row in ranked[:namespaces]],
            "rows": [_row(gap) for gap in kept],
            "times": self._times.fields(),
        }

    def _causes(self, namespace: str) -> str:
        counts = {cause.value: self._by_cause[namespace, cause.value] for cause in GapCause}
        return ", ".join(f"{cause} {count}" for cause, count in counts.items() if count)


def _row(gap: Gap) -> dict[str, Any]:
    return {name: shown(value) if isinstance(value, str) else value for name, value in gap_fields(gap).items()}
