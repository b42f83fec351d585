"""The blocking face at its end: closed twice, used afterwards, and used while it closes."""

import asyncio
import threading

import pytest

from statechannel.api import BlockingStateChannel
from statechannel.broker.exits import ChannelStoppedError, Stopped
from statechannel.broker.loop_thread import LoopThread

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
