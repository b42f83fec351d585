"""What has to be known of a whole partition before its namespaces can be judged apart (record format, audit; protocol section 5).

Everything else that a reader knows belongs to one namespace, so that the records of each can be read by another process:
they need the facts gathered here, and nothing of one another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from statechannel.core import codec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from statechannel.core.inputs import RecordRead


class Stop(NamedTuple):
    """Where a newer format stopped the reading of a partition."""

    offset: int
    format: int


class Facts(NamedTuple):
    """How a partition is to be read.

    Attributes:
        lenient_to: Offset through which records are taken as a joining reader takes them; those behind it are judged.
            -1: none, the log has no gaps from offset 0 on.
        stop: The first record of a newer format; nothing behind it is looked at.
        tentative: Nobody vouches for what a join would find: all is taken leniently, and may be wrong.
    """

    lenient_to: int = -1
    stop: Stop | None = None
    tentative: bool = False

    def is_lenient(self, offset: int) -> bool:
        """Whether the record at this offset is taken without a verdict."""
        return self.tentative or offset <= self.lenient_to

    def is_past_stop(self, offset: int) -> bool:
        """Whether the reader has stopped before this offset."""
        return self.stop is not None and offset > self.stop.offset


STRICT = Facts()
"""The facts of a log without gaps from offset 0 on whose stop, if any, is found where it lies."""


def has_gaps(records: Sequence[RecordRead], end_offset: int) -> bool:
    """Whether a partition's records are anything but all the offsets from 0 up to the end offset."""
    return len(records) != end_offset or (bool(records) and records[-1].offset != end_offset - 1)


def newer_format(key: bytes | None, value: bytes | None) -> int:
    """The format that stops a reader at this record; 0 for all that it understands."""
    if value is None or (key is not None and key.startswith(b"!")):
        return 0
    loaded = codec.load_object(value)
    return loaded.format if isinstance(loaded, codec.NewerFormat) else 0


def usable_clean_to(key: bytes | None, value: bytes | None, offset: int) -> int:
    """What a heartbeat at this offset vouches for; -1 for every other record."""
    if key != codec.HEARTBEAT_KEY:
        return -1
    heartbeat = codec.decode_heartbeat(value)
    return heartbeat.clean_to if heartbeat is not None and heartbeat.clean_to < offset else -1


def join_facts(records: Iterable[RecordRead], *, oldest_kept_ms: int) -> Facts:
    """How a log with gaps is read: as a joining member would, with the highest `clean_to` that the log offers.

    Args:
        oldest_kept_ms: Records above that point with a time stamp up to this one may have hidden others from the cleaner.
    """
    stop, clean_to, newest_old = None, -1, -1
    for record in records:
        newer = newer_format(record.key, record.value)
        clean_to = max(clean_to, usable_clean_to(record.key, record.value, record.offset))
        if record.timestamp_ms <= oldest_kept_ms:
            newest_old = record.offset
        if newer:
            stop = Stop(record.offset, newer)
            break
    return vouched(clean_to, newest_old, stop)


def vouched(clean_to: int, newest_old: int, stop: Stop | None) -> Facts:
    """The facts of a log with gaps.

    Args:
        clean_to: Highest usable one before the stop; -1 if there is none.
        newest_old: Offset of the last record before the stop that is at least as old as the compaction lag; -1 if none is.
    """
    return Facts(clean_to, stop, tentative=clean_to < 0 or newest_old > clean_to)
