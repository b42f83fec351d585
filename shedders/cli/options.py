"""Options of several commands of balancing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import cache, wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shedders.snapshots.model import Snapshot
from statechannel.cli.kit.options import BootstrapServers, Channel, ClientFile, ClientProperties, Config, set_options
from statechannel.cli.kit.output import cell, say

if TYPE_CHECKING:
    from statechannel.cli.kit.connection import Connection

SnapshotOption = Annotated[
    str,
    typer.Option(
        "--snapshot", metavar="FILE|live", help="Snapshot file (design/snapshot.md), or `live` for the running cluster."
    ),
]
ProfileOption = Annotated[
    str | None,
    typer.Option("--profile", metavar="NAME", help="Profile that replaces the profile and settings of the snapshot."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A setting of the strategy, or of filters.NAME, placement.NAME, splitting.NAME; may be repeated.",
    ),
]
PlacementOption = Annotated[
    str | None, typer.Option("--placement", metavar="NAME", help="Placement strategy, for moves without a destination.")
]
CyclesOption = Annotated[
    int, typer.Option("--cycles", metavar="N", min=1, max=10_000, help="Number of successive decisions.")
]
EveryOption = Annotated[
    float, typer.Option("--every", metavar="SECONDS", min=0, max=86_400, help="Time between cycles.")
]


def looking(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the connection options of a live cluster to a command; its first argument is a `Connect`.

    As `statechannel.cli.kit.options.with_connection`, but `--set` is left to the strategies.
    """

    @wraps(command)
    def run(**options: Any) -> Any:
        place = {name: options.pop(name) for name in shared}

        @cache
        def connected() -> Connection:
            # Snapshots are also read on machines without a Kafka client.
            from statechannel.cli.kit.connection import connect

            return connect(**place, flags=None)

        return command(connected, **options)

    shared = inspect.signature(_place, eval_str=True).parameters
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    set_options(run, [*own, *shared.values()])
    return run


def _place(
    bootstrap_servers: BootstrapServers = None,
    channel: Channel = None,
    config: Config = None,
    properties_file: ClientFile = None,
    properties: ClientProperties = None,
) -> None:
    """Signature of the options."""


def print_remarks(snapshot_remarks: Iterable[str]) -> None:
    """Print remarks on a snapshot before the plan."""
    for remark in snapshot_remarks:
        say(cell(f"note: {remark}"))


def with_memory(snapshot: Snapshot, kind: str, name: str, memory: dict[str, Any]) -> Snapshot:
    """Copy of a snapshot with the present memory of a strategy."""
    by_name = {**getattr(snapshot.memory, kind), name: memory}
    return snapshot.model_copy(update={"memory": snapshot.memory.model_copy(update={kind: by_name})})
