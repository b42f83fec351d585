"""Reader of a part of a log, a partition or some of its namespaces, by the facts of the whole partition.

Records may be passed in pieces, so that a caller with records of several partitions can pass each to its reader.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from statechannel.protocol.bulk_fold import judge_many
from statechannel.protocol.codec import COLD_START_KEY, HEAD_KEY, HEARTBEAT_KEY
from statechannel.protocol.joiner import Joiner
from statechannel.protocol.log import RecordRead
from statechannel.protocol.overruling import StrictReader
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement, View
from statechannel.replay.survey import FormatStop, ReadFacts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from statechannel.protocol.bulk_fold import Row
    from statechannel.protocol.cold_start_marks import HeadMark
    from statechannel.protocol.overruling import MarkedColdStart
    from statechannel.protocol.record import Record

Observer = Callable[[RecordRead, Judgement], None]
"""Gets every record that is judged strictly, with its judgement."""


def each_of(observers: Sequence[Observer]) -> Observer | None:
    """Several observers as one; None if there is none."""
    if len(observers) <= 1:
        return observers[0] if observers else None

    def observe(record: RecordRead, judgement: Judgement) -> None:
        for observer in observers:
            observer(record, judgement)

    return observe


class JoinObserver:
    """Observer of what happens between the records that are judged: a join, and cold starts.

    A subclass ignores what it does not define.
    """

    def taken(self, record: RecordRead, decoded: Record) -> None:
        """The joining reader now holds this record for its key."""

    def joined(self, view: View, *, sure: bool) -> None:
        """The final view of the joining reader, before anything is judged by it.

        Args:
            sure: A heartbeat vouches for it.
        """

    def overruled(self, cold_start: MarkedColdStart, view: View) -> None:
        """A cold start has changed accepted states; `view` has the new ones, in new objects."""


class Listeners(JoinObserver):
    def __init__(self, listening: Sequence[JoinObserver]) -> None:
        self._listening = listening

    def taken(self, record: RecordRead, decoded: Record) -> None:
        for observer in self._listening:
            observer.taken(record, decoded)

    def joined(self, view: View, *, sure: bool) -> None:
        for observer in self._listening:
            observer.joined(view, sure=sure)

    def overruled(self, cold_start: MarkedColdStart, view: View) -> None:
        for observer in self._listening:
            observer.overruled(cold_start, view)


@dataclass(slots=True)
class PartitionAudit:
    """Findings of one partition.

    Attributes:
        strict_from: Offset from which records were judged strictly; None if none was.
        tentative: The partition could only be read leniently: its accepted states may be wrong.
        cold_starts: In log order; of those that were read leniently it is unknown what they changed.
        head: The newest mark that says that what was deleted from the log's head was restated; None without one.
        head_lost: First offset of a log from whose head records were deleted that no mark restates; else 0.
    """

    view: View
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    stop: FormatStop | None = None
    tentative: bool = False
    strict_from: int | None = 0
    cold_starts: list[MarkedColdStart] = field(default_factory=list)
    head: HeadMark | None = None
    head_lost: int = 0


class PartReader:
    """Reads records in the order of their offsets, in any number of pieces.

    Args:
        observe: Called with every record that is judged strictly. Without it, the fast path is used.
        join_observer: Called with leniently read records, and at cold starts.
    """

    def __init__(
        self,
        partition: int,
        partitions: int,
        facts: ReadFacts,
        observe: Observer | None = None,
        join_observer: JoinObserver | None = None,
    ) -> None:
        self._facts = facts
        self._observe = observe
        self._join_observer = join_observer
        self._ended = False
        self._joiner = Joiner(partition, partitions) if facts.tentative or facts.lenient_to >= 0 else None
        self._reader = StrictReader(View(partition, partitions), finds_marks=facts.cold_starts is None)
        self._due = deque(item for item in facts.cold_starts or () if not facts.is_lenient(item.offset))
        self._audit = PartitionAudit(
            self._reader.view,
            stop=facts.stop,
            tentative=facts.tentative,
            strict_from=None if facts.tentative else facts.lenient_to + 1,
            head_lost=facts.head_lost,
        )

    def read(self, records: Iterable[Row]) -> None:
        """Read more records, tuples in the form of `RecordRead`."""
        if self._ended:
            return
        rows = iter(records)
        if self._facts.stop is not None:
            rows = self._until(self._facts.stop, rows)
        if self._joiner is not None:
            rows = self._join(self._joiner, rows)
        while self._due and not self._ended:
            held: list[Row] = []
            self._judge(self._until_mark(self._due[0].offset, rows, held))
            if not held:
                return
            self._start_cold()
            rows = chain(held, rows)
        if not self._ended:
            self._judge(rows)

    @property
    def view(self) -> View:
        """The accepted states so far; empty during a lenient read."""
        return self._reader.view

    def result(self) -> PartitionAudit:
        if self._joiner is not None:
            self._joined(self._joiner)
        while self._due:
            self._start_cold()
        self._ended = True
        self._audit.view = self._reader.view
        self._audit.cold_starts = self._reader.cold_starts
        self._audit.head = self._reader.head
        return self._audit

    def _until(self, stop: FormatStop, rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            if row[2] > stop.offset:
                self._ended = True
                return
            yield row

    @staticmethod
    def _until_mark(offset: int, rows: Iterator[Row], held: list[Row]) -> Iterator[Row]:
        """The rows up to a mark; the first behind it goes to `held`."""
        for row in rows:
            if row[2] > offset:
                held.append(row)
                return
            yield row

    def _start_cold(self) -> None:
        self._reader.start_cold(self._due.popleft())
        self._tell_overruled()

    def _tell_overruled(self) -> None:
        newest = self._reader.cold_starts[-1]
        if self._join_observer is not None and newest.overruled:
            self._join_observer.overruled(newest, self._reader.view)

    def _join(self, joiner: Joiner, rows: Iterator[Row]) -> Iterator[Row]:
        """Apply the records to be read leniently; returns the rest."""
        is_lenient, read, observer = self._facts.is_lenient, joiner.read, self._join_observer
        for row in rows:
            _, _, offset, _, key, value = row
            if not is_lenient(offset):
                self._joined(joiner)
                yield row
                yield from rows
                return
            read(offset, key, value)
            if key is None:
                continue
            if key in (COLD_START_KEY, HEAD_KEY, HEARTBEAT_KEY):
                self._reader.read_leniently(RecordRead._make(row))
            elif observer is not None:
                held = joiner.held.get(key)
                if held is not None and held.offset == offset:
                    observer.taken(RecordRead._make(row), held.record)

    def _joined(self, joiner: Joiner) -> None:
        self._reader.view = joiner.view()
        self._joiner = None
        if self._join_observer is not None:
            self._join_observer.joined(self._reader.view, sure=not self._facts.tentative)

    def _judge(self, rows: Iterator[Row]) -> None:
        if self._observe is not None:
            self._observe_rows(self._observe, rows)
            return
        stop = judge_many(self._reader, rows, self._audit.verdicts)
        if stop is not None:
            self._stopped(*stop)

    def _observe_rows(self, observe: Observer, rows: Iterator[Row]) -> None:
        verdicts, reader = self._audit.verdicts, self._reader
        for row in rows:
            record = row if isinstance(row, RecordRead) else RecordRead._make(row)
            count = len(reader.cold_starts)
            judgement = reader.read(record)
            verdicts[judgement.verdict] += 1
            observe(record, judgement)
            if len(reader.cold_starts) > count:
                self._tell_overruled()
            if judgement.verdict is Verdict.UNSUPPORTED_FORMAT:
                self._stopped(record.offset, judgement.format)
                return

    def _stopped(self, offset: int, newer_format: int) -> None:
        self._audit.stop = FormatStop(offset, newer_format)
        self._ended = True
