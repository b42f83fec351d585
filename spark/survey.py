"""Looks through rows of a log for what `plan.py` has to know, without a Python worker wherever the JVM can tell.

A row has `partition`, `offset`, `timestamp_ms`, `key`, `value`, and `group`: the unit of the fold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from spark.plan import Mark, Seen, Vouching
from statechannel.core.codec import COLD_START_KEY, HEARTBEAT_KEY, decode_heartbeat
from statechannel.core.cold_start import decode_mark
from statechannel.core.survey import Facts, Stop, newer_format, vouched

if TYPE_CHECKING:
    from pyspark.sql import Row

_STOPS = "partition int, offset long, format long"
_STOPS_ARROW = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("format", pa.int64())])


class Survey(NamedTuple):
    """What rows of a log hold.

    Attributes:
        seen: By partition; partitions without a row are left out.
        groups: Groups that have a row, by partition.
    """

    seen: Mapping[int, Seen]
    groups: Mapping[int, tuple[str, ...]]


_TEXT = "cast(key as string)"
GROUP: Final = (
    # Spark does not look at bytes that it calls a string; a namespace is in ASCII, so the others may have any name.
    f"coalesce(if(is_valid_utf8({_TEXT}), substring_index({_TEXT}, '/', 2), hex(key)), '')"
)
"""The unit of the fold: `tenant/namespace` of keys of a known form; of others anything that is the same for the same key."""

_VALUE = "cast(value as string)"
_PLAIN = (
    f"length({_VALUE}) - length(replace({_VALUE}, 'format', '')) = 6 and instr({_VALUE}, char(92)) = 0 "
    f"and {_VALUE} rlike '\"format\": ?1[,}} ]'"
)
MAY_BE_NEWER: Final = f"value is not null and not coalesce(startswith({_TEXT}, '!'), false) and not ({_PLAIN})"
"""Whether a value may be of a newer format; the JVM clears those that say `"format":1` once and plainly."""

_TOLD = f"key in (X'{HEARTBEAT_KEY.hex()}', X'{COLD_START_KEY.hex()}')"
_LOOK = (
    "count(*) as records",
    "min(offset) as first",
    "max(offset) as last",
    "min(timestamp_ms) as oldest_ms",
    "max(timestamp_ms) as newest_ms",
    f"count_if({MAY_BE_NEWER}) as doubtful",
    f"collect_list(if({_TOLD}, struct(offset, key, value), null)) as told",
    "collect_set(`group`) as groups",
)


def survey(rows: DataFrame, positions: Mapping[int, int]) -> Survey:
    """Look through rows whose offsets are unique; they are gone through once, and again only where something is found.

    Args:
        positions: Offset that the first row of each partition should have.
    """
    found = rows.groupBy("partition").agg(*map(F.expr, _LOOK)).collect()
    doubtful = [row["partition"] for row in found if row["doubtful"]]
    stops = _stops(rows.where(F.col("partition").isin(doubtful))) if doubtful else {}
    gapped = [row["partition"] for row in found if _has_gap(row, positions.get(row["partition"], 0))]
    gaps = _gap_ends(rows.where(F.col("partition").isin(gapped)), positions) if gapped else {}
    seen = {row["partition"]: _seen(row, stops.get(row["partition"]), gaps.get(row["partition"])) for row in found}
    return Survey(seen, {row["partition"]: tuple(row["groups"]) for row in found})


def _has_gap(row: Row, position: int) -> bool:
    return bool(row["first"] != position or row["records"] != row["last"] - row["first"] + 1)


def _seen(row: Row, stop: Stop | None, gap: tuple[int, int] | None) -> Seen:
    heartbeats, marks = [], []
    for offset, key, value in sorted(row["told"], key=lambda one: one[0]):
        if stop is not None and offset > stop.offset:
            break
        if bytes(key) == HEARTBEAT_KEY:
            heartbeat = decode_heartbeat(None if value is None else bytes(value))
            if heartbeat is not None:
                heartbeats.append(Vouching(offset, heartbeat.clean_to))
        else:
            mark = decode_mark(None if value is None else bytes(value))
            if mark is not None:
                marks.append(Mark(offset, mark.through))
    gap_end, gap_end_ms = gap or (-1, 0)
    return Seen(
        records=row["records"],
        first=row["first"],
        last=row["last"],
        oldest_ms=row["oldest_ms"],
        newest_ms=row["newest_ms"],
        gap_end=gap_end,
        gap_end_ms=gap_end_ms,
        stop=stop,
        heartbeats=tuple(heartbeats),
        marks=tuple(marks),
    )


def _stops(rows: DataFrame) -> dict[int, Stop]:
    """The first record of a newer format in each partition that has one."""
    doubtful = rows.where(MAY_BE_NEWER).select("partition", "offset", "key", "value")
    found = doubtful.mapInArrow(_newer, _STOPS)
    first = found.groupBy("partition").agg(F.min(F.struct("offset", "format")).alias("first")).collect()
    return {row["partition"]: Stop(row["first"]["offset"], row["first"]["format"]) for row in first}


def _newer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in ("partition", "offset", "key", "value")]
        found: list[tuple[Any, ...]] = []
        for partition, offset, key, value in zip(*columns, strict=True):
            newer = newer_format(key, value)
            if newer:
                found.append((partition, offset, newer))
        if found:
            arrays = [
                pa.array(column, one.type) for column, one in zip(zip(*found, strict=True), _STOPS_ARROW, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=_STOPS_ARROW)


def _gap_ends(rows: DataFrame, positions: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """The record behind the last gap of each partition: its offset and log time."""
    order = Window.partitionBy("partition").orderBy("offset")
    expected = F.coalesce(F.lag("offset").over(order) + 1, F.expr(_by_partition(positions)))
    behind = (
        rows.select("partition", "offset", "timestamp_ms", expected.alias("expected"))
        .where(F.col("offset") != F.col("expected"))
        .groupBy("partition")
        .agg(F.max(F.struct("offset", "timestamp_ms")).alias("last"))
        .collect()
    )
    return {row["partition"]: (row["last"]["offset"], row["last"]["timestamp_ms"]) for row in behind}


def _by_partition(values: Mapping[int, int]) -> str:
    whens = " ".join(f"when {partition} then {value}" for partition, value in sorted(values.items()))
    return f"case partition {whens} else 0 end" if whens else "0"


def not_below(positions: Mapping[int, int]) -> str:
    """Whether a row is not older than where its partition's reading stands."""
    return f"offset >= {_by_partition(positions)}"


def facts_of_join(rows: DataFrame, seen: Mapping[int, Seen], *, oldest_kept_ms: int) -> dict[int, Facts]:
    """How partitions are read whose whole log lies in `rows`: as joining members read them.

    Args:
        oldest_kept_ms: Records behind the one vouched for with a time up to this one may have hidden others from the cleaner.
    """
    old = rows.where(F.col("timestamp_ms") <= oldest_kept_ms)
    if any(one.stop is not None for one in seen.values()):
        last = {number: one.last if one.stop is None else one.stop.offset for number, one in seen.items()}
        old = old.where(f"offset <= {_by_partition(last)}")
    newest = {
        row["partition"]: row["newest"]
        for row in old.groupBy("partition").agg(F.max("offset").alias("newest")).collect()
    }
    return {number: _facts(one, newest.get(number, -1)) for number, one in seen.items()}


def _facts(seen: Seen, newest_old: int) -> Facts:
    clean_to = max((one.clean_to for one in seen.heartbeats if one.clean_to < one.offset), default=-1)
    without_gaps = seen.gap_end < 0
    facts = vouched(clean_to, -1 if without_gaps else newest_old, seen.stop)
    if any(mark.offset > clean_to for mark in seen.marks):
        # Who vouches has to have read the mark: before it, a member that was only paused may hold another history.
        return facts._replace(tentative=True)
    return facts
