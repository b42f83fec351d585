"""Records of the sample topic as rows of whole numbers, and sums as loads: what the workers of partition-loads run. Pure.

Both are the plain reader's own code (`loaddata.partitions`), so that the two agree to the last digit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from loaddata.partitions.averages import MISSING, Sums, cells_of, load_of
from loaddata.partitions.sample_record import Junk, decode_at

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
"""The load of a partition, as `loaddata.partitions.loads.PartitionLoad`."""


def decoded(batches: Iterator[pa.RecordBatch], partitions: int, cluster: str) -> Iterator[pa.RecordBatch]:
    """Rows of `ROW` for records with `SOURCE_COLUMNS`.

    Args:
        batches: Of the source.
        partitions: How many the sample topic has.
        cluster: Samples of other clusters are junk.
    """
    for batch in batches:
        rows = [row_of(record, partitions, cluster) for record in batch.to_pylist()]
        yield pa.RecordBatch.from_pylist(rows, schema=ROW)


def row_of(record: dict[str, Any], partitions: int, cluster: str) -> dict[str, Any]:
    """The row of one record; columns that do not apply are left out."""
    row = {"at": record["at"], "offset": record["offset"], "log_time_ms": record["timestamp_ms"], "junk": ""}
    found = decode_at(record["value"], record["key"], record["at"], partitions, cluster)
    if isinstance(found, Junk):
        return row | {"junk": str(found)}
    cells = (None if cell == MISSING else cell for cell in cells_of(found))
    return row | {
        "topic": found.topic,
        "partition": found.partition,
        "broker": found.broker,
        "taken_at_ms": found.taken_at_ms,
        **dict(zip(FIGURES, cells, strict=True)),
    }


def averaged(batches: Iterator[pa.RecordBatch], ends: int) -> Iterator[pa.RecordBatch]:
    """Rows of `LOAD` for rows with `SUMS`.

    Args:
        batches: Of sums.
        ends: Number of the interval behind the window.
    """
    for batch in batches:
        rows = [found for row in batch.to_pylist() if (found := loaded(row, ends)) is not None]
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
    return {
        "topic": row["topic"],
        "partition": row["partition"],
        "disk_bytes": load.disk_bytes,
        "bytes_in_per_s": load.bytes_in_per_s,
        "bytes_out_per_s": load.bytes_out_per_s,
        "cpu_units": load.cpu_units,
        "completeness": load.completeness,
    }
