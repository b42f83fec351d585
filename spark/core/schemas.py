"""Columns of what the jobs of the channel read and write: one definition, in Arrow's types; Spark's are made of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa


def arrays_of(rows: Iterable[tuple[Any, ...]], schema: pa.Schema) -> list[pa.Array]:
    """A column for each field; there must be a row, since only rows say how many columns there are."""
    columns = zip(*rows, strict=True)
    return [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]


def batch_of(rows: Iterable[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    """Rows as a batch of this schema; there must be one."""
    return pa.RecordBatch.from_arrays(arrays_of(rows, schema), schema=schema)


STATE: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("namespace", pa.string()),
        ("lower", pa.int64()),
        ("upper", pa.int64()),
        ("key", pa.string()),
        ("state", pa.string()),
        ("version", pa.int64()),
        ("from", pa.string()),
        ("to", pa.string()),
        ("id", pa.string()),
        ("record_id", pa.string()),
        ("derived", pa.bool_()),
        ("offset", pa.int64()),
        ("owner", pa.string()),
        ("generation", pa.int64()),
        ("bounds", pa.list_(pa.int64())),
        ("settled", pa.int64()),
        ("purged", pa.bool_()),
        ("debt_since", pa.int64()),
        ("debt_newest", pa.int64()),
        ("debt_highest", pa.int64()),
        ("writer", pa.string()),
        ("writer_incarnation", pa.string()),
        ("server", pa.string()),
        ("server_incarnation", pa.string()),
        ("was", pa.string()),
        ("forced", pa.bool_()),
        ("operation", pa.string()),
        ("flow", pa.string()),
        ("intent", pa.list_(pa.string())),
    ]
)
"""A key of the table-view: `KeyRow` behind its partition. Keys without a state are only remembered (what settled them, debts)."""

LINE: Final = pa.schema(
    [
        ("verdict", pa.string()),
        ("why", pa.string()),
        ("kind", pa.string()),
        ("id", pa.string()),
        ("version", pa.int64()),
        ("state", pa.string()),
        ("from", pa.string()),
        ("to", pa.string()),
        ("base", pa.string()),
        ("covers", pa.int64()),
        ("forced", pa.bool_()),
        ("broker", pa.string()),
        ("incarnation", pa.string()),
        ("action", pa.string()),
        ("operation", pa.string()),
        ("reason", pa.string()),
        ("before_state", pa.string()),
        ("before_version", pa.int64()),
        ("before_from", pa.string()),
        ("before_to", pa.string()),
        ("before_id", pa.string()),
    ]
)
"""What the archive says of a record: `fold.Line`."""

HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

RAW: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
    ]
)
"""A record as it lies in the log."""

ARCHIVE: Final = pa.schema([*RAW, pa.field("namespace", pa.string()), *LINE])
"""A row of the archive; the folder adds `dt`, the UTC date of its log time."""

STATE_ROW, RECORD_ROW, DIFFERENCE_ROW = 0, 1, 2
"""Kinds of rows on the way through the fold; state before records."""

DIFFERENCE: Final = pa.schema([("key", pa.string()), ("held", pa.string()), ("asserted", pa.string())])

FOLD_OUT: Final = pa.schema(
    [
        pa.field("row", pa.int32()),
        pa.field("state", pa.struct(list(STATE))),
        pa.field("record", pa.struct(list(ARCHIVE))),
        pa.field("difference", pa.struct(list(DIFFERENCE))),
    ]
)
