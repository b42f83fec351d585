"""Faults of broker processes: killed, paused, starved, restarted, doubled, with a clock set apart."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from tests.faults import throttle
from tests.faults.broker_process import set_offset
from tests.faults.fault import Fault, fault

if TYPE_CHECKING:
    from tests.faults.brokers import Incarnation
    from tests.faults.world import World

GOODBYE_S = 25.0
OFFSETS_S = [-86_400, -3_700, -45, -7, 7, 45, 3_700, 86_400]


class _OfOneBroker(Fault):
    victim: Incarnation | None = None

    async def begin(self, world: World) -> str:
        broker = await world.resolve(self.target)
        self.touched = (broker,)
        self.victim = world.brokers.current.get(broker)
        if self.victim is None or not self.victim.running:
            return f"{broker} is down already"
        await self.strike(world, self.victim)
        return self.victim.name

    async def strike(self, world: World, victim: Incarnation) -> None:
        raise NotImplementedError


@fault
class Kill(_OfOneBroker):
    """Signal 9. Its next process comes while it is still in the registry, or long after its bundles went to others."""

    kind, weight, held_s = "kill", 5, (0.0, 12.0)

    async def strike(self, world: World, victim: Incarnation) -> None:
        world.brokers.held_down.add(victim.broker)
        victim.kill()

    async def heal(self, world: World) -> None:
        world.start_if_down(self.touched)


@fault
class Drain(Kill):
    """Signal 15: the orderly way, as in a rolling restart."""

    kind, weight, held_s = "drain", 2, (0.0, 4.0)

    async def strike(self, world: World, victim: Incarnation) -> None:
        world.brokers.held_down.add(victim.broker)
        victim.stop()
        await world.gone([victim], GOODBYE_S)


class _Pause(_OfOneBroker):
    async def strike(self, world: World, victim: Incarnation) -> None:
        victim.pause()

    async def heal(self, world: World) -> None:
        if self.victim is not None:
            self.victim.resume()


@fault
class PauseShort(_Pause):
    """Below every patience."""

    kind, held_s = "pause-short", (0.2, 2.0)


@fault
class PauseSafe(_Pause):
    """Longer than safe mode's patience, shorter than the expiry; around the lease."""

    kind, weight, held_s = "pause-safe", 3, (3.3, 5.7)


@fault
class PauseLost(_Pause):
    """Longer than expiry and session: its bundles go to others while it sleeps."""

    kind, weight, held_s = "pause-lost", 5, (6.3, 9.5)


@fault
class PauseLong(_Pause):
    """Longer than everything, its own watchdog included."""

    kind, held_s = "pause-long", (10.5, 22.0)


@fault
class PauseFlicker(_Pause):
    """Again and again, half a second at a time."""

    kind, weight, held_s = "pause-flicker", 1, (3.0, 6.0)
    task: asyncio.Task[None] | None = None

    async def strike(self, world: World, victim: Incarnation) -> None:
        async def flicker() -> None:
            while True:
                victim.pause()
                await asyncio.sleep(0.5)
                victim.resume()
                await asyncio.sleep(0.2)

        self.task = asyncio.create_task(flicker())

    async def heal(self, world: World) -> None:
        if self.task is not None:
            self.task.cancel()
        await super().heal(world)


@fault
class Zombie(_Pause):
    """Paused, a new process started under its id, and woken when that one has taken its place."""

    kind, weight, held_s = "zombie", 3, (11.0, 16.0)

    async def strike(self, world: World, victim: Incarnation) -> None:
        victim.pause()
        victim.done.add("beside")
        world.brokers.start(victim.broker).done.add("beside")


class _OfAll(Fault):
    @classmethod
    def pick_target(cls, rng: random.Random, brokers: list[str]) -> str:
        return "all"

    async def heal(self, world: World) -> None:
        world.start_if_down(self.touched)


@fault
class KillAll(_OfAll):
    """Every broker killed at once, and all started again."""

    kind, held_s = "kill-all", (0.0, 9.0)

    async def begin(self, world: World) -> str:
        self.touched = tuple(world.brokers.ids)
        victims = list(world.brokers.running())
        world.brokers.held_down.update(world.brokers.ids)
        for victim in victims:
            victim.process.kill()
        for victim in victims:
            victim.kill()
        return ", ".join(victim.name for victim in victims)


@fault
class KillMost(_OfAll):
    """All but one killed at once: more than a third, so repair pauses."""

    kind, held_s = "kill-most", (0.0, 12.0)

    @classmethod
    def pick_params(cls, rng: random.Random) -> dict[str, Any]:
        return {"spared": rng.randrange(10)}

    async def begin(self, world: World) -> str:
        ids = world.brokers.ids
        spared = ids[self.params["spared"] % len(ids)]
        self.touched = tuple(broker for broker in ids if broker != spared)
        victims = [process for process in world.brokers.running() if process.broker != spared]
        world.brokers.held_down.update(self.touched)
        for victim in victims:
            victim.process.kill()
        for victim in victims:
            victim.kill()
        return f"all but {spared}"


@fault
class RestartAll(_OfAll):
    """Every broker told to go at once, and all started again."""

    kind, weight, held_s = "restart-all", 1, (0.0, 3.0)

    async def begin(self, world: World) -> str:
        self.touched = tuple(world.brokers.ids)
        victims = list(world.brokers.running())
        world.brokers.held_down.update(world.brokers.ids)
        for victim in victims:
            victim.stop()
        await world.gone(victims, GOODBYE_S)
        return ", ".join(victim.name for victim in victims)


@fault
class PauseAll(_OfAll):
    """Every broker paused at once, as when the machine under them all is moved."""

    kind, weight, held_s = "pause-all", 1, (2.0, 12.0)
    victims: tuple[Incarnation, ...] = ()

    async def begin(self, world: World) -> str:
        self.touched = tuple(world.brokers.ids)
        self.victims = tuple(world.brokers.running())
        for victim in self.victims:
            victim.pause()
        return ", ".join(victim.name for victim in self.victims)

    async def heal(self, world: World) -> None:
        for victim in self.victims:
            victim.resume()


@fault
class ClockApart(Kill):
    """Killed, and started again with a wall clock that is far off, until it is started once more."""

    kind, weight, held_s = "clock-apart", 2, (0.0, 2.0)

    @classmethod
    def pick_params(cls, rng: random.Random) -> dict[str, Any]:
        return {"offset_s": rng.choice(OFFSETS_S)}

    async def strike(self, world: World, victim: Incarnation) -> None:
        await super().strike(world, victim)
        world.brokers.wall_offset_s[victim.broker] = self.params["offset_s"]


@fault
class ClockJump(_OfOneBroker):
    """The wall clock of a running broker jumps, and jumps back."""

    kind, weight, held_s = "clock-jump", 2, (1.0, 10.0)

    @classmethod
    def pick_params(cls, rng: random.Random) -> dict[str, Any]:
        return {"offset_s": rng.choice(OFFSETS_S)}

    async def strike(self, world: World, victim: Incarnation) -> None:
        set_offset(world.brokers.clock_of(victim.broker), self.params["offset_s"])

    async def heal(self, world: World) -> None:
        for broker in self.touched:
            set_offset(world.brokers.clock_of(broker), world.brokers.wall_offset_s.get(broker, 0.0))


@fault
class CpuStarved(_OfOneBroker):
    """A broker gets a hundredth to a sixteenth of one processor: it does everything, and everything late."""

    kind, weight, held_s = "cpu-starved", 3, (4.0, 15.0)
    held_back: throttle.Throttle | None = None

    @classmethod
    def pick_params(cls, rng: random.Random) -> dict[str, Any]:
        return {"share": rng.choice([0.01, 0.03, 0.06])}

    async def begin(self, world: World) -> str:
        said = await super().begin(world)
        return said if self.held_back is None else f"{said}, by {self.held_back.how}"

    async def strike(self, world: World, victim: Incarnation) -> None:
        self.held_back = throttle.starve(victim.pid, self.params["share"])

    async def heal(self, world: World) -> None:
        if self.held_back is not None:
            self.held_back.lift()
