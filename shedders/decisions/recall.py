"""Looking back through the topic of decisions for the newest that are wanted, within bounds. Pure but for the clock it is given.

Whoever may write to the topic may fill it with records of nearly a megabyte, and a busy cluster writes thousands of placements
between two decisions of the balancer. So only what is wanted is kept, and neither memory nor time grows with what lies there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from shedders.decisions.record import AnyRecord, UndecodableDecision, decode

if TYPE_CHECKING:
    from statechannel.protocol.log import RecordRead

FIRST_PIECE: Final = 64
PIECE_MAX: Final = 4_096
_WIDER: Final = 8


class DecisionRead(NamedTuple):
    """One record of the topic, or why it cannot be read. `timestamp_ms` is the log's time."""

    offset: int
    timestamp_ms: int
    record: AnyRecord | UndecodableDecision


def decision_read(record: RecordRead) -> DecisionRead:
    """A record as it lies in the topic, decoded."""
    return DecisionRead(record.offset, record.timestamp_ms, decode(record.key, record.value))


@dataclass(frozen=True, slots=True)
class RecallBounds:
    """How far somebody looks back.

    Attributes:
        records: So many offsets.
        held_bytes: What is kept of them, as it lies in the topic; decoded it takes a few times as much.
        time_s: So long.
    """

    records: int = 50_000
    held_bytes: int = 32 * 2**20
    time_s: float = 10.0


class Back(NamedTuple):
    """What was found, in the topic's order.

    Attributes:
        ended: Why it was not looked back further although there is more and not all was found; empty where that is not so.
    """

    reads: Sequence[DecisionRead]
    ended: str


@dataclass(frozen=True, slots=True)
class Want:
    """What is looked for.

    Attributes:
        count: So many of the newest.
        wanted: What counts among them.
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
    """One stretch of the topic, read forwards; what turns out not to be needed is let go at once.

    Args:
        count: So many wanted ones are lacking.
        room_bytes: What may be held of it.
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
        known = None if isinstance(read.record, UndecodableDecision) else read.record
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
        """The oldest."""
        one = self.held.popleft()
        self.wanted -= one.wanted
        self.size_bytes -= one.size_bytes


def look_back(
    read: Callable[[int, int], Iterable[RecordRead]],
    low: int,
    end: int,
    want: Want,
    bounds: RecallBounds,
    now_s: Callable[[], float],
) -> Back:
    """The newest records that are wanted; further and further back, but not further than must be.

    Args:
        read: The records from an offset to another one.
        low: First offset of the topic; `end`: one behind its last.
    """
    ends_s = now_s() + bounds.time_s
    found: deque[DecisionRead] = deque()
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
                return Back(list(found), f"{bounds.time_s:g} s were over at offset {record.offset}")
            piece.add(record)
        found.extendleft(one.read for one in reversed(piece.held))
        if piece.full and piece.wanted < lacking:
            return Back(list(found), f"{bounds.held_bytes} bytes were held at offset {start}")
        lacking -= piece.wanted
        room_bytes -= piece.size_bytes
    short = lacking > 0 and last > low
    return Back(list(found), f"{bounds.records} records were looked at" if short else "")
