"""Options that several of these commands have."""

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
    typer.Option("--snapshot", metavar="FILE|live", help="The cluster as a file (design/snapshot.md), or as it is."),
]
ProfileOption = Annotated[
    str | None,
    typer.Option("--profile", metavar="NAME", help="In place of the snapshot's own profile and settings."),
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
    str | None, typer.Option("--placement", metavar="NAME", help="Chooses destinations that are left open.")
]
CyclesOption = Annotated[
    int, typer.Option("--cycles", metavar="N", min=1, max=10_000, help="So many decisions, each after the last.")
]
EveryOption = Annotated[
    float, typer.Option("--every", metavar="SECONDS", min=0, max=86_400, help="Time from one cycle to the next.")
]


def looking(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options by which a live cluster is found; its first argument is a `Connect`.

    As `statechannel.cli.kit.options.with_connection`, but `--set` is left to the strategies.
    """

    @wraps(command)
    def run(**given: Any) -> Any:
        place = {name: given.pop(name) for name in shared}

        @cache
        def connected() -> Connection:
            # Snapshots are read on machines that have no Kafka client.
            from statechannel.cli.kit.connection import connect

            return connect(**place, flags=None)

        return command(connected, **given)

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
    """The options themselves, as a signature."""


def tell(snapshot_remarks: Iterable[str]) -> None:
    """Remarks on a snapshot, for people, before the plan."""
    for one in snapshot_remarks:
        say(cell(f"note: {one}"))


def with_memory(snapshot: Snapshot, kind: str, name: str, memory: dict[str, Any]) -> Snapshot:
    """The snapshot with what a strategy remembers by now."""
    by_name = {**getattr(snapshot.memory, kind), name: memory}
    return snapshot.model_copy(update={"memory": snapshot.memory.model_copy(update={kind: by_name})})
