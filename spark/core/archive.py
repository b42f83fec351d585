"""The archive's folder: `dt=<UTC date of the log>/batch=<sequence>/*.parquet`, added to by batches, compacted by days.

A batch is written beside the archive and moved in folder by folder. Until the pointer of the table names its sequence it does not
count: the next attempt removes it. Names that begin with `_` do not belong to the archive; Spark and pyarrow skip them, as does a
pattern `dt=*/batch=*/*.parquet`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from spark.core.store import Folder
from spark.errors import TableFormatError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

LATEST_MS: Final = 253_402_300_799_000
"""The end of the year 9999: later log times count as this one."""
ROWS_IN_A_FILE: Final = 1_000_000
_SCRATCH = "_writing"
_COMPACTING = "_compacting"
_OLD = "_replaced"
_GONE = "_removing"
_DAY = re.compile(r"dt=[0-9]{4,6}-[0-9]{2}-[0-9]{2}")
_BATCH = re.compile(r"batch=([0-9]{12})")


class Archive:
    """Parquet folders by date and batch.

    Args:
        uri: Folder of the archive.
        counted: The column that says what became of a record.
        order: The columns that say where it lies in the log.
    """

    def __init__(self, uri: str, *, counted: str = "verdict", order: tuple[str, str] = ("partition", "offset")) -> None:
        self.root = Folder(uri)
        self._counted = pa.schema([(counted, pa.string())])
        self._order = order

    def days(self) -> list[str]:
        """Names of the folders of days, sorted."""
        return [name for name in self.root.names() if _DAY.fullmatch(name)]

    def batches(self, day: str) -> list[int]:
        """Sequences of the batches of a day."""
        matches = map(_BATCH.fullmatch, (self.root / day).names())
        return [int(match.group(1)) for match in matches if match]

    def recover(self, newest: int) -> list[str]:
        """Remove what was never pointed to, and finish or undo a compaction that was cut off.

        Args:
            newest: Sequence of the newest published batch; -1 if there is none.

        Returns:
            What was removed, as paths below the archive.

        Raises:
            TableFormatError: There is more than one unfinished batch: the pointer is gone, or is an older one. What it does not
                know may be nowhere else any more, so nothing is removed.
        """
        highest = max((sequence for day in self.days() for sequence in self.batches(day)), default=-1)
        if highest > newest + 1:
            raise TableFormatError(
                self.root.uri, f"it has batch {highest}, and the table's pointer is gone, or of {newest}, an older one"
            )
        removed = []
        for day in [name for name in (self.root / _OLD).names() if _DAY.fullmatch(name)]:
            self._bring_back(day)
        for name in (_SCRATCH, _COMPACTING, _OLD, _GONE):
            (self.root / name).remove()
        for day in self.days():
            for sequence in self.batches(day):
                if sequence > newest:
                    (self.root / day / _name(sequence)).remove()
                    removed.append(f"{day}/{_name(sequence)}")
        return removed

    def _bring_back(self, day: str) -> None:
        """Put back a day that was put aside, unless the batch is there that takes the place of all of its batches."""
        old = self.root / _OLD / day
        if not (self.root / day).exists():
            old.move_to(self.root / day)
            return
        there, aside = self.batches(day), self.batches(f"{_OLD}/{day}")
        if max(aside, default=-1) in there:
            return
        for sequence in aside:
            (old / _name(sequence)).move_to(self.root / day / _name(sequence))

    def add(self, rows: DataFrame, sequence: int) -> dict[str, int]:
        """Write rows, which have a column `dt`, as the batch of this sequence.

        Returns:
            How many have which verdict (what is counted here); "" stands for those without one.
        """
        scratch = self.root / _SCRATCH
        scratch.remove()
        rows.write.partitionBy("dt").parquet(scratch.place)
        written = ds.dataset(scratch.path, self._counted, "parquet", scratch.files).to_table()
        for day in [name for name in scratch.names() if _DAY.fullmatch(name)]:
            target = self.root / day
            target.files.create_dir(target.path, recursive=True)
            (scratch / day).move_to(target / _name(sequence))
        scratch.remove()
        counted = pc.value_counts(written.column(0)).to_pylist()
        return {folder["values"] or "": folder["counts"] for folder in counted}

    def to_compact(self, before: str) -> list[str]:
        """Days before this one (`dt=YYYY-MM-DD`) that consist of more than one batch, the oldest first."""
        return [day for day in self.days() if day < before and len(self.batches(day)) > 1]

    def compact(self, session: SparkSession, day: str, schema: StructType) -> int:
        """Put the batches of a closed day into one, in the order of the log; no other process may write the archive meanwhile.

        Readers miss the day for the moment between two renames; they never see a record twice.

        Returns:
            Number of batches that there were.
        """
        batches = self.batches(day)
        read = session.read.schema(schema).parquet((self.root / day).pattern)
        fresh = self.root / _COMPACTING / day
        (self.root / _COMPACTING).remove()
        files = 1 + read.count() // ROWS_IN_A_FILE
        ordered = read.repartitionByRange(files, *self._order).sortWithinPartitions(*self._order)
        # Its number is that of the newest: it shows what is behind the pointer.
        ordered.write.parquet((fresh / _name(max(batches))).place)
        old = self.root / _OLD / day
        for name in (_OLD, _GONE):
            (self.root / name).remove()
        old.files.create_dir((self.root / _OLD).path, recursive=True)
        (self.root / day).move_to(old)
        fresh.move_to(self.root / day)
        # In one step: of a day that lies aside all batches are there, or none.
        (self.root / _OLD).move_to(self.root / _GONE)
        for name in (_GONE, _COMPACTING):
            (self.root / name).remove()
        return len(batches)


def day_of(time_ms: int) -> str:
    """Name of the folder of a log time."""
    return f"dt={datetime.fromtimestamp(max(0, min(LATEST_MS, time_ms)) / 1_000, UTC):%Y-%m-%d}"


def _name(sequence: int) -> str:
    return f"batch={sequence:012d}"
