"""Dry run of a plan: batches, bytes, duration and findings of the checks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from loaddata.samples.admin import open_admin
from shedders.kafka_rebalance.execution.batches import InFlight, PartitionStep, choose, concerned, in_order
from shedders.kafka_rebalance.execution.checks import ExecutionFinding, findings, settled_layout
from shedders.kafka_rebalance.execution.move_states import LOST, MoveState, next_target, stand_of
from shedders.kafka_rebalance.execution.session import ExecutionPlace
from shedders.kafka_rebalance.planning.estimate import Estimate, estimate

if TYPE_CHECKING:
    from loaddata.samples.layout import ClusterLayout
    from shedders.kafka_rebalance.planning.plan import ReassignmentPlan
    from shedders.kafka_rebalance.settings import PaceSettings

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

    def fields(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def dry_run(place: ExecutionPlace, plan: ReassignmentPlan, *, accept_unmet: bool) -> DryRun:
    """Compute what an execution would do, from the present cluster.

    Raises:
        KafkaAdapterError: Kafka is out of reach.
    """
    with open_admin(place.client, timeout_s=place.timeout_s) as admin:
        layout = settled_layout(admin, plan, timeout_s=place.timeout_s, settle_s=place.settings.pace.settle_s)
    pace = place.settings.pace
    steps = _steps(plan, layout, pace)
    going = {step.key for step in steps}
    return DryRun(
        plan_id=plan.id,
        open_count=len(steps),
        copied_bytes=sum(step.size_bytes for step in steps),
        waves=waves(steps, pace),
        estimate=estimate((move for move in plan.moves if (move.topic, move.partition) in going), place.settings),
        findings=tuple(findings(plan, layout, begun=False, accept_unmet=accept_unmet)),
    )


def _steps(plan: ReassignmentPlan, layout: ClusterLayout, pace: PaceSettings) -> list[PartitionStep]:
    steps = []
    for number, move in enumerate(plan.moves):
        topic = layout.topics.get(move.topic)
        stand = stand_of(move, topic, plan.topic_ids.get(move.topic, ""))
        if topic is None or stand.state in LOST or stand.state is MoveState.DONE:
            continue
        partition = topic.partitions[move.partition]
        target = next_target(move, partition.replicas, one_replica=pace.one_replica)
        steps.append(
            PartitionStep(
                key=(move.topic, move.partition),
                target=target,
                brokers=concerned(partition.leader, partition.replicas, target),
                size_bytes=(move.size_bytes or 0) * len(set(move.after) - set(partition.replicas)),
                under_replicated=len(partition.isr) < len(partition.replicas),
                number=number,
            )
        )
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
