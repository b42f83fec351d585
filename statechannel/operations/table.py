"""The twelve commands that can be requested of brokers, a row each: arguments, who executes it, and its ways in.

A row names the engine's command, whose fields have the types and the defaults, and the arguments that a request gives; each of
those is described once (`ARGUMENTS`). From both come the decoding and validation of requests, who claims one, the bodies and
paths of the admin API, and the tables of design/reference/requests-topic.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final

from statechannel.engine import commands
from statechannel.engine.commands import AwaitOperation, Command
from statechannel.operations import checks
from statechannel.operations.checks import ArgumentValueError
from statechannel.protocol.bundle import MAX_CHILDREN, namespace_bounds
from statechannel.settings.groups_cluster import AccessRole

ANSWER_PART: Final = 0.95
"""Part of its time-out after which a `pre-stop` is answered, with as much as is done."""
FORCED: Final = "forced past the filters"
"""How the reason of a move begins that policies were not asked about."""
MAY_TAKE: Final = "may-take"
"""Check whether policies allow a move; the balancer makes it."""


class RequestCommand(StrEnum):
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


class Executor(StrEnum):
    """Broker that executes a command."""

    LEADER = "the leader"
    OWNER = "the owner; without one, or if it is not heard, the leader"
    NAMED = "the named broker"
    ADDRESSEE = "by `to`; see below"


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


class Addressee(StrEnum):
    LEADER = "leader"
    OWNER = "owner"  # of the bundle called `name`; the leader if it is unserved
    BROKER = "broker"  # the one called `broker`


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of commands.

    Attributes:
        about: Its meaning.
        check: Refuses a malformed value.
        needed: Refuses it in a request that leaves it out, too; None: it may be left out.
        over_http: Its type in the body of a path, with default and bounds there.
    """

    about: str
    check: Callable[[str, Any], None] = lambda _, __: None
    needed: Callable[[str, Any], None] | None = None
    over_http: tuple[Any, Mapping[str, Any]] = (str, {})


_NAME_OVER_HTTP = (str, {"min_length": 1, "max_length": 1_024})
ARGUMENTS: Final[Mapping[str, Argument]] = {
    "name": Argument("`tenant/namespace/topic`, or the key of a bundle.", checks.text, checks.require_text, _NAME_OVER_HTTP),
    "read_only": Argument("do not assign it", checks.flag),
    "namespace": Argument("`tenant/namespace`.", checks.text, checks.require_namespace, _NAME_OVER_HTTP),
    "bounds": Argument("hashes, in place of `bundles`", checks.bounds),
    "bundles": Argument(
        "Number of bundles; default `lookups.default_bundles`.",
        over_http=(int | None, {"default": None, "ge": 1, "le": MAX_CHILDREN}),
    ),
    "force": Argument("Do not ask whether policies allow it. Takes the role force.", over_http=(bool, {"default": False})),
    "destination": Argument("Id of the broker.", checks.text, checks.require_text, (str, {"min_length": 1, "max_length": 128})),
    "at": Argument("Hashes; empty: evenly.", checks.cuts, over_http=(list[int], {"default": [], "max_length": MAX_CHILDREN})),
    "parts": Argument(
        "Number of even parts, where `at` is empty.", checks.whole,
        over_http=(int, {"default": 2, "ge": 2, "le": MAX_CHILDREN}),
    ),
    "reason": Argument("a text for people", checks.optional(checks.text)),
    "if_generation": Argument(
        "only while the bundle has it, else rejected `generation-changed`", checks.optional(checks.whole)
    ),
    "broker": Argument("id of the broker", checks.text, checks.require_text),
    "incarnation": Argument("only that process of the broker"),
    "budget_s": Argument("time to hand over; the time-out at most", checks.seconds),
    "notice_s": Argument("time from not ready to the first hand-over", checks.seconds),
    "extension": Argument("its name", needed=checks.require_text),
    "ask": Argument("a word of the extension's own", needed=checks.require_text),
    "to": Argument("who answers, and what else it takes: see below"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class HttpPath:
    """The path of a command in the admin API.

    Attributes:
        name: Id of the operation in the OpenAPI document.
        about: A sentence.
        reasons: Codes of problems beyond those that all routes have.
        body: Name of the schema of its body, what it says, and the arguments that it has; empty: that of all actions.
    """

    method: str
    path: str
    name: str
    about: str
    reasons: tuple[str, ...]
    role: AccessRole = AccessRole.OPERATE
    body: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OperationSpec:
    """One command.

    Attributes:
        kind: The engine's command, or the request to an extension.
        args: Names of its arguments.
        executor: Who executes it.
        words: Of the command line; empty: none.
        fill: Makes fields of other arguments. It gets all, with `operation`, `timeout_s`, and the request's own as `args`.
        in_order: The last one decides: one whose claim was lost is not executed after a later one.
        checks: Those that the executing broker makes first, if it has an extension for them; not with `force`.
        would: What it would do, for a dry run.
        http: Its path; None: it has none.
    """

    command: RequestCommand
    kind: type[Command | ExtensionAsk]
    args: tuple[str, ...]
    executor: Executor
    words: str = ""
    fill: Callable[[dict[str, Any]], None] = lambda _: None
    in_order: bool = False
    checks: tuple[str, ...] = ()
    would: str = ""
    http: HttpPath | None = None

    def command_of(self, args: Mapping[str, Any], operation: str, timeout_s: float) -> Command | ExtensionAsk:
        """The engine's command, or the request to an extension. Unknown arguments are ignored: newer clients write them.

        Raises:
            ArgumentTypeError: An argument is of the wrong type.
            ArgumentValueError: An argument is missing or malformed.
        """
        for name in self.args:
            if (refuse := ARGUMENTS[name].needed) is not None:
                refuse(name, args.get(name))
        values: dict[str, Any] = {"operation": operation, "timeout_s": timeout_s, "args": args}
        values |= {name: args[name] for name in self.args if name in args}
        for name in ("at", "bounds"):  # JSON has lists where commands have tuples
            if isinstance(values.get(name), list):
                values[name] = tuple(values[name])
        self.fill(values)
        command = self.kind(**{item.name: values[item.name] for item in fields(self.kind) if item.name in values})
        if not isinstance(command, ExtensionAsk):
            check(command)
        return command


def _fill_bounds(values: dict[str, Any]) -> None:
    if "bounds" not in values:
        count = values.get("bundles", 4)
        checks.whole("bundles", count, 1, MAX_CHILDREN)
        values["bounds"] = tuple(namespace_bounds(count))


def _fill_budget(values: dict[str, Any]) -> None:
    values.setdefault("budget_s", values["timeout_s"])


def _fill_time_to_answer(values: dict[str, Any]) -> None:
    """The answer is to be read before the requester gives up."""
    _fill_budget(values)
    checks.seconds("budget_s", values["budget_s"])
    values["budget_s"] = min(values["timeout_s"] * ANSWER_PART, values["budget_s"])


def _require_addressee(values: dict[str, Any]) -> None:
    to = values.get("to", Addressee.LEADER)
    if to not in list(Addressee):
        raise ArgumentValueError(f"`to` is not one of {', '.join(Addressee)}")
    if to != Addressee.LEADER:
        name = "name" if to == Addressee.OWNER else "broker"
        checks.require_text(name, values["args"].get(name))


_BUNDLE, _NAMESPACES = "/v1/bundles/{tenant}/{namespace}/{range}", "/v1/namespaces"
_SHARED = ("idempotency-key-reused", "no-broker", "too-busy", "not-current")
_OF_BUNDLE = (*_SHARED, "unknown-bundle", "generation-changed", "not-assigned")
_MOVED = ("reason", "if_generation")
_BY_OWNER, _BY_LEADER, _BY_NAMED = Executor.OWNER, Executor.LEADER, Executor.NAMED

_ROWS = (
    OperationSpec(
        RequestCommand.LOOKUP, commands.Lookup, ("name", "read_only"), _BY_LEADER, "lookup",
        http=HttpPath(
            "POST", "/v1/lookup", "assign", "Look up a topic or bundle, and assign it if it has no owner",
            (*_SHARED, "bad-name", "unknown-namespace", "unknown-bundle"), body=("LookupBody", "A topic or bundle.", "name"),
        ),
    ),
    OperationSpec(
        RequestCommand.CREATE_NAMESPACE, commands.CreateNamespace, ("namespace", "bounds", "bundles", "reason"), _BY_LEADER,
        "namespace create", _fill_bounds,
        would="{namespace} would be created with {bundles} bundles",
        http=HttpPath(
            "POST", _NAMESPACES, "create-namespace", "Create a namespace", (*_SHARED, "namespace-exists"),
            body=("NamespaceBody", "A new namespace.", "namespace", "bundles"),
        ),
    ),
    OperationSpec(
        RequestCommand.DELETE_NAMESPACE, commands.DeleteNamespace, ("namespace", "reason"), _BY_LEADER, "namespace delete",
        would="{namespace} would be deleted with its {bundles} bundles; nothing undoes it",
        http=HttpPath(
            "DELETE", f"{_NAMESPACES}/{{tenant}}/{{namespace}}", "delete-namespace",
            "Unload all bundles of a namespace and delete it; nothing undoes it",
            (*_SHARED, "unknown-namespace", "not-unloaded"), AccessRole.FORCE,
        ),
    ),
    OperationSpec(
        RequestCommand.TRANSFER, commands.Transfer, ("name", "force", "destination", *_MOVED), _BY_OWNER, "transfer",
        checks=(MAY_TAKE,),
        would="{owner} would release {name}; {destination} would serve it",
        http=HttpPath(
            "POST", f"{_BUNDLE}/transfer", "transfer", "Transfer a bundle to a broker, if policies allow it",
            (*_OF_BUNDLE, "filtered", "unknown-destination", "destination-is-owner"),
            body=("TransferBody", "Where a bundle is to go.", "force", "destination"),
        ),
    ),
    OperationSpec(
        RequestCommand.UNLOAD, commands.Unload, ("name", "force", *_MOVED), _BY_OWNER, "unload", checks=(MAY_TAKE,),
        would="{owner} would release {name}; the next lookup assigns it again",
        http=HttpPath(
            "POST", f"{_BUNDLE}/unload", "unload", "Unload a bundle; the next lookup assigns it again",
            (*_OF_BUNDLE, "filtered"), body=("MoveBody", "A move that policies may forbid.", "force"),
        ),
    ),
    OperationSpec(
        RequestCommand.SPLIT, commands.Split, ("name", "at", "parts", *_MOVED), _BY_OWNER, "split",
        would="{owner} would split {name} into {parts} bundles",
        http=HttpPath(
            "POST", f"{_BUNDLE}/split", "split", "Split a bundle", (*_OF_BUNDLE, "bad-split"),
            body=("SplitBody", "Where a bundle is to be cut.", "at", "parts"),
        ),
    ),
    OperationSpec(
        RequestCommand.RESUME_REPAIR, commands.ResumeRepair, (), _BY_LEADER, "repair resume",
        would="the bundles of lost brokers would go to others at once",
        http=HttpPath("POST", "/v1/repair/resume", "resume-repair", "Repair after a loss of many brokers at once", _SHARED),
    ),
    OperationSpec(
        RequestCommand.DISMISS_BROKER, commands.DismissBroker, ("broker", "reason"), _BY_LEADER, "broker dismiss",
        would="{broker} would not be reported as lost any more; if it comes back, it joins as usual",
        http=HttpPath(
            "POST", "/v1/brokers/{broker}/dismiss", "dismiss-broker", "Dismiss a lost broker that will not come back",
            (*_SHARED, "broker-not-lost"),
        ),
    ),
    OperationSpec(
        RequestCommand.SHUTDOWN, commands.Shutdown, ("broker", "incarnation", "budget_s"), _BY_NAMED, fill=_fill_budget
    ),
    OperationSpec(
        RequestCommand.PRE_STOP, commands.PreStop, ("broker", "incarnation", "budget_s", "notice_s"), _BY_NAMED,
        "broker pre-stop", _fill_time_to_answer, in_order=True,
    ),
    OperationSpec(
        RequestCommand.UNDO_PRE_STOP, commands.UndoPreStop, ("broker", "incarnation"), _BY_NAMED, "broker pre-stop --undo",
        in_order=True,
    ),
    OperationSpec(
        RequestCommand.EXTENSION, ExtensionAsk, ("extension", "ask", "to"), Executor.ADDRESSEE, fill=_require_addressee
    ),
)  # fmt: skip
OPERATIONS: Final[Mapping[str, OperationSpec]] = {row.command: row for row in _ROWS}
"""By the word on the wire."""


def move_args(
    name: str, destination: str | None, reason: str | None, if_generation: int | None, *, force: bool
) -> dict[str, Any]:
    """Arguments of a transfer or unload; the reason of a forced one says so in the records of the channel."""
    why = reason if not force else f"{FORCED}: {reason}" if reason else FORCED
    args = {"name": name, "destination": destination, "reason": why, "if_generation": if_generation, "force": force}
    return {name: value for name, value in args.items() if value is not None}


_OF_ALL: Final[Mapping[str, Callable[[str, Any], None]]] = {
    **{name: argument.check for name, argument in ARGUMENTS.items()},
    "operation": checks.operation,
    "timeout_s": checks.seconds,
    "decision": lambda _, __: None,  # the balancer's own
}
_CHECKS_OF: Final[Mapping[type, tuple[tuple[str, Callable[[str, Any], None]], ...]]] = {
    kind: tuple(
        (item.name, checks.text if kind is AwaitOperation and item.name == "operation" else _OF_ALL[item.name])
        for item in fields(kind)
    )
    for kind in Command.__args__
}


def check(command: Command) -> None:
    """Refuse a command of a caller in Python that the engine could not execute.

    Raises:
        ArgumentTypeError: It is not a command, or a field is of the wrong type.
        ArgumentValueError: A field is out of bounds or malformed.
    """
    of_kind = _CHECKS_OF.get(type(command))
    if of_kind is None:
        checks.wrong_type("command", command, "a command of statechannel.engine.commands")
    for name, refuse in of_kind:
        refuse(name, getattr(command, name))
