"""What a broker says may be lost; it goes on serving."""

import io

import structlog
from structlog.testing import capture_logs

from statechannel.engine.context import Mode
from statechannel.engine.effects import Emit
from statechannel.logger import SafeLogger, unwritten
from tests.support.lone_member import lone_host


def test_lines_go_where_structlog_sends_them():
    with capture_logs() as lines:
        SafeLogger("x").warning("late", seconds=3)
        try:
            int("none")
        except ValueError:
            SafeLogger("x").exception("failed")
    assert lines == [
        {"event": "late", "seconds": 3, "log_level": "warning"},
        {"event": "failed", "exc_info": True, "log_level": "error"},
    ]


def test_a_line_that_cannot_be_written_is_counted():
    closed = io.StringIO()
    closed.close()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(closed))
    before = unwritten()
    SafeLogger("x").info("unheard")
    assert unwritten() == before + 1


async def test_a_member_lives_and_stops_where_nobody_takes_its_lines():
    closed = io.StringIO()
    closed.close()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(closed))
    before = unwritten()
    async with lone_host() as host:
        host.metrics.take(Emit("mode.changed", {"mode": Mode.SAFE, "why": "a test"}))
        assert host.status()["runtime"]["unwritten_log_lines"] > before
        assert host.status()["runtime"]["stopped"] is None
    assert host.status()["runtime"]["stopped"] == "closed"
