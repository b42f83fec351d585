"""Leaderships are exchanged, and passed on over other brokers, before anything is copied."""

from shedders.kafka_rebalance.planning.planner import plan_partitions
from shedders.kafka_rebalance.planning.request import GoalChoice, PlanRequest
from tests.support.clusters import layout, loads

BOTH = PlanRequest(goals=(GoalChoice(name="topic-leaders"), GoalChoice(name="bytes-in")))


def test_two_leaderships_are_exchanged() -> None:
    cluster = layout(2, {"t": [[1, 2], [1, 2], [2, 1], [2, 1]]})
    load = loads({"t": [10] * 4}, {"t": [8_000_000, 8_000_000, 1_000_000, 1_000_000]})
    plan = plan_partitions(cluster, load, PlanRequest())
    assert [broker.after.bytes_in_per_s for broker in plan.brokers] == [9_000_000, 9_000_000]
    assert (plan.copied_bytes, len(plan.moves)) == (0, 2)


def test_leaderships_of_a_topic_are_passed_on_over_a_broker_in_the_middle() -> None:
    # 1 leads three, 2 two, 3 one, and no partition of 1 has a replica on 3.
    cluster = layout(3, {"t": [[1, 2], [1, 2], [1, 2], [2, 3], [2, 3], [3, 2]]})
    plan = plan_partitions(cluster, loads({"t": [10] * 6}), PlanRequest(goals=(GoalChoice(name="topic-leaders"),)))
    assert [broker.after.leaders for broker in plan.brokers] == [2, 2, 2]
    assert (plan.copied_bytes, len(plan.moves)) == (0, 2)


def test_bytes_in_goes_round_three_brokers() -> None:
    # Only in a circle: 1 to 2, 2 to 3, 3 to 1; each broker leads two of the topic before and after.
    cluster = layout(3, {"t": [[1, 2], [1], [2, 3], [2], [3, 1], [3]]})
    load = loads({"t": [10] * 6}, {"t": [90, 60, 60, 30, 30, 30]})
    plan = plan_partitions(cluster, load, BOTH)
    assert [broker.after.bytes_in_per_s for broker in plan.brokers] == [90, 120, 90]
    assert plan.copied_bytes == 0
