"""Each goal on a small cluster, worked by hand: what moves, what the range is, and what stands against it."""

from dataclasses import replace
from fractions import Fraction

import pytest

from loaddata.samples.partitions import ClusterLayout, PartitionLoads
from shedders.kafka_rebalance.goals.goal import whole_range
from shedders.kafka_rebalance.planning.plan import GoalStatus, ReassignmentPlan
from shedders.kafka_rebalance.planning.planner import plan_partitions
from shedders.kafka_rebalance.planning.request import BrokerCapacity, Capacities, GoalChoice, PlanMode, PlanRequest
from tests.support.clusters import layout, loads
from tests.twin.partition_state import layout_after


def planned(
    cluster: ClusterLayout, load: PartitionLoads, *names: str, share: float | None = None, **more
) -> ReassignmentPlan:
    goals = tuple(GoalChoice(name=name, range_share=share) for name in names)
    return plan_partitions(cluster, load, PlanRequest(goals=goals, **more))


def after(plan: ReassignmentPlan) -> dict[tuple[str, int], tuple[int, ...]]:
    return {(move.topic, move.partition): move.after for move in plan.moves}


@pytest.mark.parametrize(
    ("total", "cells", "share", "bounds"),
    [
        (10, 4, 0.1, (2, 3)),  # mean 2.5: no whole number within a tenth, so those of a fair split
        (12, 4, 0.1, (3, 3)),
        (100, 4, 0.1, (23, 27)),  # 22.5 to 27.5
        (3, 4, 0.5, (0, 1)),
        (0, 4, 0.1, (0, 0)),
        (100, 4, 2.0, (0, 75)),
    ],
)
def test_ranges_are_whole_numbers_and_hold_a_fair_split(total, cells, share, bounds) -> None:
    assert whole_range(total, Fraction(1, cells), share) == bounds


def test_leaders_are_levelled_by_switches() -> None:
    uneven = layout(3, {"a": [[1, 2, 3]] * 8 + [[2, 1, 3]]})
    plan = planned(uneven, loads(), "leaders")
    figures = {broker.id: broker.after.leaders for broker in plan.brokers}
    assert figures == {1: 3, 2: 3, 3: 3}
    assert (len(plan.moves), plan.copied_bytes) == (5, 0)


def test_replicas_are_levelled_by_the_smallest() -> None:
    uneven = layout(3, {"a": [[1]] * 6, "b": [[2]] * 3})
    plan = planned(uneven, loads({"a": [9, 8, 7, 1, 2, 3], "b": [5, 5, 5]}), "replicas")
    assert after(plan) == {("a", 3): (3,), ("a", 4): (3,), ("a", 5): (3,)}
    assert plan.goals[0].status is GoalStatus.MET


def test_bytes_in_switches_the_largest_leaders_first() -> None:
    uneven = layout(2, {"a": [[1, 2]] * 4})
    plan = planned(uneven, loads(bytes_in={"a": [20, 15, 5, 40]}), "bytes-in")  # 80 and 0; range 36 to 44
    assert after(plan) == {("a", 3): (2, 1)}
    assert plan.goals[0].status is GoalStatus.MET


def test_bytes_in_moves_what_copies_least_where_no_follower_can_take_over() -> None:
    uneven = layout(2, {"a": [[1], [1], [1]]})
    load = loads({"a": [100, 10, 1_000]}, bytes_in={"a": [20, 20, 0]})
    plan = planned(uneven, load, "bytes-in")
    assert after(plan) == {("a", 1): (2,)}


def test_bytes_out_counts_clients_only() -> None:
    uneven = layout(2, {"a": [[1, 2], [1, 2]]})
    plan = planned(uneven, loads(bytes_in={"a": [9, 1]}, bytes_out={"a": [30, 30]}), "bytes-out")
    assert [broker.after.bytes_out_per_s for broker in plan.brokers] == [30, 30]


def test_cpu_of_a_follower_is_a_third() -> None:
    uneven = layout(2, {"a": [[1, 2], [1, 2]]})
    plan = planned(uneven, loads(cpu={"a": [300, 300]}), "cpu")
    assert [broker.before.cpu for broker in plan.brokers] == [0.0006, 0.0002]
    assert [broker.after.cpu for broker in plan.brokers] == [0.0004, 0.0004]
    assert plan.copied_bytes == 0


def test_a_limit_of_replicas_moves_the_smallest_off() -> None:
    uneven = layout(3, {"a": [[1]] * 6, "b": [[2], [2], [3]]})
    plan = planned(uneven, loads({"a": [4, 3, 5, 6, 7, 8], "b": [1, 1, 1]}), "replica-capacity", replicas_max=4)
    assert sorted(after(plan)) == [("a", 0), ("a", 1)]
    assert not plan.infeasible


def test_a_limit_that_no_placement_meets_is_told_with_sums() -> None:
    full = layout(2, {"a": [[1], [2]]})
    capacities = Capacities(default=BrokerCapacity(disk_bytes=100))
    plan = planned(full, loads({"a": [90, 95]}), "disk-capacity", capacities=capacities)
    assert plan.goals[0].status is GoalStatus.INFEASIBLE
    assert plan.goals[0].witness == (
        "all brokers together carry 185 B, more than the 160 B that they may; they are levelled around their mean instead"
    )
    assert plan.infeasible


def test_a_replica_that_fits_nowhere_is_named() -> None:
    full = layout(2, {"a": [[1], [2]]})
    capacities = Capacities(default=BrokerCapacity(disk_bytes=100), of={2: BrokerCapacity(disk_bytes=200)})
    plan = planned(full, loads({"a": [90, 100]}), "disk-capacity", capacities=capacities)
    assert not plan.moves
    assert "broker 1 has 90 B, more than 80 B" in plan.goals[0].witness
    assert "the smallest replica that would help (90 bytes) is too large" in plan.goals[0].witness


@pytest.mark.parametrize(("name", "low", "high"), [("network-in-capacity", 90, 10), ("network-out-capacity", 90, 10)])
def test_limits_of_the_network_count_what_followers_fetch(name, low, high) -> None:
    # Each of 1 and 2 takes in 20 for the partition that both hold; who leads it gives out 10 to clients and 20 to the other.
    both = layout(2, {"a": [[1, 2]], "b": [[1]], "c": [[2]]})
    load = loads({"a": [5], "b": [5], "c": [5]}, {"a": [20], "b": [60], "c": [0]}, {"a": [10], "b": [60], "c": [0]})
    capacities = Capacities(default=BrokerCapacity(bytes_in_per_s=100, bytes_out_per_s=100))
    plan = planned(both, load, name, share=0.8, capacities=capacities)
    if name == "network-in-capacity":
        assert plan.goals[0].before.high == 80
        assert not plan.moves
    else:
        assert plan.goals[0].before.high == 60 + 30
        assert after(plan) == {("a", 0): (2, 1)}


def test_disks_of_unequal_size_are_equally_full() -> None:
    uneven = layout(2, {"a": [[1]] * 8})
    capacities = Capacities(of={1: BrokerCapacity(disk_bytes=100), 2: BrokerCapacity(disk_bytes=300)})
    plan = planned(uneven, loads({"a": [10] * 8}), "disk", capacities=capacities)
    assert [broker.after.disk_bytes for broker in plan.brokers] == [20, 60]


def test_a_swap_helps_where_counts_forbid_moves() -> None:
    even = layout(2, {"a": [[1], [1], [2], [2]]})
    plan = planned(even, loads({"a": [50, 40, 10, 20]}), "topic-replicas", "disk")
    assert [broker.after.disk_bytes for broker in plan.brokers] == [60, 60]
    assert [broker.after.replicas for broker in plan.brokers] == [2, 2]


def test_preferred_leaders_lead_or_whoever_leads_is_put_first() -> None:
    switched = layout(2, {"a": [[1, 2], [2, 1]]}, a={0: 2, 1: 1})
    plan = planned(switched, loads(), "preferred-leader")
    assert [(move.after, move.leader_after) for move in plan.moves] == [((1, 2), 1), ((2, 1), 2)]
    kept = planned(layout(2, {"a": [[1, 2], [1, 2]]}, a={0: 2}), loads(), "topic-leaders", "preferred-leader")
    assert [(move.after, move.leader_after) for move in kept.moves] == [((2, 1), 2)]


def test_demoted_brokers_lead_nothing_and_no_data_moves() -> None:
    cluster = layout(3, {"a": [[1, 2], [1, 3], [2, 1], [1]]})
    plan = plan_partitions(cluster, loads(), PlanRequest(mode=PlanMode.DEMOTE, subjects=(1,)))
    assert after(plan) == {("a", 0): (2, 1), ("a", 1): (3, 1)}
    assert [item.name for item in plan.infeasible] == ["demotion"]
    assert "1 partition left, such as a-3 on brokers 1: no other replica may lead" in plan.infeasible[0].witness


def test_offline_replicas_and_nothing_else_get_a_new_place() -> None:
    cluster = layout(4, {"a": [[1, 2], [3, 1], [2, 3]]})
    brokers = tuple(replace(broker, alive=broker.id != 2) for broker in cluster.brokers)
    topic = cluster.topics["a"]
    parts = tuple(
        replace(
            partition,
            offline=(2,) if 2 in partition.replicas else (),
            leader=3 if partition.replicas[0] == 2 else partition.leader,
        )
        for partition in topic.partitions
    )
    broken = replace(cluster, brokers=brokers, topics={"a": replace(topic, partitions=parts)})
    plan = plan_partitions(broken, loads(), PlanRequest(mode=PlanMode.FIX_OFFLINE))
    assert {move.partition: move.removed for move in plan.moves} == {0: (2,), 2: (2,)}
    assert plan.goals[6].name == "offline-replicas"
    assert plan.goals[6].status is GoalStatus.MET
    rest = plan_partitions(broken, loads(), PlanRequest())
    assert not {0, 2} & {move.partition for move in rest.moves}
    assert any("offline replicas" in remark for remark in rest.remarks)


@pytest.mark.parametrize("wanted", [1, 2, 3])
def test_a_replication_factor_is_reached_over_racks(wanted) -> None:
    cluster = layout({1: "x", 2: "x", 3: "y", 4: "z"}, {"a": [[1, 3]], "b": [[1, 2]]})
    plan = plan_partitions(
        cluster, loads(), PlanRequest(mode=PlanMode.REPLICATION_FACTOR, replication_factor=wanted, topics=("a",))
    )
    held = layout_after(cluster, plan).topics["a"].partitions[0].replicas
    assert held == {1: (1,), 2: (1, 3), 3: (1, 3, 4)}[wanted]
    assert {move.topic for move in plan.moves} <= {"a"}


def test_bounds_of_bytes_are_kept_and_told() -> None:
    uneven = layout(2, {"a": [[1]] * 10})
    plan = planned(uneven, loads({"a": [10] * 10}), "disk", bytes_max=25)
    assert plan.copied_bytes == 20
    assert not plan.complete
    assert any("bytes_max 25" in remark for remark in plan.remarks)
    few = planned(uneven, loads({"a": [10] * 10}), "disk", moves_max=1)
    assert len(few.moves) == 1


def test_a_time_budget_gives_the_best_so_far() -> None:
    ticks = iter(range(10_000))
    uneven = layout(4, {"a": [[1]] * 400})
    request = PlanRequest(goals=(GoalChoice(name="topic-replicas"), GoalChoice(name="disk")), time_budget_s=3)
    plan = plan_partitions(uneven, loads({"a": [10] * 400}), request, now_s=lambda: float(next(ticks)))
    assert not plan.complete
    assert plan.goals[-1].status in {GoalStatus.NOT_REACHED, GoalStatus.MET}
    assert any("time budget of 3 s" in remark for remark in plan.remarks)


def test_what_is_excluded_or_in_motion_stays_and_is_told() -> None:
    uneven = layout(2, {"keep": [[1]] * 4, "move": [[1]] * 4})
    plan = planned(uneven, loads({"keep": [10] * 4, "move": [10] * 4}), "disk", excluded_topics=("ke+p",))
    assert {move.topic for move in plan.moves} == {"move"}
    assert "1 of 2" in plan.remarks[0]
