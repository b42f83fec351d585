"""Log times of records, in bounded memory: for the age of debts, of in-flight states, and of lag."""

from __future__ import annotations

from array import array
from bisect import bisect_right

from statechannel.protocol.log import RecordRead
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
        """Apply one record."""
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
