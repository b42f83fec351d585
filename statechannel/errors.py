"""The root of every error that this package raises on purpose."""

from __future__ import annotations


class StateChannelError(Exception):
    """Something could not be done; the message says what happened, and to what.

    Attributes:
        hint: What to do next, as a sentence for people; empty when there is nothing to say.
        exit_code: The exit code of a command that ends with this error.
    """

    def __init__(self, message: str, *, hint: str = "", exit_code: int = 1) -> None:
        super().__init__(message)
        self.hint = hint
        self.exit_code = exit_code
