"""Export files as rows: lines are parsed in Python workers, by the parser of the local engine.

Where lines stand in the file is known to the reader of each split alone. So that one pass is enough, each split sends a note
on what it held along with its records; the notes together tell whether the file is well formed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from spark.arrow_rows import batch_of
from spark.replay_fold import NOTE_PARTITION, bytes_of
from statechannel.audit.errors import ExportFileError
from statechannel.audit.export_file import read_export
from statechannel.audit.export_line import BadLine, ExportHeader, parse_header, parse_record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
"""A record; a note has its split's place for an offset and its content for a value."""


def header_of(path: Path) -> ExportHeader:
    """The header of an export file.

    Raises:
        ExportFileError: The file cannot be read, is empty, or does not begin with a header.
    """
    try:
        with path.open("rb") as file:
            return parse_header(file.readline())
    except (OSError, BadLine):
        read_export(path)  # says it in the words that the local engine has for it
        raise ExportFileError(f"{path} changed while it was read.", hint="Export to another file.") from None


def export_rows(session: SparkSession, path: Path, header: ExportHeader) -> DataFrame:
    """The records of the file, and a note of each split."""
    text = session.read.text(f"file://{path}", lineSep="\n")
    lines = text.select("value", F.col("_metadata.file_block_start").alias("start"))
    ends = dict(header.end_offsets)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _parse(batches, ends)

    return lines.mapInArrow(work, "partition int, offset long, timestamp_ms long, key binary, value binary")


def check_notes(path: Path, notes: Sequence[bytes]) -> None:
    """See that the splits together are a well-formed file.

    Raises:
        ExportFileError: They are not; as the local engine says it.
    """
    splits = sorted((orjson.loads(note) for note in notes), key=lambda split: split["start"])
    before = [-1, -1]
    for split in splits:
        if split["bad"] or split["first"] <= before:
            read_export(path)
            raise ExportFileError(f"{path} changed while it was read.", hint="Export to another file.")
        before = split["last"]


class _Split:
    """Lines of one split so far."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.skip = start == 0  # the header
        self.first: list[int] | None = None
        self.last = [-1, -1]
        self.bad = False

    def note(self) -> bytes | None:
        if self.first is None and not self.bad:
            return None
        return orjson.dumps({"start": self.start, "first": self.first, "last": self.last, "bad": self.bad})


def _parse(batches: Iterator[pa.RecordBatch], ends: Mapping[int, int]) -> Iterator[pa.RecordBatch]:
    splits: dict[int, _Split] = {}  # a task may be given several
    for batch in batches:
        rows: list[tuple[int, int, int, bytes | None, bytes | None]] = []
        starts = batch.column("start").to_pylist()
        for start, line in zip(starts, bytes_of(batch.column("value")), strict=True):
            split = splits.get(start)
            if split is None:
                split = splits[start] = _Split(start)
            if split.skip:
                split.skip = False
                continue
            if split.bad or line is None or not line or line.isspace():
                continue
            try:
                record = parse_record(line)
            except BadLine:
                split.bad = True
                continue
            place = [record.partition, record.offset]
            if place <= split.last or record.offset >= ends.get(record.partition, 0):
                split.bad = True
                continue
            split.first = split.first or place
            split.last = place
            rows.append(record[1:])
        if rows:
            yield batch_of(rows, ROWS)
    notes: list[tuple[Any, ...]] = [
        (NOTE_PARTITION, split.start, 0, b"", note) for split in splits.values() if (note := split.note()) is not None
    ]
    if notes:
        yield batch_of(notes, ROWS)
