"""An archive as the log of a replay."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.pandas.types import from_arrow_schema

from spark.archive import Archive
from spark.archive_check import check_complete
from spark.archive_offsets import covers_of, why_gapped
from spark.errors import SparkJobError
from spark.replay_log import Log
from spark.replay_logs import wall_ms
from spark.schemas import ARCHIVE
from spark.store import Folder, Pointer, SnapshotStore
from spark.survey import below
from statechannel.errors import ExitCode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS = ("partition", "offset", "timestamp_ms", "key", "value")
_VIEW, _ARCHIVE = "view", "archive"
"""Folders of a table that the job table-view keeps."""


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def archive_log(
    session: SparkSession, folder: str, *, partitions: int | None = None, warn: Callable[[str], None] = _to_stderr
) -> Log:
    """An archive.

    Args:
        folder: Of the job table-view; the view beside the archive says how many partitions the channel has, and which records
            the archive holds. Or that of an archive alone, of which nobody can tell whether it is complete.
        partitions: Of the channel, where there is no view.
        warn: Told what the answer does not say.

    Raises:
        SparkJobError: The folder holds no archive; the archive is not what the view beside it says; or nobody says how many
            partitions the channel has, or something that is not true.
    """
    pointer = SnapshotStore((Folder(folder) / _VIEW).uri).latest()
    rows = _stored_rows(session, folder)
    if pointer is not None:
        return _of_table(f"the archive {folder}", rows, pointer, partitions)
    if partitions is None:
        raise SparkJobError(
            f"{folder} does not say how many partitions the channel has: no view was published beside the archive",
            hint="Name the folder that the job table-view writes to, or give their number.",
            exit_code=ExitCode.TABLE_UNUSABLE,
        )
    last = {
        row["partition"]: row["last"] for row in rows.groupBy("partition").agg(F.max("offset").alias("last")).collect()
    }
    if max(last, default=0) >= partitions:
        raise _contradicted(partitions, f"{folder} holds records of partition {max(last)}")
    warn(
        f"warning: no view lies beside the archive {folder}: whether it is complete cannot be known, and not whether its newest "
        "records count (name the folder that the job table-view writes to)"
    )
    ends = {number: last.get(number, -1) + 1 for number in range(partitions)}
    why = "has gaps: records were compacted before they were archived, or a part of the archive is away"
    return Log(f"the archive {folder}", rows.select(*_COLUMNS), ends, wall_ms, why_gapped=lambda _: why, stored=rows)


def _of_table(name: str, rows: DataFrame, pointer: Pointer, partitions: int | None) -> Log:
    covers = covers_of(pointer.meta)
    if partitions is not None and partitions != len(covers):
        raise _contradicted(partitions, f"the view beside {name} says that the channel has {len(covers)}")
    positions = {number: cover.position for number, cover in covers.items()}
    # What lies behind is of a batch that no pointer names.
    rows = rows.where(below(positions, otherwise=False))
    check_complete(name, rows, covers)
    written_at_ms = int(pointer.meta["written_at_ms"])  # all of it was read before
    return Log(
        name,
        rows.select(*_COLUMNS),
        positions,
        lambda: written_at_ms,
        why_gapped=lambda number: why_gapped(covers[number]),
        stored=rows,
    )


def _contradicted(partitions: int, told: str) -> SparkJobError:
    return SparkJobError(
        f"the number of partitions was given as {partitions}, but {told}",
        hint="Leave it out, or correct it.",
        exit_code=ExitCode.USAGE,
    )


def _stored_rows(session: SparkSession, folder: str) -> DataFrame:
    """All rows of an archive, with what it says of them.

    Raises:
        SparkJobError: There is none.
    """
    archive = Archive((Folder(folder) / _ARCHIVE).uri)
    if not archive.days():
        archive = Archive(folder)
    if not archive.days():
        raise SparkJobError(
            f"{archive.root.uri} holds no archive",
            hint="Name the folder that the job table-view writes to.",
            exit_code=ExitCode.TABLE_UNUSABLE,
        )
    return session.read.schema(from_arrow_schema(ARCHIVE)).parquet(archive.root.pattern)
