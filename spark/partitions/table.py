"""Records of the sample topic as rows of whole numbers, and sums as loads: what the workers of partition-loads run. Pure.

Both are the plain reader's own code (`loaddata.samples`), so that the two agree to the last digit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Window as Over
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from loaddata.samples.averages import MISSING, Place, Sums, Window, cells_of, load_of
from loaddata.samples.cluster_files import LOADS_NAME, lines_of
from loaddata.samples.partitions import PartitionLoad
from loaddata.samples.sample_topic import CLOCKS_MS, InvalidSampleReason, decode_at
from spark.core.archive import Archive, day_of
from spark.core.store import Folder, Pointer, SnapshotStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


FIGURES: Final = ("disk", "bytes_in", "bytes_out", "cpu")
"""Columns of a sample's figures, in the order of `averages.RESOURCES`; rates and CPU in thousandths."""
SOURCE_COLUMNS: Final = ("at", "offset", "timestamp_ms", "key", "value")

ROW: Final = pa.schema(
    [
        ("at", pa.int32()),
        ("offset", pa.int64()),
        ("log_time_ms", pa.int64()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("broker", pa.int64()),
        ("taken_at_ms", pa.int64()),
        *((name, pa.int64()) for name in FIGURES),
        ("junk", pa.string()),
    ]
)
"""A record. `at` and `offset` say where it lies in the sample topic; `junk` is empty for a sample, else why it is none."""

SUMS: Final = ("topic", "partition", "begins", *(f"sum_{name}" for name in FIGURES), *(f"n_{name}" for name in FIGURES))
"""Columns of a partition's sums; `begins` is the topic's first interval with a sample."""

LOAD: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("disk_bytes", pa.int64()),
        ("bytes_in_per_s", pa.int64()),
        ("bytes_out_per_s", pa.int64()),
        ("cpu_units", pa.int64()),
        ("completeness", pa.float64()),
    ]
)
"""The load of a partition, as `loaddata.samples.partitions.PartitionLoad`."""
LOAD_FIGURES: Final = tuple(name for name in LOAD.names if name not in {"topic", "partition"})


def decoded(batches: Iterator[pa.RecordBatch], partitions: int, cluster: str) -> Iterator[pa.RecordBatch]:
    """Rows of `ROW` for records with `SOURCE_COLUMNS`.

    Args:
        cluster: Samples of other clusters are junk.
    """
    for batch in batches:
        rows = [row_of(record, partitions, cluster) for record in batch.to_pylist()]
        yield pa.RecordBatch.from_pylist(rows, schema=ROW)


def row_of(record: dict[str, Any], partitions: int, cluster: str) -> dict[str, Any]:
    """The row of one record; columns that do not apply are left out."""
    row = {"at": record["at"], "offset": record["offset"], "log_time_ms": record["timestamp_ms"], "junk": ""}
    sample = decode_at(record["value"], record["key"], record["at"], partitions, cluster)
    if isinstance(sample, InvalidSampleReason):
        return row | {"junk": str(sample)}
    cells = (None if cell == MISSING else cell for cell in cells_of(sample))
    return row | {
        "topic": sample.topic,
        "partition": sample.partition,
        "broker": sample.broker,
        "taken_at_ms": sample.taken_at_ms,
        **dict(zip(FIGURES, cells, strict=True)),
    }


def averaged(batches: Iterator[pa.RecordBatch], ends: int) -> Iterator[pa.RecordBatch]:
    """Rows of `LOAD` for rows with `SUMS`.

    Args:
        ends: Number of the interval behind the window.
    """
    for batch in batches:
        rows = [loaded_row for row in batch.to_pylist() if (loaded_row := loaded(row, ends)) is not None]
        yield pa.RecordBatch.from_pylist(rows, schema=LOAD)


def loaded(row: dict[str, Any], ends: int) -> dict[str, Any] | None:
    """The load of one partition by its sums; None where nothing of it is known."""
    totals = tuple(int(row[f"sum_{name}"] or 0) for name in FIGURES)
    counts = tuple(int(row[f"n_{name}"]) for name in FIGURES)
    if not any(counts):
        return None
    sums = Sums((totals[0], totals[1], totals[2], totals[3]), (counts[0], counts[1], counts[2], counts[3]), 0)
    load = load_of(sums, ends - int(row["begins"]))
    if load is None:
        return None
    figures = {name: getattr(load, name) for name in LOAD_FIGURES}
    return {"topic": row["topic"], "partition": row["partition"], **figures}


ROW_TYPE: Final = from_arrow_schema(ROW)
LOAD_TYPE: Final = from_arrow_schema(LOAD)
PARTITIONS: Final = "partitions"
ROWS_AT_ONCE: Final = 10_000
_SUM_TYPE: Final = "decimal(38,0)"


def rows_of(records: DataFrame, positions: Mapping[int, int], partitions: int, cluster: str) -> DataFrame:
    """Records of Kafka's source as rows of `ROW`, with the day of the log as `dt`.

    Args:
        records: With the columns of Kafka's source.
        positions: Next offset of each partition of the sample topic; what lies below was taken in before.
        cluster: Samples of other clusters do not count.
    """
    known = F.lit(0).cast("long")
    if positions:
        at = F.create_map(*(F.lit(value) for pair in positions.items() for value in pair))
        known = F.coalesce(at[F.col("partition")], F.lit(0)).cast("long")
    source = records.where(F.col("offset") >= known).select(
        F.col("partition").alias("at"), "offset", F.unix_millis("timestamp").alias("timestamp_ms"), "key", "value"
    )
    rows = source.select(*SOURCE_COLUMNS).mapInArrow(partial(decoded, partitions=partitions, cluster=cluster), ROW_TYPE)
    day = F.date_format(F.timestamp_millis("log_time_ms"), "yyyy-MM-dd")
    return rows.withColumn("dt", day)


def newest_of(rows: DataFrame, window: Window) -> DataFrame:
    """The samples of a window that count: of each partition and interval the last one; `slot` is the interval's number."""
    slot = F.floor(F.col("taken_at_ms") / F.lit(window.interval_ms)).cast("long")
    last = window.first + window.slots - 1
    held = rows.where(F.col("junk") == "").withColumn("slot", slot).where(F.col("slot").between(window.first, last))
    figures = F.max_by(F.struct(*FIGURES), "offset").alias("figures")
    return held.groupBy("topic", "partition", "slot").agg(figures).select("topic", "partition", "slot", "figures.*")


def loads_of(newest: DataFrame, window: Window) -> DataFrame:
    sums = [F.sum(F.col(name).cast(_SUM_TYPE)).alias(f"sum_{name}") for name in FIGURES]
    counts = [F.count(name).alias(f"n_{name}") for name in FIGURES]
    known = F.coalesce(*(F.col(name) for name in FIGURES)).isNotNull()
    first = F.min(F.when(known, F.col("slot"))).alias("first")
    summed = newest.groupBy("topic", "partition").agg(*sums, *counts, first)
    begins = F.min("first").over(Over.partitionBy("topic")).alias("begins")
    columns = [begins if name == "begins" else F.col(name) for name in SUMS]
    ends = window.first + window.slots
    return summed.select(*columns).mapInArrow(partial(averaged, ends=ends), LOAD_TYPE)


def positions_of(meta: Mapping[str, Any]) -> dict[int, int]:
    """Next offset of each partition of the sample topic, in a pointer's `meta` that has its id."""
    return {int(number): int(offset) for number, offset in meta["positions"].items()} if meta["topic_id"] else {}


class PartitionTable:
    """The folder of the job's tables.

    Args:
        uri: Any that both Spark and pyarrow know.
    """

    def __init__(self, spark: SparkSession, uri: str, keep: int) -> None:
        self._spark = spark
        self.root = Folder(uri)
        self.loads = SnapshotStore(f"{self.root.uri}/loads", max(2, keep), positions_of)
        self.history = Archive((self.root / "history").uri, counted="junk", order=("at", "offset"))

    def take_up(self) -> Pointer | None:
        """The newest snapshot; what a run that died has left behind it is removed.

        Raises:
            TableFormatError: The folder does not hold what this version writes.
        """
        base = self.loads.latest(mend=True)
        self.history.recover(-1 if base is None else base.sequence)
        return base

    def add(self, rows: DataFrame, base: Pointer | None) -> Mapping[str, int]:
        """Add rows to the history, as the batch behind `base`; how many are what (`ROW.junk`)."""
        self.loads.check_newest(base)
        self.history.recover(-1 if base is None else base.sequence)
        return self.history.add(rows, 0 if base is None else base.sequence + 1)

    def forget(self) -> None:
        """Remove the history: it is another topic's. The snapshots stay until the next one."""
        for day in self.history.days():
            self.history.remove(day)

    def read(self, window: Window) -> DataFrame:
        """All rows of the history that may lie in a window."""
        begins = day_of(window.from_ms - CLOCKS_MS)
        return self.history.rows(self._spark, ROW_TYPE, [day for day in self.history.days() if day >= begins])

    def write(self, loads: DataFrame, base: Pointer | None, head: Mapping[str, Any]) -> int:
        """Write a snapshot behind `base`; returns of how many partitions. It counts once `publish` was called.

        Args:
            head: Of the file of loads: see `loads_file.lines_of`.
        """
        _, folder = self.loads.begin(base)
        # All of it passes through the driver for the file anyway: a hundred bytes for each partition.
        table = loads.toArrow().sort_by([("topic", "ascending"), ("partition", "ascending")])
        place = folder / PARTITIONS
        place.files.create_dir(place.path, recursive=True)
        pq.write_table(table, f"{place.path}/part-0.parquet", filesystem=place.files)
        lines = lines_of(_loads_in(table), partitions=table.num_rows, **head)
        (folder / LOADS_NAME).write(b"".join(lines))
        return int(table.num_rows)

    def publish(self, base: Pointer | None, meta: dict[str, Any]) -> Pointer:
        """Move the pointer; what was written counts from now on."""
        return self.loads.publish(base, meta)

    def tidy(self, window: Window, *, compacts: bool) -> None:
        """Remove days of the history that no window needs any more, and put those that are over into one batch each."""
        begins, today = day_of(window.from_ms - CLOCKS_MS), day_of(window.to_ms)
        for day in self.history.days():
            if day < begins:
                self.history.remove(day)
        if compacts:
            self.history.compact_days(self._spark, today, ROW_TYPE)


def _loads_in(table: pa.Table) -> Iterator[tuple[Place, PartitionLoad]]:
    for batch in table.to_batches(max_chunksize=ROWS_AT_ONCE):
        for row in batch.to_pylist():
            yield (row["topic"], row["partition"]), PartitionLoad(**{name: row[name] for name in LOAD_FIGURES})
