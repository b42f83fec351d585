"""Logging of processes run by the command line: to standard error, in one format for all libraries."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from statechannel.printable import printable_lines
from statechannel.settings import Settings
from statechannel.settings.groups_cluster import LogFormat


def _harmless(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escapes control characters in messages of errors and libraries that bypass our logger."""
    for name, value in line.items():
        line[name] = printable_lines(value)
    return line


def set_up_logs(settings: Settings) -> None:
    """Send every log line to standard error, in the level and format of the settings."""
    level = logging.getLevelNamesMapping()[settings.observe.log_level.value.upper()]
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _harmless,
    ]
    renderer: Any = (
        structlog.processors.JSONRenderer(default=str)
        if settings.observe.log_format is LogFormat.JSON
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0)
    )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
