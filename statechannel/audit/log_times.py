"""When the records of a log were written, in bounded memory: for the age of debts, of states between owners, of a lag."""

from __future__ import annotations

from array import array
from bisect import bisect_right

from statechannel.core.inputs import RecordRead
from statechannel.core.view import Judgement

KEPT_MAX = 100_000


class LogTimes:
    """Log times of the judged records. Beyond `KEPT_MAX` a partition, of the older half every second one is dropped.

    So times are exact in short logs, and in long ones off by little, measured by their age.
    """

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._of: dict[int, tuple[array[int], array[int]]] = {}

    def observe(self, record: RecordRead, _: Judgement) -> None:
        """Take in one record."""
        self.note(record.partition, record.offset, record.timestamp_ms)

    def note(self, partition: int, offset: int, timestamp_ms: int) -> None:
        """Take in one record by its place and time; offsets of a partition come in order."""
        offsets, times = self._of.setdefault(partition, (array("q"), array("q")))
        offsets.append(offset)
        times.append(timestamp_ms)
        if len(offsets) > self._kept_max:
            half = len(offsets) // 2
            for column in (offsets, times):
                column[:half] = column[:half:2]

    def of(self, partition: int, offset: int) -> int | None:
        """Time of a record, or of the one kept next before it; None where none was judged so early."""
        offsets, times = self._of.get(partition, (array("q"), array("q")))
        index = bisect_right(offsets, offset) - 1
        return times[index] if index >= 0 else None

    def forget(self, partition: int) -> None:
        """The partition is read anew."""
        self._of.pop(partition, None)
