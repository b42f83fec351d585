"""Calls from another loop or thread are refused at once: nothing would answer them."""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from statechannel.api import ChangesError, StateChannel, WrongLoopError
from statechannel.broker.exits import Stopped
from statechannel.operations.checks import ArgumentTypeError
from tests.support.lone_member import lone_channel
from tests.support.waits import WAIT_S, wait_until

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


async def test_the_cache_is_for_every_thread() -> None:
    async with lone_channel() as channel:
        assert await asyncio.to_thread(channel.lookup_cached, "t/n/topic") is None
        with pytest.raises(ArgumentTypeError, match="text"):
            channel.lookup_cached(7)  # type: ignore[arg-type]


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


def test_a_loop_that_goes_on_in_another_thread_is_the_same_loop() -> None:
    loop = asyncio.new_event_loop()
    around = contextlib.AsyncExitStack()

    def go_on(act: Callable[[], Any]) -> Any:
        async def begin() -> Any:
            return act()

        return loop.run_until_complete(begin())

    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        channel = first.submit(loop.run_until_complete, around.enter_async_context(lone_channel())).result(WAIT_S)
        for look in READING.values():
            with contextlib.suppress(ChangesError):  # it has not caught up, and says so
                second.submit(go_on, partial(look, channel)).result(WAIT_S)
        assert second.submit(channel.serving).result(WAIT_S) == {}, "nothing runs beside it"
        second.submit(loop.run_until_complete, around.aclose()).result(WAIT_S)
        second.submit(loop.close).result(WAIT_S)


async def test_to_close_what_has_stopped_is_harmless_in_any_loop() -> None:
    async with lone_channel() as channel:
        channel._ending = asyncio.get_running_loop().create_task(channel._end())
        channel._host.stop(Stopped("closed", "by the test"))
        stopped = await channel.wait_stopped()

        async def close() -> list[Stopped]:
            await channel.close()
            return [await channel.shutdown(1.0), await channel.wait_stopped()]

        assert await asyncio.to_thread(asyncio.run, close()) == [stopped, stopped]


def test_so_it_is_once_its_loop_was_closed_under_it() -> None:
    around = contextlib.AsyncExitStack()  # never left
    loop = asyncio.new_event_loop()
    channel = loop.run_until_complete(around.enter_async_context(lone_channel()))
    loop.close()
    wait_until(lambda: channel.stopped is not None)
    asyncio.run(channel.close())
    assert asyncio.run(channel.shutdown(1.0)).reason == "loop-closed"
    assert asyncio.run(channel.wait_stopped()).reason == "loop-closed"
