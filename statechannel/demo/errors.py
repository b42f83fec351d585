"""Errors of the demo."""

from __future__ import annotations

from pathlib import Path

from statechannel.errors import StateChannelError


class DemoError(StateChannelError):
    """The demo cannot continue, or a promise did not hold.

    Attributes:
        log: A log file with details.
    """

    def __init__(self, message: str, *, hint: str = "", log: Path | None = None) -> None:
        super().__init__(message, hint=hint or ("" if log is None else f"Read {log}"))
        self.log = log
