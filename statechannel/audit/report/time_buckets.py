"""Time in a report: its window, and counts and sums by bucket of time, in bounded memory. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import add
from typing import Any, Final, NamedTuple


class ReportWindow(NamedTuple):
    """The part of the log's time that a report shows, both ends inclusive; None: from its start, or to its end."""

    since_ms: int | None = None
    until_ms: int | None = None

    def clamp(self, at_ms: int) -> int:
        late = at_ms if self.since_ms is None else max(at_ms, self.since_ms)
        return late if self.until_ms is None else min(late, self.until_ms)

    def is_before(self, at_ms: int) -> bool:
        return self.since_ms is not None and at_ms < self.since_ms

    def is_after(self, at_ms: int) -> bool:
        return self.until_ms is not None and at_ms > self.until_ms

    def holds(self, at_ms: int) -> bool:
        return not self.is_before(at_ms) and not self.is_after(at_ms)

    def overlaps(self, start_ms: int, end_ms: int | None) -> bool:
        """Whether a part of an interval is inside; it may be open."""
        return not self.is_after(start_ms) and (end_ms is None or not self.is_before(end_ms))


WHOLE_LOG: Final = ReportWindow()


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


class TimeSums:
    """Figures by name and bucket of time; buckets become wider as the span grows.

    Args:
        points: Maximum number of buckets, at least 2.
        merged: Of two figures of one bucket.

    Attributes:
        width_ms: Of a bucket; they begin at multiples of it.
    """

    def __init__(self, points: int, merged: Callable[[int, int], int] = add) -> None:
        self._points = points
        self._merged = merged
        self._span: tuple[int, int] | None = None
        self.width_ms = NARROWEST_MS
        self._sums: dict[int, dict[str, int]] = {}

    def reach(self, at_ms: int) -> None:
        first, last = self._span or (at_ms, at_ms)
        self._span = min(first, at_ms), max(last, at_ms)
        width_ms = width_for(*self._span, self._points, self.width_ms)
        while self.width_ms < width_ms:
            self._widen(wider(self.width_ms))

    def put(self, name: str, at_ms: int, figure: int) -> None:
        """Add a figure to the bucket of a moment; the span must reach it."""
        row = self._sums.setdefault(at_ms // self.width_ms, {})
        row[name] = self._merged(row.get(name, 0), figure)

    def add_span(self, name: str, start_ms: int, end_ms: int, count: int = 1) -> None:
        """Add the milliseconds of an interval `count` times; the span must reach both ends."""
        while count and start_ms < end_ms:
            until_ms = min(end_ms, (start_ms // self.width_ms + 1) * self.width_ms)
            self.put(name, start_ms, count * (until_ms - start_ms))
            start_ms = until_ms

    def _widen(self, width_ms: int) -> None:
        sums, before_ms = self._sums, self.width_ms
        self._sums, self.width_ms = {}, width_ms
        for index, row in sums.items():
            for name, figure in row.items():
                self.put(name, index * before_ms, figure)

    def by_width(self, width_ms: int) -> Iterator[tuple[int, dict[str, int]]]:
        """Figures by name, by the first millisecond of buckets of that width, which may repeat."""
        for index, sums in self._sums.items():
            yield index * self.width_ms // width_ms * width_ms, sums


class TimeCounts:
    """Counts events, and the longest of them, by bucket of time.

    Args:
        points: Maximum number of buckets, at least 2.
    """

    def __init__(self, points: int) -> None:
        self._counts, self._longest = TimeSums(points), TimeSums(points, max)

    def add(self, at_ms: int, length_ms: int = 0) -> None:
        for figures, figure in ((self._counts, 1), (self._longest, length_ms)):
            figures.reach(at_ms)
            figures.put("", at_ms, figure)

    def fields(self) -> dict[str, Any]:
        """Width, and by the first millisecond of each bucket: number, and the longest."""
        width_ms = self._counts.width_ms
        longest = dict(self._longest.by_width(width_ms))
        rows = [[at, counts[""], longest[at][""]] for at, counts in sorted(self._counts.by_width(width_ms))]
        return {"width_ms": width_ms, "rows": rows}
