"""Hooks are never trusted to return: deadlines, order within a bundle, the guard against calling back."""

import asyncio
import re
import threading
import time
from contextvars import ContextVar

import pytest

from statechannel.broker.hook_runner import HookRunner
from statechannel.broker.hooks import (
    BlockingBrokerHooks,
    BrokerHooks,
    HookReentryError,
    ThreadedHooks,
    refuse_inside_hook,
)
from statechannel.engine.effects import CallHook, Hook
from statechannel.engine.inputs import HookFinished
from tests.support.waits import WAIT_S, until


def call(hook_id: int, hook: Hook = Hook.ON_OWN, bundle: str = "a/b/0x00000000_0xffffffff", deadline_s: float = 0.2):
    return CallHook(hook_id, hook, bundle, 3, None, deadline_s)


class Bench:
    def __init__(self, hooks: BrokerHooks) -> None:
        self.finished: list[HookFinished] = []
        self.problems: list[str] = []
        self.runner = HookRunner(
            hooks,
            feed=self.finished.append,  # type: ignore[arg-type]
            urls_of=lambda broker: {"pulsar": f"pulsar://{broker}"},
            on_problem=lambda _, error: self.problems.append(error),
        )

    async def until(self, count: int) -> None:
        await until(lambda: len(self.finished) >= count)


class Scripted(BrokerHooks):
    def __init__(self) -> None:
        self.log: list[str] = []
        self.gate = asyncio.Event()

    async def on_own(self, bundle, generation) -> None:
        self.log.append("own begins")
        await self.gate.wait()
        self.log.append("own ends")

    async def on_release(self, bundle, generation, destination) -> None:
        self.log.append("release")


async def test_hooks_nobody_overrides_have_ended_already() -> None:
    bench = Bench(BrokerHooks())
    bench.runner.call(call(1))
    assert bench.finished == [HookFinished(1, None)]
    assert bench.runner.counts.running == 0


async def test_hooks_of_one_bundle_run_one_after_the_other_those_of_others_do_not_wait() -> None:
    hooks = Scripted()
    bench = Bench(hooks)
    bench.runner.call(call(1, deadline_s=5))
    bench.runner.call(call(2, Hook.ON_RELEASE, deadline_s=5))
    bench.runner.call(call(3, Hook.ON_RELEASE, "a/b/0x00000000_0x10000000", deadline_s=5))
    await bench.until(1)
    assert bench.finished == [HookFinished(3, None)]
    assert hooks.log == ["own begins", "release"]
    hooks.gate.set()
    await bench.until(3)
    assert hooks.log == ["own begins", "release", "own ends", "release"]
    assert bench.runner.counts.running == 0


async def test_a_hook_that_hangs_is_reported_at_its_deadline_even_if_it_swallows_cancellation() -> None:
    class Stubborn(BrokerHooks):
        async def on_own(self, bundle, generation) -> None:
            while not gate.is_set():
                try:
                    await gate.wait()
                except asyncio.CancelledError:
                    continue

    gate = asyncio.Event()
    bench = Bench(Stubborn())
    bench.runner.call(call(1, deadline_s=0.05))
    await bench.until(1)
    assert "did not return within 0.05 s" in str(bench.finished[0].error)
    assert bench.problems == [bench.finished[0].error]
    gate.set()
    await asyncio.sleep(0.01)
    assert len(bench.finished) == 1  # its late end is not told again


async def test_a_hook_behind_one_that_hangs_ends_at_its_own_deadline() -> None:
    hooks = Scripted()
    bench = Bench(hooks)
    bench.runner.call(call(1, deadline_s=5))
    bench.runner.call(call(2, Hook.ON_RELEASE, deadline_s=0.05))
    bench.runner.call(call(3, Hook.ON_RELEASE, deadline_s=5))
    await bench.until(1)
    assert bench.finished[0].hook_id == 2
    assert "was not called" in str(bench.finished[0].error)
    assert hooks.log == ["own begins"]  # the third still waits for the first
    hooks.gate.set()
    await bench.until(3)
    assert hooks.log == ["own begins", "own ends", "release"]


async def test_an_error_without_words_is_reported_with_its_place_in_the_hook() -> None:
    class TimesOut(BrokerHooks):
        async def on_own(self, bundle, generation) -> None:
            async with asyncio.timeout(0):
                await asyncio.sleep(WAIT_S)

        async def on_release(self, bundle, generation, destination) -> None:
            raise KeyError

    bench = Bench(TimesOut())
    bench.runner.call(call(1, deadline_s=WAIT_S))
    bench.runner.call(call(2, Hook.ON_RELEASE, deadline_s=WAIT_S))
    await bench.until(2)
    places = [re.sub(r"\d+", "N", str(item.error)) for item in bench.finished]
    assert places == [
        "on_own raised TimeoutError in on_own (test_hooks.py:N)",
        "on_release raised KeyError in on_release (test_hooks.py:N)",
    ]


@pytest.mark.parametrize(
    ("hook", "called"),
    [
        (Hook.ON_OWN, ("b", 3)),
        (Hook.ON_SERVE, ("b", 3)),
        (Hook.ON_RELEASE, ("b", 3, None)),
        (Hook.ON_MOVED, ("b", None, {})),
        (Hook.ON_SPLIT, ("b", ("c", "d"), 3)),
        (Hook.ON_SPLIT_DONE, ("b", ("c", "d"), 3)),
    ],
)
@pytest.mark.parametrize("threads", [True, False])
async def test_each_hook_gets_its_arguments_in_threads_too(hook: Hook, called: tuple, threads: bool) -> None:
    seen: list[tuple] = []

    def note(*arguments: object) -> None:
        seen.append(arguments)

    async def note_later(*arguments: object) -> None:
        seen.append(arguments)

    if threads:
        kind = type("Noting", (BlockingBrokerHooks,), {str(hook): staticmethod(note)})
        hooks: BrokerHooks = ThreadedHooks(kind())
    else:
        hooks = type("Noting", (BrokerHooks,), {str(hook): staticmethod(note_later)})()
    bench = Bench(hooks)
    bench.runner.call(CallHook(1, hook, "b", 3, None, WAIT_S, ("c", "d")))
    await bench.until(1)
    assert (bench.finished, seen) == ([HookFinished(1, None)], [called])
    for other in Hook:
        if other is not hook:
            bench.runner.call(CallHook(2, other, "b", 3, None, WAIT_S, ("c", "d")))
    assert (len(bench.finished), len(seen)) == (len(Hook), 1)


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


async def test_an_error_whose_text_raises_or_never_ends_is_reported_and_the_bundle_goes_on() -> None:
    class Broken(BrokerHooks):
        async def on_own(self, bundle: str, generation: int) -> None:
            await asyncio.sleep(0)
            raise UnspeakableError if generation == 1 else OSError("x" * 100_000)

    bench = Bench(Broken())
    for number in (1, 2):
        bench.runner.call(CallHook(number, Hook.ON_OWN, "a/b/0x00000000_0xffffffff", number, None, WAIT_S))
    await bench.until(2)
    assert bench.finished[0] == HookFinished(1, "on_own raised UnspeakableError: its text cannot be shown")
    assert len(bench.finished[1].error or "") < 1_100


async def from_the_loop(bench: Bench, *effects: CallHook) -> int:
    """Call as the driver does, from a callback of the loop and not from a task; how many had ended then."""
    ended = asyncio.get_running_loop().create_future()

    def now() -> None:
        for effect in effects:
            bench.runner.call(effect)
        ended.set_result(len(bench.finished))

    asyncio.get_running_loop().call_soon(now)
    return await ended


@pytest.mark.asyncio(loop_factories=["asyncio", "uvloop", "debug"])  # a factory of tasks is left to itself
async def test_a_hook_that_waits_for_nothing_has_ended_when_the_call_returns() -> None:
    bench = Bench(Scripted())
    assert await from_the_loop(bench, call(1, Hook.ON_RELEASE), call(2, Hook.ON_RELEASE)) == 2
    assert bench.finished == [HookFinished(1, None), HookFinished(2, None)]
    assert bench.runner.counts.running == 0


async def test_a_hook_is_one_task_in_one_context_from_its_first_line_to_its_last() -> None:
    seen: list[object] = []
    mark: ContextVar[int] = ContextVar("mark")

    class Timed(BrokerHooks):
        async def on_own(self, bundle, generation) -> None:
            task, token = asyncio.current_task(), mark.set(7)
            with pytest.raises(HookReentryError):
                refuse_inside_hook("lookup")
            async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(0.01))
                await asyncio.sleep(0)
            seen.append(asyncio.current_task() is task)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await asyncio.Event().wait()
            mark.reset(token)
            seen.append("end")

    bench = Bench(Timed())
    assert await from_the_loop(bench, call(1, deadline_s=5)) == 0
    assert bench.runner.counts.running == 1
    await bench.until(1)
    assert bench.finished == [HookFinished(1, None)]
    assert seen == [True, "end"]


@pytest.mark.parametrize("late", [False, True])
async def test_what_a_hook_raises_is_told_whether_it_waited_or_not(late: bool) -> None:
    class Broken(BrokerHooks):
        async def on_own(self, bundle, generation) -> None:
            if late:
                await asyncio.sleep(0.005)
            raise OSError("disk full")

    bench = Bench(Broken())
    await from_the_loop(bench, call(4))
    await bench.until(1)
    assert bench.finished == [HookFinished(4, "on_own raised OSError: disk full")]


async def test_a_hook_that_began_at_once_is_cancelled_at_its_deadline_and_the_next_one_runs() -> None:
    ends: list[str] = []

    class Hanging(BrokerHooks):
        async def on_own(self, bundle, generation) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ends.append("own")

        async def on_release(self, bundle, generation, destination) -> None:
            ends.append("release")

    bench = Bench(Hanging())
    await from_the_loop(bench, call(1, deadline_s=0.05), call(2, Hook.ON_RELEASE, deadline_s=5))
    await bench.until(2)
    assert "did not return within 0.05 s" in str(bench.finished[0].error)
    assert bench.finished[1] == HookFinished(2, None)
    assert sorted(ends) == ["own", "release"]


async def test_a_hook_whose_task_is_cancelled_before_it_ever_ran_is_closed() -> None:
    ends: list[str] = []

    class Waiting(BrokerHooks):
        async def on_own(self, bundle, generation) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ends.append("own")

    bench = Bench(Waiting())
    asyncio.get_running_loop().call_soon(bench.runner.call, call(1, deadline_s=5))
    asyncio.get_running_loop().call_soon(
        lambda: [task.cancel() for task in asyncio.all_tasks() if task.get_name().startswith("statechannel on_own")]
    )
    await bench.until(1)
    assert bench.finished == [HookFinished(1, "on_own was cancelled")]
    assert ends == ["own"]


async def test_on_moved_is_told_the_urls_and_nobody_waits_for_it() -> None:
    results: list[tuple] = []

    class Moved(BrokerHooks):
        async def on_moved(self, bundle, owner, urls) -> None:
            results.append((owner, dict(urls)))

    bench = Bench(Moved())
    bench.runner.call(CallHook(0, Hook.ON_MOVED, "a/b/0x00000000_0xffffffff", 3, "b2", 1.0))
    await asyncio.sleep(0.01)
    assert results == [("b2", {"pulsar": "pulsar://b2"})]
    assert bench.finished == []


async def test_guard_refuses_the_hook_itself_and_lets_its_tasks_through() -> None:
    errors: list[Exception] = []
    passed = asyncio.Event()

    async def later() -> None:
        refuse_inside_hook("lookup")
        passed.set()

    class Calling(BrokerHooks):
        async def on_own(self, bundle, generation) -> None:
            try:
                refuse_inside_hook("lookup")
            except HookReentryError as error:
                errors.append(error)
            self.task = asyncio.create_task(later())

    bench = Bench(Calling())
    bench.runner.call(call(1))
    await bench.until(1)
    await asyncio.wait_for(passed.wait(), 5)
    assert len(errors) == 1
    refuse_inside_hook("lookup")  # outside of hooks nothing is refused


async def test_plain_functions_run_in_threads_with_the_same_guard() -> None:
    seen: list[object] = []

    class Plain(BlockingBrokerHooks):
        def on_own(self, bundle, generation) -> None:
            seen.append(threading.current_thread().name)
            with pytest.raises(HookReentryError):
                refuse_inside_hook("lookup")
            time.sleep(0.01)

    hooks = ThreadedHooks(Plain())
    bench = Bench(hooks)
    bench.runner.call(call(1, deadline_s=5))
    bench.runner.call(call(2, Hook.ON_SERVE))  # not overridden: not even a thread
    assert bench.finished == [HookFinished(2, None)]
    await bench.until(2)
    assert bench.finished[1] == HookFinished(1, None)
    assert str(seen[0]).startswith("statechannel-hook")
    hooks.close()
