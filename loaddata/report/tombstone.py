"""Tombstones of load data: a null value whose headers name the record that it deletes. Pure.

The Spark job writes them, or the leader where that job is off, or a broker that leaves. Between reading a record and
writing its tombstone a fresher record may have been written: a tombstone therefore counts only if it names a record at
least as new as the one that the reader holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice
from typing import Final, NamedTuple

from statechannel.protocol.side_record import Headers

REASON: Final = "reason"
LAST_OFFSET: Final = "last-offset"
DEADLINE: Final = "deadline"

EXPIRED: Final = "expired"
LEAVING: Final = "leaving"

_NUMBER = re.compile(rb"[0-9]{1,18}").fullmatch
_REASON = re.compile(rb"[a-z0-9-]{1,64}").fullmatch
_HEADERS_MAX = 32


class Tombstone(NamedTuple):
    """The headers of a tombstone.

    Attributes:
        reason: A stable word of `a-z0-9-`: `expired`, `leaving`, or another one of its writer's.
        last_offset: Offset of the newest record of the key that its writer knew.
        deadline_ms: Wall time at which that record expired; for people.
    """

    reason: str
    last_offset: int
    deadline_ms: int

    def honoured_over(self, held_offset: int) -> bool:
        """Whether it deletes the record at this offset: it must name that one or a newer one."""
        return self.last_offset >= held_offset

    def headers(self) -> Headers:
        """As Kafka headers."""
        return (
            (REASON, self.reason.encode()),
            (LAST_OFFSET, b"%d" % self.last_offset),
            (DEADLINE, b"%d" % self.deadline_ms),
        )


def parse_tombstone(headers: Iterable[tuple[str, bytes | None]], offset: int) -> Tombstone | None:
    """The tombstone from headers; None if one is missing, duplicated or malformed: then it deletes nothing.

    Args:
        offset: Of the null itself: a tombstone cannot name a later record.
    """
    values: dict[str, bytes] = {}
    for name, value in islice(headers, _HEADERS_MAX):
        if name not in (REASON, LAST_OFFSET, DEADLINE):
            continue
        if name in values or value is None:
            return None
        values[name] = value
    good = len(values) == 3 and _REASON(values[REASON]) and _NUMBER(values[LAST_OFFSET]) and _NUMBER(values[DEADLINE])  # noqa: PLR2004 - the three
    if not good or int(values[LAST_OFFSET]) >= offset:
        return None
    return Tombstone(values[REASON].decode(), int(values[LAST_OFFSET]), int(values[DEADLINE]))
