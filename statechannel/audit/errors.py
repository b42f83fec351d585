"""Errors of export files, audits and imports."""

from __future__ import annotations

from statechannel.errors import ExitCode, StateChannelError


class ExportFileError(StateChannelError):
    """The export file cannot be read or written, or a line does not have the form of design/cli.md.

    Attributes:
        line: Number of the offending line, from 1; None for the whole file.
    """

    def __init__(self, message: str, *, line: int | None = None, hint: str = "") -> None:
        super().__init__(
            message,
            # Exporting to the same path would destroy what may be evidence.
            hint=hint
            or "Keep the file as it is, and compare it with a copy or a digest that was kept elsewhere; export the topic to "
            "another file.",
            exit_code=ExitCode.BAD_EXPORT,
        )
        self.line = line


class AuditQuestionError(StateChannelError):
    """The log cannot answer the question, or the question is invalid."""

    exit_code = ExitCode.USAGE


class ImportRefusedError(StateChannelError):
    """The import is refused; nothing, or nothing more, was written."""

    def __init__(self, message: str, *, hint: str = "", in_log: bool = True) -> None:
        code = ExitCode.REJECTED if in_log else ExitCode.NOT_FOUND
        super().__init__(message, hint=hint, exit_code=code)
