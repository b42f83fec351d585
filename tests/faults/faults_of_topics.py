"""Faults of the channel's topics: partitions added, records deleted or truncated, transactions of other producers."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from confluent_kafka.cimpl import NewPartitions

from tests.faults.fault import Fault, fault
from tests.faults.faults_in_debt import write_junk
from tests.support.unclean_election import UncleanElection

if TYPE_CHECKING:
    from tests.faults.brokers import Incarnation
    from tests.faults.world import World

ASK_S = 10.0
NO_RECORD = b"!note"
"""A control key that nobody judges."""


class _BesideAnother(Fault):
    """What is done to a topic shows in a broker that opens it afterwards, beside those that run: one is killed for it."""

    on_kafka = True
    restarted: str = ""

    @classmethod
    def pick_params(cls, rng: random.Random) -> dict[str, Any]:
        return {"restarted": rng.choice(["leader", "owner"])}

    async def kill_one(self, world: World) -> str:
        self.restarted = await world.resolve(self.params["restarted"])
        victim = world.brokers.current.get(self.restarted)
        if victim is None or not victim.running:
            return f"{self.restarted} is down already"
        world.brokers.held_down.add(self.restarted)
        victim.kill()
        return f"killed {victim.name}"

    async def heal(self, world: World) -> None:
        if self.restarted:
            world.start_if_down([self.restarted])


@fault
class PartitionsAdded(_BesideAnother):
    """A partition added to a topic of the channel, for good; a broker is killed, and starts beside those that counted before."""

    kind, weight, held_s = "partitions-added", 1, (0.5, 9.0)

    @classmethod
    def pick_params(cls, rng: random.Random) -> dict[str, Any]:
        return super().pick_params(rng) | {"topic": rng.choice(["channel", "channel", "registry", "requests"])}

    async def begin(self, world: World) -> str:
        name = world.kafka.name_of(self.params["topic"])
        try:
            count = await asyncio.to_thread(add_partition, world.kafka.address, name)
        except KafkaException as error:  # another fault may keep all of Kafka away
            return f"not done: {error}"
        return f"{name} has {count}; {await self.kill_one(world)}"


@fault
class HeadDeleted(_BesideAnother):
    """The channel's records deleted while its policy allows that; a broker is killed, and starts on what is left."""

    kind, weight, held_s, alone = "head-deleted", 2, (0.0, 9.0), True

    async def begin(self, world: World) -> str:
        before = {number: records[-1].offset + 1 for number, records in enumerate(world.copy.partitions) if records}
        world.deleted_below.update(before)
        await asyncio.to_thread(delete_records, world.kafka.address, world.kafka.channel, before)
        return f"records below {before}; {await self.kill_one(world)}"


@fault
class Transaction(Fault):
    """A transaction in each partition of the channel: committed, aborted, or open for as long as the fault is on."""

    kind, weight, held_s, on_kafka = "transaction", 2, (0.0, 12.0), True
    junk = False
    producer: Producer | None = None

    @classmethod
    def pick_params(cls, rng: random.Random) -> dict[str, Any]:
        return {"end": rng.choice(["commit", "abort", "open"])}

    async def begin(self, world: World) -> str:
        known = await world.bundles() if self.junk else {}
        try:
            return await asyncio.to_thread(self._write, world, known)
        except KafkaException as error:  # another fault may keep all of Kafka away
            return f"not done: {error}"

    def _write(self, world: World, known: Mapping[str, Any]) -> str:
        channel, partitions = world.kafka.channel, len(world.copy.partitions)
        identifier = uuid.uuid4().hex
        producer = self.producer = Producer(
            {"bootstrap.servers": world.kafka.address, "transactional.id": identifier, "log_level": 0}
        )
        note = orjson.dumps({"transaction": identifier})
        world.uncommitted.add(note)
        producer.init_transactions(ASK_S)
        producer.begin_transaction()
        for partition in range(partitions):
            producer.produce(channel, note, NO_RECORD, partition=partition)
        offsets = write_junk(producer, channel, partitions, known)
        if self.params["end"] != "open":
            self._end(commit=self.params["end"] == "commit")
        if self.params["end"] == "commit":
            world.uncommitted.discard(note)
        return f"junk at {offsets}" if self.junk else "no junk"

    def _end(self, *, commit: bool) -> None:
        producer, self.producer = self.producer, None
        if producer is not None:
            (producer.commit_transaction if commit else producer.abort_transaction)(ASK_S)

    async def heal(self, world: World) -> None:
        with contextlib.suppress(KafkaException):  # Kafka ends it by its time-out
            await asyncio.to_thread(self._end, commit=False)


@fault
class TransactionWithJunk(Transaction):
    """The same, with sound proposals that everybody rejects: no reader may take them for the truth, or start over."""

    kind, weight, alone, junk = "transaction-junk", 2, True, True


@fault
class ElectionUnclean(Fault):
    """Records that only the leader had are lost by an unclean election; a broker may sleep meanwhile, and have read none."""

    kind, weight, nodes, held_s, on_kafka, alone = "election-unclean", 1, 3, (0.5, 5.0), True, True
    election: UncleanElection | None = None
    asleep: Incarnation | None = None

    @classmethod
    def pick_params(cls, rng: random.Random) -> dict[str, Any]:
        return {"partition": rng.randrange(60), "asleep": rng.choice(["nobody", "leader", "owner"])}

    async def begin(self, world: World) -> str:
        partition = self.params["partition"] % len(world.copy.partitions)
        if self.params["asleep"] != "nobody":
            self.asleep = world.brokers.current[await world.resolve(self.params["asleep"])]
            self.asleep.pause()
        self.election = UncleanElection(world.kafka, world.kafka.channel, partition)
        done = await self.election.leave_behind()
        return f"partition {partition}: {done}; asleep: {self.asleep and self.asleep.name}"

    async def heal(self, world: World) -> None:
        election = self.election
        if election is None:
            return
        links = election.leader.links.values()
        for link in links:  # no broker reads what the copy does not have
            link.refusing = True
            link.cut()
        try:
            await world.copy.branch(election.partition, await election.read_end())
            await election.leader.kill()
            await election.elect()
            world.copy.cut(election.partition, election.cut)
        finally:
            for link in links:
                link.heal()
            if self.asleep is not None:
                self.asleep.resume()
            await election.restore()
        await world.accept_loss()


def add_partition(address: str, topic: str) -> int:
    """The new number of partitions."""
    admin = AdminClient({"bootstrap.servers": address})
    count = len(admin.list_topics(topic, timeout=ASK_S).topics[topic].partitions) + 1
    for future in admin.create_partitions([NewPartitions(topic, count)], request_timeout=ASK_S).values():
        future.result()
    return count


def delete_records(address: str, topic: str, before: Mapping[int, int]) -> None:
    """Delete what lies below an offset of each partition, as retention does while the policy allows it."""
    admin = AdminClient({"bootstrap.servers": address})
    _set_policy(admin, topic, "delete")
    try:
        places = [TopicPartition(topic, number, offset) for number, offset in before.items()]
        until_s = time.monotonic() + ASK_S
        while not _are_deleted(admin, places):  # nodes learn of the policy one after the other
            if time.monotonic() > until_s:
                raise TimeoutError(f"Kafka deletes no records of {topic}")
            time.sleep(0.2)
    finally:
        _set_policy(admin, topic, "compact")


def _are_deleted(admin: AdminClient, places: list[TopicPartition]) -> bool:
    try:
        for future in admin.delete_records(places, request_timeout=ASK_S).values():
            future.result()
    except KafkaException:
        return False
    return True


def _set_policy(admin: AdminClient, topic: str, policy: str) -> None:
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource], request_timeout=ASK_S).values():
        future.result()
