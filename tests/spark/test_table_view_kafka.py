"""The job table-view on a real Kafka: the view of living members, the archive of all that lies in the log."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from spark.channel.published import SOURCE_OFFSET
from statechannel.api import Done, Owned, StateChannel
from statechannel.protocol.bundle import partition_of
from tests.kafka.test_kill_cleaner import junk
from tests.spark.kafka_logs import Job, LogInKafka
from tests.support.channels import created, make_settings
from tests.support.kafka_lanes import Kafka
from tests.support.killing import settled
from tests.support.waits import WAIT_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.kafka
PARTITIONS = 8
NAMESPACES = ("public/default", "a/b", "c/d")


def throw_junk(log: LogInKafka, seed: int, count: int) -> None:
    """Records that must change nothing, on sound keys in their partitions and on others."""
    producer = Producer({"bootstrap.servers": log.bootstrap, "linger.ms": 0})
    records = junk(seed)
    for _ in range(count):
        key, value = next(records)
        if key is None and value is None:
            continue
        home = partition_of("/".join((key or b"").decode("latin-1").split("/")[:2]), log.partitions)
        producer.produce(log.name, value, key, home)
    assert producer.flush(WAIT_S) == 0


async def move(channel: StateChannel, other: StateChannel, seed: int) -> None:
    """Both move the same bundles at the same time; one is split."""
    rng = random.Random(seed)
    for name in NAMESPACES:
        contents = await asyncio.gather(*(channel.lookup(f"{name}/topic-{number}", WAIT_S) for number in range(6)))
        assert all(isinstance(answer, Owned) for answer in contents)
        chosen = sorted({answer.bundle for answer in contents if isinstance(answer, Owned)})
        bundle = rng.choice(chosen)
        tickets = [
            await channel.transfer(bundle, "m2"),
            await other.transfer(bundle, "m1"),
            await channel.unload(chosen[0]),
        ]
        tickets.append(await other.split(chosen[-1]))
        for ticket in tickets:
            await ticket.outcome(WAIT_S)


async def quiet(*members: StateChannel) -> str:
    """Nothing is in flight and nobody owes anything: the digest that all of them hold."""

    def same() -> bool:
        results = [member.status() for member in members]
        return (
            not any(item["in_flight"] or item["oldest_debt_s"] for item in results)
            and len({member.digest()[0] for member in members}) == 1
        )

    await settled(same, WAIT_S)
    return members[0].digest()[0]


def published(log: LogInKafka, topic: str) -> dict[str, dict[str, Any]]:
    """What a reader of the published topic holds who drops what is older than what he has."""
    consumer = Consumer(
        {"bootstrap.servers": log.bootstrap, "group.id": f"{topic}-reader", "enable.auto.commit": False}
    )
    held: dict[str, tuple[int, Any]] = {}
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=WAIT_S)
        consumer.assign([TopicPartition(topic, 0, 0)])
        position = 0
        while position < end:
            message = consumer.poll(20)
            assert message is not None
            assert message.error() is None
            position = message.offset() + 1
            offset = int(dict(message.headers())[SOURCE_OFFSET])
            name = message.key().decode()
            if offset >= held.get(name, (-1, None))[0]:
                held[name] = (offset, message.value())
    finally:
        consumer.close()
    return {name: orjson.loads(value) for name, (_, value) in held.items() if value is not None}


async def test_the_view_is_that_of_living_members(
    session: SparkSession, kafka: Kafka, topic_prefix: str, tmp_path: Path
) -> None:
    """In two runs, with what has changed published for others."""
    log = LogInKafka(kafka.bootstrap_servers, topic_prefix, PARTITIONS)
    out = LogInKafka(kafka.bootstrap_servers, f"{topic_prefix}-view")
    out.create()
    settings = make_settings(log.bootstrap, log.name, channel={"partitions": PARTITIONS}, leader={"debt_age_s": 0.3})
    async with (
        StateChannel.open(settings, broker="m1", create_topics=True, join_timeout_s=WAIT_S) as result,
        StateChannel.open(settings, broker="m2", join_timeout_s=WAIT_S) as two,
    ):
        for name in NAMESPACES:
            await created(result, name, 4)
        await move(result, two, 1)
        throw_junk(log, 2, 200)
        digest = await quiet(result, two)
        job = Job(session, log, tmp_path / "first", mine={"publish_topic": out.name})
        meta = await asyncio.to_thread(job.run, max_offsets_per_trigger=300)
        assert meta["digest"] == digest
        throw_junk(log, 3, 50)
        await move(two, result, 4)
        assert isinstance(await (await result.delete_namespace(NAMESPACES[2])).outcome(WAIT_S), Done)
        digest = await quiet(result, two)
        meta = await asyncio.to_thread(job.run)
        assert meta["digest"] == digest
        assert (meta["incomplete"], meta["tentative"]) == ([], False)
    job.check(log.read())
    states = session.read.parquet(str(tmp_path / f"first/table/view/v={sequence_of(job):012d}"))
    names = ("state", "version", "from", "to", "id", "owner", "generation", "partition")
    view = {row["key"]: {name: row[name] for name in names} for row in states.where("state is not null").collect()}
    assert published(log, out.name) == view
    assert any(state["version"] > 4 for state in view.values())


def sequence_of(job: Job) -> int:
    pointer = orjson.loads((job.folder / "table/view/LATEST").read_bytes())
    assert isinstance(pointer["sequence"], int)
    return pointer["sequence"]
