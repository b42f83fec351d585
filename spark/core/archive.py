"""Archives: `dt=<UTC date of the log>/batch=<sequence>/*.parquet`, added to by batches, compacted by days; and their check.

A batch is written beside the archive and moved in folder by folder. Until the pointer of the table names its sequence it does not
count: the next attempt removes it. Nothing but `dt=*/batch=*/*.parquet` belongs to the archive, and nothing else is read. Names
that begin with `_` or `.` are scratch; anything else belongs to others, and is moved out of what is replaced or removed.

The check sees whether an archive holds each record that the pointer of its table says it holds, and each of them once.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.sql import functions as F

from spark.core.running import gist
from spark.core.store import Folder, as_pattern
from spark.errors import SparkJobError, TableFormatError
from statechannel.errors import ExitCode

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
_OTHERS = "_others"
_DAY = re.compile(r"dt=[0-9]{4,6}-[0-9]{2}-[0-9]{2}")
_BATCH = re.compile(r"batch=([0-9]{12})")
_OURS = re.compile(r"[_.].*|batch=[0-9]{12}(?:/[_.][^/]*|/[^/]+\.parquet)?")
_FILE = re.compile(r"[^_.].*\.parquet")
_PARTITION_COLUMN = "batch"
"""Compacted days of an earlier version have it in their files too, which other readers of Parquet refuse."""
_log = logging.getLogger(__name__)


class StoredFile(NamedTuple):
    """A file of records.

    Attributes:
        path: In the file system of the archive.
    """

    batch: str
    path: str


class Archive:
    """Parquet folders by date and batch.

    Args:
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
        matches = map(_BATCH.fullmatch, (self.root / day).names())
        return [int(match.group(1)) for match in matches if match]

    def stored_files(self, days: Iterable[str] | None = None) -> list[StoredFile]:
        """All files of records, or those of these days, by day, batch and name."""
        files = []
        for day in self.days() if days is None else days:
            for sequence in self.batches(day):
                batch = f"{day}/{_name(sequence)}"
                names = filter(_FILE.fullmatch, (self.root / batch).names())
                paths = [f"{self.root.path}/{batch}/{name}" for name in names]
                infos = self.root.files.get_file_info(paths)
                files += [StoredFile(batch, info.path) for info in infos if info.type == fs.FileType.File]
        return files

    def rows(self, session: SparkSession, schema: StructType, days: Iterable[str] | None = None) -> DataFrame:
        """Records of `stored_files`; what another version did not write is null."""
        # A folder would have Spark read what others have put there, and add the names of folders as columns.
        places = [
            as_pattern(self.root.place + file.path.removeprefix(self.root.path)) for file in self.stored_files(days)
        ]
        return session.read.schema(schema).parquet(*places) if places else session.createDataFrame([], schema)

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
        self._settle()
        for day in self.days():
            for sequence in self.batches(day):
                if sequence > newest:
                    self._set_aside(day)
                    (self.root / day / _name(sequence)).remove()
                    removed.append(f"{day}/{_name(sequence)}")
        return removed

    def remove(self, day: str) -> None:
        """Remove a day, but not what others have put there."""
        self._set_aside(day)
        (self.root / day).remove()

    def _set_aside(self, day: str) -> None:
        names = (self.root / day).names()
        inside = [
            f"{name}/{file}" for name in names if _BATCH.fullmatch(name) for file in (self.root / day / name).names()
        ]
        for path in [path for path in (*names, *inside) if not _OURS.fullmatch(path)]:
            # In a folder of its own: it must not replace another one. Its name may be none that a URI can have.
            kept = f"{self.root.path}/{_OTHERS}/{day}/{uuid.uuid4().hex}"
            self.root.files.create_dir(kept, recursive=True)
            self.root.files.move(f"{self.root.path}/{day}/{path}", f"{kept}/{path.rpartition('/')[2]}")
            _log.warning("%s/%s/%s is not the archive's own: it was moved to %s", self.root.uri, day, path, kept)

    def _settle(self) -> None:
        """Finish or undo what was cut off, whether it counts or not."""
        for day in [name for name in (self.root / _OLD).names() if _DAY.fullmatch(name)]:
            self._bring_back(day)
        for name in (_SCRATCH, _COMPACTING, _OLD, _GONE):
            (self.root / name).remove()

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
        scratch.sync()
        written = ds.dataset(scratch.path, self._counted, "parquet", scratch.files).to_table()
        for day in [name for name in scratch.names() if _DAY.fullmatch(name)]:
            target = self.root / day
            target.files.create_dir(target.path, recursive=True)
            (scratch / day).move_to(target / _name(sequence))
        scratch.remove()
        counted = pc.value_counts(written.column(0)).to_pylist()
        return {folder["values"] or "": folder["counts"] for folder in counted}

    def to_compact(self, before: str) -> list[str]:
        """Days before this one (`dt=YYYY-MM-DD`) that consist of more than one batch, or have a column too many."""
        return [day for day in self.days() if day < before and (len(self.batches(day)) > 1 or self._is_too_wide(day))]

    def _is_too_wide(self, day: str) -> bool:
        with suppress(OSError, pa.ArrowException):  # whoever reads its records will say what is wrong with them
            schemas = (pq.read_schema(file.path, filesystem=self.root.files) for file in self.stored_files([day]))
            return any(_PARTITION_COLUMN in schema.names for schema in schemas)
        return False

    def compact_days(self, session: SparkSession, before: str, schema: StructType) -> None:
        """`compact` the days before this one. One that cannot be stays as good as it was, and the job goes on."""
        for day in self.to_compact(before):
            try:
                count = self.compact(session, day, schema)
                _log.info("compacted %s of %s: %d batches are one now", day, self.root.uri, count)
            except Exception as error:
                _log.warning("%s of %s stays as it is: %s", day, self.root.uri, gist(str(error)))
                self._settle()

    def compact(self, session: SparkSession, day: str, schema: StructType) -> int:
        """Put the batches of a closed day into one, in the order of the log; no other process may write the archive meanwhile.

        Readers miss the day for the moment between two renames; they never see a record twice.

        Returns:
            Number of batches that there were.
        """
        batches = self.batches(day)
        read = self.rows(session, schema, [day])
        fresh = self.root / _COMPACTING / day
        (self.root / _COMPACTING).remove()
        files = 1 + read.count() // ROWS_IN_A_FILE
        ordered = read.repartitionByRange(files, *self._order).sortWithinPartitions(*self._order)
        # Its number is that of the newest: it shows what is behind the pointer.
        ordered.write.parquet((fresh / _name(max(batches))).place)
        fresh.sync()
        self._set_aside(day)
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
    return f"dt={datetime.fromtimestamp(max(0, min(LATEST_MS, time_ms)) / 1_000, UTC):%Y-%m-%d}"


def _name(sequence: int) -> str:
    return f"batch={sequence:012d}"


# --- whether an archive is complete --------------------------------------------------------------------------------------

BUCKET: Final = 32_768
_LISTED_MAX = 3
_LACKING = (
    "Bring back the folders of the archive that were removed (from a backup), or begin a new table while the topic still has "
    "the records. If table-view is at work on this one, ask again first: a day is away for a moment when it is put together."
)
_DOUBLED = (
    "Remove the folder `batch=...` that was copied or brought back: what table-view put together is in the newest."
)


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
        int(number): Cover(int(place["position"]), _apart(gapped.get(int(number), ())))
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
    wrong: dict[int, Wrong] = {}
    for (number, bucket), count in sorted(counted.items()):
        if count.rows > count.distinct:
            first, amount = wrong.get(number, Wrong(bucket, 0))
            wrong[number] = Wrong(first, amount + count.rows - count.distinct)
    return wrong


def stretch_text(first: int, last: int) -> str:
    return f"offset {first}" if first == last else f"offsets {first} to {last}"


def why_gapped(cover: Cover) -> str:
    """Why a partition whose archive is as its pointer says has gaps, for people; empty if it has none."""
    if not cover.gapped:
        return ""
    gaps = ", ".join(f"from offset {gap.first} to {gap.end - 1}" for gap in cover.gapped[:_LISTED_MAX])
    more = f" and {rest} stretches more" if (rest := len(cover.gapped) - _LISTED_MAX) > 0 else ""
    return f"is incomplete {gaps}{more}, where records were cleaned away before the job table-view read them"


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
