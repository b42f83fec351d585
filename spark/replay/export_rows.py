"""Export files as rows: lines are parsed in Python workers, by the parser of the local engine.

Where lines stand in the file is known to the reader of each split alone. So that one pass is enough, each split sends a note
on what it held along with its records; the notes together show whether the file is well formed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from spark.core.schemas import batch_of
from spark.replay.direct import RECORDS
from spark.replay.fold import NOTE_PARTITION, bytes_of
from statechannel.audit.errors import ExportFileError
from statechannel.audit.transfer.export_file import read_export, read_header
from statechannel.audit.transfer.line import (
    BadLine,
    ChainReader,
    ExportHeader,
    ExportLine,
    check_end,
    first_link,
    next_link,
    parse_line,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def header_of(path: Path) -> ExportHeader:
    """The header of an export file.

    Raises:
        ExportFileError: The file cannot be read, is empty, or does not begin with a header.
    """
    try:
        return read_header(path)
    except (OSError, BadLine):
        read_export(path)  # says it in the words that the local engine has for it
        raise ExportFileError(f"{path} changed while it was read.", hint="Export to another file.") from None


def export_rows(session: SparkSession, path: Path, header: ExportHeader) -> DataFrame:
    """The records of the file, and a note of each split."""
    text = session.read.text(f"file://{path}", lineSep="\n")
    lines = text.select("value", F.col("_metadata.file_block_start").alias("start"))

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _parse(batches, header)

    return lines.mapInArrow(work, from_arrow_schema(RECORDS))


def check_notes(path: Path, header: ExportHeader, notes: Sequence[bytes]) -> None:
    """See that the splits together are a well-formed file, and its chain one chain.

    Raises:
        ExportFileError: They are not; as the local engine says it.
    """
    splits = sorted((orjson.loads(note) for note in notes), key=lambda split: split["start"])
    if not _is_whole(header, splits):
        read_export(path)
        raise ExportFileError(f"{path} changed while it was read.", hint="Export to another file.")


def _is_whole(header: ExportHeader, splits: Sequence[Mapping[str, Any]]) -> bool:
    before, link = [-1, -1], first_link(header)
    for split in splits:
        if split["bad"] or split["first"] <= before:
            return False
        before = split["last"]
        if header.digest is not None:
            stated, digest, last = (bytes.fromhex(text) for text in split["chain"])
            if next_link(link, digest) != stated:
                return False
            link = last
    try:
        check_end(header, link)
    except BadLine:
        return False
    return True


class _Split:
    """Lines of one split so far."""

    def __init__(self, start: int, header: ExportHeader) -> None:
        self.chain = ChainReader(header)  # what the split before it ends with is known to the driver alone
        self.opening: tuple[str, str] | None = None
        self.start = start
        self.skip = start == 0  # the header
        self.first: list[int] | None = None
        self.last = [-1, -1]
        self.bad = False

    def take(self, line: ExportLine) -> None:
        self.chain.take(line)
        if self.opening is None and line.link is not None:
            self.opening = line.link, self.chain.digest(line).hex()

    def note(self) -> bytes | None:
        if self.first is None and not self.bad:
            return None
        link = self.chain.link
        chain = None if self.opening is None or link is None else [*self.opening, link.hex()]
        return orjson.dumps(
            {"start": self.start, "first": self.first, "last": self.last, "bad": self.bad, "chain": chain}
        )


def _parse(batches: Iterator[pa.RecordBatch], header: ExportHeader) -> Iterator[pa.RecordBatch]:
    splits: dict[int, _Split] = {}  # a task may be given several
    for batch in batches:
        rows: list[tuple[int, int, int, bytes | None, bytes | None]] = []
        starts = batch.column("start").to_pylist()
        for start, line in zip(starts, bytes_of(batch.column("value")), strict=True):
            split = splits.get(start)
            if split is None:
                split = splits[start] = _Split(start, header)
            if split.skip:
                split.skip = False
                continue
            if split.bad or line is None or not line or line.isspace():
                continue
            try:
                parsed = parse_line(line)
                split.take(parsed)
            except BadLine:
                split.bad = True
                continue
            record = parsed.record
            place = [record.partition, record.offset]
            if place <= split.last or record.offset >= header.end_offsets.get(record.partition, 0):
                split.bad = True
                continue
            split.first = split.first or place
            split.last = place
            rows.append(record[1:])
        if rows:
            yield batch_of(rows, RECORDS)
    notes: list[tuple[Any, ...]] = [
        (NOTE_PARTITION, split.start, 0, b"", note) for split in splits.values() if (note := split.note()) is not None
    ]
    if notes:
        yield batch_of(notes, RECORDS)
