"""A hook that is begun at once sees what it would see in any task: its cancellation, its deadline, its loop's task factory."""

import asyncio
import time
from collections.abc import Callable
from types import coroutine
from typing import Any

import pytest

from statechannel.broker.hook_runner import HookRunner
from statechannel.broker.hooks import BrokerHooks
from statechannel.engine.effects import CallHook, Hook
from statechannel.engine.inputs import HookFinished

Factory = Callable[..., "asyncio.Task[Any]"]


class Run:
    """One hook, called from a callback of a loop of its own, as the driver does."""

    def __init__(self, hooks: BrokerHooks, *, factory: Factory | None = None, deadline_s: float = 5.0) -> None:
        self.finished: list[HookFinished] = []
        self.complaints: list[dict[str, Any]] = []
        runner = HookRunner(hooks, feed=self.finished.append, urls_of=lambda _: {})  # type: ignore[arg-type]
        effect = CallHook(1, Hook.ON_OWN, "a/b/0x00000000_0xffffffff", 3, None, deadline_s)

        loop = asyncio.new_event_loop()
        ends_s = loop.time() + 5.0

        def look() -> None:
            if loop.time() > ends_s or (self.finished and not asyncio.all_tasks(loop)):
                loop.stop()
            else:
                loop.call_later(0.005, look)

        loop.set_exception_handler(lambda _, context: self.complaints.append(context))
        loop.set_task_factory(factory)
        loop.call_soon(runner.call, effect)
        loop.call_soon(look)
        try:
            loop.run_forever()
            assert not asyncio.all_tasks(loop)
        finally:
            loop.close()

    @property
    def error(self) -> str | None:
        (ended,) = self.finished
        return ended.error


class Logging(BrokerHooks):
    def __init__(self) -> None:
        self.log: list[str] = []


class Waits(Logging):
    async def on_own(self, bundle, generation) -> None:
        self.log.append("begins")
        await asyncio.sleep(0.01)
        self.log.append("ends")


# --- the embedder's task factory ------------------------------------------------------------------------------------


def without_context(loop, coro) -> asyncio.Task[Any]:
    """The form that factories had before contexts, which many libraries install still."""
    return asyncio.Task(coro, loop=loop)


def eager(loop, coro, *, context=None, **more) -> asyncio.Task[Any]:
    """Runs the first stretch before it returns the task, as the eager tasks of Python 3.12 do."""
    first = coro.send(None) if context is None else context.run(coro.send, None)

    @coroutine
    def rest():
        waits_for = first
        while True:
            try:
                sent = yield waits_for
                waits_for = coro.send(sent)
            except StopIteration:
                return

    async def body() -> None:
        await rest()

    return asyncio.Task(body(), loop=loop, **more)


FACTORIES = [without_context, eager]
if hasattr(asyncio, "eager_task_factory"):
    FACTORIES.append(asyncio.eager_task_factory)


@pytest.mark.parametrize("factory", FACTORIES)
def test_the_embedders_task_factory_is_left_to_do_its_work(factory: Factory) -> None:
    hooks = Waits()
    run = Run(hooks, factory=factory)
    assert (run.error, hooks.log, run.complaints) == (None, ["begins", "ends"], [])


# --- cancellation in the first stretch ------------------------------------------------------------------------------


def own_task() -> "asyncio.Task[Any]":
    return asyncio.current_task()


async def sleep(_: Logging) -> None:
    await asyncio.sleep(10)


async def turn(_: Logging) -> None:
    await asyncio.sleep(0)


async def child(hooks: Logging) -> None:
    async def run() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            hooks.log.append("child ends")

    task = asyncio.create_task(run())
    hooks.child = task  # type: ignore[attr-defined]
    await task


class CancelsItself(Logging):
    """Cancels its own task, then waits, and waits again while it cleans up."""

    def __init__(self, wait: Callable[[Logging], Any]) -> None:
        super().__init__()
        self.wait = wait

    async def on_own(self, bundle, generation) -> None:
        own_task().cancel("enough")
        try:
            await self.wait(self)
            self.log.append("went on")
        except asyncio.CancelledError:
            self.log.append("cancelled")
            raise
        finally:
            await asyncio.sleep(0)
            self.log.append("cleaned up")


async def in_a_plain_task(hooks: BrokerHooks) -> bool:
    task = asyncio.create_task(hooks.on_own("a/b/0x00000000_0xffffffff", 3))
    await asyncio.wait({task})
    return task.cancelled()


@pytest.mark.parametrize("wait", [sleep, turn, child])
def test_a_hook_that_cancels_itself_is_cancelled_where_it_waits(wait: Callable[[Logging], Any]) -> None:
    plain, hooks = CancelsItself(wait), CancelsItself(wait)
    assert asyncio.run(in_a_plain_task(plain))
    run = Run(hooks)
    assert hooks.log == plain.log == ["cancelled", "cleaned up"]
    assert (run.error, run.complaints) == ("on_own was cancelled", [])
    if wait is child:
        assert hooks.child.cancelled()  # type: ignore[attr-defined]


def test_a_hook_that_cancels_itself_and_returns_was_cancelled() -> None:
    class Returns(BrokerHooks):
        async def on_own(self, bundle, generation) -> None:
            own_task().cancel()

    assert asyncio.run(in_a_plain_task(Returns()))
    assert Run(Returns()).error == "on_own was cancelled"


def test_a_hook_that_cancels_itself_and_raises_has_raised() -> None:
    class Raises(BrokerHooks):
        async def on_own(self, bundle, generation) -> None:
            own_task().cancel()
            raise OSError("disk full")

    run = Run(Raises())
    assert (run.error, run.complaints) == ("on_own raised OSError: disk full", [])


def test_a_timeout_of_nothing_in_the_first_stretch_is_the_hooks_own() -> None:
    class TimesOut(Logging):
        async def on_own(self, bundle, generation) -> None:
            try:
                async with asyncio.timeout(0):
                    await asyncio.sleep(10)
            except TimeoutError:
                self.log.append("timed out")

    hooks = TimesOut()
    run = Run(hooks)
    assert (run.error, hooks.log, run.complaints) == (None, ["timed out"], [])


# --- the deadline ---------------------------------------------------------------------------------------------------


def test_the_first_stretch_counts_against_the_deadline() -> None:
    class Blocks(BrokerHooks):
        async def on_own(self, bundle, generation) -> None:
            time.sleep(0.3)  # noqa: ASYNC251 - that is the fault
            await asyncio.sleep(0.3)

    assert Run(Blocks(), deadline_s=0.4).error == "on_own did not return within 0.4 s"


def test_what_a_first_stretch_left_behind_is_cancelled_at_the_deadline() -> None:
    class Group(Logging):
        async def on_own(self, bundle, generation) -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(child(self))

    hooks = Group()
    run = Run(hooks, deadline_s=0.05)
    assert hooks.log == ["child ends"]
    assert run.error == "on_own did not return within 0.05 s"
    assert run.complaints == []
