"""No healthy-looking corpse: a member whose loop stands still, or whose end takes too long, is told of in any case."""

import asyncio
import json
import subprocess
import sys
import threading
import time

import pytest

from statechannel.broker import host as host_module
from statechannel.broker.exits import Stopped
from tests.support.lone_member import SilentLog, host_settings, lone_host
from tests.support.waits import WAIT_S

SHORT = host_settings(watchdog_s=0.3, close_timeout_s=2.0)


class SlowLog(SilentLog):
    """Needs a while to close."""

    def __init__(self, close_s: float) -> None:
        self._close_s = close_s

    def close(self, timeout_s: float) -> bool:
        time.sleep(self._close_s)
        return False


async def test_a_loop_that_stands_still_is_told_of() -> None:
    stuck = threading.Event()
    async with lone_host(settings=SHORT, on_stuck=stuck.set):
        await asyncio.sleep(0.6)
        assert not stuck.is_set()
        time.sleep(1.0)  # noqa: ASYNC251 - this is the fault
        assert stuck.is_set()


async def test_closing_that_takes_its_time_is_not_taken_for_a_loop_that_stands_still() -> None:
    stuck = threading.Event()
    async with lone_host(SlowLog(1.2), SHORT, stuck.set) as host:
        host.stop(Stopped("closed", "test"))
        await host.wait_stopped()
    assert not stuck.is_set()


async def test_closing_that_does_not_end_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "CLOSING_SLACK_S", 0.0)
    stuck = threading.Event()
    async with lone_host(SlowLog(2.0), host_settings(watchdog_s=0.3, close_timeout_s=0.1), stuck.set) as host:
        host.stop(Stopped("closed", "test"))
        assert await asyncio.to_thread(stuck.wait, 5)


async def test_a_loop_that_stands_still_while_closing_is_told_of() -> None:
    stuck = threading.Event()
    async with lone_host(SlowLog(2.0), SHORT, stuck.set) as host:
        host.stop(Stopped("closed", "test"))
        await asyncio.sleep(0)
        time.sleep(1.0)  # noqa: ASYNC251 - this is the fault
        assert stuck.is_set()


CHILD = """
import asyncio, sys, time
from statechannel.cli import broker
from statechannel.cli.broker import set_up_logs
from tests.support.lone_member import host_settings, lone_host, lone_settings

async def main():
    set_up_logs(lone_settings())
    async with lone_host(settings=host_settings(watchdog_s=0.5), on_stuck=broker.on_stuck(events=True)):
        print("ready", flush=True)
        FAULT

asyncio.run(main())
"""
FAULTS = {"sleeps": "time.sleep(60)", "nobody reads what it logs": "sys.stderr.write('x' * 10_000_000)"}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broker_that_stands_still_ends_itself_and_says_why(fault: str) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD.replace("FAULT", FAULTS[fault])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.wait(WAIT_S) == 70  # standard error is a pipe that nobody has read until now
        result = child.stdout.read().splitlines()
        assert result[0] == "ready"
        assert json.loads(result[1])["reason"] == "stuck"
        if fault == "sleeps":
            assert "error: the event loop is stuck" in child.stderr.read()
    finally:
        child.kill()
        child.communicate()
