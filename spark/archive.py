"""The archive's folder: `dt=<UTC date of the log>/batch=<sequence>/*.parquet`, added to by batches, compacted by days.

A batch is written beside the archive and moved in folder by folder. Until the pointer of the table names its sequence it does not
count: the next attempt removes it. Names that begin with `_` are no part of the archive; Spark and pyarrow skip them, and so does
a pattern `dt=*/batch=*/*.parquet`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from spark.store import Folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SCRATCH = "_writing"
_COMPACTING = "_compacting"
_OLD = "_replaced"
_DAY = re.compile(r"dt=[0-9]{4,6}-[0-9]{2}-[0-9]{2}")
_BATCH = re.compile(r"batch=([0-9]{12})(?:-([0-9]{12}))?")


class Archive:
    """Parquet folders by date and batch.

    Args:
        uri: Folder of the archive.
    """

    def __init__(self, uri: str) -> None:
        self.root = Folder(uri)

    def days(self) -> list[str]:
        """Names of the folders of days, sorted."""
        return [name for name in self.root.names() if _DAY.fullmatch(name)]

    def batches(self, day: str) -> list[tuple[int, int, str]]:
        """First and last sequence of each folder of a day, and its name."""
        found = []
        for name in (self.root / day).names():
            match = _BATCH.fullmatch(name)
            if match:
                first = int(match.group(1))
                found.append((first, int(match.group(2) or first), name))
        return found

    def recover(self, newest: int) -> list[str]:
        """Remove what was never pointed to, and finish or undo a compaction that was cut off.

        Args:
            newest: Sequence of the newest published batch; -1 if there is none.

        Returns:
            What was removed, as paths below the archive.
        """
        removed = []
        for day in [name for name in (self.root / _OLD).names() if _DAY.fullmatch(name)]:
            if (self.root / day).exists():
                (self.root / _OLD / day).remove()
            else:
                (self.root / _OLD / day).move_to(self.root / day)
        for name in (_SCRATCH, _COMPACTING):
            (self.root / name).remove()
        for day in self.days():
            for _, last, name in self.batches(day):
                if last > newest:
                    (self.root / day / name).remove()
                    removed.append(f"{day}/{name}")
        return removed

    def add(self, rows: DataFrame, sequence: int) -> None:
        """Write rows, which have a column `dt`, as the batch of this sequence."""
        scratch = self.root / _SCRATCH
        scratch.remove()
        rows.write.partitionBy("dt").parquet(scratch.uri)
        for day in [name for name in scratch.names() if _DAY.fullmatch(name)]:
            target = self.root / day
            target.files.create_dir(target.path, recursive=True)
            (scratch / day).move_to(target / f"batch={sequence:012d}")
        scratch.remove()

    def to_compact(self, before: str) -> Iterator[str]:
        """Days before this date (`YYYY-MM-DD`) that consist of more than one batch."""
        for day in self.days():
            if day.removeprefix("dt=") < before and len(self.batches(day)) > 1:
                yield day

    def compact(self, day: str, read: DataFrame, files: int = 1) -> str:
        """Put the batches of a closed day into one, sorted as the log is.

        Args:
            read: The rows of that day.
            files: So many files.

        Returns:
            Name of the folder that the day has now.
        """
        batches = self.batches(day)
        name = f"batch={min(first for first, _, _ in batches):012d}-{max(last for _, last, _ in batches):012d}"
        fresh = self.root / _COMPACTING / day
        (self.root / _COMPACTING).remove()
        ordered = read.repartitionByRange(files, "partition", "offset").sortWithinPartitions("partition", "offset")
        ordered.write.parquet((fresh / name).uri)
        old = self.root / _OLD / day
        old.remove()
        old.files.create_dir((self.root / _OLD).path, recursive=True)
        (self.root / day).move_to(old)
        fresh.move_to(self.root / day)
        old.remove()
        (self.root / _COMPACTING).remove()
        return name
