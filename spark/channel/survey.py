"""A survey of a log's rows for `plan.py`, without a Python worker wherever the JVM suffices.

A row has `partition`, `offset`, `timestamp_ms`, `key`, `value`, and `group`: the unit of the fold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from spark.channel.plan import BatchContents, ColdStartMark, Vouching
from spark.core.schemas import batch_of
from statechannel.protocol.bundle import bundle_key, parse_key
from statechannel.protocol.codec import COLD_START_KEY, HEAD_KEY, HEARTBEAT_KEY, decode_heartbeat, newer_format
from statechannel.protocol.cold_start_marks import HeadMark, decode_head, decode_mark
from statechannel.protocol.view_rows import KeyRow
from statechannel.replay.survey import FormatStop

if TYPE_CHECKING:
    from pyspark.sql import Row


KEYS_MAX = 5_000
"""More keys than that are not distinguished: all rows of the partition are taken."""


class Needed(NamedTuple):
    """Rows of one partition.

    Attributes:
        namespaces: Those of which all rows are needed.
        keys: Bundles that are needed. `of`: their namespaces, with all keys in them that are only remembered.
    """

    everything: bool = False
    namespaces: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()
    of: frozenset[str] = frozenset()

    def holds(self, row: KeyRow) -> bool:
        if self.everything or row.namespace in self.namespaces:
            return True
        return row.namespace in self.of and (row.lower < 0 or row.state is None or row.key in self.keys)

    def condition(self, partition: int) -> str:
        """Condition of the needed rows in SQL; a key of a known form has no letter that SQL would understand."""
        here = f"partition = {partition}"
        if self.everything:
            return f"({here})"
        rows = []
        if self.namespaces:
            rows.append(f"namespace in ({_listed(self.namespaces)})")
        if self.of:
            rows.append(
                f"(namespace in ({_listed(self.of)}) and (lower < 0 or state is null or key in ({_listed(self.keys)})))"
            )
        return f"({here} and ({' or '.join(rows) or 'false'}))"


EVERYTHING = Needed(everything=True)


def needed_for(keys: Iterable[bytes] | None) -> Needed:
    """The rows that records on these keys need; None: unknown."""
    if keys is None:
        return EVERYTHING
    known = [parts for key in keys if (parts := parse_key(key)) is not None]
    namespaces = frozenset(parts.namespace for parts in known if parts.is_namespace)
    bundles = [parts for parts in known if not parts.is_namespace and parts.namespace not in namespaces]
    return Needed(
        namespaces=namespaces,
        keys=frozenset(bundle_key(*parts) for parts in bundles),
        of=frozenset(parts.namespace for parts in bundles),
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))


_LAST = 2**63 - 1
_KEY_MAX_BYTES = 300  # of a known form has at most 279
_CONTROL_OFFSETS, _CONTROL_BYTES = 10_000, 1_000
"""Control records within this number of offsets, and of this size, are decoded at the first look; more are decoded by workers."""
_WORDS = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("is_mark", pa.bool_()), ("number", pa.int64())])
_STOPS = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("format", pa.int64())])


class BatchSurvey(NamedTuple):
    """What rows of a log hold.

    Attributes:
        seen: By partition; partitions without a row are left out.
        needed: Rows of a view that are needed to judge them, by partition.
    """

    seen: Mapping[int, BatchContents]
    needed: Mapping[int, Needed]


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

_CONTROL = f"key in (X'{HEARTBEAT_KEY.hex()}', X'{COLD_START_KEY.hex()}')"
_LOOK = (
    "count(*) as records",
    "min(offset) as first",
    "max(offset) as last",
    "min(timestamp_ms) as oldest_ms",
    "max(timestamp_ms) as newest_ms",
    f"count_if({MAY_BE_NEWER}) as doubtful",
)


def survey(rows: DataFrame, positions: Mapping[int, int]) -> BatchSurvey:
    """Look through rows whose offsets are unique; they are gone through once, and again only where something is found.

    What lies behind a newer format is not looked at: it is read again when its stop is.

    Args:
        positions: Offset that the first row of each partition should have.
    """
    looked = _look(rows, positions)
    doubtful = [row["partition"] for row in looked if row["doubtful"]]
    stops = find_stops(rows.where(F.col("partition").isin(doubtful))) if doubtful else {}
    if stops:
        rows = rows.where(below({number: stop.offset + 1 for number, stop in stops.items()}))
        looked = _look(rows, positions)
    gapped = [row["partition"] for row in looked if _has_gap(row, positions.get(row["partition"], 0))]
    gaps = _gap_ends(rows.where(F.col("partition").isin(gapped)), positions) if gapped else {}
    more = [row["partition"] for row in looked if row["more_control"]]
    words = words_of(rows.where(F.col("partition").isin(more))) if more else {}
    words |= {row["partition"]: [*_words(row["control"])] for row in looked if not row["more_control"]}
    seen = {
        number: _seen(row, stops.get(number), gaps.get(number), words.get(number, ()))
        for row in looked
        for number in (row["partition"],)
    }
    return BatchSurvey(seen, {row["partition"]: _needed(row, positions) for row in looked})


def _look(rows: DataFrame, positions: Mapping[int, int]) -> list[Row]:
    # A set that hostile keys cannot make larger than this; where there are more records it is not used.
    near = f"offset < {_by_partition(positions)} + {KEYS_MAX} and length(key) <= {_KEY_MAX_BYTES}"
    keys = f"collect_set(if({near}, key, null)) as keys"
    few = f"offset < {_by_partition(positions)} + {_CONTROL_OFFSETS} and coalesce(length(value), 0) <= {_CONTROL_BYTES}"
    control = f"collect_list(if({_CONTROL} and {few}, struct(offset, key, value), null)) as control"
    more_control = f"count_if({_CONTROL} and not ({few})) as more_control"
    return rows.groupBy("partition").agg(*map(F.expr, (*_LOOK, keys, control, more_control))).collect()


def _needed(row: Row, positions: Mapping[int, int]) -> Needed:
    few = row["last"] < positions.get(row["partition"], 0) + KEYS_MAX
    return needed_for(map(bytes, row["keys"]) if few else None)


def _has_gap(row: Row, position: int) -> bool:
    return bool(row["first"] != position or row["records"] != row["last"] - row["first"] + 1)


def _words(records: Iterable[tuple[int, bytes, bytes | None]]) -> Iterator[Vouching | ColdStartMark]:
    """What control records say; those that do not decode say nothing."""
    for offset, key, value in records:
        content = None if value is None else bytes(value)
        if bytes(key) == HEARTBEAT_KEY:
            heartbeat = decode_heartbeat(content)
            if heartbeat is not None:
                yield Vouching(offset, heartbeat.clean_to)
        else:
            mark = decode_mark(content)
            if mark is not None:
                yield ColdStartMark(offset, mark.through)


def words_of(rows: DataFrame) -> dict[int, list[Vouching | ColdStartMark]]:
    """What control records of each partition say, decoded by the workers: neither junk nor values come to the driver."""
    records = rows.where(_CONTROL).select("partition", "offset", "key", "value")
    decoded = records.mapInArrow(_decoded, from_arrow_schema(_WORDS)).toArrow()
    words: dict[int, list[Vouching | ColdStartMark]] = {}
    for partition, offset, is_mark, number in zip(*(column.to_pylist() for column in decoded.columns), strict=True):
        words.setdefault(partition, []).append((ColdStartMark if is_mark else Vouching)(offset, number))
    return words


def _decoded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        names = ("partition", "offset", "key", "value")
        spoken = [
            (
                partition,
                word.offset,
                isinstance(word, ColdStartMark),
                word.through if isinstance(word, ColdStartMark) else word.clean_to,
            )
            for partition, *record in zip(*(batch.column(name).to_pylist() for name in names), strict=True)
            for word in _words([(record[0], record[1], record[2])])
        ]
        if spoken:
            yield batch_of(spoken, _WORDS)


def _seen(
    row: Row, stop: FormatStop | None, gap: tuple[int, int] | None, words: Iterable[Vouching | ColdStartMark]
) -> BatchContents:
    ordered = sorted(words, key=lambda word: word.offset)
    gap_end, gap_end_ms = gap or (-1, 0)
    return BatchContents(
        records=row["records"],
        first=row["first"],
        last=row["last"],
        oldest_ms=row["oldest_ms"],
        newest_ms=row["newest_ms"],
        gap_end=gap_end,
        gap_end_ms=gap_end_ms,
        stop=stop,
        heartbeats=tuple(word for word in ordered if isinstance(word, Vouching)),
        marks=tuple(word for word in ordered if isinstance(word, ColdStartMark)),
    )


def head_marks(
    rows: DataFrame, cold_starts: Mapping[int, Iterable[int]], stops: Mapping[int, FormatStop | None]
) -> dict[int, tuple[int, HeadMark]]:
    """The newest mark of a lost head that counts in each partition, and its offset (`Marks.head`).

    Args:
        cold_starts: Offsets of the marks of cold starts, in the partitions to be looked at.
    """
    marks = rows.where((F.col("key") == F.lit(HEAD_KEY)) & F.col("partition").isin([*cold_starts]))
    heads: dict[int, tuple[int, HeadMark]] = {}
    for row in marks.select("partition", "offset", "value").orderBy("offset").collect():
        number, offset = row["partition"], row["offset"]
        mark, stop = decode_head(None if row["value"] is None else bytes(row["value"])), stops[number]
        newest = max((cold for cold in cold_starts[number] if cold < offset), default=-1)
        if mark is not None and newest <= mark.through < offset and (stop is None or offset < stop.offset):
            heads[number] = offset, mark
    return heads


def find_stops(rows: DataFrame) -> dict[int, FormatStop]:
    """The first record of a newer format in each partition that has one."""
    doubtful = rows.where(MAY_BE_NEWER).select("partition", "offset", "key", "value")
    newer = doubtful.mapInArrow(_newer, from_arrow_schema(_STOPS))
    first = newer.groupBy("partition").agg(F.min(F.struct("offset", "format")).alias("first")).collect()
    return {row["partition"]: FormatStop(row["first"]["offset"], row["first"]["format"]) for row in first}


def _newer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in ("partition", "offset", "key", "value")]
        stops: list[tuple[Any, ...]] = []
        for partition, offset, key, value in zip(*columns, strict=True):
            newer = newer_format(key, value)
            if newer:
                stops.append((partition, offset, newer))
        if stops:
            yield batch_of(stops, _STOPS)


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


def _by_partition(values: Mapping[int, int], other: int = 0) -> str:
    whens = " ".join(f"when {partition} then {value}" for partition, value in sorted(values.items()))
    return f"case partition {whens} else {other} end" if whens else str(other)


def not_below(positions: Mapping[int, int]) -> str:
    """Whether a row is not older than where its partition's reading stands."""
    return f"offset >= {_by_partition(positions)}"


def below(limits: Mapping[int, int], *, otherwise: bool = True) -> str:
    """Condition of rows below an offset of their partition; of partitions that are not named all, or none."""
    return f"(offset < {_by_partition(limits, _LAST if otherwise else 0)})"


def newest_old(rows: DataFrame, seen: Mapping[int, BatchContents], *, oldest_kept_ms: int) -> dict[int, int]:
    """Offset of the last record of each partition, up to its stop, whose log time is not behind this one; -1 if none is."""
    old = rows.where(F.col("timestamp_ms") <= oldest_kept_ms)
    stops = {number: part.last + 1 for number, part in seen.items() if part.stop is not None}
    if stops:
        old = old.where(below(stops))
    newest = old.groupBy("partition").agg(F.max("offset").alias("newest")).collect()
    return dict.fromkeys(seen, -1) | {row["partition"]: row["newest"] for row in newest}
