"""Options that several of these commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shedders.snapshot import Snapshot
from shedders.snapshot_file import read_snapshot

SnapshotOption = Annotated[
    str, typer.Option("--snapshot", metavar="FILE", help="The cluster as a file (design/snapshot.md).")
]
ProfileOption = Annotated[
    str | None,
    typer.Option("--profile", metavar="NAME", help="In place of the snapshot's own profile and settings."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of the strategy; may be repeated."),
]
CyclesOption = Annotated[
    int, typer.Option("--cycles", metavar="N", min=1, max=10_000, help="So many decisions, each after the last.")
]
EveryOption = Annotated[
    float, typer.Option("--every", metavar="SECONDS", min=0, max=86_400, help="Time from one cycle to the next.")
]


def snapshot_from(source: str) -> Snapshot:
    """The snapshot that `--snapshot` names; the one place that knows where snapshots come from.

    Raises:
        SnapshotError: It cannot be had, or is none.
    """
    return read_snapshot(Path(source))
