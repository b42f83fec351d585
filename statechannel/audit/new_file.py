"""Files that appear under their name only when they are whole."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from statechannel.audit.errors import AuditQuestionError, unwritable


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a scratch file beside the one meant, which it replaces when all went well; a link stays, its target is replaced.

    Raises:
        AuditQuestionError: The path is something that must not be replaced: a device, a pipe.
        ExportFileError: It cannot be written.
    """
    try:
        target = _target(path)
        # Two that write the same file do not disturb each other: the last one to end has it.
        scratch = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
        file = scratch.open("xb")
    except OSError as error:
        raise unwritable(path, error) from error
    try:
        with file:
            yield file
        scratch.replace(target)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        scratch.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Refuse at once, not after a long reading; what is there is left as it is.

    Raises:
        AuditQuestionError: See `new_file`.
        ExportFileError: See `new_file`.
    """
    try:
        target = _target(path)
        scratch = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
        scratch.touch(exist_ok=False)
        scratch.unlink()
    except OSError as error:
        raise unwritable(path, error) from error


def _target(path: Path) -> Path:
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if target.exists() and not target.is_file():
        raise AuditQuestionError(
            f"{path} is not a file but a device, a pipe or a socket, which a file would replace.",
            hint="Name a file.",
        )
    return target
