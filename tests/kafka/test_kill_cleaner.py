"""The real cleaner at work beneath racing proposers and junk: whoever joins late holds what a full reader holds."""

import asyncio
import random
import threading
import uuid
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager

import orjson
import pytest
from confluent_kafka import Producer

from statechannel.api import StateChannel
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.tail import PartitionTail
from statechannel.protocol.bundle import bundle_key, children_of, namespace_bounds
from statechannel.protocol.digest import digest
from statechannel.protocol.log import RecordRead, Topic
from statechannel.replay import auditor
from statechannel.replay.survey import join_facts
from tests.support.channels import created, make_settings
from tests.support.kafka_lanes import Kafka
from tests.support.killing import audit_of, owners, read_log, settled
from tests.support.waits import WAIT_S
from tests.twin.junk import NEWER, ODD_KEYS, is_large, ways

NAMESPACE = "public/default"
BOUNDS = namespace_bounds(16)
BUNDLES = [bundle_key(NAMESPACE, BOUNDS[n], BOUNDS[n + 1]) for n in range(16)]
STATES = ("Unassigned", "Assigning", "Assigned", "Releasing", "Splitting", "Deleted")
LAG_S = 10
"""The shortest that the settings allow: ten times the shortest delivery time-out."""
SHORT = {
    "kafka": {"delivery_timeout_ms": 1_000, "request_timeout_ms": 500},
    "channel": {
        "min_compaction_lag_ms": LAG_S * 1_000,
        "segment_ms": 1_000,
        "max_compaction_lag_ms": LAG_S * 1_000,
        "min_cleanable_dirty_ratio": 0.01,
        "delete_retention_ms": 2 * LAG_S * 1_000,
    },
    "leader": {"debt_age_s": 0.5},
}
JOINS_AT_S = (14, 20, 26)


class FullReader:
    """Reads everything before the cleaner can come, from the first record on."""

    def __init__(self, bootstrap: str, channel: str) -> None:
        self.records: list[RecordRead] = []
        self._place = (bootstrap, channel)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        bootstrap, channel = self._place
        with PartitionTail(ClientSettings(bootstrap), Topic.CHANNEL, channel, 0, group_id=f"{channel}-full") as tail:
            for batch in tail.follow(0, stop=self._stop.is_set):
                self.records.extend(batch)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(WAIT_S)

    async def digest_at(self, offset: int) -> str:
        await settled(lambda: bool(self.records) and self.records[-1].offset >= offset, WAIT_S)
        prefix = [record for record in list(self.records) if record.offset <= offset]
        assert [record.offset for record in prefix] == list(range(offset + 1)), (
            "the full reader fell behind the cleaner"
        )
        return digest([audit_of(prefix)[0].view])


@asynccontextmanager
async def busy_with(*work: Coroutine) -> AsyncIterator[None]:
    """Keep doing it until the block ends; none of it may have failed by then."""
    tasks = [asyncio.create_task(item) for item in work]
    try:
        yield
        assert [task.exception() for task in tasks if task.done()] == []
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def full_reader(bootstrap: str, channel: str) -> Iterator[FullReader]:
    reader = FullReader(bootstrap, channel)
    try:
        yield reader
    finally:
        reader.close()


def junk(seed: int) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Records without end that must change nothing: bad bytes, nulls, and sound proposals of any version and state."""
    rng = random.Random(seed)
    sound = proposal(rng, "Assigned")
    odd = [way.value for way in ways(sound, "bundle") if way.outcome != NEWER and not is_large(way)]
    while True:
        key = rng.choice([*BUNDLES, f"{NAMESPACE}/0x10000000_0x18000000", "public/other", NAMESPACE]).encode()
        match rng.randrange(5):
            case 0:
                yield key, rng.choice(odd)
            case 1:
                yield key, None
            case 2:
                yield rng.choice(ODD_KEYS), b"x"
            case _:
                yield key, orjson.dumps(proposal(rng, rng.choice(STATES)))


def proposal(rng: random.Random, state: str) -> dict:
    results = {
        "format": 1,
        "kind": "proposal",
        "id": uuid.UUID(int=rng.getrandbits(128)).hex,
        "covers": rng.choice([-1, 0, rng.randrange(100), 2**50]),
        "by": {"broker": "m1", "incarnation": "hostile"},
        "version": rng.choice([0, 1, 3, rng.randrange(200), 2**40]),
        "base": rng.choice([None, uuid.UUID(int=rng.getrandbits(128)).hex]),
        "state": state,
        "from": rng.choice([None, "m1", "m2"]),
        "to": rng.choice([None, "m1", "hostile"]),
        "forced": rng.random() < 0.5,
    }
    if state == "Deleted":
        results["children"] = children_of(BOUNDS[:3])
    return results


async def throw_junk(bootstrap: str, channel: str, seed: int) -> None:
    """Bursts with pauses, until cancelled."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    records = junk(seed)
    try:
        while True:
            for _ in range(60):
                key, value = next(records)
                if key is None and value is None:
                    continue
                producer.produce(channel, key=key, value=value, partition=0)
                producer.poll(0)
                await asyncio.sleep(0.02)
            await asyncio.sleep(1.5)
    finally:
        producer.flush(5)


async def race(channel: StateChannel, other: StateChannel, seed: int) -> None:
    """Both want to move the same bundles at the same time, until cancelled."""
    rng = random.Random(seed)
    while True:
        bundle = rng.choice(BUNDLES)
        tickets = [
            await channel.transfer(bundle, "m2"),
            await other.transfer(bundle, "m1"),
            await channel.unload(bundle),
        ]
        await asyncio.gather(*(ticket.started(5) for ticket in tickets))
        await channel.lookup(bundle, 5)


def missing(records: list[RecordRead]) -> int:
    """Offsets that the cleaner has taken out."""
    return records[-1].offset + 1 - len(records) if records else 0


@pytest.mark.lane("fast")
async def test_late_joiners_agree_with_a_full_reader_while_the_cleaner_is_at_work(kafka: Kafka, topic_prefix: str):
    at = kafka.bootstrap_servers
    settings = make_settings(at, topic_prefix, **SHORT)
    async with (
        StateChannel.open(settings, broker="m1", create_topics=True, join_timeout_s=WAIT_S) as result,
        StateChannel.open(settings, broker="m2", join_timeout_s=WAIT_S) as two,
    ):
        with full_reader(at, topic_prefix) as full:
            await created(result, NAMESPACE, 16)
            await owners(result, BUNDLES)
            begun_s = asyncio.get_running_loop().time()
            cleaned = []
            async with busy_with(race(result, two, 1), throw_junk(at, topic_prefix, 2)):
                for number, at_s in enumerate(JOINS_AT_S):
                    await asyncio.sleep(max(0, begun_s + at_s - asyncio.get_running_loop().time()))
                    cleaned.append(missing(read_log(at, topic_prefix)))
                    async with StateChannel.open(settings, broker=f"j{number}", join_timeout_s=WAIT_S) as joined:
                        outcome, applied = joined.digest()
                        assert outcome == await full.digest_at(applied[0]), f"joiner {number} at offset {applied[0]}"
            await settled(lambda: result.status()["oldest_debt_s"] == 0 and not result.status()["in_flight"], WAIT_S)
            for member in (result, two):
                outcome, applied = member.digest()
                assert outcome == await full.digest_at(applied[0])
            log = read_log(at, topic_prefix)
            read = auditor.audit_part(0, 1, log, join_facts(log, oldest_kept_ms=log[-1].timestamp_ms - LAG_S * 1_000))
            assert not read.tentative
            assert digest([read.view]) == await full.digest_at(log[-1].offset)
            assert cleaned[-1] > 0, "the cleaner never came, so nothing was shown"
            assert sum(audit_of(full.records)[0].verdicts.values()) > 300
