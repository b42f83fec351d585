"""Non-raising logger: a full or closed log sink never stops a broker."""

from __future__ import annotations

import logging
from typing import Any

import structlog

from statechannel.printable import printable_lines

_unwritten = 0


class SafeLogger:
    """A structlog logger whose calls never raise.

    Standard error may be a closed pipe, the disk may be full, an embedder's processor may fail:
    a member that stopped for that would leave its bundles without an owner. Lost lines are counted.
    Control characters in foreign text are replaced: lines may be shown on a terminal.
    """

    __slots__ = ("_to",)

    def __init__(self, name: str) -> None:
        self._to = structlog.get_logger(name)

    def log(self, level: int, event: str, **facts: Any) -> None:
        """Log `event` at this level (one of `logging`'s)."""
        global _unwritten  # noqa: PLW0603 - of the process, as its standard error is
        try:
            self._to.log(level, event, **{name: printable_lines(value) for name, value in facts.items()})
        except Exception:
            _unwritten += 1

    def debug(self, event: str, **facts: Any) -> None:
        self.log(logging.DEBUG, event, **facts)

    def info(self, event: str, **facts: Any) -> None:
        self.log(logging.INFO, event, **facts)

    def warning(self, event: str, **facts: Any) -> None:
        self.log(logging.WARNING, event, **facts)

    def error(self, event: str, **facts: Any) -> None:
        self.log(logging.ERROR, event, **facts)

    def exception(self, event: str, **facts: Any) -> None:
        """`error`, with the exception that is being handled."""
        self.log(logging.ERROR, event, exc_info=True, **facts)

    def critical(self, event: str, **facts: Any) -> None:
        self.log(logging.CRITICAL, event, **facts)


def unwritten() -> int:
    """Number of log lines of this process that could not be written."""
    return _unwritten
