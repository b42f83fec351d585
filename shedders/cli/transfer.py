"""`statechannel transfer` and `statechannel unload`: manual moves that obey the balancer's filters.

The broker that executes a move checks first whether policies allow it, if it runs the balancing extension. The leader is asked
before, where nothing is executed (`--dry-run`, or a confirmation), or a live broker is of a version that does not check.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

from shedders.policies.effective import Force
from shedders.queries.policies import book_of
from statechannel.broker.request_writer import NO_EXTENSION, balancer_args
from statechannel.cli.kit.channel_view import locate_served
from statechannel.cli.kit.confirmation import Effect
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import Connect, IfGeneration, Reason, argument, commands, option
from statechannel.cli.kit.output import say
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
from statechannel.operations.table import MAY_TAKE, OPERATIONS, Addressee, RequestCommand, move_args
from statechannel.queries.connection import Connection
from statechannel.queries.registry import read_registry

app = commands()
unload_app = commands()

Name = Annotated[str, argument("BUNDLE|TOPIC")]
ForceOption = Annotated[bool, option("--force", "Skip the check of policies; the record's reason says so.")]


@app.command()
@confirmed_request
def transfer(
    _: Connect,
    name: Name,
    dest: Annotated[str, option("--dest BROKER", "Destination of the bundle.")],
    force: ForceOption = False,
    if_generation: IfGeneration = None,
    reason: Reason = None,
) -> BrokerRequest:
    """Transfer a bundle to a broker, if policies allow it."""
    require_name(name)
    return _move(name, dest, reason, if_generation, force=force)


@unload_app.command()
@confirmed_request
def unload(
    _: Connect,
    name: Name,
    dest: Annotated[str | None, option("--dest BROKER", "Destination: makes it a transfer.")] = None,
    force: ForceOption = False,
    if_generation: IfGeneration = None,
    reason: Reason = None,
) -> BrokerRequest:
    """Unload a bundle, if policies allow another broker; the next lookup assigns it again."""
    require_name(name)
    return _move(name, dest, reason, if_generation, force=force)


def _move(name: str, dest: str | None, reason: str | None, if_generation: int | None, *, force: bool) -> BrokerRequest:
    return BrokerRequest(
        RequestCommand.UNLOAD if dest is None else RequestCommand.TRANSFER,
        move_args(name, dest, reason, if_generation, force=force),
        "unloaded" if dest is None else f"transferred to {dest}",
        None if force else lambda connection: _refused(connection, name, dest),
        lambda connection: _effect(connection, name, dest, if_generation),
        subject=name,
    )


def _effect(connection: Connection, name: str, dest: str | None, if_generation: int | None) -> Effect:
    key = locate_served(connection, name)
    require_generation(key, if_generation)
    if dest == key.owner:
        raise CommandError(f"{key.name} is served by {dest} already", code=ExitCode.REJECTED)
    if dest is not None and dest not in read_registry(connection).members.alive:
        raise CommandError(
            f"broker {dest} is not alive", hint="`statechannel brokers` lists the live brokers.", code=ExitCode.REJECTED
        )
    facts = {"bundle": key.name, "owner": key.owner, "destination": dest}
    spec = OPERATIONS[RequestCommand.UNLOAD if dest is None else RequestCommand.TRANSFER]
    return Effect([spec.would.format(owner=key.owner, name=key.name, destination=dest)], facts)


def _refused(connection: Connection, name: str, dest: str | None) -> RequestAnswer | None:
    """Rejection by the leader's extension; None: it allows the move, or does not run."""
    args = balancer_args(MAY_TAKE, Addressee.LEADER, {"name": name, "destination": dest})
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
