"""A ticket that is waited for by a task which is cancelled in the very turn in which the answer comes."""

import asyncio

import pytest

from statechannel.api import Done, Started, Ticket, Unknown
from tests.support.lone_member import lone_channel

STARTED = Started("op1", "a/b/0x00000000_0xffffffff", 0, 7)


@pytest.mark.parametrize("method", ["started", "outcome"])
async def test_a_cancellation_that_comes_with_the_answer_is_not_swallowed(method: str) -> None:
    async with lone_channel() as channel:
        begun: asyncio.Future = asyncio.get_running_loop().create_future()
        ticket = Ticket(channel, "op1", begun)
        waiting = asyncio.ensure_future(getattr(ticket, method)(5))
        await asyncio.sleep(0)
        begun.set_result(STARTED if method == "started" else Done("op1", "created"))
        await asyncio.sleep(0)  # the answer has come, but the task has not run yet
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_a_ticket_outlives_a_waiter_that_is_cancelled_or_late() -> None:
    async with lone_channel() as channel:
        begun: asyncio.Future = asyncio.get_running_loop().create_future()
        ticket = Ticket(channel, "op1", begun)
        assert isinstance(await ticket.started(0), Unknown)
        waiting = asyncio.ensure_future(ticket.started(5))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
        begun.set_result(STARTED)
        assert await ticket.started(0) == STARTED
