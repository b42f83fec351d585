"""Commands that send requests through the requests topic, and their replies (design/reference/requests-topic.md)."""

from __future__ import annotations

import getpass
import inspect
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from ulid import ULID

from statechannel.broker.next_steps import hint_for
from statechannel.broker.request_writer import write_request
from statechannel.cli.kit.confirmation import DryRun, Effect, Yes, confirm
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import Connect, NoWait, OutputAs, Timeout, set_options, with_connection
from statechannel.cli.kit.output import Output, print_json, say, stdout, waiting
from statechannel.clocks import duration, now_ms
from statechannel.engine.commands import Done, NotFound, Outcome, Rejected, Undetermined, Unknown, Unowned
from statechannel.engine.names import mistyped
from statechannel.errors import ExitCode, NotFoundError, UsageError
from statechannel.operations import outcomes
from statechannel.operations.request_record import Request
from statechannel.operations.table import OPERATIONS, RequestCommand
from statechannel.protocol.bundle import is_bundle, split_topic
from statechannel.protocol.log import Topic
from statechannel.queries.connection import Connection
from statechannel.queries.live_log import describe_topic, naming_address, open_tail
from statechannel.queries.registry import read_registry
from statechannel.stories.requests import RequestFold, RequestStory

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
        started: Facts of the first accepted record, if there was one before the reply.
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

    @classmethod
    def again(cls, story: RequestStory) -> SentRequest:
        """A request of the log, to follow it until its deadline."""
        return cls(story.id, story.offset, max(1.0, (story.deadline_ms - now_ms()) / 1_000))


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
    fold = RequestFold()
    story: RequestStory | None = None
    ends_s = time.monotonic() + sent.wait_s + grace_s
    with open_tail(connection, Topic.REQUESTS, 0) as tail:
        for batch in tail.follow(sent.offset, stop=lambda: time.monotonic() > ends_s):
            fold.take(record for record in batch if record.key == sent.id.encode())
            story = fold.stories.get(sent.id)
            if story is not None and story.outcome is not None:
                return RequestAnswer(sent.id, outcomes.from_json(story.outcome), story.executed_by, story.started)
            progress(None if story is None else story.executed_by)
    if story is None:
        return RequestAnswer(sent.id, None)
    return RequestAnswer(sent.id, None, story.executed_by, story.started)


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
        CommandError, NotFoundError: For every outcome other than success.
    """
    outcome = answer.outcome
    match outcome:
        case Rejected(reason=reason):
            raise _refused(answer, outcome, f"rejected ({reason})", ExitCode.REJECTED)
        case NotFound(stale_age_s=age_s):
            raise _refused(answer, outcome, "", ExitCode.NOT_FOUND, _say_age(age_s))
        case Unowned(bundle=bundle, stale_age_s=age_s):
            raise NotFoundError(
                f"no broker serves {bundle}{_say_age(age_s)}", hint="A lookup without --read-only assigns it."
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
        refused: Asked first, unless brokers check it themselves: the answer if something prevents the request, else None.
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
    return _as_command(command, ("yes", "dry_run", "timeout", "no_wait", "output"))


def rehearsed_request(command: Callable[..., BrokerRequest]) -> Callable[..., Any]:
    """The same for requests that need no confirmation: without `--yes`."""
    return _as_command(command, ("dry_run", "timeout", "no_wait", "output"))


def _as_command(command: Callable[..., BrokerRequest], shared: Sequence[str]) -> Callable[..., Any]:
    def run(
        connect: Connect,
        yes: Yes = True,
        dry_run: DryRun = False,
        timeout: Timeout = None,
        no_wait: NoWait = False,
        output: OutputAs = Output.TABLE,
        **arguments: Any,
    ) -> None:
        request = command(connect, **arguments)
        effect = partial(_effect_of, request, connect)
        if confirm(effect, connection=connect, yes=yes, dry_run=dry_run, output=output, final=request.final):
            _run(request, connect, timeout, output, wait=not no_wait)

    options = inspect.signature(run, eval_str=True).parameters
    added = [options[name].replace(default=False if name == "yes" else options[name].default) for name in shared]
    wrapped = wraps(command)(run)
    set_options(wrapped, [*inspect.signature(command, eval_str=True).parameters.values(), *added])
    return with_connection(wrapped)


def _effect_of(request: BrokerRequest, connect: Connect) -> Effect:
    prevented = None if request.effect is None else _prevented(request, connect(), wait=True)
    if prevented is not None:
        require_success(prevented)
    return Effect([request.sentence()]) if request.effect is None else request.effect(connect())


def _run(request: BrokerRequest, connect: Connect, timeout: float | None, output: Output, *, wait: bool) -> None:
    answer = None if _is_checked(request, connect()) else _prevented(request, connect(), wait=wait)
    if answer is None:
        if wait:
            _await_broker(connect(), request.broker_within_s)
        answer = ask(connect(), request.asked, request.args, timeout_s=timeout, wait=wait)
    _finish(replace(answer, hints=request.hints), output, request)


def _is_checked(request: BrokerRequest, connection: Connection) -> bool:
    """Whether every live broker makes the checks of the command itself before it executes it."""
    checks = OPERATIONS[request.asked].checks
    return bool(checks) and read_registry(connection).members.common_checks().issuperset(checks)


def _prevented(request: BrokerRequest, connection: Connection, *, wait: bool) -> RequestAnswer | None:
    if request.refused is None:
        return None
    try:
        return request.refused(connection)
    except CommandError as error:
        if wait or error.exit_code != ExitCode.NO_BROKER:
            raise
        return None  # the request waits for a broker, which cannot be queried before


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
        UsageError: The name must not be used to change anything.
    """
    refused = mistyped(name)
    if refused is not None:
        raise UsageError(refused.message, hint=refused.hint)
    require_place(name)


def require_place(name: str) -> None:
    """Refuse a name that is neither a topic nor a bundle.

    Raises:
        UsageError: The name is neither.
    """
    if not is_bundle(name) and split_topic(name) is None:
        raise UsageError(
            f"`{name}` has no namespace, so it is neither a topic nor a bundle",
            hint="Use tenant/namespace/topic, persistent://tenant/namespace/topic, or tenant/namespace/0x..._0x...",
        )
