"""Bounded backward search for the newest matching records of the decisions topic. Pure except for the clock it is given.

A writer of the topic may fill it with records of nearly a megabyte, and a busy cluster writes thousands of placements
between two decisions of the balancer. So only matching records are kept, and neither memory nor time grows with the topic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from shedders.decisions.record import AnyRecord, decode
from statechannel.protocol.side_record import InvalidRecord

if TYPE_CHECKING:
    from statechannel.protocol.log import RecordRead

FIRST_PIECE: Final = 64
PIECE_MAX: Final = 4_096
_WIDER: Final = 8


class DecisionRead(NamedTuple):
    """One record of the topic, or why it cannot be read. `timestamp_ms` is the log's time."""

    offset: int
    timestamp_ms: int
    record: AnyRecord | InvalidRecord


def decision_read(record: RecordRead) -> DecisionRead:
    """A record as it lies in the topic, decoded."""
    return DecisionRead(record.offset, record.timestamp_ms, decode(record.key, record.value))


@dataclass(frozen=True, slots=True)
class RecallBounds:
    """Limits of the search.

    Attributes:
        records: Number of offsets that are searched.
        held_bytes: Encoded size of the records that are kept; decoded they take a few times as much.
        time_s: Duration.
    """

    records: int = 50_000
    held_bytes: int = 32 * 2**20
    time_s: float = 10.0


class Back(NamedTuple):
    """The result of the search, in the topic's order.

    Attributes:
        ended: Why the search stopped early; empty if it found everything or reached the topic's first record.
    """

    reads: Sequence[DecisionRead]
    ended: str


@dataclass(frozen=True, slots=True)
class Want:
    """The criteria of the search.

    Attributes:
        count: Number of matching records to find, the newest first.
        wanted: Whether a record matches.
        behind: What is kept of all that lies behind the first of them; None: nothing but the wanted ones.
    """

    count: int
    wanted: Callable[[AnyRecord], bool]
    behind: Callable[[AnyRecord], bool] | None = None


class _Held(NamedTuple):
    read: DecisionRead
    size_bytes: int
    wanted: bool


class _Piece:
    """One stretch of the topic, read forwards; records that are not needed are dropped at once.

    Args:
        count: Number of matching records still to be found.
        room_bytes: Bytes that may be kept.
    """

    def __init__(self, want: Want, count: int, room_bytes: int) -> None:
        self._want = want
        self._count = count
        self._room_bytes = room_bytes
        self.held: deque[_Held] = deque()
        self.wanted = 0
        self.size_bytes = 0
        self.full = False

    def add(self, record: RecordRead) -> None:
        """Look at one record."""
        read, size_bytes = decision_read(record), len(record.value or b"")
        known = None if isinstance(read.record, InvalidRecord) else read.record
        wanted = known is not None and self._want.wanted(known)
        behind = self._want.behind
        if not wanted and (behind is None or (known is not None and not behind(known))):
            return
        self.held.append(_Held(read, size_bytes, wanted))
        self.wanted += wanted
        self.size_bytes += size_bytes
        while self.size_bytes > self._room_bytes:
            self.full = True
            self._drop()
        while self.wanted > self._count or (self.wanted == self._count and not self.held[0].wanted):
            self._drop()

    def _drop(self) -> None:
        """Drop the oldest."""
        oldest = self.held.popleft()
        self.wanted -= oldest.wanted
        self.size_bytes -= oldest.size_bytes


def look_back(
    read: Callable[[int, int], Iterable[RecordRead]],
    low: int,
    end: int,
    want: Want,
    bounds: RecallBounds,
    now_s: Callable[[], float],
) -> Back:
    """The newest matching records: searches further back step by step, and no further than necessary.

    Args:
        read: The records from an offset to another one.
        low: First offset of the topic; `end`: one behind its last.
    """
    ends_s = now_s() + bounds.time_s
    reads: deque[DecisionRead] = deque()
    start, size = end, FIRST_PIECE
    last = max(low, end - bounds.records)
    lacking, room_bytes = want.count, bounds.held_bytes
    while start > last and lacking > 0:
        before, start = start, max(last, start - size)
        size = min(PIECE_MAX, size * _WIDER)
        piece = _Piece(want, lacking, room_bytes)
        for record in read(start, before):
            if now_s() > ends_s:
                # The rest of this piece would be lacking between what it has and what lies behind.
                return Back(list(reads), f"the limit of {bounds.time_s:g} s was reached at offset {record.offset}")
            piece.add(record)
        reads.extendleft(held.read for held in reversed(piece.held))
        if piece.full and piece.wanted < lacking:
            return Back(list(reads), f"the limit of {bounds.held_bytes} bytes was reached at offset {start}")
        lacking -= piece.wanted
        room_bytes -= piece.size_bytes
    short = lacking > 0 and last > low
    return Back(list(reads), f"the limit of {bounds.records} records was reached" if short else "")
