"""One engine on a log that is kept for it in plain lists: nothing is lost, late or reordered unless a test holds it."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import orjson

from statechannel.engine.commands import Command, Outcome
from statechannel.engine.config import EngineConfig, Identity
from statechannel.engine.effects import (
    Append,
    CallHook,
    Complete,
    Effect,
    Emit,
    InterruptStream,
    RestartReading,
    StandForLeader,
)
from statechannel.engine.engine import Engine
from statechannel.engine.inputs import (
    Appended,
    AppendFailed,
    CommandReceived,
    HeadLost,
    HookFinished,
    Input,
    KafkaLimited,
    LeaderEpochBegan,
    LeadershipChanged,
    Now,
    PartitionOpened,
    PositionReached,
    Tick,
)
from statechannel.engine.membership import MEMBER_FORMAT
from statechannel.protocol.log import RecordRead, RecordsRead, Topic

STEP_S = 0.1
LISTENERS = {"tcp": "tcp://a-1"}

NAMESPACE = b"t/n"
BUNDLE = b"t/n/0x00000000_0xffffffff"
CREATED = orjson.dumps(
    {
        "format": 1,
        "kind": "proposal",
        "id": "ns1",
        "covers": -1,
        "by": {"broker": "z", "incarnation": "z-1"},
        "version": 1,
        "base": None,
        "state": "Active",
        "action": "create",
        "flow": "namespace",
        "operation": "op1",
        "children": ["0x00000000_0xffffffff"],
    }
)
"""Creates the namespace with the one bundle; offset 0 of most logs."""


def mark(incarnation: str, through: int) -> bytes:
    return orjson.dumps({"through": through, "by": {"broker": "x", "incarnation": incarnation}})


def heartbeat(incarnation: str, clean_to: int) -> bytes:
    by = {"broker": "x", "incarnation": incarnation}
    return orjson.dumps(
        {"format": 1, "kind": "heartbeat", "id": "h1", "covers": clean_to, "clean_to": clean_to, "by": by}
    )


def member(broker: str, *, phase: str = "caught-up", **more: Any) -> bytes:
    """What a broker says of itself in the registry; `more` stands in it as well."""
    fields = {"format": MEMBER_FORMAT, "kind": "member", "broker": broker, "incarnation": f"{broker}-1", "seq": 1}
    fields |= {"since": 0, "phase": phase, "mode": "normal", "accepting": True, "listeners": {}}
    return orjson.dumps(fields | more)


class LoneEngine:
    """Broker `a`, process `a-1`, on one partition.

    Attributes:
        channel: Key, value and log time of every record; the offset is the index.
        registry: Log time, key and value of every record of the registry.
        first: Offset of the first record that is left; those before were cleaned.
        deleted: Offset below which all records were deleted.
        held: Appends to the channel that are on their way while `hold` is set.
        fail: The error that is reported of an append instead of its landing, if any.
        deaf: Whether it reads nothing of the registry.
        hold_hooks: Whether hooks do not return; `held_hooks` are those calls.
        behind_s: How long what is read had waited to be taken in.
        restarts: How often it began to read anew.
        epochs: Of Kafka's leaders, by the offset at which their records begin.
        away: While set, nothing of the channel is delivered.
        told: Offsets of accepted records that were told one by one, and None for each interruption.
    """

    def __init__(
        self,
        channel: list[tuple[bytes, bytes | None, int]],
        *,
        first: int = 0,
        deleted: int = 0,
        log: str = "",
        registry: Sequence[tuple[int, bytes, bytes]] = (),
        epochs: Mapping[int, int] = MappingProxyType({}),
        **config: Any,
    ) -> None:
        self.engine = Engine(Identity("a", "a-1", b"0123456789", 1000, LISTENERS, log=log), EngineConfig(**config))
        self.channel = list(channel)
        self.epochs = dict(epochs)
        self.first = max(first, deleted)
        self.deleted = deleted
        self.held: list[Append] = []
        self.hold = False
        self.fail: Callable[[Append], AppendFailed | None] = lambda _: None
        self.hold_hooks = False
        self.held_hooks: list[CallHook] = []
        self.behind_s = 0.0
        self.deaf = False
        self.restarts = 0
        self.away = False
        self.events: list[str] = []
        self.delivered: list[int | None] = []
        self._tokens = 0
        self._asked: dict[int, Callable[[Outcome], None]] = {}
        self.registry = list(registry)
        self._inputs: deque[Input] = deque()
        self._now_s = 100.0
        self._position = 0
        self._heard = 0
        self._step(PartitionOpened(Topic.REGISTRY, 0, 0, len(self.registry)))
        self._open()
        self._pump()

    def run(self, seconds: float) -> None:
        """Let time go by."""
        for _ in range(round(seconds / STEP_S)):
            self._now_s += STEP_S
            self._step(Tick())
            self._pump()

    def sleep(self, seconds: float) -> None:
        """Stand still, as a paused process does."""
        self._now_s += seconds

    def put(self, key: bytes, value: bytes | None, *, late_s: float = 0.0) -> None:
        """Somebody else writes to the channel; it is read so late."""
        self.channel.append((key, value, self._ms() - round(late_s * 1000)))
        self._pump()

    def move(self, bundle: str, by: str, state: str, **fields: Any) -> None:
        """Another process writes the next move of a bundle; `fields` stand in the record as well."""
        key = self.engine.key(bundle)
        record = {
            "format": 1,
            "kind": "proposal",
            "id": f"m{len(self.channel)}",
            "covers": len(self.channel) - 1,
            "by": {"broker": by.partition("-")[0], "incarnation": by},
            "version": key.version + 1,
            "base": key.accepted_id,
            "state": state,
            "from": None,
            "to": None,
        }
        self.put(bundle.encode(), orjson.dumps(record | fields))

    def put_portion(self, written: list[tuple[bytes, bytes | None]]) -> None:
        """Somebody else writes, and the reader hands it on in one portion."""
        first = len(self.channel)
        self.channel += [(key, value, self._ms()) for key, value in written]
        self._position = len(self.channel)
        portion = [
            RecordRead(Topic.CHANNEL, 0, first + index, self._ms(), key, value)
            for index, (key, value) in enumerate(written)
        ]
        self._step(RecordsRead(portion))
        self._reached()
        self._pump()

    def hear(self, broker: str, *, phase: str = "caught-up", **more: Any) -> None:
        """Somebody else is heard in the registry; `more` stands in the record as well."""
        self.registry.append((self._ms(), broker.encode(), member(broker, phase=phase, **more)))
        self._pump()

    def read_registry_record(self) -> None:
        """Read the next record of the registry, deaf or not."""
        heard_ms, key, value = self.registry[self._heard]
        self._heard += 1
        self._step(RecordRead(Topic.REGISTRY, 0, self._heard - 1, heard_ms, key, value))

    def reopen(self) -> None:
        """The reader's thread had failed, and another one opens the partition: nobody asked for it."""
        self._open()
        self._pump()

    def ask_end(self) -> None:
        """The reader asks where both logs end, as it does where nothing comes."""
        self._step(PositionReached(Topic.REGISTRY, 0, self._heard, self._now_s))
        self._reached()
        self._pump()

    def let_through(self) -> None:
        """What was held lands in the log."""
        self.hold = False
        held, self.held = self.held, []
        for append in held:
            self._land(append)
        self._pump()

    def report(self, report: Appended | AppendFailed | HeadLost | HookFinished | KafkaLimited) -> None:
        """The client reports on an append, or what limits it, or a lost head, or a hook returns."""
        self._step(report)
        self._pump()

    def elect(self, *, elected: bool) -> None:
        """The election speaks, whatever this process stands for."""
        self._step(LeadershipChanged(elected))
        self._pump()

    def ask(self, command: Command, tell: Callable[[Outcome], None]) -> None:
        """Give a command; hooks end at once."""
        self._tokens += 1
        self._asked[self._tokens] = tell
        self._step(CommandReceived(self._tokens, command))
        self._pump()

    def between_steps(self, act: Callable[[], object]) -> None:
        """Have a part of the engine do something, as if a step had asked for it."""
        act()
        for effect in self.engine.context.take_effects():
            self._do(effect)

    def written(self, key: bytes) -> list[int]:
        """Offsets of the records under a key."""
        return [offset for offset, (name, _, _) in enumerate(self.channel) if name == key]

    @property
    def now_s(self) -> float:
        """The engine's clock."""
        return self._now_s

    def _ms(self) -> int:
        return round(self._now_s * 1000)

    def _open(self) -> None:
        self._position = self.first
        self._step(PartitionOpened(Topic.CHANNEL, 0, self.deleted, len(self.channel)))
        if self.first:
            self._reached()

    def _reached(self) -> None:
        self._step(PositionReached(Topic.CHANNEL, 0, self._position, self._now_s - self.behind_s))

    def _step(self, event: Input) -> None:
        for effect in self.engine.step(Now(self._now_s, self._ms()), event):
            self._do(effect)

    def _do(self, effect: Effect) -> None:
        match effect:
            case Append(topic=Topic.REGISTRY):
                self.registry.append((self._ms(), effect.key or b"", effect.value or b""))
            case Append() if self.hold:
                self.held.append(effect)
            case Append():
                self._land(effect)
            case InterruptStream():
                self.delivered.append(None)
            case Emit():
                self.events.append(effect.event)
                if effect.event == "record.accepted":
                    self.delivered.append(effect.facts["read"].offset)
            case Complete():
                self._asked.pop(effect.token)(effect.outcome)
            case CallHook() if self.hold_hooks:
                self.held_hooks.append(effect)
            case CallHook():
                self._inputs.append(HookFinished(effect.hook_id))
            case StandForLeader():
                self._inputs.append(LeadershipChanged(effect.stand))
            case RestartReading():
                self.restarts += 1
                self._inputs.append(PartitionOpened(Topic.CHANNEL, 0, self.deleted, len(self.channel)))
            case _:
                pass

    def _land(self, append: Append) -> None:
        failed = self.fail(append)
        if failed is not None:
            self._inputs.append(failed)
            return
        self.channel.append((append.key, append.value, self._ms()))
        self._inputs.append(Appended(append.token, len(self.channel) - 1, 1))

    def _pump(self) -> None:
        while True:
            if self._inputs:
                event = self._inputs.popleft()
                if isinstance(event, PartitionOpened):
                    self._open()
                else:
                    self._step(event)
            elif self._heard < len(self.registry) and not self.deaf:
                self.read_registry_record()
            elif self._position < len(self.channel) and not self.away:
                key, value, timestamp_ms = self.channel[self._position]
                if self._position in self.epochs:
                    self._step(LeaderEpochBegan(0, self._position, self.epochs[self._position]))
                self._position += 1
                self._step(RecordRead(Topic.CHANNEL, 0, self._position - 1, timestamp_ms, key, value))
                restarted = any(isinstance(event, PartitionOpened) for event in self._inputs)
                if self._position == len(self.channel) and not restarted:
                    self._reached()
            else:
                return
