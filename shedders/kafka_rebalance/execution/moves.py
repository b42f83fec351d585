"""States of planned partitions, and the selection of those to move next. Pure.

A state is derived from the cluster alone, so that it survives a crash of the tool. Selection is bounded per broker, per cluster
and in bytes, as many small partitions and few large ones need different bounds; under-replicated partitions go first. As in
Cruise Control's executor (`num.concurrent.partition.movements.per.broker`, `max.num.cluster.partition.movements`), each broker
that a partition adds to, removes from or is copied from counts it once: of a move from [10, 11] to [10, 11, 15], broker 10 counts
one (its leader is read from) and broker 15 counts one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from shedders.kafka_rebalance.execution.values import named
from shedders.model.amounts import count

if TYPE_CHECKING:
    from loaddata.samples.partitions import KafkaPartition, KafkaTopic
    from shedders.kafka_rebalance.execution.values import Key
    from shedders.kafka_rebalance.planning.plan import PartitionMove, ReassignmentPlan
    from shedders.kafka_rebalance.settings import PaceSettings


Place = TypeVar("Place", bound=tuple[Any, ...])


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


LOST = frozenset({MoveState.CHANGED, MoveState.GONE})
LOST_SHARE = 3
"""If others have changed this part of a plan's bytes, the rest no longer serves its goals."""
_SHOWN = 3


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
    return tuple(replica for replica in partition.replicas if replica not in partition.removing)


def statuses_of(
    plan: ReassignmentPlan, topics: Mapping[str, KafkaTopic], moved: Collection[Key] = frozenset()
) -> dict[Key, MoveStatus]:
    """State of each partition of a plan, in the order of its moves.

    Args:
        topics: Those that exist.
        moved: Partitions that were moved before: what others have done to them since does not matter.
    """
    statuses: dict[Key, MoveStatus] = {}
    for move in plan.moves:
        status = status_of_partition(move, topics.get(move.topic), plan.topic_ids.get(move.topic, ""))
        statuses[move.key] = _DONE if status.state in LOST and move.key in moved else status
    return statuses


def open_ones(statuses: Mapping[Place, MoveStatus], dropped: Container[Any]) -> set[Place]:
    """Partitions or replicas that are neither done nor dropped."""
    return {key for key, status in statuses.items() if status.state is not MoveState.DONE and key not in dropped}


def dropped_text(lost: Iterable[MoveStatus]) -> str:
    """Sentence about partitions and replicas that are dropped from a plan; empty: none."""
    reasons = Counter(status.reason for status in lost)
    shown = [f"{count(number, 'move')} dropped: {reason}" for reason, number in list(reasons.items())[:_SHOWN]]
    more = reasons.total() - sum(list(reasons.values())[:_SHOWN])
    return "; ".join([*shown, *([f"and {more} more"] if more else [])])


def is_taken_over(plan: ReassignmentPlan, lost: Mapping[Any, MoveStatus]) -> bool:
    """Whether others have changed so much of a plan that it is to stop. Bytes of deleted topics do not count."""
    sizes: dict[Any, int] = {move.key: max(1, move.copied_bytes) for move in plan.moves}
    sizes |= {move.key: max(1, move.copied_bytes) for move in plan.dir_moves}
    changed = sum(sizes[key] for key, status in lost.items() if status.state is MoveState.CHANGED)
    return changed * LOST_SHARE >= sum(sizes.values()) and changed > 0


def status_of_partition(move: PartitionMove, topic: KafkaTopic | None, topic_id: str) -> MoveStatus:
    """State of a partition.

    Args:
        topic: Present state of its topic; None: it does not exist.
        topic_id: Topic id that the plan was made for; empty: unknown.
    """
    gone = gone_reason(topic, move.key, topic_id)
    if topic is None or gone:
        return MoveStatus(MoveState.GONE, gone)
    partition = topic.partitions[move.partition]
    if not partition.in_motion:
        return _resting(move, partition)
    target = target_of(partition)
    if frozenset(target) in {frozenset(stage) for stage in stages(move.before, move.after)}:
        return _MOVING
    return MoveStatus(
        MoveState.CHANGED, f"{named(move.key)} is being reassigned to {list(target)}, which is not in the plan"
    )


def gone_reason(topic: KafkaTopic | None, key: Key, topic_id: str) -> str:
    """Why a partition is not the one of the plan any more; empty: it is."""
    if topic is None:
        return f"topic {key[0]} was deleted"
    if topic_id and topic.topic_id and topic.topic_id != topic_id:
        return f"topic {key[0]} was deleted and created again since the plan was made"
    return f"partition {named(key)} does not exist" if key[1] >= len(topic.partitions) else ""


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
        f"{named(move.key)} has replicas {list(partition.replicas)}; "
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStep:
    """One partition that may be moved next, or is in flight.

    Attributes:
        target: Replicas to request.
        brokers: Brokers whose parallelism it counts for.
        under_replicated: It goes first.
    """

    key: Key
    target: tuple[int, ...]
    brokers: frozenset[int]
    size_bytes: int
    under_replicated: bool = False
    number: int = 0


@dataclass(slots=True)
class InFlight:
    """Moves in flight."""

    partitions: int = 0
    size_bytes: int = 0
    of_broker: Counter[int] = field(default_factory=Counter)

    def take(self, brokers: Iterable[int], size_bytes: int) -> None:
        self.partitions += 1
        self.size_bytes += size_bytes
        self.of_broker.update(brokers)


def concerned(leader: int | None, now: Sequence[int], target: Sequence[int]) -> frozenset[int]:
    """Brokers whose parallelism a partition counts for: destinations, sources, and the leader that is copied from."""
    added = frozenset(target) - frozenset(now)
    removed = frozenset(now) - frozenset(target)
    source = frozenset(() if leader is None or not added else (leader,))
    return added | removed | source


def step_of(move: PartitionMove, partition: KafkaPartition, *, one_replica: bool, number: int) -> PartitionStep:
    now = partition.replicas
    target = next_target(move, now, one_replica=one_replica)
    return PartitionStep(
        key=move.key,
        target=target,
        brokers=concerned(partition.leader, now, target),
        size_bytes=(move.size_bytes or 0) * len(set(target) - set(now)),
        under_replicated=len(partition.isr) < len(now),
        number=number,
    )


def in_order(steps: Iterable[PartitionStep], order: str) -> list[PartitionStep]:
    """Under-replicated partitions first, then by `order`: by size, or as in the plan."""
    sign = {"small-first": 1, "large-first": -1}.get(order, 0)
    return sorted(steps, key=lambda step: (not step.under_replicated, sign * step.size_bytes, step.number))


def choose(steps: Sequence[PartitionStep], flight: InFlight, pace: PaceSettings) -> list[PartitionStep]:
    """Partitions to move now, in order; one that does not fit does not block later ones. They are added to `flight`.

    A partition that is larger than the bound of bytes is moved when no other copy is in flight.
    """
    chosen: list[PartitionStep] = []
    for step in steps:
        if flight.partitions >= pace.moves_max:
            break
        if any(flight.of_broker[broker] >= pace.moves_per_broker for broker in step.brokers):
            continue
        if flight.size_bytes and flight.size_bytes + step.size_bytes > pace.bytes_in_flight:
            continue
        flight.take(step.brokers, step.size_bytes)
        chosen.append(step)
    return chosen
