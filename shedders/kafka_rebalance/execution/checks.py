"""Checks before a plan is started or continued: all reasons to refuse it, and remarks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from loaddata.samples.kafka_cluster import read_layout
from shedders.kafka_rebalance.errors import ExecutionRefusedError
from shedders.kafka_rebalance.execution.log_dir_moves import dir_statuses_of
from shedders.kafka_rebalance.execution.moves import (
    LOST,
    MoveState,
    MoveStatus,
    dropped_text,
    is_taken_over,
    open_ones,
    statuses_of,
    target_of,
    unsafe,
)
from shedders.kafka_rebalance.execution.purpose import cordon_hint
from shedders.kafka_rebalance.execution.values import ReplicaDir, named
from shedders.model.amounts import rate
from statechannel.clocks import now_ms

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

    from loaddata.samples.partitions import ClusterLayout, PartitionLoads
    from shedders.kafka_rebalance.execution.values import ExecutionHistory, Key, ReplicaKey
    from shedders.kafka_rebalance.planning.plan import LogDirMove, PartitionMove, ReassignmentPlan
    from shedders.kafka_rebalance.settings import PaceSettings

SHOWN: Final = 3
_AGAIN_S: Final = 0.5
_AGAIN: Final = "Make a new plan with `statechannel partitions plan`."


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionFinding:
    """Finding of one check. `refused`: the plan may not be started; `hint`: what to do then."""

    check: str
    text: str
    refused: bool = False
    hint: str = ""


def findings(
    plan: ReassignmentPlan,
    layout: ClusterLayout,
    past: ExecutionHistory,
    *,
    begun: bool,
    accept_unmet: bool,
    pace: PaceSettings | None = None,
    loads: PartitionLoads | None = None,
) -> list[ExecutionFinding]:
    """All findings, those that refuse the plan first.

    Args:
        past: What was executed of the plan.
        accept_unmet: Allow a plan that leaves hard goals unmet.
        pace, loads: To find a throttle below what is written; None: not looked at.
    """
    if layout.cluster_id != plan.cluster_id:
        return [_other_cluster(plan, layout)]
    statuses = statuses_of(plan, layout.topics, past.moved)
    dirs = dir_statuses(plan, layout, past, statuses)
    every: dict[Any, MoveStatus] = {**statuses, **dirs}
    lost = {key: status for key, status in every.items() if status.state in LOST}
    open_keys = open_ones(every, lost)
    open_moves = [move for move in plan.moves if move.key in open_keys]
    open_dirs = [move for move in plan.dir_moves if move.key in open_keys]
    results = [
        *_goals(plan, accept_unmet=accept_unmet),
        *_partitions(plan, layout, lost, begun=begun),
        *_brokers(
            [*(broker for move in open_moves for broker in move.after), *(move.broker for move in open_dirs)], layout
        ),
        *_directories(open_dirs, layout),
        *_foreign(plan, layout),
        *_in_sync(open_moves, layout),
        *_cordons(plan, layout),
        *(() if pace is None or loads is None else _written(open_moves, layout, pace, loads)),
    ]
    return sorted(results, key=lambda finding: not finding.refused)


def require_not_refused(results: list[ExecutionFinding]) -> None:
    refused = [finding for finding in results if finding.refused]
    if refused:
        raise ExecutionRefusedError("; ".join(finding.text for finding in refused), hint=refused[0].hint)


def dir_statuses(
    plan: ReassignmentPlan, layout: ClusterLayout, past: ExecutionHistory, statuses: Mapping[Key, MoveStatus]
) -> dict[ReplicaKey, MoveStatus]:
    """See `dir_statuses_of`; where a layout does not have it, the replica is waiting."""
    present = {
        (topic, number, broker.id): ReplicaDir(path=directory.path)
        for broker in layout.brokers
        for directory in broker.log_dirs
        for topic, number, _ in directory.replicas
    }
    there = dir_statuses_of(plan, layout.topics, present, statuses, past.dirs_moved)
    return {move.key: there.get(move.key, MoveStatus(MoveState.WAITING)) for move in plan.dir_moves}


def _directories(moves: Iterable[LogDirMove], layout: ClusterLayout) -> Iterator[ExecutionFinding]:
    """Directories that cannot take what the plan wants there."""
    brokers = {broker.id: broker for broker in layout.brokers if broker.alive}
    unusable: dict[str, int] = {}
    for move in moves:
        broker = brokers.get(move.broker)
        if broker is None:
            continue  # brokers that are away are another check
        target = next((each for each in broker.log_dirs if each.path == move.after), None)
        why = "does not exist" if target is None else "is offline" if target.offline else ""
        if target is not None and target.cordoned:
            why = "is cordoned"
        if why:
            text = f"log directory {move.after} of broker {move.broker} {why}"
            unusable[text] = unusable.get(text, 0) + 1
    for why, number in unusable.items():
        text = f"{why} ({number} replicas are to go there)"
        yield ExecutionFinding(check="log-dirs", text=text, refused=True, hint=_AGAIN)


def _other_cluster(plan: ReassignmentPlan, layout: ClusterLayout) -> ExecutionFinding:
    text = f"the plan is for cluster {plan.cluster_id}, this is {layout.cluster_id}"
    return ExecutionFinding(check="cluster", text=text, refused=True, hint="Check --bootstrap-servers.")


def _goals(plan: ReassignmentPlan, *, accept_unmet: bool) -> Iterator[ExecutionFinding]:
    hint = "Check the plan with `statechannel partitions show`; --accept-unmet executes it anyway."
    for goal in plan.infeasible:
        text = f"hard goal {goal.name} is {goal.status} at the end of the plan"
        text += f": {goal.witness}" if goal.witness else ""
        yield ExecutionFinding(check="goals", text=text, refused=not accept_unmet, hint=hint)


def _partitions(
    plan: ReassignmentPlan, layout: ClusterLayout, lost: Mapping[Key | ReplicaKey, MoveStatus], *, begun: bool
) -> Iterator[ExecutionFinding]:
    if lost:
        text, refused = dropped_text(lost.values()), is_taken_over(plan, lost)
        text = f"the cluster has changed since the plan was made: {text}"
        yield ExecutionFinding(check="layout", text=text, refused=refused, hint=_AGAIN if refused else "")
    elif not begun and layout.fingerprint() != plan.layout:
        text = "partitions outside of the plan have changed since it was made, so its goals may be met less well"
        yield ExecutionFinding(check="layout", text=text)


def _brokers(needed: Iterable[int], layout: ClusterLayout) -> Iterator[ExecutionFinding]:
    away = sorted(set(needed) - {broker.id for broker in layout.brokers if broker.alive})
    if away:
        text = f"brokers that the plan needs are not alive: {', '.join(map(str, away))}"
        yield ExecutionFinding(check="brokers", text=text, refused=True, hint=f"Start them, or: {_AGAIN}")


def _foreign(plan: ReassignmentPlan, layout: ClusterLayout) -> Iterator[ExecutionFinding]:
    planned = {move.key for move in plan.moves}
    foreign = [
        f"{named((topic.name, partition.partition))} to {list(target_of(partition))}"
        for topic, partition in layout.partitions()
        if partition.in_motion and (topic.name, partition.partition) not in planned
    ]
    if foreign:
        text = f"another reassignment is in progress: {'; '.join(foreign[:SHOWN])} ({len(foreign)} partitions)"
        hint = "Wait for its end, or cancel it with the tool that started it."
        yield ExecutionFinding(check="reassignments", text=text, refused=True, hint=hint)


def _in_sync(open_moves: Iterable[PartitionMove], layout: ClusterLayout) -> Iterator[ExecutionFinding]:
    never, later = [], []
    for move in open_moves:
        topic = layout.topics[move.topic]
        partition = topic.partitions[move.partition]
        if len(move.after) < min(topic.min_isr, len(move.before)):
            never.append(f"{named(move.key)} would keep {len(move.after)}, minimum {topic.min_isr}")
        elif not partition.in_motion and (why := unsafe(partition, move.after, topic.min_isr)):
            later.append(f"{named(move.key)}: {why}")
    if never:
        text = f"fewer replicas than min.insync.replicas: {'; '.join(never[:SHOWN])} ({len(never)} partitions)"
        hint = "Lower min.insync.replicas of these topics first, or keep more replicas."
        yield ExecutionFinding(check="min-isr", text=text, refused=True, hint=hint)
    if later:
        text = f"{len(later)} partitions must wait until they are in sync: {'; '.join(later[:SHOWN])}"
        yield ExecutionFinding(check="min-isr", text=text)


def _cordons(plan: ReassignmentPlan, layout: ClusterLayout) -> Iterator[ExecutionFinding]:
    if cordon := cordon_hint(plan, layout):
        text = f"topics may be created meanwhile; where they may not go there, cordon first: {cordon}"
        yield ExecutionFinding(check="cordons", text=text)


def _written(
    open_moves: Iterable[PartitionMove], layout: ClusterLayout, pace: PaceSettings, loads: PartitionLoads
) -> Iterator[ExecutionFinding]:
    """Brokers whose throttle is used up by what clients write, so that copies would never end.

    Kafka counts what in-sync followers fetch of a throttled partition in the quota of its leader (KIP-73).
    """
    bytes_in: dict[int, list[int]] = {}
    for move in open_moves:
        partition, load = layout.topics[move.topic].partitions[move.partition], loads.of.get(move.key)
        if not move.added or load is None or not load.bytes_in_per_s:
            continue
        for broker in move.added:
            bytes_in.setdefault(broker, []).append(load.bytes_in_per_s)
        if partition.leader is not None:
            bytes_in.setdefault(partition.leader, []).append(load.bytes_in_per_s * len(partition.isr))
    for broker, of in sorted(bytes_in.items()):
        least = sum(sorted(of, reverse=True)[: pace.moves_per_broker])
        if pace.throttle_bytes_per_s is not None and least >= pace.throttle_bytes_per_s:
            text = f"on broker {broker}, {rate(least)} are written and replicated of partitions that may move together"
            text += f": with a throttle of {rate(pace.throttle_bytes_per_s)} copies may never end"
            yield ExecutionFinding(check="throttle", text=text, hint="Use a higher --throttle.")


def settled_layout(
    admin: KafkaAdminClient,
    plan: ReassignmentPlan,
    past: ExecutionHistory,
    *,
    timeout_s: float,
    settle_s: float,
    wait: Callable[[float], None] = time.sleep,
) -> ClusterLayout:
    """Read the layout; one in which planned partitions deviate from the plan is read again until that has lasted.

    Brokers learn of a reassignment's end at different times, so one answer may show it and another one not.

    Args:
        settle_s: How long a deviation must last.
    """
    ends_s = time.monotonic() + settle_s
    while True:
        layout = read_layout(admin, now_ms=now_ms(), timeout_s=timeout_s)
        lost = any(status.state in LOST for status in statuses_of(plan, layout.topics, past.moved).values())
        if not lost or layout.cluster_id != plan.cluster_id or time.monotonic() >= ends_s:
            return layout
        wait(_AGAIN_S)
