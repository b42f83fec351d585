"""Survey of a whole partition before its namespaces can be judged separately (records.md; protocol.md section 5).

All other state of a reader belongs to one namespace, so that the records of each can be read by a different process:
they only need the facts gathered here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from statechannel.protocol import codec
from statechannel.protocol.cold_start_marks import Marks
from statechannel.protocol.gaps import could_be_cleaned
from statechannel.protocol.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from statechannel.protocol.cold_start_marks import HeadMark
    from statechannel.protocol.log import RecordRead
    from statechannel.protocol.overruling import MarkedColdStart


class FormatStop(NamedTuple):
    """Position at which a newer format stopped the read of a partition."""

    offset: int
    format: int


class ReadFacts(NamedTuple):
    """Facts that determine how a partition is read.

    Attributes:
        lenient_to: Offset through which records are read leniently; later ones are judged.
            -1: none, the log has no gaps from offset 0 on.
        stop: The first record of a newer format; later ones are ignored.
        tentative: No heartbeat vouches for the result of a join, or the head of the log is lost: all is read leniently, and may
            be wrong.
        head_lost: First offset of a log from whose head records were deleted that no broker has restated; 0: it has its head.
        cold_starts: Those of a partition whose namespaces are read separately; None: the reader gets all records, and
            finds them itself.
    """

    lenient_to: int = -1
    stop: FormatStop | None = None
    tentative: bool = False
    cold_starts: tuple[MarkedColdStart, ...] | None = None
    head_lost: int = 0

    def is_lenient(self, offset: int) -> bool:
        return self.tentative or offset <= self.lenient_to


class CompleteFrom(NamedTuple):
    """Point from which on a log with gaps is complete.

    Attributes:
        story_from: Later records are judged strictly: the history is known from the next offset on.
        states_from: Offset of the heartbeat that vouches for it: a read up to it, or further, knows the accepted states.
        since_ms: Its log time.
    """

    story_from: int
    states_from: int
    since_ms: int


STRICT = ReadFacts()
"""The facts of a log without gaps from offset 0 on; its stop, if any, is found during the read."""


def has_gaps(records: Sequence[RecordRead], end_offset: int, *, oldest_kept_ms: int) -> bool:
    """Whether records of a partition may have been cleaned away: offsets are missing behind one that was old enough.

    Args:
        oldest_kept_ms: When the log was read, minus the compaction lag. No later record was cleaned.
    """
    if len(records) == end_offset and (not records or records[-1].offset == end_offset - 1):
        return False
    expected, before_ms = 0, None
    for record in records:
        if record.offset != expected and could_be_cleaned(before_ms, oldest_kept_ms, 0):
            return True
        expected, before_ms = record.offset + 1, record.timestamp_ms
    return expected != end_offset and could_be_cleaned(before_ms, oldest_kept_ms, 0)


def facts_of(
    records: Sequence[RecordRead], end_offset: int, *, oldest_kept_ms: int, first_offset: int = 0
) -> ReadFacts:
    """How a partition is read: strictly, or like a joining member where it has gaps."""
    if has_gaps(records, end_offset, oldest_kept_ms=oldest_kept_ms):
        return join_facts(records, oldest_kept_ms=oldest_kept_ms, first_offset=first_offset)
    return STRICT


def usable_clean_to(key: bytes | None, value: bytes | None, offset: int) -> int:
    """The offset that a heartbeat at this offset vouches for; -1 for every other record."""
    if key != codec.HEARTBEAT_KEY:
        return -1
    heartbeat = codec.decode_heartbeat(value)
    return heartbeat.clean_to if heartbeat is not None and heartbeat.clean_to < offset else -1


def _usable(marks: Marks, record: RecordRead) -> int:
    """As `usable_clean_to`; who vouches has to have read the marks of cold starts below its heartbeat."""
    control = marks.control_read(record)
    if not isinstance(control, Record) or not marks.newest <= control.clean_to < record.offset:
        return -1
    return control.clean_to


def join_facts(records: Iterable[RecordRead], *, oldest_kept_ms: int, first_offset: int = 0) -> ReadFacts:
    """Facts for a log with gaps: read as by a joining member, with the highest `clean_to` in the log.

    Args:
        oldest_kept_ms: Records above that point with a timestamp up to this one may have hidden others before compaction.
        first_offset: Of the log: compaction never moves it, so that above 0 records were deleted.
    """
    stop, clean_to, newest_old = None, -1, -1
    marks = Marks()
    for record in records:
        newer = codec.newer_format(record.key, record.value)
        clean_to = max(clean_to, _usable(marks, record))
        if record.timestamp_ms <= oldest_kept_ms:
            newest_old = record.offset
        if newer:
            stop = FormatStop(record.offset, newer)
            break
    return with_head(vouched(clean_to, newest_old, stop), marks.head, first_offset)


def with_head(facts: ReadFacts, head: tuple[int, HeadMark] | None, first_offset: int) -> ReadFacts:
    """The facts of a log from whose head records may have been deleted.

    Args:
        head: The newest mark of a lost head that counts, and its offset.
    """
    if first_offset <= 0:
        return facts
    if head is None or head[1].first < first_offset:
        return facts._replace(tentative=True, head_lost=first_offset)
    return facts._replace(
        tentative=facts.tentative or facts.lenient_to < head[0]
    )  # who vouches has to have read the mark


class Knowing:
    """Finds the first point from which on a log with gaps is complete; feed it every record up to the stop, in order.

    A joining reader uses the newest vouching heartbeat. For the history the oldest one is as good, if nothing after
    its offset can have been compacted: no record there is as old as the compaction lag, and no offset that can have been
    cleaned is missing (decision 0054).

    If none of the oldest qualifies, it is the newest that vouches for all old records.
    """

    def __init__(self, oldest_kept_ms: int) -> None:
        self._oldest_kept_ms = oldest_kept_ms
        self._floor = -1
        self._newest_old = -1
        self._next = 0
        self._before_ms: int | None = None
        self._marks = Marks()
        self._first: CompleteFrom | None = None
        self._highest: CompleteFrom | None = None

    def take(self, record: RecordRead) -> None:
        if record.offset != self._next and could_be_cleaned(self._before_ms, self._oldest_kept_ms, 0):
            self._rise(record.offset - 1)
        self._next, self._before_ms = record.offset + 1, record.timestamp_ms
        if record.timestamp_ms <= self._oldest_kept_ms:
            self._newest_old = record.offset
            self._rise(record.offset)
        clean_to = _usable(self._marks, record)
        if self._marks.head is not None and self._marks.head[0] == record.offset:
            self._rise(record.offset)  # what was deleted from the head is asserted below this mark
        if clean_to < 0:
            return
        point = CompleteFrom(clean_to, record.offset, record.timestamp_ms)
        if clean_to >= self._floor and (self._first is None or point < self._first):
            self._first = point
        if self._highest is None or clean_to > self._highest.story_from:
            self._highest = point

    def _rise(self, offset: int) -> None:
        self._floor = offset
        self._first = None

    @property
    def known(self) -> CompleteFrom | None:
        """The point; None without a heartbeat that vouches for all old records."""
        if self._first is not None:
            return self._first
        highest = self._highest
        return highest if highest is not None and highest.story_from >= self._newest_old else None


def known_of(records: Iterable[RecordRead], *, oldest_kept_ms: int) -> CompleteFrom | None:
    """The point of `Knowing` for records up to a newer format."""
    knowing = Knowing(oldest_kept_ms)
    for record in records:
        if codec.newer_format(record.key, record.value):
            break
        knowing.take(record)
    return knowing.known


def story_facts(facts: ReadFacts, known: CompleteFrom | None) -> ReadFacts:
    """Facts for the history of a partition with gaps: as for its states, but judged strictly from earlier on."""
    if facts.tentative or known is None or known.story_from >= facts.lenient_to:
        return facts
    return facts._replace(lenient_to=known.story_from)


def vouched(clean_to: int, newest_old: int, stop: FormatStop | None) -> ReadFacts:
    """The facts of a log with gaps.

    Args:
        clean_to: Highest usable one before the stop; -1 if there is none.
        newest_old: Offset of the last record before the stop that is at least as old as the compaction lag; -1 if none is.
    """
    return ReadFacts(clean_to, stop, tentative=clean_to < 0 or newest_old > clean_to)
