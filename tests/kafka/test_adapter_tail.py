"""Reading to the end and appending one record, as the commands do."""

import time

import pytest

from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import (
    AppendOutcomeUnknownError,
    KafkaAdapterError,
    KafkaUnavailableError,
    TopicMissingError,
)
from statechannel.kafka.tail import PartitionTail, append_and_wait
from statechannel.protocol.log import Topic
from tests.support.kafka_adapter import Channel, make_channel
from tests.support.kafka_lanes import Kafka


@pytest.fixture
def channel(kafka: Kafka, topic_prefix: str) -> Channel:
    return make_channel(kafka.bootstrap_servers, topic_prefix)


def tail(channel: Channel, **more: float) -> PartitionTail:
    return PartitionTail(
        channel.settings, Topic.CHANNEL, channel.topics.channel, 0, group_id=channel.topics.reader_group, **more
    )


def test_reads_from_the_beginning_an_offset_or_a_time_to_the_end(channel: Channel) -> None:
    channel.write((b"a", b"1"), (b"b", b"2"))
    time.sleep(0.05)
    between_ms = int(time.time() * 1_000)
    time.sleep(0.05)
    channel.write((b"c", b"3"))
    with tail(channel) as reading:
        span = reading.span()
        assert (span.low, span.start, span.end) == (0, 0, 3)
        assert [r.value for r in reading.records(span)] == [b"1", b"2", b"3"]
        assert [r.offset for r in reading.records(reading.span(start=1))] == [1, 2]
        assert [r.key for r in reading.records(reading.span(from_time_ms=between_ms))] == [b"c"]
        future = reading.span(from_time_ms=between_ms + 3_600_000)
        assert list(reading.records(future)) == []


def test_nothing_beyond_the_end_as_of_the_start_is_delivered(channel: Channel) -> None:
    channel.write((b"a", b"1"))
    with tail(channel) as reading:
        span = reading.span()
        channel.write((b"a", b"2"))
        assert [r.value for r in reading.records(span)] == [b"1"]


def test_an_empty_log_ends_at_once(channel: Channel) -> None:
    with tail(channel) as reading:
        assert list(reading.records(reading.span())) == []


def test_follow_delivers_what_comes_later_and_can_be_stopped(channel: Channel) -> None:
    channel.write((b"a", b"1"))
    values: list[bytes | None] = []
    quiet = 0
    with tail(channel) as reading:
        for batch in reading.follow(0, stop=lambda: len(values) >= 2):
            values.extend(r.value for r in batch)
            quiet += not batch
            if batch and len(values) == 1:
                channel.write((b"a", b"2"))
            assert quiet < 300, values
    assert values == [b"1", b"2"]


def test_append_and_wait_returns_the_offset(channel: Channel) -> None:
    name = channel.topics.names[Topic.REQUESTS]
    offsets = [append_and_wait(channel.settings, name, 0, key=b"k", value=b"%d" % n) for n in range(2)]
    assert offsets == [0, 1]


def test_a_topic_that_is_not_there_is_said_to_be_missing(kafka: Kafka, topic_prefix: str) -> None:
    settings = ClientSettings(kafka.bootstrap_servers)
    reading = PartitionTail(settings, Topic.CHANNEL, topic_prefix, 0, group_id="g", timeout_s=5.0)
    with reading, pytest.raises(TopicMissingError):
        reading.span()
    with pytest.raises(KafkaAdapterError):
        append_and_wait(settings, topic_prefix, 0, key=b"k", value=b"v", timeout_s=5.0)


def test_without_kafka_both_say_so_in_time() -> None:
    settings = ClientSettings("127.0.0.1:9")
    reading = PartitionTail(settings, Topic.CHANNEL, "t", 0, group_id="g", timeout_s=1.0)
    with reading, pytest.raises(KafkaUnavailableError, match="querying the end of t-0"):
        reading.span()
    with pytest.raises(AppendOutcomeUnknownError, match="may still appear") as caught:
        append_and_wait(settings, "t", 0, key=b"k", value=b"v", timeout_s=1.0)
    said = str(caught.value)  # which of the two the client library reports first is its affair
    assert "Connection refused" in said or "brokers are down" in said
