"""Command `statechannel status`: leader, lag, debts, in-flight operations, modes, last incidents; once or continuously."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.text import Text

from statechannel.audit.incidents import ChannelIncidents, RegistryStory
from statechannel.cli.kit.channel_view import read_channel
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.options import Connect, OutputAs, with_connection
from statechannel.cli.kit.output import Output, moment, print_json, print_json_line, stdout, waiting
from statechannel.cli.kit.registry import read_registry
from statechannel.cli.kit.remarks import remarks
from statechannel.cli.status.drains import drains_seen
from statechannel.cli.status.figures import GAP_OVER_S, INCIDENTS, StatusInputs, figures
from statechannel.cli.status.follower import Lookout
from statechannel.cli.status.tables import render

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_EVERY_S = 2.0
_LEAST_ROWS = 4


@app.command()
@with_connection
def status(
    connect: Connect,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until interrupted.")] = False,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0.2, max=3600, help="With --watch: refresh interval.")
    ] = _EVERY_S,
    max_seconds: Annotated[
        float | None, typer.Option("--for", metavar="SECONDS", min=0.1, help="With --watch: end after this time.")
    ] = None,
    incidents: Annotated[
        int, typer.Option("--incidents", min=0, max=200, help="Number of last incidents.")
    ] = INCIDENTS,
    gap_over: Annotated[
        float,
        typer.Option(
            "--gaps-over", metavar="SECONDS", min=0, help="Minimum length of a gap in service to be an incident."
        ),
    ] = GAP_OVER_S,
    output: OutputAs = Output.TABLE,
) -> None:
    """Show the state of the channel and its brokers, and the last incidents; with --watch continuously."""
    connection = connect().within(max_seconds if watch else None)
    inputs = StatusInputs(
        RegistryStory(connection.settings.membership.expiry_s), incidents=ChannelIncidents(max(0.0, gap_over) * 1_000)
    )
    if watch:
        _stay(connection, inputs, incidents, every_s=every, max_s=max_seconds, output=output)
        return
    fields = read_once(connection, inputs, incidents)
    if output is Output.JSON:
        print_json(fields)
    else:
        stdout().print(render(fields))


def read_once(connection: Connection, inputs: StatusInputs, incidents: int) -> dict[str, Any]:
    """Read log and registry to their ends, once; returns the figures."""
    views = read_channel(connection, inputs.observers())
    registry = read_registry(connection, observe=inputs.story.observe)
    return figures(
        views,
        registry,
        inputs,
        remarks(connection),
        channel=connection.topics.channel,
        bootstrap_servers=connection.client.bootstrap_servers,
        drains=drains_seen(connection),
        incidents=incidents,
    )


def _stay(
    connection: Connection, inputs: StatusInputs, incidents: int, *, every_s: float, max_s: float | None, output: Output
) -> None:
    began_s = time.monotonic()
    try:
        with ExitStack() as stack:
            follower = stack.enter_context(Lookout(connection, inputs))
            _read_up(follower, connection)
            show = _display(stack, output)
            shown_s = 0.0
            while max_s is None or time.monotonic() - began_s < max_s:
                if time.monotonic() - shown_s >= every_s:
                    show(follower.figures(incidents))
                    shown_s = time.monotonic()
                follower.turn()
    except KeyboardInterrupt:
        return  # the way to end it


def _read_up(follower: Lookout, connection: Connection) -> None:
    """The first read; of a compacted log it ends before a heartbeat vouches for it."""
    with waiting("reading the log", connection.timeout_s) as tick:
        while not follower.ready:
            follower.turn()
            tick("")


def _display(stack: ExitStack, output: Output) -> Callable[[dict[str, Any]], None]:
    if output is Output.JSON:
        return print_json_line
    console = stdout()
    if not console.is_terminal or console.is_dumb_terminal:

        def line_by_line(fields: dict[str, Any]) -> None:
            console.print(Text(f"--- {moment(fields['at_ms'])}"))
            console.print(render(fields))

        return line_by_line
    live = stack.enter_context(Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop"))
    return lambda fields: live.update(render(fields, at_most=max(_LEAST_ROWS, console.height // 5)), refresh=True)
