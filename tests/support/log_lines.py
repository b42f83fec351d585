"""The lines that the library logs, as dictionaries."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Keeper(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        facts = getattr(record, "facts", {})
        line = {"event": getattr(record, "event", record.getMessage()), "log_level": record.levelname.lower(), **facts}
        self.lines.append(line if record.exc_info is None else {**line, "raised": record.exc_info[1]})


@contextlib.contextmanager
def capture_logs() -> Iterator[list[dict[str, Any]]]:
    """Every line of the logger `statechannel`, of any level, with its `event`, `log_level`, fields and what was `raised`."""
    logger = logging.getLogger("statechannel")
    keeper, level = _Keeper(), logger.level
    logger.addHandler(keeper)
    logger.setLevel(logging.DEBUG)
    try:
        yield keeper.lines
    finally:
        logger.removeHandler(keeper)
        logger.setLevel(level)
