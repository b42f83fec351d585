"""Reading brokers, topics and sizes of a real Kafka, and what a client is told whose address or password is wrong."""

import threading

import pytest
from confluent_kafka import Producer

from loaddata.samples.admin import open_admin
from loaddata.samples.kafka_cluster import read_layout, read_sizes
from statechannel.embedded.process import find_free
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import KafkaUnavailableError
from tests.support.kafka_lanes import Kafka
from tests.support.waits import WAIT_S

pytestmark = pytest.mark.kafka


def test_layout_and_sizes(kafka: Kafka, topic_prefix: str) -> None:
    wide, narrow = f"{topic_prefix}-wide", f"{topic_prefix}-narrow"
    with open_admin(ClientSettings(kafka.bootstrap_servers), timeout_s=WAIT_S) as admin:
        admin.create_topics(
            {
                wide: {"num_partitions": 3, "replication_factor": 1},
                narrow: {"num_partitions": 1, "replication_factor": 1, "configs": {"min.insync.replicas": "2"}},
            },
            wait_for_metadata=True,
        )
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for _ in range(10):
            producer.produce(wide, b"x" * 1_000, partition=1)
        assert producer.flush(WAIT_S) == 0
        layout = read_layout(admin, now_ms=1_234)
        sizes = read_sizes(admin, layout)
    assert layout.cluster_id
    assert layout.read_at_ms == 1_234
    assert list(layout.topics) == sorted(layout.topics)
    (broker,) = [item for item in layout.brokers if item.alive]
    assert broker.log_dirs
    assert all((item.total_bytes or 0) > 0 and not item.offline for item in broker.log_dirs)
    topic = layout.topics[wide]
    assert [
        (partition.partition, partition.replicas, partition.leader, partition.isr) for partition in topic.partitions
    ] == [(number, (broker.id,), broker.id, (broker.id,)) for number in range(3)]
    assert not any(partition.in_motion or partition.offline for partition in topic.partitions)
    assert len(topic.topic_id) == 36
    assert (topic.min_isr, layout.topics[narrow].min_isr) == (1, 2)
    loads = [sizes.of[wide, number].disk_bytes for number in range(3)]
    assert loads[0] == loads[2] == 0
    assert 10_000 <= (loads[1] or 0) < 12_000
    assert sizes.of[wide, 1].bytes_in_per_s is None


def test_nobody_there_ends_in_time_and_without_a_thread() -> None:
    before = threading.active_count()
    settings = ClientSettings(f"127.0.0.1:{find_free()}")
    with pytest.raises(KafkaUnavailableError, match="REFUSED") as caught, open_admin(settings, timeout_s=1):
        pass
    assert caught.value.exit_code == 10
    assert threading.active_count() == before
