"""Whether a log vouches by itself, told by brute force from what the cleaner left of it (protocol.md section 5, step 2).

Written from the page alone, so that the readers of the core are measured by something else than themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statechannel.protocol.codec import COLD_START_KEY, HEARTBEAT_KEY, decode_heartbeat
from statechannel.protocol.cold_start_marks import decode_mark

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from statechannel.protocol.log import RecordRead
    from statechannel.sim.log import SimLog


def vouched_to(log: SimLog, end: int, now_ms: int, *, marks: Collection[int] = (), slack_ms: int = 0) -> int:
    """The offset up to which the log below `end` vouches for itself; -1 where it does not.

    Args:
        now_ms: Log time at which the reading ended.
        marks: Offsets of the marks of cold starts that count.
        slack_ms: By so much a reader's idea of log time may be ahead.
    """
    left = [record for record in log.left() if record.offset < end]
    newest = max((_clean_to(record) for record in left), default=-1)
    above = [record for record in left if record.offset > newest]
    oldest_ms = now_ms + slack_ms - log.settings.lag_ms // 2
    is_whole = len(above) == end - 1 - newest
    is_young = all(record.timestamp_ms > oldest_ms for record in above)
    is_unmarked = not any(newest < mark < end for mark in marks)
    return newest if newest >= 0 and is_whole and is_young and is_unmarked else -1


def counting_marks(entries: Sequence[RecordRead]) -> list[int]:
    """Offsets of the marks of cold starts that are not void, of a whole log from offset 0."""
    found: list[int] = []
    for entry in entries:
        mark = decode_mark(entry.value) if entry.key == COLD_START_KEY else None
        if mark is not None and not any(
            other.offset in found or (other.key == HEARTBEAT_KEY and decode_heartbeat(other.value) is not None)
            for other in entries[max(0, mark.through + 1) : entry.offset]
        ):
            found.append(entry.offset)
    return found


def _clean_to(record: RecordRead) -> int:
    heartbeat = decode_heartbeat(record.value) if record.key == HEARTBEAT_KEY else None
    return heartbeat.clean_to if heartbeat is not None and heartbeat.clean_to < record.offset else -1
