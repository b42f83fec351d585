"""Real clients that fetch nothing any more, without an error: paused behind their reader's back, on a log that goes on."""

import logging
import threading

import pytest
from confluent_kafka import TopicPartition

from statechannel.kafka.light_topic import LightBatch, LightReader
from statechannel.kafka.reader import ReaderTuning
from statechannel.kafka.tail import PartitionTail
from statechannel.protocol.log import RecordRead, Topic
from statechannel.settings.groups_cluster import KafkaSettings
from tests.support.kafka_adapter import Channel, Inbox, make_channel
from tests.support.kafka_lanes import Kafka
from tests.support.waits import WAIT_S, wait_until

QUICK = KafkaSettings.model_construct(stall_timeout_s=1.0)


@pytest.fixture
def channel(kafka: Kafka, topic_prefix: str) -> Channel:
    return make_channel(kafka.bootstrap_servers, topic_prefix, tuning=QUICK)


def write(channel: Channel, first: int, after: int) -> None:
    channel.write(*[(b"k", b"%d" % number) for number in range(first, after)])


def renewals(caplog: pytest.LogCaptureFixture) -> int:
    return sum(
        "recreating the consumer" in line.getMessage() for line in caplog.records if line.levelno == logging.WARNING
    )


def test_a_member_reads_on(channel: Channel, caplog: pytest.LogCaptureFixture) -> None:
    place = TopicPartition(channel.topics.channel, 0)
    inbox = Inbox()
    with channel.reader(inbox, tuning=ReaderTuning(watch_s=0.3)) as reader:
        for end in (10, 20, 30):  # the second client falls silent as well
            write(channel, end - 10, end)
            inbox.wait_position(end)
            reader._consumer.pause([place])
        write(channel, 30, 40)
        inbox.wait_position(40)
        reader.restart(Topic.CHANNEL, 0)
        inbox.wait_for(lambda inputs: sum(isinstance(item, RecordRead) for item in inputs) >= 80)
    offsets = [record.offset for record in inbox.of(RecordRead)]
    assert offsets == [*range(40), *range(40)]
    assert renewals(caplog) == 3


def test_a_follower_reads_on(channel: Channel, caplog: pytest.LogCaptureFixture) -> None:
    place = TopicPartition(channel.topics.channel, 0)
    offsets: list[int] = []
    stop = threading.Event()
    tail = PartitionTail(channel.settings, Topic.CHANNEL, place.topic, 0, group_id="g")

    def follow() -> None:
        with tail:
            for batch in tail.follow(0, stop=stop.is_set):
                offsets.extend(record.offset for record in batch)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        write(channel, 0, 10)
        wait_until(lambda: len(offsets) >= 10, lambda: offsets)
        tail._consumer._client.pause([place])
        write(channel, 10, 20)
        wait_until(lambda: len(offsets) >= 20, lambda: offsets)
    finally:
        stop.set()
        thread.join(WAIT_S)
    assert offsets == list(range(20))
    assert renewals(caplog) == 1


def test_a_reader_of_load_data_reads_on(channel: Channel, caplog: pytest.LogCaptureFixture) -> None:
    place = TopicPartition(channel.topics.channel, 0)
    got: list[LightBatch] = []
    reader = LightReader(channel.settings, place.topic, got.append, group_id="g")
    reader.start()

    def offsets() -> list[int]:
        return [record.offset for batch in got for record in batch.records]

    try:
        assert reader.wait_caught_up(WAIT_S)
        write(channel, 0, 10)
        wait_until(lambda: len(offsets()) >= 10, offsets)
        reader._consumer._client.pause([place])
        write(channel, 10, 20)
        wait_until(lambda: len(offsets()) >= 20, offsets)
    finally:
        assert reader.close(WAIT_S)
    assert offsets() == list(range(20))
    assert sum(batch.opened for batch in got) == 1
    assert renewals(caplog) == 1


def test_a_quiet_log_is_no_stall(channel: Channel, caplog: pytest.LogCaptureFixture) -> None:
    write(channel, 0, 3)
    inbox = Inbox()
    quiet = threading.Event()
    with channel.reader(inbox, tuning=ReaderTuning(watch_s=0.3)):
        inbox.wait_position(3)
        quiet.wait(3 * QUICK.stall_timeout_s)
    assert len(inbox.of(RecordRead)) == 3
    assert renewals(caplog) == 0
