"""What a joining reader has read and may still have to judge: kept aside until the log vouches for an offset below it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from statechannel.core.marks import Mark

if TYPE_CHECKING:
    from statechannel.core.inputs import RecordRead
    from statechannel.core.joiner import Joiner
    from statechannel.core.marks import Marks


class Aside:
    """One lenient reading of a partition, cut where somebody vouches for it (protocol.md section 5, steps 1 to 3).

    Everything through the offset N that is vouched for is taken leniently, the rest is judged strictly. N is known late, so the
    records above the highest N so far wait here; what is too old to be judged by any N that can still come is taken at once.

    Attributes:
        clean_to: M: the highest offset for which a heartbeat of this reading vouches; -1 without one.
        floor: Nobody who vouches for less helps: offsets up to here are missing, were taken, or lie before a mark that counts.
    """

    def __init__(
        self,
        joiner: Joiner,
        marks: Marks,
        *,
        half_lag_ms: float,
        kept_max: int,
        kept_max_bytes: int,
        newest_format: int,
    ) -> None:
        self.joiner = joiner
        self.clean_to = -1
        self.floor = -1
        self._marks = marks
        self._half_lag_ms = half_lag_ms
        self._kept_max = kept_max
        self._kept_max_bytes = kept_max_bytes
        self._newest_format = newest_format
        self._kept: deque[RecordRead] = deque()
        self._bytes = 0
        self._newest_ms = 0

    def missing(self, through: int) -> None:
        """Offsets up to this one were cleaned away: what hid them may lie anywhere."""
        self.floor = max(self.floor, through)

    def read(self, record: RecordRead) -> None:
        """Take in the next record."""
        self._kept.append(record)
        self._bytes += len(record.value or b"")
        said = self._marks.control_read(record, self._newest_format)
        if isinstance(said, Mark):
            # Who vouches has to have read the mark: before it, a member that was only paused may hold another history.
            self.floor = max(self.floor, record.offset)
        elif said is not None and self.clean_to < said.clean_to < record.offset:
            self.clean_to = said.clean_to

    def release(self, end_offset: int) -> bool:
        """Take what need not wait any more, below the end as of the start; False if more is left than may be kept."""
        kept = self._kept
        if kept and kept[-1].offset < end_offset:
            self._newest_ms = max(self._newest_ms, kept[-1].timestamp_ms)
        useless_ms = self._newest_ms - self._half_lag_ms
        while kept and kept[0].offset < end_offset:
            first = kept[0]
            over = len(kept) > self._kept_max or self._bytes > self._kept_max_bytes
            if first.offset > max(self.floor, self.clean_to) and first.timestamp_ms > useless_ms and not over:
                break
            self._take()
        return len(kept) <= self._kept_max and self._bytes <= self._kept_max_bytes

    def _take(self) -> None:
        record = self._kept.popleft()
        self._bytes -= len(record.value or b"")
        self.joiner.read(record.offset, record.key, record.value)
        self.floor = max(self.floor, record.offset)

    def vouched_by_log(self, ended_ms: float) -> bool:
        """Whether M serves as N without anybody's further word: nothing above it can have been cleaned, or hide anything.

        Args:
            ended_ms: Kafka's clock when the reading came to the end as of its start.
        """
        if self.clean_to < max(self.floor, 0):
            return False
        oldest_ms = ended_ms - self._half_lag_ms
        return all(record.timestamp_ms > oldest_ms for record in self._kept if record.offset > self.clean_to)

    def vouched_for(self, end_offset: int) -> bool:
        """Whether somebody who had read all that was there at the start saw no debt."""
        return self.clean_to >= max(end_offset - 1, self.floor)

    def cut(self, through: int) -> list[RecordRead]:
        """Take everything through an offset leniently; the rest."""
        kept = self._kept
        while kept and kept[0].offset <= through:
            self._take()
        later, self._kept = [*kept], deque()
        return later
