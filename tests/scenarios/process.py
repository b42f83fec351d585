"""One broker process of a scenario: a real engine, its client, its hooks, and what can befall it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from statechannel.engine.config import EngineConfig, Identity
from statechannel.engine.effects import (
    Append,
    CallHook,
    Complete,
    Effect,
    Emit,
    Hook,
    RestartReading,
    StandForLeader,
    StopEngine,
)
from statechannel.engine.engine import Engine
from statechannel.engine.inputs import (
    Appended,
    AppendFailed,
    HookFinished,
    Input,
    Now,
    PartitionOpened,
    PositionReached,
    Tick,
)
from statechannel.protocol.log import RecordRead, Topic
from tests.scenarios import wording

if TYPE_CHECKING:
    from tests.scenarios.world import World


class Process:
    """One broker process: an engine, its client, its hooks.

    Attributes:
        cut: The log is out of reach; what it writes waits in its client until the delivery time-out.
        held: What it writes is in the network and reaches the log later, even if the process is dead by then.
        next_append: What becomes of its next proposal or assert: `lost` or `blurred` (written, but reported as failed).
    """

    def __init__(self, world: World, broker: str, number: int, config: EngineConfig) -> None:
        self.world = world
        self.broker = broker
        self.number = number
        self.name = f"{broker}#{number}" if number > 1 else broker
        self.alive = True
        self.paused = False
        self.cut = False
        self.held: list[Append] | None = None
        self.next_append = ""
        self.standing = False
        self.hooks: dict[Hook, list[str]] = {}
        self.hanging: list[int] = []
        self.inbox: deque[Input] = deque()
        self.outgoing: deque[tuple[int, Append]] = deque()
        self.positions: dict[tuple[Topic, int], int] = {}
        entropy = (broker + str(number)).encode().ljust(10, b"-")[:10]
        listeners = {"pulsar": f"pulsar://{broker}"}
        identity = Identity(broker, f"{broker}-{number}", entropy, self._now().wall_ms, listeners)
        self.engine = Engine(identity, config)

    def _now(self) -> Now:
        return Now(self.world.now_s, wording.EPOCH_MS + self.world.tenths * 100)

    def open_all(self) -> None:
        """Open every partition."""
        for topic, partition in self.world.logs:
            self._open(topic, partition)

    def _open(self, topic: Topic, partition: int) -> None:
        self.positions[topic, partition] = 0
        end = len(self.world.logs[topic, partition].entries)
        self.step(PartitionOpened(topic, partition, 0, end))

    # --- what comes in ----------------------------------------------------------------------------------------------

    def step(self, event: Input) -> None:
        """One input, and its effects in order."""
        if not self.alive:
            return
        if self.paused:
            self.inbox.append(event)
            return
        for effect in self.engine.step(self._now(), event):
            self._perform(effect)

    def time_passes(self) -> None:
        """A tick; and the client gives up on what it could not deliver."""
        limit = round(self.world.delivery_timeout_s * 10)
        while self.outgoing and self.world.tenths - self.outgoing[0][0] >= limit:
            _, append = self.outgoing.popleft()
            self.inbox.append(AppendFailed(append.token, "timed out", 1, never_written=False))
        self.step(Tick())

    def deliver(self) -> bool:
        """Take in what has arrived; False if nothing has."""
        busy = False
        while self.inbox and self.alive and not self.paused:
            busy = True
            self.step(self.inbox.popleft())
        if not self.cut:
            for place in list(self.positions):
                while self.alive and self._read(*place):
                    busy = True
        return busy

    def _read(self, topic: Topic, partition: int) -> bool:
        entries = self.world.logs[topic, partition].entries
        start = offset = self.positions[topic, partition]
        while offset < len(entries) and entries[offset] is None:
            offset += 1
        if offset < len(entries):
            entry = entries[offset]
            if entry is None:
                raise RuntimeError("unreachable: the loop above skips what was cleaned")
            self.positions[topic, partition] = offset + 1
            self.step(RecordRead(topic, partition, offset, entry.timestamp_ms, entry.key, entry.value))
            if offset + 1 == self.positions[topic, partition] == len(entries):
                self.step(PositionReached(topic, partition, offset + 1, self.world.now_s))
            return True
        if offset > start:
            self.positions[topic, partition] = offset
            self.step(PositionReached(topic, partition, offset, self.world.now_s))
            return True
        return False

    # --- what goes out ----------------------------------------------------------------------------------------------

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Append():
                self._append(effect)
            case CallHook():
                self._call(effect)
            case Complete():
                self.world.say(
                    f"{self.name} answers {self.world.asked(effect.token)}: {wording.answer(effect.outcome)}"
                )
            case StandForLeader():
                self.standing = effect.stand
            case StopEngine():
                self.alive = False
                self.world.say(f"{self.name} STOPS: {effect.reason}: {effect.detail}")
            case RestartReading():
                self._open(effect.topic, effect.partition)
            case Emit():
                words = wording.event(effect)
                if words:
                    self.world.say(f"{self.name} {words}")
                if effect.event == "cold-start.ended":
                    self.world.cold_started(self, effect.facts["partition"])

    def _append(self, effect: Append) -> None:
        if effect.topic is Topic.CHANNEL and self.held is not None:
            self.held.append(effect)
        elif self.cut:
            self.outgoing.append((self.world.tenths, effect))
        else:
            self.write(effect)

    def write(self, effect: Append) -> None:
        """The append reaches the log."""
        fate = ""
        if effect.topic is Topic.CHANNEL and effect.key[:1] != b"!":
            fate, self.next_append = self.next_append, ""
        if fate == "lost":
            self.world.say(f"{self.name} an append on {effect.key.decode()} is lost; its outcome is unknown")
        else:
            offset = self.world.append(effect.topic, effect.partition, effect.key, effect.value)
            if not fate:
                self.inbox.append(Appended(effect.token, offset, 1))
                return
            self.world.say(f"{self.name} is told that the append at offset {offset} failed: its outcome is unknown")
        self.inbox.append(AppendFailed(effect.token, "timed out", 1, never_written=False))

    def _call(self, effect: CallHook) -> None:
        plan = self.hooks.get(effect.hook, [])
        fate = "returns"
        if plan and effect.hook_id:
            fate = plan[0] if plan[-1] == "always" else plan.pop(0)
        self.world.say(f"{self.name} {wording.hook(effect)}{'' if fate == 'returns' else ' ' + fate.upper()}")
        if not effect.hook_id:
            return
        if fate == "hangs":
            self.hanging.append(effect.hook_id)
            return
        self.inbox.append(HookFinished(effect.hook_id, "it raised" if fate == "fails" else None))

    # --- what befalls it --------------------------------------------------------------------------------------------

    def finish_hooks(self) -> None:
        """The hooks that hang return at last."""
        hanging, self.hanging = self.hanging, []
        for hook_id in hanging:
            self.step(HookFinished(hook_id))

    def heal(self) -> None:
        """The log can be reached again; what the client still has is sent first."""
        self.cut = False
        while self.outgoing:
            self.write(self.outgoing.popleft()[1])

    def let_through(self) -> None:
        """What was held in the network reaches the log."""
        held, self.held = self.held or [], None
        for effect in held:
            self.write(effect)
