"""Event counts over time, in a bounded number of buckets for any span. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class TimeCounts:
    """Counts events, and the longest of them, by bucket of time; buckets become wider as the span grows.

    Args:
        points: Maximum number of buckets, at least 2.
    """

    def __init__(self, points: int) -> None:
        self._points = points
        self._width_ms = NARROWEST_MS
        self._buckets: dict[int, tuple[int, int]] = {}
        self._span: tuple[int, int] | None = None

    def add(self, at_ms: int, length_ms: int = 0) -> None:
        """Count one event."""
        first, last = self._span or (at_ms, at_ms)
        self._span = min(first, at_ms), max(last, at_ms)
        width_ms = width_for(*self._span, self._points, self._width_ms)
        while self._width_ms < width_ms:
            self._widen(wider(self._width_ms))
        self._put(self._buckets, at_ms // self._width_ms, 1, length_ms)

    def _widen(self, width_ms: int) -> None:
        times = width_ms // self._width_ms
        merged: dict[int, tuple[int, int]] = {}
        for index, (count, longest) in self._buckets.items():
            self._put(merged, index // times, count, longest)
        self._buckets, self._width_ms = merged, width_ms

    @staticmethod
    def _put(buckets: dict[int, tuple[int, int]], index: int, count: int, longest: int) -> None:
        held = buckets.get(index, (0, 0))
        buckets[index] = held[0] + count, max(held[1], longest)

    def fields(self) -> dict[str, Any]:
        """Width, and by the first millisecond of each bucket: number, and the longest."""
        rows = [[index * self._width_ms, *held] for index, held in sorted(self._buckets.items())]
        return {"width_ms": self._width_ms, "rows": rows}


def shown(text: str | None, most: int = 160) -> str | None:
    """Foreign text for display: without control and bidirectional characters, truncated."""
    if text is None:
        return None
    cut = text if len(text) <= most else f"{text[: most - 1]}\u2026"
    return cut.translate(_HIDDEN)


def _hidden() -> dict[int, str]:
    spans: Iterable[range] = (
        range(0x20),
        range(0x7F, 0xA0),
        range(0x200B, 0x2010),
        range(0x2028, 0x202F),
        range(0x2060, 0x2070),
        range(0xD800, 0xE000),
        range(0xFEFF, 0xFF00),
    )
    return {code: "\ufffd" for span in spans for code in span}


_HIDDEN = _hidden()


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
    """The next width, a multiple of this one; 0 is the initial width."""
    for candidate in _WIDTHS_MS:
        if candidate > width_ms:
            return candidate
    return width_ms * 2


def width_for(first_ms: int, last_ms: int, most: int, width_ms: int = NARROWEST_MS) -> int:
    """The narrowest width by which this span fits into the number of buckets.

    Args:
        most: Number of buckets, at least 2: a span may lie across a bound of any two.
        width_ms: Where to begin.
    """
    while last_ms // width_ms - first_ms // width_ms >= most:
        width_ms = wider(width_ms)
    return width_ms
