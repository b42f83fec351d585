"""A flood of junk in the registry, while each process takes time for what it reads: no view of the channel falls behind."""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING

from statechannel.engine import freshness
from statechannel.engine.context import Mode
from statechannel.engine.inputs import CommandReceived, LeadershipChanged, PartitionOpened, PositionReached
from statechannel.protocol.log import RecordRead, RecordsRead, Topic
from statechannel.sim.violation import Violation

if TYPE_CHECKING:
    from random import Random

    from statechannel.engine.inputs import Input
    from statechannel.sim.process import SimProcess
    from statechannel.sim.world import SimWorld

COST_S = 0.001
"""Time that a process takes for an input while it is flooded."""
PORTION = 40
WAVES = 4
WAVE_RECORDS = 1_300
WAVE_EVERY_S = 2.0
"""The registry itself is behind by 1.3 s then: less than the silence from which on a member goes to safe mode."""
BEHIND_MAX_S = 1.8
"""The leader's heartbeats come each second, at a tick; the rest is for the way, and for some portions of the flood."""


class FloodLane(Enum):
    """What an input waits behind (`broker.inbox` has the same lanes)."""

    MEMBERSHIP = "membership"
    CALLS = "calls"
    LOG = "log"


def lane_of(event: Input) -> FloodLane:
    """The lane of an input."""
    match event:
        case LeadershipChanged():
            return FloodLane.MEMBERSHIP
        case CommandReceived():
            return FloodLane.CALLS
        case PartitionOpened() | PositionReached() | RecordRead():
            return FloodLane.MEMBERSHIP if event.topic is Topic.REGISTRY else FloodLane.LOG
        case RecordsRead():
            return FloodLane.MEMBERSHIP if event.records[0].topic is Topic.REGISTRY else FloodLane.LOG
        case _:
            return FloodLane.LOG


class FloodLanes:
    """What waits for a process that takes time for each input; the lanes take turns.

    Attributes:
        is_open: Inputs wait here.
    """

    def __init__(self, process: SimProcess) -> None:
        self._process = process
        self._lanes: dict[FloodLane, deque[Input]] = {lane: deque() for lane in FloodLane}
        self._turns = deque(FloodLane)
        self._is_busy = False
        self.is_open = False

    def __bool__(self) -> bool:
        return self.is_open or any(self._lanes.values())

    def put(self, event: Input) -> None:
        """An input arrives."""
        self._lanes[lane_of(event)].append(event)
        if not self._is_busy:
            self._turn()

    def _turn(self) -> None:
        self._is_busy = False
        lane = next((lane for lane in self._turns if self._lanes[lane]), None)
        if lane is None or not self._process.alive:
            return
        self._turns.remove(lane)
        self._turns.append(lane)
        waiting = self._lanes[lane]
        taken = [waiting.popleft() for _ in range(min(PORTION, len(waiting)))]
        self._is_busy = True
        for event in taken:
            self._process.take_now(event)
        self._process.world.events.after(COST_S * len(taken), self._turn)


def endure_flood(world: SimWorld, rng: Random) -> None:
    """Waves of junk in the registry: everybody stays in normal mode, and no view of the channel falls behind."""
    world.note("junk floods the registry")
    world.trace.count("registry floods")
    for process in world.alive():
        process.slow = False
        process.lanes.is_open = True
    for _ in range(WAVES):
        for number in range(WAVE_RECORDS):
            world.registry.append(world.now_ms, b"junk-%d" % (number % 7), b"junk")
        for process in world.alive():
            process.notify(Topic.REGISTRY, 0)
        until_s = world.events.now_s + WAVE_EVERY_S + rng.uniform(0.0, 0.3)
        while world.events.now_s < until_s:
            world.events.run_until(world.events.now_s + 0.05)
            for process in world.alive():
                _check(process)
    for process in world.alive():
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
