"""Faults of one broker's connections to Kafka: cut, refused, held, delayed, half-closed."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from tests.faults.fault import Fault, fault

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
