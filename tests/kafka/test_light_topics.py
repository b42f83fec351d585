"""Load data over a real Kafka: reports reach the others, tombstones count or do not, and what is buried is told again."""

import asyncio
import time

import pytest
from confluent_kafka.admin import AdminClient

from loaddata.live.service import LoadService
from loaddata.live.topics import LoadConnection
from loaddata.measure.synthetic import SimulatedSettings, SimulatedSource
from loaddata.report.record import EXPIRED, ReportKind, Tombstone
from loaddata.settings import LoadSettings
from statechannel.embedded import KafkaServer
from statechannel.engine.config import Identity
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import KafkaAdapterError, TopicMissingError
from statechannel.kafka.topic_policy import LoadTopics
from statechannel.kafka.topics import create_topics, verify_topics
from tests.support.kafka_lanes import Kafka
from tests.support.light_brokers import BUNDLES, WAIT_S, Log, Source, broker, stats, until
from tests.support.load_channel import FakeChannel

MANY = 100


async def test_every_broker_sees_every_load_and_only_the_leader_the_top_bundles(kafka: Kafka, topic_prefix: str):
    channel = FakeChannel(leader="b1")
    heavy = Source({BUNDLES[0]: stats(100.0), BUNDLES[1]: stats(5_000.0)})
    async with (
        broker(kafka, topic_prefix, "b1", channel) as b1,
        broker(kafka, topic_prefix, "b2", channel, heavy) as b2,
    ):
        for item in (b1, b2):
            await until(lambda entry=item: set(entry.broker_loads()) == {"b1", "b2"}, "each broker sees both loads")
            load, age_s, lapsed = item.broker_loads()["b2"]
            assert (load.bundles, load.msg_rate_in) == (2, 5_100.0)
            assert load.weighted_max_ema == pytest.approx(load.max_resource_usage)
            assert age_s < WAIT_S
            assert not lapsed
        await until(lambda: set(b1.top_bundles()) == {"b1", "b2"}, "the leader sees both reports")
        bundle = b1.top_bundles()["b2"]
        assert [subject.name for subject in bundle.bundles] == [BUNDLES[0], BUNDLES[1]]  # the lightest first
        assert bundle.bundles[1].stats == heavy.stats[BUNDLES[1]]
        assert b2.top_bundles() == {}
        assert b2.status()["views"]["top-bundles"]["records"] == {}

        channel.leader = "b2"
        await until(
            lambda: set(b2.top_bundles()) == {"b1", "b2"} and not b1.top_bundles(), "the view moves along", b1, b2
        )


async def test_a_late_comer_finds_the_newest_reports_in_the_topic(kafka: Kafka, topic_prefix: str) -> None:
    channel = FakeChannel(leader="b1")
    async with broker(kafka, topic_prefix, "b1", channel) as b1:
        await until(lambda: "b1" in b1.broker_loads())
        async with broker(kafka, topic_prefix, "b9", channel, Source()) as late:
            await until(lambda: "b1" in late.broker_loads())
            assert late.broker_loads()["b1"].load == b1.broker_loads()["b1"].load


async def test_a_report_older_than_the_last_change_of_ownership_is_marked_until_the_next(
    kafka: Kafka, topic_prefix: str
) -> None:
    channel = FakeChannel()
    source = Source({BUNDLES[0]: stats(100.0)})
    async with (
        broker(kafka, topic_prefix, "b1", channel) as b1,
        broker(kafka, topic_prefix, "b2", channel, source, settle_s=1.0) as b2,
    ):
        await until(lambda: set(b1.broker_loads()) == {"b1", "b2"})
        channel.moves(BUNDLES[1], "b1", "b2")
        source.stats[BUNDLES[1]] = stats(100.0)
        await until(lambda: b1.broker_loads()["b2"].lapsed and b1.broker_loads()["b1"].lapsed, "both are marked")
        await until(
            lambda: not any(load.lapsed for load in b1.broker_loads().values()), "both report again by themselves"
        )
        assert b1.broker_loads()["b2"].load.bundles == 2
        assert b2.status()["reports"]["broker-load: ownership"] >= 1

        channel.interrupt()
        await asyncio.sleep(0.2)
        channel.moves(BUNDLES[2], "b1", "b2")
        await until(lambda: b1.broker_loads()["b2"].lapsed, "it is watched again after an interruption")


async def test_a_tombstone_counts_only_if_it_names_what_is_held_and_a_fresh_report_is_told_again(
    kafka: Kafka, topic_prefix: str
) -> None:
    channel = FakeChannel()
    async with broker(kafka, topic_prefix, "b1", channel) as b1, broker(kafka, topic_prefix, "b2", channel) as b2:
        await until(lambda: set(b1.broker_loads()) == {"b1", "b2"} == set(b2.broker_loads()))
        log = Log(kafka, LoadTopics(topic_prefix).broker_load)
        try:
            [*_, first] = log.of("b2")
            now_ms = first.timestamp_ms

            # One that names a record before the one held: whoever holds the report keeps it, and b2 tells it anew,
            # since the null would hide it from all who come later.
            b2.report_now()
            await until(lambda: log.of("b2")[-1].offset > first.offset)
            second = log.of("b2")[-1]
            log.write("b2", None, Tombstone(EXPIRED, first.offset, now_ms))
            await until(lambda: records(b1).get("not-honoured") == 1, "b1 keeps the report")
            assert "b2" in b1.broker_loads()
            await until(lambda: log.of("b2")[-1].value is not None and len(log.of("b2")) > 3, "b2 tells it anew")
            third = log.of("b2")[-1]
            assert third.offset > second.offset
            assert b2.status()["reports"]["broker-load: tombstoned"] == 1

            # One that names the newest: it counts, until b2 has told it anew.
            await until(lambda: held_offset(b1, "b2") == third.offset)
            log.write("b2", None, Tombstone(EXPIRED, third.offset, now_ms))
            await until(lambda: records(b1).get("honoured") == 1)
            await until(lambda: b2.status()["reports"]["broker-load: tombstoned"] == 2)
            await until(lambda: held_offset(b1, "b2") > third.offset, "b2 is back")

            # Nulls that say nothing, or name what cannot be known yet, take nothing away.
            before = dropped(b1).get("bare-null", 0)
            log.write("b2", None)
            log.write("b2", None, Tombstone(EXPIRED, 10**9, now_ms))
            await until(lambda: dropped(b1).get("bare-null", 0) == before + 2)
            assert "b2" in b1.broker_loads()
        finally:
            log.close()


async def test_the_leader_buries_a_report_that_nobody_renews(kafka: Kafka, topic_prefix: str) -> None:
    channel = FakeChannel(leader="b1")
    short = {"ttl_s": 1.5, "report_max_age_s": 0.5, "grace_s": 0.5}
    async with broker(kafka, topic_prefix, "b1", channel, **short) as b1:
        await until(lambda: "b1" in b1.broker_loads())
        log = Log(kafka, LoadTopics(topic_prefix).broker_load)
        try:
            own = log.of("b1")[-1]
            channel.registered.add("dead")
            log.write("dead", own.value.replace(b'"b1"', b'"dead"'))
            log.write("stranger", own.value.replace(b'"b1"', b'"stranger"'))
            await until(lambda: "dead" in b1.broker_loads())
            await until(lambda: b1.status()["views"]["broker-load"]["strangers"] == 1)
            await until(
                lambda: b1.status()["suspects"][ReportKind.BROKER_LOAD] == ["dead", "stranger"],
                "first they are suspect",
            )
            assert "stranger" not in b1.broker_loads(), "nobody has registered it"
            assert "dead" in b1.broker_loads()
            await until(lambda: "dead" not in b1.broker_loads(), "then it is gone")
            await until(lambda: log.of("dead")[-1].value is None, "by a tombstone, which this reader may see later")
            null = log.of("dead")[-1]
            assert dict(null.headers)["reason"] == b"expired"
            assert int(dict(null.headers)["last-offset"]) == log.of("dead")[0].offset
            await until(lambda: log.of("stranger")[-1].value is None, "who is not registered is buried, too")
            assert "b1" in b1.broker_loads()
        finally:
            log.close()


async def test_only_the_leader_buries_and_only_where_the_spark_job_does_not(kafka: Kafka, topic_prefix: str) -> None:
    channel = FakeChannel(leader="b2")
    short = {"ttl_s": 0.8, "report_max_age_s": 0.3, "grace_s": 0.1}
    async with (
        broker(kafka, topic_prefix, "b1", channel, **short) as b1,
        broker(kafka, topic_prefix, "b2", channel, tombstones="spark", **short) as b2,
    ):
        await until(lambda: set(b1.broker_loads()) == {"b1", "b2"} == set(b2.broker_loads()))
        log = Log(kafka, LoadTopics(topic_prefix).broker_load)
        try:
            own = log.of("b1")[-1]
            channel.registered.add("dead")
            log.write("dead", own.value.replace(b'"b1"', b'"dead"'))
            await until(lambda: "dead" in b1.broker_loads() and b1.broker_loads()["dead"].age_s > 1.5)
            assert "dead" in b2.broker_loads()
            assert len(log.of("dead")) == 1
            channel.leader = "b1"
            await until(lambda: "dead" not in b2.broker_loads(), "the one whose settings say so buries it")
        finally:
            log.close()


async def test_a_broker_that_leaves_takes_its_reports_along(kafka: Kafka, topic_prefix: str) -> None:
    channel = FakeChannel(leader="b1")
    async with broker(kafka, topic_prefix, "b1", channel) as b1:
        async with broker(kafka, topic_prefix, "b2", channel):
            await until(lambda: "b2" in b1.broker_loads() and "b2" in b1.top_bundles())
        await until(lambda: "b2" not in b1.broker_loads(), "its load is buried")


async def test_simulated_load_goes_all_the_way(kafka: Kafka, topic_prefix: str) -> None:
    channel = FakeChannel(leader="b1")
    source = SimulatedSource(7, lambda: BUNDLES, time.time, SimulatedSettings())
    async with broker(kafka, topic_prefix, "b1", channel, source) as b1:  # type: ignore[arg-type]
        await until(lambda: len(b1.top_bundles().get("b1", ((),))[0]) == len(BUNDLES) and "b1" in b1.broker_loads())
        assert (
            b1.local_load().topics
            == b1.broker_loads()["b1"].load.topics
            == sum(bundle.stats.topics for bundle in source.bundles().values())
        )


async def test_topics_are_created_as_wanted_or_refused(kafka: Kafka, topic_prefix: str) -> None:
    client = ClientSettings(kafka.bootstrap_servers)
    topics = LoadTopics(topic_prefix)
    connection = LoadConnection(client, topic_prefix, create_topics=False)
    source = Source()
    service = LoadService(
        LoadSettings(), connection, Identity("b1", "b1-1", b"0123456789", 1), source, FakeChannel().of("b1")
    )
    with pytest.raises(TopicMissingError, match="broker-load"):
        await service.start()
    await service.close()
    async with broker(kafka, topic_prefix, "b1", FakeChannel()):
        assert verify_topics(client, topics).differences == ()


async def test_while_kafka_is_away_the_loads_age_and_then_all_goes_on(own_kafka: KafkaServer, topic_prefix: str):
    kafka = Kafka(own_kafka.bootstrap_servers, "its own")
    channel = FakeChannel(leader="b1")
    quick = {"report_max_age_s": 0.5, "confirm_s": 0.5, "delivery_timeout_ms": 3_000}
    async with broker(kafka, topic_prefix, "b1", channel, **quick) as b1:
        await until(lambda: "b1" in b1.broker_loads() and "b1" in b1.top_bundles())
        await asyncio.to_thread(own_kafka.kill)
        await until(lambda: b1.broker_loads()["b1"].age_s > 2.5, "nothing comes, so it ages", b1)
        before = b1.status()["reading"]
        await until(lambda: b1.status()["reading"] > before, "it goes on measuring", b1)
        assert b1.status()["failing"] == {}
        back_s = time.monotonic()
        await asyncio.to_thread(own_kafka.start)
        await until(lambda: b1.broker_loads()["b1"].age_s < time.monotonic() - back_s, "its reports come again", b1)
        await until(lambda: b1.top_bundles()["b1"].age_s < time.monotonic() - back_s, "its top bundles, too", b1)
        assert b1.status()["writer"]["written"] > 0


async def test_a_topic_that_is_made_anew_is_read_from_its_beginning(kafka: Kafka, topic_prefix: str) -> None:
    channel = FakeChannel()
    async with broker(kafka, topic_prefix, "b1", channel, report_max_age_s=1.0) as b1:

        def many() -> bool:
            """So many that the new topic's first offsets cannot be passed over between two looks."""
            b1.report_now()
            return "b1" in b1.broker_loads() and held_offset(b1, "b1") > MANY

        await until(many)
        client, topics = ClientSettings(kafka.bootstrap_servers), LoadTopics(topic_prefix)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        await asyncio.to_thread(admin.delete_topics([topics.broker_load])[topics.broker_load].result, 20)
        await until(lambda: make_again(client, topics), "the topic is there again")
        await until(
            lambda: b1.broker_loads().get("b1") and 0 <= held_offset(b1, "b1") < MANY, "it reports into the new one"
        )
        first = held_offset(b1, "b1")
        await until(lambda: held_offset(b1, "b1") > first, "and goes on")


def make_again(client: ClientSettings, topics: LoadTopics) -> bool:
    try:
        create_topics(client, topics, replication_factor=1, timeout_s=5.0)
    except KafkaAdapterError:
        return False
    return True


def records(service: LoadService) -> dict[str, int]:
    return service.status()["views"]["broker-load"]["records"]


def dropped(service: LoadService) -> dict[str, int]:
    return service.status()["views"]["broker-load"]["dropped"]


def held_offset(service: LoadService, name: str) -> int:
    seen = service._topics.broker_load.get(name, 0.0)
    return -1 if seen is None else seen.offset
