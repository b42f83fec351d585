"""Records whose answers are lost: how often each of them comes to lie in the log (Kafka behind proxies)."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from statechannel.engine.effects import Append
from statechannel.engine.inputs import Appended, AppendFailed
from statechannel.kafka import writer as writer_module
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.light_topic import LightTuning, LightWriter
from statechannel.kafka.writer import LogWriter
from statechannel.protocol.log import Topic
from statechannel.settings.groups_cluster import KafkaSettings
from tests.faults.kafka_nodes import KafkaNodes
from tests.faults.link import Link
from tests.faults.purposes import Purpose
from tests.support.kafka_adapter import Channel, Inbox, make_channel
from tests.support.waits import WAIT_S, until

DELIVERY_MS = 6_000
WRITER = "w"


@asynccontextmanager
async def kafka_behind_links(folder: Path, count: int) -> AsyncIterator[KafkaNodes]:
    nodes = KafkaNodes(folder, count, [WRITER])
    try:
        await nodes.start()
        yield nodes
    finally:
        await nodes.close()


@asynccontextmanager
async def repeated(act: Callable[[int], object], pause_s: float) -> AsyncIterator[None]:
    """Do it again and again, with the numbers from 1 on."""

    async def go_on() -> None:
        number = 0
        while True:
            number += 1
            act(number)
            await asyncio.sleep(pause_s)

    task = asyncio.create_task(go_on())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def channel_on_two_nodes(nodes: KafkaNodes, prefix: str) -> tuple[Channel, Link]:
    """A channel whose registry is led by another node, and the link to the node that leads the channel's own topic."""
    for number in range(50):
        channel = await asyncio.to_thread(make_channel, nodes.address, f"{prefix}-{number}")
        await nodes.learn_topics(channel.topics.channel)
        leader = await nodes.leader_of("channel")
        if await nodes.leader_of("registry") is not leader:
            return channel, leader.links[WRITER]
    raise AssertionError("one node leads both topics of every channel")


async def until_taken(channel: Channel) -> None:
    """Return when Kafka has taken in something more."""
    consumer = Consumer(channel.settings.consumer_config("g"))
    place = TopicPartition(channel.topics.channel, 0)

    async def end() -> int:
        marks = await asyncio.to_thread(consumer.get_watermark_offsets, place, WAIT_S)
        return marks[1] if marks else -1

    try:
        before, result = await end(), -1
        deadline_s = time.monotonic() + WAIT_S
        while result <= before:
            assert time.monotonic() < deadline_s, f"waited {WAIT_S:g} s; the log ends at {before} all the time"
            result = await end()
    finally:
        consumer.close()


async def times_in_log(channel: Channel) -> Counter[int]:
    """How often each number lies in the log, in the order of the log."""
    (end,) = await asyncio.to_thread(channel.write, (b"k", b"0"))
    records = await asyncio.to_thread(channel.read_all, end + 1)
    return Counter(int(record.value or b"") for record in records[:-1])


async def test_answers_that_come_too_late_make_no_copies(tmp_path, topic_prefix: str, monkeypatch):
    """One Kafka node was away, then takes records and answers none of them in time. The other node answers all the time.

    Once a record times out in librdkafka, it sends all others without an answer again, in each epoch once more.
    """
    monkeypatch.setattr(writer_module, "_SESSION_SHARE", 0.5)  # leaves 3 s to a thread of a busy machine
    async with kafka_behind_links(tmp_path, 2) as nodes:
        channel, link = await channel_on_two_nodes(nodes, topic_prefix)
        tuning = KafkaSettings.model_construct(delivery_timeout_ms=DELIVERY_MS, request_timeout_ms=DELIVERY_MS // 2)
        settings = ClientSettings(nodes.address_for(WRITER), tuning=tuning)
        inbox = Inbox()
        topics: dict[int, Topic] = {}
        writer = LogWriter(settings, channel.topics.names, inbox.put)

        def append(number: int) -> None:
            topic = Topic.CHANNEL if number % 10 else Topic.REGISTRY
            topics[number] = topic
            writer.append(Append(number, topic, 0, b"k", b"%d" % number))

        def delivered(topic: Topic) -> int:
            return sum(topics[answer.token] is topic for answer in inbox.of(Appended))

        try:
            async with repeated(append, 0.005):
                await until(lambda: delivered(Topic.CHANNEL) > 100, "records are delivered")
                link.refusing = True
                link.cut()
                link.hold(up=False, purpose=Purpose.WRITE_CHANNEL)
                elsewhere = delivered(Topic.REGISTRY)
                await asyncio.sleep(0.8 * DELIVERY_MS / 1_000)  # so that records of all ages leave in one request
                link.refusing = False
                await until_taken(channel)
                await asyncio.sleep(2.5 * DELIVERY_MS / 1_000)
                await until(lambda: delivered(Topic.REGISTRY) > elsewhere, "the other node answers")
                link.heal()
                before = delivered(Topic.CHANNEL)
                await until(lambda: delivered(Topic.CHANNEL) > before + 100, "records are delivered again")
            assert await asyncio.to_thread(writer.flush, WAIT_S)
        finally:
            await asyncio.to_thread(writer.close, 0.1)
        result = await times_in_log(channel)
    assert {number: times for number, times in result.items() if times > 1} == {}
    # No session takes over records of another, and each keeps its own in order.
    assert list(result) == sorted(result)
    acknowledged = {answer.token for answer in inbox.of(Appended) if topics[answer.token] is Topic.CHANNEL}
    assert acknowledged <= set(result)
    unknown = {failed.token for failed in inbox.of(AppendFailed) if not failed.never_written}
    assert unknown & set(result), "Kafka took nothing whose answer was late"
    assert writer.session > 1


async def test_a_light_record_whose_answers_are_lost_is_sent_again_so_often(tmp_path: Path, topic_prefix: str) -> None:
    tuning = LightTuning(delivery_timeout_ms=60_000)
    async with kafka_behind_links(tmp_path, 1) as nodes:
        channel = await asyncio.to_thread(make_channel, nodes.address, topic_prefix)
        await nodes.learn_topics(channel.topics.channel)
        link = nodes.nodes[0].links[WRITER]
        writer = LightWriter(ClientSettings(nodes.address_for(WRITER)), tuning=tuning)
        try:
            async with repeated(lambda n: writer.write(channel.topics.channel, b"k", b"%d" % n), 0.01):
                await until(lambda: writer.counts.written > 100, "records are written")
                link.hold(up=False, purpose=Purpose.WRITE_CHANNEL)
                for _ in range(2 * tuning.retries_max):
                    await until_taken(channel)
                    link.cut()
                link.heal()
                before = writer.counts.written
                await until(lambda: writer.counts.written > before + 100, "records are written again")
            assert await asyncio.to_thread(writer.flush, WAIT_S)
        finally:
            await asyncio.to_thread(writer.close)
        result = await times_in_log(channel)
    assert 1 < max(result.values()) <= 1 + tuning.retries_max
