"""Cold start: no member is caught up anywhere, so the elected leader takes what it reads for the truth (protocol section 5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import orjson

from statechannel.core import codec
from statechannel.core.bundle import parse_key
from statechannel.core.keys import KeyState
from statechannel.core.proposals import Result, Status
from statechannel.core.replica import Phase

if TYPE_CHECKING:
    from statechannel.core.engine import Engine
    from statechannel.core.inputs import RecordRead


class ColdStart:
    """Decides whether a cold start is due, and carries it out key by key.

    Attributes:
        running: Partitions whose keys are still being asserted.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.running: dict[int, int] = {}
        self._todo: dict[int, list[str]] = {}
        self._on_their_way: dict[int, set[str]] = {}
        self._waiting_since_s: float | None = None
        self._others: dict[int, str] = {}  # who else started cold, by partition, until we have heard that it lives
        self.standing = False

    def heartbeat_read(self, partition: int) -> None:
        """Where this process waits, a caught-up member lives: no cold start."""
        if self._engine.replicas[partition].phase is Phase.WAITING:
            self._waiting_since_s = None
            self.standing = False

    def read(self, event: RecordRead) -> None:
        """Somebody took what it read for the truth: who judged on has another history, and joins that one.

        A forged mark must not send everybody back to the start, so its writer has to be a member.
        """
        engine = self._engine
        replica = engine.replicas[event.partition]
        writer = _cold_starter(event.value)
        if replica.caught_up and writer is not None and writer != engine.identity.incarnation:
            self._others[event.partition] = writer
            self._join_others()

    def _join_others(self) -> None:
        """Start over where another member started cold."""
        engine = self._engine
        alive = {member.incarnation for member in engine.presence.members.alive.values()}
        for partition in [p for p, writer in self._others.items() if writer in alive]:
            writer = self._others.pop(partition)
            if engine.replicas[partition].caught_up:
                engine.start_over(partition, f"process {writer} took what it read for the truth (cold start)")

    def due(self) -> bool:
        """Whether nobody is caught up, nobody vouched for the log for long enough, and this process waits for it."""
        engine = self._engine
        stuck = any(replica.phase is Phase.WAITING for replica in engine.replicas)
        ready = all(replica.phase in (Phase.WAITING, Phase.CAUGHT_UP) for replica in engine.replicas)
        others = any(member.caught_up for member in engine.presence.members.alive.values())
        if not stuck or not ready or others or not engine.presence.knows_absence():
            self._waiting_since_s = None
            return False
        if self._waiting_since_s is None:
            self._waiting_since_s = engine.now.mono_s
        return engine.now.mono_s - self._waiting_since_s >= engine.config.cold_start_after_s

    def tick(self) -> None:
        """Stand for leader when due; as leader, assume and assert."""
        engine = self._engine
        if self._others:
            self._join_others()
        if self.running:
            for partition in list(self.running):
                self._continue(partition)
            return
        self.standing = self.due()
        if not self.standing or not engine.presence.leading:
            return
        for replica in engine.replicas:
            if replica.phase is not Phase.WAITING:
                continue
            through = replica.applied
            names = replica.assume()[::-1]
            if not replica.caught_up:  # a newer format was among what was kept aside
                engine.phase_changed(replica, Phase.WAITING)
                continue
            self.running[replica.partition] = through
            self._todo[replica.partition] = names
            self._on_their_way[replica.partition] = set()
            engine.emit("cold-start.began", partition=replica.partition, through=through)
            self._continue(replica.partition)

    def _continue(self, partition: int) -> None:
        engine = self._engine
        todo, on_their_way = self._todo[partition], self._on_their_way[partition]
        while todo and len(on_their_way) < engine.config.cold_start_window and engine.may_write:
            name = todo.pop()
            on_their_way.add(name)
            if engine.proposals.restate(self._state_of(partition, name), self._asserted(partition, name)) is None:
                on_their_way.discard(name)
                todo.append(name)
                break
        if not todo and not on_their_way and engine.may_write:
            through = self.running.pop(partition)
            identity = engine.identity
            by = {"broker": identity.broker, "incarnation": identity.incarnation}
            engine.proposals.control(partition, codec.COLD_START_KEY, {"through": through, "by": by})
            engine.emit("cold-start.ended", partition=partition, through=through)
            engine.joined(engine.replicas[partition])
            if not self.running:
                self.standing = False
                engine.caught_up_changed()

    def _state_of(self, partition: int, name: str) -> KeyState:
        held = self._engine.replicas[partition].view.keys.get(name.encode())
        if held is not None:
            return held
        parts = parse_key(name.encode())
        if parts is None:
            raise ValueError(f"a joiner held {name}, which is no key")
        return KeyState(parts.namespace, parts.lower, parts.upper)

    def _asserted(self, partition: int, name: str) -> Callable[[Result], None]:
        def done(result: Result) -> None:
            self._on_their_way[partition].discard(name)
            if result.status in (Status.NOT_WRITTEN, Status.UNKNOWN):
                self._todo[partition].append(name)

        return done


def _cold_starter(value: bytes | None) -> str | None:
    """Incarnation that wrote a `!cold-start` record; None for whatever is not one."""
    try:
        loaded = orjson.loads(value or b"")
    except orjson.JSONDecodeError:
        return None
    writer = loaded.get("by") if isinstance(loaded, dict) else None
    incarnation = writer.get("incarnation") if isinstance(writer, dict) else None
    return incarnation if codec.is_broker_id(incarnation) else None
