"""`statechannel transfer` and `statechannel unload`."""

from __future__ import annotations

from typing import Annotated

import typer

from statechannel.cli.asking import ask
from statechannel.cli.connection import connect
from statechannel.cli.lookup import require_name
from statechannel.cli.namespace import finish
from statechannel.cli.options import (
    BootstrapServers,
    Channel,
    ClientProperties,
    Config,
    NoWait,
    OutputAs,
    Reason,
    SettingFlags,
    Timeout,
)
from statechannel.cli.output import Output
from statechannel.runtime.request_record import Asked

app = typer.Typer(add_completion=False, rich_markup_mode=None)
unload_app = typer.Typer(add_completion=False, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="BUNDLE|TOPIC")]


@app.command()
def transfer(
    name: Name,
    dest: Annotated[str, typer.Option("--dest", metavar="BROKER", help="Broker that takes the bundle over.")],
    reason: Reason = None,
    timeout: Timeout = None,
    no_wait: NoWait = False,
    bootstrap_servers: BootstrapServers = None,
    channel: Channel = None,
    output: OutputAs = Output.TABLE,
    config: Config = None,
    properties: ClientProperties = None,
    flags: SettingFlags = None,
) -> None:
    """Hand a bundle over to a broker of your choice."""
    require_name(name)
    connection = connect(bootstrap_servers, channel, config, properties, flags)
    args = {"name": name, "destination": dest, "reason": reason}
    answer = ask(connection, Asked.TRANSFER, args, timeout_s=timeout, wait=not no_wait)
    finish(answer, output, f"{name} transferred to {dest}")


@unload_app.command()
def unload(
    name: Name,
    dest: Annotated[
        str | None, typer.Option("--dest", metavar="BROKER", help="With a destination it is a transfer.")
    ] = None,
    reason: Reason = None,
    timeout: Timeout = None,
    no_wait: NoWait = False,
    bootstrap_servers: BootstrapServers = None,
    channel: Channel = None,
    output: OutputAs = Output.TABLE,
    config: Config = None,
    properties: ClientProperties = None,
    flags: SettingFlags = None,
) -> None:
    """Let a bundle go; the next lookup has it assigned again."""
    if dest is not None:
        transfer(name, dest, reason, timeout, no_wait, bootstrap_servers, channel, output, config, properties, flags)
        return
    require_name(name)
    connection = connect(bootstrap_servers, channel, config, properties, flags)
    answer = ask(connection, Asked.UNLOAD, {"name": name, "reason": reason}, timeout_s=timeout, wait=not no_wait)
    finish(answer, output, f"{name} unloaded")
