"""Where `--snapshot` comes from: a file, or a word under which a package offers snapshots (`live`).

Such a package registers a `Load` under the entry point group `shedders.snapshots`; it is imported only when its word is said.
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
"""Takes a snapshot of the cluster to which the options of the command lead."""


def registered() -> dict[str, EntryPoint]:
    """Words that stand for a snapshot."""
    return {point.name: point for point in entry_points(group=SOURCES)}


def snapshot_from(source: str, connect: Connect) -> Snapshot:
    """The snapshot that `--snapshot` names.

    Raises:
        SnapshotError: The file cannot be read, or is none.
        CommandError: What offers snapshots under this word cannot be loaded.
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
