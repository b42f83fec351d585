"""Non-raising logger: events with fields on `logging`, below the logger `statechannel`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from statechannel.printable import printable_lines

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = "statechannel"

_unwritten = 0


class EventLine:
    """The message of a log record: as text the event and its fields, `event name=value ...`.

    It becomes text only if a handler formats it.
    """

    __slots__ = ("event", "facts")

    def __init__(self, event: str, facts: Mapping[str, Any]) -> None:
        self.event = event
        self.facts = facts

    def __str__(self) -> str:
        return " ".join([self.event, *(f"{name}={_shown(value)}" for name, value in self.facts.items())])


def _shown(value: object) -> str:
    text = str(value)
    return repr(text) if not text or any(letter.isspace() for letter in text) else text


class SafeLogger:
    """Logs events by `logging`; its calls never raise.

    Standard error may be a closed pipe, the disk may be full, an embedder's handler may fail:
    a member that stopped for that would leave its bundles without an owner. Lost lines are counted.
    Control characters in foreign text are replaced: lines may be shown on a terminal.

    A record has `event` and `facts` as attributes, for handlers that write JSON.

    Args:
        name: A module; those of other packages are put below `statechannel`, whose level holds for all.
    """

    __slots__ = ("_always", "_to")

    def __init__(self, name: str) -> None:
        self._always: Mapping[str, Any] = {}
        self._to = logging.getLogger(name if f"{name}.".startswith(f"{ROOT}.") else f"{ROOT}.{name}")

    def bound(self, **facts: Any) -> SafeLogger:
        """The same logger with these facts in all its lines, before their own; empty ones are left out."""
        bound = SafeLogger(self._to.name)
        bound._always = {**self._always, **{name: value for name, value in facts.items() if value != ""}}
        return bound

    def takes(self, level: int) -> bool:
        """Whether lines of this level are written anywhere."""
        return self._to.isEnabledFor(level)

    def log(self, level: int, event: str, *, exc_info: BaseException | bool | None = None, **facts: Any) -> None:
        """Log `event` at this level (one of `logging`'s)."""
        try:
            if self._to.isEnabledFor(level):
                shown = {name: printable_lines(value) for name, value in {**self._always, **facts}.items()}
                extra = {"event": event, "facts": shown}
                self._to.log(level, EventLine(event, shown), exc_info=exc_info or None, extra=extra)
        except Exception:
            count_unwritten()

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


def count_unwritten() -> None:
    global _unwritten  # noqa: PLW0603 - of the process, as its standard error is
    _unwritten += 1


def unwritten() -> int:
    """Number of log lines of this process that could not be written."""
    return _unwritten
