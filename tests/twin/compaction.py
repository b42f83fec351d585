"""What Kafka's cleaner may legally make of a log, at any moment and half-way through."""

from __future__ import annotations

from random import Random

from tests.twin.wire import Line

WEEK_MS = 7 * 24 * 3_600_000


def clean_once(
    lines: list[Line], rng: Random, now_ms: int, lag_ms: int, *, tombstone_ms: int = WEEK_MS, whole: bool = False
) -> list[Line]:
    """Clean one partition once.

    Below a bound, superseded records of a key go. The bound lies below the first record
    younger than the minimum lag and never beyond the last record (the active segment). A
    record is superseded by a later one of its key below the same bound. Segments that the
    cleaner did not come to stay as they are. The last null of a key goes after a while.

    Args:
        lines: the records of one partition in order.
        rng: picks the bound and the segments.
        now_ms: when the cleaner runs.
        lag_ms: `min.compaction.lag.ms`.
        tombstone_ms: `delete.retention.ms`.
        whole: take the highest legal bound and clean every segment.
    """
    limit = 0
    while limit < len(lines) - 1 and now_ms - lines[limit].timestamp_ms >= lag_ms:
        limit += 1
    bound = limit if whole else rng.randint(0, limit)
    newest = {line.key: line.offset for line in lines[:bound]}
    kept: list[Line] = []
    cleaned = True
    for index, line in enumerate(lines):
        if not whole and rng.random() < 0.15:
            cleaned = rng.random() < 0.75
        if index >= bound or not cleaned:
            kept.append(line)
            continue
        dead = line.value is None and now_ms - line.timestamp_ms >= lag_ms + tombstone_ms
        if line.key is not None and newest[line.key] == line.offset and not dead:
            kept.append(line)
    return kept


def compact(
    lines: list[Line], rng: Random, now_ms: int, lag_ms: int, *, rounds: int = 3, tombstone_ms: int = WEEK_MS
) -> list[Line]:
    """Clean each partition up to `rounds` times, at moments up to `now_ms`."""
    result: list[Line] = []
    for partition in sorted({line.partition for line in lines}):
        part = [line for line in lines if line.partition == partition]
        first_ms = part[0].timestamp_ms
        moments = sorted(rng.randint(first_ms, now_ms) for _ in range(rng.randint(0, rounds)))
        for moment in [*moments, now_ms]:
            # The cleaner at `moment` saw only what was written by then.
            seen = [line for line in part if line.timestamp_ms <= moment]
            rest = part[len(seen) :]
            part = clean_once(seen, rng, moment, lag_ms, tombstone_ms=tombstone_ms, whole=rng.random() < 0.5)
            part += rest
        result += part
    return result
