"""Survey of a whole partition before its namespaces can be judged separately (records.md; protocol.md section 5).

All other state of a reader belongs to one namespace, so that the records of each can be read by a different process:
they only need the facts gathered here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from statechannel.protocol import codec
from statechannel.protocol.cold_start_marks import HeadMark, Mark, Marks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from statechannel.protocol.log import RecordRead
    from statechannel.protocol.record import Record


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
        tentative: No heartbeat vouches for the result of a join: all is read leniently, and may be wrong.
    """

    lenient_to: int = -1
    stop: FormatStop | None = None
    tentative: bool = False

    def is_lenient(self, offset: int) -> bool:
        """Whether the record at this offset is read leniently."""
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


def has_gaps(records: Sequence[RecordRead], end_offset: int) -> bool:
    """Whether a partition's records are not all offsets from 0 up to the end offset."""
    return len(records) != end_offset or (bool(records) and records[-1].offset != end_offset - 1)


def usable_clean_to(key: bytes | None, value: bytes | None, offset: int) -> int:
    """The offset that a heartbeat at this offset vouches for; -1 for every other record."""
    if key != codec.HEARTBEAT_KEY:
        return -1
    return _usable(codec.decode_heartbeat(value), offset)


def _usable(heartbeat: Record | None, offset: int) -> int:
    return heartbeat.clean_to if heartbeat is not None and heartbeat.clean_to < offset else -1


def join_facts(records: Iterable[RecordRead], *, oldest_kept_ms: int) -> ReadFacts:
    """Facts for a log with gaps: read as by a joining member, with the highest `clean_to` in the log.

    Args:
        oldest_kept_ms: Records above that point with a timestamp up to this one may have hidden others before compaction.
    """
    stop, clean_to, newest_old = None, -1, -1
    for record in records:
        newer = codec.newer_format(record.key, record.value)
        clean_to = max(clean_to, usable_clean_to(record.key, record.value, record.offset))
        if record.timestamp_ms <= oldest_kept_ms:
            newest_old = record.offset
        if newer:
            stop = FormatStop(record.offset, newer)
            break
    return vouched(clean_to, newest_old, stop)


class Knowing:
    """Finds the first point from which on a log with gaps is complete; feed it every record up to the stop, in order.

    A joining reader uses the newest vouching heartbeat. For the history the oldest one is as good, if nothing after
    its offset can have been compacted: no record there is as old as the compaction lag, no offset is
    missing, and there was no cold start (decision 0054); a void mark, or junk on that key, has no effect.

    If none of the oldest qualifies, it is the newest that vouches for all old records.
    """

    def __init__(self, oldest_kept_ms: int) -> None:
        self._oldest_kept_ms = oldest_kept_ms
        self._floor = -1
        self._newest_old = -1
        self._next = 0
        self._marks = Marks()
        self._first: CompleteFrom | None = None
        self._highest: CompleteFrom | None = None

    def take(self, record: RecordRead) -> None:
        """Apply the next record."""
        if record.offset != self._next:
            self._rise(record.offset - 1)
        self._next = record.offset + 1
        if record.timestamp_ms <= self._oldest_kept_ms:
            self._newest_old = record.offset
            self._rise(record.offset)
        control = self._marks.control_read(record)
        if isinstance(control, Mark | HeadMark):
            self._rise(record.offset)
            return
        clean_to = _usable(control, record.offset)
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
