"""Errors of settings."""

from __future__ import annotations

from typing import Any

from statechannel.errors import ExitCode, StateChannelError


class SettingsError(StateChannelError):
    """A setting is unknown, malformed, out of bounds, or contradicts another one.

    Attributes:
        settings: The whole tree if each value is valid and only rules between them are broken; else None.
    """

    def __init__(self, problems: list[str], *, hint: str = "", settings: Any = None) -> None:
        text = problems[0] if len(problems) == 1 else "Invalid settings:\n  " + "\n  ".join(problems)
        super().__init__(
            text,
            hint=hint or "`statechannel settings explain NAME` explains a setting.",
            exit_code=ExitCode.BAD_SETTINGS,
        )
        self.problems = problems
        self.settings = settings
