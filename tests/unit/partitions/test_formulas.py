"""The document's formulas, computed by hand."""

from typing import Any

import pytest

from loaddata.samples.formulas import BrokerReading, Hole, cpu_share, per_leader, samples_of, sound
from loaddata.samples.partitions import ClusterLayout, KafkaBroker, KafkaPartition, KafkaTopic, PartitionResource

NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("rate", "leaders", "part"),
    [
        (10_240, 2, 5_120),  # the document's own example: topic A, leaders of 0 and 5 on the node
        (10_240, 1, 10_240),
        (10, 4, 2.5),
        (0, 3, 0),
        (10_240, 0, Hole.ZERO_DENOMINATOR),
        (None, 2, Hole.NOT_TOLD),
        (NAN, 2, Hole.NOT_A_NUMBER),
        (-1, 2, Hole.NEGATIVE),
        (INFINITE, 2, Hole.TOO_LARGE),
        (-INFINITE, 2, Hole.NEGATIVE),
        (Hole.FIRST_LOOK, 2, Hole.FIRST_LOOK),
    ],
)
def test_a_topics_rate_is_divided_evenly_by_its_leaders(rate: Any, leaders: int, part: Any) -> None:
    assert per_leader(rate, leaders) == part


@pytest.mark.parametrize(
    ("cpu", "part", "clients", "replication", "share"),
    [
        (0.6, 100, 100, 0, 0.2),  # 0.6 * 100 / (100 * 3 + 0)
        (0.6, 100, 100, 300, 0.1),  # 0.6 * 100 / (100 * 3 + 300)
        (0.5, 50, 100, 100, 0.0625),  # 0.5 * 50 / 400
        (0.5, 0, 100, 100, 0),
        (0.0, 50, 100, 100, 0),
        (0.5, 0, 0, 100, 0),
        (0.5, 0, 0, 0, Hole.ZERO_DENOMINATOR),
        (1.5, 50, 100, 100, Hole.TOO_LARGE),  # more than all CPUs
        (1.0, 500, 100, 0, Hole.TOO_LARGE),  # the part is larger than the whole: the figures are of different moments
        (-0.1, 50, 100, 100, Hole.NEGATIVE),  # what a JVM tells where it does not know
        (NAN, 50, 100, 100, Hole.NOT_A_NUMBER),
        (0.5, Hole.NOT_TOLD, 100, 100, Hole.NOT_TOLD),
        (0.5, 50, NAN, 100, Hole.NOT_A_NUMBER),
        (0.5, 50, 100, INFINITE, Hole.TOO_LARGE),
        (0.5, 50, 100, Hole.FIRST_LOOK, Hole.FIRST_LOOK),
    ],
)
def test_cpu_share(cpu: Any, part: Any, clients: Any, replication: Any, share: Any) -> None:
    hole = cpu_share(cpu, part, clients, replication)
    assert hole == (share if isinstance(share, Hole) else pytest.approx(share))


def test_sound_takes_what_is_finite_and_not_negative() -> None:
    assert [sound(item) for item in (0, 1.5, 2**53 - 1, 2.0**53, None)] == [
        0,
        1.5,
        2**53 - 1,
        Hole.TOO_LARGE,
        Hole.NOT_TOLD,
    ]


def layout_of(**leaders: list[int | None]) -> ClusterLayout:
    """Topics by name, each with the leader of every partition."""
    return ClusterLayout(
        cluster_id="c",
        brokers=tuple(KafkaBroker(id=number, host=f"host-{number}") for number in (1, 2, 3)),
        topics={
            name: KafkaTopic(
                name=name,
                partitions=tuple(
                    KafkaPartition(partition=number, replicas=(1, 2, 3), leader=leader)
                    for number, leader in enumerate(item)
                ),
            )
            for name, item in sorted(leaders.items())
        },
    )


def test_samples_of_a_minute() -> None:
    """Six partitions of topic a: 0 and 5 are led by 1, 1 and 2 by 2, 3 by a broker that is silent, 4 by nobody."""
    layout = layout_of(a=[1, 2, 2, 3, None, 1], b=[1])
    readings = {
        1: BrokerReading(
            bytes_in=20_480,
            replication_in=0,
            cpu=0.3,
            topic_in={"a": 10_240, "b": 10_240},
            topic_out={"a": 4_096, "b": NAN},
            log_bytes={("a", 0): 100.0, ("a", 5): 200.0, ("b", 0): -1.0, ("a", 3): 9.0},
        ),
        2: BrokerReading(topic_in={"a": 600}, log_bytes={("a", 1): 50.0}),
    }
    taken = samples_of(layout, readings, taken_at_ms=60_000, source="test", silent={3: "refused"})
    assert [
        (sample.topic, sample.partition, sample.broker, sample.host, sample.cluster) for sample in taken.samples
    ] == [
        ("a", 0, 1, "host-1", "c"),
        ("a", 1, 2, "host-2", "c"),
        ("a", 2, 2, "host-2", "c"),
        ("a", 5, 1, "host-1", "c"),
        ("b", 0, 1, "host-1", "c"),
    ]
    figures = [(sample.disk_bytes, sample.bytes_in_per_s, sample.bytes_out_per_s) for sample in taken.samples]
    assert figures == [
        (100, 5_120, 2_048),
        (50, 300, None),
        (None, 300, None),
        (200, 5_120, 2_048),
        (None, 10_240, None),
    ]
    # 0.3 * 5120 / (20480 * 3), and twice that for the topic with one leader
    assert [sample.cpu_share for sample in taken.samples] == [
        pytest.approx(0.025),
        None,
        None,
        pytest.approx(0.025),
        pytest.approx(0.05),
    ]
    assert {(sample.taken_at_ms, sample.source) for sample in taken.samples} == {(60_000, "test")}
    assert taken.silent == {3: "refused"}
    assert taken.holes == {
        ("sample", Hole.BROKER_SILENT): 1,
        ("sample", Hole.NO_LEADER): 1,
        ("disk", Hole.NOT_TOLD): 1,
        ("disk", Hole.NEGATIVE): 1,
        ("bytes-out", Hole.NOT_TOLD): 2,
        ("bytes-out", Hole.NOT_A_NUMBER): 1,
        ("cpu", Hole.NOT_TOLD): 2,
    }


def test_partitions_that_are_measured_one_by_one_and_what_a_source_does_not_offer() -> None:
    readings = {1: BrokerReading(topic_in={"a": 1_000}, partition_in={("a", 0): 7.0, ("a", 1): Hole.FIRST_LOOK})}
    offers = frozenset({PartitionResource.DISK, PartitionResource.BYTES_IN})
    taken = samples_of(layout_of(a=[1, 1, 1]), readings, taken_at_ms=0, source="", offers=offers)
    assert [(sample.partition, sample.bytes_in_per_s) for sample in taken.samples] == [
        (0, 7.0),
        (2, pytest.approx(1_000 / 3)),
    ]
    assert taken.holes == {("disk", Hole.NOT_TOLD): 3, ("bytes-in", Hole.FIRST_LOOK): 1}
