"""Whether a log says anything of a bundle, a namespace or a topic at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F

from spark.channel.plan import newest_mark
from spark.channel.survey import MAY_BE_NEWER, below, find_stops, words_of
from spark.core.schemas import batch_of
from spark.replay.fold import bytes_of
from statechannel.audit.history import History
from statechannel.protocol.codec import COLD_START_KEY, HEARTBEAT_KEY
from statechannel.protocol.log import RecordRead, Topic
from statechannel.replay.survey import CompleteFrom, FormatStop, ReadFacts, usable_clean_to, vouched

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def named(rows: DataFrame, name: str) -> bool:
    """Whether any record is about it; see `History.is_named`."""
    prefix = History(name).namespace.encode()
    near = rows.where(F.startswith(F.col("key"), F.lit(prefix))).select("key", "value")

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        history = History(name)
        for batch in batches:
            keys, values = (bytes_of(batch.column(column)) for column in ("key", "value"))
            if history.is_named(RecordRead(Topic.CHANNEL, 0, 0, 0, *pair) for pair in zip(keys, values, strict=True)):
                yield pa.RecordBatch.from_arrays([pa.array([True])], names=["named"])
                return

    return bool(near.mapInArrow(work, "named boolean").limit(1).collect())


_NONE_MS = 2**63 - 1
_KNOWN = pa.schema(
    [("partition", pa.int32()), ("clean_to", pa.int64()), ("offset", pa.int64()), ("timestamp_ms", pa.int64())]
)


class Looked(NamedTuple):
    """What was seen of one partition.

    Attributes:
        last: Offset of its last record.
        clean_to: Highest usable one of its heartbeats before the stop; -1 if there is none.
        oldest_above_ms: Lowest time stamp of the records behind `clean_to` and up to the stop.
    """

    records: int = 0
    last: int = -1
    stop: FormatStop | None = None
    clean_to: int = -1
    oldest_above_ms: int = _NONE_MS


class LogSurvey:
    """What was seen of a log."""

    def __init__(self, looked: Mapping[int, Looked]) -> None:
        self._looked = looked

    def of(self, partition: int) -> Looked:
        """What was seen of a partition; one without records has nothing."""
        return self._looked.get(partition, Looked())

    def is_of(self, partition: int, records: int, last: int) -> bool:
        """Whether it is the same log of which another reader has seen a part."""
        looked = self.of(partition)
        return (looked.records, looked.last) == (records, last)

    def facts(self, partition: int, *, oldest_kept_ms: int) -> ReadFacts:
        """How the partition is read, if it has gaps.

        Args:
            oldest_kept_ms: Records behind the one vouched for with a time up to this one may have hidden others from the cleaner.
        """
        seen = self.of(partition)
        is_old = seen.oldest_above_ms <= oldest_kept_ms
        return vouched(seen.clean_to, seen.clean_to + 1 if is_old else -1, seen.stop)


def survey(rows: DataFrame) -> LogSurvey:
    """Look through rows of partition, offset, timestamp_ms, key and value."""
    counted = (
        rows.groupBy("partition")
        .agg(
            F.count("*").alias("records"),
            F.max("offset").alias("last"),
            F.expr(f"count_if({MAY_BE_NEWER})").alias("doubtful"),
        )
        .collect()
    )
    doubtful = [row["partition"] for row in counted if row["doubtful"]]
    stops = find_stops(rows.where(F.col("partition").isin(doubtful))) if doubtful else {}
    up_to_stop = rows.where(below({number: stop.offset + 1 for number, stop in stops.items()}))
    heartbeats = up_to_stop.where(F.col("key") == F.lit(HEARTBEAT_KEY)).select("partition", "offset", "key", "value")
    vouching = heartbeats.mapInArrow(_vouching, "partition int, clean_to long").groupBy("partition")
    clean_to = {
        row["partition"]: row["clean_to"] for row in vouching.agg(F.max("clean_to").alias("clean_to")).collect()
    }
    vouched_for = below({number: offset + 1 for number, offset in clean_to.items()}, otherwise=False)
    above = up_to_stop.where(f"not {vouched_for}").groupBy("partition")
    oldest = {row["partition"]: row["oldest"] for row in above.agg(F.min("timestamp_ms").alias("oldest")).collect()}
    return LogSurvey(
        {
            number: Looked(
                row["records"],
                row["last"],
                stops.get(number),
                clean_to.get(number, -1),
                oldest.get(number, _NONE_MS),
            )
            for row in counted
            for number in (row["partition"],)
        }
    )


def known_points(rows: DataFrame, *, oldest_kept_ms: int) -> dict[int, CompleteFrom]:
    """First offset from which each partition with gaps is complete (`statechannel.replay.survey.Knowing`); others are left out.

    Args:
        rows: Of partitions with gaps, up to their stops.
    """
    order = Window.partitionBy("partition").orderBy("offset")
    before = F.coalesce(F.lag("offset").over(order), F.lit(-1))
    rises = (
        rows.select("partition", "offset", "timestamp_ms", "key", before.alias("before"))
        .groupBy("partition")
        .agg(
            F.max(F.when(F.col("timestamp_ms") <= oldest_kept_ms, F.col("offset"))).alias("old"),
            F.expr(f"count_if(key = X'{COLD_START_KEY.hex()}')").alias("marks"),
            F.max(F.when(F.col("offset") != F.col("before") + 1, F.col("offset") - 1)).alias("gap"),
        )
        .collect()
    )
    heartbeats = rows.where(F.col("key") == F.lit(HEARTBEAT_KEY)).select(
        "partition", "offset", "timestamp_ms", "key", "value"
    )
    vouching = heartbeats.mapInArrow(_known, "partition int, clean_to long, offset long, timestamp_ms long")
    cold = _cold_starts(rows, [rise["partition"] for rise in rises if rise["marks"]])
    points: dict[int, CompleteFrom] = {}
    for rise in rises:
        old, cut = rise["old"], cold.get(rise["partition"], -1)
        floor = max(cut, *(-1 if rise[name] is None else rise[name] for name in ("old", "gap")))
        of_this = vouching.where(F.col("partition") == rise["partition"])
        point = F.struct("clean_to", "offset", "timestamp_ms")
        newest = F.struct("clean_to", -F.col("offset"), "timestamp_ms")
        first = of_this.agg(
            F.min(F.when((F.col("clean_to") >= floor) & (F.col("offset") >= floor), point)).alias("first"),
            F.max(newest).alias("highest"),
        ).collect()[0]
        if first["first"] is not None:
            points[rise["partition"]] = CompleteFrom(*first["first"])
        elif first["highest"] is not None and first["highest"][0] >= (-1 if old is None else old):
            clean_to, offset, timestamp_ms = first["highest"]
            points[rise["partition"]] = CompleteFrom(clean_to, -offset, timestamp_ms)
    return points


def _cold_starts(rows: DataFrame, partitions: list[int]) -> dict[int, int]:
    """Offset of the newest mark that counts in each of these partitions; those without are left out."""
    if not partitions:
        return {}
    words = words_of(rows.where(F.col("partition").isin(partitions)))
    marks = {number: newest_mark(spoken)[0] for number, spoken in words.items()}
    return {number: mark.offset for number, mark in marks.items() if mark is not None}


def _known(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        names = ("partition", "offset", "timestamp_ms")
        numbers = [batch.column(name).to_pylist() for name in names]
        rows_out = [
            (partition, clean_to, offset, timestamp_ms)
            for partition, offset, timestamp_ms, key, value in zip(
                *numbers, bytes_of(batch.column("key")), bytes_of(batch.column("value")), strict=True
            )
            if (clean_to := usable_clean_to(key, value, offset)) >= 0
        ]
        if rows_out:
            yield batch_of(rows_out, _KNOWN)


def _vouching(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        partitions, offsets = batch.column("partition").to_pylist(), batch.column("offset").to_pylist()
        best: dict[int, int] = {}
        for partition, offset, key, value in zip(
            partitions, offsets, bytes_of(batch.column("key")), bytes_of(batch.column("value")), strict=True
        ):
            best[partition] = max(best.get(partition, -1), usable_clean_to(key, value, offset))
        arrays = [pa.array(list(best), pa.int32()), pa.array(list(best.values()), pa.int64())]
        yield pa.RecordBatch.from_arrays(arrays, names=["partition", "clean_to"])
