"""What no plan may do, whatever its goals. That brokers cannot be emptied because a hard goal forbids it has to be said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from loaddata.samples.partitions import ClusterLayout
from shedders.kafka_rebalance.planning.plan import PartitionMove, ReassignmentPlan
from shedders.kafka_rebalance.planning.request import PlanMode, PlanRequest
from tests.twin.partition_measures import most_in_rack, rack_excess
from tests.twin.partition_state import allowed_brokers, free, state_after, state_of, to_empty


def repeats(replicas: tuple[int, ...], rack_of: Mapping[int, str | None]) -> int:
    """Replicas that stand in a rack which another of them is in; whoever has no rack shares it with nobody."""
    counts = Counter(rack_of[one] for one in replicas if rack_of[one] is not None)
    return sum(count - 1 for count in counts.values())


def violations(layout: ClusterLayout, request: PlanRequest, plan: ReassignmentPlan) -> Iterator[str]:
    """What the plan does that no plan may do, whatever its goals."""
    before, after = state_of(layout), state_after(layout, plan)
    allowed, leaving, may = set(allowed_brokers(layout, request)), to_empty(layout, request), free(layout, request)
    rack_of = {one.id: one.rack for one in layout.brokers}
    kept_back = any(one.name == "brokers-leave" for one in plan.infeasible)
    if plan.layout != layout.fingerprint():
        yield "the plan is for another layout"
    keys = [(move.topic, move.partition) for move in plan.moves]
    if keys != sorted(set(keys)):
        yield "moves are not in order, or a partition has two"
    for move in plan.moves:
        key = (move.topic, move.partition)
        if key not in before:
            yield f"{key} does not exist"
            continue
        if key not in may:
            yield f"{key} is to stay, and moves"
        yield from _move_violations(request, move, before[key], allowed)
    for key, (replicas, leader) in after.items():
        was, was_led = before[key]
        kept = request.mode is PlanMode.REPLICATION_FACTOR and key in may
        if len(replicas) != len(was) and not kept:
            yield f"{key} has {len(replicas)} replicas, had {len(was)}"
        if len(set(replicas)) != len(replicas):
            yield f"{key} is twice on a broker: {replicas}"
        if key in may and leaving & set(replicas) and not kept_back:
            yield f"{key} is still on brokers that leave: {replicas}"
        astray = key in may and request.migrates and not set(replicas) <= allowed
        if astray and all(one.name != "chosen-brokers" for one in plan.infeasible):
            yield f"{key} is not on the chosen brokers only: {replicas}"
        if leader is not None and leader not in replicas:
            yield f"{key} is led from outside: {leader}"
        if was_led is not None and leader is None:
            yield f"{key} has lost its leader"
        if replicas == was:
            continue
        if rack_excess(replicas, layout, request) > rack_excess(was, layout, request):
            yield f"{key} has more replicas in one rack than before: {was} to {replicas}"
        if repeats(replicas, rack_of) and not repeats(was, rack_of) and most_in_rack(len(was), layout, request) == 1:
            yield f"{key} was on different racks and is no more: {was} to {replicas}"


def _move_violations(
    request: PlanRequest, move: PartitionMove, was: tuple[tuple[int, ...], int | None], allowed: set[int]
) -> Iterator[str]:
    key = (move.topic, move.partition)
    if (move.before, move.leader_before) != was:
        yield f"{key}: the plan has it at {move.before}, led by {move.leader_before}; it is {was}"
    if (move.after, move.leader_after) == was:
        yield f"{key}: nothing changes"
    if not set(move.added) <= allowed:
        yield f"{key} goes to {move.added}, which is not all allowed"
    if request.mode is PlanMode.ADD_BROKERS and not set(move.added) <= set(request.subjects):
        yield f"{key} goes to {move.added}, which are not all new"
    if request.mode is PlanMode.REMOVE_BROKERS and not set(move.removed) <= set(request.subjects):
        yield f"{key} leaves {move.removed}, which do not all go"
    if request.mode is PlanMode.DEMOTE and move.added:
        yield f"{key}: data moves for a demotion"
