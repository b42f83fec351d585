"""What brokers hold before and after a reassignment, reckoned by hand."""

from loaddata.samples.partitions import (
    ClusterLayout,
    KafkaBroker,
    KafkaPartition,
    KafkaTopic,
    PartitionLoad,
    PartitionLoads,
)
from shedders.kafka_rebalance.planning.plan import BrokerFigures
from shedders.kafka_rebalance.planning.planner import broker_changes
from tests.unit.partitions.plans import move

LAYOUT = ClusterLayout(
    cluster_id="lab",
    brokers=tuple(KafkaBroker(id=item, rack="r") for item in (1, 2, 3)),
    topics={
        "t": KafkaTopic(
            name="t",
            partitions=(
                KafkaPartition(partition=0, replicas=(1, 2), leader=1),
                KafkaPartition(partition=1, replicas=(2, 1), leader=1),
                KafkaPartition(partition=2, replicas=(2,), leader=2),
            ),
        )
    },
)
LOADS = PartitionLoads(
    of={
        ("t", 0): PartitionLoad(disk_bytes=100, bytes_in_per_s=10, bytes_out_per_s=20, cpu_units=300_001),
        ("t", 1): PartitionLoad(disk_bytes=7, bytes_in_per_s=1),
    }
)


def test_by_hand() -> None:
    result, two, three = broker_changes(LAYOUT, LOADS, [move("t", 0, (1, 2), (3, 2), 100)])
    # 1 leads both of its partitions; 2 follows 0 (CPU 300001 // 3 = 100000) and 1, and leads 2, of which nothing is known.
    assert result.before == BrokerFigures(
        replicas=2, leaders=2, disk_bytes=107, bytes_in_per_s=11, bytes_out_per_s=20, cpu=0.300001
    )
    assert two.before == BrokerFigures(
        replicas=3, leaders=1, disk_bytes=107, bytes_in_per_s=0, bytes_out_per_s=0, cpu=0.1
    )
    assert three.before == BrokerFigures(
        replicas=0, leaders=0, disk_bytes=0, bytes_in_per_s=0, bytes_out_per_s=0, cpu=0.0
    )
    assert result.after == BrokerFigures(
        replicas=1, leaders=1, disk_bytes=7, bytes_in_per_s=1, bytes_out_per_s=0, cpu=0.0
    )
    assert two.after == two.before
    assert three.after == BrokerFigures(
        replicas=1, leaders=1, disk_bytes=100, bytes_in_per_s=10, bytes_out_per_s=20, cpu=0.300001
    )
    assert (result.replicas_out, result.bytes_out, three.replicas_in, three.bytes_in) == (1, 100, 1, 100)
    assert (result.replicas_in, three.replicas_out) == (0, 0)


def test_nothing_is_known_where_no_partition_has_a_load() -> None:
    changes = broker_changes(LAYOUT, PartitionLoads(), ())
    assert {(change.before.disk_bytes, change.before.bytes_in_per_s, change.before.cpu) for change in changes} == {
        (None, None, None)
    }
    assert [change.before == change.after for change in changes] == [True, True, True]
