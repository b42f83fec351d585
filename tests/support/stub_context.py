"""What the reactions of an engine read in its context, each answer set by the test."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from statechannel.engine.config import EngineConfig, Identity
from statechannel.engine.effects import CallHook, Effect
from statechannel.engine.inputs import HookFinished
from statechannel.engine.proposals import ProposalResult
from statechannel.engine.provenance import OwnIds
from statechannel.engine.reactions import Reactions
from statechannel.protocol.keys import KeyState, Writer
from statechannel.protocol.log import RecordRead
from statechannel.protocol.states import State
from statechannel.protocol.view import View
from tests.support.view_log import ViewLog

LOW = "t/n/0x00000000_0x80000000"
HIGH = "t/n/0x80000000_0xffffffff"


class Wanted:
    """Takes the place of `Proposals`: notes what is proposed; the test ends it."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.full = False
        self.round_trips_s = 0.0

    def patience_s(self, retry_intervals: int = 4) -> float:
        return max(0.5 * retry_intervals, self.round_trips_s)

    def propose(self, key: KeyState, state: State, done: Callable[[ProposalResult], None], **fields: Any) -> str | None:
        if self.full:
            return None
        self.records.append({"key": key.name, "state": state, "done": done, **fields})
        return f"p{len(self.records)}"


class StubProvenance:
    """Takes the writer of a record at its word, and knows which ids are copies."""

    def __init__(self, context: StubContext) -> None:
        self._context = context
        self.ids = OwnIds(b"0123456789")
        self.copied: set[str | None] = set()
        self.forged: list[int] = []

    def wrote(self, record_id: str, key: bytes, value: bytes) -> None: ...

    def wrote_mark(self, key: bytes, value: bytes) -> None: ...

    def is_own(self, key: KeyState) -> bool:
        return key.writer == self._context.writer and not self.is_copied(key.record_id)

    def is_copied(self, record_id: str | None) -> bool:
        return record_id in self.copied

    def registry_forged(self, record: RecordRead) -> None:
        self.forged.append(record.offset)

    def fields(self) -> None:
        return None


class StubContext:
    """Broker `a`, process `a-1`."""

    def __init__(self, **config: Any) -> None:
        self.identity = Identity("a", "a-1", b"0123456789", 1_000)
        self.config = EngineConfig(**config)
        self.writer = Writer("a", "a-1")
        self.now = SimpleNamespace(mono_s=100.0, wall_ms=100_000)
        self.draining = False
        self.registered = True
        self.may_write = True
        self.stopped: Any = None
        self.lost: set[str] = set()
        self.not_judged: set[int] = set()
        self.views: list[View] = []
        self.lease_ran_out = False
        self.effects: list[Effect] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._tokens = 0

    def perform(self, effect: Effect) -> None:
        self.effects.append(effect)

    def emit(self, event: str, **facts: Any) -> None:
        self.events.append((event, facts))

    def new_token(self) -> int:
        self._tokens += 1
        return self._tokens

    def key(self, name: str) -> KeyState | None:
        if self.not_judged:
            return None
        return next((state for view in self.views if (state := view.get(name)) is not None), None)

    def partition_of(self, namespace: str) -> int:
        return 0

    def judges(self, partition: int) -> bool:
        return partition not in self.not_judged

    def is_lost(self, broker: str) -> bool:
        return broker in self.lost

    def hooks(self) -> list[tuple[str, str, int, str | None]]:
        """Hooks called since the last question: which, for what, at which generation, with whom."""
        hooks = [effect for effect in self.effects if isinstance(effect, CallHook)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, CallHook)]
        self.hook_ids = [hook.hook_id for hook in hooks]
        return [(str(hook.hook), hook.bundle, hook.generation, hook.peer) for hook in hooks]


class ReactionsBench:
    """The reactions of `a-1` on a log of one partition."""

    def __init__(self, **config: Any) -> None:
        self.log = ViewLog(*(name.removeprefix("t/n/") for name in (LOW, HIGH)), writer="a")
        self.context = StubContext(**config)
        self.context.views = [self.log.view]
        self.heard_ms: dict[str, int] = {}
        self.proposals = Wanted()
        presence: Any = SimpleNamespace(predecessor_heard_ms=self.heard_ms.get, may_be_replaced_by=lambda _: False)
        context: Any = self.context
        stubs: Any = (presence, StubProvenance(self.context), self.proposals)
        self.reactions = Reactions(context, *stubs)

    def changed(self, name: str = LOW) -> None:
        self.reactions.state_changed(self.log.view, self.log.key(name))

    def seen(self, *args: Any, **more: Any) -> None:
        """A move, and that it was read."""
        self.log.move(*args, **more)
        self.changed(args[0])

    def finish(self, error: str | None = None, which: int = -1) -> None:
        self.reactions.hook_finished(HookFinished(self.context.hook_ids[which], error))

    def hooks(self) -> list[tuple[str, str, int, str | None]]:
        return self.context.hooks()

    def written(self) -> list[dict[str, Any]]:
        proposals, self.proposals.records = self.proposals.records, []
        return proposals

    def one_written(self) -> tuple[Any, ...]:
        (proposal,) = self.written()
        self.done = proposal["done"]
        return proposal["state"], proposal["action"], proposal.get("from_"), proposal.get("to")

    def later(self, seconds: float) -> None:
        self.context.now.mono_s += seconds
        self.reactions.tick()

    def serving(self, name: str = LOW) -> None:
        """It serves the bundle, by its own record."""
        self.seen(name, "Assigning", to="a")
        self.hooks()
        self.finish()
        self.written()
        self.seen(name, "Assigned", to="a")
        assert self.reactions.serves(self.log.key(name))
        self.hooks()
