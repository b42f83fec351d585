"""Where each planned partition stands, told from the cluster alone: so a tool that was killed knows as much as before."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from shedders.kafka_rebalance.execution.values import named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaddata.samples.layout import KafkaPartition, KafkaTopic
    from shedders.kafka_rebalance.planning.plan import PartitionMove


class MoveState(StrEnum):
    """Where a planned partition stands."""

    WAITING = "waiting"
    PARTLY = "partly"
    MOVING = "moving"
    REORDER = "reorder"
    ELECT = "elect"
    DONE = "done"
    CHANGED = "changed"
    GONE = "gone"


FINISHED = frozenset({MoveState.DONE})
LOST = frozenset({MoveState.CHANGED, MoveState.GONE})


@dataclass(frozen=True, slots=True)
class Stand:
    """Where one partition stands; `reason` where it can go no further."""

    standing: MoveState
    reason: str = ""


_WAITING, _PARTLY, _MOVING = Stand(MoveState.WAITING), Stand(MoveState.PARTLY), Stand(MoveState.MOVING)
_REORDER, _ELECT, _DONE = Stand(MoveState.REORDER), Stand(MoveState.ELECT), Stand(MoveState.DONE)


def stages(before: Sequence[int], after: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Replica lists from `before` (not in it) to `after`, each with at most one new broker more than the last.

    The first replica leaves last: as long as it stays the leader need not change. A replica goes only in the step in which
    another takes its place, and Kafka drops it when that one is in sync.
    """
    adding = [one for one in after if one not in before]
    removing = [one for one in before[1:] if one not in after] + [one for one in before[:1] if one not in after]
    current = list(before)
    found: list[tuple[int, ...]] = []
    while len(adding) > 1:
        new = adding.pop(0)
        if removing:
            current[current.index(removing.pop(0))] = new
        else:
            current.append(new)
        found.append(tuple(current))
    return (*found, tuple(after))


def next_target(move: PartitionMove, replicas: Sequence[int], *, one_replica: bool) -> tuple[int, ...]:
    """What is to be asked for next, of a partition that has these replicas and is not under way."""
    if not one_replica:
        return move.after
    steps = stages(move.before, move.after)
    has = [frozenset(one) for one in (move.before, *steps)]
    return steps[has.index(frozenset(replicas))] if frozenset(replicas) in has[:-1] else move.after


def target_of(partition: KafkaPartition) -> tuple[int, ...]:
    """The replicas that it will have when what is under way is through."""
    return tuple(one for one in partition.replicas if one not in partition.removing)


def stand_of(move: PartitionMove, topic: KafkaTopic | None, topic_id: str) -> Stand:
    """Where a partition stands.

    Args:
        move: What is planned of it.
        topic: Its topic as it is now; None: it does not exist.
        topic_id: The one that the plan was made for; empty: not known.
    """
    key = (move.topic, move.partition)
    if topic is None:
        return Stand(MoveState.GONE, f"topic {move.topic} was deleted")
    if topic_id and topic.topic_id and topic.topic_id != topic_id:
        return Stand(MoveState.GONE, f"topic {move.topic} was deleted and made anew since the plan was made")
    if move.partition >= len(topic.partitions):
        return Stand(MoveState.GONE, f"partition {named(key)} does not exist")
    partition = topic.partitions[move.partition]
    if not partition.in_motion:
        return _resting(move, partition)
    target = target_of(partition)
    if frozenset(target) in {frozenset(one) for one in stages(move.before, move.after)}:
        return _MOVING
    return Stand(MoveState.CHANGED, f"{named(key)} is on its way to {list(target)}, which the plan did not ask for")


def _resting(move: PartitionMove, partition: KafkaPartition) -> Stand:
    if partition.replicas == move.after:
        return _DONE if partition.leader == move.leader_after else _ELECT
    has = frozenset(partition.replicas)
    if has == frozenset(move.after):
        return _REORDER
    if has == frozenset(move.before):
        return _WAITING
    if has in {frozenset(one) for one in stages(move.before, move.after)}:
        return _PARTLY
    return Stand(
        MoveState.CHANGED,
        f"{named((move.topic, move.partition))} has replicas {list(partition.replicas)}; "
        f"the plan takes it from {list(move.before)} to {list(move.after)}",
    )


def unsafe(partition: KafkaPartition, target: Sequence[int], min_isr: int) -> str:
    """Why a partition may not set out now; empty: it may.

    Kafka adds first, and drops a replica when all that were added are in sync. What it drops may be in sync itself, so what is
    left has to be enough; a partition below its minimum may go if that brings it back.
    """
    if partition.leader is None:
        return "nobody leads it"
    added = frozenset(target) - frozenset(partition.replicas)
    left = (frozenset(partition.isr) & frozenset(target)) | added
    # A topic with fewer replicas than its minimum is as it is: it may not get worse.
    needed = min_isr if len(target) >= min_isr else len(partition.isr)
    if len(left) < needed:
        return f"it would have in-sync replicas {sorted(left)}, fewer than {needed} (min.insync.replicas is {min_isr})"
    return ""
