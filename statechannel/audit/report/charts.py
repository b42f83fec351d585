"""Gaps in service and rejected records of a report, in bounded memory, and foreign text for display. Pure."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from statechannel.audit.gap_list import GapSums
from statechannel.audit.gaps import Gap, GapCause, Gaps, gap_fields
from statechannel.audit.rejections import Rejections, rejected_document
from statechannel.audit.report.time_buckets import WHOLE_LOG, ReportWindow, TimeCounts, TimeSums
from statechannel.protocol.log import RecordRead
from statechannel.protocol.verdict import MEANING, REJECTIONS, Verdict
from statechannel.protocol.view import Judgement


def shown(text: str | None, most: int = 160) -> str | None:
    """Foreign text for display: without control and bidirectional characters, truncated."""
    if text is None:
        return None
    cut = text if len(text) <= most else f"{text[: most - 1]}\u2026"
    return cut if cut.isascii() and cut.isprintable() else cut.translate(_HIDDEN)


def shown_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: shown(value) if isinstance(value, str) else value for name, value in row.items()}


def _hidden() -> dict[int, str]:
    spans: Iterable[range] = (
        range(0x20),
        range(0x7F, 0xA0),
        range(0x200B, 0x2010),
        range(0x2028, 0x202F),
        range(0x2060, 0x2070),
        range(0xD800, 0xE000),
        range(0xFEFF, 0xFF00),
    )
    return {code: "\ufffd" for span in spans for code in span}


_HIDDEN = _hidden()


class GapsFound:
    """Adds up gaps as they end.

    Args:
        kept: Number of longest gaps that are kept in full.
        points: Number of buckets on the axis of time.
        window: Only gaps of which a part is inside count, in full length.
        taken: Called with each gap that counts; open ones at the end.

    Attributes:
        finder: Observer of judged and of leniently read records.
        by_bundle: Number, and the sum of the lengths.
        unserved: Bundle-milliseconds within gaps, without those that waited for a lookup.
    """

    def __init__(
        self, kept: int, points: int, window: ReportWindow = WHOLE_LOG, taken: Callable[[Gap], None] = lambda _: None
    ) -> None:
        self.finder = Gaps(self._take)
        self._kept = kept
        self._window = window
        self._taken = taken
        self.unserved = TimeSums(points)
        self._longest: list[tuple[int, int, Gap]] = []
        self._number = 0
        self._times = TimeCounts(points)
        self._sums = GapSums()
        self._by_cause: Counter[tuple[str, str]] = Counter()
        self._sum_by_cause_ms: Counter[str] = Counter()
        self.by_bundle: dict[str, list[int]] = {}

    def _take(self, gap: Gap) -> None:
        if not gap.certain or not self._window.overlaps(gap.start_ms, gap.end_ms):
            return
        self._taken(gap)
        if gap.end_ms is not None and not gap.on_request_ms:
            self._add_unserved(gap.start_ms, gap.end_ms)
        self._number += 1
        length_ms = gap.length_ms or 0
        self._sums.take(gap_fields(gap))
        self._by_cause[gap.bundle.rpartition("/")[0], gap.cause.value] += 1
        self._sum_by_cause_ms[gap.cause.value] += length_ms
        self._times.add(self._window.clamp(gap.start_ms), length_ms)
        bundle = self.by_bundle.setdefault(gap.bundle, [0, 0])
        bundle[0] += 1
        bundle[1] += length_ms
        if gap.length_ms is None:
            return
        heapq.heappush(self._longest, (gap.length_ms, -self._number, gap))
        if len(self._longest) > self._kept:
            heapq.heappop(self._longest)

    def end(self, now_ms: int) -> list[Gap]:
        """End of the log, or of the window: open gaps stay open. To be called once."""
        still = [gap for gap in self.finder.open() if gap.certain and self._window.overlaps(gap.start_ms, None)]
        for gap in still:
            self._take(gap)
            self._add_unserved(gap.start_ms, max(gap.start_ms, now_ms))
        return still

    def _add_unserved(self, start_ms: int, end_ms: int) -> None:
        start_ms, end_ms = self._window.clamp(start_ms), self._window.clamp(end_ms)
        self.unserved.reach(start_ms)
        self.unserved.reach(end_ms)
        self.unserved.add_span("", start_ms, end_ms)

    def fields(self, still: list[Gap], namespaces: int) -> dict[str, Any]:
        """Fields of the report, with the gaps that are still open; of the namespaces those with the longest gaps."""
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
            "rows": [shown_row(gap_fields(gap)) for gap in kept],
            "times": self._times.fields(),
        }

    def _causes(self, namespace: str) -> str:
        counts = {cause.value: self._by_cause[namespace, cause.value] for cause in GapCause}
        return ", ".join(f"{cause} {count}" for cause, count in counts.items() if count)


_REJECTED = frozenset(REJECTIONS)
_ORDER = {reason.value: number for number, reason in enumerate(REJECTIONS)}
NOBODY = "(cannot be decoded)"
"""Writer of undecodable records. Not a valid broker id, because of the brackets."""


class RejectedFound:
    """Counts rejected records over time: those inside the window."""

    def __init__(self, points: int, window: ReportWindow = WHOLE_LOG) -> None:
        self._window = window
        self._rejections = Rejections()
        self._times = TimeCounts(points)

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        if judgement.verdict in _REJECTED and self._window.holds(record.timestamp_ms):
            self._rejections.observe(record, judgement)
            self._times.add(record.timestamp_ms)

    def fields(self, writers: int) -> dict[str, Any]:
        """Fields of the report; of the writers those with the most records."""
        document = rejected_document(self._rejections)
        reasons: dict[str | None, Counter[str]] = {}
        for group in document["groups"]:
            reasons.setdefault(group["writer"], Counter())[group["reason"]] += group["records"]
        by_reason = sorted(document["by_reason"], key=lambda row: _ORDER[row["reason"]])
        return {
            "all": document["records"],
            "by_reason": [row | {"meaning": MEANING[Verdict(row["reason"])]} for row in by_reason],
            "writers_all": len(document["by_writer"]),
            "by_writer": [
                row | {"writer": shown(row["writer"]) or NOBODY, "reasons": _listed(reasons[row["writer"]])}
                for row in document["by_writer"][:writers]
            ],
            "newest": [_rejected_row(row) for row in document["newest"]],
            "times": self._times.fields(),
        }


def _rejected_row(rejected: dict[str, Any]) -> dict[str, Any]:
    winner = rejected["winner"]
    return shown_row(rejected) | {
        "meaning": MEANING[Verdict(rejected["reason"])],
        "winner": None
        if winner is None
        else f"{winner['state']} v{winner['version']} of {shown(winner['by']) or 'an assert'}",
    }


def _listed(reasons: Counter[str]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items(), key=lambda item: _ORDER[item[0]]))
