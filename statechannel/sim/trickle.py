"""Junk that never ends, a little of it, each record on a key of its own: members go on to vouch, and joins go on to end."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from statechannel.protocol.codec import encode
from statechannel.protocol.log import Topic
from statechannel.protocol.states import State
from statechannel.sim.drafts import Scribe
from statechannel.sim.options import LAG_S
from statechannel.sim.violation import Violation
from statechannel.sim.vouching import vouched_to

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statechannel.sim.world import SimWorld

RATES = (1.0, 2.0, 5.0, 5.0)
ALONE_S = 16.0
"""Longer than half the lag and the time after which debts are paid at once: by then some heartbeat was clean again."""
ALONE_SHARE = 0.5
JOIN_S = 12.0
DEAF_RATES = (6.0, 8.0)
"""At least one record between two ticks: there is a moment without debt only if debts are paid as they are read."""
DEAF_LAG_S = 30.0
DEAF_JOIN_S = 5.0


class Trickle:
    """Writes junk at a rate until it is ended."""

    def __init__(self, world: SimWorld, rng: Random, rates: Sequence[float] = RATES) -> None:
        self._world, self._rng = world, rng
        self._scribe = Scribe("x", "i8")
        self._count = 0
        self._gap_s = 1.0 / rng.choice(rates)
        self.is_on = True

    def write(self) -> None:
        """One record on a key that nobody has used, and the next one in time."""
        world = self._world
        if not self.is_on:
            return
        self._count += 1
        namespace = self._rng.choice(world.namespaces)
        bounds = f"0x{self._count:08x}_0x{self._count + 1:08x}"
        fields = self._scribe.head("proposal", -1) | {"version": 7, "base": "zz", "state": State.ASSIGNED}
        value = encode(fields | {"from": None, "to": "x"})
        partition = world.partition_of(namespace)
        world.append("trickle", Topic.CHANNEL, partition, f"{namespace}/{bounds}".encode(), value)
        world.events.after(self._gap_s, self.write)


def join_in_a_trickle(world: SimWorld, rng: Random) -> None:
    """Let it trickle: perhaps the members alone at first, then one who joins; both are judged while it goes on."""
    trickle = Trickle(world, rng)
    world.note("junk begins to trickle")
    for process in world.alive():
        process.slow = False  # a cold start at the end may have left its leader so
    world.trace.count("trickles")
    trickle.write()
    if rng.random() < ALONE_SHARE:
        world.events.run_until(world.events.now_s + ALONE_S)
        for log in world.logs:
            if vouched_to(log, log.end, world.now_ms, marks=world.checks.marks(log.partition)) < 0:
                raise Violation("unvouched", f"nobody has vouched for partition {log.partition} for {LAG_S / 2:g} s")
    name = f"b{len(world.brokers)}"
    world.brokers.append(name)
    process = world.spawn(name)
    until_s = world.events.now_s + JOIN_S
    while not process.engine.caught_up:
        if world.events.now_s > until_s or not process.alive:
            phases = ", ".join(f"{replica.phase}: {replica.why}" for replica in process.engine.replicas)
            raise Violation("starved", f"{name} has not joined within {JOIN_S:g} s of a trickle: {phases}")
        world.events.run_until(world.events.now_s + 0.5)
    trickle.is_on = False


def join_without_a_clock(world: SimWorld, rng: Random) -> None:
    """One joins, and does not hear itself in the registry: without Kafka's clock it has to wait for a clean heartbeat.

    All others hear that it joins: so long debts are paid as they are read.
    """
    trickle = Trickle(world, rng, DEAF_RATES)
    world.note("junk begins to trickle, faster")
    for process in world.alive():
        process.slow = False
    trickle.write()
    name = f"b{len(world.brokers)}"
    world.brokers.append(name)
    process = world.spawn(name)
    while process.alive and not process.engine.context.announced:
        world.events.run_until(world.events.now_s + 0.0005)
    process.lag_s[Topic.REGISTRY] = DEAF_LAG_S
    until_s = world.events.now_s + DEAF_JOIN_S
    while process.engine.presence.clock_ahead_ms is None and not process.engine.caught_up:
        if world.events.now_s > until_s or not process.alive:
            phases = ", ".join(f"{replica.phase}: {replica.why}" for replica in process.engine.replicas)
            raise Violation("starved", f"{name} has waited for a clean heartbeat for {DEAF_JOIN_S:g} s: {phases}")
        world.events.run_until(world.events.now_s + 0.1)
    if process.engine.presence.clock_ahead_ms is None:
        world.trace.count("deaf joiners")
    trickle.is_on = False
    process.heal()
