"""Status of a plan's execution, from journal, topic and cluster together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loaddata.samples.admin import open_admin
from shedders.kafka_rebalance.errors import ExecutionRefusedError
from shedders.kafka_rebalance.execution.cluster_port import ClusterPort
from shedders.kafka_rebalance.execution.events import ENDED, PAUSED, resource_text
from shedders.kafka_rebalance.execution.move_states import MoveState, stand_of
from shedders.kafka_rebalance.execution.values import named

if TYPE_CHECKING:
    from loaddata.samples.layout import KafkaTopic
    from shedders.kafka_rebalance.execution.move_states import MoveStatus
    from shedders.kafka_rebalance.execution.session import ExecutionPlace, KnownPlan
    from shedders.kafka_rebalance.execution.values import Key
    from shedders.kafka_rebalance.planning.plan import ReassignmentPlan


_ARRIVED = frozenset({MoveState.DONE, MoveState.ELECT, MoveState.REORDER})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionProgress:
    """See the module.

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

    def fields(self) -> dict[str, Any]:
        """Fields for JSON."""
        return {name: getattr(self, name) for name in self.__slots__} | {"partitions": dict(self.partitions)}


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
        key = (move.topic, move.partition)
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
    """See the module.

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

    def fields(self) -> dict[str, Any]:
        """Fields for JSON."""
        return {name: getattr(self, name) for name in self.__slots__} | {
            "progress": self.progress.fields(),
            "throttles_left": list(self.throttles_left),
            "remarks": list(self.remarks),
        }


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
    stands = {
        (move.topic, move.partition): stand_of(move, seen.topics.get(move.topic), plan.topic_ids.get(move.topic, ""))
        for move in plan.moves
    }
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
        return "paused" if state == PAUSED else "cancelling" if state == "cancelling" else "running"
    if not begun:
        return "not begun"
    if state == ENDED and stop is not None:
        return stop["kind"] if stop["kind"] in {"done", "cancelled"} else "stopped"
    return "dead"
