"""What an execution has done, what it would do, and the plan that reverts it; nothing is changed here.

The status comes from journal, state topic and cluster together; dry run and rollback from the present cluster.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from loaddata.samples.admin import open_admin
from shedders.kafka_rebalance.errors import ExecutionRefusedError
from shedders.kafka_rebalance.execution.checks import ExecutionFinding, findings, settled_layout
from shedders.kafka_rebalance.execution.cluster_port import ClusterPort
from shedders.kafka_rebalance.execution.moves import (
    LOST,
    InFlight,
    MoveState,
    PartitionStep,
    choose,
    in_order,
    stands_of,
    step_of,
)
from shedders.kafka_rebalance.execution.session import ExecutionPlace
from shedders.kafka_rebalance.execution.values import ExecutionEvent, named, resource_text
from shedders.kafka_rebalance.planning.estimate import Estimate, estimate
from shedders.kafka_rebalance.planning.plan import PartitionMove, ReassignmentPlan

if TYPE_CHECKING:
    from loaddata.samples.partitions import ClusterLayout, KafkaTopic
    from shedders.kafka_rebalance.execution.moves import MoveStatus
    from shedders.kafka_rebalance.execution.session import KnownPlan
    from shedders.kafka_rebalance.execution.values import Key
    from shedders.kafka_rebalance.settings import PaceSettings


_ARRIVED = frozenset({MoveState.DONE, MoveState.ELECT, MoveState.REORDER})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionProgress:
    """Progress of a plan.

    Attributes:
        partitions: Counts by state.
        total: Partitions of the plan.
        done: Partitions with the planned replicas and leader.
        bytes_total: Bytes to copy; bytes_done: bytes copied, as far as known for moves in flight.
        elapsed_s: Time since the first start.
        rate_bytes_per_s: Mean rate over that time; None: nothing copied yet.
        left_s: Time left at that rate; None: unknown.
    """

    partitions: Mapping[str, int]
    total: int
    done: int
    bytes_total: int
    bytes_done: int
    elapsed_s: float
    rate_bytes_per_s: int | None
    left_s: float | None


def progress_of(
    plan: ReassignmentPlan,
    stands: Mapping[Key, MoveStatus],
    topics: Mapping[str, KafkaTopic],
    copied: Mapping[tuple[str, int, int], int] | None,
    *,
    elapsed_s: float,
) -> ExecutionProgress:
    """Compute the progress.

    Args:
        stands: State of each planned partition.
        topics: Present topics, for the progress of moves by one replica at a time.
        copied: Known bytes of replicas in flight.
        elapsed_s: Time since the first start.
    """
    done_bytes = 0
    for move in plan.moves:
        key = move.key
        size = move.size_bytes or 0
        stand = stands.get(key)
        if stand is None or not size or not move.added:
            continue
        if stand.state in _ARRIVED:
            done_bytes += move.copied_bytes
        elif stand.state in {MoveState.MOVING, MoveState.PARTLY}:
            partition = topics[move.topic].partitions[move.partition]
            there = [broker for broker in move.added if broker in partition.replicas and broker not in partition.adding]
            done_bytes += size * len(there)
            done_bytes += sum(min(size, (copied or {}).get((*key, broker), 0)) for broker in partition.adding)
    total = plan.copied_bytes
    rate = done_bytes / elapsed_s if done_bytes and elapsed_s > 0 else None
    counts = Counter(str(stand.state) for stand in stands.values())
    return ExecutionProgress(
        partitions=dict(sorted(counts.items())),
        total=len(plan.moves),
        done=counts[MoveState.DONE],
        bytes_total=total,
        bytes_done=done_bytes,
        elapsed_s=elapsed_s,
        rate_bytes_per_s=None if rate is None else round(rate),
        left_s=0.0 if total == done_bytes else (None if rate is None else (total - done_bytes) / rate),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionStatus:
    """Status of a plan's execution.

    Attributes:
        state: running, paused, cancelling, dead (its executor is gone), done, cancelled, stopped, not begun.
        executor: Present executor, if running.
        running: Whether the plan is being executed.
        throttle_bytes_per_s: The rate in force.
        throttles_left: Brokers and topics whose throttle is not restored yet.
        stop: Kind, reason and hint of the end.
        refused: Partitions that Kafka refused, with the reason.
    """

    plan_id: str
    state: str
    executor: str
    running: bool
    began_at_ms: int
    ended_at_ms: int
    batches: int
    progress: ExecutionProgress
    throttle_bytes_per_s: int | None
    throttles_left: tuple[str, ...]
    stop: Mapping[str, str] | None
    refused: Mapping[str, str]
    remarks: tuple[str, ...]


def status_of(place: ExecutionPlace, known: KnownPlan, *, now_ms: int) -> ExecutionStatus:
    """Read the present status of a plan.

    Raises:
        KafkaAdapterError: Kafka is out of reach.
        ExecutionRefusedError: The plan is for another cluster, whose topics are not those of this one.
    """
    plan, past = known.plan, known.recorded
    with open_admin(place.client, timeout_s=place.timeout_s) as admin:
        seen = ClusterPort(admin, plan, {}, timeout_s=place.timeout_s).look(full=True, configs=())
    if seen.cluster_id != plan.cluster_id:
        raise ExecutionRefusedError(
            f"plan {plan.id} is for cluster {plan.cluster_id}, this is {seen.cluster_id}",
            hint="Name a plan of this cluster, or connect to the other cluster with --bootstrap-servers.",
        )
    stands = stands_of(plan, seen.topics)
    running = known.holder is not None and known.holder.plan_id == plan.id
    until_ms = now_ms if running else past.newest_at_ms
    elapsed_s = max(0.0, (until_ms - past.began_at_ms) / 1_000) if past.began_at_ms else 0.0
    return ExecutionStatus(
        plan_id=plan.id,
        state=_state(past.state, past.stop, begun=bool(past.begun), running=running),
        executor="" if known.holder is None or not running else f"{known.holder.executor} on {known.holder.host}",
        running=running,
        began_at_ms=past.began_at_ms,
        ended_at_ms=past.ended_at_ms,
        batches=past.batches,
        progress=progress_of(plan, stands, seen.topics, seen.copied, elapsed_s=elapsed_s),
        throttle_bytes_per_s=past.rate,
        throttles_left=tuple(resource_text(resource) for resource in sorted(past.throttle_before)),
        stop=past.stop,
        refused={named(key): why for key, why in sorted(past.refused.items())},
        remarks=tuple(past.remarks),
    )


def _state(state: str, stop: Mapping[str, str] | None, *, begun: bool, running: bool) -> str:
    if running:
        return state if state in {ExecutionEvent.PAUSED, ExecutionEvent.CANCELLING} else "running"
    if not begun:
        return "not begun"
    if state == ExecutionEvent.ENDED and stop is not None:
        return stop["kind"] if stop["kind"] in {"done", "cancelled"} else "stopped"
    return "dead"


WAVES_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionWave:
    """Partitions that may be in flight together; when one finishes, the next starts."""

    partitions: int
    copied_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """Result of a dry run.

    Attributes:
        plan_id: Id of the plan.
        open_count: Partitions that are not done yet.
        copied_bytes: Bytes still to copy.
        waves: Batches, as if each finished as a whole.
        estimate: Estimate of the duration.
        findings: Findings of the checks.
    """

    plan_id: str
    open_count: int
    copied_bytes: int
    waves: tuple[ExecutionWave, ...]
    estimate: Estimate
    findings: tuple[ExecutionFinding, ...]


def dry_run(place: ExecutionPlace, plan: ReassignmentPlan, *, accept_unmet: bool) -> DryRun:
    """Compute what an execution would do, from the present cluster.

    Raises:
        KafkaAdapterError: Kafka is out of reach.
    """
    layout = _present_layout(place, plan)
    pace = place.settings.pace
    steps = _steps(plan, layout, pace)
    going = {step.key for step in steps}
    return DryRun(
        plan_id=plan.id,
        open_count=len(steps),
        copied_bytes=sum(step.size_bytes for step in steps),
        waves=waves(steps, pace),
        estimate=estimate((move for move in plan.moves if move.key in going), place.settings),
        findings=tuple(findings(plan, layout, begun=False, accept_unmet=accept_unmet)),
    )


def _present_layout(place: ExecutionPlace, plan: ReassignmentPlan) -> ClusterLayout:
    with open_admin(place.client, timeout_s=place.timeout_s) as admin:
        return settled_layout(admin, plan, timeout_s=place.timeout_s, settle_s=place.settings.pace.settle_s)


def _steps(plan: ReassignmentPlan, layout: ClusterLayout, pace: PaceSettings) -> list[PartitionStep]:
    """Steps of all partitions that are not done yet, each with all bytes of its move."""
    stands = stands_of(plan, layout.topics)
    steps = []
    for number, move in enumerate(plan.moves):
        if stands[move.key].state in {MoveState.DONE, *LOST}:
            continue
        partition = layout.topics[move.topic].partitions[move.partition]
        step = step_of(move, partition, one_replica=pace.one_replica, number=number)
        missing = set(move.after) - set(partition.replicas)
        steps.append(replace(step, size_bytes=(move.size_bytes or 0) * len(missing)))
    return steps


def waves(steps: list[PartitionStep], pace: PaceSettings) -> tuple[ExecutionWave, ...]:
    """Batches of partitions that the pace allows together, until none is left."""
    left = in_order(steps, pace.order)
    result: list[ExecutionWave] = []
    while left and len(result) < WAVES_MAX:
        now = choose(left, InFlight(), pace)
        gone = {step.key for step in now}
        left = [step for step in left if step.key not in gone]
        result.append(ExecutionWave(partitions=len(now), copied_bytes=sum(step.size_bytes for step in now)))
    return tuple(result)


def reverse(plan: ReassignmentPlan, layout: ClusterLayout, *, made_at_ms: int) -> ReassignmentPlan:
    """Plan that moves each partition of `plan` back to its former replicas, in their former order.

    Partitions that others have changed since then stay, with a remark. The first replica becomes leader again.

    Raises:
        ExecutionRefusedError: The plan is for another cluster, or partitions are in flight.
    """
    if layout.cluster_id != plan.cluster_id:
        raise ExecutionRefusedError(
            f"the plan was for cluster {plan.cluster_id}, this is {layout.cluster_id}",
            hint="Check --bootstrap-servers.",
        )
    moves: list[PartitionMove] = []
    remarks: list[str] = []
    stands = stands_of(plan, layout.topics)
    for move in plan.moves:
        stand = stands[move.key]
        if stand.state is MoveState.MOVING:
            raise ExecutionRefusedError(
                f"{named(move.key)} is still in flight",
                hint="Wait for its end, or revert it with `statechannel partitions cancel`.",
            )
        if stand.state in LOST:
            remarks.append(f"stays as it is: {stand.reason}")
            continue
        now = layout.topics[move.topic].partitions[move.partition]
        leader = move.before[0]
        if now.replicas == move.before and now.leader == leader:
            continue
        moves.append(
            replace(
                move,
                before=now.replicas,
                after=move.before,
                leader_before=now.leader,
                leader_after=leader,
                goals=("rollback",),
            )
        )
    fingerprint = layout.fingerprint()
    digest = hashlib.sha256(f"rollback {plan.id} {fingerprint}".encode())
    for move in moves:
        digest.update(f"{move.topic} {move.partition} {move.before} {move.after}\n".encode())
    return ReassignmentPlan(
        id=digest.hexdigest()[:16],
        cluster_id=plan.cluster_id,
        layout=fingerprint,
        topic_ids={name: plan.topic_ids.get(name, "") for name in sorted({move.topic for move in moves})},
        made_at_ms=made_at_ms,
        request={"mode": "rollback", "of": plan.id},
        moves=tuple(moves),
        remarks=tuple(remarks),
    )


def way_back(place: ExecutionPlace, plan: ReassignmentPlan) -> ReassignmentPlan:
    """See `reverse`, for a live cluster."""
    layout = _present_layout(place, plan)
    return reverse(plan, layout, made_at_ms=layout.read_at_ms)
