"""Errors of the demo."""

from __future__ import annotations

from pathlib import Path

from statechannel.errors import StateChannelError


class DemoError(StateChannelError):
    """The demo cannot go on, or what it shows did not come out as promised.

    Attributes:
        log: A file that tells more.
    """

    def __init__(self, message: str, *, hint: str = "", log: Path | None = None) -> None:
        super().__init__(message, hint=hint or ("" if log is None else f"Read {log}"))
        self.log = log
