"""The blocking face at its end: closed twice, used afterwards, and used while it closes."""

import asyncio
import concurrent.futures
import inspect
import itertools
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from statechannel.api import BlockingStateChannel
from statechannel.broker.exits import ChannelStoppedError, Stopped
from statechannel.broker.loop_thread import LoopThread
from statechannel.broker.opening_process import OpeningProcess

ENDED = Stopped("closed", "left on request")


class Channel:
    """The part of `StateChannel` that closing needs."""

    stopped: Stopped | None = None
    closed = 0

    async def close(self) -> None:
        await asyncio.sleep(0.01)
        self.closed += 1
        self.stopped = ENDED

    def serving(self) -> dict[str, int]:
        return {}

    async def ask(self, _: object) -> None: ...


def blocking() -> tuple[BlockingStateChannel, Channel]:
    channel = Channel()
    return BlockingStateChannel(LoopThread("test"), channel, None), channel  # type: ignore[arg-type]


def test_a_channel_may_be_closed_inside_with() -> None:
    face, channel = blocking()
    with face:
        face.close()
    face.close()
    assert channel.closed == 1


def test_several_threads_may_close_at_once_and_all_return_when_it_is_closed() -> None:
    face, channel = blocking()
    seen: list[int] = []

    def close() -> None:
        face.close()
        seen.append(channel.closed)

    threads = [threading.Thread(target=close) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert seen == [1] * 8


@pytest.mark.filterwarnings("error")
def test_what_is_asked_afterwards_is_told_that_it_was_closed() -> None:
    face, _ = blocking()
    face.close()
    with pytest.raises(ChannelStoppedError) as raised:
        face.ask(None)  # type: ignore[arg-type]
    assert raised.value.stopped.reason == "closed"
    with pytest.raises(ChannelStoppedError):
        face.owners("t/n")
    assert face.serving() == {}
    assert face.shutdown() == face.wait_stopped() == face.stopped == ENDED


def test_a_call_that_the_end_of_the_loop_overtakes_does_not_wait_for_ever() -> None:
    loop = LoopThread("test")
    begun, ends = threading.Event(), []

    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    def call() -> None:
        try:
            loop.call(wait())
        except ChannelStoppedError as error:
            ends.append(error.stopped.reason)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    assert begun.wait(20)
    loop.close()
    thread.join(20)
    assert ends == ["closed"]


def test_calls_race_with_the_end_and_each_of_them_returns() -> None:
    for _ in range(20):
        loop = LoopThread("test")
        ends: list[str] = []
        go = threading.Barrier(5)

        def call(loop: LoopThread = loop, go: threading.Barrier = go, ends: list[str] = ends) -> None:
            go.wait(20)
            try:
                ends.append(loop.ask(lambda: "answered"))
            except ChannelStoppedError:
                ends.append("closed")

        threads = [threading.Thread(target=call, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        go.wait(20)
        loop.close()
        for thread in threads:
            thread.join(20)
        assert len(ends) == 4


def in_the_child(loop: LoopThread) -> None:
    """Make it look as in the child of a fork."""
    loop.process = OpeningProcess()
    loop.process.leave()


def refused_in_the_child(loop: LoopThread, call: Callable[[], object]) -> None:
    process = loop.process
    in_the_child(loop)
    with pytest.raises(ChannelStoppedError) as refused:
        call()
    assert refused.value.stopped.reason == "forked"
    loop.process = process


def refused_in_its_own_thread(loop: LoopThread, call: Callable[[], object]) -> None:
    with pytest.raises(RuntimeError):
        loop.ask(call)


def refused_after_the_end(loop: LoopThread, call: Callable[[], object]) -> None:
    loop.close()
    with pytest.raises(ChannelStoppedError) as refused:
        call()
    assert refused.value.stopped.reason == "closed"


@pytest.mark.parametrize("refused", [refused_in_the_child, refused_in_its_own_thread, refused_after_the_end])
def test_a_call_that_is_refused_leaves_no_coroutine_behind(refused: Callable[..., None]) -> None:
    async def nothing() -> None: ...

    loop, coroutine = LoopThread("test"), nothing()
    try:
        refused(loop, lambda: loop.call(coroutine))
        assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
    finally:
        loop.close()
    assert loop.ended


@pytest.mark.parametrize("refused", [refused_in_the_child, refused_in_its_own_thread])
def test_where_a_call_is_refused_the_end_is_too(refused: Callable[..., None]) -> None:
    async def last() -> None:
        raise AssertionError

    loop = LoopThread("test")
    refused(loop, lambda: loop.finish(last))
    assert not loop.ended
    loop.close()
    in_the_child(loop)
    loop.finish(last)  # it has ended: nothing is left to be refused


def test_what_fails_at_the_end_is_raised_and_the_thread_ends_all_the_same() -> None:
    async def last() -> None:
        raise OSError("no disk")

    loop = LoopThread("test")
    with pytest.raises(OSError, match="no disk"):
        loop.finish(last)
    assert loop.ended
    loop.close()


def test_an_error_of_a_call_is_that_of_the_coroutine() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    loop = LoopThread("test")
    try:
        with pytest.raises(ZeroDivisionError):
            loop.ask(lambda: 1 // 0)
        with pytest.raises(concurrent.futures.CancelledError):
            loop.call(cancelled())
    finally:
        loop.close()


@pytest.mark.parametrize("taken", [1, 3])
def test_a_stream_is_closed_at_its_end_and_where_nobody_goes_on(taken: int) -> None:
    log: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            for number in range(2):
                yield number
        finally:
            log.append(threading.current_thread().name)

    loop = LoopThread("its own")
    try:
        items = loop.iterate(numbers())
        assert list(itertools.islice(items, taken)) == list(range(min(taken, 2)))
        items.close()  # type: ignore[attr-defined]
        assert log == ["its own"]
    finally:
        loop.close()


def test_a_stream_whose_loop_has_ended_ends_quietly_when_it_is_dropped() -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1
        yield 2

    loop = LoopThread("test")
    items = loop.iterate(numbers())
    assert next(items) == 1
    loop.close()
    items.close()  # type: ignore[attr-defined]
