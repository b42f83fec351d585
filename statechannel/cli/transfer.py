"""`statechannel transfer` and `statechannel unload`."""

from __future__ import annotations

from typing import Annotated

import typer

from statechannel.cli.lookup import require_name
from statechannel.cli.options import Connect, Reason
from statechannel.cli.wish import Wish, wishing
from statechannel.runtime.request_record import Asked

app = typer.Typer(add_completion=False, rich_markup_mode=None)
unload_app = typer.Typer(add_completion=False, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="BUNDLE|TOPIC")]


@app.command()
@wishing
def transfer(
    _: Connect,
    name: Name,
    dest: Annotated[str, typer.Option("--dest", metavar="BROKER", help="Broker that takes the bundle over.")],
    reason: Reason = None,
) -> Wish:
    """Hand a bundle over to a broker of your choice."""
    require_name(name)
    return _transfer(name, dest, reason)


@unload_app.command()
@wishing
def unload(
    _: Connect,
    name: Name,
    dest: Annotated[
        str | None, typer.Option("--dest", metavar="BROKER", help="With a destination it is a transfer.")
    ] = None,
    reason: Reason = None,
) -> Wish:
    """Let a bundle go; the next lookup has it assigned again."""
    require_name(name)
    if dest is not None:
        return _transfer(name, dest, reason)
    return Wish(Asked.UNLOAD, {"name": name, "reason": reason}, f"{name} unloaded")


def _transfer(name: str, dest: str, reason: str | None) -> Wish:
    args = {"name": name, "destination": dest, "reason": reason}
    return Wish(Asked.TRANSFER, args, f"{name} transferred to {dest}")
