"""Commands `statechannel namespace create|list|show|delete`."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import typer

from statechannel.audit.views import NAMESPACES
from statechannel.broker.request_record import RequestCommand
from statechannel.cli.kit.broker_request import BrokerRequest, broker_request
from statechannel.cli.kit.channel_view import not_found, read_channel
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import Connect, OutputAs, with_connection
from statechannel.cli.kit.output import Output, print_json, print_table, stdout
from statechannel.errors import ExitCode
from statechannel.protocol.bundle import MAX_CHILDREN, is_namespace
from statechannel.protocol.keys import KeyState
from statechannel.protocol.states import State

app = typer.Typer(add_completion=False, rich_markup_mode=None, help="Namespaces: create, list, show, delete.")

Name = Annotated[str, typer.Argument(metavar="TENANT/NAMESPACE")]


@app.command()
@broker_request
def create(
    connect: Connect,
    name: Name,
    bundles: Annotated[
        int | None, typer.Option("--bundles", "-n", min=1, max=MAX_CHILDREN, help="Number of bundles; default 4.")
    ] = None,
) -> BrokerRequest:
    """Create a namespace, with the same bundle boundaries as Pulsar."""
    _require_namespace(name)
    count = bundles or connect().settings.lookups.default_bundles
    args = {"namespace": name, "bundles": count}
    return BrokerRequest(
        RequestCommand.CREATE_NAMESPACE, args, f"{name} created with {count} bundle{'' if count == 1 else 's'}"
    )


@app.command()
@broker_request
def delete(_: Connect, name: Name) -> BrokerRequest:
    """Unload all bundles of a namespace and delete it."""
    _require_namespace(name)
    return BrokerRequest(RequestCommand.DELETE_NAMESPACE, {"namespace": name}, f"{name} deleted")


@app.command("list")
@with_connection
def list_(connect: Connect, output: OutputAs = Output.TABLE) -> None:
    """List the namespaces."""
    views = read_channel(connect())
    rows = [_fields(key) for key in views.existing() if key.is_namespace and key.state is State.ACTIVE]
    if output is Output.JSON:
        print_json({"namespaces": rows, "tentative": views.tentative})
        return
    print_table(
        ("namespace", "bundles", "served", "in flight", "version"),
        [(ns["namespace"], ns["bundles"], ns["served"], ns["in_flight"], ns["version"]) for ns in rows],
        empty="no namespaces",
    )


@app.command()
@with_connection
def show(connect: Connect, name: Name, output: OutputAs = Output.TABLE) -> None:
    """Show one namespace: its states, owners, and the bundles that were split."""
    _require_namespace(name)
    views = read_channel(connect())
    key = views.key(name)
    if key is None or key.state is not State.ACTIVE:
        was = " (it was deleted)" if key is not None else ""
        raise not_found(f"namespace {name} does not exist{was}", hint=NAMESPACES)
    fields = _fields(key) | _details(key) | {"tentative": views.tentative}
    if output is Output.JSON:
        print_json(fields)
        return
    print_table(
        ("namespace", name),
        [(title, fields[title]) for title in ("version", "bundles", "served", "in_flight", "splits", "created_by")],
    )
    stdout().print()
    print_table(("state", "bundles"), list(fields["states"].items()))
    stdout().print()
    print_table(("owner", "bundles"), list(fields["owners"].items()), empty="no bundle has an owner")


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
            hint="Use tenant/namespace; both are 1 to 128 of A-Za-z0-9_=:.-",
            code=ExitCode.USAGE,
        )
