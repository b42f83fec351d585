"""A member that has ended serves nothing and raises no alarm; one that is left open is named."""

import asyncio
import logging
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from statechannel.api import Stopped
from statechannel.broker import supervision
from statechannel.broker.host import Host
from statechannel.engine.reactions import ServedBundle
from tests.support.log_lines import capture_logs
from tests.support.lone_member import host_settings, lone_channel, lone_host, started_host
from tests.support.waits import WAIT_S, wait_until

BUNDLE = "t/n/0x00000000_0xffffffff"
ROOT = Path(__file__).parents[3]


def _serving_host() -> tuple[Host, asyncio.AbstractEventLoop]:
    """A host that serves a bundle, on a loop that is still open."""
    loop = asyncio.new_event_loop()

    async def start() -> Host:
        return started_host(settings=host_settings(watchdog_s=0.4, loop_blocked_s=0.2))

    host = loop.run_until_complete(start())
    host.engine.reactions.holdings[BUNDLE] = ServedBundle(generation=7)
    return host, loop


def _watches() -> bool:
    return any(thread.name == "statechannel-watchdog" for thread in threading.enumerate())


ASKED: dict[str, Callable[[Host], Any]] = {
    "serves": lambda host: host.serves(BUNDLE),
    "accepts_writes": lambda host: host.accepts_writes(BUNDLE),
    "cached_owner": lambda host: host.cached_owner("t/n/topic"),
}


@pytest.mark.parametrize("question", ASKED)
def test_a_member_whose_loop_was_closed_serves_nothing_from_that_moment(question: str) -> None:
    host, loop = _serving_host()
    before = (host.serves(BUNDLE), host.accepts_writes(BUNDLE), host.serving())
    loop.close()
    first = ASKED[question](host)
    assert before == (7, 7, {BUNDLE: 7})
    assert first is None
    assert host.serving() == {}
    assert host.stopped.reason == "loop-closed"


@pytest.mark.parametrize("reason", ["part-failed", "topic-broken", "invariant-violated", "shutdown-late", "replaced"])
async def test_so_does_a_member_that_ends_for_any_other_reason(reason: str) -> None:
    async with lone_host() as host:
        host.engine.reactions.holdings[BUNDLE] = ServedBundle(generation=7)
        host.stop(Stopped(reason, "by the test"))
        assert [ask(host) for ask in ASKED.values()] == [None, None, None]
        assert host.serving() == {}
        assert host.status()["mode"] == "stopped"


async def test_the_bundles_of_an_ended_member_may_be_asked_for_in_any_thread() -> None:
    async with lone_channel() as channel:
        channel._host.stop(Stopped("part-failed", "by the test"))
        assert await asyncio.to_thread(channel.serving) == {}


async def test_the_status_of_an_ended_member_is_that_of_its_end() -> None:
    async with lone_host() as host:
        host.engine.reactions.holdings[BUNDLE] = ServedBundle(generation=7)
        assert host.status()["mode"] == "starting"
        host.stop(Stopped("part-failed", "by the test"))
        status = host.status()
    ended = {"mode": "stopped", "leading": False, "deputizing": False, "term": -1, "caught_up": False, "serving": 0}
    assert {name: status[name] for name in ended} == ended
    assert status["runtime"]["stopped"] == "part-failed"


def test_the_watchdog_ends_with_its_member_and_blames_no_innocent_thread() -> None:
    with capture_logs() as lines:
        host, loop = _serving_host()
        loop.close()
        host._driver.check_loop()  # as a thread of Kafka's client does, before the watchdog looks
        host._watchdog._thread.join(WAIT_S)
        assert not host._watchdog._thread.is_alive()
        assert not host._watchdog.stuck
        wait_until(lambda: any(line["event"] == "stopped" for line in lines))
    assert [line["event"] for line in lines if line["event"].startswith("loop-")] == []


def test_the_line_of_a_closed_loop_names_the_broker_and_its_bundles() -> None:
    with capture_logs() as lines:
        _, loop = _serving_host()
        loop.close()
        wait_until(lambda: any(line["event"] == "stopped" for line in lines))
    (line,) = [line for line in lines if line["event"] == "stopped"]
    assert (line["log_level"], line["reason"], line["broker"], line["serving"]) == ("critical", "loop-closed", "b1", 1)


def _lines_of(program: str) -> list[str]:
    """What a program writes to standard error, whose log has no format of its own."""
    code = textwrap.dedent(program)
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=WAIT_S
    )
    return ended.stderr.splitlines()


LEFT_OPEN = """
    import asyncio
    from statechannel.api import Stopped
    from statechannel.engine.reactions import ServedBundle
    from tests.support.lone_member import started_host

    async def main(closing=False):
        host = started_host()
        host.engine.reactions.holdings["t/n/0x00000000_0xffffffff"] = ServedBundle(generation=7)
        if closing:
            host.stop(Stopped("closed", "by the program"))
            await host.wait_stopped()

    {run}
"""


@pytest.mark.parametrize(
    "run",
    [
        "asyncio.run(main())",
        "asyncio.new_event_loop().run_until_complete(main())",
        "asyncio.run(main()); import time; time.sleep(1)",
    ],
)
def test_a_program_that_ends_with_an_open_member_says_so_once(run: str) -> None:
    (line,) = _lines_of(LEFT_OPEN.format(run=run))
    assert "broker=b1" in line
    assert "serving=1" in line
    assert "async with" in line


def test_one_that_closed_it_says_nothing() -> None:
    assert _lines_of(LEFT_OPEN.format(run="asyncio.run(main(closing=True))")) == []


def test_what_cannot_be_logged_at_the_end_does_not_hold_the_program_up(monkeypatch: pytest.MonkeyPatch) -> None:
    host, loop = _serving_host()
    monkeypatch.setattr(supervision, "FINAL_LOG_S", 0.1)
    loop.close()
    gate = threading.Event()

    class Stuck(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            gate.wait(WAIT_S)

    handler = Stuck()
    logging.getLogger("statechannel").addHandler(handler)
    try:
        assert host.serves(BUNDLE) is None
    finally:
        gate.set()
        logging.getLogger("statechannel").removeHandler(handler)
