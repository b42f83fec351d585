"""A ticket that is waited for by a task which is cancelled in the very turn in which the answer comes."""

import asyncio

import pytest

from statechannel.api import ArgumentTypeError, Done, PendingTicket, Rejected, Started, Ticket, Unknown
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


BEGINNINGS = {
    "transfer": lambda channel: channel.transfer("a/b/t", "b2"),
    "unload": lambda channel: channel.unload("a/b/t"),
    "split": lambda channel: channel.split("a/b/t"),
    "create_namespace": lambda channel: channel.create_namespace("a/b"),
    "delete_namespace": lambda channel: channel.delete_namespace("a/b"),
}


@pytest.mark.parametrize("name", BEGINNINGS)
async def test_a_request_gives_its_ticket_or_its_answer(name: str) -> None:
    async with lone_channel() as channel:
        begin = BEGINNINGS[name]
        ticket = await begin(channel)
        assert isinstance(ticket, Ticket)
        assert isinstance(await asyncio.create_task(begin(channel)), Ticket)
        (gathered,) = await asyncio.gather(begin(channel))
        assert isinstance(gathered, Ticket)
        refused = await ticket.started(5)
        assert isinstance(refused, Rejected)
        for answer in (await begin(channel).started(5), await begin(channel).outcome(5)):
            assert isinstance(answer, Rejected)
            assert answer.reason == refused.reason


@pytest.mark.asyncio(loop_factories=["asyncio", "uvloop", "debug"])  # an eager task begins at once
async def test_a_request_that_is_cancelled_begins_nothing() -> None:
    async with lone_channel() as channel:
        task = asyncio.create_task(channel.unload("a/b/t"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_request_that_is_not_awaited_says_so() -> None:
    async with lone_channel() as channel:
        pending = channel.unload("a/b/t")
        assert isinstance(pending, PendingTicket)
        with pytest.raises(AttributeError, match="was not awaited has no `operation`; `ticket = await channel"):
            _ = pending.operation
        with pytest.warns(RuntimeWarning, match="unload' was never awaited"):
            del pending
        with pytest.raises(TypeError, match="unexpected keyword argument 'dest'"):
            channel.transfer("a/b/t", dest="b2")  # type: ignore[call-arg]
        with pytest.raises(ArgumentTypeError, match="`name`"):
            await channel.unload(7)  # type: ignore[arg-type]
