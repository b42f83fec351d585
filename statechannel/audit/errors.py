"""What can go wrong with an export file or an audit."""

from __future__ import annotations

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


class AuditQuestionError(StateChannelError):
    """The audit was asked something that this log cannot answer, or that makes no sense."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, exit_code=ExitCode.USAGE)


class ImportRefusedError(StateChannelError):
    """The import would not bring about what was asked for; nothing was written for it, or no more."""

    def __init__(self, message: str, *, hint: str = "", in_log: bool = True) -> None:
        code = ExitCode.REJECTED if in_log else ExitCode.NOT_FOUND
        super().__init__(message, hint=hint, exit_code=code)
