"""What an engine wants done: the effects that `Engine.step` returns, to be performed in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from statechannel.engine.commands import Outcome
from statechannel.protocol.log import Topic


class Hook(StrEnum):
    """The hooks of the embedding broker (see `statechannel.api.BrokerHooks`)."""

    ON_OWN = "on_own"
    ON_SERVE = "on_serve"
    ON_RELEASE = "on_release"
    ON_MOVED = "on_moved"
    ON_SPLIT = "on_split"
    ON_SPLIT_DONE = "on_split_done"


@dataclass(frozen=True, slots=True)
class Append:
    """Append one record; its delivery report comes back as `Appended` or `AppendFailed` with the same token.

    Appends of one partition leave in the order in which the effects were returned.
    """

    token: int
    topic: Topic
    partition: int
    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class RestartReading:
    """Read the partition again from its beginning; the reader answers with `PartitionOpened`."""

    topic: Topic
    partition: int


@dataclass(frozen=True, slots=True)
class StandForLeader:
    """Enter the election (or leave it, when `stand` is False); `LeadershipChanged` follows."""

    stand: bool


@dataclass(frozen=True, slots=True)
class CallHook:
    """Call a hook of the embedding broker; `HookFinished` follows unless the deadline passes first.

    Attributes:
        hook_id: 0 for notifications whose end is not waited for.
        generation: Fencing token of the bundle (protocol.md section 1).
        peer: Destination (on_release), owner (on_moved), else None.
        children: The parts of a split (on_split, on_split_done), else empty.
    """

    hook_id: int
    hook: Hook
    bundle: str
    generation: int
    peer: str | None
    deadline_s: float
    children: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Complete:
    """Answer the command that carried this token."""

    token: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Emit:
    """Something worth telling: a log event, a metric, a change for subscribers. Never needed for correctness."""

    event: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InterruptStream:
    """Accepted records of a partition are not reported one by one any more: a follower has to begin again."""

    partition: int
    why: str


@dataclass(frozen=True, slots=True)
class StopEngine:
    """This process cannot go on; `reason` is a stable word, `detail` a sentence with what to do next."""

    reason: str
    detail: str


Effect = Append | RestartReading | StandForLeader | CallHook | Complete | Emit | InterruptStream | StopEngine
