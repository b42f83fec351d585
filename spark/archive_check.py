"""Whether an archive holds each record that the pointer of its table says it holds, and each of them once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from spark.archive_offsets import BUCKET, Buckets, Counted, Cover, Wrong, doubled, missing, stretch_text
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
    others = ", ".join(f"{one.amount} of partition {other}" for other, one in sorted(wrong.items()) if other != number)
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
    found: dict[tuple[int, int], Counted] = {}
    for row in rows:
        place = row["partition"], row["bucket"]
        held = found.get(place, Counted(0, 0, 0))
        needed = 0 if row["free"] else row["distinct"]
        found[place] = Counted(held.rows + row["rows"], held.distinct + row["distinct"], held.needed + needed)
    return found


def _free(covers: Mapping[int, Cover]) -> str:
    """Condition of rows in stretches that may have gaps."""
    stretches = [(number, one) for number, cover in sorted(covers.items()) for one in cover.gapped]
    each = [f"(partition = {number} and offset >= {one.first} and offset < {one.end})" for number, one in stretches]
    return " or ".join(each) or "false"


def _first_missing(offsets: DataFrame, number: int, cover: Cover, wrong: Wrong) -> str:
    mine = offsets.where(F.col("partition") == number)
    inside = mine.where(f"offset div {BUCKET} = {wrong.bucket}").distinct().collect()
    first = cover.first_missing(wrong.bucket, {row["offset"] for row in inside})
    if first is None:
        raise SparkJobError(
            "the archive was changed while it was read", hint="Ask again.", exit_code=ExitCode.TABLE_UNUSABLE
        )
    behind = mine.where(f"offset > {first}").agg(F.min("offset").alias("next")).collect()[0]["next"]
    return stretch_text(first, cover.last_missing(first, behind))


def _first_doubled(offsets: DataFrame, number: int) -> str:
    """The first stretch without an offset between that is there once only."""
    times = offsets.where(F.col("partition") == number).groupBy("offset").count()
    twice = times.where("count > 1")
    first = twice.agg(F.min("offset").alias("first")).collect()[0]["first"]
    once = times.where(f"count = 1 and offset > {first}").agg(F.min("offset").alias("next")).collect()[0]["next"]
    run = twice if once is None else twice.where(f"offset < {once}")
    return stretch_text(first, run.agg(F.max("offset").alias("last")).collect()[0]["last"])
