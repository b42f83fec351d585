"""`statechannel broker pre-stop`: a supervisor announces that it will stop a broker, which hands its bundles over beforehand.

The request names the process, so that one that is started since does nothing about it. Its answer comes from that process; where
none does, the channel shows what it still has.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from statechannel.broker.next_steps import hint_for
from statechannel.broker.request_record import TIMEOUT_MAX_S, RequestCommand
from statechannel.cli.kit.channel_view import not_found, read_channel
from statechannel.cli.kit.confirmation import count_of
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import Connect, OutputAs, with_connection
from statechannel.cli.kit.output import Output, print_json, stdout
from statechannel.cli.kit.registry import read_registry
from statechannel.cli.kit.requests import SentRequest, follow, send
from statechannel.cli.kit.times import parse_length_ms
from statechannel.engine.commands import Done, NotFound, Rejected, Undetermined
from statechannel.engine.membership import Member
from statechannel.errors import ExitCode

WITHIN_MIN_S: Final = 5.0
"""The command itself needs some seconds to start, to find the broker and to read its answer."""
MARGIN_S: Final = 1.0
"""Time left to read and print the answer."""
REPLY_GRACE_S: Final = 3.0
"""`follow` waits this much longer than the time that it is given."""
ALL: Final = "handed-over"


@with_connection
def pre_stop(
    connect: Connect,
    broker_id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="Broker id. Default: the name of this host, as in a StatefulSet."),
    ] = None,
    within: Annotated[
        str,
        typer.Option("--within", metavar="LENGTH", help="Time for all of it, e.g. 60s: less than the grace period."),
    ] = "25s",
    notice: Annotated[
        str,
        typer.Option("--notice", metavar="LENGTH", help="Time from `/readyz` red to the first hand-over, e.g. 5s."),
    ] = "0s",
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
    handed = _hand_over(connection, member, notice_s, ends_s)
    if output is Output.JSON:
        print_json(handed.fields())
    began_with, left = handed.facts["began_with"], handed.facts["left"]
    done = f"{name}: {handed.facts['handed_over']} of {count_of(began_with, 'bundle')} handed over in {handed.took_s:.1f} s"
    if handed.result != ALL:
        raise CommandError(
            f"{done}, {left} left; it goes on until it is stopped",
            hint="What is left when it is stopped is repaired by the leader. Raise --within and the supervisor's grace period.",
            code=ExitCode.UNDETERMINED,
        )
    if output is not Output.JSON:
        stdout().print(f"{done}; it can be stopped", markup=False)


def lengths(within: str, notice: str) -> tuple[float, float]:
    """Both options in seconds.

    Raises:
        CommandError: One of them is malformed, or they do not go together.
    """
    beyond = f"at most {TIMEOUT_MAX_S:g} s."
    within_s = parse_length_ms(within, "--within", beyond=beyond) / 1_000
    notice_s = 0.0 if notice in ("0", "0s") else parse_length_ms(notice, "--notice", beyond=beyond) / 1_000
    if not WITHIN_MIN_S <= within_s <= TIMEOUT_MAX_S:
        raise CommandError(
            f"--within {within}: must be between {WITHIN_MIN_S:g} s and {TIMEOUT_MAX_S:g} s",
            hint="Some seconds less than the supervisor's grace period.",
            code=ExitCode.USAGE,
        )
    if notice_s >= within_s - MARGIN_S:
        raise CommandError(
            f"--notice {notice} leaves no time to hand over within {within}",
            hint="Raise --within, or lower --notice.",
            code=ExitCode.USAGE,
        )
    return within_s, notice_s


@dataclass(frozen=True, slots=True)
class HandedOver:
    """What the broker handed over.

    Attributes:
        facts: `began_with`, `handed_over` and `left`: numbers of bundles.
    """

    broker: str
    operation: str
    result: str
    facts: Mapping[str, int]
    took_s: float

    def fields(self) -> dict[str, Any]:
        return {
            "broker": self.broker,
            "operation": self.operation,
            "answer": "accepted",
            "result": self.result,
            **self.facts,
            "took_s": round(self.took_s, 3),
        }


def _member(connection: Connection, name: str, *, defaulted: bool) -> Member:
    """The process; one that is not heard at once may be late."""
    for listen in (False, True):
        member = read_registry(connection, listen=listen).members.alive.get(name)
        if member is not None:
            return member
    why = "; that is the name of this host" if defaulted else ""
    raise not_found(
        f"broker {name} is not alive{why}: there is nothing to hand over",
        hint="--id names another one; `statechannel brokers` lists those that are alive.",
    )


def _hand_over(connection: Connection, member: Member, notice_s: float, ends_s: float) -> HandedOver:
    begun_s = time.monotonic()
    left_s = ends_s - begun_s
    args = {"broker": member.broker, "incarnation": member.incarnation, "notice_s": notice_s}
    before = _held(connection, member.broker)
    sent = send(connection, RequestCommand.PRE_STOP, args, max(1.0, left_s - MARGIN_S))
    wait_s = max(0.0, ends_s - time.monotonic() - MARGIN_S - REPLY_GRACE_S)
    answer = follow(connection, SentRequest(sent.id, sent.offset, wait_s))
    took_s, outcome = time.monotonic() - begun_s, answer.outcome
    if isinstance(outcome, Done):
        facts = {name: _whole(outcome.facts.get(name)) for name in ("began_with", "handed_over", "left")}
        return HandedOver(member.broker, sent.id, outcome.result, facts, took_s)
    if isinstance(outcome, Rejected | NotFound | Undetermined):
        raise CommandError(
            f"rejected ({outcome.reason}): {outcome.message}",
            hint=hint_for(outcome, operation=sent.id),
            code=ExitCode.REJECTED,
        )
    left = _held(connection, member.broker)
    state = "has not taken the request up" if answer.claimed_by is None else "has not answered"
    raise CommandError(
        f"{member.broker} {state} within {took_s:.1f} s: {left} of {count_of(before, 'bundle')} left",
        hint="`statechannel brokers` shows whether it is heard; it may be cut off from Kafka, or its event loop may be blocked.",
        code=ExitCode.NO_BROKER if answer.claimed_by is None else ExitCode.UNDETERMINED,
    )


def _held(connection: Connection, broker: str) -> int:
    """Bundles that it serves, or is about to."""
    return sum(broker in (key.owner, key.bound_for) for key in read_channel(connection).live())


def _whole(value: object) -> int:
    return value if type(value) is int else 0
