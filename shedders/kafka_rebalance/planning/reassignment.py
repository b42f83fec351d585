"""Files of Kafka's own tool (`kafka-reassign-partitions --reassignment-json-file`), written and read.

Format: `ReassignPartitionsCommand` of Apache Kafka, `{"version":1,"partitions":[{"topic","partition","replicas"}]}`; `log_dirs`
are accepted and ignored. A file that only changes the order of replicas moves no data: the first of them becomes
the preferred leader, and leads after an election (`kafka-leader-election --election-type preferred`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import orjson
from pydantic import BaseModel, TypeAdapter

from loaddata.samples.layout import ClusterLayout, KafkaPartition
from loaddata.samples.layout_file import TOPIC_NAME
from loaddata.samples.loads import PartitionLoads
from loaddata.samples.strict_json import STRICT, cut, read_raw, told, top_level, twice, validated
from shedders.kafka_rebalance.errors import PlanUnusableError
from shedders.kafka_rebalance.planning.plan import PartitionMove

VERSION: Final = 1
Which = Literal["after", "before"]
_HINT: Final = (
    'Kafka\'s tool writes such files: {"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2]}]}.'
)
_REASON: Final = "given"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    topic: str
    partition: int
    replicas: tuple[int, ...]
    log_dirs: tuple[str, ...] | None = None


class _File(BaseModel):
    model_config = STRICT
    version: int
    partitions: tuple[_Part, ...]


_ADAPTER: Final = TypeAdapter(_File)


def to_json(moves: Iterable[PartitionMove], which: Which = "after") -> bytes:
    """Encode a file, in the order of the moves, one entry per line.

    Args:
        moves: Moves of a plan or of a batch.
        which: `after`: planned replicas; `before`: former ones, to roll back.
    """
    entries = [
        orjson.dumps({"topic": move.topic, "partition": move.partition, "replicas": getattr(move, which)})
        for move in moves
    ]
    return b'{"version":1,"partitions":[\n' + b",\n".join(entries) + b"\n]}\n"


def looks_like_reassignment(raw: bytes) -> bool:
    """Whether a file looks like one of Kafka's tool, valid or not."""
    head = raw[:4_096]
    return b'"partitions"' in head and b'"version"' in raw and b'"format"' not in head


def read_reassignment(path: Path) -> Mapping[tuple[str, int], tuple[int, ...]]:
    """Read the replicas by topic and partition.

    Raises:
        PlanUnusableError: The file cannot be read, has another version, a duplicate partition, or invalid replicas.
    """
    return parse_reassignment(read_raw(path, _unusable), str(path))


def parse_reassignment(raw: bytes, where: str = "the file") -> Mapping[tuple[str, int], tuple[int, ...]]:
    """Parse the contents of a file; raises as `read_reassignment`."""
    top_level(raw, where, _unusable, hint=_HINT)
    file = validated(raw, _ADAPTER, where, _unusable, hint=_HINT)
    faults = list(_faults(file))
    if faults:
        raise PlanUnusableError(told(where, faults), hint=_HINT)
    return {(part.topic, part.partition): part.replicas for part in file.partitions}


def _faults(file: _File) -> Iterator[str]:
    if file.version != VERSION:
        yield f"version: expected {VERSION}, got {file.version}"
    seen: set[tuple[str, int]] = set()
    for number, part in enumerate(file.partitions):
        where = f"partitions[{number}]"
        if (part.topic, part.partition) in seen:
            yield f"{where}: {cut(part.topic)}-{part.partition} is duplicated"
        seen.add((part.topic, part.partition))
        if not TOPIC_NAME.fullmatch(part.topic) or not 0 <= part.partition < 2**31:
            yield f"{where}: {cut(part.topic)}-{part.partition} is not a valid partition"
        if not part.replicas or min(part.replicas) < 0:
            yield f"{where}.replicas: expected broker ids, got {cut(repr(list(part.replicas)))}"
        again = twice(part.replicas)
        if again is not None:
            yield f"{where}.replicas: broker {again} is duplicated"
        if part.log_dirs is not None and len(part.log_dirs) != len(part.replicas):
            yield f"{where}.log_dirs: expected one per replica"


def moves_of(
    wanted: Mapping[tuple[str, int], tuple[int, ...]],
    layout: ClusterLayout,
    loads: PartitionLoads,
    *,
    where: str = "it",
) -> tuple[PartitionMove, ...]:
    """Moves of a reassignment of another tool, without unchanged partitions.

    Args:
        wanted: Replicas from `read_reassignment`.
        layout: Layout of the cluster.
        loads: Known sizes of its partitions.
        where: Name of the file, for people.

    Raises:
        PlanUnusableError: It has partitions or brokers that the cluster does not have.
    """
    known = {broker.id for broker in layout.brokers}
    there = {(topic.name, partition.partition): partition for topic, partition in layout.partitions()}
    faults, problems = list[str](), list[PartitionMove]()
    for (topic, partition), replicas in sorted(wanted.items()):
        now = there.get((topic, partition))
        strange = [broker for broker in replicas if broker not in known]
        if now is None:
            faults.append(f"{topic}-{partition}: the cluster has no such partition")
        elif strange:
            faults.append(f"{topic}-{partition}: the cluster has no broker {strange[0]}")
        elif now.replicas != replicas:
            problems.append(_move(topic, now, replicas, loads))
    if faults:
        raise PlanUnusableError(
            told(where, faults),
            hint="It is for another cluster, or for an older state of this one; make a new one.",
        )
    return tuple(problems)


def _move(topic: str, now: KafkaPartition, after: tuple[int, ...], loads: PartitionLoads) -> PartitionMove:
    load = loads.of.get((topic, now.partition))
    return PartitionMove(
        topic=topic,
        partition=now.partition,
        before=now.replicas,
        after=after,
        leader_before=now.leader,
        leader_after=after[0],
        size_bytes=None if load is None else load.disk_bytes,
        goals=(_REASON,),
    )


def _unusable(message: str, hint: str) -> PlanUnusableError:
    return PlanUnusableError(message, hint=hint)
