"""Rejected records for a report: by reason and by writer, over time, and the newest of them, in bounded memory."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

from statechannel.audit.history import history_line
from statechannel.audit.report_area import OTHERS
from statechannel.audit.report_marks import TimeCounts, shown
from statechannel.core.inputs import RecordRead
from statechannel.core.verdict import MEANING, REJECTIONS, Verdict
from statechannel.core.view import Judgement

_REJECTED = frozenset(REJECTIONS)
NOBODY = "(cannot be decoded)"
"""Writer of records that do not say whose they are. No broker is called so: the brackets are not of a name's letters."""


class RejectedFound:
    """Counts what was rejected. Anybody may claim any name as the writer, so that only some are told apart.

    Args:
        newest: So many are kept whole.
        points: Number of buckets on the axis of time.
        writers: At most so many are told apart; the rest is one.
    """

    def __init__(self, newest: int, points: int, writers: int = 1_000) -> None:
        self._writers = writers
        self._counts: Counter[tuple[str, str]] = Counter()
        self._known: set[str] = set()
        self._times = TimeCounts(points)
        self._newest: deque[dict[str, Any]] = deque(maxlen=newest)

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        """Take in one judged record."""
        verdict = judgement.verdict
        if verdict not in _REJECTED:
            return
        decoded = judgement.record
        self._counts[self._name(NOBODY if decoded is None else decoded.broker), verdict.value] += 1
        self._times.add(record.timestamp_ms)
        line = history_line(record, judgement)
        self._newest.append(
            {
                "partition": line.partition,
                "offset": line.offset,
                "timestamp_ms": line.timestamp_ms,
                "key": shown(line.key),
                "reason": verdict.value,
                "by": shown(line.by),
                "state": line.state,
                "version": line.version,
                "why": shown(line.reason),
                "note": shown(line.note),
            }
        )

    def _name(self, writer: str) -> str:
        if writer not in self._known and len(self._known) >= self._writers:
            return OTHERS
        self._known.add(writer)
        return writer

    def fields(self, writers: int) -> dict[str, Any]:
        """What the report has.

        Args:
            writers: At most so many are listed, those with the most.
        """
        by_reason: Counter[str] = Counter()
        by_writer: dict[str, Counter[str]] = {}
        for (writer, reason), count in self._counts.items():
            by_reason[reason] += count
            by_writer.setdefault(writer, Counter())[reason] += count
        ranked = sorted(by_writer.items(), key=lambda one: (-one[1].total(), one[0]))
        return {
            "all": self._counts.total(),
            "by_reason": [
                {"reason": one.value, "count": by_reason[one.value], "meaning": MEANING[one]}
                for one in REJECTIONS
                if by_reason[one.value]
            ],
            "writers_all": len(by_writer),
            "by_writer": [
                {"writer": shown(writer), "count": reasons.total(), "reasons": _listed(reasons)}
                for writer, reasons in ranked[:writers]
            ],
            "newest": list(self._newest),
            "times": self._times.fields(),
        }


def _listed(reasons: Counter[str]) -> str:
    order = {one.value: number for number, one in enumerate(REJECTIONS)}
    return ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items(), key=lambda one: order[one[0]]))


def is_rejected(verdict: Verdict) -> bool:
    """Whether the audit counts it as rejected."""
    return verdict in _REJECTED
