"""`statechannel repair resume`: ends a pause of repair before its time."""

from __future__ import annotations

import typer

from statechannel.cli.asking import ask
from statechannel.cli.connection import connect
from statechannel.cli.namespace import finish
from statechannel.cli.options import (
    BootstrapServers,
    Channel,
    ClientProperties,
    Config,
    OutputAs,
    SettingFlags,
    Timeout,
)
from statechannel.cli.output import Output
from statechannel.runtime.request_record import Asked

app = typer.Typer(add_completion=False, rich_markup_mode=None, help="Repair of bundles that lost their owner.")


@app.callback()
def _group() -> None:
    """Repair of bundles that lost their owner."""


@app.command()
def resume(
    timeout: Timeout = None,
    bootstrap_servers: BootstrapServers = None,
    channel: Channel = None,
    output: OutputAs = Output.TABLE,
    config: Config = None,
    properties: ClientProperties = None,
    flags: SettingFlags = None,
) -> None:
    """Go on with repair that paused because many brokers vanished at once."""
    connection = connect(bootstrap_servers, channel, config, properties, flags)
    finish(ask(connection, Asked.RESUME_REPAIR, {}, timeout_s=timeout), output, "repair goes on")
