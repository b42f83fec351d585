"""What is seen of a whole log before it is folded: its stops, what its heartbeats vouch for, whom it names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from spark.channel.plan import ColdStartMark
from spark.channel.survey import MAY_BE_NEWER, below, find_stops, words_of
from spark.core.schemas import batch_of
from spark.replay.fold import bytes_of
from statechannel.audit.history import History
from statechannel.protocol.codec import COLD_START_KEY, HEAD_KEY, HEARTBEAT_KEY
from statechannel.protocol.cold_start_marks import counts, decode_mark
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.overruling import MarkedColdStart
from statechannel.replay.survey import CompleteFrom, FormatStop, ReadFacts, usable_clean_to, vouched

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def named(rows: DataFrame, name: str) -> bool:
    """Whether any record is about it; see `History.is_named`."""
    prefix = (History(name).namespace or "").encode()
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
_MARKS = f"count_if(key = X'{COLD_START_KEY.hex()}')"
_VOUCHING = pa.schema(
    [("partition", pa.int32()), ("clean_to", pa.int64()), ("offset", pa.int64()), ("timestamp_ms", pa.int64())]
)


class PartitionSurvey(NamedTuple):
    """What was seen of one partition.

    Attributes:
        last: Offset of its last record.
        clean_to: Highest usable one of its heartbeats before the stop; -1 if there is none.
        cold_starts: Those before the stop whose marks count.
        oldest_above_ms: Lowest time stamp of the records behind `clean_to` and up to the stop.
    """

    records: int = 0
    last: int = -1
    stop: FormatStop | None = None
    clean_to: int = -1
    oldest_above_ms: int = _NONE_MS
    cold_starts: tuple[MarkedColdStart, ...] = ()

    def facts(self, *, oldest_kept_ms: int) -> ReadFacts:
        """How the partition is read, if it has gaps.

        Args:
            oldest_kept_ms: Records behind the one vouched for with a time up to this one may have hidden others from the cleaner.
        """
        is_old = self.oldest_above_ms <= oldest_kept_ms
        facts = vouched(self.clean_to, self.clean_to + 1 if is_old else -1, self.stop)
        return facts._replace(cold_starts=self.cold_starts)

    @property
    def strict(self) -> ReadFacts:
        return ReadFacts(stop=self.stop, cold_starts=self.cold_starts)


def survey(rows: DataFrame) -> dict[int, PartitionSurvey]:
    """Look through rows of partition, offset, timestamp_ms, key and value; partitions without a row are left out."""
    counted = (
        rows.groupBy("partition")
        .agg(
            F.count("*").alias("records"),
            F.max("offset").alias("last"),
            F.expr(f"count_if({MAY_BE_NEWER})").alias("doubtful"),
            F.expr(_MARKS).alias("marks"),
        )
        .collect()
    )
    doubtful = [row["partition"] for row in counted if row["doubtful"]]
    stops = find_stops(rows.where(F.col("partition").isin(doubtful))) if doubtful else {}
    up_to_stop = rows.where(below({number: stop.offset + 1 for number, stop in stops.items()}))
    cold = _cold_starts(up_to_stop, [row["partition"] for row in counted if row["marks"]])
    vouching = vouching_heartbeats(up_to_stop).where(_has_read_marks(cold))
    highest = vouching.groupBy("partition").agg(F.max("clean_to").alias("clean_to"))
    clean_to = {row["partition"]: row["clean_to"] for row in highest.collect()}
    vouched_for = below({number: offset + 1 for number, offset in clean_to.items()}, otherwise=False)
    above = up_to_stop.where(f"not {vouched_for}").groupBy("partition")
    oldest = {row["partition"]: row["oldest"] for row in above.agg(F.min("timestamp_ms").alias("oldest")).collect()}
    return {
        number: PartitionSurvey(
            row["records"],
            row["last"],
            stops.get(number),
            clean_to.get(number, -1),
            oldest.get(number, _NONE_MS),
            cold.get(number, ()),
        )
        for row in counted
        for number in (row["partition"],)
    }


def vouching_heartbeats(rows: DataFrame) -> DataFrame:
    """Heartbeats that vouch for a history: partition, clean_to, offset, timestamp_ms."""
    heartbeats = rows.where(F.col("key") == F.lit(HEARTBEAT_KEY))
    columns = heartbeats.select("partition", "offset", "timestamp_ms", "key", "value")
    return columns.mapInArrow(_vouching, from_arrow_schema(_VOUCHING))


def known_points(rows: DataFrame, *, oldest_kept_ms: int) -> dict[int, CompleteFrom]:
    """First offset from which each partition with gaps is complete (`statechannel.replay.survey.Knowing`); others are left out.

    Args:
        rows: Of partitions with gaps, up to their stops.
    """
    order = Window.partitionBy("partition").orderBy("offset")
    before = F.coalesce(F.lag("offset").over(order), F.lit(-1))
    # A gap that can have been cleaned, as `could_be_cleaned` says.
    is_old = F.coalesce(F.lag("timestamp_ms").over(order) <= oldest_kept_ms, F.lit(True))
    rises = (
        rows.select("partition", "offset", "timestamp_ms", "key", before.alias("before"), is_old.alias("behind_old"))
        .groupBy("partition")
        .agg(
            F.max(F.when(F.col("timestamp_ms") <= oldest_kept_ms, F.col("offset"))).alias("old"),
            F.expr(_MARKS).alias("marks"),
            F.max(F.when(F.col("key") == F.lit(HEAD_KEY), F.col("offset"))).alias("head"),
            F.max(F.when(F.col("behind_old") & (F.col("offset") != F.col("before") + 1), F.col("offset") - 1)).alias(
                "gap"
            ),
        )
        .collect()
    )
    cold = _cold_starts(rows, [rise["partition"] for rise in rises if rise["marks"]])
    vouching = vouching_heartbeats(rows).where(_has_read_marks(cold))
    points: dict[int, CompleteFrom] = {}
    for rise in rises:
        old = rise["old"]
        floor = max(-1 if rise[name] is None else rise[name] for name in ("old", "head", "gap"))
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


def cleaned_partitions(rows: DataFrame, ends: Mapping[int, int], *, oldest_kept_ms: int) -> set[int]:
    """Partitions that lack an offset that can have been cleaned (`statechannel.replay.survey.has_gaps`).

    Args:
        ends: Offset after the last of each.
    """
    old = rows.where(F.col("timestamp_ms") <= oldest_kept_ms).groupBy("partition").agg(F.max("offset").alias("newest"))
    newest = {row["partition"]: row["newest"] for row in old.collect()}
    # The offset behind the newest old record is the last one that can be missing so.
    reach = {number: min(end, newest.get(number, -1) + 2) for number, end in ends.items()}
    counted = rows.where(below(reach, otherwise=False)).groupBy("partition").count().collect()
    present = {row["partition"]: row["count"] for row in counted}
    return {number for number, limit in reach.items() if present.get(number, 0) != limit}


def _cold_starts(rows: DataFrame, partitions: list[int]) -> dict[int, tuple[MarkedColdStart, ...]]:
    """The cold starts of these partitions whose marks count; those without are left out."""
    if not partitions:
        return {}
    cold = {}
    for number, words in words_of(rows.where(F.col("partition").isin(partitions))).items():
        word, offsets = -1, []
        for spoken in sorted(words, key=lambda spoken: spoken.offset):
            if isinstance(spoken, ColdStartMark):
                if not counts(spoken.through, spoken.offset, word):
                    continue
                offsets.append(spoken.offset)
            word = spoken.offset
        if offsets:
            cold[number] = _marks_at(rows, number, offsets)
    return cold


def _marks_at(rows: DataFrame, partition: int, offsets: Iterable[int]) -> tuple[MarkedColdStart, ...]:
    marks = rows.where((F.col("partition") == partition) & F.col("offset").isin(list(offsets)))
    rows_of_marks = marks.select("offset", "timestamp_ms", "value").orderBy("offset").collect()
    decoded = ((row["offset"], row["timestamp_ms"], decode_mark(bytes(row["value"]))) for row in rows_of_marks)
    return tuple(MarkedColdStart(offset, at_ms, mark) for offset, at_ms, mark in decoded if mark is not None)


def _has_read_marks(cold: Mapping[int, tuple[MarkedColdStart, ...]]) -> str:
    """Condition of heartbeats whose writers had read the marks below them."""
    marks = ((number, mark.offset) for number, every in cold.items() for mark in every)
    return " and ".join(f"not (partition = {n} and offset > {m} and clean_to < {m})" for n, m in marks) or "true"


def _vouching(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
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
            yield batch_of(rows_out, _VOUCHING)
