"""Records of the requests topic (design/requests-topic.md), with strict decoding."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import orjson

from statechannel.broker import arguments
from statechannel.broker.arguments import ArgumentTypeError, ArgumentValueError
from statechannel.engine import commands
from statechannel.protocol.bundle import MAX_CHILDREN, is_namespace, namespace_bounds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from statechannel.engine.commands import Command

FORMAT = 1
TIMEOUT_MAX_S = 3600.0
DEFAULT_TIMEOUT_S = 60.0
ANSWER_PART = 0.95
"""Part of its time-out after which a `pre-stop` is answered, with as much as is done."""
_ID = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)


class RequestRecordKind(StrEnum):
    """Kind of a record of the topic."""

    REQUEST = "request"
    PROGRESS = "progress"
    REPLY = "reply"


class ProgressStage(StrEnum):
    """Stage of a progress record."""

    CLAIMED = "claimed"  # this broker executes it
    STARTED = "started"  # its first record was accepted


class RequestCommand(StrEnum):
    """Commands that can be requested through the topic."""

    LOOKUP = "lookup"
    CREATE_NAMESPACE = "create-namespace"
    DELETE_NAMESPACE = "delete-namespace"
    TRANSFER = "transfer"
    UNLOAD = "unload"
    SPLIT = "split"
    RESUME_REPAIR = "resume-repair"
    DISMISS_BROKER = "dismiss-broker"
    SHUTDOWN = "shutdown"
    PRE_STOP = "pre-stop"
    UNDO_PRE_STOP = "undo-pre-stop"
    EXTENSION = "extension"


class Addressee(StrEnum):
    """Broker that answers a request to an extension."""

    LEADER = "leader"
    OWNER = "owner"  # of the bundle called `name`; the leader if it is unserved
    BROKER = "broker"  # the one called `broker`


@dataclass(frozen=True, slots=True)
class ExtensionAsk:
    """A request to an extension.

    Attributes:
        extension: Its name.
        ask: A command of the extension.
        args: All arguments of the request, unchecked.
        operation: Id of the request: a second broker may receive the same one after the loss of the first.
        timeout_s: Time-out of the caller.
    """

    extension: str
    ask: str
    args: Mapping[str, Any]
    operation: str
    timeout_s: float


class RequestError(ValueError):
    """A request cannot be executed; the text says why."""


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
    def addressee(self) -> Addressee:
        """The addressee of a request to an extension."""
        return Addressee(self.args.get("to", Addressee.LEADER))

    @property
    def name(self) -> str:
        """The bundle, topic or namespace that it concerns."""
        value = self.args.get("name") or self.args.get("namespace")
        return value if isinstance(value, str) else ""


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
    if value is None:
        return None
    try:
        loaded = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(loaded, dict) or type(loaded.get("format")) is not int or loaded["format"] != FORMAT:
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


def is_outdated(value: bytes | None) -> bool:
    """Whether a record that cannot be decoded is of a kind that former versions wrote: it is skipped."""
    return value is not None and b'"kind":"acknowledgement"' in value


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
    except RequestError as error:
        return Request(request.id, request.asked, request.deadline_ms, request.args, request.by, str(error))
    return request


def command_of(request: Request, timeout_s: float) -> Command | ExtensionAsk:
    """The engine's command for a request, or the request to an extension.

    Raises:
        RequestError: The command is unknown, or an argument is missing or malformed.
    """
    try:
        asked = RequestCommand(request.asked)
    except ValueError:
        raise RequestError(f"unknown command {request.asked!r}; known: {', '.join(RequestCommand)}") from None
    if asked is RequestCommand.EXTENSION:
        return _extension_ask(request, timeout_s)
    try:
        command = _command(asked, request.args, request.id, timeout_s)
        arguments.check(command)
    except (ArgumentTypeError, ArgumentValueError) as error:
        raise RequestError(str(error)) from None
    return command


def _extension_ask(request: Request, timeout_s: float) -> ExtensionAsk:
    args = request.args
    extension, ask = _text(args, "extension"), _text(args, "ask")
    to = args.get("to", Addressee.LEADER)
    if to not in list(Addressee):
        raise RequestError(f"`to` is not one of {', '.join(Addressee)}")
    if to == Addressee.OWNER:
        _text(args, "name")
    if to == Addressee.BROKER:
        _text(args, "broker")
    return ExtensionAsk(extension, ask, args, request.id, timeout_s)


def _command(asked: RequestCommand, args: Mapping[str, Any], operation: str, timeout_s: float) -> Command:
    reason, if_generation = args.get("reason"), args.get("if_generation")
    match asked:
        case RequestCommand.LOOKUP:
            return commands.Lookup(_text(args, "name"), timeout_s, args.get("read_only", False))
        case RequestCommand.CREATE_NAMESPACE:
            return commands.CreateNamespace(_namespace(args), _bounds(args), operation, timeout_s, reason)
        case RequestCommand.DELETE_NAMESPACE:
            return commands.DeleteNamespace(_namespace(args), operation, timeout_s, reason)
        case RequestCommand.TRANSFER:
            name, destination = _text(args, "name"), _text(args, "destination")
            return commands.Transfer(name, destination, operation, timeout_s, reason, if_generation=if_generation)
        case RequestCommand.UNLOAD:
            return commands.Unload(_text(args, "name"), operation, timeout_s, reason, if_generation=if_generation)
        case RequestCommand.SPLIT:
            name, at, parts = _text(args, "name"), _tuple(args.get("at", ())), args.get("parts", 2)
            return commands.Split(name, operation, timeout_s, at, parts, reason, if_generation)
        case RequestCommand.RESUME_REPAIR:
            return commands.ResumeRepair()
        case RequestCommand.DISMISS_BROKER:
            return commands.DismissBroker(_text(args, "broker"))
        case RequestCommand.SHUTDOWN:
            _text(args, "broker")
            return commands.Shutdown(args.get("budget_s", timeout_s))
        case RequestCommand.PRE_STOP:
            _text(args, "broker")
            budget_s = args.get("budget_s", timeout_s)
            arguments.seconds("budget_s", budget_s)
            # The answer is to be read before the requester gives up.
            return commands.PreStop(min(timeout_s * ANSWER_PART, budget_s), args.get("notice_s", 0.0))
        case RequestCommand.UNDO_PRE_STOP:
            _text(args, "broker")
            return commands.UndoPreStop()
        case RequestCommand.EXTENSION:
            raise RequestError("`extension` is not a command of the engine")


def _text(args: Mapping[str, Any], name: str) -> str:
    value = args.get(name)
    if not isinstance(value, str) or not value:
        raise RequestError(f"`{name}` is missing or not text")
    return value


def _namespace(args: Mapping[str, Any]) -> str:
    value = _text(args, "namespace")
    if not is_namespace(value):
        raise RequestError(f"{value!r} is not of the form tenant/namespace")
    return value


def _tuple(value: Any) -> Any:
    """JSON has lists where commands have tuples; the command's check refuses anything else."""
    return tuple(value) if isinstance(value, list) else value


def _bounds(args: Mapping[str, Any]) -> Any:
    if "bounds" in args:
        return _tuple(args["bounds"])
    count = args.get("bundles", 4)
    arguments.whole("bundles", count, 1, MAX_CHILDREN)
    return tuple(namespace_bounds(count))
