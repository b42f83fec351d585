"""Whether an archive holds each record that the pointer of its table says it holds, and each of them once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import functions as F

from spark.errors import SparkJobError
from statechannel.errors import ExitCode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_LACKING = (
    "Bring back the folders of the archive that were removed (from a backup), or begin a new table while the topic still has "
    "the records. If table-view is at work on this one, ask again first: a day is away for a moment when it is put together."
)
_DOUBLED = (
    "Remove the folder `batch=...` that was copied or brought back: what table-view put together is in the newest."
)


def check_complete(name: str, rows: DataFrame, covers: Mapping[int, Cover]) -> None:
    """See that the offsets of an archive are those that it has to hold; only their column is read.

    Args:
        rows: Those below the positions.

    Raises:
        SparkJobError: It lacks offsets, or holds some twice.
    """
    offsets = rows.select("partition", "offset")
    counted = _counted(offsets, covers)
    lacking = missing(covers, counted)
    if lacking:
        number, wrong = min(lacking.items())
        first = _first_missing(offsets, number, covers[number], wrong)
        raise _error(f"{name} lacks {first} of partition {number}", "missing", number, lacking, _LACKING)
    twice = doubled(counted)
    if twice:
        number = min(twice)
        first = _first_doubled(offsets, number)
        raise _error(f"{name} holds {first} of partition {number} twice", "too many", number, twice, _DOUBLED)


def _error(what: str, how: str, number: int, wrong: Mapping[int, Wrong], hint: str) -> SparkJobError:
    count = wrong[number].amount
    others = ", ".join(
        f"{rest.amount} of partition {other}" for other, rest in sorted(wrong.items()) if other != number
    )
    also = f"; also {others}" if others else ""
    return SparkJobError(
        f"{what} ({count} record{'s' if count > 1 else ''} of it {how}{also})",
        hint=hint,
        exit_code=ExitCode.TABLE_UNUSABLE,
    )


def _counted(offsets: DataFrame, covers: Mapping[int, Cover]) -> Buckets:
    bit = f"offset % {BUCKET}"
    rows = (
        offsets.groupBy(
            "partition", F.expr(f"offset div {BUCKET}").alias("bucket"), F.expr(_free(covers)).alias("free")
        )
        .agg(F.count("*").alias("rows"), F.expr(f"bitmap_count(bitmap_construct_agg({bit}))").alias("distinct"))
        .collect()
    )
    counts: dict[tuple[int, int], Counted] = {}
    for row in rows:
        place = row["partition"], row["bucket"]
        held = counts.get(place, Counted(0, 0, 0))
        needed = 0 if row["free"] else row["distinct"]
        counts[place] = Counted(held.rows + row["rows"], held.distinct + row["distinct"], held.needed + needed)
    return counts


def _free(covers: Mapping[int, Cover]) -> str:
    """Condition of rows in stretches that may have gaps."""
    stretches = [(number, gap) for number, cover in sorted(covers.items()) for gap in cover.gapped]
    each = [f"(partition = {number} and offset >= {gap.first} and offset < {gap.end})" for number, gap in stretches]
    return " or ".join(each) or "false"


def _first_missing(offsets: DataFrame, number: int, cover: Cover, wrong: Wrong) -> str:
    own = offsets.where(F.col("partition") == number)
    inside = own.where(f"offset div {BUCKET} = {wrong.bucket}").distinct().collect()
    first = cover.first_missing(wrong.bucket, {row["offset"] for row in inside})
    if first is None:
        raise SparkJobError(
            "the archive was changed while it was read", hint="Ask again.", exit_code=ExitCode.TABLE_UNUSABLE
        )
    behind = own.where(f"offset > {first}").agg(F.min("offset").alias("next")).collect()[0]["next"]
    return stretch_text(first, cover.last_missing(first, behind))


def _first_doubled(offsets: DataFrame, number: int) -> str:
    """The first stretch without an offset between that is there once only."""
    times = offsets.where(F.col("partition") == number).groupBy("offset").count()
    twice = times.where("count > 1")
    first = twice.agg(F.min("offset").alias("first")).collect()[0]["first"]
    once = times.where(f"count = 1 and offset > {first}").agg(F.min("offset").alias("next")).collect()[0]["next"]
    run = twice if once is None else twice.where(f"offset < {once}")
    return stretch_text(first, run.agg(F.max("offset").alias("last")).collect()[0]["last"])


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
        free = sum(max(0, min(end, gap.end) - max(first, gap.first)) for gap in self.gapped)
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
        ends = [self.position, *(gap.first for gap in self.gapped if gap.first > first)]
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
    for entry in meta["incomplete"]:
        gapped.setdefault(entry["partition"], []).append(Stretch(entry["from_offset"], entry["to_offset"] + 1))
    return {
        int(number): Cover(place["position"], _apart(gapped.get(int(number), ())))
        for number, place in meta["partitions"].items()
    }


def _apart(stretches: Iterable[Stretch]) -> tuple[Stretch, ...]:
    merged: list[Stretch] = []
    for stretch in sorted(stretches):
        if merged and stretch.first <= merged[-1].end:
            merged[-1] = Stretch(merged[-1].first, max(merged[-1].end, stretch.end))
        else:
            merged.append(stretch)
    return tuple(merged)


def missing(covers: Mapping[int, Cover], counted: Buckets) -> dict[int, Wrong]:
    """Partitions that lack offsets."""
    wrong = {}
    for number, cover in sorted(covers.items()):
        lacking = {
            bucket: lack
            for bucket in range(-(-cover.position // BUCKET))
            if (lack := _lack(cover, bucket, counted.get((number, bucket), _EMPTY)))
        }
        if lacking:
            wrong[number] = Wrong(min(lacking), sum(lacking.values()))
    return wrong


def _lack(cover: Cover, bucket: int, counted: Counted) -> int:
    return cover.needed(bucket * BUCKET, (bucket + 1) * BUCKET) - counted.needed


def doubled(counted: Buckets) -> dict[int, Wrong]:
    """Partitions with offsets that are there more than once."""
    wrong: dict[int, Wrong] = {}
    for (number, bucket), count in sorted(counted.items()):
        if count.rows > count.distinct:
            first, amount = wrong.get(number, Wrong(bucket, 0))
            wrong[number] = Wrong(first, amount + count.rows - count.distinct)
    return wrong


def stretch_text(first: int, last: int) -> str:
    """For people."""
    return f"offset {first}" if first == last else f"offsets {first} to {last}"


def why_gapped(cover: Cover) -> str:
    """Why a partition whose archive is as its pointer says has gaps, for people; empty if it has none."""
    if not cover.gapped:
        return ""
    gaps = ", ".join(f"from offset {gap.first} to {gap.end - 1}" for gap in cover.gapped[:_TOLD_MAX])
    more = f" and {rest} stretches more" if (rest := len(cover.gapped) - _TOLD_MAX) > 0 else ""
    return f"is incomplete {gaps}{more}, where records were cleaned away before the job table-view read them"
