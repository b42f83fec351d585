"""Detection of forged records: records under a process's name whose ids are not of its series. Pure.

A process creates its ids from its own entropy and a counter (`statechannel.engine.provenance.OwnIds`): the random parts of its
ids are close together, and an id created elsewhere is far from them. The process itself reports this at once (`record.forged`);
this is what a log shows long afterwards, for a process that has written a few records in the namespace before. An import, and a
writer of random ids, have no series. If ids of another series are mixed with the first ones, the log does not show which are
the process's own, and none is reported. An id that another record has is a copy. Ids that continue a series are not detected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from ulid import ULID

from statechannel.protocol.bounded import remember
from statechannel.protocol.bundle import parse_key
from statechannel.protocol.log import RecordRead
from statechannel.protocol.record import Record

FOREIGN = "its id is not of this process's series: another process wrote it under its name"
_RANDOM = 2**80 - 1
_COUNT_MAX = 2**40
"""More records than a process ever writes; far below the distance of two random numbers."""
_LENGTH, _TIME, _ALIKE = 26, 10, 18
"""Of the digits of an id: all, those of its time, and with the leading ones of its random part. The other 8 are 40 bits."""
_SURE = 3
"""Number of milliseconds with close ids that make a series."""
_PROCESSES_MAX = 100_000


@dataclass(slots=True)
class _Series:
    """Ids that are close together.

    Attributes:
        created: The millisecond of the newest one, as written in it.
        alike: Leading digits of the random part of one of them, which close ids have in common.
        seen: Milliseconds in which its ids were created.
        mixed: Other ids arrived before there were enough of them.
    """

    base: int
    created: str
    alike: str
    seen: int = 1
    mixed: bool = False


class IdSeries:
    """The series of each process, by namespace: so every engine gets the same result, however it splits the log."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str, str], _Series] = {}

    def is_foreign(self, record: RecordRead, decoded: Record | None) -> bool:
        """Apply a record; returns whether its id is foreign to the series of its process."""
        parts = None if record.key is None else parse_key(record.key)
        if decoded is None or parts is None:
            return False
        name = decoded.broker, decoded.incarnation, parts.namespace
        held = self._of.get(name)
        if held is not None and decoded.id[_TIME:_ALIKE] == held.alike and len(decoded.id) == _LENGTH:
            # The usual case, without reading the number: it differs from the newest one in its last digits only.
            held.seen += decoded.id[:_TIME] != held.created
            held.created = decoded.id[:_TIME]
            return False
        try:
            random = int(ULID.from_str(decoded.id)) & _RANDOM
        except ValueError:  # who makes ids of this form makes no others
            return held is not None and held.seen >= _SURE and not held.mixed
        if held is None:
            remember(self._of, name, _Series(random, decoded.id[:_TIME], decoded.id[_TIME:_ALIKE]), _PROCESSES_MAX)
        elif min((random - held.base) & _RANDOM, (held.base - random) & _RANDOM) < _COUNT_MAX:
            # Makers of ULIDs count on within a millisecond, though each millisecond has a random part of its own.
            held.seen += decoded.id[:_TIME] != held.created
            held.created, held.alike = decoded.id[:_TIME], decoded.id[_TIME:_ALIKE]
        elif held.mixed or held.seen < _SURE:
            held.mixed = True
        else:
            return True
        return False


_IDS_MAX = 20_000
"""Newest ids of the log that are compared with later ones."""


class _Use(NamedTuple):
    offset: int
    key: bytes | None
    content: int


class UsedIds:
    """The records that bear an id: each has its own; only copies of a record, by the retry of its writer, share one."""

    def __init__(self) -> None:
        self._of: dict[str, _Use] = {}

    def use(self, record: RecordRead, decoded: Record) -> str:
        """Apply a record.

        Returns:
            A sentence where another record of the namespace has its id: of another key, or with other content; empty: none has.
        """
        used, content = self._of.get(decoded.id), crc32(record.value or b"")
        if used is None:
            remember(self._of, decoded.id, _Use(record.offset, record.key, content), _IDS_MAX)
        elif used.offset != record.offset and used.key != record.key:
            if _namespace_of(used.key) == _namespace_of(record.key):
                where = (used.key or b"").decode(errors="replace")
                return f"same id as offset {used.offset}, of another key ({where})"
        elif used.offset != record.offset and used.content != content:
            return f"same id as offset {used.offset}, other content"
        return ""


def _namespace_of(key: bytes | None) -> bytes:
    return b"/".join((key or b"").split(b"/", 2)[:2])
