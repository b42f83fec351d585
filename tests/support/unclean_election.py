"""An unclean leader election on a real Kafka of three nodes: the node that becomes the leader lacks the newest records.

Kafka's shortest way there: a partition with two replicas, of which the follower is stopped while records are written, and the
leader killed before the follower starts again.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import Consumer, ElectionType, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from kafka import KafkaAdminClient
from kafka import TopicPartition as Place
from kafka.errors import KafkaError as PythonKafkaError

from tests.faults.kafka_nodes import KafkaNodes, Node

Answer = TypeVar("Answer")

ASK_S = 10.0
WAIT_S = 180.0
"""A new controller on a busy machine was seen to need 70 s until it had fenced the dead leader."""
PAUSE_S = 0.2


class UncleanElection:
    """One unclean election: `leave_behind`, let records be written, `read_end`, kill the leader, `elect`, `restore`.

    Attributes:
        cut: First offset that was truncated, or the end of the log if nothing was; -1 before the election.
    """

    def __init__(self, nodes: KafkaNodes, topic: str, partition: int) -> None:
        self._nodes, self._topic, self.partition = nodes, topic, partition
        self._admin = AdminClient({"bootstrap.servers": nodes.address, "log_level": 0})
        self._leader = self._follower = 0
        self._min_insync = "1"
        self._read_from = self._epoch = 0
        self.cut = -1

    async def leave_behind(self) -> str:
        """Stop a follower in order; from now on the leader alone has what is written."""
        self._leader, replicas, _ = await self._state()
        self._follower = next(node.number for node in self._nodes.nodes if node.number != self._leader)
        self._min_insync = await self._set_min_insync("1")
        await self._reassign([self._leader, self._follower])
        await self._until(lambda state: set(state[1]) == set(state[2]) == {self._leader, self._follower})
        self._read_from = await self._answered(self._end)
        await self._nodes.nodes[self._follower - 1].stop()
        return f"node {self._follower} stopped, node {self._leader} alone has what follows ({replicas} before)"

    @property
    def leader(self) -> Node:
        """The node that leads until it is killed."""
        return self._nodes.nodes[self._leader - 1]

    async def read_end(self) -> int:
        """Where the log ends as long as the old leader leads."""
        before, end = await asyncio.to_thread(self._read)
        self._epoch = max(before.values(), default=0)
        return end

    async def elect(self) -> None:
        """Start the follower, and elect it in place of the killed leader; after `read_end`."""
        await self._nodes.nodes[self._follower - 1].start()
        await self._until(lambda state: state[0] == self._follower, ask=self._elect)
        after, end = await asyncio.to_thread(self._read)
        self.cut = min((offset for offset in after if after[offset] > self._epoch), default=end)

    async def restore(self) -> None:
        """Start what is down; the partition gets its three replicas and its settings back."""
        await asyncio.gather(*(node.start() for node in self._nodes.nodes if not node.alive))
        if not self._leader:
            return
        everywhere = [node.number for node in self._nodes.nodes]
        await self._until(lambda state: state[0] >= 0)
        await self._reassign(everywhere)
        await self._until(lambda state: set(state[2]) == set(everywhere))
        await self._set_min_insync(self._min_insync)

    async def _answered(self, ask: Callable[[], Answer]) -> Answer:
        """An answer of Kafka's; what it cannot do yet is asked again."""
        until_s = time.monotonic() + WAIT_S
        while True:
            try:
                return await asyncio.to_thread(ask)
            except (KafkaException, PythonKafkaError):
                if time.monotonic() > until_s:
                    raise
                await asyncio.sleep(PAUSE_S)

    async def _state(self) -> tuple[int, list[int], list[int]]:
        """Leader, replicas, and those in sync; a leader below 0 where there is none, or Kafka does not answer."""

        def ask() -> tuple[int, list[int], list[int]]:
            try:
                metadata = self._admin.list_topics(self._topic, timeout=ASK_S)
            except KafkaException:
                return -1, [], []
            partition = metadata.topics[self._topic].partitions[self.partition]
            return partition.leader, list(partition.replicas), list(partition.isrs)

        return await asyncio.to_thread(ask)

    async def _until(
        self, done: Callable[[tuple[int, list[int], list[int]]], bool], ask: Callable[[], Any] = int
    ) -> None:
        until_s = time.monotonic() + WAIT_S
        while not done(state := await self._state()):
            if time.monotonic() > until_s:
                raise TimeoutError(f"{self._topic}-{self.partition} stays at leader, replicas, in sync: {state}")
            await asyncio.to_thread(ask)
            await asyncio.sleep(PAUSE_S)

    def _elect(self) -> None:
        place = TopicPartition(self._topic, self.partition)
        try:
            self._admin.elect_leaders(ElectionType.UNCLEAN, [place]).result()
        except KafkaException:
            return  # no controller yet, or the dead leader still counts as alive: asked again

    async def _reassign(self, replicas: list[int]) -> None:
        def ask() -> Mapping[Any, Any]:
            admin = KafkaAdminClient(bootstrap_servers=self._nodes.address)
            try:
                asked = {Place(self._topic, self.partition): replicas}
                return dict(admin.alter_partition_reassignments(asked, timeout_ms=int(ASK_S * 1_000)))
            finally:
                admin.close()

        refused = [error for error in (await self._answered(ask)).values() if error is not None]
        if refused:
            raise RuntimeError(f"{self._topic}-{self.partition} cannot be given the replicas {replicas}: {refused}")

    async def _set_min_insync(self, count: str) -> str:
        """Set it; returns what it was."""
        resource = ConfigResource(ResourceType.TOPIC, self._topic)

        def ask() -> str:
            (described,) = self._admin.describe_configs([resource], request_timeout=ASK_S).values()
            before = described.result()["min.insync.replicas"].value
            entry = ConfigEntry("min.insync.replicas", count, incremental_operation=AlterConfigOpType.SET)
            change = ConfigResource(ResourceType.TOPIC, self._topic, incremental_configs=[entry])
            (altered,) = self._admin.incremental_alter_configs([change], request_timeout=ASK_S).values()
            altered.result()
            return str(before)

        return await self._answered(ask)

    def _consumer(self) -> Consumer:
        return Consumer(
            {"bootstrap.servers": self._nodes.address, "group.id": "unclean", "enable.auto.commit": False}
            | {"auto.offset.reset": "earliest", "enable.partition.eof": True, "log_level": 0}
        )

    def _end(self) -> int:
        consumer = self._consumer()
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(self._topic, self.partition), timeout=ASK_S)[1])
        finally:
            consumer.close()

    def _read(self) -> tuple[dict[int, int], int]:
        """Leader epochs by offset, of what was written since the follower was in sync, and the end of the log."""
        consumer = self._consumer()
        epochs: dict[int, int] = {}
        try:
            consumer.assign([TopicPartition(self._topic, self.partition, max(0, self._read_from - 1))])
            until_s = time.monotonic() + WAIT_S
            while time.monotonic() < until_s:
                message = consumer.poll(PAUSE_S)
                if message is not None and message.error() is None:
                    epochs[message.offset() or 0] = message.leader_epoch() or 0
                elif message is not None and message.error().code() == KafkaError._PARTITION_EOF:
                    return epochs, message.offset() or 0
        finally:
            consumer.close()
        raise TimeoutError(f"{self._topic}-{self.partition} cannot be read")
