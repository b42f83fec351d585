"""The source `file`: samples from JSON lines (as on the sample topic) or CSV, and a file of samples to be written.

CSV has a header with the names of the fields of a sample, or the short ones of `SHORT_NAMES`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from io import TextIOWrapper
from itertools import count, islice
from json import JSONDecodeError
from pathlib import Path
from typing import Any, Final, TextIO

from loaddata.samples.formulas import SampledMinute
from loaddata.samples.partitions import ClusterLayout, PartitionSample
from loaddata.samples.sample_topic import VALUE_BYTES_MAX, InvalidSampleReason, checked, decode, encode
from loaddata.samples.sources import PartitionSource, SourceError, SourceOptions
from loaddata.samples.strict_json import duplicates
from statechannel.errors import ExitCode
from statechannel.files import UnreadableFileError, load_json, opened

NAME: Final = "file"
SAMPLES_MAX: Final = 5_000_000
"""Of one file, which is read at once; larger ones must be split."""
SHORT_NAMES: Final[Mapping[str, str]] = {
    "cluster": "cluster",
    "ip": "host",
    "broker_id": "broker",
    "topic": "topic",
    "partition": "partition",
    "nw_in": "bytes_in_per_s",
    "nw_out": "bytes_out_per_s",
    "disk_size": "disk_bytes",
    "cpu_load": "cpu_share",
    "create_time": "taken_at_ms",
}
"""Columns of the document, by their names in lower case, to fields."""
_WHOLE: Final = frozenset({"broker", "partition", "taken_at_ms", "disk_bytes"})
_RATES: Final = frozenset({"bytes_in_per_s", "bytes_out_per_s", "cpu_share"})
_NUMBER: Final = re.compile(r"[0-9.eE+-]*", re.ASCII)
"""Python reads `1_000` and Arabic digits as well, which others do not."""


def make(options: SourceOptions) -> PartitionSource:
    if options.file is None:
        raise SourceError(
            "the source file needs a file", hint="Give --from-file FILE: JSON lines, or CSV with a header."
        )
    return FileSource(options.file)


class FileSource:
    """All samples of a file, with their own times."""

    name = NAME

    def __init__(self, path: Path) -> None:
        self._path = path

    def take(self, layout: ClusterLayout, *, taken_at_ms: int, mono_s: float) -> SampledMinute:
        """See `PartitionSource`; those of another cluster are left out."""
        del taken_at_ms, mono_s
        junk: dict[InvalidSampleReason, list[int]] = {}
        samples = []
        for number, sample in islice(read_samples(self._path), SAMPLES_MAX + 1):
            if isinstance(sample, InvalidSampleReason):
                junk.setdefault(sample, []).append(number)
            elif sample.cluster and layout.cluster_id and sample.cluster != layout.cluster_id:
                junk.setdefault(InvalidSampleReason.OTHER_CLUSTER, []).append(number)
            else:
                samples.append(sample)
        if len(samples) > SAMPLES_MAX:
            raise SourceError(f"{self._path} has more than {SAMPLES_MAX} samples", hint="Split the file.")
        remarks = (
            f"{self._path}, line {lines[0]}: {why}" + (f" (and {len(lines) - 1} more)" if lines[1:] else "")
            for why, lines in sorted(junk.items())
        )
        return SampledMinute(samples=tuple(samples), remarks=tuple(remarks))


Read = tuple[int, PartitionSample | InvalidSampleReason]
"""Number of a line, and its sample or why it is none."""


def read_samples(path: Path) -> Iterator[Read]:
    """Each line's sample; CSV for a name that ends in `.csv`."""
    try:
        with opened(path) as file, TextIOWrapper(file, "utf-8", newline="") as text:
            yield from (_from_csv if path.suffix.lower() == ".csv" else _from_lines)(text, path)
    except (UnreadableFileError, csv.Error) as error:
        raise SourceError(
            f"the file of samples {path} {error if isinstance(error, UnreadableFileError) else f'is no CSV: {error}'}",
            hint="Give a readable file in UTF-8.",
            exit_code=ExitCode.BAD_EXPORT,
        ) from error


def _from_lines(file: TextIO, path: Path) -> Iterator[Read]:
    number = count(1)
    while line := file.readline(2 * VALUE_BYTES_MAX):
        place = next(number)
        if line.startswith(("# HELP ", "# TYPE ")):
            raise SourceError(
                f"{path} has metrics in Prometheus' text form, and no samples",
                hint="Name the address of the broker that has them: --endpoint [ID=]URL.",
                exit_code=ExitCode.BAD_EXPORT,
            )
        if line.strip():
            yield place, _of_line(line.strip().encode())


def _of_line(line: bytes) -> PartitionSample | InvalidSampleReason:
    try:
        load_json(line)
    except JSONDecodeError:
        return InvalidSampleReason.NOT_JSON
    except ValueError:
        return InvalidSampleReason.NAME_TWICE
    return decode(line)


def _from_csv(file: TextIO, path: Path) -> Iterator[Read]:
    rows = csv.reader(file)
    header = next(rows, [])
    columns = [_field(name) for name in header]
    if "topic" not in columns or "partition" not in columns:
        other = len(header) == 1 and next((mark for mark in ";\t" if mark in header[0]), "")
        raise SourceError(
            f"{path}, line 1: "
            + (
                f"columns are separated by {other!r}, not by commas"
                if other
                else "no header with the fields of samples"
            ),
            hint=f"Such as: {','.join(PartitionSample.__slots__)}",
            exit_code=ExitCode.BAD_EXPORT,
        )
    if faults := list(duplicates(f"{path}, line 1", columns)):
        raise SourceError(faults[0], hint="Name each column once.", exit_code=ExitCode.BAD_EXPORT)
    for row in rows:
        if row:
            yield rows.line_num, _of_row(columns, row)


def _field(column: str) -> str:
    name = column.strip().strip("*").strip().lower().replace(" ", "_")
    return SHORT_NAMES.get(name, name)


def _of_row(columns: list[str], row: list[str]) -> PartitionSample | InvalidSampleReason:
    if len(row) != len(columns):
        return InvalidSampleReason.FIELDS
    values: dict[str, Any] = {"cluster": "", "broker": 0, "host": ""}
    try:
        for name, text in zip(columns, (cell.strip() for cell in row), strict=True):
            if name in _WHOLE or name in _RATES:
                if not _NUMBER.fullmatch(text):
                    return InvalidSampleReason.FIGURE
                if text:
                    values[name] = int(text) if name in _WHOLE else float(text)
            else:
                values[name] = text
    except ValueError:
        return InvalidSampleReason.FIGURE
    return checked(values)


def write_samples(file: Any, samples: Iterable[PartitionSample]) -> int:
    """Write samples as JSON lines; returns how many. Those that are not sound are left out."""
    count = 0
    for sample in samples:
        try:
            file.write(encode(sample) + b"\n")
        except ValueError:
            continue
        count += 1
    return count
