"""Folders that results go to."""

from __future__ import annotations

from pathlib import Path

from statechannel.cli.kit.failures import CommandError
from statechannel.errors import ExitCode
from statechannel.files import check_writable


def make_folder(path: Path) -> Path:
    """The folder, made if it is not there.

    Raises:
        CommandError: It cannot be.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(
            f"the folder {path} cannot be made: {error.strerror or error}",
            hint="Name a folder that can be written to.",
            code=ExitCode.BAD_EXPORT,
        ) from error
    check_writable(path / "probe")
    return path
