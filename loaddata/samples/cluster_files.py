"""Two file formats of a cluster: `kafka-layout/1`, its layout and loads, and `kafka-loads/1`, loads from the Spark job.

A layout file is for plans without a cluster, for tests, to send to others:

    {
    "format": "kafka-layout/1",
    "cluster_id": "lab",
    "brokers": [{"id": 1, "rack": "a"}, {"id": 2, "rack": "b"}],
    "topics": [{"name": "orders", "partitions": [{"partition": 0, "replicas": [1, 2], "disk_bytes": 1000}]}]
    }

Defaults: the leader is the first replica, replicas that are not offline are in sync, loads are not known. `read_at_ms`, `loads`
(window and source) and all other fields are those of `partitions`. The file is read strictly: an unknown field, a
contradiction or a wrong number is an error that names the place.

The first line of a loads file is an object that says what it is; each further line is one partition: `[topic, partition, disk
bytes, bytes in/s, bytes out/s, millionths of a CPU, completeness]`, null where it is not known. The first line has the number of
lines, so that a truncated file is noticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from loaddata.bulk import uncollected
from loaddata.model.figures import FIGURE_MAX
from loaddata.samples.averages import Place
from loaddata.samples.partitions import (
    ClusterLayout,
    KafkaBroker,
    KafkaPartition,
    KafkaTopic,
    PartitionLoad,
    PartitionLoads,
)
from loaddata.samples.strict_json import (
    NUMBER_MAX,
    STRICT,
    Amount,
    amount_faults,
    checked_format,
    cut,
    duplicates,
    located,
    place_faults,
    read_raw,
    replica_faults,
    top_level,
    validated,
    write_document,
)
from statechannel.errors import ExitCode, StateChannelError
from statechannel.files import UnreadableFileError, opened

LAYOUT_FORMAT: Final = "kafka-layout/1"
_PREFERRED: Final = -1
"""Stands for a leader that the file does not name."""
_LAYOUT_HINT: Final = (
    "`statechannel partitions layout --out FILE` writes such a file; design/partitions.md has an example."
)
TOGETHER_MAX: Final = NUMBER_MAX // 4
"""Of all replicas: sums of distances from a range stay within 64 bits."""
_LOADS: Final = tuple(field.name for field in fields(PartitionLoad))


class LayoutUnusableError(StateChannelError):
    """A layout file cannot be read, or contradicts itself."""

    exit_code = ExitCode.BAD_EXPORT

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint=hint or _LAYOUT_HINT)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PartitionPart:
    partition: int
    replicas: tuple[int, ...]
    leader: int | None = _PREFERRED
    isr: tuple[int, ...] | None = None
    offline: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    disk_bytes: Amount | None = None
    bytes_in_per_s: Amount | None = None
    bytes_out_per_s: Amount | None = None
    cpu_units: Amount | None = None
    completeness: Annotated[float, Field(ge=0, le=1)] = 1.0


class _TopicPart(BaseModel):
    model_config = STRICT
    name: str
    topic_id: str = ""
    min_isr: Annotated[int, Field(ge=1, le=NUMBER_MAX)] = 1
    internal: bool = False
    partitions: tuple[_PartitionPart, ...]


class _LoadsPart(BaseModel):
    model_config = STRICT
    from_ms: int = 0
    to_ms: int = 0
    source: str = ""


class _File(BaseModel):
    model_config = STRICT
    format: str
    cluster_id: str = ""
    read_at_ms: int = 0
    remarks: tuple[str, ...] = ()
    brokers: tuple[KafkaBroker, ...]
    topics: tuple[_TopicPart, ...]
    loads: _LoadsPart = _LoadsPart()


_ADAPTER: Final = TypeAdapter(_File)


def write_layout(path: Path, layout: ClusterLayout, loads: PartitionLoads) -> None:
    """Write a layout and its loads; the file appears when it is whole, and equal ones give equal bytes."""
    write_document(
        path,
        {
            "format": LAYOUT_FORMAT,
            "cluster_id": layout.cluster_id,
            "read_at_ms": layout.read_at_ms,
            "remarks": layout.remarks,
            "loads": {"from_ms": loads.from_ms, "to_ms": loads.to_ms, "source": loads.source},
            "brokers": layout.brokers,
            "topics": [_topic(topic, loads) for topic in layout.topics.values()],
        },
    )


def _topic(topic: KafkaTopic, loads: PartitionLoads) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "min_isr": topic.min_isr,
        "internal": topic.internal,
        "partitions": [
            _partition(partition, loads.of.get((topic.name, partition.partition))) for partition in topic.partitions
        ],
    }


def _partition(partition: KafkaPartition, load: PartitionLoad | None) -> dict[str, Any]:
    fields_of: dict[str, Any] = {
        "partition": partition.partition,
        "replicas": partition.replicas,
        "leader": partition.leader,
        "isr": partition.isr,
    }
    fields_of |= {name: value for name in ("offline", "adding", "removing") if (value := getattr(partition, name))}
    if load is not None:
        fields_of |= {name: value for name in _LOADS if (value := getattr(load, name)) is not None}
    return fields_of


@uncollected()
def read_layout_file(path: Path) -> tuple[ClusterLayout, PartitionLoads]:
    """Read a layout and its loads.

    Raises:
        LayoutUnusableError: It cannot be read, is of another format, or contradicts itself; at most eight faults are named.
    """
    raw = read_raw(path, LayoutUnusableError)
    names = top_level(raw, path, LayoutUnusableError, hint=_LAYOUT_HINT)
    checked_format(names, LAYOUT_FORMAT, path, LayoutUnusableError, hint=_LAYOUT_HINT)
    file = validated(raw, _ADAPTER, path, LayoutUnusableError, hint=_LAYOUT_HINT)
    faults = list(_faults(file))
    if faults:
        raise LayoutUnusableError(located(path, faults))
    return _layout(file), _loads(file)


def _layout(file: _File) -> ClusterLayout:
    topics = sorted(file.topics, key=lambda topic: topic.name)
    return ClusterLayout(
        cluster_id=file.cluster_id,
        brokers=tuple(sorted(file.brokers, key=lambda broker: broker.id)),
        topics=MappingProxyType({topic.name: _kafka_topic(topic) for topic in topics}),
        read_at_ms=file.read_at_ms,
        remarks=file.remarks,
    )


def _kafka_topic(topic: _TopicPart) -> KafkaTopic:
    return KafkaTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        min_isr=topic.min_isr,
        internal=topic.internal,
        partitions=tuple(
            KafkaPartition(
                partition=part.partition,
                replicas=part.replicas,
                leader=_leader(part),
                isr=_online(part) if part.isr is None else part.isr,
                offline=part.offline,
                adding=part.adding,
                removing=part.removing,
            )
            for part in sorted(topic.partitions, key=lambda part: part.partition)
        ),
    )


def _online(part: _PartitionPart) -> tuple[int, ...]:
    return tuple(broker for broker in part.replicas if broker not in part.offline)


def _leader(part: _PartitionPart) -> int | None:
    return next(iter(_online(part)), None) if part.leader == _PREFERRED else part.leader


def _loads(file: _File) -> PartitionLoads:
    return PartitionLoads(
        of=MappingProxyType(
            {
                (topic.name, part.partition): PartitionLoad(**{name: getattr(part, name) for name in _LOADS})
                for topic in sorted(file.topics, key=lambda topic: topic.name)
                for part in sorted(topic.partitions, key=lambda part: part.partition)
                if any(getattr(part, name) is not None for name in _LOADS[:-1])
            }
        ),
        from_ms=file.loads.from_ms,
        to_ms=file.loads.to_ms,
        source=file.loads.source,
    )


def _faults(file: _File) -> Iterator[str]:
    """What is wrong with a file whose fields are all of the right kind."""
    if not file.brokers:
        yield "brokers: expected at least one"
    yield from _broker_faults(file)
    known = {broker.id for broker in file.brokers}
    yield from duplicates("topics", [topic.name for topic in file.topics])
    together = dict.fromkeys(_LOADS[:-1], 0)
    for index, topic in enumerate(file.topics):
        yield from (f"topics[{index}].name: {fault}" for fault in place_faults(topic.name, 0))
        numbers = [partition.partition for partition in topic.partitions]
        yield from duplicates(f"partitions of topic {cut(topic.name)}", numbers)
        missing = set(range(len(set(numbers)))) - set(numbers)
        if missing:
            yield f"topic {cut(topic.name)}: partition {min(missing)} is missing (numbers start at 0, without gaps)"
        for partition in topic.partitions:
            for name in together:
                together[name] += (getattr(partition, name) or 0) * len(partition.replicas)
            yield from (
                f"{cut(topic.name)}-{partition.partition}: {fault}" for fault in _partition_faults(partition, known)
            )
    for name, total in together.items():
        if total > TOGETHER_MAX:
            yield f"{name} of all replicas together is {total}, at most {TOGETHER_MAX} is supported"


def _broker_faults(file: _File) -> Iterator[str]:
    yield from duplicates("brokers", [broker.id for broker in file.brokers])
    for index, broker in enumerate(file.brokers):
        where = f"brokers[{index}]"
        yield from amount_faults(f"{where}.id", broker.id, 2**31 - 1)
        if broker.rack is not None and not broker.rack.strip():
            yield f"{where}.rack: expected a name or null, found {broker.rack!r}"
        yield from duplicates(f"{where}.log_dirs", [directory.path for directory in broker.log_dirs])
        for directory in broker.log_dirs:
            for name in ("total_bytes", "usable_bytes"):
                yield from amount_faults(f"{where}, {cut(directory.path)}: {name}", getattr(directory, name))
            for topic, number, size in directory.replicas:
                yield from amount_faults(f"{where}, {cut(directory.path)}: {cut(topic)}-{number}", size)
        replicas = [f"{topic}-{number}" for each in broker.log_dirs for topic, number, _ in each.replicas]
        yield from duplicates(f"{where}: replicas of log_dirs", replicas)


def _partition_faults(part: _PartitionPart, known: set[int]) -> Iterator[str]:
    yield from replica_faults("replicas", part.replicas)
    replicas = set(part.replicas)
    for broker in sorted(replicas - known):
        yield f"replicas: broker {broker} is not listed in brokers; list one that is down with alive false"
    if part.leader not in (None, _PREFERRED) and part.leader not in replicas:
        yield f"leader: broker {part.leader} has no replica"
    for name in ("isr", "offline", "adding", "removing"):
        for broker in sorted(set(getattr(part, name) or ()) - replicas):
            yield f"{name}: broker {broker} has no replica"


LOADS_FORMAT: Final = "kafka-loads/1"
LOADS_NAME: Final = "loads.jsonl"
POINTER: Final = "LATEST"
FOLDER: Final = "loads"
LINE_BYTES_MAX: Final = 65_536
_LOADS_HINT: Final = "Give a file that the job partition-loads wrote, or the folder of its table."


class LoadsFileError(StateChannelError):
    """A file of loads cannot be used."""

    exit_code = ExitCode.BAD_EXPORT

    def __init__(self, message: str, hint: str = _LOADS_HINT) -> None:
        super().__init__(message, hint=hint)


def lines_of(
    loads: Iterable[tuple[Place, PartitionLoad]],
    *,
    partitions: int,
    cluster: str,
    from_ms: int,
    to_ms: int,
    source: str,
) -> Iterator[bytes]:
    yield orjson.dumps(
        {
            "format": LOADS_FORMAT,
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
    """The file itself; of a folder of the job's table the newest snapshot's."""
    if not path.is_dir():
        return path
    for folder in (path / FOLDER, path):
        pointer = folder / POINTER
        try:
            latest = orjson.loads(pointer.read_bytes())
            return folder / Path(str(latest["path"])).name / LOADS_NAME
        except FileNotFoundError:
            continue
        except (OSError, orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise LoadsFileError(f"{pointer} cannot be read: {error}") from error
    raise LoadsFileError(f"there are no loads in the folder {path}")


def read_loads_file(path: Path, *, cluster: str = "", completeness_min: float = 0.0) -> PartitionLoads:
    """Loads of a file, or of the newest snapshot of a table.

    Args:
        cluster: Kafka's id of the cluster that they must belong to; empty: any.
        completeness_min: Partitions with a smaller part of the window measured are left out.
    """
    file = newest(path)
    try:
        with opened(file) as lines:
            head = validated(lines.readline(LINE_BYTES_MAX), _HEAD, f"{file}, line 1", LoadsFileError, hint=_LOADS_HINT)
            if cluster and head.cluster not in {"", cluster}:
                raise LoadsFileError(f"{file} has loads of the cluster {head.cluster}, not of {cluster}")
            of = dict(_loads_in(lines, file))
    except UnreadableFileError as error:
        raise LoadsFileError(f"{file} {error}") from error
    if len(of) != head.partitions:
        raise LoadsFileError(f"{file} has loads of {len(of)} partitions, but its first line says {head.partitions}")
    kept = {place: load for place, load in of.items() if load.completeness >= completeness_min}
    return PartitionLoads(of=kept, from_ms=head.from_ms, to_ms=head.to_ms, source=f"{head.source}; {file.name}")


_Count = Annotated[int, Field(ge=0, le=FIGURE_MAX)]


class _Head(BaseModel):
    model_config = ConfigDict(strict=True)
    format: Literal["kafka-loads/1"]
    cluster: str
    source: str
    from_ms: _Count
    to_ms: _Count
    partitions: _Count


_Row = tuple[
    str, _Count, _Count | None, _Count | None, _Count | None, _Count | None, Annotated[float, Field(ge=0, le=1)]
]
_HEAD: Final = TypeAdapter(_Head)
_ROW: Final[TypeAdapter[_Row]] = TypeAdapter(_Row, config=STRICT)


def _loads_in(lines: Any, file: Path) -> Iterator[tuple[Place, PartitionLoad]]:
    for number in count(2):
        line = lines.readline(LINE_BYTES_MAX)
        if not line:
            return
        topic, partition, disk, rate_in, rate_out, cpu, share = validated(
            line, _ROW, f"{file}, line {number}", LoadsFileError, hint=_LOADS_HINT
        )
        yield (
            (topic, partition),
            PartitionLoad(
                disk_bytes=disk, bytes_in_per_s=rate_in, bytes_out_per_s=rate_out, cpu_units=cpu, completeness=share
            ),
        )
