"""How a plan stands: from the journal, the topic and the cluster together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loaddata.partitions.admin import open_admin
from shedders.partitions.errors import ExecutionRefusedError
from shedders.partitions.execution.cluster_port import ClusterPort
from shedders.partitions.execution.events import ENDED, PAUSED, resource_text
from shedders.partitions.execution.progress import Progress, progress_of
from shedders.partitions.execution.seen import named
from shedders.partitions.execution.standing import stand_of

if TYPE_CHECKING:
    from shedders.partitions.execution.session import Known, Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """See the module.

    Attributes:
        state: running, paused, cancelling, dead (its executor is gone), done, cancelled, stopped, not begun.
        executor: Who carries it out, where it is being carried out.
        running: Whether somebody does.
        throttle_bytes_per_s: The rate in force.
        throttles_left: Brokers and topics whose throttle is not put back yet.
        stop: Kind, reason and hint of its end.
        refused: Partitions that Kafka refused, why.
    """

    plan_id: str
    state: str
    executor: str
    running: bool
    began_at_ms: int
    ended_at_ms: int
    batches: int
    progress: Progress
    throttle_bytes_per_s: int | None
    throttles_left: tuple[str, ...]
    stop: Mapping[str, str] | None
    refused: Mapping[str, str]
    remarks: tuple[str, ...]

    def fields(self) -> dict[str, Any]:
        """As JSON has it."""
        return {name: getattr(self, name) for name in self.__slots__} | {
            "progress": self.progress.fields(),
            "throttles_left": list(self.throttles_left),
            "remarks": list(self.remarks),
        }


def status_of(place: Place, known: Known, *, now_ms: int) -> Status:
    """How a plan stands now.

    Raises:
        KafkaAdapterError: Kafka is away.
        ExecutionRefusedError: The plan is for another cluster, whose topics are not those of this one.
    """
    plan, past = known.plan, known.recorded
    with open_admin(place.client, timeout_s=place.timeout_s) as admin:
        seen = ClusterPort(admin, plan, {}, timeout_s=place.timeout_s).look(full=True, configs=())
    if seen.cluster_id != plan.cluster_id:
        raise ExecutionRefusedError(
            f"plan {plan.id} is for cluster {plan.cluster_id}, this is {seen.cluster_id}",
            hint="Name a plan of this cluster, or connect to the other one by --bootstrap-servers.",
        )
    stands = {
        (move.topic, move.partition): stand_of(move, seen.topics.get(move.topic), plan.topic_ids.get(move.topic, ""))
        for move in plan.moves
    }
    running = known.holder is not None and known.holder.plan_id == plan.id
    until_ms = now_ms if running else past.newest_at_ms
    elapsed_s = max(0.0, (until_ms - past.began_at_ms) / 1_000) if past.began_at_ms else 0.0
    return Status(
        plan_id=plan.id,
        state=_state(past.state, past.stop, begun=bool(past.begun), running=running),
        executor="" if known.holder is None or not running else f"{known.holder.executor} on {known.holder.host}",
        running=running,
        began_at_ms=past.began_at_ms,
        ended_at_ms=past.ended_at_ms,
        batches=past.batches,
        progress=progress_of(plan, stands, seen.topics, seen.copied, elapsed_s=elapsed_s),
        throttle_bytes_per_s=past.rate,
        throttles_left=tuple(resource_text(one) for one in sorted(past.throttle_before)),
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
