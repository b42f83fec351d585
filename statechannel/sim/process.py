"""One simulated broker process: an engine, its client, its hooks, and the ways in which it can suffer."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, NamedTuple, Protocol

from statechannel.engine.config import Identity
from statechannel.engine.effects import (
    Append,
    CallHook,
    Complete,
    Effect,
    Emit,
    Hook,
    InterruptStream,
    RestartReading,
    StandForLeader,
    StopEngine,
)
from statechannel.engine.engine import Engine
from statechannel.engine.inputs import HookFinished, Input, Now, Tick
from statechannel.protocol.log import Topic
from statechannel.protocol.verdict import Verdict
from statechannel.sim.options import engine_config
from statechannel.sim.trace import OpenedBundles, Violation, check_opened, opened_by
from statechannel.sim.wire import Cursor, FloodLanes, Producer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from statechannel.engine.commands import Outcome
    from statechannel.protocol.log import RecordRead
    from statechannel.sim.stage import SimStage

_WALL_MS = 1_800_000_000_000
_HOOK_RAISES, _HOOK_HANGS = 0.1, 0.1
WRITE, READ = "write", "read"


class SimLink(NamedTuple):
    """One connection of a process: to write or to read one partition, or to the group's coordinator."""

    way: str
    topic: Topic | None = None
    partition: int = 0


ELECTION = SimLink("election")


class ProcessObserver(Protocol):
    """What a process reports as it goes on, and what its subscriber asks; `statechannel.sim.world.SimWorld` is one."""

    def stepped(self, process: SimProcess, event: Input) -> None: ...

    def writes(self, process: SimProcess, append: Append) -> None: ...

    def stands(self, process: SimProcess, *, stand: bool) -> None: ...

    def completed(self, process: SimProcess, token: int, outcome: Outcome) -> None: ...

    def emitted(self, process: SimProcess, emit: Emit) -> None: ...

    def ended(self, process: SimProcess) -> None: ...

    def judges_by_another_history(self, process: SimProcess, partition: int) -> bool:
        """Whether it judges by a history that counts only before, or only after, a cold start."""
        ...


class Subscriber:
    """Follows the accepted records of a process whenever it may: none may be missing, unless it was notified."""

    def __init__(self, process: SimProcess) -> None:
        self._process = process
        self.following = False
        # By partition, the first offset of which it does not know whether it is accepted.
        self._unreported: dict[int, int] = {}

    def stepped(self) -> None:
        """The process took an input in, and has reported all that follows from it."""
        engine = self._process.engine
        if engine.stopped is not None:
            return
        if self.following:
            for partition in self._unreported:
                self._check_reported(partition, engine.replicas[partition].position)
        elif engine.streams.closed_why() is None:
            self.following = True
            self._unreported = {replica.partition: replica.position for replica in engine.replicas}
            self._process.stage.trace.count("subscriptions")

    def accepted(self, read: RecordRead) -> None:
        if not self.following or read.offset < self._unreported[read.partition]:
            return
        self._check_reported(read.partition, read.offset)
        self._unreported[read.partition] = read.offset + 1

    def interrupted(self, partition: int) -> None:
        if self.following:
            self._process.stage.trace.count("streams interrupted")
            self._process.stage.note(f"{self._process.name} interrupts the stream of partition {partition}")
        self.following = False

    def _check_reported(self, partition: int, end: int) -> None:
        process = self._process
        if process.observer.judges_by_another_history(process, partition):
            self._unreported[partition] = max(self._unreported[partition], end)
            return
        verdicts = process.stage.truths[partition].verdicts
        while self._unreported[partition] < min(end, len(verdicts)):
            offset = self._unreported[partition]
            if verdicts[offset] is Verdict.ACCEPTED:
                raise Violation(
                    "stream", f"{process.name} did not report {offset}, which is accepted, and does not say so"
                )
            self._unreported[partition] = offset + 1


class SimProcess:
    """A process; it lives once and is not started again.

    Attributes:
        paused: Stopped as by SIGSTOP: nothing is done, what arrives waits.
        cut: The log and the election are out of reach.
        hung: The loop stands still; the threads at its side (producer, election) go on.
        severed: Connections that are away by themselves.
        lanes: What waits while it takes time for each input.
        lag_s: How late records are delivered, by topic.
        served: Bundles and generations after the last step.
        opened: Bundles that are prepared or served, by the calls of hooks.
        has_lost: It reads a log with a loss.
        well_since_s: Since when it has not been paused or cut off.
    """

    def __init__(
        self,
        stage: SimStage,
        observer: ProcessObserver,
        broker: str,
        number: int,
        *,
        take_over: bool = False,
        observes: bool = False,
    ) -> None:
        self.stage = stage
        self.observer = observer
        self.broker = broker
        self.incarnation = f"i{number}"
        self.name = f"{broker}#{number}"
        self.rng = Random(f"{stage.seed}/{self.name}")
        self.alive = True
        self.paused = False
        self.cut = False
        self.hung = False
        self.hung_since_s = 0.0
        self.severed: set[SimLink] = set()
        self.lag_s: dict[Topic, float] = {}
        self.slow = False
        self.crash_after: int | None = None
        self.reason = ""
        self.served: dict[str, int] = {}
        self.opened: OpenedBundles = ()
        self.has_lost = False
        self.well_since_s = stage.events.now_s
        self._mono_s = self.rng.uniform(0.0, 1000.0)
        self._skew_ms = self.rng.choice((0, 0, -7_000, 90_000))
        self._inbox: deque[Input] = deque()
        self.lanes = FloodLanes(self)
        self._late_reports: deque[Input] = deque()
        self._tick_s = -1.0
        entropy = number.to_bytes(4, "big") + self.rng.randbytes(6)
        identity = Identity(broker, self.incarnation, entropy, self.now.wall_ms, {"tcp": f"tcp://{self.name}"})
        config = replace(engine_config(stage.options, take_over=take_over), observes=observes)
        self.engine = Engine(identity, replace(config, partitions=stage.partitions_used()))
        self.subscriber = Subscriber(self)
        self._producer = Producer(self, self.rng)
        logs = stage.logs_read(self.engine.config.partitions)
        self._cursors = {(log.topic, log.partition): Cursor(self, log, self.rng) for log in logs}

    def __repr__(self) -> str:
        return self.name

    @property
    def running(self) -> bool:
        return self.alive and not self.halted

    @property
    def halted(self) -> bool:
        """Whether no input is taken in: what arrives waits."""
        return self.paused or self.hung

    @property
    def reachable(self) -> bool:
        return self.running and not self.cut

    @property
    def undisturbed(self) -> bool:
        return self.reachable and not self.severed and not self.lag_s and not self.slow

    @property
    def at_coordinator(self) -> bool:
        """Whether the election's own thread reaches the group; it does not need the loop."""
        return self.alive and not self.paused and not self.cut and ELECTION not in self.severed

    def reaches(self, way: str, topic: Topic, partition: int) -> bool:
        return not self.cut and SimLink(way, topic, partition) not in self.severed

    @property
    def halts_election(self) -> bool:
        """Whether the election's thread gives the seat up because of the loop."""
        return self.hung and self.stage.events.now_s - self.hung_since_s > self.engine.config.member_expiry_s

    def latency_s(self) -> float:
        return self.rng.uniform(0.3, 2.0) if self.slow else self.rng.uniform(0.001, 0.03)

    @property
    def writes_delayed_until_s(self) -> float:
        """When the last of its records arrives that a fault may have delayed."""
        return self._producer.delayed_until_s

    @property
    def mono_s(self) -> float:
        return self.stage.events.now_s + self._mono_s

    @property
    def now(self) -> Now:
        now_s = self.stage.events.now_s
        return Now(self.mono_s, _WALL_MS + self._skew_ms + int(now_s * 1000))

    def virtual_s(self, wall_ms: int) -> float:
        """Virtual time at which this process's wall clock showed a time."""
        return (wall_ms - self._skew_ms - _WALL_MS) / 1000

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        for cursor in self._cursors.values():
            cursor.open()
        self._schedule_tick()

    def pause(self) -> None:
        self.paused = True

    def hang(self) -> None:
        self.hung = True
        self.hung_since_s = self.stage.events.now_s

    def wake(self) -> None:
        """Go on as by SIGCONT, or as a loop that hung: time first, then what waited."""
        if not self.halted or not self.alive:
            return
        self.paused = self.hung = False
        self._step(Tick())
        while self._inbox and self.running:
            self._step(self._inbox.popleft())
        self.well_since_s = self.stage.events.now_s
        self._back()

    def cut_off(self) -> None:
        self.cut = True

    def sever(self, links: Iterable[SimLink]) -> None:
        self.severed |= set(links)

    def heal(self) -> None:
        """Reach the log again, by every connection and in time."""
        self.cut = False
        self.severed.clear()
        self.lag_s.clear()
        self.well_since_s = self.stage.events.now_s
        self._back()

    def _back(self) -> None:
        if not self.reachable:
            return
        self._producer.flush()
        while self._late_reports:
            self.take(self._late_reports.popleft())
        for cursor in self._cursors.values():
            cursor.woke()

    def end(self, reason: str) -> None:
        if self.alive:
            self.alive = False
            self.reason = reason
            self.served = {}
            self._inbox.clear()
            self._producer.crash()
            self.observer.ended(self)

    def reopen(self) -> None:
        """The reader's thread ended, and another one opens every partition; the engine asked for nothing."""
        for cursor in self._cursors.values():
            cursor.open()

    def _reopen_in_split(self) -> None:
        if self.reachable:
            self.stage.trace.count("reopened in a split")
            self.reopen()

    def lose(self, partition: int, offsets: frozenset[int]) -> None:
        self.has_lost = True
        self._cursors[Topic.CHANNEL, partition].lost = offsets

    def ask_ends(self) -> None:
        """As a reader that only reads does where nothing comes."""
        for cursor in self._cursors.values():
            cursor.ask_end()

    def notify(self, topic: Topic, partition: int) -> None:
        self._cursors[topic, partition].notify()

    # --- steps ------------------------------------------------------------------------------------------------------

    def take(self, event: Input) -> None:
        if self.lanes:
            self.lanes.put(event)
        else:
            self.take_now(event)

    def take_now(self, event: Input) -> None:
        if not self.alive:
            return
        if self.halted:
            self._inbox.append(event)
            return
        self._step(event)

    def take_when_reachable(self, event: Input) -> None:
        if self.cut:
            self._late_reports.append(event)
        else:
            self.take(event)

    def _step(self, event: Input) -> None:
        effects = self.engine.step(self.now, event)
        self.observer.stepped(self, event)
        for effect in effects:
            if self._crashes_before(effect):
                self.stage.trace.count(f"crash before {type(effect).__name__}")
                self.end("crash")
                return
            self._perform(effect)
            if not self.alive:
                return
        if self.stage.options.split_hooks:  # without them a parent's part ends with no call
            check_opened(self.opened, self.engine.reactions.holdings)
        self.subscriber.stepped()
        self._schedule_tick()

    def _crashes_before(self, effect: Effect) -> bool:
        if self.crash_after is None or isinstance(effect, Emit | InterruptStream):
            return False
        self.crash_after -= 1
        return self.crash_after < 0

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Append():
                self.observer.writes(self, effect)
                self._producer.append(effect)
            case RestartReading():
                self.stage.trace.count("started over")
                self._cursors[effect.topic, effect.partition].open()
            case StandForLeader():
                self.observer.stands(self, stand=effect.stand)
            case CallHook():
                self._call_hook(effect)
            case Complete():
                self.observer.completed(self, effect.token, effect.outcome)
            case StopEngine():
                self.stage.trace.add(f"{self.stage.events.now_s:.3f} {self.name} stops: {effect.reason}")
                self.stage.trace.count(f"stopped: {effect.reason}")
                self.end(effect.reason)
            case InterruptStream(partition):
                self.subscriber.interrupted(partition)
            case Emit():
                if effect.event == "record.accepted":
                    self.subscriber.accepted(effect.facts["read"])
                self.observer.emitted(self, effect)

    def _call_hook(self, call: CallHook) -> None:
        self.stage.trace.count(f"hook {call.hook}")
        self.opened = opened_by(self.opened, call)
        if call.hook_id == 0:
            return
        error = None
        delay_s = self.rng.choice((0.0, 0.01, 0.3))
        if call.hook is Hook.ON_SPLIT and self.stage.faulty and self.stage.options.reopened:
            # Soon enough for a join in the middle of the split, by its parent's hook or by those of its parts.
            self.stage.events.after(self.rng.uniform(0.0, 0.4), self._reopen_in_split)
        if self.stage.faulty and self.stage.options.hook_faults:
            roll = self.rng.random()
            if roll < _HOOK_RAISES:
                error = "planned failure"
                self.stage.trace.count("hooks that raised")
            elif roll < _HOOK_RAISES + _HOOK_HANGS:
                delay_s = call.deadline_s * self.rng.choice((0.9, 1.5, 1000.0))
                self.stage.trace.count("hooks that hung")
        hook_id = call.hook_id
        self.stage.events.after(delay_s, lambda: self.take(HookFinished(hook_id, error)))

    def _schedule_tick(self) -> None:
        # A microsecond late: rounding must not make the engine find that it is too early.
        when_s = self.engine.wake_at_s - self._mono_s + 1e-6
        if when_s != self._tick_s and self.alive:
            self._tick_s = when_s
            self.stage.events.at(when_s, lambda: self._tick(when_s))

    def _tick(self, when_s: float) -> None:
        if when_s == self._tick_s and self.alive and not self.halted:
            self._tick_s = -1.0
            self._step(Tick())
