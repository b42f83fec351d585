"""Where a joining reader begins to judge: protocol.md section 5, steps 1 to 4, found anew from nothing after every record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.twin import strictjson, wire
from tests.twin.wire import Line


@dataclass(frozen=True)
class Joined:
    """Records above `through` are judged, those up to it were taken leniently; -1: all are judged."""

    through: int


@dataclass(frozen=True)
class Waits:
    """Nobody vouches yet."""


@dataclass(frozen=True)
class StartsOver:
    """An offset that was written after the start is missing."""


Outcome = Joined | Waits | StartsOver


def join(
    log: Sequence[Line],
    end: int,
    ended_ms: int | None,
    half_lag_ms: int,
    *,
    read_ms: int | None = None,
    waited_ms: int = 0,
) -> Outcome:
    """What a reader has come to that has read these records and nothing else.

    Args:
        end: End offset as of the start; all that is left below it was read.
        ended_ms: Kafka's clock when the reading came there; None where it is not known.
        read_ms: The same, if it was known while the log was read.
        waited_ms: Time between the start and the records above the end.
    """
    there = {line.offset: line.timestamp_ms for line in log}
    position = max([end, *(offset + 1 for offset in there)])
    missing = [offset for offset in range(position) if offset not in there]

    def around(offset: int) -> tuple[int | None, int | None]:
        """Log times of the records before and behind an offset."""
        before = max(((other, ms) for other, ms in there.items() if other < offset), default=(-1, None))
        behind = min(((other, ms) for other, ms in there.items() if other > offset), default=(-1, None))
        return before[1], behind[1]

    def cleaned(offset: int, now_ms: int | None) -> bool:
        """Whether the cleaner may have taken an offset: it was written after the record before it."""
        before_ms, _ = around(offset)
        return now_ms is None or before_ms is None or now_ms - before_ms >= half_lag_ms

    def leapt(offset: int) -> bool:
        """Whether Kafka's time went on by half the lag around an offset: the reader's own clock proves nothing then."""
        before_ms, behind_ms = around(offset)
        return None not in (before_ms, behind_ms) and behind_ms - before_ms >= half_lag_ms  # type: ignore[operator]

    if not any(offset < end and cleaned(offset, read_ms) for offset in missing):
        return Joined(-1)
    later_ms = None if ended_ms is None else ended_ms + waited_ms
    if any(
        offset >= end and (waited_ms >= half_lag_ms or leapt(offset)) and cleaned(offset, later_ms)
        for offset in missing
    ):
        return StartsOver()
    marks = marks_that_count(log)
    clean_tos = [
        clean_to for line in log if (clean_to := clean_to_of(line)) is not None and 0 <= clean_to < line.offset
    ]
    for clean_to in clean_tos:
        if clean_to >= end - 1 and not any(mark > clean_to for mark in marks):
            return Joined(max(clean_tos))
    if not clean_tos or ended_ms is None:
        return Waits()
    newest = max(clean_tos)
    above = [line for line in log if line.offset > newest]
    vouches = (
        not any(offset > newest and cleaned(offset, ended_ms) for offset in missing)
        and not any(ended_ms - line.timestamp_ms >= half_lag_ms for line in above)
        and not any(mark > newest for mark in marks)
    )
    return Joined(newest) if vouches else Waits()


def clean_to_of(line: Line) -> int | None:
    """What a heartbeat says; None for whatever is none."""
    record = wire.decode(line.key, line.value) if line.key == b"!heartbeat" else None
    return None if record is None else record.clean_to


def marks_that_count(log: Sequence[Line]) -> list[int]:
    """Offsets of the marks that are not void, as far as these records tell."""
    found: list[int] = []
    for line in log:
        through = _through(line)
        if through is None or through >= line.offset:
            continue
        words = [other.offset for other in log if clean_to_of(other) is not None] + found
        if not any(through < word < line.offset for word in words):
            found.append(line.offset)
    return found


def _through(line: Line) -> int | None:
    if line.key != b"!cold-start" or line.value is None:
        return None
    try:
        fields = strictjson.parse_object(line.value)
    except (strictjson.NotJsonError, strictjson.TooDeepError):
        return None
    by, through = fields.get("by"), fields.get("through")
    if not isinstance(by, dict) or not isinstance(through, int) or isinstance(through, bool):
        return None
    names = (by.get("broker"), by.get("incarnation"))
    return through if all(isinstance(name, str) and wire.BROKER.fullmatch(name) for name in names) else None
