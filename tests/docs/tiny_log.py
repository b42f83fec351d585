"""The real engine beside a log in memory: what it appends is read back at once. Tables of the documentation ask it."""

from collections import deque

import orjson

from statechannel.engine.config import EngineConfig, Identity
from statechannel.engine.effects import Append, CallHook
from statechannel.engine.engine import Engine
from statechannel.engine.inputs import (
    Appended,
    CommandReceived,
    HookFinished,
    Now,
    PartitionOpened,
    PositionReached,
    Tick,
)
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.view import View

NAMESPACE = "acme/orders"
LEFT, RIGHT = f"{NAMESPACE}/0x00000000_0x80000000", f"{NAMESPACE}/0x80000000_0xffffffff"
START_MS = 1_750_000_000_000


class TinyLog:
    """Broker `b1` and two topics.

    Attributes:
        hooks_do: What hooks do from now on: `return`, `raise` or `hang`.
        hooks: Every call of a hook so far.
        written: Every proposal of the engine so far, as written.
        others: Brokers that are heard beside it.
        leader: One more broker, which leads and takes no bundles; none where it is empty.
    """

    def __init__(self) -> None:
        identity = Identity(
            "b1",
            "b1-1",
            bytes(10),
            START_MS,
            listeners={"pulsar": "pulsar://b1.example:6650"},
            properties={"zone": "a"},
            software="0.1.0",
        )
        self.engine = Engine(identity, EngineConfig())
        self.hooks_do = "return"
        self.hooks: list[CallHook] = []
        self.written: list[dict] = []
        self.registry: list[dict] = []
        self.others: tuple[str, ...] = ()
        self.leader = ""
        self.now_s = 100.0
        self._ends = {Topic.CHANNEL: 0, Topic.REGISTRY: 0}
        self._history: list[RecordRead] = []
        self._truth = View(0, 1)
        self._inputs: deque = deque()
        self._opened = False

    def open(self) -> None:
        """The engine starts and reads what others have written before."""
        self._feed(PartitionOpened(Topic.REGISTRY, 0, 0, 0), PositionReached(Topic.REGISTRY, 0, 0))
        self.wait(0.5)
        self._feed(PartitionOpened(Topic.CHANNEL, 0, 0, len(self._history)), *self._history)
        self._reach()
        self._opened = True

    def write(self, key: str, state: str, *, by: tuple[str, str] = ("b2", "b2-1"), **fields: object) -> None:
        """Somebody else's proposal on the accepted state; it has to be legal."""
        held = self._truth.get(key)
        record = {
            "format": 1,
            "kind": "proposal",
            "id": f"other-{self._ends[Topic.CHANNEL]}",
            "covers": self._ends[Topic.CHANNEL] - 1,
            "by": {"broker": by[0], "incarnation": by[1]},
            "version": held.version + 1 if held else 1,
            "base": held.accepted_id if held else None,
            "state": state,
            "from": None,
            "to": None,
            **fields,
        }
        read = self._append(Topic.CHANNEL, key.encode(), orjson.dumps(record))
        accepted = self._truth.get(key)
        if accepted is None or accepted.record_id != record["id"]:
            raise AssertionError(f"the documentation's own record was not accepted: {record}")
        if self._opened:
            self._feed(read)
        else:
            self._history.append(read)

    def command(self, command: object) -> None:
        self._feed(CommandReceived(1, command))

    def wait(self, seconds: float) -> None:
        """Time passes, in the steps in which the engine wants to be woken."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 0.2
            self._hear_others()
            self._feed(Tick())

    def _hear_others(self) -> None:
        for broker in (*self.others, self.leader) if self.registry else ():
            member = {**self.registry[0], "broker": broker, "incarnation": f"{broker}-1", "phase": "caught-up"}
            leads = broker == self.leader
            member |= {"leading": leads, "accepting": not leads}
            if not broker:
                continue
            self._feed(self._append(Topic.REGISTRY, broker.encode(), orjson.dumps({**member, "mode": "normal"})))

    def _append(self, topic: Topic, key: bytes, value: bytes | None) -> RecordRead:
        offset = self._ends[topic]
        self._ends[topic] += 1
        if topic is Topic.CHANNEL:
            self._truth.read(offset, key, value)
        return RecordRead(topic, 0, offset, START_MS + int(self.now_s * 1000), key, value)

    def _feed(self, *inputs: object) -> None:
        self._inputs.extend(inputs)
        while self._inputs:
            now = Now(self.now_s, START_MS + int(self.now_s * 1000))
            for effect in self.engine.step(now, self._inputs.popleft()):
                self._perform(effect)

    def _reach(self) -> None:
        self._inputs.append(PositionReached(Topic.CHANNEL, 0, self._ends[Topic.CHANNEL], self.now_s))

    def _perform(self, effect: object) -> None:
        if isinstance(effect, Append):
            read = self._append(effect.topic, effect.key, effect.value)
            record = orjson.loads(effect.value)
            if effect.topic is Topic.REGISTRY:
                self.registry.append(record)
            elif record.get("kind") == "proposal":
                self.written.append(record)
            self._inputs += [Appended(effect.token, read.offset, 1), read]
            self._reach()
        elif isinstance(effect, CallHook):
            self.hooks.append(effect)
            if effect.hook_id and self.hooks_do != "hang":
                error = "it raised" if self.hooks_do == "raise" else None
                self._inputs.append(HookFinished(effect.hook_id, error))
