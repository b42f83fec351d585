"""Folders for results."""

from __future__ import annotations

from pathlib import Path

from statechannel.cli.kit.failures import CommandError
from statechannel.errors import ExitCode
from statechannel.files import check_writable


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
