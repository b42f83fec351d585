"""The presence of one process on a registry that the test hands back record by record."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import orjson

from statechannel.engine.inputs import PartitionOpened
from statechannel.engine.presence import Mode, Presence
from statechannel.protocol.log import RecordRead, Topic
from tests.support.stub_engine import StubEngine

EXPIRY_S, SAFE_S, SETTLE_S, INTERVAL_S = 6.0, 4.0, 10.0, 1.0


class PresenceBench:
    """The presence of `a-1`; nothing is read that the test does not hand in."""

    def __init__(self, *, end: int = 0, **config: Any) -> None:
        mine = {"mode": property(lambda _: self.presence.mode)}
        engine: Any = type("RegistryEngine", (StubEngine,), mine)(**config)
        self.engine = engine
        engine.identity = SimpleNamespace(
            broker="a", incarnation="a-1", entropy=b"0123456789", started_at_ms=1_000, listeners=(), persistent=True,
            non_persistent=True, properties=(), software="0", http="",
        )  # fmt: skip
        engine.replicas, engine.caught_up, engine.deputizing = [], True, False
        engine.candidacy = SimpleNamespace(seat=SimpleNamespace(writes=True, fit=True))
        self.told: list[str] = []
        engine.repair = SimpleNamespace(
            paused_why=None, members_lost=lambda lost: self.told.extend(f"lost {m.broker}" for m in lost)
        )
        engine.members_changed = lambda: self.told.append("members")
        engine.leadership_changed = lambda: self.told.append("leadership")
        engine.mode_changed = lambda before: self.told.append(f"mode from {before}")
        engine.stop = self._stop
        self.presence = Presence(engine)
        engine.presence = self.presence
        self.offset = 0
        self.presence.opened(PartitionOpened(Topic.REGISTRY, 0, 0, end))

    def _stop(self, reason: str, _: str) -> None:
        self.engine.stopped = reason

    @property
    def now_s(self) -> float:
        return self.engine.now.mono_s

    def later(self, seconds: float, *, tick: bool = True) -> None:
        self.engine.now.mono_s += seconds
        self.engine.now.wall_ms += round(1_000 * seconds)
        if tick:
            self.presence.tick()

    def sent(self) -> list[dict[str, Any]]:
        return [orjson.loads(one.value) for one in self.engine.appends()]

    def read(self, info: dict[str, Any], *, at_ms: int | None = None) -> int:
        at_ms = self.engine.now.wall_ms if at_ms is None else at_ms
        self.presence.read(RecordRead(Topic.REGISTRY, 0, self.offset, at_ms, b"x", orjson.dumps(info)))
        self.offset += 1
        return self.offset - 1

    def hear(self, broker: str = "a", incarnation: str = "a-0", *, at_ms: int | None = None, **more: Any) -> int:
        info = {"format": 1, "kind": "member", "broker": broker, "incarnation": incarnation, "seq": 1, "since": -1}
        return self.read(info | more, at_ms=at_ms)

    def normal(self) -> None:
        """Announced, read back, normal."""
        self.presence.tick()
        (own,) = self.sent()
        self.read(own)
        self.presence.tick()
        assert self.presence.mode is Mode.NORMAL
        for one in self.sent():
            self.read(one)
        self.told.clear()
        self.engine.events.clear()

    def events(self) -> list[str]:
        found, self.engine.events = [name for name, _ in self.engine.events], []
        return found
