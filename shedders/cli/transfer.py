"""`statechannel transfer` and `statechannel unload`: manual moves that obey the balancer's filters.

If the leader runs the balancing extension, it first checks whether policies allow the move; if it does not, the channel alone
decides.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Annotated, Final

import typer

from shedders.cli.policy.write import book_of
from shedders.policies.effective import Force
from statechannel.broker.request_record import Addressee, RequestCommand
from statechannel.broker.request_writer import FORCED, NO_EXTENSION, balancer_args, may_be_asked_again
from statechannel.cli.kit.channel_view import locate, read_channel
from statechannel.cli.kit.confirmation import Effect
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import Connect, IfGeneration, Reason
from statechannel.cli.kit.output import say
from statechannel.cli.kit.registry import read_registry
from statechannel.cli.kit.requests import (
    BrokerRequest,
    RequestAnswer,
    ask,
    confirmed_request,
    require_generation,
    require_name,
)
from statechannel.clocks import now_ms
from statechannel.engine.commands import Done, Rejected
from statechannel.errors import ExitCode, StateChannelError

app = typer.Typer(add_completion=False, rich_markup_mode=None)
unload_app = typer.Typer(add_completion=False, rich_markup_mode=None)

TRIES: Final = 4
"""How long requests are retried while a new leader starts."""
AGAIN_S: Final = 0.5

Name = Annotated[str, typer.Argument(metavar="BUNDLE|TOPIC")]
ForceOption = Annotated[bool, typer.Option("--force", help="Skip the check of policies; the record's reason says so.")]


@app.command()
@confirmed_request
def transfer(
    _: Connect,
    name: Name,
    dest: Annotated[str, typer.Option("--dest", metavar="BROKER", help="Destination of the bundle.")],
    force: ForceOption = False,
    if_generation: IfGeneration = None,
    reason: Reason = None,
) -> BrokerRequest:
    """Transfer a bundle to a broker, if policies allow it."""
    require_name(name)
    return _transfer(name, dest, reason, if_generation, force=force)


@unload_app.command()
@confirmed_request
def unload(
    _: Connect,
    name: Name,
    dest: Annotated[
        str | None, typer.Option("--dest", metavar="BROKER", help="Destination: makes it a transfer.")
    ] = None,
    force: ForceOption = False,
    if_generation: IfGeneration = None,
    reason: Reason = None,
) -> BrokerRequest:
    """Unload a bundle, if policies allow another broker; the next lookup assigns it again."""
    require_name(name)
    if dest is not None:
        return _transfer(name, dest, reason, if_generation, force=force)
    args = {"name": name, "reason": _reason(reason, force=force), "if_generation": if_generation}
    return BrokerRequest(
        RequestCommand.UNLOAD,
        args,
        "unloaded",
        None if force else lambda connection: _refused(connection, name, None),
        lambda connection: _effect(connection, name, None, if_generation),
        subject=name,
    )


def _transfer(name: str, dest: str, reason: str | None, if_generation: int | None, *, force: bool) -> BrokerRequest:
    args = {
        "name": name, "destination": dest, "reason": _reason(reason, force=force), "if_generation": if_generation,
    }  # fmt: skip
    done = f"transferred to {dest}"
    return BrokerRequest(
        RequestCommand.TRANSFER,
        args,
        done,
        None if force else lambda connection: _refused(connection, name, dest),
        lambda connection: _effect(connection, name, dest, if_generation),
        subject=name,
    )


def _effect(connection: Connection, name: str, dest: str | None, if_generation: int | None) -> Effect:
    key = locate(read_channel(connection), name)
    require_generation(key, if_generation)
    if key.owner is None:
        raise CommandError(
            f"no broker serves {key.name}",
            hint=f"`statechannel lookup {key.name}` assigns it.",
            code=ExitCode.REJECTED,
        )
    if dest == key.owner:
        raise CommandError(f"{key.name} is served by {dest} already", code=ExitCode.REJECTED)
    if dest is not None and dest not in read_registry(connection).members.alive:
        raise CommandError(
            f"broker {dest} is not alive", hint="`statechannel brokers` lists the live brokers.", code=ExitCode.REJECTED
        )
    facts = {"bundle": key.name, "owner": key.owner, "destination": dest}
    end = "the next lookup assigns it again" if dest is None else f"{dest} would serve it"
    return Effect([f"{key.owner} would release {key.name}; {end}"], facts)


def _reason(reason: str | None, *, force: bool) -> str | None:
    if not force:
        return reason
    return f"{FORCED}: {reason}" if reason else FORCED


def _refused(connection: Connection, name: str, dest: str | None) -> RequestAnswer | None:
    """Rejection by the leader's extension; None: it allows the move, or does not run."""
    args = balancer_args("may-take", Addressee.LEADER, {"name": name, "destination": dest})
    answer = ask(connection, RequestCommand.EXTENSION, args)
    for _ in range(TRIES - 1):
        if not may_be_asked_again(answer.outcome):
            break
        time.sleep(AGAIN_S)
        answer = ask(connection, RequestCommand.EXTENSION, args)
    outcome = answer.outcome
    if isinstance(outcome, Rejected) and outcome.reason == NO_EXTENSION:
        _say_unchecked(connection)
        return None
    return None if isinstance(outcome, Done) else answer


def _say_unchecked(connection: Connection) -> None:
    """Say that policies are not checked, if there are any."""
    with suppress(StateChannelError):
        in_force = sum(entry.force is Force.IN_FORCE for entry in book_of(connection).at(now_ms()).entries)
        if in_force:
            policies = "1 policy in force was" if in_force == 1 else f"{in_force} policies in force were"
            say(f"note: {policies} not checked: the leader does not run the balancer")
