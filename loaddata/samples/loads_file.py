"""The file format of loads, `kafka-loads/1`: the Spark job publishes it, and a plan reads it without Spark.

The first line is an object that says what it is; each further line is one partition: `[topic, partition, disk bytes, bytes in/s,
bytes out/s, millionths of a CPU, completeness]`, null where it is not known. The first line has the number of lines, so
that a truncated file is noticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import orjson

from loaddata.model.figures import is_count, is_figure
from loaddata.samples.averages import Place
from loaddata.samples.loads import PartitionLoad, PartitionLoads
from statechannel.errors import ExitCode, StateChannelError

FORMAT: Final = "kafka-loads/1"
NAME: Final = "loads.jsonl"
POINTER: Final = "LATEST"
FOLDER: Final = "loads"
LINE_BYTES_MAX: Final = 65_536
_WIDTH: Final = 7
_HINT: Final = "Give a file that the job partition-loads wrote, or the folder of its table."


class LoadsFileError(StateChannelError):
    """A file of loads cannot be used."""

    def __init__(self, message: str, *, hint: str = _HINT) -> None:
        super().__init__(message, hint=hint, exit_code=ExitCode.BAD_EXPORT)


def lines_of(
    loads: Iterable[tuple[Place, PartitionLoad]],
    *,
    partitions: int,
    cluster: str,
    from_ms: int,
    to_ms: int,
    source: str,
) -> Iterator[bytes]:
    """The file's lines."""
    yield orjson.dumps(
        {
            "format": FORMAT,
            "cluster": cluster,
            "from_ms": from_ms,
            "to_ms": to_ms,
            "source": source,
            "partitions": partitions,
        },
        option=orjson.OPT_APPEND_NEWLINE,
    )
    for (topic, partition), load in loads:
        figures = (load.disk_bytes, load.bytes_in_per_s, load.bytes_out_per_s, load.cpu_units, load.completeness)
        yield orjson.dumps([topic, partition, *figures], option=orjson.OPT_APPEND_NEWLINE)


def newest(path: Path) -> Path:
    """The file itself; of a folder of the job's table the newest snapshot's.

    Raises:
        LoadsFileError: It is a folder without one.
    """
    if not path.is_dir():
        return path
    for folder in (path / FOLDER, path):
        pointer = folder / POINTER
        try:
            latest = orjson.loads(pointer.read_bytes())
            return folder / Path(str(latest["path"])).name / NAME
        except FileNotFoundError:
            continue
        except (OSError, orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise LoadsFileError(f"{pointer} cannot be read: {error}") from error
    raise LoadsFileError(f"there are no loads in the folder {path}")


def read_loads_file(path: Path, *, cluster: str = "", completeness_min: float = 0.0) -> PartitionLoads:
    """Loads of a file, or of the newest snapshot of a table.

    Args:
        path: The file, or the folder of the table.
        cluster: Kafka's id of the cluster that they must belong to; empty: any.
        completeness_min: Partitions with a smaller part of the window measured are left out.

    Raises:
        LoadsFileError: It cannot be read, has another format or cluster, or is truncated.
    """
    file = newest(path)
    try:
        with file.open("rb") as lines:
            head = _head(lines.readline(LINE_BYTES_MAX), file)
            if cluster and head["cluster"] and head["cluster"] != cluster:
                raise LoadsFileError(f"{file} has loads of the cluster {head['cluster']}, not of {cluster}")
            of = dict(_loads(lines, file))
    except OSError as error:
        raise LoadsFileError(f"{file} cannot be read: {error.strerror or error}") from error
    if len(of) != head["partitions"]:
        raise LoadsFileError(f"{file} has loads of {len(of)} partitions, but its first line says {head['partitions']}")
    kept = {place: load for place, load in of.items() if load.completeness >= completeness_min}
    return PartitionLoads(
        of=kept, from_ms=head["from_ms"], to_ms=head["to_ms"], source=f"{head['source']}; {file.name}"
    )


def _head(line: bytes, file: Path) -> dict[str, Any]:
    try:
        head = orjson.loads(line)
    except orjson.JSONDecodeError:
        head = None
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        format_name = head.get("format") if isinstance(head, dict) else "not JSON"
        raise LoadsFileError(f"{file} is not a file of loads ({FORMAT}): {format_name!r}")
    whole = all(is_count(head.get(name)) for name in ("from_ms", "to_ms", "partitions"))
    if not whole or not all(isinstance(head.get(name), str) for name in ("cluster", "source")):
        raise LoadsFileError(f"the first line of {file} lacks fields of {FORMAT}")
    return head


def _loads(lines: Any, file: Path) -> Iterator[tuple[Place, PartitionLoad]]:
    number = 1
    while line := lines.readline(LINE_BYTES_MAX):
        number += 1
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            row = None
        load = _load(row)
        if load is None:
            raise LoadsFileError(f"{file}, line {number}: this is not the load of a partition")
        yield load


def _load(row: Any) -> tuple[Place, PartitionLoad] | None:
    if not isinstance(row, list) or len(row) != _WIDTH:
        return None
    topic, partition, *figures, completeness = row
    sound = (
        isinstance(topic, str) and is_count(partition) and all(figure is None or is_count(figure) for figure in figures)
    )
    if not sound or not is_figure(completeness) or completeness > 1:
        return None
    disk, rate_in, rate_out, cpu = figures
    return (topic, partition), PartitionLoad(
        disk_bytes=disk,
        bytes_in_per_s=rate_in,
        bytes_out_per_s=rate_out,
        cpu_units=cpu,
        completeness=float(completeness),
    )
