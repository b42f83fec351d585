"""The load of each partition as the average of the samples of the last N hours (document, section 3). Pure, bounded, exact.

All figures are summed as whole numbers (thousandths), so that the sum does not depend on the order, and the plain reader and
the Spark job give the very same loads.

* A window consists of intervals ("minutes"). A sample belongs to the one in which it was taken. Of several samples of one
  partition and minute the last one read counts, whole: it is the one that its sampler corrected.
* Each resource is the mean over the minutes that have it; also the disk, as the document says ("the average metric of each
  partition"): of a log that grows through the whole window that is its size in the middle. Plans that are to know sizes of this
  moment read the log directories.
* Completeness: minutes with the resource / minutes of the window, least over the resources that are known. The window of a
  topic begins with its first sample: one that is younger than the window is not incomplete for that, and where sampling has
  just begun there is a load at once, not after N hours. How much of the window has samples at all is reported, too.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from loaddata.samples.partitions import CPU_UNITS, PartitionLoad, PartitionLoads, PartitionResource, PartitionSample
from statechannel.errors import StateChannelError

SCALE: Final = 1_000
"""Rates and CPU are summed in thousandths of a byte/s and of a CPU unit."""
RESOURCES: Final = (
    PartitionResource.DISK,
    PartitionResource.BYTES_IN,
    PartitionResource.BYTES_OUT,
    PartitionResource.CPU,
)
MISSING: Final = -1
HELD_BYTES_MAX: Final = 512 * 2**20
"""Of figures that are held at the same time: 46,000 partitions and six hours of minutes."""
_SCALES: Final = (1, SCALE, SCALE, SCALE)
_CELL_BYTES: Final = 8

Place = tuple[str, int]
Cells = tuple[int, int, int, int]


class TooManySamplesError(StateChannelError):
    """More partitions and minutes than the plain reader may hold."""


@dataclass(frozen=True, slots=True)
class Window:
    """Whole intervals from `from_ms` to `to_ms` (wall clock, milliseconds); both are widened to whole ones."""

    from_ms: int
    to_ms: int
    interval_ms: int

    def __post_init__(self) -> None:
        if self.interval_ms < 1 or self.to_ms <= self.from_ms:
            raise ValueError(f"no window: from {self.from_ms} to {self.to_ms} by {self.interval_ms} ms")

    @classmethod
    def until(cls, now_ms: int, *, window_s: float, interval_s: float) -> Window:
        """The last `window_s` up to and with the minute that is under way."""
        interval_ms = max(1, round(interval_s * 1_000))
        to_ms = (now_ms // interval_ms + 1) * interval_ms
        return cls(max(0, to_ms - max(interval_ms, round(window_s * 1_000))), to_ms, interval_ms)

    @property
    def first(self) -> int:
        return self.from_ms // self.interval_ms

    @property
    def slots(self) -> int:
        return -(-self.to_ms // self.interval_ms) - self.first

    def slot(self, taken_at_ms: int) -> int | None:
        """In which interval a sample lies, from 0; None outside of the window."""
        slot = taken_at_ms // self.interval_ms - self.first
        return slot if 0 <= slot < self.slots else None


@dataclass(frozen=True, slots=True)
class Sums:
    """All samples of one partition in a window.

    Attributes:
        totals: Sum of each resource, in the order of `RESOURCES`.
        counts: Minutes that have it.
        first: First minute of the window that has anything; `Window.slots` where none has.
    """

    totals: Cells
    counts: Cells
    first: int


def cells_of(sample: PartitionSample) -> Cells:
    """A sample's figures as whole numbers, `MISSING` where there is none."""
    disk, rate_in, rate_out, cpu = (sample.disk_bytes, sample.bytes_in_per_s, sample.bytes_out_per_s, sample.cpu_share)
    return (
        MISSING if disk is None else disk,
        MISSING if rate_in is None else round(rate_in * SCALE),
        MISSING if rate_out is None else round(rate_out * SCALE),
        MISSING if cpu is None else round(cpu * CPU_UNITS * SCALE),
    )


def mean(total: int, count: int, scale: int) -> int:
    """The mean of `count` figures as a whole number, halves upwards."""
    parts = count * scale
    return (2 * total + parts) // (2 * parts)


def load_of(sums: Sums, minutes: int) -> PartitionLoad | None:
    """A partition's load; None where nothing of it is known.

    Args:
        minutes: Of the window, counted from the topic's first sample.
    """
    known = [count for count in sums.counts if count]
    if not known:
        return None
    disk, rate_in, rate_out, cpu = (
        mean(total, count, scale) if count else None
        for total, count, scale in zip(sums.totals, sums.counts, _SCALES, strict=True)
    )
    return PartitionLoad(
        disk_bytes=disk,
        bytes_in_per_s=rate_in,
        bytes_out_per_s=rate_out,
        cpu_units=cpu,
        completeness=min(known) / minutes,
    )


def loads_of(
    sums: Iterable[tuple[Place, Sums]], window: Window, *, completeness_min: float = 0.0, source: str = "samples"
) -> PartitionLoads:
    """Loads of all partitions, in the order of topics and numbers; those that are less complete are left out."""
    held = sorted(sums, key=lambda entry: entry[0])
    begins: dict[str, int] = {}
    for (topic, _), total in held:
        begins[topic] = min(begins.get(topic, window.slots), total.first)
    of: dict[Place, PartitionLoad] = {}
    for place, total in held:
        load = load_of(total, window.slots - begins[place[0]])
        if load is not None and load.completeness >= completeness_min:
            of[place] = load
    return PartitionLoads(of=of, from_ms=window.from_ms, to_ms=window.to_ms, source=source)


class Averager:
    """Sums samples as they are read. Open samples are bounded; sums of closed parts are small.

    Args:
        held_bytes_max: Bound of figures that are held.
    """

    def __init__(self, window: Window, *, held_bytes_max: int = HELD_BYTES_MAX) -> None:
        self.window = window
        self._empty = array("q", [MISSING]) * (window.slots * len(RESOURCES))
        self._most = held_bytes_max // (len(self._empty) * _CELL_BYTES)
        self._open: dict[Place, array[int]] = {}
        self._closed: dict[Place, Sums] = {}
        self._seen = bytearray(window.slots)

    @property
    def minutes(self) -> int:
        return sum(self._seen)

    def add(self, sample: PartitionSample) -> None:
        """Add a sample; the last one of a partition and minute counts."""
        slot = self.window.slot(sample.taken_at_ms)
        if slot is None:
            return
        place = (sample.topic, sample.partition)
        cells = self._open.get(place)
        if cells is None:
            cells = self._opened(place)
        at = slot * len(RESOURCES)
        cells[at : at + len(RESOURCES)] = array("q", cells_of(sample))
        self._seen[slot] = 1

    def _opened(self, place: Place) -> array[int]:
        if place in self._closed:
            raise ValueError(f"samples of {place} come after its part was closed")
        if len(self._open) >= self._most:
            raise TooManySamplesError(
                f"more than {self._most} partitions have samples in {self.window.slots} intervals, too many for one process",
                hint="Ask for a shorter window, or run the job: `statechannel spark run partition-loads`.",
            )
        cells = self._open[place] = array("q", self._empty)
        return cells

    def close_part(self) -> None:
        """No more samples come of the partitions that were seen so far: only their sums are kept."""
        while self._open:
            place, cells = self._open.popitem()
            self._closed[place] = sums_of(cells)

    def sums(self) -> Iterable[tuple[Place, Sums]]:
        """Sums of each partition; closes the last part."""
        self.close_part()
        return self._closed.items()

    def loads(self, *, completeness_min: float = 0.0, source: str = "samples") -> PartitionLoads:
        return loads_of(self.sums(), self.window, completeness_min=completeness_min, source=source)


def sums_of(cells: array[int]) -> Sums:
    """Sums of one partition's cells: for each minute one of each resource."""
    width = len(RESOURCES)
    totals, counts = [], []
    for resource in range(width):
        row = cells[resource::width]
        missing = row.count(MISSING)
        totals.append(sum(row) - MISSING * missing)
        counts.append(len(row) - missing)
    first = next((at // width for at, cell in enumerate(cells) if cell != MISSING), len(cells) // width)
    return Sums((totals[0], totals[1], totals[2], totals[3]), (counts[0], counts[1], counts[2], counts[3]), first)
