"""Widths of time by which a report sums up what would be too much to show. Pure."""

from __future__ import annotations

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
# Each divides the next, so that what was summed up by one can be summed up further by the next.
_WIDTHS_MS = (
    1,
    10,
    100,
    500,
    _SECOND,
    5 * _SECOND,
    10 * _SECOND,
    30 * _SECOND,
    _MINUTE,
    5 * _MINUTE,
    10 * _MINUTE,
    30 * _MINUTE,
    _HOUR,
    2 * _HOUR,
    6 * _HOUR,
    12 * _HOUR,
    _DAY,
)
NARROWEST_MS = _WIDTHS_MS[0]


def wider(width_ms: int) -> int:
    """The next width, a multiple of this one; 0 stands for none yet."""
    for candidate in _WIDTHS_MS:
        if candidate > width_ms:
            return candidate
    return width_ms * 2


def width_for(first_ms: int, last_ms: int, most: int, width_ms: int = NARROWEST_MS) -> int:
    """The narrowest width by which this span touches at most so many buckets.

    Args:
        most: Number of buckets, at least 2: a span may lie across a bound of any two.
        width_ms: Where to begin.
    """
    while last_ms // width_ms - first_ms // width_ms >= most:
        width_ms = wider(width_ms)
    return width_ms
