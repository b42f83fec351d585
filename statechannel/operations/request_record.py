"""Records of the requests topic (design/reference/requests-topic.md), with strict decoding."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import orjson

from statechannel.operations.checks import ArgumentTypeError, ArgumentValueError
from statechannel.operations.table import FORCED, OPERATIONS, Addressee
from statechannel.protocol.side_record import json_object

if TYPE_CHECKING:
    from collections.abc import Mapping

    from statechannel.engine.commands import Command
    from statechannel.operations.table import Executor, ExtensionAsk, OperationSpec

FORMAT = 1
TIMEOUT_MAX_S = 3600.0
DEFAULT_TIMEOUT_S = 60.0
_ID = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)


class RequestRecordKind(StrEnum):
    REQUEST = "request"
    PROGRESS = "progress"
    REPLY = "reply"


class ProgressStage(StrEnum):
    CLAIMED = "claimed"  # this broker executes it
    STARTED = "started"  # its first record was accepted


@dataclass(frozen=True, slots=True)
class Request:
    """A decoded request.

    Attributes:
        id: Also the operation id.
        deadline_ms: Log time after which brokers need not reply.
        command: None if it cannot be executed; then `problem` says why.
        broker: Addressee, if only one broker can execute the request.
        name: Bundle, topic or namespace that it concerns.
    """

    id: str
    asked: str
    deadline_ms: int
    args: Mapping[str, Any]
    by: str
    problem: str = ""

    @property
    def broker(self) -> str | None:
        """The addressed broker (shutdown, pre-stop and its undo, and extensions of one broker)."""
        value = self.args.get("broker")
        return value if isinstance(value, str) else None

    @property
    def spec(self) -> OperationSpec | None:
        return OPERATIONS.get(self.asked)

    @property
    def executor(self) -> Executor | None:
        """Who executes it; None: its command is unknown."""
        return None if self.spec is None else self.spec.executor

    @property
    def is_in_order(self) -> bool:
        """Whether it is not executed after a later one."""
        return self.spec is not None and self.spec.in_order

    @property
    def checks(self) -> tuple[str, ...]:
        """Checks before it is executed; a forced one has none. Versions without `force` say so in the reason alone."""
        is_forced = self.args.get("force", str(self.args.get("reason")).startswith(FORCED)) is True
        return () if self.spec is None or is_forced else self.spec.checks

    @property
    def addressee(self) -> Addressee:
        return Addressee(self.args.get("to", Addressee.LEADER))

    @property
    def name(self) -> str:
        value = self.args.get("name") or self.args.get("namespace")
        return value if isinstance(value, str) else ""

    @property
    def subject(self) -> str:
        """What it concerns, be it a broker."""
        broker = self.args.get("broker")
        return self.name or (broker if isinstance(broker, str) else "")


@dataclass(frozen=True, slots=True)
class Progress:
    """A broker executes the request (`claimed`), or its first record was accepted (`started`).

    Attributes:
        supersedes: Offset of the claim that this one replaces because its broker is lost; -1 for the first claim.
    """

    id: str
    stage: ProgressStage
    broker: str
    incarnation: str
    supersedes: int = -1
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """The end of a request; the first one in the log counts."""

    id: str
    broker: str
    incarnation: str
    outcome: Mapping[str, Any]


def encode(item: Request | Progress | Reply, *, timeout_s: float = 0.0, at_ms: int | None = None) -> bytes:
    """Bytes of a record. `timeout_s` is that of a request, counted from the log's own time."""
    document: dict[str, Any] = {"format": FORMAT, "id": item.id}
    match item:
        case Request():
            document |= {"kind": RequestRecordKind.REQUEST, "command": item.asked, "args": dict(item.args)}
            document |= {"timeout_s": timeout_s, "by": item.by}
        case Progress():
            document |= {"kind": RequestRecordKind.PROGRESS, "stage": item.stage, "supersedes": item.supersedes}
            document |= {"by": {"broker": item.broker, "incarnation": item.incarnation}, "facts": dict(item.facts)}
        case Reply():
            document |= {"kind": RequestRecordKind.REPLY, "outcome": dict(item.outcome)}
            document["by"] = {"broker": item.broker, "incarnation": item.incarnation}
    if at_ms is not None:
        document["written_at_ms"] = at_ms
    return orjson.dumps(document)


def decode(value: bytes | None, timestamp_ms: int) -> Request | Progress | Reply | None:
    """A decoded record, or None if it is invalid."""
    loaded = json_object(value)
    if loaded is None or type(loaded.get("format")) is not int or loaded["format"] != FORMAT:
        return None
    identifier = loaded.get("id")
    if not isinstance(identifier, str) or _ID.fullmatch(identifier) is None:
        return None
    kind = loaded.get("kind")
    if kind == RequestRecordKind.REQUEST:
        return _request(identifier, loaded, timestamp_ms)
    by = loaded.get("by")
    if not isinstance(by, dict):
        return None
    broker, incarnation = by.get("broker"), by.get("incarnation")
    if not isinstance(broker, str) or not isinstance(incarnation, str):
        return None
    if kind == RequestRecordKind.PROGRESS:
        return _progress(identifier, loaded, broker, incarnation)
    outcome = loaded.get("outcome")
    if kind == RequestRecordKind.REPLY and isinstance(outcome, dict):
        return Reply(identifier, broker, incarnation, outcome)
    return None


def _progress(identifier: str, loaded: dict[str, Any], broker: str, incarnation: str) -> Progress | None:
    stage, supersedes, facts = loaded.get("stage"), loaded.get("supersedes", -1), loaded.get("facts", {})
    if stage not in list(ProgressStage) or type(supersedes) is not int or not isinstance(facts, dict):
        return None
    return Progress(identifier, ProgressStage(stage), broker, incarnation, supersedes, facts)


def _request(identifier: str, loaded: dict[str, Any], timestamp_ms: int) -> Request:
    timeout_s = loaded.get("timeout_s", DEFAULT_TIMEOUT_S)
    if type(timeout_s) not in (int, float) or not 0 < timeout_s <= TIMEOUT_MAX_S:
        timeout_s = DEFAULT_TIMEOUT_S
    args, by, asked = loaded.get("args"), loaded.get("by"), loaded.get("command")
    request = Request(
        identifier,
        asked if isinstance(asked, str) else "",
        timestamp_ms + int(timeout_s * 1000),
        args if isinstance(args, dict) else {},
        by if isinstance(by, str) else "",
    )
    try:
        command_of(request, timeout_s)
    except (ArgumentTypeError, ArgumentValueError) as error:
        return Request(request.id, request.asked, request.deadline_ms, request.args, request.by, str(error))
    return request


def command_of(request: Request, timeout_s: float) -> Command | ExtensionAsk:
    """The engine's command for a request, or the request to an extension.

    Raises:
        ArgumentTypeError: An argument is of the wrong type.
        ArgumentValueError: The command is unknown, or an argument is missing or malformed.
    """
    if request.spec is None:
        raise ArgumentValueError(f"unknown command {request.asked!r}; known: {', '.join(OPERATIONS)}")
    return request.spec.command_of(request.args, request.id, timeout_s)
