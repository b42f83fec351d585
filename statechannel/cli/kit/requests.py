"""Requests to the cluster through the requests topic, and their replies; commands that send one (design/requests-topic.md)."""

from __future__ import annotations

import getpass
import inspect
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from ulid import ULID

from statechannel.broker import outcomes, request_record
from statechannel.broker.next_steps import hint_for
from statechannel.broker.outcomes import Answer
from statechannel.broker.request_record import Progress, ProgressStage, Reply, Request, RequestCommand
from statechannel.broker.request_writer import write_request
from statechannel.cli.kit.confirmation import DryRun, Effect, Yes, confirm
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.live_log import describe_topic, naming_address, open_tail
from statechannel.cli.kit.options import Connect, NoWait, OutputAs, Timeout, set_options, with_connection
from statechannel.cli.kit.output import Output, duration, print_json, say, stdout, waiting
from statechannel.cli.kit.registry import read_registry
from statechannel.clocks import now_ms
from statechannel.engine.commands import Done, NotFound, Outcome, Rejected, Undetermined, Unknown, Unowned
from statechannel.engine.names import mistyped
from statechannel.errors import ExitCode
from statechannel.protocol.bundle import is_bundle, split_topic
from statechannel.protocol.log import RecordRead, Topic

if TYPE_CHECKING:  # lookups need no audit
    from statechannel.protocol.keys import KeyState

_REPLY_GRACE_S = 3.0
_BROKER_PAUSE_S = 0.5
_START_ONE = "Start one with `statechannel broker run --id ID`; `statechannel brokers` lists the live ones."


@dataclass(frozen=True, slots=True)
class RequestAnswer:
    """The reply.

    Attributes:
        outcome: None if the command did not wait, or no reply arrived in time.
        claimed_by: Broker that executes, or executed, the request.
        name: Subject of the request, for hints.
        hints: Of this command in place of the usual ones, by reason.
    """

    operation: str
    outcome: Outcome | None
    claimed_by: str | None = None
    started: Mapping[str, Any] | None = None
    name: str = ""
    hints: Mapping[str, str] = field(default_factory=dict)

    def fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"operation": self.operation, "executed_by": self.claimed_by, "answer": "pending"}
        if self.outcome is not None:
            fields |= outcomes.to_json(self.outcome) | {"answer": outcomes.answer_of(self.outcome).value}
        return fields


@dataclass(frozen=True, slots=True)
class SentRequest:
    """Request in the log, at `offset`."""

    id: str
    offset: int
    wait_s: float


def send(
    connection: Connection,
    asked: RequestCommand,
    args: Mapping[str, Any],
    wait_s: float,
    *,
    identifier: str | None = None,
    by: str | None = None,
) -> SentRequest:
    """Write a request; arguments that are None are left out.

    Args:
        by: Who asks; None: who runs the command.

    Raises:
        KafkaAdapterError: Kafka is out of reach, refuses the request, or the result is unknown.
    """
    filled = {name: value for name, value in args.items() if value is not None}
    request = Request(identifier or str(ULID()), asked.value, 0, filled, by or user_at_host())
    with naming_address(connection):
        offset = write_request(
            connection.client, connection.topics, request, answer_within_s=wait_s, timeout_s=connection.timeout_s
        )
    return SentRequest(request.id, offset, wait_s)


def follow(
    connection: Connection,
    sent: SentRequest,
    progress: Callable[[str | None], None] = lambda _: None,
    *,
    grace_s: float = _REPLY_GRACE_S,
) -> RequestAnswer:
    """Wait for the reply to a request; without one in time, the outcome of the answer is None.

    Args:
        progress: Called repeatedly with the broker that executes it.
        grace_s: Waited longer than the request's time, for a reply that is given at its very end.
    """
    claimed_by: str | None = None
    started: Mapping[str, Any] | None = None
    ends_s = time.monotonic() + sent.wait_s + grace_s
    with open_tail(connection, Topic.REQUESTS, 0) as tail:
        for batch in tail.follow(sent.offset + 1, stop=lambda: time.monotonic() > ends_s):
            for record in batch:
                if record.key != sent.id.encode():
                    continue
                item = request_record.decode(record.value, record.timestamp_ms)
                if isinstance(item, Progress):
                    claimed_by = item.broker
                    started = item.facts if item.stage is ProgressStage.STARTED else started
                elif isinstance(item, Reply):
                    return RequestAnswer(sent.id, outcomes.from_json(item.outcome), item.broker, started)
            progress(claimed_by)
    return RequestAnswer(sent.id, None, claimed_by, started)


def ask(
    connection: Connection,
    asked: RequestCommand,
    args: Mapping[str, Any],
    *,
    timeout_s: float | None = None,
    wait: bool = True,
) -> RequestAnswer:
    """Write a request and wait for its reply; nothing is written if no broker is alive.

    Raises:
        CommandError: No broker is alive, or none answered in time; the message says whether one has claimed the request.
    """
    wait_s = timeout_s or connection.settings.limits.command_timeout_s
    describe_topic(connection, Topic.REQUESTS)
    absence = _absence(connection, listen=wait)
    if absence and wait:
        raise CommandError(absence, hint=_START_ONE, code=ExitCode.NO_BROKER)
    sent = send(connection, asked, args, wait_s)
    if not wait:
        if absence:
            say(f"note: {absence}; the request waits {wait_s:.0f} s for one")
        return RequestAnswer(sent.id, None)
    with waiting(f"waiting for {asked}", wait_s + _REPLY_GRACE_S) as tick:
        answer = follow(
            connection,
            sent,
            lambda broker: tick(f"; broker {broker} executes it" if broker else "; no broker has claimed it yet"),
        )
    if answer.outcome is None:
        raise _unanswered(answer, asked, wait_s + _REPLY_GRACE_S)
    return replace(answer, name=str(args.get("name") or args.get("namespace") or ""))


def _absence(connection: Connection, *, listen: bool) -> str:
    """Message that no broker is alive, with the one heard last; empty if one is alive."""
    registry = read_registry(connection, listen=listen)
    if registry.members.alive:
        return ""
    last = registry.last_lost
    if last is None:
        return f"no broker is running on channel {connection.settings.channel.name}: its registry has no heartbeat"
    ago = duration(max(0, registry.read_at_ms - last.last_heard_ms))
    left = (last.broker, last.incarnation) in registry.members.gone
    return f"no broker is alive: {last.broker} {'left' if left else 'was last heard'} {ago} ago"


def _await_broker(connection: Connection, within_s: float) -> None:
    """Wait until a broker is alive, but not longer: brokers that have just been started need some seconds."""
    ends_s = time.monotonic() + within_s
    if within_s <= 0 or not _absence(connection, listen=False):
        return
    say(f"no broker is alive yet; waiting for one, {within_s:g} s at most (--wait-for-broker)")
    with waiting("waiting for a broker", within_s) as tick:
        while time.monotonic() < ends_s and _absence(connection, listen=False):
            tick("")
            time.sleep(_BROKER_PAUSE_S)


def _unanswered(answer: RequestAnswer, asked: RequestCommand, waited_s: float) -> CommandError:
    request = f"the request {answer.operation} ({asked})"
    if answer.claimed_by is None:
        return CommandError(
            f"no broker claimed {request} within {waited_s:.0f} s",
            hint="Check that a broker is running and caught up: `statechannel brokers`.",
            code=ExitCode.NO_BROKER,
        )
    return CommandError(
        f"broker {answer.claimed_by} has claimed {request}, but did not answer within {waited_s:.0f} s",
        hint=f"It may still succeed: `statechannel operation show {answer.operation}`.",
        code=ExitCode.UNKNOWN,
    )


def require_success(answer: RequestAnswer) -> None:
    """End the command with the exit code and message of an outcome other than success.

    Raises:
        CommandError: For every outcome other than success.
    """
    outcome = answer.outcome
    match outcome:
        case Rejected(reason=reason):
            raise _refused(answer, outcome, f"rejected ({reason})", ExitCode.REJECTED)
        case NotFound(stale_age_s=age_s):
            raise _refused(answer, outcome, "", ExitCode.NOT_FOUND, _say_age(age_s))
        case Unowned(bundle=bundle, stale_age_s=age_s):
            raise CommandError(
                f"no broker serves {bundle}{_say_age(age_s)}",
                hint="A lookup without --read-only assigns it.",
                code=ExitCode.NOT_FOUND,
            )
        case Undetermined(reason=reason):
            raise _refused(answer, outcome, f"undetermined ({reason})", ExitCode.UNDETERMINED)
        case Unknown(operation=operation, message=message):
            raise CommandError(
                f"unknown: {message}",
                hint=f"Check later: `statechannel operation show {operation}`.",
                code=ExitCode.UNKNOWN,
            )
        case _:
            return


def _say_age(age_s: float | None) -> str:
    return "" if age_s is None else f" (the responding broker's view is {age_s:.1f} s old)"


def _refused(
    answer: RequestAnswer, outcome: Rejected | NotFound | Undetermined, what: str, code: ExitCode, age: str = ""
) -> CommandError:
    message = ": ".join(filter(None, (what, outcome.message)))
    hint = answer.hints.get(outcome.reason) or hint_for(outcome, name=answer.name, operation=answer.operation)
    return CommandError(message + age, hint=hint, code=code)


def user_at_host() -> str:
    """Who runs this command, for people."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


# --- commands that send one request ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BrokerRequest:
    """The request of a command.

    Attributes:
        done: Message printed when the request succeeded; of a request with a subject the words behind that.
        subject: The bundle or topic of a request about a bundle; the message names the bundle that was acted on.
        refused: Checked first: the answer if something prevents the request, None if nothing does.
        effect: What the request would do, as far as the log shows it; None where it needs no confirmation.
        final: Nothing undoes it.
        results: Messages in place of `done`, by the result of the operation.
        hints: Hints in place of the usual ones, by reason.
        broker_within_s: Longest wait for a first live broker.
    """

    asked: RequestCommand
    args: Mapping[str, Any]
    done: str
    refused: Callable[[Connection], RequestAnswer | None] | None = None
    effect: Callable[[Connection], Effect] | None = None
    final: bool = False
    results: Mapping[str, str] = field(default_factory=dict)
    hints: Mapping[str, str] = field(default_factory=dict)
    broker_within_s: float = 0.0
    subject: str = ""

    def sentence(self, bundle: object = None) -> str:
        """The message of success, about the bundle that a broker acted on."""
        if not self.subject:
            return self.done
        if not isinstance(bundle, str) or bundle == self.subject:
            return f"{self.subject} {self.done}"
        return f"{bundle}, the bundle of {self.subject}, {self.done}"


def confirmed_request(command: Callable[..., BrokerRequest]) -> Callable[..., Any]:
    """Turn a function that returns a request that destroys or moves something into a command.

    Adds `--yes`, `--dry-run`, `--timeout`, `--no-wait`, `--output` and connection options.
    """
    return _with_dry_run(command, _confirmed_options)


def rehearsed_request(command: Callable[..., BrokerRequest]) -> Callable[..., Any]:
    """The same for requests that need no confirmation: without `--yes`."""
    return _with_dry_run(command, _rehearsed_options)


def _with_dry_run(command: Callable[..., BrokerRequest], shared: Callable[..., None]) -> Callable[..., Any]:
    @wraps(command)
    def run(
        connect: Connect,
        timeout: float | None,
        no_wait: bool,
        output: Output,
        dry_run: bool,
        yes: bool = True,
        **arguments: Any,
    ) -> None:
        request = command(connect, **arguments)
        effect = partial(_effect_of, request, connect)
        if confirm(effect, connection=connect, yes=yes, dry_run=dry_run, output=output, final=request.final):
            _run(request, connect, timeout, output, wait=not no_wait)

    return _as_command(command, run, shared)


def _effect_of(request: BrokerRequest, connect: Connect) -> Effect:
    prevented = None if request.effect is None else _prevented(request, connect(), wait=True)
    if prevented is not None:
        require_success(prevented)
    return Effect([request.sentence()]) if request.effect is None else request.effect(connect())


def _run(request: BrokerRequest, connect: Connect, timeout: float | None, output: Output, *, wait: bool) -> None:
    answer = _prevented(request, connect(), wait=wait)
    if answer is None:
        if wait:
            _await_broker(connect(), request.broker_within_s)
        answer = ask(connect(), request.asked, request.args, timeout_s=timeout, wait=wait)
    _finish(replace(answer, hints=request.hints), output, request)


def _as_command(
    command: Callable[..., Any], run: Callable[..., Any], shared: Callable[..., None]
) -> Callable[..., Any]:
    own = list(inspect.signature(command, eval_str=True).parameters.values())
    set_options(run, [*own, *inspect.signature(shared, eval_str=True).parameters.values()])
    return with_connection(run)


def _prevented(request: BrokerRequest, connection: Connection, *, wait: bool) -> RequestAnswer | None:
    if request.refused is None:
        return None
    try:
        return request.refused(connection)
    except CommandError as error:
        if wait or error.exit_code != ExitCode.NO_BROKER:
            raise
        return None  # the request waits for a broker, which cannot be queried before


def _rehearsed_options(
    dry_run: DryRun = False, timeout: Timeout = None, no_wait: NoWait = False, output: OutputAs = Output.TABLE
) -> None:
    """The options themselves, as a signature."""


def _confirmed_options(
    yes: Yes = False,
    dry_run: DryRun = False,
    timeout: Timeout = None,
    no_wait: NoWait = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """The options themselves, as a signature."""


def _finish(answer: RequestAnswer, output: Output, request: BrokerRequest) -> None:
    if output is Output.JSON:
        print_json(answer.fields())
        require_success(answer)
        return
    require_success(answer)
    if answer.outcome is None:
        say(f"request written; `statechannel operation show {answer.operation}` shows its progress")
        return
    ended = answer.outcome if isinstance(answer.outcome, Done) else Done("", "")
    done = request.results.get(ended.result) or request.sentence(ended.facts.get("bundle"))
    stdout().print(f"{done} (operation {answer.operation}, by {answer.claimed_by})", markup=False)


# --- requests of the past ---------------------------------------------------------------------------------------------


def read_requests(connection: Connection) -> Iterator[tuple[RecordRead, Request | Progress | Reply]]:
    """Valid records of the requests topic, the oldest first."""
    with open_tail(connection, Topic.REQUESTS, 0) as tail:
        for record in tail.records(tail.span()):
            item = request_record.decode(record.value, record.timestamp_ms)
            if item is not None:
                yield record, item


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """Request to an extension, read from the log.

    Attributes:
        reply: None: there is none; `open`: a broker may still answer.
        replied_ms: Log time of the reply.
    """

    request: Request
    offset: int
    reply: Reply | None
    open: bool
    replied_ms: int | None = None

    @property
    def sent(self) -> SentRequest:
        """The request, to follow it."""
        return SentRequest(self.request.id, self.offset, max(1.0, (self.request.deadline_ms - now_ms()) / 1_000))


def extension_requests(connection: Connection, extension: str, ask: str) -> Iterator[LoggedRequest]:
    """Requests of one kind to an extension, the oldest first."""
    asked: dict[str, tuple[Request, int]] = {}
    replies: dict[str, tuple[Reply, int]] = {}
    for record, item in read_requests(connection):
        if isinstance(item, Request):
            if item.args.get("extension") == extension and item.args.get("ask") == ask:
                asked.setdefault(item.id, (item, record.offset))
        elif isinstance(item, Reply):
            replies.setdefault(item.id, (item, record.timestamp_ms))
    for identifier, (request, offset) in asked.items():
        reply, replied_ms = replies.get(identifier, (None, None))
        is_open = reply is None and now_ms() < request.deadline_ms
        yield LoggedRequest(request, offset, reply, open=is_open, replied_ms=replied_ms)


def requests_seen(connection: Connection) -> dict[str, dict[str, Any]]:
    """Requests in the requests topic, by operation: a JSON-able object for each."""
    return requests_of(read_requests(connection))


def requests_in(records: Iterable[RecordRead]) -> dict[str, dict[str, Any]]:
    """The same from records of the topic, as a file has them."""
    items = ((record, request_record.decode(record.value, record.timestamp_ms)) for record in records)
    return requests_of((record, item) for record, item in items if item is not None)


def requests_of(items: Iterable[tuple[RecordRead, Request | Progress | Reply]]) -> dict[str, dict[str, Any]]:
    """The same from valid records."""
    rows: dict[str, dict[str, Any]] = {}
    for record, item in items:
        if isinstance(item, Request):
            rows.setdefault(item.id, _asked(item, record.timestamp_ms))
        elif item.id in rows:
            _apply(rows[item.id], item, record.timestamp_ms)
    return rows


def _asked(request: Request, at_ms: int) -> dict[str, Any]:
    reason = request.args.get("reason") or request.args.get("why")
    return {
        "operation": request.id,
        "flow": _flow(request),
        "name": request.name or request.broker or "",
        "status": "asked" if request.deadline_ms >= now_ms() else "expired",
        "result": None,
        "message": request.problem or None,
        "began_ms": at_ms,
        "changed_ms": at_ms,
        "by": request.by,
        "executed_by": None,
        "destination": request.args.get("destination"),
        "reason": reason if isinstance(reason, str) and reason else None,
    }


def _flow(request: Request) -> str:
    """The command; for an extension the extension's own command, as `extension` alone says nothing."""
    ask = request.args.get("ask")
    return ask if request.asked == RequestCommand.EXTENSION.value and isinstance(ask, str) and ask else request.asked


def _apply(row: dict[str, Any], item: Progress | Reply, at_ms: int) -> None:
    if row["status"] in ("ended", "failed"):
        return
    row["executed_by"] = item.broker
    row["changed_ms"] = at_ms
    if isinstance(item, Progress):
        row["status"] = "running"
        return
    outcome: Mapping[str, Any] = item.outcome
    row["status"] = _status_of(outcome)
    row["result"] = outcome.get("result") or outcome.get("reason") or outcome.get("outcome")
    row["message"] = message_of(outcome)
    facts = outcome.get("facts")
    bundle = outcome.get("bundle") or (facts.get("bundle") if isinstance(facts, Mapping) else None)
    if isinstance(bundle, str) and bundle:
        row["name"] = bundle  # of a topic that was named, what was acted on


def _status_of(outcome: Mapping[str, Any]) -> str:
    answer = outcome.get("answer")
    if answer == Answer.ACCEPTED:
        return "ended"
    return "failed" if answer == Answer.REJECTED else "timed-out" if is_timed_out(outcome) else "unknown"


def is_timed_out(outcome: Mapping[str, Any]) -> bool:
    """Whether a reply says that the time of the request was over before its operation had ended."""
    return outcome.get("outcome") == "undetermined" and outcome.get("reason") == "timed-out"


def message_of(outcome: Mapping[str, Any]) -> str | None:
    """What a reply says for people, if anything; of an operation that has ended, what it did only in part."""
    try:
        ended = outcomes.from_json(outcome)
        message: object = ended.facts.get("message") if isinstance(ended, Done) else getattr(ended, "message", None)
        return message if isinstance(message, str) else None
    except ValueError:  # anybody may write a reply
        return None


def require_generation(key: KeyState, wanted: int | None) -> None:
    """Refuse a bundle of another generation than the one that was asked for.

    Raises:
        CommandError: It has another one.
    """
    if wanted not in (None, key.generation):
        raise CommandError(
            f"{key.name} has the generation {key.generation}, not {wanted}",
            hint=f"Another move was first: `statechannel audit history {key.name}` shows it.",
            code=ExitCode.REJECTED,
        )


def require_name(name: str) -> None:
    """Refuse a name that is neither a topic nor a bundle, or looks like a bundle and is none, before any request.

    Raises:
        CommandError: The name must not be used to change anything.
    """
    refused = mistyped(name)
    if refused is not None:
        raise CommandError(refused.message, hint=refused.hint, code=ExitCode.USAGE)
    require_place(name)


def require_place(name: str) -> None:
    """Refuse a name that is neither a topic nor a bundle.

    Raises:
        CommandError: The name is neither.
    """
    if not is_bundle(name) and split_topic(name) is None:
        raise CommandError(
            f"`{name}` has no namespace, so it is neither a topic nor a bundle",
            hint="Use tenant/namespace/topic, persistent://tenant/namespace/topic, or tenant/namespace/0x..._0x...",
            code=ExitCode.USAGE,
        )
