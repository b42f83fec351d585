"""State of each planned partition, derived from the cluster alone, so that it survives a crash of the tool."""

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
    """State of a planned partition."""

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
class MoveStatus:
    """State of one partition; `reason`: why it cannot continue."""

    state: MoveState
    reason: str = ""


_WAITING, _PARTLY, _MOVING = MoveStatus(MoveState.WAITING), MoveStatus(MoveState.PARTLY), MoveStatus(MoveState.MOVING)
_REORDER, _ELECT, _DONE = MoveStatus(MoveState.REORDER), MoveStatus(MoveState.ELECT), MoveStatus(MoveState.DONE)


def stages(before: Sequence[int], after: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Replica lists from `before` (excluded) to `after`, each with at most one new broker more than the previous one.

    The first replica leaves last, so that the leader need not change. A replica is removed only in the step in which
    another replaces it; Kafka drops it when the new one is in sync.
    """
    adding = [broker for broker in after if broker not in before]
    removing = [broker for broker in before[1:] if broker not in after] + [
        broker for broker in before[:1] if broker not in after
    ]
    current = list(before)
    lists: list[tuple[int, ...]] = []
    while len(adding) > 1:
        new = adding.pop(0)
        if removing:
            current[current.index(removing.pop(0))] = new
        else:
            current.append(new)
        lists.append(tuple(current))
    return (*lists, tuple(after))


def next_target(move: PartitionMove, replicas: Sequence[int], *, one_replica: bool) -> tuple[int, ...]:
    """Next replica list to request for a partition that has these replicas and is not in flight."""
    if not one_replica:
        return move.after
    steps = stages(move.before, move.after)
    has = [frozenset(list_) for list_ in (move.before, *steps)]
    return steps[has.index(frozenset(replicas))] if frozenset(replicas) in has[:-1] else move.after


def target_of(partition: KafkaPartition) -> tuple[int, ...]:
    """Replicas of a partition after its reassignment."""
    return tuple(replica for replica in partition.replicas if replica not in partition.removing)


def stand_of(move: PartitionMove, topic: KafkaTopic | None, topic_id: str) -> MoveStatus:
    """State of a partition.

    Args:
        move: Planned move.
        topic: Present state of its topic; None: it does not exist.
        topic_id: Topic id that the plan was made for; empty: unknown.
    """
    key = (move.topic, move.partition)
    if topic is None:
        return MoveStatus(MoveState.GONE, f"topic {move.topic} was deleted")
    if topic_id and topic.topic_id and topic.topic_id != topic_id:
        return MoveStatus(MoveState.GONE, f"topic {move.topic} was deleted and created again since the plan was made")
    if move.partition >= len(topic.partitions):
        return MoveStatus(MoveState.GONE, f"partition {named(key)} does not exist")
    partition = topic.partitions[move.partition]
    if not partition.in_motion:
        return _resting(move, partition)
    target = target_of(partition)
    if frozenset(target) in {frozenset(stage) for stage in stages(move.before, move.after)}:
        return _MOVING
    return MoveStatus(
        MoveState.CHANGED, f"{named(key)} is being reassigned to {list(target)}, which is not in the plan"
    )


def _resting(move: PartitionMove, partition: KafkaPartition) -> MoveStatus:
    if partition.replicas == move.after:
        return _DONE if partition.leader == move.leader_after else _ELECT
    has = frozenset(partition.replicas)
    if has == frozenset(move.after):
        return _REORDER
    if has == frozenset(move.before):
        return _WAITING
    if has in {frozenset(stage) for stage in stages(move.before, move.after)}:
        return _PARTLY
    return MoveStatus(
        MoveState.CHANGED,
        f"{named((move.topic, move.partition))} has replicas {list(partition.replicas)}; "
        f"the plan moves it from {list(move.before)} to {list(move.after)}",
    )


def unsafe(partition: KafkaPartition, target: Sequence[int], min_isr: int) -> str:
    """Reason why a partition must not be moved now; empty: it may.

    Kafka adds replicas first, and drops old ones when all added ones are in sync. Dropped ones may be in sync themselves, so the
    rest must be enough; a partition below its minimum may move if that repairs it.
    """
    if partition.leader is None:
        return "it has no leader"
    added = frozenset(target) - frozenset(partition.replicas)
    left = (frozenset(partition.isr) & frozenset(target)) | added
    # A topic may have fewer replicas than its minimum already; it must not get worse.
    needed = min_isr if len(target) >= min_isr else len(partition.isr)
    if len(left) < needed:
        return f"it would have in-sync replicas {sorted(left)}, fewer than {needed} (min.insync.replicas is {min_isr})"
    return ""
