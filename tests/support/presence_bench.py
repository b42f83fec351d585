"""The presence of one process on a registry that the test hands back record by record."""

from types import SimpleNamespace
from typing import Any

import orjson

from statechannel.engine.config import EngineConfig, Identity
from statechannel.engine.context import Context, Mode
from statechannel.engine.effects import Append
from statechannel.engine.inputs import PartitionOpened
from statechannel.engine.log_findings import LogFindings
from statechannel.engine.membership import LostMember
from statechannel.engine.presence import Presence
from statechannel.engine.proven_positions import ProvenPositions
from statechannel.protocol.log import RecordRead, Topic
from tests.support.stub_context import StubProvenance

EXPIRY_S, SAFE_S, SETTLE_S, INTERVAL_S = 6.0, 4.0, 10.0, 1.0


class RegistryContext(Context):
    """A context without partitions, which keeps what was emitted and appended for the test."""

    def __init__(self, **config: Any) -> None:
        super().__init__(Identity("a", "a-1", b"0123456789", 1_000), EngineConfig(partitions=0, **config))
        self.now: Any = SimpleNamespace(mono_s=100.0, wall_ms=100_000)
        self.stopped: Any = None
        self.events: list[tuple[str, dict[str, Any]]] = []

    def emit(self, event: str, **facts: Any) -> None:
        self.events.append((event, facts))

    def appends(self) -> list[Append]:
        """Appends since the last question."""
        return [effect for effect in self.take_effects() if isinstance(effect, Append)]


class PresenceBench:
    """The presence of `a-1`; nothing is read that the test does not hand in."""

    def __init__(self, *, end: int = 0, **config: Any) -> None:
        context: Any = RegistryContext(**config)
        self.context = context
        self.notices: list[str] = []
        self.provenance: Any = StubProvenance(context)
        self.presence = Presence(context, self.provenance, self, ProvenPositions("", 1), LogFindings(context))
        self.offset = 0
        self.presence.opened(PartitionOpened(Topic.REGISTRY, 0, 0, end))

    def stop(self, reason: str, detail: str) -> None:
        self.context.stopped = reason

    def members_lost(self, lost: list[LostMember]) -> None:
        self.notices.extend(f"lost {member.broker}" for member in lost)

    def members_changed(self) -> None:
        self.notices.append("members")

    def leadership_changed(self) -> None:
        self.notices.append("leadership")

    def mode_changed(self, before: Mode) -> None:
        self.notices.append(f"mode from {before}")

    def phase_changed(self, replica: Any, before: Any) -> None:
        self.notices.append(f"partition {replica.partition} was {before}")

    @property
    def now_s(self) -> float:
        return float(self.context.now.mono_s)

    def later(self, seconds: float, *, tick: bool = True) -> None:
        self.context.now.mono_s += seconds
        self.context.now.wall_ms += round(1_000 * seconds)
        if tick:
            self.presence.tick()

    def sent(self) -> list[dict[str, Any]]:
        return [orjson.loads(append.value) for append in self.context.appends()]

    def read(self, info: dict[str, Any], *, at_ms: int | None = None) -> int:
        at_ms = self.context.now.wall_ms if at_ms is None else at_ms
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
        assert self.context.registry_mode is Mode.NORMAL
        for record in self.sent():
            self.read(record)
        self.notices.clear()
        self.context.events.clear()

    def events(self) -> list[str]:
        names, self.context.events = [name for name, _ in self.context.events], []
        return names
