"""Topics with brokers: all replicas of the topics go to these brokers, and everything else stays."""

import pytest

from shedders.kafka_rebalance.errors import RequestRefusedError
from shedders.kafka_rebalance.planning.planner import plan_partitions
from shedders.kafka_rebalance.planning.request import BrokerCapacity, Capacities, GoalChoice, PlanRequest
from tests.support.clusters import layout, loads
from tests.twin.partition_state import layout_after

RACKS = {1: "a", 2: "b", 3: "c", 4: "a", 5: "b", 6: "c"}
PLACED = {"x": [[1, 2, 3], [2, 3, 4], [3, 4, 5]], "y": [[1, 2, 3]] * 4}


def test_the_topic_lives_on_the_chosen_brokers_and_others_stay() -> None:
    cluster, load = layout(RACKS, PLACED), loads({"x": [10, 20, 30], "y": [5] * 4})
    request = PlanRequest(topics=("x",), brokers=(4, 5, 6))
    plan = plan_partitions(cluster, load, request)
    assert {move.topic for move in plan.moves} == {"x"}
    assert [sorted(move.after) for move in plan.moves] == [[4, 5, 6]] * 3
    assert plan.copied_bytes == 3 * 10 + 2 * 20 + 1 * 30, "what is there already is not copied"
    assert not plan.infeasible
    assert not plan_partitions(layout_after(cluster, plan), load, request).moves


def test_racks_that_the_chosen_brokers_do_not_have_are_a_refusal() -> None:
    with pytest.raises(
        RequestRefusedError, match=r"in 2 racks: 2 of 3 replicas would share one, and .* allow 1"
    ) as caught:
        plan_partitions(layout(RACKS, PLACED), loads(), PlanRequest(topics=("x",), brokers=(1, 4, 5)))
    assert "more racks" in caught.value.hint
    without = PlanRequest(topics=("x",), brokers=(1, 4, 5), goals=(GoalChoice(name="replicas"),))
    plan = plan_partitions(layout(RACKS, PLACED), loads(), without)
    assert {broker for move in plan.moves for broker in move.after} == {1, 4, 5}


def test_fewer_brokers_than_replicas_are_a_refusal() -> None:
    with pytest.raises(RequestRefusedError, match="2 usable brokers, but x-0 has 3 replicas"):
        plan_partitions(layout(RACKS, PLACED), loads(), PlanRequest(topics=("x",), brokers=(4, 5)))


def test_disks_that_cannot_hold_the_topic_are_a_refusal() -> None:
    capacities = Capacities(default=BrokerCapacity(disk_bytes=50))
    request = PlanRequest(topics=("x",), brokers=(4, 5, 6), capacities=capacities)
    with pytest.raises(
        RequestRefusedError,
        match="disk-capacity: with these topics brokers 4, 5, 6 would carry 180 B, more than the 120 B",
    ):
        plan_partitions(layout(RACKS, PLACED), loads({"x": [10, 20, 30], "y": [5] * 4}), request)


def test_one_broker_that_is_too_small_is_a_refusal() -> None:
    capacities = Capacities(of={4: BrokerCapacity(disk_bytes=10), 5: BrokerCapacity(disk_bytes=1_000)})
    cluster = layout(6, {"x": [[1, 2]], "y": [[4, 5]]})
    request = PlanRequest(topics=("x",), brokers=(4, 5), capacities=capacities)
    with pytest.raises(RequestRefusedError, match="with these topics broker 4 would carry 31 B, more than the 8 B"):
        plan_partitions(cluster, loads({"x": [30], "y": [1]}), request)


def test_a_replica_that_is_too_large_is_told_by_the_goal() -> None:
    capacities = Capacities(default=BrokerCapacity(disk_bytes=100))
    cluster = layout(6, {"x": [[1], [2]]})
    request = PlanRequest(topics=("x",), brokers=(4, 5), capacities=capacities)
    plan = plan_partitions(cluster, loads({"x": [90, 1]}), request)
    assert [goal.name for goal in plan.infeasible] == ["chosen-brokers"]
    assert "disk-capacity" in plan.infeasible[0].witness
