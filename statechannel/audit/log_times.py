"""Log times of records, for the age of debts, of in-flight states, and of lag; and records of each verdict per minute.

Both are folds in bounded memory.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter

from statechannel.protocol.log import RecordRead
from statechannel.protocol.verdict import REJECTIONS, Verdict
from statechannel.protocol.view import Judgement

KEPT_MAX = 50_000


class _Column:
    """Offsets and their times, in order."""

    def __init__(self) -> None:
        self.offsets = array("q")
        self.times = array("q")

    def __len__(self) -> int:
        return len(self.offsets)

    def move(self, many: int, to: _Column, stride: int) -> None:
        """Pass the oldest ones on, one out of `stride`."""
        to.offsets.extend(self.offsets[:many:stride])
        to.times.extend(self.times[:many:stride])
        del self.offsets[:many], self.times[:many]

    def of(self, offset: int) -> int | None:
        index = bisect_right(self.offsets, offset) - 1
        return self.times[index] if index >= 0 else None


class _Partition:
    def __init__(self) -> None:
        self.recent, self.old, self.stride = _Column(), _Column(), 1


class LogTimes:
    """Log times of the judged records: all of the newest `kept_max` (or half as many), and a sample of older ones.

    So ages of new records are exact, and those of old ones off by less than one part in a few ten thousand of the log.
    """

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._of: dict[int, _Partition] = {}

    def observe(self, record: RecordRead, _: Judgement) -> None:
        self.note(record.partition, record.offset, record.timestamp_ms)

    def note(self, partition: int, offset: int, timestamp_ms: int) -> None:
        """Apply one record by its place and time; offsets of a partition must be in order."""
        held = self._of.setdefault(partition, _Partition())
        held.recent.offsets.append(offset)
        held.recent.times.append(timestamp_ms)
        if len(held.recent) <= self._kept_max:
            return
        held.recent.move(self._kept_max // 2, held.old, held.stride)
        if len(held.old) > self._kept_max:
            thinned = _Column()
            held.old.move(len(held.old), thinned, 2)
            held.old, held.stride = thinned, held.stride * 2

    def of(self, partition: int, offset: int) -> int | None:
        """Time of a record, or of the last kept one before it; None before the first judged one."""
        held = self._of.get(partition)
        if held is None:
            return None
        time_ms = held.recent.of(offset)
        return held.old.of(offset) if time_ms is None else time_ms


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
        self._last_ms: dict[int, int] = {}

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        """Apply one record; several partitions may be read one after the other."""
        self._last_ms[record.partition] = record.timestamp_ms
        oldest = self.newest_ms // 1_000 - _LONGEST_S
        second = record.timestamp_ms // 1_000
        if second < oldest:
            return
        self._seconds.setdefault(second, Counter())[judgement.verdict] += 1
        if len(self._seconds) > 2 * _LONGEST_S:
            self._seconds = {at: counts for at, counts in self._seconds.items() if at >= oldest}

    @property
    def newest_ms(self) -> int:
        """Log time of the newest record: of each partition the last, of these the latest; 0 without any."""
        return max(self._last_ms.values(), default=0)

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
