"""Calls from another loop or thread are refused at once: nothing would answer them."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from statechannel.api import StateChannel, WrongLoopError
from tests.support.lone_member import lone_channel

BUNDLE = "t/n/0x00000000_0xffffffff"
WAITING: dict[str, Callable[[StateChannel], Any]] = {
    "StateChannel.lookup": lambda channel: channel.lookup("t/n/topic", 60),
    "StateChannel.transfer": lambda channel: channel.transfer("t/n/topic", "b2"),
    "StateChannel.unload": lambda channel: channel.unload("t/n/topic"),
    "StateChannel.split": lambda channel: channel.split(BUNDLE),
    "StateChannel.create_namespace": lambda channel: channel.create_namespace("t/n"),
    "StateChannel.delete_namespace": lambda channel: channel.delete_namespace("t/n"),
    "StateChannel.resume_repair": lambda channel: channel.resume_repair(),
    "StateChannel.changes": lambda channel: anext(channel.changes()),
    "StateChannel.wait_stopped": lambda channel: channel.wait_stopped(),
    "StateChannel.shutdown": lambda channel: channel.close(),
    "Ticket.started": lambda channel: channel.ticket("op-1").started(),
    "Ticket.outcome": lambda channel: channel.ticket("op-1").outcome(),
}
READING: dict[str, Callable[[StateChannel], Any]] = {
    "StateChannel.status": lambda channel: channel.status(),
    "StateChannel.picture": lambda channel: channel.picture(),
    "StateChannel.brokers": lambda channel: channel.brokers(),
    "StateChannel.positions": lambda channel: channel.positions(),
    "StateChannel.locate": lambda channel: channel.locate("t/n/topic"),
    "StateChannel.owners": lambda channel: channel.owners("t/n"),
    "StateChannel.holder": lambda channel: channel.holder(BUNDLE),
    "StateChannel.serving": lambda channel: channel.serving(),
    "StateChannel.digest": lambda channel: channel.digest(),
    "StateChannel.watch": lambda channel: channel.watch(1),
}


@pytest.mark.parametrize("method", WAITING)
async def test_a_coroutine_of_another_loop_is_refused(method: str) -> None:
    async with lone_channel() as channel:

        async def call() -> Any:
            return await WAITING[method](channel)

        with pytest.raises(WrongLoopError) as refused:
            await asyncio.to_thread(asyncio.run, call())
    assert str(refused.value).startswith(f"{method}() was called from another event loop or thread")
    assert "run_coroutine_threadsafe" in refused.value.hint


@pytest.mark.parametrize("method", READING)
async def test_so_is_a_call_of_another_thread(method: str) -> None:
    async with lone_channel() as channel:
        with pytest.raises(WrongLoopError) as refused:
            await asyncio.to_thread(READING[method], channel)
    assert str(refused.value).startswith(f"{method}() was called from another event loop or thread")
    assert "run_coroutine_threadsafe" not in refused.value.hint, "it is no coroutine"
    assert "call_soon_threadsafe" in refused.value.hint


async def test_what_is_needed_before_each_use_of_a_bundle_may_be_called_from_any_thread() -> None:
    async with lone_channel() as channel:
        assert await asyncio.to_thread(channel.serves, BUNDLE) is None
        assert await asyncio.to_thread(channel.accepts_writes, BUNDLE) is None
        assert await asyncio.to_thread(lambda: channel.stopped) is None
