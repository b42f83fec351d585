"""Options of several commands of balancing, and the snapshot that `--snapshot` names.

It is a file, or a word under which a package offers snapshots (`live`). Such a package registers a `Load` under the entry point
group `shedders.snapshots`; it is imported only when its word is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated

import typer

from shedders.snapshots.file import read_snapshot
from shedders.snapshots.model import Snapshot
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.fitted_tables import cell
from statechannel.cli.kit.options import Connect
from statechannel.cli.kit.output import say
from statechannel.errors import ExitCode

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


def print_remarks(snapshot_remarks: Iterable[str]) -> None:
    """Print remarks on a snapshot before the plan."""
    for remark in snapshot_remarks:
        say(cell(f"note: {remark}"))


SOURCES = "shedders.snapshots"

Load = Callable[[Connect], Snapshot]
"""Function that takes a snapshot of the cluster that the options of the command name."""


def registered() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=SOURCES)}


def snapshot_from(source: str, connect: Connect) -> Snapshot:
    """The snapshot that `--snapshot` names.

    Raises:
        SnapshotError: The file cannot be read, or is not a snapshot.
        CommandError: The entry point of this word cannot be loaded.
    """
    point = registered().get(source)
    if point is None:
        return read_snapshot(Path(source))
    try:
        load: Load = point.load()
    except (ImportError, AttributeError) as error:
        raise CommandError(
            f"`--snapshot {source}` ({point.value}) cannot be loaded: {error}",
            hint="The package that registers it is broken or missing; install it again.",
            code=ExitCode.FAILED,
        ) from error
    return load(connect)
