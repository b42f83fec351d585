"""Command `statechannel bundles`: the live bundles and their owners."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from statechannel.audit.views import NAMESPACES
from statechannel.cli.kit.channel_view import not_found, read_channel
from statechannel.cli.kit.options import Connect, OutputAs, with_connection
from statechannel.cli.kit.output import Output, print_json, print_table
from statechannel.protocol.keys import KeyState
from statechannel.protocol.states import State

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@with_connection
def bundles(
    connect: Connect,
    namespace: Annotated[str | None, typer.Option("--namespace", metavar="TENANT/NAMESPACE")] = None,
    broker: Annotated[
        str | None, typer.Option("--broker", metavar="ID", help="Only bundles served by this broker.")
    ] = None,
    state: Annotated[str | None, typer.Option("--state", help="Only bundles in this state.")] = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """List the live bundles."""
    views = read_channel(connect())
    if namespace is not None:
        key = views.key(namespace)
        if key is None or key.state is not State.ACTIVE:
            raise not_found(f"namespace {namespace} does not exist", hint=NAMESPACES)
    rows = [
        bundle_fields(key)
        for key in views.live()
        if (namespace is None or key.namespace == namespace)
        and (broker is None or key.owner == broker)
        and (state is None or (key.state is not None and key.state.value.lower() == state.lower()))
    ]
    if output is Output.JSON:
        print_json({"bundles": rows, "tentative": views.tentative})
        return
    print_table(
        ("bundle", "state", "served by", "destination", "generation", "version", "operation"),
        [
            (
                row["bundle"],
                row["state"],
                row["owner"],
                row["next"],
                row["generation"],
                row["version"],
                row["operation"],
            )
            for row in rows
        ],
        empty="no bundles",
    )


def bundle_fields(key: KeyState) -> dict[str, Any]:
    """A bundle for the JSON output."""
    bound_for = key.bound_for
    return {
        "bundle": key.name,
        "state": None if key.state is None else key.state.value,
        "owner": key.owner,
        "next": bound_for if bound_for != key.owner else None,
        "generation": key.generation,
        "version": key.version,
        "id": key.accepted_id,
        "operation": key.operation,
        "flow": key.flow,
        "offset": key.offset,
    }
