"""File format of plans, `partition-plan/1`: JSON with one move per line, so that people can search and compare it.

Reading is strict: an unknown field, a contradiction or an invalid number is an error that names the place. Whether the
plan still fits the cluster is checked when it is executed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from math import isfinite
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter

from loaddata.bulk import uncollected
from loaddata.model.figures import LATEST_MS
from loaddata.samples.layout_file import TOPIC_NAME
from loaddata.samples.strict_json import (
    NUMBER_MAX,
    STRICT,
    checked_format,
    cut,
    document_parts,
    read_raw,
    told,
    top_level,
    twice,
    validated,
    write_document,
)
from shedders.kafka_rebalance.errors import PlanUnusableError
from shedders.kafka_rebalance.planning.plan import FORMAT, BrokerChange, GoalOutcome, PartitionMove, ReassignmentPlan

ID: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)
_HINT: Final = "Make a new plan with `statechannel partitions plan`; do not edit plans by hand."


class _File(BaseModel):
    """Contents of the file: the fields of `ReassignmentPlan`, and the format."""

    model_config = STRICT
    format: str
    id: str
    cluster_id: str
    layout: str
    topic_ids: dict[str, str]
    made_at_ms: int
    request: dict[str, Any]
    goals: tuple[GoalOutcome, ...]
    brokers: tuple[BrokerChange, ...]
    moves: tuple[PartitionMove, ...]
    complete: bool
    remarks: tuple[str, ...]
    took_s: float


_ADAPTER: Final = TypeAdapter(_File)
_FIELDS: Final = tuple(field.name for field in fields(ReassignmentPlan))


def plan_bytes(plan: ReassignmentPlan) -> bytes:
    """Encode a plan; equal plans made at the same time give equal bytes."""
    return b"".join(document_parts(_document(plan)))


def write_plan(path: Path, plan: ReassignmentPlan) -> None:
    """Write a plan atomically.

    Raises:
        ValueError: The plan has a number that is not finite, a bug of the planner.
        StateChannelError: The file cannot be written.
    """
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
    return {"format": FORMAT} | {name: _plain(getattr(plan, name)) for name in _FIELDS}


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else value


def read_plan(path: Path) -> ReassignmentPlan:
    """Read a plan.

    Raises:
        PlanUnusableError: The file cannot be read, is not a plan, has another version, or contradicts itself.
    """
    raw = read_raw(path, _unusable)
    return parse_plan(raw, str(path))


def parse_plan(raw: bytes, where: str = "the plan") -> ReassignmentPlan:
    """Parse a plan, such as from a topic; raises as `read_plan`."""
    with uncollected():
        return _parsed(raw, where)


def _parsed(raw: bytes, where: str) -> ReassignmentPlan:
    names = top_level(raw, where, _unusable, hint=_HINT)
    if "partitions" in names and "format" not in names:
        hint = "Show it with `statechannel partitions show --layout FILE`; `apply` takes only plans."
        raise PlanUnusableError(
            f"{where} is not a plan; it looks like a reassignment file of Kafka's own tool", hint=hint
        )
    if str(names.get("format")).startswith("kafka-layout/"):
        raise PlanUnusableError(
            f"{where} is a layout, not a plan",
            hint=f"Make a plan for it: `statechannel partitions plan --layout {where}`.",
        )
    checked_format(names.get("format"), FORMAT, where, _unusable, hint=_HINT)
    file = validated(raw, _ADAPTER, where, _unusable, hint=_HINT)
    plan = ReassignmentPlan(**{name: getattr(file, name) for name in _FIELDS})
    faults = list(_faults(plan))
    if faults:
        raise PlanUnusableError(told(where, faults), hint=_HINT)
    return plan


def _unusable(message: str, hint: str) -> PlanUnusableError:
    return PlanUnusableError(message, hint=hint)


def _faults(plan: ReassignmentPlan) -> Iterator[str]:
    """Contradictions of a plan whose fields are all of the right type."""
    if not ID.fullmatch(plan.id):
        yield f"id: expected 16 hex digits, got {cut(repr(plan.id))}"
    if not 0 <= plan.made_at_ms <= LATEST_MS:
        yield f"made_at_ms: expected 0 to {LATEST_MS}, got {cut(str(plan.made_at_ms))}"
    goals = [goal.name for goal in plan.goals]
    if len(set(goals)) < len(goals):
        yield "goals: a goal is duplicated"
    brokers = [broker.id for broker in plan.brokers]
    known, again = set(brokers), twice(brokers)
    if again is not None:
        yield f"brokers: {again} is duplicated"
    seen: set[tuple[str, int]] = set()
    for move in plan.moves:
        where = f"move of {cut(move.topic)}-{move.partition}"
        if (move.topic, move.partition) in seen:
            yield f"{where}: duplicated"
        seen.add((move.topic, move.partition))
        if plan.topic_ids and move.topic not in plan.topic_ids:
            yield f"{where}: the topic is not in topic_ids"
        yield from (f"{where}: {fault}" for fault in _move_faults(move, known))


def _move_faults(move: PartitionMove, known: set[int]) -> Iterator[str]:
    if not TOPIC_NAME.fullmatch(move.topic):
        yield "not a valid topic name"
    if not 0 <= move.partition < 2**31:
        yield "not a valid partition number"
    for name in ("before", "after"):
        replicas: tuple[int, ...] = getattr(move, name)
        again = twice(replicas)
        if not replicas or min(replicas) < 0:
            yield f"{name}: expected broker ids, got {cut(repr(list(replicas)))}"
        if again is not None:
            yield f"{name}: broker {again} is duplicated"
        strange = sorted(set(replicas) - known) if known else []
        if strange:
            yield f"{name}: the plan has no broker {strange[0]}"
    if move.leader_after not in move.after[:1]:
        yield f"leader_after: expected the first of after, got {move.leader_after}"
    if move.leader_before is not None and move.leader_before not in move.before:
        yield f"leader_before: broker {move.leader_before} has no replica of it"
    if move.before == move.after and move.leader_before == move.leader_after:
        yield "no change"
    if move.size_bytes is not None and not 0 <= move.size_bytes <= NUMBER_MAX:
        yield f"size_bytes: expected 0 to {NUMBER_MAX}, got {cut(str(move.size_bytes))}"
