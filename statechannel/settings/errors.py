"""What can be wrong with settings."""

from __future__ import annotations

from typing import Any

from statechannel.errors import ExitCode, StateChannelError


class SettingsError(StateChannelError):
    """A setting is unknown, malformed, out of bounds, or does not go with another one.

    Attributes:
        problems: One sentence for each thing that is wrong.
        settings: The whole tree where each value is valid and only the rules between them are broken; else None.
    """

    def __init__(self, problems: list[str], *, hint: str = "", settings: Any = None) -> None:
        text = problems[0] if len(problems) == 1 else "Settings refused:\n  " + "\n  ".join(problems)
        super().__init__(
            text, hint=hint or "Every setting is explained in design/settings.md.", exit_code=ExitCode.BAD_SETTINGS
        )
        self.problems = problems
        self.settings = settings
