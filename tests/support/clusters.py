"""Small Kafka clusters for tests of the planner."""

from collections.abc import Mapping, Sequence

from loaddata.samples.partitions import (
    ClusterLayout,
    KafkaBroker,
    KafkaPartition,
    KafkaTopic,
    PartitionLoad,
    PartitionLoads,
)


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
