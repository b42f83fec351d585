"""Faults of one broker's connections to Kafka: cut, refused, held, delayed, half-closed; all of them, or one apart.

A broker that has lost one connection is sick, not dead: it goes on with what it has left. The others must be able to lead,
repair and serve beside it for as long as that lasts.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from tests.faults.fault import Fault, fault
from tests.faults.purposes import Purpose

if TYPE_CHECKING:
    from tests.faults.link import Link
    from tests.faults.world import World


class _OfLinks(Fault):
    links: tuple[Link, ...] = ()

    async def begin(self, world: World) -> str:
        broker = await world.resolve(self.target)
        self.touched = (broker,)
        self.links = tuple(world.kafka.links_of(broker))
        await self.strike()
        return f"{broker}, {sum(link.connections for link in self.links)} connections"

    async def strike(self) -> None:
        raise NotImplementedError

    async def heal(self, world: World) -> None:
        for link in self.links:
            link.heal()


@fault
class LinkCut(_OfLinks):
    """Every connection reset, again and again; new ones work at once."""

    kind, held_s = "link-cut", (0.0, 4.0)
    task: asyncio.Task[None] | None = None

    async def strike(self) -> None:
        async def cutting() -> None:
            while True:
                for link in self.links:
                    link.cut()
                await asyncio.sleep(0.7)

        self.task = asyncio.create_task(cutting())
        await asyncio.sleep(0)

    async def heal(self, world: World) -> None:
        if self.task is not None:
            self.task.cancel()
        await super().heal(world)


@fault
class LinkRefused(_OfLinks):
    """Reset, and no new connection: the broker is cut off and knows it."""

    kind, weight, held_s = "link-refused", 3, (1.0, 14.0)

    async def strike(self) -> None:
        for link in self.links:
            link.refusing = True
            link.cut()


@fault
class LinkHeld(_OfLinks):
    """Nothing comes through in either direction, and nobody is told: a router that drops packets."""

    kind, weight, held_s = "link-held", 4, (1.0, 14.0)

    async def strike(self) -> None:
        for link in self.links:
            link.hold()


@fault
class LinkDeaf(_OfLinks):
    """What the broker writes arrives; what Kafka answers does not: its records are in the log, and it cannot know."""

    kind, weight, held_s = "link-deaf", 4, (1.0, 12.0)

    async def strike(self) -> None:
        for link in self.links:
            link.hold(up=False, down=True)


@fault
class LinkMute(_OfLinks):
    """What the broker writes is held, and arrives late; what Kafka has sent still comes."""

    kind, weight, held_s = "link-mute", 3, (1.0, 12.0)

    async def strike(self) -> None:
        for link in self.links:
            link.hold(up=True, down=False)


@fault
class LinkHalfClosed(_OfLinks):
    """Kafka is told that the broker has closed; the broker is not."""

    kind, held_s = "link-half-closed", (1.0, 10.0)

    async def strike(self) -> None:
        for link in self.links:
            link.half_close()


@fault
class LinkSlow(_OfLinks):
    """Each piece of data is late."""

    kind, held_s = "link-slow", (3.0, 10.0)

    @classmethod
    def pick_params(cls, rng: random.Random) -> dict[str, Any]:
        return {"delay_s": rng.choice([0.05, 0.2, 0.8, 2.5])}

    async def strike(self) -> None:
        for link in self.links:
            link.delay(self.params["delay_s"])


DIRECTIONS = {"both": (True, True), "up": (True, False), "down": (False, True)}


class _OfOneConnection(_OfLinks):
    """Connections of one purpose, in one direction or both; all the broker's other connections work."""

    @classmethod
    def pick_params(cls, rng: random.Random) -> dict[str, Any]:
        return {"purpose": rng.choice([str(purpose) for purpose in Purpose]), "direction": rng.choice([*DIRECTIONS])}

    async def begin(self, world: World) -> str:
        said = await super().begin(world)
        return f"{said}, {sum(link.connections_for(self.purpose) for link in self.links)} of them {self.purpose}"

    @property
    def purpose(self) -> Purpose:
        return Purpose(self.params["purpose"])

    async def strike(self) -> None:
        up, down = DIRECTIONS[self.params["direction"]]
        for link in self.links:
            link.hold(up=up, down=down, purpose=self.purpose)


@fault
class ConnectionHeld(_OfOneConnection):
    """One connection is silent (a producer's, a consumer's, the election's), in one direction or both; the others work."""

    kind, weight, held_s = "connection-held", 5, (1.0, 14.0)


@fault
class ConnectionReset(_OfOneConnection):
    """One connection is reset as soon as it is used, again and again; the others work."""

    kind, weight, held_s = "connection-reset", 2, (1.0, 14.0)

    @classmethod
    def pick_params(cls, rng: random.Random) -> dict[str, Any]:
        return {"purpose": rng.choice([str(purpose) for purpose in Purpose])}

    async def strike(self) -> None:
        for link in self.links:
            link.resetting.add(self.purpose)
            link.cut(self.purpose)


class _OfTheChannel(ConnectionHeld):
    held: Purpose

    @classmethod
    def pick_params(cls, rng: random.Random) -> dict[str, Any]:
        return {"purpose": str(cls.held), "direction": rng.choice(["both", "up" if cls.held in _WRITES else "down"])}


_WRITES = {Purpose.WRITE_CHANNEL, Purpose.WRITE_REGISTRY}


@fault
class ChannelUnread(_OfTheChannel):
    """A broker writes to the channel and cannot read it; registry, requests and election work."""

    kind, weight, held, held_s = "channel-unread", 3, Purpose.READ_CHANNEL, (1.0, 14.0)


@fault
class ChannelUnwritten(_OfTheChannel):
    """A broker reads the channel and cannot write to it; registry, requests and election work."""

    kind, weight, held, held_s = "channel-unwritten", 3, Purpose.WRITE_CHANNEL, (1.0, 14.0)


@fault
class MemberSick(_OfOneConnection):
    """As `connection-held`, for longer than every patience: the others must lead, repair and serve beside it."""

    kind, weight, held_s, lasting = "member-sick", 3, (1.0, 5.0), True


@fault
class NodeUnreachable(_OfLinks):
    """One of three nodes cannot be reached by one broker, in one direction or both; it reaches the others."""

    kind, weight, nodes, held_s = "node-unreachable", 5, 3, (1.0, 14.0)

    @classmethod
    def pick_params(cls, rng: random.Random) -> dict[str, Any]:
        leads = rng.choice(["channel", "registry", "requests", "any"])
        return {"leads": leads, "node": rng.randrange(3), "direction": rng.choice([*DIRECTIONS])}

    async def begin(self, world: World) -> str:
        broker = await world.resolve(self.target)
        self.touched = (broker,)
        leads = self.params["leads"]
        node = world.kafka.nodes[self.params["node"]]
        if leads != "any":
            node = await world.kafka.leader_of(leads)
        self.links = (node.links[broker],)
        await self.strike()
        return f"{broker} and node {node.number}, {self.links[0].connections} connections"

    async def strike(self) -> None:
        up, down = DIRECTIONS[self.params["direction"]]
        for link in self.links:
            link.hold(up=up, down=down)


@fault
class NodeUnreachableLong(NodeUnreachable):
    """The same for longer than every patience: the others must lead, repair and serve beside that broker."""

    kind, weight, held_s, lasting = "node-unreachable-long", 3, (1.0, 5.0), True
