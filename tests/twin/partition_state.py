"""Where each partition is, as a plain dict: before a plan, and after it. No array, no cleverness."""

from __future__ import annotations

import re
from dataclasses import replace

from loaddata.samples.partitions import ClusterLayout, KafkaPartition
from shedders.kafka_rebalance.planning.plan import ReassignmentPlan
from shedders.kafka_rebalance.planning.request import PlanMode, PlanRequest

Key = tuple[str, int]
State = dict[Key, tuple[tuple[int, ...], int | None]]
"""Replicas in order, and the leader."""


def state_of(layout: ClusterLayout) -> State:
    return {
        (topic.name, partition.partition): (partition.replicas, partition.leader)
        for topic, partition in layout.partitions()
    }


def state_after(layout: ClusterLayout, plan: ReassignmentPlan) -> State:
    state = state_of(layout)
    for move in plan.moves:
        state[move.topic, move.partition] = (move.after, move.leader_after)
    return state


def layout_after(layout: ClusterLayout, plan: ReassignmentPlan) -> ClusterLayout:
    """The cluster as it is read when the plan has been carried out: what came is in sync, nobody is named who is gone."""
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
            # Who was behind stays so: whether it catches up is not the plan's doing.
            behind = set(old.replicas) - set(old.isr)
            stale = tuple(one for one in old.offline if one in move.after)
            partitions.append(
                replace(
                    old,
                    replicas=move.after,
                    leader=move.leader_after,
                    isr=tuple(one for one in move.after if one not in behind),
                    offline=stale,
                )
            )
        topics[topic.name] = replace(topic, partitions=tuple(partitions))
    named = {one for topic in topics.values() for partition in topic.partitions for one in partition.replicas}
    brokers = tuple(one for one in layout.brokers if one.id in alive or one.id in named)
    return replace(layout, brokers=brokers, topics=topics)


def free(layout: ClusterLayout, request: PlanRequest) -> set[Key]:
    """Partitions that may be changed: chosen, led by somebody, nothing under way, nothing offline that is not asked for."""
    going = to_empty(layout, request)
    mends = request.mode in {PlanMode.FIX_OFFLINE, PlanMode.REMOVE_BROKERS}
    return {
        (topic.name, one.partition)
        for topic, one in layout.partitions()
        if _chosen(request, topic.name)
        and not one.in_motion
        and one.leader is not None
        and (mends or not set(one.offline) - going)
    }


def _chosen(request: PlanRequest, topic: str) -> bool:
    if any(re.fullmatch(pattern, topic) for pattern in request.excluded_topics):
        return False
    return not request.topics or any(re.fullmatch(pattern, topic) for pattern in request.topics)


def allowed_brokers(layout: ClusterLayout, request: PlanRequest) -> list[int]:
    """Brokers on which a replica may be at the end."""
    away = set(request.offline_brokers)
    if request.mode is PlanMode.REMOVE_BROKERS:
        away |= set(request.subjects)
    chosen = set(request.brokers) or {one.id for one in layout.brokers}
    return sorted(one.id for one in layout.brokers if one.alive and one.id in chosen and one.id not in away)


def to_empty(layout: ClusterLayout, request: PlanRequest) -> set[int]:
    """Brokers on which nothing may be left that may move."""
    leaving = set(request.offline_brokers)
    if request.mode is PlanMode.REMOVE_BROKERS:
        leaving |= set(request.subjects)
    return leaving
