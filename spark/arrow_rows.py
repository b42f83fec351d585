"""Rows of Python as Arrow's columns, for what the workers hand back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa


def arrays_of(rows: Iterable[tuple[Any, ...]], schema: pa.Schema) -> list[pa.Array]:
    """A column for each field; there must be a row, since only rows say how many columns there are."""
    columns = zip(*rows, strict=True)
    return [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]


def batch_of(rows: Iterable[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    """Rows as a batch of this schema; there must be one."""
    return pa.RecordBatch.from_arrays(arrays_of(rows, schema), schema=schema)
