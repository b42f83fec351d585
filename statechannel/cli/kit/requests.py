"""Requests to the cluster through the requests topic, and their replies (design/requests-topic.md)."""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ulid import ULID

from statechannel.broker import outcomes, request_record
from statechannel.broker.request_record import Progress, ProgressStage, Reply, Request, RequestCommand
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.hints import hint_for
from statechannel.cli.kit.kafka_wait import naming_address
from statechannel.cli.kit.live_log import describe_topic, now_ms, open_tail
from statechannel.cli.kit.output import duration, say, waiting
from statechannel.cli.kit.registry import read_registry
from statechannel.engine.commands import NotFound, Outcome, Rejected, Undetermined, Unknown, Unowned
from statechannel.errors import ExitCode
from statechannel.kafka.tail import append_and_wait
from statechannel.protocol.log import Topic

_REPLY_GRACE_S = 3.0
_START_ONE = "Start one with `statechannel broker run --id ID`; `statechannel brokers` lists the live ones."


@dataclass(frozen=True, slots=True)
class RequestAnswer:
    """The reply.

    Attributes:
        outcome: None if the command did not wait, or no reply arrived in time.
        claimed_by: Broker that executes, or executed, the request.
        name: Subject of the request, for hints.
    """

    operation: str
    outcome: Outcome | None
    claimed_by: str | None = None
    started: Mapping[str, Any] | None = None
    name: str = ""

    def fields(self) -> dict[str, Any]:
        """As the JSON output has it."""
        fields: dict[str, Any] = {"operation": self.operation, "executed_by": self.claimed_by, "answer": "pending"}
        if self.outcome is not None:
            fields |= outcomes.to_json(self.outcome) | {"answer": outcomes.answer_of(self.outcome).value}
        return fields


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
    request = Request(str(ULID()), asked.value, 0, {k: v for k, v in args.items() if v is not None}, _who())
    with naming_address(connection):
        offset = append_and_wait(
            connection.client,
            connection.topics.names[Topic.REQUESTS],
            0,
            key=request.id.encode(),
            value=request_record.encode(request, timeout_s=wait_s, at_ms=now_ms()),
            timeout_s=connection.timeout_s,
            repeatable=True,  # readers of requests deduplicate them by id
        )
    if not wait:
        if absence:
            say(f"note: {absence}; the request waits {wait_s:.0f} s for one")
        return RequestAnswer(request.id, None)
    name = str(args.get("name") or args.get("namespace") or "")
    return replace(_await(connection, request, offset + 1, wait_s + _REPLY_GRACE_S), name=name)


def _absence(connection: Connection, *, listen: bool) -> str:
    """Message that no broker is alive, with the one heard last; empty if one is alive."""
    registry = read_registry(connection, listen=listen)
    if registry.members.alive:
        return ""
    last = registry.last_lost
    if last is None:
        return "no broker is alive, and the registry has no heartbeat"
    ago = duration(max(0, registry.read_at_ms - last.last_heard_ms))
    left = (last.broker, last.incarnation) in registry.members.gone
    return f"no broker is alive: {last.broker} {'left' if left else 'was last heard'} {ago} ago"


def _await(connection: Connection, request: Request, start: int, wait_s: float) -> RequestAnswer:
    claimed_by: str | None = None
    started: Mapping[str, Any] | None = None
    begun_s = time.monotonic()
    with open_tail(connection, Topic.REQUESTS, 0) as tail, waiting(f"waiting for {request.asked}", wait_s) as tick:
        for batch in tail.follow(start, stop=lambda: time.monotonic() - begun_s > wait_s):
            tick(f"; broker {claimed_by} executes it" if claimed_by else "; no broker has claimed it yet")
            for record in batch:
                if record.key != request.id.encode():
                    continue
                item = request_record.decode(record.value, record.timestamp_ms)
                if isinstance(item, Progress):
                    claimed_by = item.broker
                    started = item.facts if item.stage is ProgressStage.STARTED else started
                elif isinstance(item, Reply):
                    return RequestAnswer(request.id, outcomes.from_json(item.outcome), item.broker, started)
    if claimed_by is None:
        raise CommandError(
            f"no broker claimed the request {request.id} ({request.asked}) within {wait_s:.0f} s",
            hint="Check that a broker is running and caught up: `statechannel brokers`.",
            code=ExitCode.NO_BROKER,
        )
    raise CommandError(
        f"broker {claimed_by} has claimed the request {request.id} ({request.asked}), but did not answer within {wait_s:.0f} s",
        hint=f"It may still succeed: `statechannel operation show {request.id}`.",
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
    return CommandError(message + age, hint=hint_for(outcome, name=answer.name, operation=answer.operation), code=code)


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
