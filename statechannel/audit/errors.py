"""What can go wrong with an export file or an audit."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from statechannel.errors import ExitCode, StateChannelError


class ExportFileError(StateChannelError):
    """The export file cannot be read or written, or a line of it is not what design/cli.md says.

    Attributes:
        line: Number of the offending line, from 1; None where the whole file is meant.
    """

    def __init__(self, message: str, *, line: int | None = None, hint: str = "") -> None:
        super().__init__(
            message,
            hint=hint or "Write the file anew with `statechannel export FILE`.",
            exit_code=ExitCode.BAD_EXPORT,
        )
        self.line = line


def unwritable(path: Path, error: OSError) -> ExportFileError:
    """The error of a file that cannot be written, with what fits its cause."""
    if not os.path.isdir(path.parent):  # noqa: PTH112 - Path.is_dir fails of a name that is too long
        hint = f"There is no folder {path.parent}: make it, or choose another."
    elif error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "Make room on the disk, or choose a file on another one."
    else:
        hint = "Choose a file that you may write."
    return ExportFileError(f"{path} cannot be written: {error.strerror}.", hint=hint)


class AuditQuestionError(StateChannelError):
    """The audit was asked something that this log cannot answer, or that makes no sense."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, exit_code=ExitCode.USAGE)


class ImportRefusedError(StateChannelError):
    """The import would not bring about what was asked for; nothing was written for it, or no more."""

    def __init__(self, message: str, *, hint: str = "", found: bool = True) -> None:
        code = ExitCode.REJECTED if found else ExitCode.NOT_FOUND
        super().__init__(message, hint=hint, exit_code=code)
