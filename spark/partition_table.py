"""What the job partition-loads writes: data frames in, files out.

Below the folder of the table:

    history/dt=<UTC date of the log>/batch=<sequence>/*.parquet
    loads/LATEST, loads/v=<sequence>/partitions/*.parquet, loads/v=<sequence>/loads.jsonl

One pointer for all: a batch that it does not cover does not count yet. `loads.jsonl` is what plans read without Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Window as Over
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows

from loaddata.partitions.averages import Place, Window
from loaddata.partitions.loads import PartitionLoad
from loaddata.partitions.loads_file import NAME, lines_of
from loaddata.partitions.sample_topic import CLOCKS_MS
from spark.archive import Archive, day_of
from spark.load_rows import schema_ddl
from spark.partition_rows import FIGURES, LOAD, ROW, SOURCE_COLUMNS, SUMS, averaged, decoded
from spark.store import Folder, Pointer, SnapshotStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ROW_DDL: Final = schema_ddl(ROW)
LOAD_DDL: Final = schema_ddl(LOAD)
PARTITIONS: Final = "partitions"
ROWS_AT_ONCE: Final = 10_000
_SUM_TYPE: Final = "decimal(38,0)"


def rows_of(records: DataFrame, positions: Mapping[int, int], partitions: int, cluster: str) -> DataFrame:
    """Records of Kafka's source as rows of `partition_rows.ROW`, with the day of the log as `dt`.

    Args:
        records: With the columns of Kafka's source.
        positions: Next offset of each partition of the sample topic; what lies below was taken in before.
        partitions: How many partitions that has.
        cluster: Samples of other clusters do not count.
    """
    known = F.lit(0).cast("long")
    if positions:
        at = F.create_map(*(F.lit(one) for pair in positions.items() for one in pair))
        known = F.coalesce(at[F.col("partition")], F.lit(0)).cast("long")
    source = records.where(F.col("offset") >= known).select(
        F.col("partition").alias("at"), "offset", F.unix_millis("timestamp").alias("timestamp_ms"), "key", "value"
    )
    rows = source.select(*SOURCE_COLUMNS).mapInArrow(partial(decoded, partitions=partitions, cluster=cluster), ROW_DDL)
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
    """The load of each partition, rows of `partition_rows.LOAD`."""
    sums = [F.sum(F.col(name).cast(_SUM_TYPE)).alias(f"sum_{name}") for name in FIGURES]
    counts = [F.count(name).alias(f"n_{name}") for name in FIGURES]
    known = F.coalesce(*(F.col(name) for name in FIGURES)).isNotNull()
    first = F.min(F.when(known, F.col("slot"))).alias("first")
    summed = newest.groupBy("topic", "partition").agg(*sums, *counts, first)
    begins = F.min("first").over(Over.partitionBy("topic")).alias("begins")
    columns = [begins if name == "begins" else F.col(name) for name in SUMS]
    ends = window.first + window.slots
    return summed.select(*columns).mapInArrow(partial(averaged, ends=ends), LOAD_DDL)


class PartitionTable:
    """The folder of the job's tables.

    Args:
        uri: Any that both Spark and pyarrow know.
        keep: Number of snapshots that are kept.
    """

    def __init__(self, spark: SparkSession, uri: str, keep: int) -> None:
        self._spark = spark
        self.root = Folder(uri)
        self.loads = SnapshotStore(f"{self.root.uri}/loads", max(2, keep))
        self.history = Archive((self.root / "history").uri, counted="junk", order=("at", "offset"))

    def take_up(self) -> Pointer | None:
        """The newest snapshot; what a run that died has left behind it is removed.

        Raises:
            TableFormatError: The folder does not hold what this version writes.
        """
        base = self.loads.latest()
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
            (self.history.root / day).remove()

    def read(self, window: Window) -> DataFrame:
        """All rows of the history that may lie in a window."""
        begins = day_of(window.from_ms - CLOCKS_MS)
        days = [(self.history.root / day).pattern for day in self.history.days() if day >= begins]
        if not days:
            return self._spark.createDataFrame([], ROW_DDL)
        return self._spark.read.schema(self._schema()).option("recursiveFileLookup", "true").parquet(*days)

    def _schema(self) -> StructType:
        return self._spark.createDataFrame([], ROW_DDL).schema

    def write(self, loads: DataFrame, base: Pointer | None, head: Mapping[str, Any]) -> int:
        """Write a snapshot behind `base`; returns of how many partitions. It counts once `publish` was called.

        Args:
            head: Of the file of loads: see `loads_file.lines_of`.
        """
        _, folder = self.loads.begin(base)
        # All of it passes through the driver for the file anyway: a hundred bytes for each partition.
        found = loads.toArrow().sort_by([("topic", "ascending"), ("partition", "ascending")])
        place = folder / PARTITIONS
        place.files.create_dir(place.path, recursive=True)
        pq.write_table(found, f"{place.path}/part-0.parquet", filesystem=place.files)
        lines = lines_of(_loads_in(found), partitions=found.num_rows, **head)
        (folder / NAME).write(b"".join(lines))
        return int(found.num_rows)

    def publish(self, base: Pointer | None, meta: dict[str, Any]) -> Pointer:
        """Move the pointer; what was written counts from now on."""
        return self.loads.publish(base, meta)

    def tidy(self, window: Window, *, compacts: bool) -> None:
        """Remove days of the history that no window needs any more, and put those that are over into one batch each."""
        begins, today = day_of(window.from_ms - CLOCKS_MS), day_of(window.to_ms)
        for day in self.history.days():
            if day < begins:
                (self.history.root / day).remove()
        if compacts:
            for day in self.history.to_compact(today):
                self.history.compact(self._spark, day, self._schema())


def _loads_in(found: pa.Table) -> Iterator[tuple[Place, PartitionLoad]]:
    figures = [name for name in LOAD.names if name not in {"topic", "partition"}]
    for batch in found.to_batches(max_chunksize=ROWS_AT_ONCE):
        for row in batch.to_pylist():
            yield (row["topic"], row["partition"]), PartitionLoad(**{name: row[name] for name in figures})
