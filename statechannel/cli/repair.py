"""`statechannel repair resume`: ends a pause of repair before its time."""

from __future__ import annotations

import typer

from statechannel.cli.options import Connect
from statechannel.cli.wish import Wish, wishing
from statechannel.runtime.request_record import Asked

app = typer.Typer(add_completion=False, rich_markup_mode=None, help="Repair of bundles that lost their owner.")


@app.callback()
def _group() -> None:
    """Repair of bundles that lost their owner."""


@app.command()
@wishing
def resume(_: Connect) -> Wish:
    """Go on with repair that paused because many brokers vanished at once."""
    return Wish(Asked.RESUME_REPAIR, {}, "repair goes on")
