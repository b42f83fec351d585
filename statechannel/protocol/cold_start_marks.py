"""Marks of cold starts: validity of a partition's `!cold-start` records (protocol.md section 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import orjson

from statechannel.protocol import codec
from statechannel.protocol.record import NEWEST_FORMAT

if TYPE_CHECKING:
    from statechannel.protocol.log import RecordRead
    from statechannel.protocol.record import Record


class Mark(NamedTuple):
    """Content of a `!cold-start` record.

    Attributes:
        writer: Incarnation of the process that accepted its view as the truth.
        through: Offset through which it had read the partition then.
    """

    writer: str
    through: int


def decode_mark(value: bytes | None) -> Mark | None:
    """Content of a `!cold-start` record; None for other records."""
    try:
        loaded = orjson.loads(value or b"")
    except orjson.JSONDecodeError:
        return None
    through = loaded.get("through") if isinstance(loaded, dict) else None
    if type(through) is not int or not -1 <= through <= codec.MAX_INT:
        return None
    writer = loaded.get("by")
    if not isinstance(writer, dict) or not codec.is_broker_id(writer.get("broker")):
        return None
    incarnation = writer.get("incarnation")
    return Mark(incarnation, through) if codec.is_broker_id(incarnation) else None


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
        mark: Its content.
    """

    def __init__(self) -> None:
        self.newest = -1
        self.mark: Mark | None = None
        self._word = -1

    def control_read(self, record: RecordRead, newest_format: int = NEWEST_FORMAT) -> Record | Mark | None:
        """Apply any record; returns a heartbeat, or a mark that counts; None for everything else.

        The caller checks what a heartbeat vouches for.
        """
        if record.key == codec.HEARTBEAT_KEY:
            heartbeat = codec.decode_heartbeat(record.value, newest_format)
            if heartbeat is not None:
                self.heartbeat_read(record.offset)
            return heartbeat
        if record.key == codec.COLD_START_KEY and self.read(record.offset, record.value):
            return self.mark
        return None

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
        return True
