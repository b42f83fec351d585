"""The sample topic on a real Kafka."""

import time
from dataclasses import replace

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from loaddata.samples.admin import open_admin
from loaddata.samples.formulas import Hole, SampledMinute
from loaddata.samples.kafka_cluster import loads_now, read_layout
from loaddata.samples.log_dirs_source import LogDirsSource
from loaddata.samples.partitions import PartitionLoad, PartitionSample
from loaddata.samples.sample_topic import InvalidSampleReason, ReadCounts, SampleTopic, encode, key_of
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import KafkaUnavailableError, TopicMissingError, TopicPolicyError
from statechannel.kafka.topics import TopicAdmin
from tests.support.kafka_lanes import Kafka
from tests.support.sample_averages import average
from tests.support.waits import WAIT_S

pytestmark = pytest.mark.kafka

MINUTE_MS = 60_000


def taken(partition: int, minute: int, cluster: str = "mine") -> PartitionSample:
    return PartitionSample(
        cluster=cluster,
        broker=1,
        host="h",
        topic="orders",
        partition=partition,
        taken_at_ms=minute * MINUTE_MS,
        disk_bytes=1_000 * partition + minute,
        bytes_in_per_s=partition + minute / 2,
    )


def test_written_samples_are_read_and_averaged(kafka: Kafka, topic_prefix: str) -> None:
    settings = ClientSettings(kafka.bootstrap_servers)
    topic = SampleTopic(settings, topic_prefix, window_s=3_600)
    with pytest.raises(TopicMissingError) as missing:
        list(topic.read(0))
    assert "partitions sample" in missing.value.hint
    topic.create()
    topic.create()
    assert topic.partitions() == 6
    result = TopicAdmin(settings).describe([topic_prefix])[topic_prefix]
    assert result.settings["cleanup.policy"] == "delete"
    assert result.settings["retention.ms"] == str(4_500_000 + 3_600_000)
    assert list(topic.read(0)) == []

    before_ms = time.time_ns() // 1_000_000
    samples = [taken(partition, minute) for minute in range(10) for partition in range(20)]
    assert topic.write(samples).written == 200
    again = [PartitionSample(**{**_fields(taken(3, 4)), "disk_bytes": 90_000})]
    assert topic.write(again).written == 1
    other = [taken(0, 5, "other")]
    assert topic.write(other).written == 1
    raw = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    newer = encode(samples[0]).replace(b"partition-sample/1", b"partition-sample/2")
    for value in (b"junk", newer, None):
        raw.produce(topic_prefix, value, key_of("orders", 0))
    assert raw.flush(WAIT_S) == 0

    counts, parts = ReadCounts(), []
    read = list(topic.read(before_ms, counts=counts, cluster="mine", on_part=lambda: parts.append(1)))
    assert counts.samples == len(read) == 201
    assert counts.junk == {
        InvalidSampleReason.NOT_JSON: 1,
        InvalidSampleReason.NEWER_FORMAT: 1,
        InvalidSampleReason.NOT_A_SAMPLE: 1,
        InvalidSampleReason.OTHER_CLUSTER: 1,
    }
    assert 1 < len(parts) <= 6
    loads = average(read, from_ms=0, to_ms=10 * MINUTE_MS, interval_s=60)
    assert len(loads.of) == 20
    # 7000 + 4.5 upwards, 7 + 2.25
    assert loads.of["orders", 7] == PartitionLoad(disk_bytes=7_005, bytes_in_per_s=9)
    # 3000 + 4.5 with 3004 replaced by 90000: 30045 - 3004 + 90000 = 117041
    assert loads.of["orders", 3].disk_bytes == 11_704
    hour_later_ms = before_ms + 3_600_000
    assert list(topic.read(hour_later_ms)) == []


def test_what_is_not_sound_is_counted_and_the_rest_is_written(kafka: Kafka, topic_prefix: str) -> None:
    topic = SampleTopic(ClientSettings(kafka.bootstrap_servers), topic_prefix, partitions=1)
    topic.create()
    bad = PartitionSample(**{**_fields(taken(1, 1)), "bytes_in_per_s": float("nan")})
    written = topic.write([taken(0, 1), bad])
    assert (written.written, written.refused, written.failed) == (1, 1, 0)
    assert "orders-1" in written.why


def test_a_compacted_topic_is_refused_and_a_kafka_that_is_away_named(kafka: Kafka, topic_prefix: str) -> None:
    settings = ClientSettings(kafka.bootstrap_servers)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(topic_prefix, 1, 1, config={"cleanup.policy": "compact"})])[topic_prefix].result(
        WAIT_S
    )
    with pytest.raises(TopicPolicyError, match=r"cleanup\.policy"):
        SampleTopic(settings, topic_prefix).create()
    away = SampleTopic(ClientSettings("127.0.0.1:9"), topic_prefix, timeout_s=1)
    with pytest.raises(KafkaUnavailableError, match="did not answer"):
        away.write([taken(0, 0)])


def _fields(sample: PartitionSample) -> dict:
    return {name: getattr(sample, name) for name in PartitionSample.__slots__}


def test_log_directories_and_growth_become_loads(kafka: Kafka, topic_prefix: str) -> None:
    """The whole thread without any metrics: two looks at the cluster, the topic, the averages, the loads of now."""
    settings = ClientSettings(kafka.bootstrap_servers)
    data, samples = f"{topic_prefix}-data", f"{topic_prefix}-samples"
    topic = SampleTopic(settings, samples, partitions=2)
    now_ms = time.time_ns() // 1_000_000
    with open_admin(settings, timeout_s=WAIT_S) as admin:
        admin.create_topics({data: {"num_partitions": 2, "replication_factor": 1}}, wait_for_metadata=True)
        source = LogDirsSource(admin)
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

        def look(at_s: float) -> SampledMinute:
            layout = read_layout(admin, now_ms=now_ms)
            return source.take(replace(layout, topics={data: layout.topics[data]}), taken_at_ms=now_ms, mono_s=at_s)

        def fill(partition: int) -> None:
            for _ in range(20):
                producer.produce(data, b"x" * 1_000, partition=partition)
            assert producer.flush(WAIT_S) == 0

        fill(0)
        first = look(100.0)
        assert first.holes == {("bytes-in", Hole.FIRST_LOOK): 2}
        fill(1)
        second = look(110.0)
        assert second.holes == {}
        sizes = [sample.disk_bytes for sample in second.samples]
        assert all(20_000 < (size or 0) < 22_000 for size in sizes)
        assert [sample.bytes_in_per_s for sample in second.samples] == [0, pytest.approx((sizes[1] or 0) / 10)]
        layout = read_layout(admin, now_ms=now_ms)
        before = loads_now(admin, layout, topic, now_ms=now_ms, window_s=600, interval_s=60)
        assert "no samples of the last" in before.source
        assert before.of[data, 1] == PartitionLoad(disk_bytes=sizes[1])
        topic.create()
        topic.write(second.samples[:1])
        loads = loads_now(admin, layout, topic, now_ms=now_ms, window_s=600, interval_s=60)
    assert loads.of[data, 0] == PartitionLoad(disk_bytes=sizes[0], bytes_in_per_s=0)
    assert loads.of[data, 1] == PartitionLoad(disk_bytes=sizes[1])  # no sample of it: its size at least
    assert "samples of 1 of 10 intervals" in loads.source
    assert "from the log directories" in loads.source
