"""What the job load-views writes: the history, the views, and tombstones. Data frames in, files and records out.

Below the folder of the table:

    history/dt=<UTC date of the log>/batch=<sequence>/*.parquet
    views/LATEST, views/v=<sequence>/broker-load/*.parquet, views/v=<sequence>/top-bundles/*.parquet

One pointer stands for both views and for the history: a batch that it does not cover does not count yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from loaddata.report.record import DEADLINE, LAST_OFFSET, REASON, ReportKind, Tombstone
from spark.core.archive import Archive
from spark.core.store import Folder, Pointer, SnapshotStore
from spark.load.fold import FOLD_COLUMNS, JudgedRecord
from spark.load.rows import ROW, SOURCE_COLUMNS, decoded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROW_TYPE = from_arrow_schema(ROW)
HISTORY = pa.schema([*(field for field in ROW if field.name != "dt"), ("fate", pa.string()), ("topic_id", pa.string())])
HISTORY_TYPE = from_arrow_schema(HISTORY)
_COMMON = ("topic", "offset", "log_time", "log_time_ms", "broker", "incarnation", "seq", "written_at_ms", "owned_as_of")
VIEW_COLUMNS: Mapping[ReportKind, tuple[str, ...]] = {
    ReportKind.BROKER_LOAD: (*_COMMON, "size_bytes", "load"),
    ReportKind.TOP_BUNDLES: (*_COMMON, "size_bytes", "bundles"),
}
_RESTORED = [name for name in FOLD_COLUMNS if name in VIEW_COLUMNS[ReportKind.BROKER_LOAD]]
_PLACE = pa.schema([("kind", pa.string()), ("offset", pa.int64())])
_JUDGED = pa.schema([*_PLACE, ("fate", pa.string()), ("reason", pa.string())])
_ORDER = ("kind", "offset")
_TOMBSTONE_HEADERS = (REASON, LAST_OFFSET, DEADLINE)
_TOMBSTONES = "key binary, headers array<struct<key: string, value: binary>>"


def rows_of(records: DataFrame, kinds: Mapping[str, ReportKind], positions: Mapping[str, int]) -> DataFrame:
    """Records of Kafka's source as rows of `rows.ROW`; rows of the tick have no topic and are left out.

    Args:
        records: With the columns of Kafka's source, headers included.
        positions: Next offset of each topic; what lies below was taken in before.
    """
    new = F.lit(False)
    for topic, position in positions.items():
        new |= (F.col("topic") == topic) & (F.col("offset") >= position)
    source = records.where(new).select(
        "topic", "offset", F.unix_millis("timestamp").alias("timestamp_ms"), "key", "value", "headers"
    )
    wanted = dict(kinds)
    return source.select(*SOURCE_COLUMNS).mapInArrow(lambda batches: decoded(batches, wanted), ROW_TYPE)


def fold_rows(rows: DataFrame) -> list[dict[str, Any]]:
    """What the fold needs of each row, in this process: no figures, and nothing that may be as long as a record."""
    # A null whose broker is named has each of the three once, and short: what lies behind them was not looked at either.
    named = F.slice(
        F.filter("headers", lambda header: header["key"].isin(*_TOMBSTONE_HEADERS)), 1, len(_TOMBSTONE_HEADERS)
    )
    headers = F.when(F.col("tombstone") & F.col("broker").isNotNull(), named)
    headers_rows: list[dict[str, Any]] = rows.withColumn("headers", headers).select(*FOLD_COLUMNS).toArrow().to_pylist()
    return headers_rows


def positions_of(meta: Mapping[str, Any]) -> list[int]:
    """Next offset of each topic, in a pointer's `meta` that has their ids and clocks."""
    return [int(topic["position"]) for topic in meta["topics"].values() if topic["topic_id"] and topic["log_clock_ms"]]


class LoadTable:
    """The folder of one job's tables.

    Args:
        uri: Any that both Spark and pyarrow know.
    """

    def __init__(self, spark: SparkSession, uri: str, keep: int) -> None:
        self._spark = spark
        self.root = Folder(uri)
        # The newest is read while the next is written.
        self.views = SnapshotStore(f"{self.root.uri}/views", max(2, keep), positions_of)
        self.history = Archive((self.root / "history").uri, counted="fate", order=_ORDER)
        self._tidy = False

    def check_ours(self, base: Pointer | None) -> None:
        """Check, before anything is written, that no other writer has published since `base` was read.

        What one that died has left is removed then: a pointer that moved over it would make it count.

        Raises:
            TableChangedError: Another writer has.
        """
        self.views.check_newest(base)
        if not self._tidy:
            self.history.recover(-1 if base is None else base.sequence)
            self._tidy = True

    def restored(self, base: Pointer, kind: ReportKind) -> list[dict[str, Any]]:
        """The reports of a snapshot without their figures, for `LoadFold.restore`."""
        held: list[dict[str, Any]] = self._view(base, kind).select(*_RESTORED).toArrow().to_pylist()
        return held

    def _view(self, base: Pointer, kind: ReportKind) -> DataFrame:
        return self._spark.read.parquet(f"{self.views.folder(base.sequence).pattern}/{kind}/*.parquet")

    def write_history(
        self, rows: DataFrame, judged: Sequence[JudgedRecord], topic_ids: Mapping[str, str], base: Pointer | None
    ) -> None:
        """Write the rows that were judged, each with its fate, as the batch behind `base`; once, however often it is tried.

        Args:
            topic_ids: Id of each topic: another one has offsets of its own.
        """
        newest = -1 if base is None else base.sequence
        self._tidy = False
        fates = self._spark.createDataFrame(
            pa.Table.from_pylist([record._asdict() for record in judged], schema=_JUDGED)
        )
        judged_rows = rows.drop("reason").join(F.broadcast(fates), ["kind", "offset"])
        ids = F.create_map(*(F.lit(text) for pair in topic_ids.items() for text in pair))
        judged_rows = judged_rows.withColumn("topic_id", ids[F.col("topic")])
        # One file a day, in the order of the log.
        self.history.add(judged_rows.coalesce(1).sortWithinPartitions("dt", *_ORDER), newest + 1)

    def compact(self, day: str) -> None:
        """Put the batches of the days before this one into one each."""
        self._tidy = False
        self.history.compact_days(self._spark, day, HISTORY_TYPE)
        self._tidy = True

    def write_views(
        self,
        rows: DataFrame,
        winners: Iterable[tuple[str, int]],
        base: Pointer | None,
        restarted: Iterable[ReportKind] = (),
    ) -> None:
        """Write both views into the folder behind `base`: what is held, from this batch or from the snapshot before.

        Args:
            winners: ReportKind and offset of what is held.
            restarted: Kinds of which nothing in the snapshot before counts.
        """
        _, folder = self.views.begin(base)
        held = pa.Table.from_pylist([{"kind": kind, "offset": offset} for kind, offset in winners], schema=_PLACE)
        wanted = F.broadcast(self._spark.createDataFrame(held))
        for kind, columns in VIEW_COLUMNS.items():
            known = rows.where((F.col("kind") == str(kind)) & (F.col("reason") == "") & ~F.col("tombstone")).select(
                *columns
            )
            if base is not None and kind not in restarted:
                known = known.unionByName(self._view(base, kind).select(*columns))
            winners_of_kind = wanted.where(F.col("kind") == str(kind)).select("offset")
            view = (
                known.join(winners_of_kind, "offset", "left_semi")
                .select(*columns)
                .coalesce(1)
                .sortWithinPartitions("broker")
            )
            view.write.mode("overwrite").parquet(f"{folder.place}/{kind}")

    def publish(self, base: Pointer | None, meta: dict[str, Any]) -> Pointer:
        """Move the pointer; what was written counts from now on."""
        pointer = self.views.publish(base, meta)
        self._tidy = True
        return pointer


def write_tombstones(
    spark: SparkSession, topic: str, tombstones: Mapping[str, Tombstone], kafka_options: Mapping[str, str]
) -> None:
    """Write tombstones through Spark's Kafka sink, to partition 0 as every writer of load topics.

    Args:
        kafka_options: Of the sink: `kafka.bootstrap.servers` and other properties.
    """
    rows = [(bytearray(name.encode()), list(tombstone.headers())) for name, tombstone in sorted(tombstones.items())]
    frame = spark.createDataFrame(rows, _TOMBSTONES).coalesce(1)
    nulls = frame.select("key", "headers", F.lit(None).cast("binary").alias("value"), F.lit(0).alias("partition"))
    nulls.write.format("kafka").options(**kafka_options).option("topic", topic).save()
