"""The highest generation at which each part of the hash ring was ever served."""

from __future__ import annotations

from bisect import bisect_left

RING_END = 0xFFFFFFFF


class Floor:
    """A step function over the ring that may only rise."""

    def __init__(self) -> None:
        self._cuts = [0]
        self._levels = [0]

    def raise_to(self, lower: int, upper: int, level: int) -> int | None:
        """Raise a range to a level; the level that stands in the way, if somewhere it is as high already."""
        first = self._cut(lower)
        last = len(self._cuts) if upper == RING_END else self._cut(upper)
        worst = max(self._levels[first:last])
        self._levels[first:last] = [level] * (last - first)
        return worst if worst >= level else None

    def _cut(self, at: int) -> int:
        index = bisect_left(self._cuts, at)
        if index == len(self._cuts) or self._cuts[index] != at:
            self._cuts.insert(index, at)
            self._levels.insert(index, self._levels[index - 1])
        return index
