"""Whatever the cluster: planning ends, twice gives the same, and again from the end gives nothing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shedders.kafka_rebalance.planning.plan import ReassignmentPlan
from shedders.kafka_rebalance.planning.planner import plan_partitions
from shedders.kafka_rebalance.planning.request import PlanMode, PlanRequest
from tests.support.clusters import carried_out, random_cluster

seeds = st.integers(0, 2**32)


def asked(mode: PlanMode, brokers: list[int], empty: int) -> PlanRequest | None:
    if mode is PlanMode.ADD_BROKERS:
        return PlanRequest(mode=mode, subjects=tuple(brokers[-empty:])) if empty else None
    if mode in {PlanMode.REMOVE_BROKERS, PlanMode.DEMOTE}:
        return PlanRequest(mode=mode, subjects=(brokers[0],))
    if mode is PlanMode.REPLICATION_FACTOR:
        return PlanRequest(mode=mode, replication_factor=2)
    return PlanRequest(mode=mode)


def check_moves(plan: ReassignmentPlan, mode: PlanMode, request: PlanRequest) -> None:
    for move in plan.moves:
        assert len(set(move.after)) == len(move.after)
        assert move.after[0] == move.leader_after
        assert move.before != move.after or move.leader_before != move.leader_after
        assert move.goals
        if mode is PlanMode.ADD_BROKERS:
            assert set(move.added) <= set(request.subjects)
        if mode is PlanMode.REMOVE_BROKERS:
            assert set(move.removed) <= set(request.subjects)
        if mode is PlanMode.DEMOTE:
            assert not move.added
        if mode is not PlanMode.REPLICATION_FACTOR:
            assert len(move.after) == len(move.before)


@pytest.mark.parametrize("mode", [mode for mode in PlanMode if mode is not PlanMode.REMOVE_LOG_DIRS])
@given(seed=seeds)
@settings(max_examples=10, deadline=None)
def test_a_target_that_is_reached_needs_no_more_moves(mode: PlanMode, seed: int) -> None:
    layout, loads, empty = random_cluster(seed)
    request = asked(mode, [broker.id for broker in layout.brokers], empty)
    if request is None:
        return
    plan = plan_partitions(layout, loads, request)
    assert plan == plan_partitions(layout, loads, request)
    check_moves(plan, mode, request)
    assert not plan_partitions(carried_out(layout, plan), loads, request).moves
