"""What the autopilot takes from a plan and a layout, and that the planner leaves alone what rests."""

from __future__ import annotations

from dataclasses import replace

from loaddata.samples.partitions import ClusterLayout, KafkaBroker, KafkaPartition, KafkaTopic
from shedders.kafka_rebalance.planning.planner import plan_partitions
from shedders.kafka_rebalance.planning.request import GoalChoice, PlanRequest
from shedders.kafka_rebalance.watch.values import health_of, proposal_of
from tests.support.partition_clusters import random_cluster


def test_health_of_a_layout() -> None:
    parts = (
        KafkaPartition(partition=0, replicas=(1, 2), leader=1, isr=(1, 2)),
        KafkaPartition(partition=1, replicas=(1, 2), leader=1, isr=(1,)),
        KafkaPartition(partition=2, replicas=(3, 1, 2), leader=1, isr=(1, 2), adding=(3,), removing=(2,)),
        KafkaPartition(partition=3, replicas=(4,), leader=None, isr=(4,), offline=(4,)),
    )
    brokers = tuple(KafkaBroker(id=broker, alive=broker != 4) for broker in (1, 2, 3, 4))
    seen = health_of(
        ClusterLayout(cluster_id="c", brokers=brokers, topics={"t": KafkaTopic(name="t", partitions=parts)})
    )
    assert (seen.alive, seen.holders) == ({1, 2, 3}, {1, 2, 3, 4})
    assert seen.under_replicated == (("t", 1), ("t", 3))
    assert seen.reassigning == (("t", 2),)


def test_partitions_that_rest_stay_and_the_plan_says_so() -> None:
    moved = 0
    for seed in range(12):
        cluster = random_cluster(seed, brokers_max=6)
        request = PlanRequest(goals=(GoalChoice(name="replicas"), GoalChoice(name="leaders")))
        plan = plan_partitions(cluster.layout, cluster.loads, request)
        figures = proposal_of(plan)
        assert set(figures.keys) == {move.key for move in plan.moves}
        assert figures.copied_bytes == plan.copied_bytes + plan.dir_bytes
        if not plan.moves:
            continue
        moved += 1
        assert figures.gain_share > 0
        resting = {move.key for move in plan.moves[::2]} | {("no such topic", 0), (plan.moves[0].topic, 10_000)}
        other = plan_partitions(cluster.layout, cluster.loads, request, resting=resting)
        assert not {move.key for move in other.moves} & resting
        assert any("moved recently" in remark for remark in other.remarks)
        everything = {(topic.name, part.partition) for topic, part in cluster.layout.partitions()}
        still = plan_partitions(cluster.layout, cluster.loads, request, resting=everything)
        assert still.empty
        assert proposal_of(still).gain_share == 0
    assert moved > 5


def test_moves_of_unknown_size_are_counted() -> None:
    cluster = random_cluster(3, brokers_max=6)
    plan = plan_partitions(
        cluster.layout, replace(cluster.loads, of={}), PlanRequest(goals=(GoalChoice(name="replicas"),))
    )
    assert proposal_of(plan).unknown_sizes == sum(bool(move.added) for move in plan.moves) > 0
