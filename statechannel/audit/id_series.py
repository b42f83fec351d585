"""Records that bear a process's name and whose ids are not of its series: somebody else wrote them. Pure.

A process makes its ids of its own entropy and a counter (`statechannel.engine.provenance.OwnIds`): the random parts of its
ids lie close together, and an id made elsewhere far from them. The process itself tells at once (`record.forged`); this is what
a log tells long afterwards, of a process that has written a few records in the namespace before. An import, and what makes
each id anew, has no series. Where ids of another series come among those first ones, the log does not tell whose the process
makes, and nothing is said of any. Who copies an id, or counts on from one, is not found out here.
"""

from __future__ import annotations

from dataclasses import dataclass

from ulid import ULID

from statechannel.protocol.bounded import remember
from statechannel.protocol.bundle import parse_key
from statechannel.protocol.log import RecordRead
from statechannel.protocol.record import Record

FOREIGN = "its id is none that this process makes: somebody else wrote it in its name"
_RANDOM = 2**80 - 1
_COUNT_MAX = 2**40
"""More records than a process ever writes; far below the distance of two random numbers."""
_SURE = 3
"""Ids of so many milliseconds close together are a series."""
_PROCESSES_MAX = 100_000


@dataclass(slots=True)
class _Series:
    """Ids that lie close together.

    Attributes:
        seen: Milliseconds in which ids of it were made.
        mixed: Others came before there were enough of them.
    """

    base: int
    made_ms: int
    seen: int = 1
    mixed: bool = False


class IdSeries:
    """Knows the series of each process, by namespace: so every engine comes to the same, whatever it reads together."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str, str], _Series] = {}

    def is_foreign(self, record: RecordRead, decoded: Record | None) -> bool:
        """Take in a record, and say whether its id is not of the series of the process that it names."""
        parts = None if record.key is None else parse_key(record.key)
        if decoded is None or parts is None:
            return False
        name = decoded.broker, decoded.incarnation, parts.namespace
        held = self._of.get(name)
        try:
            made_ms, random = divmod(int(ULID.from_str(decoded.id)), _RANDOM + 1)
        except ValueError:  # who makes ids of this form makes no others
            return held is not None and held.seen >= _SURE and not held.mixed
        if held is None:
            remember(self._of, name, _Series(random, made_ms), _PROCESSES_MAX)
        elif min((random - held.base) & _RANDOM, (held.base - random) & _RANDOM) < _COUNT_MAX:
            # Makers of ULIDs count on within a millisecond, though each millisecond has a random part of its own.
            held.seen += made_ms != held.made_ms
            held.made_ms = made_ms
        elif held.mixed or held.seen < _SURE:
            held.mixed = True
        else:
            return True
        return False
