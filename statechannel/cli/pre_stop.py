"""`statechannel broker pre-stop`: hands over the bundles of a broker before its supervisor stops it.

The request names the process: another one that is started meanwhile ignores it. Its
answer comes from that process; if none comes, the channel shows which bundles the broker still has. With `--undo` the broker
takes bundles again.
"""

from __future__ import annotations

import socket
import time
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

from statechannel.broker.next_steps import hint_for
from statechannel.cli.kit.confirmation import count_of
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.listing import parse_length_ms
from statechannel.cli.kit.options import Connect, OutputAs, option, with_connection
from statechannel.cli.kit.output import Output, print_json, stdout
from statechannel.cli.kit.requests import RequestAnswer, SentRequest, follow, send
from statechannel.engine.commands import Done, NotFound, Rejected, Undetermined, Unknown
from statechannel.engine.membership import Member
from statechannel.errors import ExitCode, NotFoundError, UsageError
from statechannel.kafka.errors import KafkaAdapterError
from statechannel.operations.outcomes import Answer
from statechannel.operations.request_record import TIMEOUT_MAX_S
from statechannel.operations.table import ANSWER_PART, RequestCommand
from statechannel.queries.channel_view import read_channel
from statechannel.queries.connection import Connection
from statechannel.queries.registry import read_registry

WITHIN_MIN_S: Final = 5.0
"""The command itself needs some seconds to start, find the broker and read its answer."""
MARGIN_S: Final = 1.0
"""Time left to read and print the answer."""
OPEN_BEYOND_S: Final = 60.0
"""For this long after --within a slow broker still executes the request, as it is to be stopped anyway."""
ALL: Final = "handed-over"
UNDONE: Final = "undone"


@with_connection
def pre_stop(
    connect: Connect,
    broker_id: Annotated[
        str | None, option("--id ID", "Broker id. Default: the name of this host, as in a StatefulSet.")
    ] = None,
    within: Annotated[
        str, option("--within LENGTH", "Time for all of it, e.g. 60s: less than the grace period.")
    ] = "25s",
    notice: Annotated[
        str, option("--notice LENGTH", "Time from `/readyz` red to the first hand-over, e.g. 5s.")
    ] = "0s",
    undo: Annotated[
        bool, option("--undo", "It is not to be stopped after all: ready again, it takes bundles again.")
    ] = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Prepare a broker to be stopped: `/readyz` red, then hand over its bundles; it stays up without any.

    For a systemd ExecStop or a Kubernetes preStop. It ends when all is handed over, or says after --within how far it came.
    """
    within_s, notice_s = lengths(within, notice)
    ends_s = time.monotonic() + within_s
    name = socket.gethostname() if broker_id is None else broker_id
    connection = connect()
    member = _member(connection, name, defaulted=broker_id is None)
    ended = _undo(connection, member, ends_s) if undo else _hand_over(connection, member, notice_s, ends_s)
    if output is Output.JSON:
        print_json(ended.fields())
    if ended.error is not None:
        raise ended.error
    if output is not Output.JSON:
        stdout().print(ended.sentence, markup=False)


def lengths(within: str, notice: str) -> tuple[float, float]:
    """Both options in seconds.

    Raises:
        UsageError: One of them is malformed, or they do not go together.
    """
    beyond = f"at most {TIMEOUT_MAX_S:g} s."
    within_s = parse_length_ms(within, "--within", beyond=beyond) / 1_000
    notice_s = 0.0 if notice in ("0", "0s") else parse_length_ms(notice, "--notice", beyond=beyond) / 1_000
    if not WITHIN_MIN_S <= within_s <= TIMEOUT_MAX_S:
        raise UsageError(
            f"--within {within}: must be between {WITHIN_MIN_S:g} s and {TIMEOUT_MAX_S:g} s",
            hint="Some seconds less than the supervisor's grace period.",
        )
    if notice_s >= within_s - MARGIN_S:
        raise UsageError(
            f"--notice {notice} leaves no time to hand over within {within}", hint="Raise --within, or lower --notice."
        )
    return within_s, notice_s


@dataclass(frozen=True, slots=True)
class HandOverCounts:
    """Numbers of bundles; None: the channel could not be read.

    Attributes:
        began_with: When the broker was asked first; None of an undo.
    """

    began_with: int | None = None
    handed_over: int | None = None
    left: int | None = None


@dataclass(frozen=True, slots=True)
class PreStopResult:
    """How a request ended, as the JSON output has it.

    Attributes:
        answer: `accepted`, `rejected`, or `unknown`: none came.
        result: Of an accepted request.
        reason: Of a rejected one; of one without an answer `not-taken-up` or `not-answered`.
        error: What the command ends with; None: it succeeded.
        sentence: For people, of one that succeeded.
    """

    broker: str
    operation: str
    answer: Answer
    took_s: float
    counts: HandOverCounts = HandOverCounts()
    result: str | None = None
    reason: str | None = None
    error: CommandError | None = None
    sentence: str = ""

    def fields(self) -> dict[str, Any]:
        return {
            "broker": self.broker,
            "operation": self.operation,
            "answer": str(self.answer),
            "result": self.result,
            "reason": self.reason,
            **asdict(self.counts),
            "took_s": round(self.took_s, 3),
        }


def _member(connection: Connection, name: str, *, defaulted: bool) -> Member:
    """The process of a broker; no time of a record proves that it has ended: its next heartbeat is awaited before."""
    registry = read_registry(connection, awaited=name)
    member = registry.members.alive.get(name)
    if member is not None:
        return member
    why = "; that is the name of this host" if defaulted else ""
    if any(broker == name for broker, _ in registry.members.gone):
        why += "; it left"
    elif name in registry.members.lost or (registry.last_lost is not None and registry.last_lost.broker == name):
        why += "; it was lost, and no heartbeat of it came while this command listened"
    raise NotFoundError(
        f"broker {name} is not alive{why}: there is nothing to hand over",
        hint="--id names another one; `statechannel brokers` lists those that are alive.",
    )


def _hand_over(connection: Connection, member: Member, notice_s: float, ends_s: float) -> PreStopResult:
    begun_s = time.monotonic()
    before = _count_bundles(connection, member.broker)
    left_s = ends_s - time.monotonic()
    budget_s = max(1.0, min(left_s - MARGIN_S, left_s * ANSWER_PART))
    args = {"notice_s": notice_s, "budget_s": budget_s}
    operation, answer = _ask(connection, member, RequestCommand.PRE_STOP, args, ends_s)
    took_s, outcome = time.monotonic() - begun_s, answer.outcome
    if isinstance(outcome, Done):
        counts = HandOverCounts(
            **{
                name: number if type(number := outcome.facts.get(name)) is int else 0
                for name in ("began_with", "handed_over", "left")
            }
        )
        sentence = _sentence(member.broker, counts, took_s)
        error = None
        if outcome.result != ALL:
            error = _incomplete_error(sentence, counts, undone=outcome.result == UNDONE)
        return PreStopResult(
            member.broker,
            operation,
            Answer.ACCEPTED,
            took_s,
            counts,
            result=outcome.result,
            error=error,
            sentence=f"{sentence}; it can be stopped",
        )
    left = _count_bundles_if_readable(connection, member.broker)
    counts = HandOverCounts(before, None if left is None else max(0, before - left), left)
    return _unsuccessful_result(member, operation, answer, took_s, counts)


def _undo(connection: Connection, member: Member, ends_s: float) -> PreStopResult:
    begun_s = time.monotonic()
    operation, answer = _ask(connection, member, RequestCommand.UNDO_PRE_STOP, {}, ends_s)
    took_s, outcome = time.monotonic() - begun_s, answer.outcome
    counts = HandOverCounts(left=_count_bundles_if_readable(connection, member.broker))
    if not isinstance(outcome, Done):
        return _unsuccessful_result(member, operation, answer, took_s, counts)
    again = (
        f"{member.broker} takes bundles again" if outcome.result == UNDONE else f"{member.broker} was not to be stopped"
    )
    sentence = again if counts.left is None else f"{again}; it has {count_of(counts.left, 'bundle')}"
    return PreStopResult(
        member.broker, operation, Answer.ACCEPTED, took_s, counts, result=outcome.result, sentence=sentence
    )


def _ask(
    connection: Connection, member: Member, asked: RequestCommand, args: dict[str, Any], ends_s: float
) -> tuple[str, RequestAnswer]:
    """The id of the request, and its answer; the request stays open beyond the wait, for a slow broker."""
    named = {"broker": member.broker, "incarnation": member.incarnation, **args}
    open_s = min(TIMEOUT_MAX_S, max(0.0, ends_s - time.monotonic()) + OPEN_BEYOND_S)
    sent = send(connection, asked, named, open_s)
    wait_s = max(0.0, ends_s - time.monotonic() - MARGIN_S / 2)
    return sent.id, follow(connection, SentRequest(sent.id, sent.offset, wait_s), grace_s=0.0)


def _sentence(broker: str, counts: HandOverCounts, took_s: float) -> str:
    of = count_of(counts.began_with or 0, "bundle")
    return f"{broker}: {counts.handed_over} of {of} handed over in {took_s:.1f} s"


def _incomplete_error(sentence: str, counts: HandOverCounts, *, undone: bool) -> CommandError:
    if undone:
        return CommandError(
            f"{sentence}, {counts.left} left; `--undo` took that back meanwhile: it takes bundles again",
            hint="Run this command again if it is to be stopped all the same.",
            code=ExitCode.UNDETERMINED,
        )
    return CommandError(
        f"{sentence}, {counts.left} left; it goes on until it is stopped",
        hint="What is left when it is stopped is repaired by the leader. Raise --within and the supervisor's grace period.",
        code=ExitCode.UNDETERMINED,
    )


def _unsuccessful_result(
    member: Member, operation: str, answer: RequestAnswer, took_s: float, counts: HandOverCounts
) -> PreStopResult:
    outcome, broker = answer.outcome, member.broker
    if isinstance(outcome, Rejected | NotFound | Undetermined):
        error = CommandError(
            f"rejected ({outcome.reason}): {outcome.message}",
            hint=hint_for(outcome, operation=operation),
            code=ExitCode.REJECTED,
        )
        reason = str(outcome.reason)
        return PreStopResult(broker, operation, Answer.REJECTED, took_s, counts, reason=reason, error=error)
    claimed = answer.claimed_by is not None or isinstance(outcome, Unknown)
    state = "has not answered" if claimed else "has not taken the request up"
    remainder = "" if counts.left is None else f": {counts.left} left"
    if counts.left is not None and counts.began_with is not None:
        remainder = f": {counts.left} of {count_of(counts.began_with, 'bundle')} left"
    error = CommandError(
        f"{broker} {state} within {took_s:.1f} s{remainder}",
        hint="`statechannel brokers` shows whether it is heard; it may be cut off from Kafka, or its event loop may be blocked.",
        code=ExitCode.UNDETERMINED if claimed else ExitCode.NO_BROKER,
    )
    reason = "not-answered" if claimed else "not-taken-up"
    return PreStopResult(broker, operation, Answer.UNKNOWN, took_s, counts, reason=reason, error=error)


def _count_bundles_if_readable(connection: Connection, broker: str) -> int | None:
    try:
        return _count_bundles(connection, broker)
    except KafkaAdapterError:
        return None


def _count_bundles(connection: Connection, broker: str) -> int:
    """Number of bundles that a broker serves or is about to serve."""
    return sum(broker in (key.owner, key.bound_for) for key in read_channel(connection).live())
