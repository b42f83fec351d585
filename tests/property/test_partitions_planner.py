"""Whatever the cluster: planning ends, twice gives the same, and again from the end gives nothing."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shedders.kafka_rebalance.planning import byte_savings, chains
from shedders.kafka_rebalance.planning.planner import plan_partitions
from shedders.kafka_rebalance.planning.request import PlanMode, PlanRequest
from shedders.kafka_rebalance.planning.search import Search
from shedders.kafka_rebalance.planning.virtual_cluster import VirtualCluster
from tests.support.partition_clusters import big_cluster
from tests.support.partition_clusters import random_cluster as small_cluster
from tests.twin.partition_state import layout_after

seeds = st.integers(0, 2**32)


@given(seed=seeds)
@settings(max_examples=10, deadline=None)
def test_a_replication_factor_that_is_reached_needs_no_more_moves(seed: int) -> None:
    """The other modes are checked by `tests.support.partition_cases`."""
    cluster = small_cluster(seed, brokers_max=8)
    # With a larger `min.insync.replicas` the request is refused.
    layout = replace(
        cluster.layout, topics={name: replace(topic, min_isr=1) for name, topic in cluster.layout.topics.items()}
    )
    request = PlanRequest(mode=PlanMode.REPLICATION_FACTOR, replication_factor=2)
    plan = plan_partitions(layout, cluster.loads, request)
    assert plan == plan_partitions(layout, cluster.loads, request)
    for move in plan.moves:
        assert len(set(move.after)) == len(move.after) == 2
        assert move.after[0] == move.leader_after
        assert move.goals
    assert not plan_partitions(layout_after(layout, plan), cluster.loads, request).moves


def forget_everything(patch: pytest.MonkeyPatch) -> None:
    """Let the search compute everything whenever it is needed."""

    following = chains._Finder._next

    def follow(finder: chains._Finder, chain: chains._Chain, *, above: bool) -> object:
        search = finder._search
        search._of_brokers, finder._known, search.dead_ends = {}, {}, {}
        return following(finder, chain, above=above)

    def movable(search: Search, broker: int) -> object:
        held = search.cluster.on_broker(broker)
        return held[search.scope.movable(held, np.full(len(held), broker))]

    def candidates(search: Search, measure: int, broker: int) -> object:
        free = search.movable(broker)
        weight = search.cluster.weight(free, search.cluster.leader[free] == broker, measure)
        return free[weight > 0], weight[weight > 0]

    patch.setattr(Search, "movable", movable)
    patch.setattr(Search, "candidates", candidates)
    patch.setattr(chains._Finder, "_next", follow)
    patch.setattr(byte_savings, "_is_dead", lambda *_: False)
    patch.setattr(
        VirtualCluster, "on_broker", lambda cluster, broker: np.nonzero((cluster.replicas == broker).any(axis=1))[0]
    )


@pytest.mark.parametrize("mode", [PlanMode.REBALANCE, PlanMode.ADD_BROKERS, PlanMode.REMOVE_BROKERS])
@given(seed=seeds)
@settings(max_examples=5, deadline=None)
def test_what_the_search_remembers_changes_no_plan(mode: PlanMode, seed: int) -> None:
    empty = 2 if mode is PlanMode.ADD_BROKERS else 0
    layout, loads = big_cluster(seed, replicas=900, brokers=9, topics=8, empty=empty)
    ids = [broker.id for broker in layout.brokers]
    subjects = {PlanMode.ADD_BROKERS: ids[-empty:], PlanMode.REMOVE_BROKERS: ids[:1]}.get(mode, [])
    request = PlanRequest(mode=mode, subjects=tuple(subjects))
    plan = plan_partitions(layout, loads, request)
    with pytest.MonkeyPatch.context() as patch:
        forget_everything(patch)
        assert plan_partitions(layout, loads, request) == plan


def test_each_goal_begins_without_what_others_remembered() -> None:
    small = small_cluster(5, brokers_max=10)
    request = PlanRequest(mode=PlanMode.ADD_BROKERS, subjects=small.empty)
    plan = plan_partitions(small.layout, small.loads, request)
    with pytest.MonkeyPatch.context() as patch:
        forget_everything(patch)
        assert plan_partitions(small.layout, small.loads, request) == plan
