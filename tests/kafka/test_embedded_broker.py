"""The embedded broker is a real Kafka: it starts, stops, and keeps through a kill what it acked."""

import os
import time
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from statechannel.embedded import AlreadyRunningError, BrokerOptions, BrokerStartError, KafkaServer, PortInUseError
from tests.support.kafka_lanes import Kafka, embedded_options
from tests.support.waits import WAIT_S


def make_topic(bootstrap: str, name: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    futures = admin.create_topics(
        [NewTopic(name, 1, 1, config={key.replace("_", "."): v for key, v in config.items()})]
    )
    futures[name].result(WAIT_S)


def produce(bootstrap: str, topic: str, values: list[bytes], key: bytes = b"k") -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    failures: list[object] = []
    for value in values:
        producer.produce(topic, value, key=key, on_delivery=lambda e, _: failures.append(e) if e else None)
    assert producer.flush(WAIT_S) == 0
    assert failures == []


def read_all(bootstrap: str, topic: str) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    deadline = time.monotonic() + WAIT_S
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error() is not None:
                assert message.error().name() == "_PARTITION_EOF", message.error()
                return values
            value = message.value()
            assert value is not None
            values.append(value)
    finally:
        consumer.close()
    raise AssertionError(f"no end of {topic} reached; read {len(values)}")


def test_shared_broker_serves(kafka: Kafka, topic_prefix: str) -> None:
    make_topic(kafka.bootstrap_servers, topic_prefix)
    produce(kafka.bootstrap_servers, topic_prefix, [b"1", b"2"])
    assert read_all(kafka.bootstrap_servers, topic_prefix) == [b"1", b"2"]


def test_cleaner_is_quick_enough_for_tests(kafka: Kafka, topic_prefix: str) -> None:
    bootstrap = kafka.bootstrap_servers
    make_topic(bootstrap, topic_prefix, cleanup_policy="compact", segment_ms="300", min_cleanable_dirty_ratio="0.01")
    deadline = time.monotonic() + WAIT_S
    for round_number in range(1000):
        produce(bootstrap, topic_prefix, [b"old-%d" % round_number])
        if len(read_all(bootstrap, topic_prefix)) < round_number + 1:
            return
        assert time.monotonic() < deadline, "nothing was compacted in 20 s"
        time.sleep(0.25)


def test_nothing_acknowledged_is_lost_by_kill_9(own_kafka: KafkaServer, topic_prefix: str) -> None:
    bootstrap = own_kafka.bootstrap_servers
    make_topic(bootstrap, topic_prefix)
    values = [b"%d" % number for number in range(500)]
    produce(bootstrap, topic_prefix, values)
    first_pid = own_kafka.pid
    own_kafka.kill()
    assert own_kafka.pid is None
    assert not own_kafka.is_ready()
    results: list[str] = []
    own_kafka.start(say=results.append)
    assert [line for line in results if "its session has to end" in line], "whoever waits is told what for"
    assert own_kafka.pid != first_pid
    assert own_kafka.bootstrap_servers == bootstrap
    assert read_all(bootstrap, topic_prefix) == values


def test_clean_stop_is_told_from_an_unclean_one(own_kafka: KafkaServer) -> None:
    clean_mark = own_kafka.folder / "log" / ".kafka_cleanshutdown"
    assert not clean_mark.exists()
    assert own_kafka.stop()
    assert clean_mark.exists()
    assert own_kafka.stop(), "stopping a stopped broker is fine"
    results: list[str] = []
    own_kafka.restart(say=results.append)
    assert results == [], "after an orderly stop there is nothing to wait for"
    assert own_kafka.is_ready()


def test_a_broker_has_its_folder_and_its_port_alone_and_binds_to_loopback_only(
    own_kafka: KafkaServer, tmp_path: Path
) -> None:
    with pytest.raises(AlreadyRunningError) as refusal:
        KafkaServer(own_kafka.folder, options=embedded_options()).start()
    assert str(own_kafka.folder) in str(refusal.value)
    assert refusal.value.hint
    other = KafkaServer(tmp_path / "other", port=own_kafka.port, options=embedded_options())
    with pytest.raises(PortInUseError, match=f"port {own_kafka.port} .* is in use"):
        other.start()
    assert other.pid is None
    assert own_kafka.is_ready()
    listening = [
        connection.laddr.ip
        for connection in psutil.Process(own_kafka.pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) == 2
    assert {address.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}


def test_broker_that_dies_while_starting_tells_its_cause(tmp_path: Path) -> None:
    options = BrokerOptions(properties={"log.cleaner.threads": "many"})
    server = KafkaServer(tmp_path / "kafka", options=options)
    with pytest.raises(BrokerStartError, match=r"log\.cleaner\.threads"):
        server.start()
    assert server.pid is None


def test_disk_full_while_the_start_writes_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def full(path, flags, *args, **options):
        """/dev/full refuses every write as a full disk does; a link to it would not do, the file is made anew."""
        if Path(path).name.startswith("server.properties"):
            return opened("/dev/full", os.O_WRONLY)
        return opened(path, flags, *args, **options)

    monkeypatch.setattr("statechannel.embedded.layout.os.open", full)
    server = KafkaServer(tmp_path, options=embedded_options())
    with pytest.raises(BrokerStartError, match="disk of the data folder is full") as error:
        server.start()
    assert "free some space" in error.value.hint
    assert server.pid is None


def test_interrupted_start_leaves_no_broker_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr("statechannel.embedded.server.read_since", interrupted)
    server = KafkaServer(tmp_path, options=embedded_options())
    with pytest.raises(KeyboardInterrupt):
        server.start()
    assert server.pid is None


def test_broker_that_is_not_ready_in_time_is_ended(tmp_path: Path) -> None:
    options = BrokerOptions(start_timeout_s=0.1)
    server = KafkaServer(tmp_path / "kafka", options=options)
    with pytest.raises(BrokerStartError, match="not ready after"):
        server.start()
    assert server.pid is None


def test_damaged_class_archive_does_not_break_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = tmp_path / "damaged.jsa"
    damaged.write_bytes(b"not an archive" * 1000)
    monkeypatch.setattr("statechannel.embedded.java.archive_path", lambda java, jars: damaged)
    with KafkaServer(tmp_path / "kafka", options=embedded_options()) as server:
        assert server.is_ready()
