"""Command `statechannel lookup`: who serves a topic or bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from statechannel.broker.request_record import RequestCommand
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import Connect, OutputAs, Timeout, with_connection
from statechannel.cli.kit.output import Output, print_facts, print_json
from statechannel.cli.kit.registry import Registry, read_registry
from statechannel.cli.kit.requests import RequestAnswer, ask, require_name, require_place, require_success
from statechannel.engine.commands import BoundTo, NotFound, Outcome, Owned, Undetermined, Unowned
from statechannel.errors import ExitCode
from statechannel.protocol.bundle import is_bundle, split_topic
from statechannel.protocol.states import State

if TYPE_CHECKING:  # what the broker answers has no state of a key
    from statechannel.protocol.keys import KeyState

lookup_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@lookup_app.command()
@with_connection
def lookup(
    connect: Connect,
    name: Annotated[str, typer.Argument(metavar="TOPIC|BUNDLE")],
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Only read the log; assign nothing. Needs no broker.")
    ] = False,
    as_of: Annotated[
        str | None,
        typer.Option(
            "--as-of",
            metavar="AGE|TIME|OFFSET",
            help="Show who owned it then, by the log: 10m (ago), 2026-01-01T00:00:00Z, or an offset; inclusive.",
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="F", help="With --as-of: read this export file, not the topic.")
    ] = None,
    timeout: Timeout = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """Look up the broker that serves a topic or bundle; assigns the bundle if it has no owner."""
    (require_place if read_only or as_of is not None else require_name)(name)  # the other one assigns the bundle
    if file is not None and as_of is None:
        raise CommandError(
            "--file requires --as-of", hint="A lookup of now asks the channel: omit --file.", code=ExitCode.USAGE
        )
    if as_of is not None:
        # Lookups of now do not need the audit.
        from statechannel.cli.audit.look_back import look_back

        look_back(connect, name, as_of, file, table=output is not Output.JSON)
        return
    connection = connect()
    if read_only:
        answer = RequestAnswer("", _from_log(connection, name), name=name)
    else:
        wait_s = timeout or connection.settings.lookups.timeout_s
        answer = ask(connection, RequestCommand.LOOKUP, {"name": name, "read_only": False}, timeout_s=wait_s)
    if output is Output.JSON:
        print_json(answer.fields())
        require_success(answer)
        return
    if isinstance(answer.outcome, NotFound) and answer.outcome.reason == "unknown-namespace":
        _require_not_deleted(connection, name)
    require_success(answer)
    outcome = answer.outcome
    if isinstance(outcome, Owned):
        stale = None if outcome.stale_age_s is None else f"{outcome.stale_age_s:.1f} s old"
        rows: list[tuple[str, Any]] = [
            ("bundle", outcome.bundle),
            ("broker", outcome.broker),
            ("generation", str(outcome.generation)),
        ]
        rows += [(f"{protocol} URL", url) for protocol, url in sorted(outcome.urls.items())]
        print_facts(rows + ([("view", stale)] if stale else []))
    elif isinstance(outcome, BoundTo):
        print_facts([("broker", outcome.broker), ("why", "the namespace is bound to it by rule")])


def _require_not_deleted(connection: Connection, name: str) -> None:
    """Say who deleted the namespace of a topic or bundle, if the log shows it."""
    from statechannel.audit.incidents import ChannelIncidents
    from statechannel.cli.bundles import deleted
    from statechannel.cli.kit.channel_view import read_channel

    incidents = ChannelIncidents(0, with_gaps=False)
    namespace = _namespace_of(name)
    read_channel(connection, [incidents.observe])
    if any(item.namespace == namespace for item in incidents.deletions):
        raise deleted(connection, incidents, namespace)


def _namespace_of(name: str) -> str:
    return name.rpartition("/")[0] if is_bundle(name) else (split_topic(name) or ("", ""))[0]


def _from_log(connection: Connection, name: str) -> Outcome:
    registry = read_registry(connection)
    tenant, _, broker = _namespace_of(name).partition("/")
    if tenant in connection.settings.lookups.bound_tenants and broker in registry.members.alive:
        return BoundTo(broker, registry.members.alive[broker].urls)
    from statechannel.cli.kit.channel_view import locate, read_channel

    views = read_channel(connection)
    key = locate(views, name)
    if views.tentative:
        return Undetermined("tentative", f"{key.name}: the log alone does not show the owner")
    return _outcome(key, registry)


def _outcome(key: KeyState, registry: Registry) -> Outcome:
    if key.state is State.UNASSIGNED:
        return Unowned(key.name)
    owner = key.owner
    if owner is None or key.generation is None or key.state is State.RELEASING:
        return Undetermined("in-flight", f"{key.name} is {key.state}")
    member = registry.members.alive.get(owner)
    if member is None:
        return Undetermined("owner-not-heard", f"owner {owner} of {key.name} is lost")
    return Owned(key.name, owner, key.generation, member.urls)
