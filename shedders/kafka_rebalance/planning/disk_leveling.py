"""Leveling of the log directories of one broker: which of its replicas go from which directory to which. Pure.

    use of a directory = bytes of its replicas
    mean               = bytes of all open directories of the broker x size of the directory / size of all
    range              = mean x (1 - share) to mean x (1 + share)

Open are directories that are neither offline nor cordoned; a cordoned one keeps what it has and gets nothing. Where a size is not
known, all count as equal. Replicas that come from other brokers are placed first, the largest first into the emptiest directory;
then replicas are moved, or exchanged, from directories above the range to those below the mean, with the fewest bytes that bring
one of the two into the range.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

ROUNDS_MAX: Final = 100_000
Place = tuple[str, int]


@dataclass(slots=True)
class OpenDirectory:
    """One open directory: its range, its fixed bytes (replicas that must stay), and the replicas that may move, by size."""

    path: str
    low: int = 0
    mean: int = 0
    high: int = 0
    used: int = 0
    free: dict[Place, int] = field(default_factory=dict)

    @property
    def excess(self) -> int:
        """Distance from the range."""
        return max(self.used - self.high, self.low - self.used, 0)

    def put(self, place: Place, size: int) -> None:
        self.free[place] = size
        self.used += size

    def take(self, place: Place) -> int:
        size = self.free.pop(place)
        self.used -= size
        return size


@dataclass(slots=True)
class DiskBudget:
    """Moves and bytes that may still be spent; None: no bound. `stinted`: whether a bound excluded a move."""

    moves: int | None = None
    size_bytes: int | None = None
    stinted: bool = False

    def spend(self, moves: int, size_bytes: int) -> bool:
        """Whether the bounds allowed it."""
        fits = (self.moves is None or moves <= self.moves) and (
            self.size_bytes is None or size_bytes <= self.size_bytes
        )
        self.stinted |= not fits
        if fits:
            self.moves = None if self.moves is None else self.moves - moves
            self.size_bytes = None if self.size_bytes is None else self.size_bytes - size_bytes
        return fits


def set_ranges(disks: Iterable[OpenDirectory], sizes: Mapping[str, int | None], total: int, share: float) -> None:
    """Set the ranges of a broker's directories.

    Args:
        disks: All open directories.
        sizes: Sizes of their volumes.
        total: Bytes of all replicas that the broker has in them at the end.
        share: Threshold.
    """
    every = list(disks)
    known = [sizes[disk.path] or 0 for disk in every]
    weights = known if all(known) else [1] * len(every)
    for disk, weight in zip(every, weights, strict=True):
        disk.mean = total * weight // sum(weights)
        disk.low, disk.high = int(disk.mean * (1 - share)), int(disk.mean * (1 + share))


def place_arrivals(disks: list[OpenDirectory], arrivals: Mapping[Place, int]) -> dict[Place, str]:
    """Directory of each replica that comes to the broker."""
    result: dict[Place, str] = {}
    for place, size in sorted(arrivals.items(), key=lambda item: (-item[1], item[0])):
        emptiest = min(disks, key=lambda disk: ((disk.used + size) / max(1, disk.mean), disk.path))
        emptiest.put(place, size)
        result[place] = emptiest.path
    return result


def place_leaving(disks: list[OpenDirectory], leaving: Mapping[Place, int], budget: DiskBudget) -> dict[Place, str]:
    """Directory of each replica that leaves another one of the broker, as far as they fit below `high`.

    The largest first into the emptiest; if not all of them fit like that, into the fullest that they fit into.
    """
    ways = [_placed(disks, leaving, budget, sign) for sign in (1, -1)]
    best = max(ways, key=lambda way: (len(way[0]), sum(leaving[place] for place in way[0])))
    result, spent = best
    by_path = {disk.path: disk for disk in disks}
    for place, path in result.items():
        by_path[path].put(place, leaving[place])
    budget.moves, budget.size_bytes, budget.stinted = spent.moves, spent.size_bytes, spent.stinted
    return result


def _placed(
    disks: list[OpenDirectory], leaving: Mapping[Place, int], budget: DiskBudget, sign: int
) -> tuple[dict[Place, str], DiskBudget]:
    """Directories of replicas, and what is left of the budget; sign 1: the emptiest first, -1: the fullest first."""
    used, left = {disk.path: disk.used for disk in disks}, replace(budget)

    def fill(disk: OpenDirectory) -> tuple[float, str]:
        return sign * used[disk.path] / max(1, disk.mean), disk.path

    result: dict[Place, str] = {}
    for place, size in sorted(leaving.items(), key=lambda item: (-item[1], item[0])):
        fitting = [disk for disk in disks if used[disk.path] + size <= disk.high]
        if fitting and left.spend(1, size):
            chosen = min(fitting, key=fill)
            used[chosen.path] += size
            result[place] = chosen.path
    return result, left


def level(disks: list[OpenDirectory], budget: DiskBudget) -> dict[Place, str]:
    """Directory of each replica that moves; each step lessens the sum of the excesses."""
    result: dict[Place, str] = {}
    for _ in range(ROUNDS_MAX):
        step = _step(disks, budget)
        if step is None:
            break
        for place, source, to in step:
            to.put(place, source.take(place))
            result[place] = to.path
    return result


def _step(disks: list[OpenDirectory], budget: DiskBudget) -> list[tuple[Place, OpenDirectory, OpenDirectory]] | None:
    """Next move, or exchange of two replicas; None: nothing helps."""
    fullest = sorted(disks, key=lambda disk: (disk.mean - disk.used, disk.path))
    for over in fullest:
        for under in reversed(fullest):
            if over.used - over.mean <= 0 or under.used - under.mean >= 0 or not (over.excess or under.excess):
                continue
            chosen = _between(over, under)
            if chosen is None:
                continue
            place, other = chosen
            size = over.free[place]
            back = 0 if other is None else under.free[other]
            if budget.spend(1 if other is None else 2, size + back):
                return [(place, over, under), *([] if other is None else [(other, under, over)])]
    return None


def _between(over: OpenDirectory, under: OpenDirectory) -> tuple[Place, Place | None] | None:
    """Replica to move, and the one to get for it, if any: that which leaves the least excess, with the fewest bytes."""
    ordered = sorted((size, place) for place, size in over.free.items())
    sizes = [size for size, _ in ordered]
    wanted = max(over.used - over.high, under.low - under.used, 1)
    best: tuple[int, int, Place, Place | None] | None = None
    before = over.excess + under.excess
    for back, other in [(0, None), *((size, place) for place, size in sorted(under.free.items()))]:
        at = bisect_left(sizes, wanted + back)
        for near in (at, at - 1):
            if not 0 <= near < len(sizes) or sizes[near] <= back:
                continue
            difference = sizes[near] - back
            left = _excess(over, -difference) + _excess(under, difference)
            if left < before and (best is None or (left, sizes[near] + back) < best[:2]):
                best = left, sizes[near] + back, ordered[near][1], other
        if other is None and best is not None and best[0] == 0:
            break
    return None if best is None else best[2:]


def _excess(disk: OpenDirectory, change: int) -> int:
    used = disk.used + change
    return max(used - disk.high, disk.low - used, 0)
