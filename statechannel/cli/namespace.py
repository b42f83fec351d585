"""`statechannel namespace create|list|show|delete`."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import typer

from statechannel.cli.asking import Answer, ask, require_success
from statechannel.cli.channel_view import not_found, read_channel
from statechannel.cli.connection import connect
from statechannel.cli.exit_codes import ExitCode
from statechannel.cli.failures import CommandError
from statechannel.cli.options import (
    BootstrapServers,
    Channel,
    ClientProperties,
    Config,
    NoWait,
    OutputAs,
    SettingFlags,
    Timeout,
)
from statechannel.cli.output import Output, print_json, print_table, say, stdout
from statechannel.core.bundle import MAX_CHILDREN, is_namespace
from statechannel.core.keys import KeyState
from statechannel.core.states import State
from statechannel.runtime.request_record import Asked

app = typer.Typer(add_completion=False, rich_markup_mode=None, help="Namespaces: create, list, show, delete.")

Name = Annotated[str, typer.Argument(metavar="TENANT/NAMESPACE")]


@app.command()
def create(
    name: Name,
    bundles: Annotated[
        int | None, typer.Option("--bundles", "-n", min=1, max=MAX_CHILDREN, help="Number of bundles; default 4.")
    ] = None,
    timeout: Timeout = None,
    no_wait: NoWait = False,
    bootstrap_servers: BootstrapServers = None,
    channel: Channel = None,
    output: OutputAs = Output.TABLE,
    config: Config = None,
    properties: ClientProperties = None,
    flags: SettingFlags = None,
) -> None:
    """Create a namespace with upstream's boundaries between its bundles."""
    _require_namespace(name)
    connection = connect(bootstrap_servers, channel, config, properties, flags)
    count = bundles or connection.settings.lookups.default_bundles
    args = {"namespace": name, "bundles": count}
    answer = ask(connection, Asked.CREATE_NAMESPACE, args, timeout_s=timeout, wait=not no_wait)
    finish(answer, output, f"{name} created with {count} bundles")


@app.command()
def delete(
    name: Name,
    timeout: Timeout = None,
    no_wait: NoWait = False,
    bootstrap_servers: BootstrapServers = None,
    channel: Channel = None,
    output: OutputAs = Output.TABLE,
    config: Config = None,
    properties: ClientProperties = None,
    flags: SettingFlags = None,
) -> None:
    """Unload all bundles of a namespace and delete it."""
    _require_namespace(name)
    connection = connect(bootstrap_servers, channel, config, properties, flags)
    answer = ask(connection, Asked.DELETE_NAMESPACE, {"namespace": name}, timeout_s=timeout, wait=not no_wait)
    finish(answer, output, f"{name} deleted")


@app.command("list")
def list_(
    bootstrap_servers: BootstrapServers = None,
    channel: Channel = None,
    output: OutputAs = Output.TABLE,
    config: Config = None,
    properties: ClientProperties = None,
    flags: SettingFlags = None,
) -> None:
    """List the namespaces."""
    views = read_channel(connect(bootstrap_servers, channel, config, properties, flags))
    found = [_fields(key) for key in views.existing() if key.is_namespace and key.state is State.ACTIVE]
    if output is Output.JSON:
        print_json({"namespaces": found, "tentative": views.tentative})
        return
    print_table(
        ("namespace", "bundles", "served", "in flight", "version"),
        [(ns["namespace"], ns["bundles"], ns["served"], ns["in_flight"], ns["version"]) for ns in found],
        empty="there is no namespace",
    )


@app.command()
def show(
    name: Name,
    bootstrap_servers: BootstrapServers = None,
    channel: Channel = None,
    output: OutputAs = Output.TABLE,
    config: Config = None,
    properties: ClientProperties = None,
    flags: SettingFlags = None,
) -> None:
    """Show one namespace: its states, owners, and the bundles that were split."""
    _require_namespace(name)
    views = read_channel(connect(bootstrap_servers, channel, config, properties, flags))
    key = views.key(name)
    if key is None or key.state is not State.ACTIVE:
        was = " (it was deleted)" if key is not None else ""
        raise not_found(f"there is no namespace {name}{was}; `namespace list` has them all")
    found = _fields(key) | _details(key) | {"tentative": views.tentative}
    if output is Output.JSON:
        print_json(found)
        return
    print_table(
        ("namespace", name),
        [(title, found[title]) for title in ("version", "bundles", "served", "in_flight", "splits", "created_by")],
    )
    stdout().print()
    print_table(("state", "bundles"), list(found["states"].items()))
    stdout().print()
    print_table(("owner", "bundles"), list(found["owners"].items()), empty="no bundle has an owner")


def _fields(key: KeyState) -> dict[str, Any]:
    live = [] if key.ring is None else list(key.ring.live.values())
    return {
        "namespace": key.name,
        "version": key.version,
        "bundles": len(live),
        "served": sum(bundle.owner is not None for bundle in live),
        "in_flight": sum(bundle.state in (State.ASSIGNING, State.RELEASING, State.SPLITTING) for bundle in live),
    }


def _details(key: KeyState) -> dict[str, Any]:
    ring = key.ring
    live = [] if ring is None else list(ring.live.values())
    states = Counter(bundle.state.value for bundle in live if bundle.state is not None)
    owners = Counter(bundle.owner for bundle in live if bundle.owner is not None)
    return {
        "splits": 0 if ring is None else len(ring.parents),
        "created_by": None if key.writer is None else key.writer.broker,
        "operation": key.operation,
        "states": dict(sorted(states.items())),
        "owners": dict(sorted(owners.items())),
    }


def _require_namespace(name: str) -> None:
    if not is_namespace(name):
        raise CommandError(
            f"`{name}` is not a namespace",
            hint="Say tenant/namespace; both are 1 to 128 of A-Za-z0-9_=:.-",
            code=ExitCode.USAGE,
        )


def finish(answer: Answer, output: Output, done: str) -> None:
    """End a command that asked the cluster for something."""
    if output is Output.JSON:
        print_json(answer.fields())
        require_success(answer)
        return
    require_success(answer)
    if answer.outcome is None:
        say(f"asked for; `statechannel operation show {answer.operation}` tells how it stands")
        return
    stdout().print(f"{done} (operation {answer.operation}, by {answer.claimed_by})", markup=False)
