"""`statechannel repair resume`: ends a pause of repair before its time."""

from __future__ import annotations

import typer

from statechannel.broker.request_record import RequestCommand
from statechannel.cli.kit.broker_request import BrokerRequest, wishing
from statechannel.cli.kit.options import Connect

app = typer.Typer(add_completion=False, rich_markup_mode=None, help="Repair of bundles that lost their owner.")


@app.callback()
def _group() -> None:
    """Repair of bundles that lost their owner."""


@app.command()
@wishing
def resume(_: Connect) -> BrokerRequest:
    """Go on with repair that paused because many brokers vanished at once."""
    return BrokerRequest(RequestCommand.RESUME_REPAIR, {}, "repair goes on")
