"""What may stand on the key of the cold starts, in one log for all readers: whether it counts must be the same for each."""

from typing import NamedTuple

from statechannel.protocol.log import RecordRead, Topic
from tests.support.lone_engine import CREATED, NAMESPACE, heartbeat, mark

COLD_START = b"!cold-start"
AT = 4
"""Offset of the record in question; heartbeats lie at 2 and 3 and, if wanted, at 5."""


class Case(NamedTuple):
    """A value on `!cold-start` at offset `AT`, and whether it is a mark that counts there."""

    value: bytes | None
    counts: bool


CASES = {
    "a valid mark": Case(mark("b-1", 3), counts=True),
    "a heartbeat in between": Case(mark("b-1", 2), counts=False),
    "heartbeats in between": Case(mark("b-1", 0), counts=False),
    "it has read itself": Case(mark("b-1", 4), counts=False),
    "it has read what does not exist": Case(mark("b-1", 9), counts=False),
    "no integer of the format": Case(mark("b-1", 2**63), counts=False),
    "junk": Case(b"x", counts=False),
    "null": Case(None, counts=False),
    "no writer": Case(b'{"through":3}', counts=False),
}


def marked_log(case: Case, *, vouched: bool, partition: int = 0, at_ms: int = 1) -> list[RecordRead]:
    """A log whose first record was cleaned away.

    Args:
        vouched: Whether somebody who has read the record vouches for the log.
        at_ms: Log time of all records.
    """
    rows: list[tuple[bytes, bytes | None]] = [
        (NAMESPACE, CREATED),
        (b"!heartbeat", heartbeat("b-1", 1)),
        (b"!heartbeat", heartbeat("b-1", 2)),
        (COLD_START, case.value),
    ]
    if vouched:
        rows.append((b"!heartbeat", heartbeat("b-1", 4)))
    return [
        RecordRead(Topic.CHANNEL, partition, offset, at_ms, key, value) for offset, (key, value) in enumerate(rows, 1)
    ]


def two_marks_log() -> list[RecordRead]:
    """Two marks of processes that had read equally far: the second is void, and the heartbeat behind it knows only the first."""
    log = marked_log(CASES["a valid mark"], vouched=False)
    more = [(COLD_START, mark("c-1", 3)), (b"!heartbeat", heartbeat("b-1", 4)), (b"!heartbeat", heartbeat("b-1", 6))]
    return log + [RecordRead(Topic.CHANNEL, 0, offset, 1, key, value) for offset, (key, value) in enumerate(more, 5)]
