"""Sources of `--snapshot`: a file, or a word under which a package offers snapshots (`live`).

Such a package registers a `Load` under the entry point group `shedders.snapshots`; it is imported only when its word is used.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from shedders.snapshots.file import read_snapshot
from shedders.snapshots.model import Snapshot
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import Connect
from statechannel.errors import ExitCode

SOURCES = "shedders.snapshots"

Load = Callable[[Connect], Snapshot]
"""Function that takes a snapshot of the cluster that the options of the command name."""


def registered() -> dict[str, EntryPoint]:
    """Registered words and their entry points."""
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
