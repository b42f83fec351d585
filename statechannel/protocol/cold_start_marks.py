"""Marks of cold starts and of lost heads: validity of a partition's `!cold-start` and `!head` records (protocol.md section 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from statechannel.protocol import codec
from statechannel.protocol.digest import version_bound_in
from statechannel.protocol.record import NEWEST_FORMAT
from statechannel.protocol.side_record import json_object

if TYPE_CHECKING:
    from statechannel.protocol.log import RecordRead
    from statechannel.protocol.record import Record


class Mark(NamedTuple):
    """Content of a `!cold-start` record.

    Attributes:
        writer: Incarnation of the process that accepted its view as the truth.
        through: Offset through which it had read the partition then.
        highest: No version above it was accepted before; 0 in marks of older versions.
    """

    writer: str
    through: int
    highest: int = 0


class HeadMark(NamedTuple):
    """Content of a `!head` record: what was deleted from the log's head is asserted below the mark, or given up.

    Attributes:
        writer: Incarnation of the process that wrote the asserts.
        through: Offset through which it had read the partition when it began.
        first: First offset of the log then: a log that begins above it has lost more.
        known: Highest offset that others had read, by the registry, and that the log did not have any more; -1 if none is known.
    """

    writer: str
    through: int
    first: int
    known: int


def _loaded(value: bytes | None) -> dict[str, Any] | None:
    """A mark of either kind, if writer and `through` have their form."""
    loaded = json_object(value)
    if loaded is None or not _is_offset(loaded.get("through")):
        return None
    writer = loaded.get("by")
    if not isinstance(writer, dict) or not codec.is_broker_id(writer.get("broker")):
        return None
    return loaded if codec.is_broker_id(writer.get("incarnation")) else None


def _is_offset(value: object) -> bool:
    return type(value) is int and -1 <= value <= codec.MAX_INT


def decode_mark(value: bytes | None) -> Mark | None:
    loaded = _loaded(value)
    return None if loaded is None else Mark(loaded["by"]["incarnation"], loaded["through"], version_bound_in(loaded))


def decode_head(value: bytes | None) -> HeadMark | None:
    loaded = _loaded(value)
    if loaded is None or not _is_offset(loaded.get("first")) or not _is_offset(loaded.get("known")):
        return None
    return HeadMark(loaded["by"]["incarnation"], loaded["through"], loaded["first"], loaded["known"])


def counts(through: int, offset: int, word: int) -> bool:
    """Whether a mark counts; it is void if a writer that knew the history wrote a heartbeat between `through` and the mark.

    The log alone decides: neither a cold start that was abandoned while its mark was in flight nor a late copy of an old
    mark has an effect.

    Args:
        through: Offset through which the mark's writer had read the partition.
        offset: That of the mark.
        word: The newest heartbeat, or mark that counts, below the mark; -1 without one.
    """
    return word <= through < offset


class Marks:
    """The marks of one partition, in log order; malformed ones are ignored.

    Attributes:
        newest: Offset of the newest mark that counts; -1 without one.
        head: The newest mark of a lost head that counts, and its offset; None without one.
        highest: Highest version that heartbeats and marks of cold starts name: keys that had it may have left no trace.
    """

    def __init__(self) -> None:
        self.newest = -1
        self.mark: Mark | None = None
        self.heartbeat: Record | None = None
        self.head: tuple[int, HeadMark] | None = None
        self.highest = 0
        self._word = -1

    def control_read(self, record: RecordRead, newest_format: int = NEWEST_FORMAT) -> Record | Mark | HeadMark | None:
        """Apply any record; returns a heartbeat, or a mark of either kind that counts; None for everything else.

        The caller checks what a heartbeat vouches for.
        """
        if record.key == codec.HEARTBEAT_KEY:
            heartbeat = codec.decode_heartbeat(record.value, newest_format)
            if heartbeat is not None:
                self.heartbeat_read(record.offset)
                self.heartbeat = heartbeat
                self.highest = max(self.highest, version_bound_in(heartbeat.raw))
            return heartbeat
        if record.key == codec.COLD_START_KEY and self.read(record.offset, record.value):
            return self.mark
        if record.key == codec.HEAD_KEY:
            head = decode_head(record.value)
            # What its writer held before a cold start of another one counts no more.
            if head is not None and self.newest <= head.through < record.offset and head.first <= record.offset:
                self.head = record.offset, head
                return head
        return None

    def restates(self, first_offset: int, known: int) -> bool:
        """Whether a mark says that all that was lost below an offset is asserted again, or given up.

        Args:
            known: Highest offset that a broker is known to have read, if the log does not have it any more; else -1.
        """
        return self.head is not None and self.head[1].first >= first_offset and self.head[1].known >= known

    def heartbeat_read(self, offset: int) -> None:
        """Note a valid heartbeat: its writer knew the history."""
        self._word = offset

    def read(self, offset: int, value: bytes | None) -> bool:
        """Apply a record on the key of the marks; returns whether it is a mark that counts."""
        mark = decode_mark(value)
        if mark is None or not counts(mark.through, offset, self._word):
            return False
        self.newest = self._word = offset
        self.mark = mark
        self.highest = max(self.highest, mark.highest)
        return True
