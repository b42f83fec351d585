"""What an execution has done, what it would do, and the plan that reverts it; nothing is changed here.

The status comes from journal, state topic and cluster together; dry run and rollback from the present cluster.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from loaddata.samples.admin import open_admin
from shedders.kafka_rebalance.errors import ExecutionRefusedError
from shedders.kafka_rebalance.execution.checks import ExecutionFinding, dir_statuses, findings, settled_layout
from shedders.kafka_rebalance.execution.cluster_port import ClusterPort
from shedders.kafka_rebalance.execution.log_dir_moves import LogDirProgress, dir_progress_of, dir_statuses_of
from shedders.kafka_rebalance.execution.moves import (
    LOST,
    InFlight,
    MoveState,
    PartitionStep,
    choose,
    dropped_text,
    gone_reason,
    in_order,
    statuses_of,
    step_of,
)
from shedders.kafka_rebalance.execution.progress import ExecutionProgress, ProgressTimes, progress_of
from shedders.kafka_rebalance.execution.session import ExecutionPlace, written
from shedders.kafka_rebalance.execution.throttle import (
    copies_in_flight,
    needed_settings,
    rates_in_force,
    settings_to_add,
)
from shedders.kafka_rebalance.execution.values import (
    ExecutionEvent,
    ExecutionHistory,
    ReplicaDir,
    named,
    replica_text,
    resource_text,
)
from shedders.kafka_rebalance.planning.estimate import Estimate, estimate
from shedders.kafka_rebalance.planning.plan import LogDirMove, PartitionMove, ReassignmentPlan

if TYPE_CHECKING:
    from loaddata.samples.partitions import ClusterLayout
    from shedders.kafka_rebalance.execution.moves import MoveStatus
    from shedders.kafka_rebalance.execution.session import KnownPlan
    from shedders.kafka_rebalance.execution.values import Key, ReplicaKey
    from shedders.kafka_rebalance.settings import PaceSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionStatus:
    """Status of a plan's execution.

    Attributes:
        state: running, paused, cancelling, dead (its executor is gone), done, cancelled, stopped, not begun.
        last_executor: Newest executor, running or not.
        undriven_since_ms: Last sign of life of the last executor, where none is left and the plan is not done; else None.
        unsent: Partitions that no executor will start then.
        log_dirs: Moves between log directories, which `progress` counts by bytes only.
        throttle_bytes_per_s: Highest rate that Kafka has on a broker that the plan throttles; None: one of them has none.
        throttles: Rate that Kafka has on each of them; None: none.
        unlisted: Topics with copies in flight that their lists of throttled replicas lack.
        throttles_left: Brokers and topics whose throttle is not restored yet.
        next_step: What an operator has to do, as a sentence; empty: nothing.
    """

    plan_id: str
    state: str
    executor: str
    last_executor: str
    running: bool
    began_at_ms: int
    ended_at_ms: int
    undriven_since_ms: int | None
    unsent: int
    batches: int
    progress: ExecutionProgress
    log_dirs: LogDirProgress
    throttle_bytes_per_s: int | None
    throttles: Mapping[str, int | None]
    unlisted: tuple[str, ...]
    throttles_left: tuple[str, ...]
    stop: Mapping[str, str] | None
    next_step: str
    refused: Mapping[str, str]
    remarks: tuple[str, ...]


def status_of(place: ExecutionPlace, known: KnownPlan, *, now_ms: int) -> ExecutionStatus:
    plan, past = known.plan, known.recorded
    with open_admin(place.client, timeout_s=place.timeout_s) as admin:
        configs = tuple(sorted(past.throttle_before))
        seen = ClusterPort(admin, plan, {}, timeout_s=place.timeout_s).observe(full=True, configs=configs)
    if seen.cluster_id != plan.cluster_id:
        raise ExecutionRefusedError(
            f"plan {plan.id} is for cluster {plan.cluster_id}, this is {seen.cluster_id}",
            hint="Name a plan of this cluster, or connect to the other cluster with --bootstrap-servers.",
        )
    statuses = statuses_of(plan, seen.topics, past.moved)
    running = known.holder is not None and known.holder.plan_id == plan.id
    state = _state(past.state, past.stop, begun=bool(past.begun), running=running)
    present = seen.dirs or {}
    dirs = dir_progress_of(plan, dir_statuses_of(plan, seen.topics, present, statuses, past.dirs_moved), present)
    moving = [key for key, status in statuses.items() if status.state is MoveState.MOVING]
    rates = rates_in_force(past.throttle_before, seen.configs or {})
    throttle = None if None in rates.values() else max((rate or 0 for rate in rates.values()), default=0) or None
    needed = needed_settings(past.rate, copies_in_flight(seen, moving), frozenset()) if past.rate else {}
    lists = settings_to_add(needed, seen.configs or {})
    progress = progress_of(
        plan,
        statuses,
        seen.topics,
        seen.copied,
        ProgressTimes(
            now_ms=now_ms,
            elapsed_s=_elapsed_s(past, now_ms=now_ms, goes_on=bool(moving or dirs.in_flight) or state in _UNDER_WAY),
            marks=past.marks,
            first=past.first_mark,
            pace=_pace_of(place.settings.pace, past, throttle),
            driven=state == "running",
            outpaced=frozenset(past.outpaced),
        ),
        dirs,
    )
    abandoned = state in _ABANDONED
    return ExecutionStatus(
        plan_id=plan.id,
        state=state,
        executor="" if known.holder is None or not running else f"{known.holder.executor} on {known.holder.host}",
        last_executor=past.executor,
        running=running,
        began_at_ms=past.began_at_ms,
        ended_at_ms=past.ended_at_ms,
        undriven_since_ms=max(past.newest_at_ms, known.seen_at_ms) if abandoned else None,
        unsent=progress.unsent + dirs.waiting if abandoned else 0,
        batches=past.batches,
        progress=progress,
        log_dirs=dirs,
        throttle_bytes_per_s=throttle,
        throttles={str(broker): bytes_per_s for broker, bytes_per_s in rates.items()},
        unlisted=tuple(sorted(name for _, name in lists)),
        throttles_left=tuple(resource_text(resource) for resource in sorted(past.throttle_before)),
        stop=past.stop,
        next_step=_next_step(plan, state, past.stop),
        refused={named(key): why for key, why in sorted(past.refused.items())},
        remarks=tuple(past.remarks),
    )


_UNDER_WAY = frozenset({"running", "paused", "cancelling", "dead"})
_ABANDONED = frozenset({"dead", "stopped"})


def _elapsed_s(past: ExecutionHistory, *, now_ms: int, goes_on: bool) -> float:
    """Time since the first start, to the end; Kafka goes on with what is in flight without an executor."""
    if not past.began_at_ms:
        return 0.0
    until_ms = past.done_at_ms or (now_ms if goes_on else past.ended_at_ms or past.newest_at_ms)
    return max(0.0, (until_ms - past.began_at_ms) / 1_000)


def _pace_of(pace: PaceSettings, past: ExecutionHistory, throttle: int | None) -> PaceSettings:
    """The pace with which the plan is executed: as the journal has it, with the throttle in force."""
    kept = {name: value for name, value in past.pace.items() if name in type(pace).model_fields}
    with suppress(ValueError):  # written by another version
        pace = pace.model_validate(pace.model_dump() | kept)
    return pace.model_copy(update={"throttle_bytes_per_s": throttle})


def _next_step(plan: ReassignmentPlan, state: str, stop: Mapping[str, str] | None) -> str:
    if state == "dead":
        return (
            f"Run `statechannel partitions resume {plan.id}`, here or on another host: it starts what waits and restores "
            f"throttles. `cancel {plan.id}` reverts moves in flight instead."
        )
    if state == "not begun":
        return "Start it with `statechannel partitions apply PLAN --execute`."
    if state == "paused":
        return f"`statechannel partitions resume {plan.id}` continues."
    return "" if stop is None else stop["hint"]


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
        open_count: Partitions that are not done yet.
        copied_bytes: Bytes still to copy between brokers.
        dirs_open: Replicas that are not in their planned log directories yet.
        dir_bytes: Bytes still to copy between log directories.
        waves: Batches, as if each finished as a whole.
    """

    plan_id: str
    open_count: int
    copied_bytes: int
    dirs_open: int
    dir_bytes: int
    waves: tuple[ExecutionWave, ...]
    estimate: Estimate
    findings: tuple[ExecutionFinding, ...]


def dry_run(place: ExecutionPlace, plan: ReassignmentPlan, past: ExecutionHistory, *, accept_unmet: bool) -> DryRun:
    layout = _present_layout(place, plan, past)
    pace = place.settings.pace
    steps = _steps(plan, layout, pace)
    going = {step.key for step in steps}
    there = dir_statuses(plan, layout, past, statuses_of(plan, layout.topics, past.moved))
    dirs = [move for move in plan.dir_moves if there[move.key].state not in {MoveState.DONE, *LOST}]
    return DryRun(
        plan_id=plan.id,
        open_count=len(steps),
        copied_bytes=sum(step.size_bytes for step in steps),
        dirs_open=len(dirs),
        dir_bytes=sum(move.copied_bytes for move in dirs),
        waves=waves(steps, pace),
        estimate=estimate((move for move in plan.moves if move.key in going), place.settings, dirs),
        findings=tuple(
            findings(plan, layout, past, begun=False, accept_unmet=accept_unmet, pace=pace, loads=written(place))
        ),
    )


def _present_layout(place: ExecutionPlace, plan: ReassignmentPlan, past: ExecutionHistory) -> ClusterLayout:
    with open_admin(place.client, timeout_s=place.timeout_s) as admin:
        return settled_layout(admin, plan, past, timeout_s=place.timeout_s, settle_s=place.settings.pace.settle_s)


def _steps(plan: ReassignmentPlan, layout: ClusterLayout, pace: PaceSettings) -> list[PartitionStep]:
    """Steps of all partitions that are not done yet, each with all bytes of its move."""
    statuses = statuses_of(plan, layout.topics)
    steps = []
    for number, move in enumerate(plan.moves):
        if statuses[move.key].state in {MoveState.DONE, *LOST}:
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


def reverse(
    plan: ReassignmentPlan,
    layout: ClusterLayout,
    *,
    made_at_ms: int,
    dirs: Mapping[ReplicaKey, ReplicaDir] = MappingProxyType({}),
) -> ReassignmentPlan:
    """Plan that moves each partition of `plan` back to its former replicas, in their former order, and their directories.

    Partitions that others have changed since then stay, with a remark. The first replica becomes leader again.
    """
    if layout.cluster_id != plan.cluster_id:
        raise ExecutionRefusedError(
            f"the plan was for cluster {plan.cluster_id}, this is {layout.cluster_id}",
            hint="Check --bootstrap-servers.",
        )
    moves: list[PartitionMove] = []
    statuses = statuses_of(plan, layout.topics)
    lost = [status for status in statuses.values() if status.state in LOST]
    for move in plan.moves:
        status = statuses[move.key]
        if status.state is MoveState.MOVING:
            raise ExecutionRefusedError(
                f"{named(move.key)} is still in flight",
                hint="Wait for its end, or revert it with `statechannel partitions cancel`.",
            )
        if status.state in LOST:
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
    dir_moves = _dirs_back(plan, layout, statuses, dirs)
    fingerprint = layout.fingerprint()
    digest = hashlib.sha256(f"rollback {plan.id} {fingerprint}".encode())
    for move in moves:
        digest.update(f"{move.topic} {move.partition} {move.before} {move.after}\n".encode())
    for back in dir_moves:
        digest.update(f"{back.key} {back.before} {back.after}\n".encode())
    topics = {move.topic for move in moves} | {back.topic for back in dir_moves}
    return ReassignmentPlan(
        id=digest.hexdigest()[:16],
        cluster_id=plan.cluster_id,
        layout=fingerprint,
        topic_ids={name: plan.topic_ids.get(name, "") for name in sorted(topics)},
        made_at_ms=made_at_ms,
        request={"mode": "rollback", "of": plan.id},
        moves=tuple(moves),
        dir_moves=dir_moves,
        remarks=(dropped_text(lost),) if lost else (),
    )


def _dirs_back(
    plan: ReassignmentPlan,
    layout: ClusterLayout,
    statuses: Mapping[Key, MoveStatus],
    dirs: Mapping[ReplicaKey, ReplicaDir],
) -> tuple[LogDirMove, ...]:
    """Moves of replicas that have arrived in their planned directories, back to the former ones."""
    former = {move.key: move.before for move in plan.moves}
    result = []
    for move in plan.dir_moves:
        now, key = dirs.get(move.key, ReplicaDir()), (move.topic, move.partition)
        if now.future_path:
            raise ExecutionRefusedError(
                f"{replica_text(move.key)} is still in flight to {now.future_path}",
                hint="Wait for its end, or revert it with `statechannel partitions cancel`.",
            )
        status, topic = statuses.get(key), layout.topics.get(move.topic)
        gone = gone_reason(topic, key, plan.topic_ids.get(move.topic, "")) or (status and status.state in LOST)
        if move.before is None or now.path != move.after or gone:
            continue
        replicas = former.get(key) or layout.topics[move.topic].partitions[move.partition].replicas
        if move.broker in replicas:
            result.append(replace(move, before=move.after, after=move.before, replicas=replicas))
    return tuple(result)


def way_back(place: ExecutionPlace, plan: ReassignmentPlan) -> ReassignmentPlan:
    """See `reverse`, for a live cluster."""
    layout = _present_layout(place, plan, ExecutionHistory())
    dirs: Mapping[ReplicaKey, ReplicaDir] = {}
    if plan.dir_moves:
        with open_admin(place.client, timeout_s=place.timeout_s) as admin:
            dirs = ClusterPort(admin, plan, {}, timeout_s=place.timeout_s).observe(full=True, configs=()).dirs or {}
    return reverse(plan, layout, made_at_ms=layout.read_at_ms, dirs=dirs)
