"""Which offsets an archive has to hold, and which of them it lacks or holds twice. Pure.

Offsets are counted in buckets, as many of them as one of Spark's bitmaps has bits; only a bucket that is wrong is looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

BUCKET: Final = 32_768
_TOLD_MAX = 3


class Stretch(NamedTuple):
    """Offsets from `first` up to `end`, exclusive."""

    first: int
    end: int


class Cover(NamedTuple):
    """What the pointer of a table says of one partition of its archive.

    Attributes:
        position: Every offset below it was archived,
        gapped: but for these stretches, in order and apart: some of their records were cleaned away before they were read.
    """

    position: int
    gapped: tuple[Stretch, ...] = ()

    def needed(self, first: int, end: int) -> int:
        """How many offsets from `first` up to `end` (exclusive) have to be there."""
        end = min(end, self.position)
        free = sum(max(0, min(end, one.end) - max(first, one.first)) for one in self.gapped)
        return max(0, end - first) - free

    def needs(self, offset: int) -> bool:
        """Whether a record of this offset has to be there."""
        return self.needed(offset, offset + 1) == 1

    def first_missing(self, bucket: int, present: Collection[int]) -> int | None:
        """The first offset of a bucket that has to be there and is not."""
        offsets = range(bucket * BUCKET, (bucket + 1) * BUCKET)
        return next((offset for offset in offsets if self.needs(offset) and offset not in present), None)

    def last_missing(self, first: int, next_present: int | None) -> int:
        """The last offset of the stretch of missing ones that begins with `first`.

        Args:
            next_present: The first record behind it; None where there is none.
        """
        ends = [self.position, *(one.first for one in self.gapped if one.first > first)]
        return min(ends if next_present is None else [*ends, next_present]) - 1


class Counted(NamedTuple):
    """What a bucket holds.

    Attributes:
        distinct: Offsets, however often they are there.
        needed: Those of them that have to be there.
    """

    rows: int
    distinct: int
    needed: int


class Wrong(NamedTuple):
    """What is wrong with a partition.

    Attributes:
        bucket: The first that is wrong.
        amount: Offsets that are missing, or rows too many, in the whole partition.
    """

    bucket: int
    amount: int


Buckets = Mapping[tuple[int, int], Counted]
"""By partition and bucket; those without a row are left out."""

_EMPTY: Final = Counted(0, 0, 0)


def covers_of(meta: Mapping[str, Any]) -> dict[int, Cover]:
    """Of each partition, out of the pointer's `meta`."""
    gapped: dict[int, list[Stretch]] = {}
    for one in meta["incomplete"]:
        gapped.setdefault(one["partition"], []).append(Stretch(one["from_offset"], one["to_offset"] + 1))
    return {
        int(number): Cover(place["position"], _apart(gapped.get(int(number), ())))
        for number, place in meta["partitions"].items()
    }


def _apart(stretches: Iterable[Stretch]) -> tuple[Stretch, ...]:
    found: list[Stretch] = []
    for one in sorted(stretches):
        if found and one.first <= found[-1].end:
            found[-1] = Stretch(found[-1].first, max(found[-1].end, one.end))
        else:
            found.append(one)
    return tuple(found)


def missing(covers: Mapping[int, Cover], counted: Buckets) -> dict[int, Wrong]:
    """Partitions that lack offsets."""
    found = {}
    for number, cover in sorted(covers.items()):
        lacking = {
            bucket: lack
            for bucket in range(-(-cover.position // BUCKET))
            if (lack := _lack(cover, bucket, counted.get((number, bucket), _EMPTY)))
        }
        if lacking:
            found[number] = Wrong(min(lacking), sum(lacking.values()))
    return found


def _lack(cover: Cover, bucket: int, counted: Counted) -> int:
    return cover.needed(bucket * BUCKET, (bucket + 1) * BUCKET) - counted.needed


def doubled(counted: Buckets) -> dict[int, Wrong]:
    """Partitions with offsets that are there more than once."""
    found: dict[int, Wrong] = {}
    for (number, bucket), one in sorted(counted.items()):
        if one.rows > one.distinct:
            first, amount = found.get(number, Wrong(bucket, 0))
            found[number] = Wrong(first, amount + one.rows - one.distinct)
    return found


def stretch_text(first: int, last: int) -> str:
    """For people."""
    return f"offset {first}" if first == last else f"offsets {first} to {last}"


def why_gapped(cover: Cover) -> str:
    """Why a partition whose archive is as its pointer says has gaps, for people; empty if it has none."""
    if not cover.gapped:
        return ""
    told = ", ".join(f"from offset {one.first} to {one.end - 1}" for one in cover.gapped[:_TOLD_MAX])
    more = f" and {rest} stretches more" if (rest := len(cover.gapped) - _TOLD_MAX) > 0 else ""
    return f"is incomplete {told}{more}, where records were cleaned away before the job table-view read them"
