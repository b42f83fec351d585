"""Reader of a part of a log, a partition or some of its namespaces, by the facts of the whole partition.

Records may be passed in pieces, so that a caller with records of several partitions can pass each to its reader.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from statechannel.protocol.bulk_fold import judge_many
from statechannel.protocol.joiner import Joiner
from statechannel.protocol.log import RecordRead
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement, View
from statechannel.replay.survey import FormatStop, ReadFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from statechannel.protocol.bulk_fold import Row
    from statechannel.protocol.record import Record

    Observer = Callable[[RecordRead, Judgement], None]


class JoinObserver(Protocol):
    """Observer of leniently read records."""

    def taken(self, record: RecordRead, decoded: Record) -> None:
        """The joining reader now holds this record for its key."""
        ...

    def joined(self, view: View, *, sure: bool) -> None:
        """The final view of the joining reader, before anything is judged by it.

        Args:
            sure: A heartbeat vouches for it.
        """
        ...


@dataclass(slots=True)
class PartitionAudit:
    """Findings of one partition.

    Attributes:
        strict_from: Offset from which records were judged strictly; None if none was.
        tentative: The partition could only be read leniently: its accepted states may be wrong.
    """

    view: View
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    stop: FormatStop | None = None
    tentative: bool = False
    strict_from: int | None = 0


class PartReader:
    """Reads records in the order of their offsets, in any number of pieces.

    Args:
        observe: Called with every record that is judged strictly. Without it, the fast path is used.
        join_observer: Called with leniently read records.
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
        self._audit = PartitionAudit(
            View(partition, partitions),
            stop=facts.stop,
            tentative=facts.tentative,
            strict_from=None if facts.tentative else facts.lenient_to + 1,
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
        if self._observe is None:
            self._judge(rows)
        else:
            self._observe_rows(self._observe, rows)

    @property
    def view(self) -> View:
        """The accepted states so far; empty during a lenient read."""
        return self._audit.view

    def result(self) -> PartitionAudit:
        """Findings of all records read."""
        if self._joiner is not None:
            self._joined(self._joiner)
        self._ended = True
        return self._audit

    def _until(self, stop: FormatStop, rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            if row[2] > stop.offset:
                self._ended = True
                return
            yield row

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
            if observer is not None and key is not None:
                held = joiner.held.get(key)
                if held is not None and held.offset == offset:
                    observer.taken(RecordRead._make(row), held.record)

    def _joined(self, joiner: Joiner) -> None:
        self._audit.view = joiner.view()
        self._joiner = None
        if self._join_observer is not None:
            self._join_observer.joined(self._audit.view, sure=not self._facts.tentative)

    def _judge(self, rows: Iterator[Row]) -> None:
        # The view of a joiner is there only when the first record behind it is: it may not be looked at before.
        first = next(rows, None)
        if first is None:
            return
        for some in ((first,), rows):
            stop = judge_many(self._audit.view, some, self._audit.verdicts)
            if stop is not None:
                self._stopped(*stop)
                return

    def _observe_rows(self, observe: Observer, rows: Iterator[Row]) -> None:
        verdicts, part = self._audit.verdicts, self._audit
        for row in rows:
            judgement = part.view.read(row[2], row[4], row[5])
            verdicts[judgement.verdict] += 1
            observe(row if isinstance(row, RecordRead) else RecordRead._make(row), judgement)
            if judgement.verdict is Verdict.UNSUPPORTED_FORMAT:
                self._stopped(row[2], judgement.format)
                return

    def _stopped(self, offset: int, newer_format: int) -> None:
        self._audit.stop = FormatStop(offset, newer_format)
        self._ended = True
