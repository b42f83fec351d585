"""Topics that somebody changes on a real Kafka while a broker runs: it says so, goes on, and so do `status` and `doctor`."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

from statechannel.api import StateChannel
from statechannel.cli.doctor.checks import DoctorFinding, Severity, examine
from statechannel.cli.doctor.command import CHECKS, learn
from statechannel.cli.kit.connection import connection_of
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.topic_policy import decisions_topic
from statechannel.kafka.topics import create_topics
from statechannel.queries.registry import topic_state
from statechannel.settings import Settings
from tests.support.channels import Recorder, created, make_settings
from tests.support.kafka_lanes import Kafka
from tests.support.log_lines import capture_logs
from tests.support.waits import WAIT_S


class Place:
    """A channel with one broker, an administrator who changes its topics, and what was logged."""

    def __init__(self, kafka: Kafka, channel: str, lines: list[dict[str, Any]]) -> None:
        self.channel = channel
        self.client = ClientSettings(kafka.bootstrap_servers)
        self.settings: Settings = make_settings(kafka.bootstrap_servers, channel)
        self.lines = lines
        self.admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})

    @asynccontextmanager
    async def broker(self) -> AsyncIterator[StateChannel]:
        opening = StateChannel.open(
            self.settings, broker="b1", hooks=Recorder(), create_topics=True, join_timeout_s=WAIT_S
        )
        async with opening as channel:
            yield channel

    async def heard(self, event: str, **facts: object) -> dict[str, Any]:
        """The first line of this event with these facts."""
        deadline_s = time.monotonic() + WAIT_S
        while True:
            for line in self.lines:
                if line["event"] == event and facts.items() <= line.items():
                    return line
            assert time.monotonic() < deadline_s, [line["event"] for line in self.lines]
            await asyncio.sleep(0.1)

    async def alter(self, topic: str, setting: str, value: str) -> None:
        entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        await self._done(lambda: self.admin.incremental_alter_configs([resource]))

    async def add_partitions(self, topic: str, number: int) -> None:
        await self._done(lambda: self.admin.create_partitions([NewPartitions(topic, number)]))

    async def delete_records(self, topic: str, before: int) -> None:
        await self._done(lambda: self.admin.delete_records([TopicPartition(topic, 0, before)]))

    async def delete_topic(self, topic: str) -> None:
        await self._done(lambda: self.admin.delete_topics([topic]))

    async def create_topic(self, topic: str) -> None:
        """As Kafka creates it by itself: with the cluster's defaults."""
        deadline_s = time.monotonic() + WAIT_S
        while True:
            try:
                await self._done(lambda: self.admin.create_topics([NewTopic(topic, 1, 1)]))
            except Exception:
                assert time.monotonic() < deadline_s
                await asyncio.sleep(0.2)
            else:
                return

    @staticmethod
    async def _done(ask: Callable[[], dict[Any, Any]]) -> None:
        for future in ask().values():
            await asyncio.to_thread(future.result, WAIT_S)

    def doctor(self) -> list[DoctorFinding]:
        facts, _ = learn(lambda: self.settings, read_log=True)
        return [finding for finding in examine(CHECKS, facts) if finding.severity is not Severity.OK]


@pytest.fixture
def place(kafka: Kafka, topic_prefix: str) -> Iterator[Place]:
    with capture_logs() as lines:
        yield Place(kafka, topic_prefix, lines)


async def test_a_broker_says_what_is_done_to_the_channels_log_and_goes_on(place: Place) -> None:
    async with place.broker() as channel:
        await created(channel, "t/n", 4)
        end = channel.positions()[0] + 1
        await place.alter(place.channel, "cleanup.policy", "delete")
        await place.delete_records(place.channel, end)
        assert (await place.heard("head-lost"))["offset"] == end
        await place.heard("topic.unfit", setting="cleanup.policy", actual="delete")
        connection = connection_of(place.settings)
        state = await asyncio.to_thread(topic_state, connection, [], {})
        assert state["heads_lost"] == {"0": end}
        assert [row["setting"] for row in state["differences"] if row["hard"]] == ["cleanup.policy"]

        await place.alter(place.channel, "cleanup.policy", "compact")
        await place.heard("topic.mended", setting="cleanup.policy")
        await place.heard("log.restated")
        findings = await asyncio.to_thread(place.doctor)
        severities = {finding.check: finding.severity for finding in findings}
        assert severities["head"] is Severity.INFO, "its broker has restated what was deleted"
        assert Severity.CRITICAL not in severities.values()
        assert channel.stopped is None
        await created(channel, "t/other", 2)


async def test_partitions_added_to_the_channel_are_said_and_change_nothing(place: Place) -> None:
    async with place.broker() as channel:
        await created(channel, "t/n", 4)
        await place.add_partitions(place.channel, 3)
        line = await place.heard("topic.differs", setting="partitions")
        assert (line["actual"], line["wanted"]) == ("3", "1")
        (finding,) = [item for item in await asyncio.to_thread(place.doctor) if item.check == "partitions"]
        assert finding.severity is Severity.INFO
        await created(channel, "t/other", 2)


async def test_a_side_topic_that_comes_back_with_the_clusters_defaults_is_said_within_seconds(place: Place) -> None:
    side = decisions_topic(place.channel)
    await asyncio.to_thread(create_topics, place.client, side, replication_factor=1)
    async with place.broker() as channel:
        channel.watched_topics.update(side.policies)
        await asyncio.sleep(6.0)  # one look
        began_s = time.monotonic()
        await place.delete_topic(side.name)
        await place.create_topic(side.name)
        await place.heard("topic.recreated", topic=side.name)
        line = await place.heard("topic.unfit", topic=side.name, setting="message.timestamp.type")
        assert time.monotonic() - began_s < 20.0, "settings are asked for at once then"
        assert line["hint"].startswith("kafka-configs.sh")
        await place.alter(side.name, "message.timestamp.type", "LogAppendTime")
        await place.heard("topic.mended", topic=side.name, setting="message.timestamp.type")
        assert channel.stopped is None
