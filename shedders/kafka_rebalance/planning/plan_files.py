"""Files of plans, and of Kafka's own tool (`kafka-reassign-partitions --reassignment-json-file`), written and read strictly.

A plan file, `partition-plan/1`, is JSON with one move per line, so that people can search and compare it. An unknown field, a
contradiction or an invalid number is an error that names the place. Whether the plan still fits the cluster is checked when it is
executed.

Kafka's format (`ReassignPartitionsCommand`) is `{"version":1,"partitions":[{"topic","partition","replicas","log_dirs"}]}`, where
`version` and `log_dirs` may be missing. A file that only changes the order of replicas moves no data: the first of them becomes
the preferred leader, and leads after an election (`kafka-leader-election --election-type preferred`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_type_hints

import orjson
from pydantic import BaseModel, TypeAdapter, create_model

from loaddata.bulk import uncollected
from loaddata.model.figures import LATEST_MS
from loaddata.samples.partitions import ClusterLayout, KafkaPartition, PartitionLoad, PartitionLoads
from loaddata.samples.strict_json import (
    STRICT,
    amount_faults,
    checked_format,
    cut,
    document_parts,
    duplicates,
    located,
    place_faults,
    read_raw,
    replica_faults,
    top_level,
    validated,
    write_document,
)
from shedders.kafka_rebalance.errors import PlanUnusableError
from shedders.kafka_rebalance.planning.plan import FORMAT, LogDirMove, PartitionMove, ReassignmentPlan

PLAN_ID: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)
_PLAN_HINT: Final = "Make a new plan with `statechannel partitions plan`; do not edit plans by hand."


_PLAN_TYPES: Final = get_type_hints(ReassignmentPlan)
_FILE_TYPES: Final[dict[str, Any]] = {
    name: (of, () if name == "dir_moves" else ...) for name, of in _PLAN_TYPES.items()
}
_PLAN_ADAPTER: Final = TypeAdapter[Any](create_model("_PlanFile", __config__=STRICT, format=str, **_FILE_TYPES))
"""Contents of the file: the fields of `ReassignmentPlan`, and the format."""


def plan_bytes(plan: ReassignmentPlan) -> bytes:
    """Encode a plan; equal plans made at the same time give equal bytes."""
    return b"".join(document_parts(_document(plan)))


def write_plan(path: Path, plan: ReassignmentPlan) -> None:
    """Write a plan atomically."""
    write_document(path, _document(plan))


def _document(plan: ReassignmentPlan) -> dict[str, Any]:
    for goal in plan.goals:
        spreads = (spread for spread in (goal.before, goal.after) if spread is not None)
        numbers = [
            goal.range_share,
            goal.took_s,
            *(n for each in spreads for n in (each.low, each.high, each.mean, each.std)),
        ]
        if not all(map(isfinite, numbers)):
            raise ValueError(f"goal {goal.name}: a number is not finite: {numbers}")
    named = {name: getattr(plan, name) for name in _PLAN_TYPES if name != "dir_moves" or plan.dir_moves}
    return {"format": FORMAT} | named


def read_plan(path: Path) -> ReassignmentPlan:
    raw = read_raw(path, PlanUnusableError)
    return parse_plan(raw, str(path))


@uncollected()
def parse_plan(raw: bytes, where: str = "the plan") -> ReassignmentPlan:
    """Parse a plan, such as from a topic; raises as `read_plan`."""
    names = top_level(raw, where, PlanUnusableError, hint=_PLAN_HINT)
    if str(names.get("format")).startswith("kafka-layout/"):
        raise PlanUnusableError(
            f"{where} is a layout, not a plan",
            hint=f"Make a plan for it: `statechannel partitions plan --layout {where}`.",
        )
    checked_format(names, FORMAT, where, PlanUnusableError, hint=_PLAN_HINT)
    file = validated(raw, _PLAN_ADAPTER, where, PlanUnusableError, hint=_PLAN_HINT)
    plan = ReassignmentPlan(**{name: getattr(file, name) for name in _PLAN_TYPES})
    faults = list(_faults(plan))
    if faults:
        raise PlanUnusableError(located(where, faults), hint=_PLAN_HINT)
    return plan


def _faults(plan: ReassignmentPlan) -> Iterator[str]:
    """Contradictions of a plan whose fields are all of the right type."""
    if not PLAN_ID.fullmatch(plan.id):
        yield f"id: expected 16 hex digits, got {cut(repr(plan.id))}"
    yield from amount_faults("made_at_ms", plan.made_at_ms, LATEST_MS)
    yield from duplicates("goals", [goal.name for goal in plan.goals])
    brokers = [broker.id for broker in plan.brokers]
    yield from duplicates("brokers", brokers)
    known = set(brokers)
    moves = {move.key: move for move in plan.moves}
    yield from duplicates("moves", [f"{move.topic}-{move.partition}" for move in plan.moves])
    yield from duplicates("dir_moves", [f"{each.topic}-{each.partition} on {each.broker}" for each in plan.dir_moves])
    every: tuple[PartitionMove | LogDirMove, ...] = (*plan.moves, *plan.dir_moves)
    for each in every:
        if isinstance(each, PartitionMove):
            where, faults = "", _move_faults(each, known)
        else:
            where, faults = f" on broker {each.broker}", _dir_faults(each, moves.get(each.key[:2]), known)
        where = f"move of {cut(each.topic)}-{each.partition}{where}"
        if plan.topic_ids and each.topic not in plan.topic_ids:
            yield f"{where}: the topic is not in topic_ids"
        faults = chain(place_faults(each.topic, each.partition), faults, amount_faults("size_bytes", each.size_bytes))
        yield from (f"{where}: {fault}" for fault in faults)


def _dir_faults(move: LogDirMove, of: PartitionMove | None, known: set[int]) -> Iterator[str]:
    yield from replica_faults("broker", (move.broker,), known)
    if not move.after or move.before in {"", move.after}:
        yield f"expected two directories, got {cut(repr(move.before))} and {cut(repr(move.after))}"
    if move.broker not in move.replicas or (of is not None and move.replicas != of.after):
        yield f"replicas: expected those of the plan, got {cut(repr(list(move.replicas)))}"
    if move.before is None and (of is None or move.broker not in of.added):
        yield "before: expected a directory, as no move brings the replica to the broker"


def _move_faults(move: PartitionMove, known: set[int]) -> Iterator[str]:
    yield from replica_faults("before", move.before, known)
    yield from replica_faults("after", move.after, known)
    if move.leader_after not in move.after[:1]:
        yield f"leader_after: expected the first of after, got {move.leader_after}"
    if move.leader_before is not None and move.leader_before not in move.before:
        yield f"leader_before: broker {move.leader_before} has no replica of it"
    if move.before == move.after and move.leader_before == move.leader_after:
        yield "no change"


REASSIGNMENT_VERSION: Final = 1
ANY_DIRECTORY: Final = "any"
"""Kafka's own word for the directory that the broker chooses."""
Which = Literal["after", "before"]
_REASSIGNMENT_HINT: Final = (
    'Kafka\'s tool writes such files: {"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2]}]}.'
)
_REASON: Final = "given"


class WantedReplicas(NamedTuple):
    """Brokers in order, and a directory for each of them, or none."""

    replicas: tuple[int, ...]
    log_dirs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReassignmentPart:
    topic: str
    partition: int
    replicas: tuple[int, ...]
    log_dirs: tuple[str, ...] | None = None


class _ReassignmentFile(BaseModel):
    model_config = STRICT
    version: int = REASSIGNMENT_VERSION
    partitions: tuple[_ReassignmentPart, ...]


_REASSIGNMENT_ADAPTER: Final = TypeAdapter(_ReassignmentFile)


def to_json(moves: Iterable[PartitionMove], which: Which = "after", dir_moves: Iterable[LogDirMove] = ()) -> bytes:
    """Encode a file, in the order of the moves, one entry per line.

    Args:
        which: `after`: planned replicas; `before`: former ones, to roll back.
        dir_moves: Moves between log directories. A replica that was brought to its broker has no former directory.
    """
    lists: list[tuple[tuple[str, int], tuple[int, ...]]] = [(move.key, getattr(move, which)) for move in moves]
    listed = {key for key, _ in lists}
    paths: dict[tuple[str, int], dict[int, str]] = {}
    for each in dir_moves:
        path, key = getattr(each, which), (each.topic, each.partition)
        if path is None:
            continue
        if key not in listed and key not in paths:
            lists.append((key, each.replicas))
        paths.setdefault(key, {})[each.broker] = path
    entries = []
    for key, brokers in lists:
        entry: dict[str, Any] = {"topic": key[0], "partition": key[1], "replicas": brokers}
        if key in paths:
            entry["log_dirs"] = [paths[key].get(broker, ANY_DIRECTORY) for broker in brokers]
        entries.append(orjson.dumps(entry))
    return b'{"version":1,"partitions":[\n' + b",\n".join(entries) + b"\n]}\n"


_PROPOSED: Final = re.compile(rb"^Proposed partition reassignment configuration\s*", re.MULTILINE)


def looks_like_reassignment(raw: bytes) -> bool:
    """Whether a file looks like one of Kafka's tool, valid or not."""
    head = raw[:4_096]
    return b'"partitions"' in head and b'"format"' not in head


def parse_reassignment(raw: bytes, where: str = "the file") -> Mapping[tuple[str, int], WantedReplicas]:
    """Replicas by topic and partition of a file; of the output of `--generate` the proposed ones."""
    raw = _PROPOSED.split(raw, maxsplit=1)[-1]
    top_level(raw, where, PlanUnusableError, hint=_REASSIGNMENT_HINT)
    file = validated(raw, _REASSIGNMENT_ADAPTER, where, PlanUnusableError, hint=_REASSIGNMENT_HINT)
    faults = list(_reassignment_faults(file))
    if faults:
        raise PlanUnusableError(located(where, faults), hint=_REASSIGNMENT_HINT)
    return {
        (part.topic, part.partition): WantedReplicas(part.replicas, part.log_dirs or ()) for part in file.partitions
    }


def _reassignment_faults(file: _ReassignmentFile) -> Iterator[str]:
    if file.version != REASSIGNMENT_VERSION:
        yield f"version: expected {REASSIGNMENT_VERSION}, got {file.version}"
    yield from duplicates("partitions", [f"{part.topic}-{part.partition}" for part in file.partitions])
    for number, part in enumerate(file.partitions):
        faults = chain(place_faults(part.topic, part.partition), replica_faults("replicas", part.replicas))
        yield from (f"partitions[{number}]: {fault}" for fault in faults)
        if part.log_dirs is not None and len(part.log_dirs) != len(part.replicas):
            yield f"partitions[{number}].log_dirs: expected one per replica"


class ForeignMoves(NamedTuple):
    """What a reassignment of another tool changes; `unlooked` are its replicas whose present directory is unknown."""

    moves: tuple[PartitionMove, ...]
    dir_moves: tuple[LogDirMove, ...] = ()
    unlooked: tuple[tuple[str, int, int], ...] = ()


def moves_of(
    wanted: Mapping[tuple[str, int], WantedReplicas], layout: ClusterLayout, loads: PartitionLoads, *, where: str = "it"
) -> ForeignMoves:
    """Moves of a reassignment of another tool, without unchanged replicas."""
    brokers = {broker.id: broker for broker in layout.brokers}
    there = {(topic.name, partition.partition): partition for topic, partition in layout.partitions()}
    placed = {
        (topic, number, broker.id): (each.path, size)
        for broker in layout.brokers
        for each in broker.log_dirs
        for topic, number, size in each.replicas
    }
    faults, moves, dir_moves = list[str](), list[PartitionMove](), list[LogDirMove]()
    unlooked: list[tuple[str, int, int]] = []
    for (topic, partition), (replicas, log_dirs) in sorted(wanted.items()):
        now = there.get((topic, partition))
        strange = [broker for broker in replicas if broker not in brokers]
        if now is None or strange:
            what = "partition" if now is None else f"broker {strange[0]}"
            faults.append(f"{topic}-{partition}: the cluster has no {'such ' if now is None else ''}{what}")
            continue
        if now.replicas != replicas:
            moves.append(_move(topic, now, replicas, loads))
        for broker, path in zip(replicas, log_dirs, strict=False):
            paths = {each.path for each in brokers[broker].log_dirs}
            before, size = placed.get((topic, partition, broker), (None, 0))
            comes = broker not in now.replicas
            if path in {ANY_DIRECTORY, before} or paths == {path}:
                continue
            if paths and path not in paths:
                faults.append(f"{topic}-{partition}: broker {broker} has no log directory {cut(path)}")
            elif before is None and not comes:
                unlooked.append((topic, partition, broker))
            else:
                load = loads.of.get((topic, partition), PartitionLoad())
                dir_moves.append(
                    LogDirMove(
                        topic=topic,
                        partition=partition,
                        broker=broker,
                        replicas=replicas,
                        before=None if comes else before,
                        after=path,
                        size_bytes=load.disk_bytes or 0 if comes else size,
                    )
                )
    if faults:
        raise PlanUnusableError(
            located(where, faults), hint="It is for another cluster, or for an older state of this one; make a new one."
        )
    return ForeignMoves(tuple(moves), tuple(dir_moves), tuple(unlooked))


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
