"""Small Kafka clusters for tests of the planner."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from loaddata.samples.partitions import (
    ClusterLayout,
    KafkaBroker,
    KafkaPartition,
    KafkaTopic,
    PartitionLoad,
    PartitionLoads,
)
from shedders.kafka_rebalance.planning.plan import ReassignmentPlan


def layout(
    brokers: int | Mapping[int, str | None], topics: Mapping[str, Sequence[Sequence[int]]], **leaders: Mapping[int, int]
) -> ClusterLayout:
    """Brokers 1 to n or by id with racks; topics as lists of replicas; leaders are the first ones, or as given by topic."""
    racks = dict.fromkeys(range(1, brokers + 1)) if isinstance(brokers, int) else brokers
    return ClusterLayout(
        cluster_id="test",
        brokers=tuple(KafkaBroker(id=member, rack=rack) for member, rack in sorted(racks.items())),
        topics={
            name: KafkaTopic(
                name=name,
                topic_id=f"id-{name}",
                partitions=tuple(
                    KafkaPartition(
                        partition=number,
                        replicas=tuple(held),
                        leader=leaders.get(name, {}).get(number, held[0] if held else None),
                        isr=tuple(held),
                    )
                    for number, held in enumerate(parts)
                ),
            )
            for name, parts in sorted(topics.items())
        },
    )


def loads(
    disk: Mapping[str, Sequence[int | None]] | None = None,
    bytes_in: Mapping[str, Sequence[int | None]] | None = None,
    bytes_out: Mapping[str, Sequence[int | None]] | None = None,
    cpu: Mapping[str, Sequence[int | None]] | None = None,
) -> PartitionLoads:
    """Loads by topic, a figure for each partition."""
    rates: dict[tuple[str, int], dict[str, int | None]] = {}
    for field, given in (
        ("disk_bytes", disk),
        ("bytes_in_per_s", bytes_in),
        ("bytes_out_per_s", bytes_out),
        ("cpu_units", cpu),
    ):
        for name, values in (given or {}).items():
            for number, value in enumerate(values):
                rates.setdefault((name, number), {})[field] = value
    return PartitionLoads(of={key: PartitionLoad(**values) for key, values in rates.items()})


def carried_out(before: ClusterLayout, plan: ReassignmentPlan) -> ClusterLayout:
    """The cluster when the plan has been carried out: the first replica leads, all are in sync."""
    moves = {(change.topic, change.partition): change for change in plan.moves}
    topics: dict[str, KafkaTopic] = {}
    for name, topic in before.topics.items():
        parts = []
        for part in topic.partitions:
            move = moves.get((name, part.partition))
            after = part
            if move is not None:
                assert move.before == part.replicas
                after = KafkaPartition(
                    partition=part.partition, replicas=move.after, leader=move.after[0], isr=move.after
                )
            parts.append(after)
        topics[name] = KafkaTopic(
            name=name, partitions=tuple(parts), topic_id=topic.topic_id, min_isr=topic.min_isr, internal=topic.internal
        )
    return ClusterLayout(cluster_id=before.cluster_id, brokers=before.brokers, topics=topics)


def random_cluster(seed: int) -> tuple[ClusterLayout, PartitionLoads, int]:
    """An uneven cluster of 2 to 8 brokers, its loads, and how many of its last brokers are empty."""
    dice = random.Random(seed)
    count, racks = dice.randint(2, 8), dice.choice([0, 0, 2, 3, 4])
    names = {
        broker: f"r{dice.randrange(racks)}" if racks and dice.random() > 0.05 else None
        for broker in range(1, count + 1)
    }
    empty = dice.randint(0, max(0, count - 2))
    topics: dict[str, list[list[int]]] = {}
    leaders: dict[str, dict[int, int]] = {}
    of: dict[tuple[str, int], PartitionLoad] = {}
    for number in range(dice.randint(1, 5)):
        name, factor, base = f"t{number}", dice.randint(1, min(3, count - empty)), dice.choice([10, 1_000, 10**9])
        for part in range(dice.randint(1, 12)):
            held = dice.sample(range(1, count - empty + 1), factor)
            topics.setdefault(name, []).append(held)
            leaders.setdefault(name, {})[part] = dice.choice(held)
            of[name, part] = PartitionLoad(
                disk_bytes=int(base * dice.paretovariate(1.2)) if dice.random() > 0.05 else None,
                bytes_in_per_s=dice.randint(0, 1_000),
                bytes_out_per_s=dice.randint(0, 3_000),
                cpu_units=dice.randint(0, 5_000),
            )
    return layout(names, topics, **leaders), PartitionLoads(of=of), empty
