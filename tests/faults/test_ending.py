"""A campaign that is ended in the middle of a run ends what it has started."""

import asyncio
import threading
from typing import Any

import pytest

from tests.faults.kafka_nodes import Node, to_its_end
from tests.support.waits import WAIT_S


class SlowServer:
    """Stands for a Kafka whose start takes a while, and which can be killed only when it runs."""

    def __init__(self) -> None:
        self.pid: int | None = None
        self.starts = 0
        self.starting = threading.Event()
        self.may_run = threading.Event()

    def start(self) -> None:
        self.starts += 1
        self.starting.set()
        assert self.may_run.wait(WAIT_S)
        self.pid = 1

    def kill(self) -> None:
        self.pid = None


async def _ended_while_it_starts(server: Any) -> None:
    node = Node(1, server, {})

    async def run() -> None:
        try:
            await node.start()
        finally:
            await node.kill()

    task = asyncio.create_task(run())
    await asyncio.to_thread(server.starting.wait, WAIT_S)
    task.cancel()
    await asyncio.sleep(0)
    server.may_run.set()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_kafka_that_is_starting_is_ended_too() -> None:
    server = SlowServer()
    asyncio.run(_ended_while_it_starts(server))
    assert (server.starts, server.pid) == (1, None)


async def _healed_while_ending(server: Any) -> None:
    async def run() -> None:
        try:
            await asyncio.sleep(WAIT_S)
        finally:
            await Node(1, server, {}).start()

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_fault_that_heals_as_the_run_is_ended_starts_no_kafka() -> None:
    server = SlowServer()
    server.may_run.set()
    asyncio.run(_healed_while_ending(server))
    assert server.starts == 0


def test_what_fails_in_the_thread_is_raised() -> None:
    def fail() -> None:
        raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"):
        asyncio.run(to_its_end(fail))
