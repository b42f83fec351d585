"""Rejected records for a report: by reason and by writer, over time, and the newest of them, in bounded memory."""

from __future__ import annotations

from collections import Counter
from typing import Any

from statechannel.audit.rejections import Rejections, rejected_document
from statechannel.audit.report.time_buckets import TimeCounts, shown
from statechannel.protocol.log import RecordRead
from statechannel.protocol.verdict import MEANING, REJECTIONS, Verdict
from statechannel.protocol.view import Judgement

_REJECTED = frozenset(REJECTIONS)
_ORDER = {reason.value: number for number, reason in enumerate(REJECTIONS)}
NOBODY = "(cannot be decoded)"
"""Writer of undecodable records. Not a valid broker id, because of the brackets."""


class RejectedFound:
    """Counts rejected records over time.

    Args:
        points: Number of buckets on the axis of time.
    """

    def __init__(self, points: int) -> None:
        self._rejections = Rejections()
        self._times = TimeCounts(points)

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        """Apply one judged record."""
        if judgement.verdict in _REJECTED:
            self._rejections.observe(record, judgement)
            self._times.add(record.timestamp_ms)

    def fields(self, writers: int) -> dict[str, Any]:
        """Fields of the report.

        Args:
            writers: Maximum number of listed writers, those with the most records.
        """
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
            "newest": [_row(row) for row in document["newest"]],
            "times": self._times.fields(),
        }


def _row(rejected: dict[str, Any]) -> dict[str, Any]:
    winner = rejected["winner"]
    row = {name: shown(value) if isinstance(value, str) else value for name, value in rejected.items()}
    return row | {
        "meaning": MEANING[Verdict(rejected["reason"])],
        "winner": None
        if winner is None
        else f"{winner['state']} v{winner['version']} of {shown(winner['by']) or 'an assert'}",
    }


def _listed(reasons: Counter[str]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items(), key=lambda item: _ORDER[item[0]]))


def is_rejected(verdict: Verdict) -> bool:
    """Whether the audit counts it as rejected."""
    return verdict in _REJECTED
