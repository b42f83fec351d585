"""Earlier decisions: an index with the outcomes of their moves, and a bounded backward search for the newest of the topic.

Pure except for the clock that the search gets. A writer of the topic may fill it with records of nearly a megabyte, and a busy
cluster writes thousands of placements between two decisions of the balancer. So the search keeps only matching records, and
neither its memory nor its time grows with the topic.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from shedders.decisions.record import (
    AnyRecord,
    DecisionRecord,
    MoveEntry,
    OutcomeRecord,
    PlacedEntry,
    SplitEntry,
    Subject,
    decode,
)
from statechannel.protocol.side_record import InvalidRecord

if TYPE_CHECKING:
    from statechannel.protocol.log import RecordRead


Entry = MoveEntry | SplitEntry | PlacedEntry


class BundleDecision(NamedTuple):
    """An entry of a decision about a bundle, with its outcome, if that is known."""

    decision: DecisionRecord
    entry: Entry
    ended: OutcomeRecord | None

    @property
    def result(self) -> str | None:
        """The newest word for its state; None where no operation was started."""
        return self.entry.outcome if self.ended is None else self.ended.result

    @property
    def why_so(self) -> str | None:
        return self.entry.outcome_why if self.ended is None else self.ended.why


class DecisionBook:
    """Takes in records in log order.

    Args:
        decisions_max: Number of the newest decisions that are kept, with their outcomes.

    Attributes:
        junk: Records that could not be read, by reason.
    """

    def __init__(self, decisions_max: int = 100_000) -> None:
        self._max = decisions_max
        self._decisions: dict[str, DecisionRecord] = {}
        self._bundles: dict[str, frozenset[str]] = {}
        self._outcomes: dict[str, dict[str, OutcomeRecord]] = {}
        self._operations: dict[str, tuple[str, int]] = {}
        self.junk: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._decisions)

    def add(self, record: AnyRecord | InvalidRecord) -> None:
        """Take in one record; of two with the same id the first counts."""
        if isinstance(record, InvalidRecord):
            self.junk[record.reason.value] += 1
        elif isinstance(record, OutcomeRecord):
            # Its decision may be older than what is kept. Strangers may write outcomes of any number of bundles.
            if record.bundle in self._bundles.get(record.decision, ()):
                self._outcomes.setdefault(record.decision, {})[record.bundle] = record
        elif record.id not in self._decisions:
            self._decisions[record.id] = record
            self._bundles[record.id] = frozenset(entry.bundle for entry in record.deeds)
            for place, entry in enumerate(record.deeds):
                if entry.operation is not None:
                    self._operations.setdefault(entry.operation, (record.id, place))
            if len(self._decisions) > self._max:
                self._forget(next(iter(self._decisions)))

    def decision(self, decision_id: str) -> DecisionRecord | None:
        return self._decisions.get(decision_id)

    @property
    def decisions(self) -> Sequence[DecisionRecord]:
        """All, in log order."""
        return list(self._decisions.values())

    def newest(self, subject: Subject) -> Sequence[DecisionRecord]:
        """Decisions about one subject, the newest first."""
        return [decision for decision in reversed(self._decisions.values()) if decision.subject == subject]

    def bundle_decisions(self, record: DecisionRecord) -> Sequence[BundleDecision]:
        """All entries of a decision, each with its outcome."""
        ends = self._outcomes.get(record.id, {})
        return [BundleDecision(record, entry, ends.get(entry.bundle)) for entry in record.deeds]

    def by_operation(self, operation: str | None) -> BundleDecision | None:
        located = None if operation is None else self._operations.get(operation)
        if located is None:
            return None
        decision, place = self._decisions[located[0]], located[1]
        entry = decision.deeds[place]
        return BundleDecision(decision, entry, self._outcomes.get(decision.id, {}).get(entry.bundle))

    def placed(self, bundle: str, by: str, to: Collection[str], since_ms: int, until_ms: int) -> BundleDecision | None:
        """The first placement that a broker made for a bundle in a span of time: records of placements name no operation.

        Args:
            since_ms, until_ms: When it was recorded, by the log's time.
        """
        for record in self._decisions.values():
            if record.subject != Subject.PLACE.value or record.leader != by or not since_ms <= record.at_ms <= until_ms:
                continue
            for placed in self.bundle_decisions(record):
                entry = placed.entry
                if isinstance(entry, PlacedEntry) and entry.bundle == bundle and entry.broker in to:
                    return placed
        return None

    def about(self, bundles: Sequence[str]) -> Iterator[BundleDecision]:
        """Everything that was decided about any of these bundles, in log order."""
        wanted = frozenset(bundles)
        for record in self._decisions.values():
            for decided in self.bundle_decisions(record):
                if decided.entry.bundle in wanted:
                    yield decided

    def _forget(self, decision_id: str) -> None:
        record = self._decisions.pop(decision_id)
        for held in (self._bundles, self._outcomes):
            held.pop(decision_id, None)
        for entry in record.deeds:
            if entry.operation is not None and self._operations.get(entry.operation, ("", 0))[0] == decision_id:
                del self._operations[entry.operation]


FIRST_PIECE: Final = 64
PIECE_MAX: Final = 4_096
_WIDER: Final = 8


class DecisionRead(NamedTuple):
    """One record of the topic, or why it cannot be read. `timestamp_ms` is the log's time."""

    offset: int
    timestamp_ms: int
    record: AnyRecord | InvalidRecord


def decision_read(record: RecordRead) -> DecisionRead:
    return DecisionRead(record.offset, record.timestamp_ms, decode(record.key, record.value))


@dataclass(frozen=True, slots=True)
class RecallBounds:
    """Limits of the search.

    Attributes:
        held_bytes: Encoded size of the records that are kept; decoded they take a few times as much.
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
