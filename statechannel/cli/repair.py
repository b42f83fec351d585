"""Command `statechannel repair resume`: early end of a repair pause."""

from __future__ import annotations

import typer

from statechannel.broker.request_record import RequestCommand
from statechannel.cli.kit.broker_request import BrokerRequest, broker_request
from statechannel.cli.kit.options import Connect

app = typer.Typer(add_completion=False, rich_markup_mode=None, help="Repair of bundles that lost their owner.")


@app.callback()
def _group() -> None:
    """Repair of bundles that lost their owner."""


@app.command()
@broker_request
def resume(_: Connect) -> BrokerRequest:
    """Resume repair after a pause because many brokers were lost at once."""
    return BrokerRequest(RequestCommand.RESUME_REPAIR, {}, "repair resumed")
