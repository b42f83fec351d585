"""Faults of Kafka itself: killed, paused, restarted, its disk full or slow, nodes of three lost."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any

from tests.faults import throttle
from tests.faults.fault import Fault, fault
from tests.faults.kafka_clock import ClockSpan, set_clock

if TYPE_CHECKING:
    from tests.faults.kafka_nodes import Node
    from tests.faults.world import World


class _OfKafka(Fault):
    on_kafka = True
    node: Node | None = None

    async def begin(self, world: World) -> str:
        self.node = world.kafka.nodes[0]
        await self.strike(self.node)
        return f"node {self.node.number}"

    async def strike(self, node: Node) -> None:
        raise NotImplementedError

    async def heal(self, world: World) -> None:
        if self.node is not None:
            self.node.resume()
            self.node.free_disk()
            if not self.node.alive:
                await self.node.start()


@fault
class KafkaKill(_OfKafka):
    """The only node killed with signal 9, and started again."""

    kind, weight, nodes, held_s = "kafka-kill", 3, 1, (0.0, 8.0)

    async def strike(self, node: Node) -> None:
        await node.kill()


@fault
class KafkaRestart(_OfKafka):
    """The only node stopped in order, and started again."""

    kind, nodes, held_s = "kafka-restart", 1, (0.0, 3.0)

    async def strike(self, node: Node) -> None:
        await node.stop()


@fault
class KafkaPauseShort(_OfKafka):
    """The only node paused for less than anybody's patience."""

    kind, nodes, held_s = "kafka-pause-short", 1, (0.3, 2.5)

    async def strike(self, node: Node) -> None:
        node.pause()


@fault
class KafkaPauseLong(KafkaPauseShort):
    """The only node paused for longer than safe mode, expiry, session and delivery time-out."""

    kind, weight, held_s = "kafka-pause-long", 3, (4.0, 14.0)


@fault
class KafkaDiskFull(_OfKafka):
    """No file of Kafka may grow: appends fail, and a node whose only disk fails ends itself."""

    kind, nodes, held_s = "kafka-disk-full", 1, (2.0, 8.0)

    @classmethod
    def pick_params(cls, rng: random.Random) -> dict[str, Any]:
        return {"slack_bytes": rng.choice([0, 200, 2_000, 20_000])}

    async def strike(self, node: Node) -> None:
        node.fill_disk(self.params["slack_bytes"])


@fault
class KafkaDiskSlow(_OfKafka):
    """Few writes a second reach the disk, and every record has to reach it before it is answered."""

    kind, weight, nodes, held_s = "kafka-disk-slow", 3, 1, (4.0, 14.0)
    held_back: throttle.Throttle | None = None

    @classmethod
    def pick_params(cls, rng: random.Random) -> dict[str, Any]:
        return {"writes_per_s": rng.choice([2, 5, 20])}

    async def begin(self, world: World) -> str:
        # Kafka leaves the writing to the kernel; on a disk that nobody waits for nothing is slow.
        await world.kafka.flush_each(on=True)
        said = await super().begin(world)
        return said if self.held_back is None else f"{said}, by {self.held_back.how}"

    async def strike(self, node: Node) -> None:
        self.held_back = node.slow_disk(self.params["writes_per_s"])

    async def heal(self, world: World) -> None:
        if self.held_back is not None:
            self.held_back.lift()
        await super().heal(world)
        await world.kafka.flush_each(on=False)


@fault
class KafkaClock(_OfKafka):
    """The wall clock of the node that leads the channel jumps, and jumps back: the log's times with it, and Kafka's own waits."""

    kind, weight, held_s = "kafka-clock", 2, (1.0, 6.0)
    span: ClockSpan | None = None
    pid: int | None = None

    @classmethod
    def pick_params(cls, rng: random.Random) -> dict[str, Any]:
        # What Kafka has put off to a time after the jump stays put off when the clock is right again: not for longer than this.
        return {"offset_s": rng.choice([-20, -4, 4, 20])}

    async def choose(self, world: World) -> Node:
        return await world.kafka.leader_of("channel")

    async def begin(self, world: World) -> str:
        self.node = await self.choose(world)
        self.pid = self.node.server.pid
        self.span = world.kafka.begin_clock_span(self.params["offset_s"])
        done = await self._set(world, self.params["offset_s"])
        return f"node {self.node.number}{'' if done else ', which did not take it'}"

    async def strike(self, node: Node) -> None:
        """Nothing is done to the process as such."""

    async def _set(self, world: World, offset_s: float) -> bool:
        if self.node is None or self.pid is None or self.node.server.pid != self.pid:
            return False
        return await asyncio.to_thread(set_clock, self.pid, world.kafka.clock_agent(), offset_s)

    async def heal(self, world: World) -> None:
        if self.node is None or self.span is None:
            return
        # A node that another fault has stopped takes it when it runs again.
        while self.pid and self.node.server.pid == self.pid and not await self._set(world, 0.0):  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        self.span.end_ns = time.monotonic_ns()


@fault
class NodeClock(KafkaClock):
    """The same of one of three nodes, whatever it leads: followers clean by their own clock, too."""

    kind, nodes = "node-clock", 3

    @classmethod
    def pick_params(cls, rng: random.Random) -> dict[str, Any]:
        return super().pick_params(rng) | {"node": rng.choice([1, 2, 3])}

    async def choose(self, world: World) -> Node:
        return world.kafka.nodes[self.params["node"] - 1]


class _OfOneNode(_OfKafka):
    nodes = 3

    @classmethod
    def pick_params(cls, rng: random.Random) -> dict[str, Any]:
        return {"node": rng.choice(["controller", "controller", "1", "2", "3"])}

    async def begin(self, world: World) -> str:
        wanted = self.params["node"]
        named = None if wanted == "controller" else world.kafka.nodes[int(wanted) - 1]
        self.node = named or world.kafka.controller()
        role = " (the controller)" if self.node is world.kafka.controller() else ""
        await self.strike(self.node)
        return f"node {self.node.number}{role}"


@fault
class NodeKill(_OfOneNode):
    """One of three nodes killed: any, or the active controller."""

    kind, weight, held_s = "node-kill", 5, (0.0, 12.0)

    async def strike(self, node: Node) -> None:
        await node.kill()


@fault
class NodePause(_OfOneNode):
    """One of three nodes paused: any, or the active controller."""

    kind, weight, held_s = "node-pause", 4, (1.0, 14.0)

    async def strike(self, node: Node) -> None:
        node.pause()


@fault
class NodeRestart(_OfOneNode):
    """One of three nodes restarted in order."""

    kind, held_s = "node-restart", (0.0, 3.0)

    async def strike(self, node: Node) -> None:
        await node.stop()


@fault
class NodeDiskFull(_OfOneNode):
    """One of three nodes has no room left."""

    kind, held_s = "node-disk-full", (2.0, 8.0)

    async def strike(self, node: Node) -> None:
        node.fill_disk(0)


@fault
class QuorumLost(_OfKafka):
    """Two of three nodes killed: no quorum, no topic with its replicas in sync."""

    kind, nodes, weight, held_s = "quorum-lost", 3, 1, (0.0, 8.0)

    async def begin(self, world: World) -> str:
        for node in world.kafka.nodes[:2]:
            await node.kill()
        return "nodes 1 and 2"

    async def heal(self, world: World) -> None:
        await world.start_nodes()


@fault
class NodeDiskSlow(KafkaDiskSlow, _OfOneNode):
    """As `kafka-disk-slow`, for one of three nodes."""

    kind, weight, nodes = "node-disk-slow", 3, 3

    @classmethod
    def pick_params(cls, rng: random.Random) -> dict[str, Any]:
        return KafkaDiskSlow.pick_params(rng) | _OfOneNode.pick_params(rng)


class _OfAllNodes(_OfKafka):
    nodes = 3

    async def heal(self, world: World) -> None:
        for node in world.kafka.nodes:
            node.free_disk()
        await world.start_nodes()


@fault
class NodesKillAll(_OfAllNodes):
    """All three nodes killed with signal 9, at once or one after the other, and started again."""

    kind, weight, held_s = "nodes-kill-all", 2, (0.0, 6.0)

    @classmethod
    def pick_params(cls, rng: random.Random) -> dict[str, Any]:
        return {"apart_s": rng.choice([0, 0, 0.3, 2])}

    async def begin(self, world: World) -> str:
        nodes, apart_s = world.kafka.nodes, self.params["apart_s"]
        if not apart_s:
            await asyncio.gather(*(node.kill() for node in nodes))
        else:
            for node in nodes:
                await node.kill()
                await asyncio.sleep(apart_s)
        return "nodes 1, 2 and 3"


@fault
class NodesKillInTurn(_OfAllNodes):
    """Each of three nodes killed with signal 9 as soon as the one before serves again, whether or not it has caught up."""

    kind, weight, held_s = "nodes-kill-in-turn", 1, (0.0, 2.0)

    async def begin(self, world: World) -> str:
        for node in world.kafka.nodes:
            await node.kill()
            await node.start()
        return "nodes 1, 2 and 3"


@fault
class NodesDiskFull(_OfAllNodes):
    """All three nodes have no room left."""

    kind, weight, held_s = "nodes-disk-full", 1, (2.0, 8.0)

    async def begin(self, world: World) -> str:
        for node in world.kafka.nodes:
            node.fill_disk(0)
        return "nodes 1, 2 and 3"
