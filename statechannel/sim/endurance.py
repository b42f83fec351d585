"""Junk that does not end: a trickle of it in the channel, a flood of it in the registry.

In a trickle, each record on a key of its own, members go on to vouch and joins go on to end. In a flood of the registry, while
each process takes time for what it reads, no view of the channel falls behind.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from statechannel.engine import freshness
from statechannel.engine.context import Mode
from statechannel.protocol.codec import encode
from statechannel.protocol.log import Topic
from statechannel.protocol.states import State
from statechannel.sim.drafts import Scribe
from statechannel.sim.options import LAG_S
from statechannel.sim.violation import Violation
from statechannel.sim.vouching import vouched_to

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from statechannel.sim.cluster import SimCluster
    from statechannel.sim.process import SimProcess

RATES = (1.0, 2.0, 5.0, 5.0)
ALONE_S = 16.0
"""Longer than half the lag and the time after which debts are paid at once: by then some heartbeat was clean again."""
ALONE_SHARE = 0.5
JOIN_S = 12.0
DEAF_RATES = (6.0, 8.0)
"""At least one record between two ticks: there is a moment without debt only if debts are paid as they are read."""
DEAF_LAG_S = 30.0
DEAF_JOIN_S = 5.0

WAVES = 4
WAVE_RECORDS = 1_300
WAVE_EVERY_S = 2.0
"""The registry itself is behind by 1.3 s then: less than the silence from which on a member goes to safe mode."""
BEHIND_MAX_S = 1.8
"""The leader's heartbeats come each second, at a tick; the rest is for the way, and for some portions of the flood."""


class Trickle:
    """Writes junk at a rate until it is ended."""

    def __init__(self, cluster: SimCluster, rng: Random, rates: Sequence[float] = RATES) -> None:
        self._cluster, self._rng = cluster, rng
        self._scribe = Scribe("x", "i8")
        self._count = 0
        self._gap_s = 1.0 / rng.choice(rates)
        self.is_on = True

    def write(self) -> None:
        """Write one record on a new key, and schedule the next."""
        cluster = self._cluster
        if not self.is_on:
            return
        self._count += 1
        namespace = self._rng.choice(cluster.namespaces)
        bounds = f"0x{self._count:08x}_0x{self._count + 1:08x}"
        fields = self._scribe.head("proposal", -1) | {"version": 7, "base": "zz", "state": State.ASSIGNED}
        value = encode(fields | {"from": None, "to": "x"})
        partition = cluster.partition_of(namespace)
        cluster.append("trickle", Topic.CHANNEL, partition, f"{namespace}/{bounds}".encode(), value)
        cluster.events.after(self._gap_s, self.write)


def join_in_a_trickle(cluster: SimCluster, rng: Random, marks: Callable[[int], Sequence[int]]) -> None:
    """Let it trickle: perhaps the members alone at first, then one who joins; both are judged while it goes on.

    Args:
        marks: Offsets of the marks of cold starts that count, of a partition.
    """
    trickle = Trickle(cluster, rng)
    cluster.note("junk begins to trickle")
    for process in cluster.alive():
        process.slow = False  # a cold start at the end may have left its leader so
    cluster.trace.count("trickles")
    trickle.write()
    if rng.random() < ALONE_SHARE:
        cluster.events.run_until(cluster.events.now_s + ALONE_S)
        for log in cluster.logs:
            if vouched_to(log, log.end, cluster.now_ms, marks=marks(log.partition)) < 0:
                raise Violation(
                    "unvouched", f"no heartbeat has vouched for partition {log.partition} for {LAG_S / 2:g} s"
                )
    name = f"b{len(cluster.brokers)}"
    cluster.brokers.append(name)
    process = cluster.spawn(name)
    until_s = cluster.events.now_s + JOIN_S
    while not process.engine.caught_up:
        if cluster.events.now_s > until_s or not process.alive:
            phases = ", ".join(f"{replica.phase}: {replica.why}" for replica in process.engine.replicas)
            raise Violation("starved", f"{name} has not joined within {JOIN_S:g} s of a trickle: {phases}")
        cluster.events.run_until(cluster.events.now_s + 0.5)
    trickle.is_on = False


def join_without_a_clock(cluster: SimCluster, rng: Random) -> None:
    """One joins, and does not hear itself in the registry: without Kafka's clock it has to wait for a clean heartbeat.

    All others hear that it joins: so long debts are paid as they are read.
    """
    trickle = Trickle(cluster, rng, DEAF_RATES)
    cluster.note("junk begins to trickle, faster")
    for process in cluster.alive():
        process.slow = False
    trickle.write()
    name = f"b{len(cluster.brokers)}"
    cluster.brokers.append(name)
    process = cluster.spawn(name)
    while process.alive and not process.engine.context.announced:
        cluster.events.run_until(cluster.events.now_s + 0.0005)
    process.lag_s[Topic.REGISTRY] = DEAF_LAG_S
    until_s = cluster.events.now_s + DEAF_JOIN_S
    while process.engine.presence.clock_ahead_ms is None and not process.engine.caught_up:
        if cluster.events.now_s > until_s or not process.alive:
            phases = ", ".join(f"{replica.phase}: {replica.why}" for replica in process.engine.replicas)
            raise Violation("starved", f"{name} has waited for a clean heartbeat for {DEAF_JOIN_S:g} s: {phases}")
        cluster.events.run_until(cluster.events.now_s + 0.1)
    if process.engine.presence.clock_ahead_ms is None:
        cluster.trace.count("deaf joiners")
    trickle.is_on = False
    process.heal()


def endure_flood(cluster: SimCluster, rng: Random) -> None:
    """Waves of junk in the registry: everybody stays in normal mode, and no view of the channel falls behind."""
    cluster.note("junk floods the registry")
    cluster.trace.count("registry floods")
    for process in cluster.alive():
        process.slow = False
        process.lanes.is_open = True
    for _ in range(WAVES):
        for number in range(WAVE_RECORDS):
            cluster.registry.append(cluster.now_ms, b"junk-%d" % (number % 7), b"junk")
        for process in cluster.alive():
            process.notify(Topic.REGISTRY, 0)
        until_s = cluster.events.now_s + WAVE_EVERY_S + rng.uniform(0.0, 0.3)
        while cluster.events.now_s < until_s:
            cluster.events.run_until(cluster.events.now_s + 0.05)
            for process in cluster.alive():
                _check(process)
    for process in cluster.alive():
        process.lanes.is_open = False


def _check(process: SimProcess) -> None:
    engine = process.engine
    if engine.mode is not Mode.NORMAL:
        raise Violation("flooded", f"{process.name} is in mode {engine.mode} in a flood of the registry")
    for replica in engine.replicas:
        behind_s = freshness.lag_s(engine.now, replica)
        if behind_s > BEHIND_MAX_S:
            where = f"partition {replica.partition}"
            raise Violation(
                "flooded", f"{process.name} is {behind_s:.2f} s behind in {where} in a flood of the registry"
            )
