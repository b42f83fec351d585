"""Verdicts of a replay as a table, and against those that an archive holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from spark.channel.survey import below
from spark.core.store import Folder
from spark.errors import SparkJobError
from statechannel.errors import ExitCode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LINE = "verdict string, version long, state string"
_OFFSETS_OF_A_FILE = 1_000_000

NO_STORED_VERDICT: Final = "no_stored_verdict"
REPLAYED_LENIENTLY: Final = "replayed_leniently"
BEHIND_AS_OF: Final = "behind_as_of"
BEHIND_NEWER_FORMAT: Final = "behind_newer_format"
REASONS: Final = (NO_STORED_VERDICT, REPLAYED_LENIENTLY, BEHIND_AS_OF, BEHIND_NEWER_FORMAT)
"""Why a record of an archive was not compared; the first one that is true counts, but for the second, which is what is left."""


def verdicts_of(folded: DataFrame) -> DataFrame:
    """partition, offset, key, verdict, version, state out of what the fold has found of the kind `verdict`."""
    line = F.from_json(F.col("content").cast("string"), _LINE).alias("line")
    return folded.select("partition", "offset", "key", line).select("partition", "offset", "key", "line.*")


def write_verdicts(verdicts: DataFrame, folder: str, records: int) -> None:
    """Write them as Parquet, in log order, to a folder that is not there yet.

    Raises:
        SparkJobError: It is there.
    """
    target = Folder(folder) / "verdicts"
    if target.exists():
        raise SparkJobError(
            f"{target.uri} is there already",
            hint="Name another folder for the verdicts, or remove this one.",
            exit_code=ExitCode.TABLE_UNUSABLE,
        )
    files = 1 + records // _OFFSETS_OF_A_FILE
    ordered = verdicts.repartitionByRange(files, "partition", "offset").sortWithinPartitions("partition", "offset")
    ordered.write.parquet(target.place)


def compared(
    stored: DataFrame, verdicts: DataFrame, *, outside: Mapping[int, int], stops: Mapping[int, int]
) -> dict[str, Any]:
    """What the verdicts of an archive are against recomputed ones, where both have one.

    Args:
        stored: Rows of the archive, each once.
        outside: First offset of each partition behind the moment asked for.
        stops: Offsets at which a newer format stopped the replay.

    Returns:
        `records` that have both, how many are `differing`, the `first` of these in log order; and of all others of the archive
        how many were `not_compared`, by reason.
    """
    stored_verdicts = stored.select("partition", "offset", F.col("verdict").alias("stored"))
    every = stored_verdicts.join(verdicts.select("partition", "offset", "verdict"), ["partition", "offset"], "left")
    both = F.col("stored").isNotNull() & F.col("verdict").isNotNull()
    differs = both & (F.col("stored") != F.col("verdict"))
    reason = (
        F.when(F.col("stored").isNull(), NO_STORED_VERDICT)
        .when(~F.expr(below(outside)), BEHIND_AS_OF)
        .when(~F.expr(below(stops)), BEHIND_NEWER_FORMAT)
        .otherwise(REPLAYED_LENIENTLY)
    )
    row = every.agg(
        F.count_if(both).alias("records"),
        F.count_if(differs).alias("differing"),
        F.min(F.when(differs, F.struct("partition", "offset", "stored", "verdict"))).alias("first"),
        *(F.count_if(~both & (reason == name)).alias(name) for name in REASONS),
    ).collect()[0]
    first = row["first"]
    return {
        "records": row["records"],
        "differing": row["differing"],
        "first": None if first is None else first.asDict(),
        "not_compared": {name: row[name] for name in REASONS},
    }
