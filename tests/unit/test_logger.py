"""The library says what happens by `logging` and nowhere else; what it says may be lost, and it goes on serving."""

import io
import logging
import subprocess
import sys

import pytest

from statechannel.cli.broker import set_up_logs
from statechannel.engine.context import Mode
from statechannel.engine.effects import Emit
from statechannel.logger import SafeLogger, unwritten
from statechannel.settings import load
from tests.support.log_lines import capture_logs
from tests.support.lone_member import lone_host
from tests.support.waits import WAIT_S


def test_lines_go_to_logging_with_their_fields() -> None:
    error = ValueError("none")
    with capture_logs() as lines:
        SafeLogger("x").warning("late", seconds=3)
        SafeLogger("x").error("failed", exc_info=error)
    assert lines == [
        {"event": "late", "seconds": 3, "log_level": "warning"},
        {"event": "failed", "raised": error, "log_level": "error"},
    ]


def test_a_line_as_text_has_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    SafeLogger("statechannel.x").warning("late", seconds=3, why="two words", nothing="")
    assert caplog.messages == ["late seconds=3 why='two words' nothing=''"]


@pytest.mark.parametrize(
    "name", ["statechannel", "statechannel.broker.host", "shedders.balancer.drain", "statechannels"]
)
def test_one_level_holds_for_all_of_the_library(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "statechannel"):
        SafeLogger(name).warning("late")
        SafeLogger(name).error("worse")
    with caplog.at_level(logging.DEBUG, "statechannel"):
        SafeLogger(name).debug("detail")
    assert caplog.messages == ["worse", "detail"]
    assert all(f"{record.name}.".startswith("statechannel.") for record in caplog.records)


EMBEDDER = """
import logging
from statechannel.logger import SafeLogger
SETUP
log = SafeLogger("statechannel.broker.host")
log.info("record.accepted")
log.warning("kafka.away")
def hook():
    password = "hunter2"
    raise RuntimeError("disk is on fire")
try:
    hook()
except RuntimeError:
    log.exception("hook.failed", bundle="t/n/0x00000000_0x80000000")
"""


def said(setup: str) -> tuple[str, str]:
    """What a program prints: its standard output and its standard error."""
    command = [sys.executable, "-c", EMBEDDER.replace("SETUP", setup)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S)
    return ended.stdout, ended.stderr


def test_an_embedder_without_logging_sees_warnings_on_standard_error_only() -> None:
    out, err = said("")
    assert out == ""
    lines = err.splitlines()
    assert lines[:2] == ["kafka.away", "hook.failed bundle=t/n/0x00000000_0x80000000"]
    assert lines[-1] == "RuntimeError: disk is on fire"
    assert "record.accepted" not in err
    assert "hunter2" not in err.replace('password = "hunter2"', "")


def test_the_level_of_the_logger_is_obeyed() -> None:
    assert said("logging.getLogger('statechannel').setLevel(logging.CRITICAL)") == ("", "")
    out, err = said("logging.basicConfig(level=logging.INFO)")
    assert out == ""
    assert "INFO:statechannel.broker.host:record.accepted" in err


class Closed(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise ValueError("I/O operation on closed file")


@pytest.fixture
def closed() -> logging.Logger:
    logger, handler = logging.getLogger("statechannel"), Closed()
    logger.addHandler(handler)
    yield logger
    logger.removeHandler(handler)


@pytest.mark.usefixtures("closed")
def test_a_line_that_cannot_be_written_is_counted() -> None:
    before = unwritten()
    SafeLogger("x").warning("unheard")
    assert unwritten() == before + 1


def test_so_is_one_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    set_up_logs(load())
    stream.close()
    before = unwritten()
    SafeLogger("x").warning("unheard")
    assert unwritten() == before + 1


@pytest.mark.usefixtures("closed")
async def test_a_member_lives_and_stops_where_nobody_takes_its_lines() -> None:
    before = unwritten()
    async with lone_host() as host:
        host.metrics.take(Emit("mode.changed", {"mode": Mode.SAFE, "why": "a test"}))
        assert host.status()["runtime"]["unwritten_log_lines"] > before
        assert host.status()["runtime"]["stopped"] is None
    assert host.status()["runtime"]["stopped"] == "closed"


def test_a_bound_logger_has_its_facts_in_every_line() -> None:
    with capture_logs() as lines:
        bound = SafeLogger("statechannel.broker.parts").bound(broker="b1", place="")
        bound.error("part-failed", part="reader")
        bound.bound(part="writer").error("part-failed", broker="b2")
    expected = [("b1", "reader", False), ("b2", "writer", False)]
    assert [(line["broker"], line["part"], "place" in line) for line in lines] == expected
