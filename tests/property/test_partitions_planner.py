"""Whatever the cluster: planning ends, twice gives the same, and again from the end gives nothing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shedders.partitions.plan import Plan
from shedders.partitions.planner import plan_partitions
from shedders.partitions.request import Mode, PlanRequest
from tests.support.clusters import carried_out, random_cluster

seeds = st.integers(0, 2**32)


def asked(mode: Mode, brokers: list[int], empty: int) -> PlanRequest | None:
    if mode is Mode.ADD_BROKERS:
        return PlanRequest(mode=mode, subjects=tuple(brokers[-empty:])) if empty else None
    if mode in {Mode.REMOVE_BROKERS, Mode.DEMOTE}:
        return PlanRequest(mode=mode, subjects=(brokers[0],))
    if mode is Mode.REPLICATION_FACTOR:
        return PlanRequest(mode=mode, replication_factor=2)
    return PlanRequest(mode=mode)


def check_moves(plan: Plan, mode: Mode, request: PlanRequest) -> None:
    for move in plan.moves:
        assert len(set(move.after)) == len(move.after)
        assert move.after[0] == move.leader_after
        assert move.before != move.after or move.leader_before != move.leader_after
        assert move.goals
        if mode is Mode.ADD_BROKERS:
            assert set(move.added) <= set(request.subjects)
        if mode is Mode.REMOVE_BROKERS:
            assert set(move.removed) <= set(request.subjects)
        if mode is Mode.DEMOTE:
            assert not move.added
        if mode is not Mode.REPLICATION_FACTOR:
            assert len(move.after) == len(move.before)


@pytest.mark.parametrize("mode", list(Mode))
@given(seed=seeds)
@settings(max_examples=10, deadline=None)
def test_a_target_that_is_reached_needs_no_more_moves(mode: Mode, seed: int) -> None:
    layout, loads, empty = random_cluster(seed)
    request = asked(mode, [one.id for one in layout.brokers], empty)
    if request is None:
        return
    plan = plan_partitions(layout, loads, request)
    assert plan == plan_partitions(layout, loads, request)
    check_moves(plan, mode, request)
    assert not plan_partitions(carried_out(layout, plan), loads, request).moves
