"""Faults of Kafka itself: killed, paused, restarted, its disk full, nodes of three lost."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from tests.faults.fault import Fault, fault

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
