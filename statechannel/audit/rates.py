"""Records of each verdict per minute: a fold over an audit's observations, by log time."""

from __future__ import annotations

from collections import Counter

from statechannel.protocol.log import RecordRead
from statechannel.protocol.verdict import REJECTIONS, Verdict
from statechannel.protocol.view import Judgement

WINDOWS_MIN = (1, 5, 15)
_LONGEST_S = max(WINDOWS_MIN) * 60

GROUPS: dict[str, frozenset[Verdict]] = {
    "accepted": frozenset({Verdict.ACCEPTED}),
    "rejected": frozenset(REJECTIONS),
    "duplicates": frozenset({Verdict.DUPLICATE}),
    "asserts": frozenset({Verdict.ASSERT_EQUAL, Verdict.ASSERT_STALE}),
    "control records": frozenset({Verdict.CONTROL}),
}
"""Verdicts grouped for tables; the JSON output has each."""


class VerdictRates:
    """Counts of the last quarter of an hour, one bucket per second. Only judged records count."""

    def __init__(self) -> None:
        self._seconds: dict[int, Counter[Verdict]] = {}
        self.newest_ms = 0

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        """Apply one record; several partitions may be read one after the other."""
        self.newest_ms = max(self.newest_ms, record.timestamp_ms)
        oldest = self.newest_ms // 1_000 - _LONGEST_S
        second = record.timestamp_ms // 1_000
        if second < oldest:
            return
        self._seconds.setdefault(second, Counter())[judgement.verdict] += 1
        if len(self._seconds) > 2 * _LONGEST_S:
            self._seconds = {at: counts for at, counts in self._seconds.items() if at >= oldest}

    def counts(self, window_min: int, now_ms: int) -> Counter[Verdict]:
        """Records of each verdict in the minutes before a moment of log time."""
        since = now_ms // 1_000 - window_min * 60
        total: Counter[Verdict] = Counter()
        for second, counts in self._seconds.items():
            if second > since:
                total.update(counts)
        return total

    def per_minute(self, now_ms: int) -> dict[str, dict[str, float]]:
        """By window (`1m`, `5m`, `15m`) and verdict; verdicts without records are omitted."""
        return {
            f"{window}m": {
                verdict.value: round(count / window, 2)
                for verdict, count in sorted(self.counts(window, now_ms).items())
            }
            for window in WINDOWS_MIN
        }


def grouped(rates: dict[str, dict[str, float]]) -> dict[str, list[float]]:
    """Rows of a table: one per group, one number per window."""
    return {name: [_sum(rates[f"{window}m"], of) for window in WINDOWS_MIN] for name, of in GROUPS.items()}


def _sum(rates: dict[str, float], of: frozenset[Verdict]) -> float:
    return sum(rate for verdict, rate in rates.items() if verdict in of)
