"""What commands of balancing share: options, the snapshot that `--snapshot` names, tables and files of results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from shedders.snapshots.file import read_snapshot
from shedders.snapshots.model import Snapshot
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.fitted_tables import cell
from statechannel.cli.kit.options import Connect, option
from statechannel.cli.kit.output import print_table, say, stdout
from statechannel.errors import ExitCode
from statechannel.files import check_writable, new_file

if TYPE_CHECKING:
    from shedders.model.amounts import Grid

SnapshotOption = Annotated[
    str, option("--snapshot FILE|live", "Snapshot file (design/snapshot.md), or `live` for the running cluster.")
]
ProfileOption = Annotated[
    str | None, option("--profile NAME", "Profile that replaces the profile and settings of the snapshot.")
]
SetOption = Annotated[
    list[str] | None,
    option(
        "--set NAME=VALUE",
        "A setting of the strategy, or of filters.NAME, placement.NAME, splitting.NAME; may be repeated.",
    ),
]
PlacementOption = Annotated[
    str | None, option("--placement NAME", "Placement strategy, for moves without a destination.")
]
CyclesOption = Annotated[int, option("--cycles N", "Number of successive decisions.", min=1, max=10_000)]
EveryOption = Annotated[float, option("--every SECONDS", "Time between cycles.", min=0, max=86_400)]


def print_remarks(snapshot_remarks: Iterable[str]) -> None:
    for remark in snapshot_remarks:
        say(cell(f"note: {remark}"))


LIVE: Final = "live"
"""Stands for a snapshot of the running cluster, in place of a file."""


def snapshot_from(source: str, connect: Connect) -> Snapshot:
    """The snapshot that `--snapshot` names.

    Raises:
        SnapshotError: The file cannot be read, or is not a snapshot.
        StateChannelError: The topics of the running cluster cannot be read.
    """
    if source != LIVE:
        return read_snapshot(Path(source))
    # The Kafka client is not needed to read files.
    from shedders.queries.live_source import live_at

    return live_at(connect())


def show_grid(grid: Grid, *, gap: bool = True) -> None:
    if gap:
        stdout().print()
    print_table(grid.headers, grid.rows, title=cell(grid.title) if grid.title else "", empty="nothing")
    for note in grid.notes:
        stdout().print(cell(note), markup=False)


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically.

    Raises:
        StateChannelError: The file cannot be written.
    """
    with new_file(path) as file:
        file.write(content)


def say_written(paths: Sequence[Path] | Iterable[Path]) -> None:
    for path in paths:
        say(f"written: {path}")


def make_folder(path: Path) -> Path:
    """Create the folder if it does not exist; returns it.

    Raises:
        CommandError: It cannot be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(
            f"the folder {path} cannot be created: {error.strerror or error}",
            hint="Choose a writable folder.",
            code=ExitCode.BAD_EXPORT,
        ) from error
    check_writable(path / "probe")
    return path
