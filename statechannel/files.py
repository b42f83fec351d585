"""Atomic creation of files: a file gets its name only when it is complete."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from statechannel.errors import ExitCode, StateChannelError


class FileUnwritableError(StateChannelError):
    """A file cannot be written; uses the exit code of export files."""

    def __init__(self, path: Path, error: OSError) -> None:
        if not os.path.isdir(path.parent):  # noqa: PTH112 - Path.is_dir fails of a name that is too long
            hint = f"The folder {path.parent} does not exist: create it, or choose another."
        elif error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = "Free space on the disk, or choose another one."
        else:
            hint = "Choose a file that you may write."
        super().__init__(f"{path} cannot be written: {error.strerror}.", hint=hint, exit_code=ExitCode.BAD_EXPORT)


class NotReplaceableError(StateChannelError):
    """A path names a device, a pipe or a socket, which a new file must not replace."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} is a device, a pipe or a socket, which a file would replace.",
            hint="Choose a file.",
            exit_code=ExitCode.USAGE,
        )


class StandardOutputError(StateChannelError):
    """`-` was given for a file."""

    def __init__(self) -> None:
        super().__init__(
            "`-` does not mean standard output here: a result replaces a file once it is whole.",
            hint="Give a file's name; a file of that name needs its folder: `$PWD/-`.",
            exit_code=ExitCode.USAGE,
        )


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a scratch file that replaces the target on success; a symbolic link stays, and its target is replaced.

    Raises:
        NotReplaceableError: The path is a device, a pipe or a socket.
        FileUnwritableError: It cannot be written.
    """
    try:
        target = _target(path)
        scratch = _scratch_of(target)
        file = scratch.open("xb")
    except OSError as error:
        raise FileUnwritableError(path, error) from error
    try:
        with file:
            yield file
        scratch.replace(target)
    except OSError as error:
        raise FileUnwritableError(path, error) from error
    finally:
        scratch.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Check early, before a long operation, that the file can be written; leaves an existing one unchanged.

    Raises:
        NotReplaceableError: See `new_file`.
        FileUnwritableError: See `new_file`.
    """
    try:
        scratch = _scratch_of(_target(path))
        scratch.touch(exist_ok=False)
        scratch.unlink()
    except OSError as error:
        raise FileUnwritableError(path, error) from error


def _scratch_of(target: Path) -> Path:
    # Two that write the same file do not disturb each other: the last one to end has it.
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")


def _target(path: Path) -> Path:
    if str(path) == "-":
        raise StandardOutputError
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if target.exists() and not target.is_file():
        raise NotReplaceableError(path)
    return target
