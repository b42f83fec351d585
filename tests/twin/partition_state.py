"""Where each partition is, as a plain dict: before a plan, after it, and what no plan may do. No array, no cleverness."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from loaddata.partitions.layout import ClusterLayout, KafkaPartition
from shedders.partitions.plan import PartitionMove, Plan
from shedders.partitions.request import Mode, PlanRequest

Key = tuple[str, int]
State = dict[Key, tuple[tuple[int, ...], int | None]]
"""Replicas in order, and the leader."""


def state_of(layout: ClusterLayout) -> State:
    return {
        (topic.name, partition.partition): (partition.replicas, partition.leader)
        for topic, partition in layout.partitions()
    }


def state_after(layout: ClusterLayout, plan: Plan) -> State:
    state = state_of(layout)
    for move in plan.moves:
        state[move.topic, move.partition] = (move.after, move.leader_after)
    return state


def layout_after(layout: ClusterLayout, plan: Plan) -> ClusterLayout:
    """The cluster as it is read when the plan has been carried out: in sync where it moved, nobody named who is gone."""
    moved = {(move.topic, move.partition): move for move in plan.moves}
    alive = {one.id for one in layout.brokers if one.alive}
    topics = {}
    for topic in layout.topics.values():
        partitions: list[KafkaPartition] = []
        for old in topic.partitions:
            move = moved.get((topic.name, old.partition))
            if move is None:
                partitions.append(old)
                continue
            stale = tuple(one for one in old.offline if one in move.after)
            partitions.append(
                replace(
                    old,
                    replicas=move.after,
                    leader=move.leader_after,
                    isr=tuple(one for one in move.after if one not in stale),
                    offline=stale,
                )
            )
        topics[topic.name] = replace(topic, partitions=tuple(partitions))
    named = {one for topic in topics.values() for partition in topic.partitions for one in partition.replicas}
    brokers = tuple(one for one in layout.brokers if one.id in alive or one.id in named)
    return replace(layout, brokers=brokers, topics=topics)


def may_move(request: PlanRequest, topic: str) -> bool:
    """Whether replicas of this topic may be moved."""
    if any(re.fullmatch(pattern, topic) for pattern in request.excluded_topics):
        return False
    return not request.topics or any(re.fullmatch(pattern, topic) for pattern in request.topics)


def allowed_brokers(layout: ClusterLayout, request: PlanRequest) -> list[int]:
    """Brokers on which a replica may be at the end."""
    away = set(request.offline_brokers)
    if request.mode is Mode.REMOVE_BROKERS:
        away |= set(request.subjects)
    chosen = set(request.brokers) or {one.id for one in layout.brokers}
    return sorted(one.id for one in layout.brokers if one.alive and one.id in chosen and one.id not in away)


def to_empty(layout: ClusterLayout, request: PlanRequest) -> set[int]:
    """Brokers on which nothing may be left that may move."""
    leaving = set(request.offline_brokers)
    if request.mode is Mode.REMOVE_BROKERS:
        leaving |= set(request.subjects)
    return leaving


def repeats(replicas: tuple[int, ...], rack_of: Mapping[int, str | None]) -> int:
    """Replicas that stand in a rack which another of them is in; whoever has no rack shares it with nobody."""
    counts = Counter(rack_of[one] for one in replicas if rack_of[one] is not None)
    return sum(count - 1 for count in counts.values())


def violations(layout: ClusterLayout, request: PlanRequest, plan: Plan) -> Iterator[str]:
    """What the plan does that no plan may do, whatever its goals."""
    before, after = state_of(layout), state_after(layout, plan)
    allowed, leaving = set(allowed_brokers(layout, request)), to_empty(layout, request)
    rack_of = {one.id: one.rack for one in layout.brokers}
    if plan.layout != layout.fingerprint():
        yield "the plan is for another layout"
    keys = [(move.topic, move.partition) for move in plan.moves]
    if keys != sorted(set(keys)):
        yield "moves are not in order, or a partition has two"
    for move in plan.moves:
        key = (move.topic, move.partition)
        if key not in before:
            yield f"{key} does not exist"
            continue
        yield from _move_violations(request, move, before[key], allowed)
    for key, (replicas, leader) in after.items():
        was, was_led = before[key]
        kept = request.mode is Mode.REPLICATION_FACTOR and may_move(request, key[0])
        if len(replicas) != len(was) and not kept:
            yield f"{key} has {len(replicas)} replicas, had {len(was)}"
        if len(set(replicas)) != len(replicas):
            yield f"{key} is twice on a broker: {replicas}"
        if repeats(replicas, rack_of) > repeats(was, rack_of):
            yield f"{key} has more replicas in one rack than before: {was} to {replicas}"
        if may_move(request, key[0]) and leaving & set(replicas):
            yield f"{key} is still on brokers that leave: {replicas}"
        if leader is not None and leader not in replicas:
            yield f"{key} is led from outside: {leader}"
        if was_led is not None and leader is None:
            yield f"{key} has lost its leader"


def _move_violations(
    request: PlanRequest, move: PartitionMove, was: tuple[tuple[int, ...], int | None], allowed: set[int]
) -> Iterator[str]:
    key = (move.topic, move.partition)
    if not may_move(request, move.topic):
        yield f"{key} is excluded and moves"
    if (move.before, move.leader_before) != was:
        yield f"{key}: the plan has it at {move.before}, led by {move.leader_before}; it is {was}"
    if (move.after, move.leader_after) == was:
        yield f"{key}: nothing changes"
    if not set(move.added) <= allowed:
        yield f"{key} goes to {move.added}, which is not all allowed"
    if request.mode is Mode.ADD_BROKERS and not set(move.added) <= set(request.subjects):
        yield f"{key} goes to {move.added}, which are not all new"
    if request.mode is Mode.REMOVE_BROKERS and not set(move.removed) <= set(request.subjects):
        yield f"{key} leaves {move.removed}, which do not all go"
    if request.mode is Mode.DEMOTE and move.added:
        yield f"{key}: data moves for a demotion"
