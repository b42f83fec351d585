"""Verdicts of a replay as a table, and against those that an archive holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from spark.errors import JobExitCode, SparkJobError
from spark.store import Folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LINE = "verdict string, version long, state string"
_OFFSETS_OF_A_FILE = 1_000_000


def verdicts_of(found: DataFrame) -> DataFrame:
    """partition, offset, key, verdict, version, state out of what the fold has found of the kind `verdict`."""
    line = F.from_json(F.col("content").cast("string"), _LINE).alias("line")
    return found.select("partition", "offset", "key", line).select("partition", "offset", "key", "line.*")


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
            exit_code=JobExitCode.TABLE_UNUSABLE,
        )
    files = 1 + records // _OFFSETS_OF_A_FILE
    ordered = verdicts.repartitionByRange(files, "partition", "offset").sortWithinPartitions("partition", "offset")
    try:
        ordered.write.parquet(target.place)
    except AnalysisException as error:
        raise SparkJobError(
            f"{target.uri} cannot be written: {error.getMessage()}",
            hint="Name another folder for the verdicts.",
            exit_code=JobExitCode.TABLE_UNUSABLE,
        ) from error


def compared(stored: DataFrame, verdicts: DataFrame) -> dict[str, Any]:
    """What the verdicts of an archive are against recomputed ones, where both have one.

    Returns:
        `records` that have both, how many are `differing`, and the `first` of these in log order.
    """
    told = stored.where("verdict is not null").select("partition", "offset", F.col("verdict").alias("stored"))
    both = told.join(verdicts.select("partition", "offset", "verdict"), ["partition", "offset"])
    differs = F.col("stored") != F.col("verdict")
    row = both.agg(
        F.count("*").alias("records"),
        F.count_if(differs).alias("differing"),
        F.min(F.when(differs, F.struct("partition", "offset", "stored", "verdict"))).alias("first"),
    ).collect()[0]
    first = row["first"]
    return {
        "records": row["records"],
        "differing": row["differing"],
        "first": None if first is None else first.asDict(),
    }
