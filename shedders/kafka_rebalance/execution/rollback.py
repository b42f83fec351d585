"""Rollback: a plan that reverts the moves of another plan, from the present state of the cluster."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from loaddata.samples.admin import open_admin
from shedders.kafka_rebalance.errors import ExecutionRefusedError
from shedders.kafka_rebalance.execution.checks import settled_layout
from shedders.kafka_rebalance.execution.move_states import LOST, MoveState, stand_of
from shedders.kafka_rebalance.execution.session import ExecutionPlace
from shedders.kafka_rebalance.execution.values import named
from shedders.kafka_rebalance.planning.plan import PartitionMove, ReassignmentPlan

if TYPE_CHECKING:
    from loaddata.samples.layout import ClusterLayout


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
    for move in plan.moves:
        key = (move.topic, move.partition)
        stand = stand_of(move, layout.topics.get(move.topic), plan.topic_ids.get(move.topic, ""))
        if stand.state is MoveState.MOVING:
            raise ExecutionRefusedError(
                f"{named(key)} is still in flight",
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
            PartitionMove(
                topic=move.topic,
                partition=move.partition,
                before=now.replicas,
                after=move.before,
                leader_before=now.leader,
                leader_after=leader,
                size_bytes=move.size_bytes,
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
    with open_admin(place.client, timeout_s=place.timeout_s) as admin:
        layout = settled_layout(admin, plan, timeout_s=place.timeout_s, settle_s=place.settings.pace.settle_s)
    return reverse(plan, layout, made_at_ms=layout.read_at_ms)
