"""Output of results: tables on standard output, files written atomically, and their paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statechannel.cli.kit.fitted_tables import cell
from statechannel.cli.kit.output import print_table, say, stdout
from statechannel.files import new_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from shedders.model.amounts import Grid


def show(grid: Grid, *, gap: bool = True) -> None:
    """Print a table and the notes below it."""
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
