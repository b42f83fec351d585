"""Export files: streaming reads in bounded memory, and atomic writes."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import IO, overload

from statechannel.audit.errors import ExportFileError
from statechannel.audit.transfer.line import (
    LINK_BYTES,
    NO_DIGEST,
    BadLine,
    ChainReader,
    ExportHeader,
    ExportLine,
    chain_of,
    check_end,
    end_of_verdicts,
    file_digest,
    first_link,
    format_header,
    format_record,
    next_link,
    parse_header,
    parse_line,
    parse_record,
    record_digest,
)
from statechannel.files import new_file
from statechannel.protocol.log import RecordRead
from statechannel.protocol.side_record import Headers

Progress = Callable[[int], None]
"""Called now and then with the number of bytes (reading) or records (writing) done."""

_EVERY = 5_000
STRIDE = 256
"""Number of records between two stored positions."""
_LINE_MAX_BYTES = 64 * 1024 * 1024  # far above what any topic takes as one record, escapes and base64 included
_DAY_MS = 86_400_000
_NULL_KEPT_MS = 7 * _DAY_MS  # `delete.retention.ms` of the channel's topic


class ExportedRecords(Sequence[RecordRead]):
    """The records of one partition of an export file, or some of them; read from the file on each access.

    Needs eight bytes per `STRIDE` records, so that a log of ten million records costs some hundred kilobytes.

    Args:
        positions: Of the first record of the partition, and of each `STRIDE`th one after it.
        start, stop: Range of the records, by number.
    """

    def __init__(
        self, path: Path, positions: array[int], start: int, stop: int, progress: Progress | None = None
    ) -> None:
        self._path = path
        self._positions = positions
        self._start = start
        self._stop = max(start, stop)
        self._progress = progress

    def with_progress(self, progress: Progress) -> ExportedRecords:
        """The same records, reporting progress during iteration."""
        return ExportedRecords(self._path, self._positions, self._start, self._stop, progress)

    def headers(self) -> Iterator[tuple[int, Headers]]:
        """Offset and headers of each record that has some; reads the file once."""
        return ((line.record.offset, line.headers) for line in self.lines() if line.headers)

    def lines(self) -> Iterator[ExportLine]:
        """The records with all that their lines have; reads the file once."""
        for line in islice(self._lines(self._start), len(self)):
            yield parse_line(line)

    def __len__(self) -> int:
        return self._stop - self._start

    def __iter__(self) -> Iterator[RecordRead]:
        if self._start == self._stop:
            return
        number = self._start
        for line in self._lines(number):
            yield parse_record(line)
            number += 1
            if number == self._stop:
                return
            if self._progress is not None and number % _EVERY == 0:
                self._progress(number)
        raise ExportFileError(f"{self._path} became shorter while it was read.")

    def _lines(self, number: int) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            file.seek(self._positions[number // STRIDE])
            lines = (line for line in file if not line.isspace())
            yield from islice(lines, number % STRIDE, None)

    @overload
    def __getitem__(self, index: int) -> RecordRead: ...
    @overload
    def __getitem__(self, index: slice) -> ExportedRecords: ...
    def __getitem__(self, index: int | slice) -> RecordRead | ExportedRecords:
        if isinstance(index, slice):
            first, last, step = index.indices(len(self))
            if step != 1:
                raise ValueError("a log is read record by record: no steps")
            start, stop = self._start + first, self._start + last
            return ExportedRecords(self._path, self._positions, start, stop, self._progress)
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(index)
        for line in self._lines(self._start + number):
            return parse_record(line)
        raise ExportFileError(f"{self._path} became shorter while it was read.")


@dataclass(frozen=True, slots=True)
class ExportFile:
    """A scanned export file: every line is well-formed and in its place."""

    path: Path
    header: ExportHeader
    partitions: dict[int, ExportedRecords]

    @property
    def records(self) -> int:
        return sum(len(records) for records in self.partitions.values())


def size_bytes(path: Path) -> int:
    """Size of a file, for a progress bar; 0 if it does not exist."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _is_stream(path: Path) -> bool:
    return path.exists() and not (path.is_file() or path.is_dir())


def read_header(path: Path) -> ExportHeader:
    """The header of an export file, without reading the rest.

    Raises:
        OSError: The file cannot be read.
        BadLine: The file is empty, does not begin with a header, or is a pipe or a device, which can be read only once.
    """
    if _is_stream(path):
        raise BadLine("a pipe or a device")
    with path.open("rb") as file:
        return parse_header(file.readline(_LINE_MAX_BYTES))


def read_export(path: Path, *, made_here: bool = False, progress: Progress = lambda _: None) -> ExportFile:
    """Scan an export file.

    Args:
        made_here: It was just created from a live topic, and is known to be complete.
        progress: Called with the number of bytes read.

    Raises:
        ExportFileError: The file cannot be read, or a line is malformed; names the line and what is wrong.
    """
    try:
        if _is_stream(path):
            raise ExportFileError(
                f"{path} is a pipe or a device, but must be read more than once.", hint="Save it to a file first."
            )
        with path.open("rb") as file:
            export = _read(path, file, progress)
    except OSError as error:
        raise ExportFileError(f"{path} cannot be read: {error.strerror}.", hint="Check the path.") from error
    if not made_here and export.header.digest is None:
        _refuse_cut(export)
    return export


def _refuse_cut(export: ExportFile) -> None:
    """Refuse a truncated file without a chain.

    Only a tombstone can be compacted away at the end of a partition, and not before `delete.retention.ms`: if the
    last record is newer, others followed it.
    """
    for partition, records in export.partitions.items():
        last, end = records[-1], export.header.end_offsets[partition]
        if last.offset != end - 1 and last.timestamp_ms > export.header.exported_at_ms - _NULL_KEPT_MS:
            raise ExportFileError(
                f"{export.path} is truncated: partition {partition} ends with offset {last.offset}, "
                f"but the header has records up to offset {end - 1}."
            )


@dataclass(slots=True)
class _Scan:
    """State of a scan."""

    header: ExportHeader
    chain: ChainReader
    positions: dict[int, array[int]] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    partition: int = -1
    offset: int = -1

    def take(self, line: ExportLine, position: int) -> None:
        record = line.record
        end = self.header.end_offsets.get(record.partition)
        if end is None:
            raise BadLine(f"partition {record.partition} is not among the `end_offsets` of the header")
        if record.partition != self.partition:
            if record.partition < self.partition:
                raise BadLine(f"partition {record.partition} follows partition {self.partition}")
            self.partition = record.partition
            self.offset = -1
            self.positions[record.partition] = array("Q")
            self.counts[record.partition] = 0
        if record.offset <= self.offset:
            raise BadLine(f"offset {record.offset} follows offset {self.offset} of partition {record.partition}")
        if record.offset >= end:
            raise BadLine(f"offset {record.offset} is not below the end offset {end} of partition {record.partition}")
        self.chain.take(line)
        self.offset = record.offset
        count = self.counts[record.partition]
        if count % STRIDE == 0:
            self.positions[record.partition].append(position)
        self.counts[record.partition] = count + 1


def _read(path: Path, file: IO[bytes], progress: Progress) -> ExportFile:
    position = last = 0
    scan: _Scan | None = None
    for number, line in enumerate(iter(partial(file.readline, _LINE_MAX_BYTES + 1), b""), start=1):
        if len(line) > _LINE_MAX_BYTES:
            raise ExportFileError(f"{path}, line {number}: longer than {_LINE_MAX_BYTES:,} bytes.", line=number)
        try:
            if scan is None:
                header = parse_header(line)
                scan, last = _Scan(header, chain_of(header)), number
            elif not line.isspace():
                scan.take(parse_line(line), position)
                last = number
        except BadLine as error:
            raise _bad_line(path, number, error) from None
        position += len(line)
        if number % _EVERY == 0:
            progress(position)
    if scan is None:
        raise ExportFileError(f"{path} is empty: not even a header.")
    progress(position)
    try:
        check_end(scan.header, scan.chain.link)
    except BadLine as error:
        raise _bad_line(path, last, error) from None
    partitions = {
        partition: ExportedRecords(path, positions, 0, scan.counts[partition])
        for partition, positions in scan.positions.items()
    }
    return ExportFile(path, scan.header, partitions)


def _bad_line(path: Path, number: int, error: BadLine) -> ExportFileError:
    return ExportFileError(f"{path}, line {number}: {error}.", line=number, hint=error.hint)


def write_export(
    path: Path,
    header: ExportHeader,
    records: Iterable[RecordRead],
    *,
    now_ms: Callable[[], int],
    headers_of: Callable[[RecordRead], Headers] = lambda _: (),
    verdict_of: Callable[[RecordRead], str | None] = lambda _: None,
    progress: Progress = lambda _: None,
) -> ExportHeader:
    """Write an export file atomically; returns the header as written.

    Args:
        header: Topic, end offsets and files next to it; its time is replaced by the time at which the export ends, its digest by
            that of the records.
        records: Partitions in order, offsets ascending.
        headers_of, verdict_of: Called once for each record, in order.

    Raises:
        ExportFileError: The file cannot be written.
        AuditQuestionError: It is a device or a pipe.
    """
    with new_file(path) as file:
        # The time of the end stands in the first line: its digits are as many at the start of the export.
        begun = format_header(replace(header, exported_at_ms=now_ms(), digest=NO_DIGEST))
        file.write(begun)
        link = _write_records(file, first_link(header), records, headers_of, verdict_of, progress)
        ended = replace(header, exported_at_ms=now_ms())
        ended = replace(ended, digest=file_digest(link, ended))
        line = format_header(ended)
        if len(line) != len(begun):
            raise ExportFileError(
                f"The clock jumped while {path} was written, so its header is invalid.", hint="Export again."
            )
        file.seek(0)
        file.write(line)
    return ended


def _write_records(
    file: IO[bytes],
    link: bytes,
    records: Iterable[RecordRead],
    headers_of: Callable[[RecordRead], Headers],
    verdict_of: Callable[[RecordRead], str | None],
    progress: Progress,
) -> bytes:
    number = 0
    for number, record in enumerate(records, start=1):
        headers, verdict = headers_of(record), verdict_of(record)
        link = next_link(link, record_digest(record, headers, verdict))
        file.write(format_record(record, link, headers, verdict))
        if number % _EVERY == 0:
            progress(number)
    progress(number)
    return link


@contextmanager
def verdict_file(path: Path) -> Iterator[Callable[[bytes], None]]:
    """Write a verdict file, created if all goes well, of such lines; its last line has the digest of the bytes before it.

    Raises:
        FileUnwritableError: See `new_file`.
    """
    digest = blake2b(digest_size=LINK_BYTES)
    with new_file(path) as file:

        def write(lines: bytes) -> None:
            digest.update(lines)
            file.write(lines)

        yield write
        file.write(end_of_verdicts(digest.hexdigest()))
