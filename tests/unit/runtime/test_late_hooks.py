"""A hook that runs on after its deadline keeps its turn: what follows waits, and `on_release` is really the last."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest

from statechannel.broker import hook_runner
from statechannel.broker.hook_runner import HookRunner
from statechannel.broker.hooks import BlockingBrokerHooks, BrokerHooks, ThreadedHooks
from statechannel.engine.effects import CallHook, Hook
from statechannel.engine.inputs import HookFinished
from tests.support.log_lines import capture_logs
from tests.support.waits import until

BUNDLE = "a/b/0x00000000_0xffffffff"
OTHER = "a/b/0x00000000_0x10000000"


def call(
    hook_id: int,
    hook: Hook,
    generation: int = 5,
    *,
    bundle: str = BUNDLE,
    deadline_s: float = 0.05,
    to: str | None = None,
) -> CallHook:
    return CallHook(hook_id, hook, bundle, generation, to, deadline_s)


_gates: list[asyncio.Event | threading.Event] = []


@pytest.fixture(autouse=True)
async def gates_open_at_the_end() -> AsyncIterator[None]:
    """So that a test that fails leaves no hook behind that nothing can end."""
    yield
    while _gates:
        _gates.pop().set()
    await asyncio.sleep(0)


class Bench:
    def __init__(self, hooks: BrokerHooks) -> None:
        self.finished: list[HookFinished] = []
        self.runner = HookRunner(hooks, feed=self.finished.append, urls_of=lambda _: {}, broker="b1")  # type: ignore[arg-type]

    @property
    def failed(self) -> list[int]:
        return [finished.hook_id for finished in self.finished if finished.error is not None]


class Slow(BlockingBrokerHooks):
    """Its `on_own` returns when the test lets it."""

    def __init__(self) -> None:
        self.log: list[tuple[str, int]] = []
        self.gate = threading.Event()
        _gates.append(self.gate)
        self.raises: Exception | None = None

    def on_own(self, bundle: str, generation: int) -> None:
        self.log.append(("own begins", generation))
        assert self.gate.wait(20)
        self.log.append(("own ends", generation))
        if self.raises is not None:
            raise self.raises

    def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        self.log.append((f"release to {destination}", generation))


class Stubborn(BrokerHooks):
    """The same as a coroutine that swallows its cancellation."""

    def __init__(self) -> None:
        self.log: list[tuple[str, int]] = []
        self.gate = asyncio.Event()
        _gates.append(self.gate)

    async def on_own(self, bundle: str, generation: int) -> None:
        self.log.append(("own begins", generation))
        while not self.gate.is_set():
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                continue
        self.log.append(("own ends", generation))

    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        self.log.append((f"release to {destination}", generation))


def benches(in_threads: type[Any], in_the_loop: type[Any]) -> list[Callable[[], tuple[Bench, Any]]]:
    def threaded() -> tuple[Bench, Any]:
        hooks = in_threads()
        return Bench(ThreadedHooks(hooks, threads=4)), hooks

    def coroutines() -> tuple[Bench, Any]:
        hooks = in_the_loop()
        return Bench(hooks), hooks

    return [threaded, coroutines]


@pytest.mark.parametrize("make", benches(Slow, Stubborn), ids=["threads", "coroutines"])
async def test_release_comes_after_the_late_own_although_both_have_failed_in_time(make) -> None:
    bench, hooks = make()
    bench.runner.call(call(1, Hook.ON_OWN))
    await until(lambda: bench.failed == [1])  # the engine hears of it at the deadline
    assert (bench.runner.counts.late, bench.runner.counts.running) == (1, 1)
    bench.runner.call(call(2, Hook.ON_RELEASE))
    await until(lambda: bench.failed == [1, 2])
    assert hooks.log == [("own begins", 5)]
    assert bench.runner.counts.owed == 1
    hooks.gate.set()
    await until(lambda: bench.runner.counts.running == 0)
    assert hooks.log == [("own begins", 5), ("own ends", 5), ("release to None", 5)]
    assert bench.runner.counts.owed == 0
    assert len(bench.finished) == 2  # a late end is not told again


@pytest.mark.parametrize("make", benches(Slow, Stubborn), ids=["threads", "coroutines"])
async def test_release_that_is_in_time_ends_well_behind_the_late_own(make) -> None:
    bench, hooks = make()
    bench.runner.call(call(1, Hook.ON_OWN))
    await until(lambda: bench.failed == [1])
    bench.runner.call(call(2, Hook.ON_RELEASE, deadline_s=20, to="b2"))
    hooks.gate.set()
    await until(lambda: len(bench.finished) == 2)
    assert bench.finished[1] == HookFinished(2, None)
    assert hooks.log == [("own begins", 5), ("own ends", 5), ("release to b2", 5)]


async def test_own_that_waited_too_long_is_never_called_and_one_release_stands_for_all() -> None:
    hooks = Slow()
    bench = Bench(ThreadedHooks(hooks, threads=4))
    bench.runner.call(call(1, Hook.ON_OWN, 5))
    await until(lambda: bench.failed == [1])
    last = 1
    for generation in (8, 11, 14):  # assigned here again and again, while the first never returns
        bench.runner.call(call(last + 1, Hook.ON_RELEASE, generation - 3))
        bench.runner.call(call(last + 2, Hook.ON_OWN, generation))
        await until(lambda end=last + 2: bench.failed == list(range(1, end + 1)))  # type: ignore[misc]
        last += 2
    bench.runner.call(call(last + 1, Hook.ON_RELEASE, 14, deadline_s=20))
    assert len(bench.runner._lanes[BUNDLE].waiting) == 1
    hooks.gate.set()
    await until(lambda: bench.runner.counts.running == 0)
    assert hooks.log == [("own begins", 5), ("own ends", 5), ("release to None", 5)]
    assert bench.finished[-1] == HookFinished(last + 1, None)


async def test_hooks_of_other_bundles_do_not_wait_for_a_late_one() -> None:
    hooks = Slow()
    bench = Bench(ThreadedHooks(hooks, threads=4))
    bench.runner.call(call(1, Hook.ON_OWN))
    await until(lambda: bench.failed == [1])
    bench.runner.call(call(2, Hook.ON_RELEASE, bundle=OTHER, deadline_s=20))
    await until(lambda: len(bench.finished) == 2)
    assert bench.finished[1] == HookFinished(2, None)
    hooks.gate.set()
    await until(lambda: bench.runner.counts.late == 0)


async def test_what_a_late_thread_raises_is_no_second_end_and_lets_the_next_begin() -> None:
    hooks = Slow()
    hooks.raises = OSError("disk full")
    bench = Bench(ThreadedHooks(hooks, threads=4))
    bench.runner.call(call(1, Hook.ON_OWN))
    await until(lambda: bench.failed == [1])
    bench.runner.call(call(2, Hook.ON_RELEASE, deadline_s=20))
    hooks.gate.set()
    await until(lambda: len(bench.finished) == 2)
    assert bench.failed == [1]
    assert hooks.log[-1] == ("release to None", 5)


async def test_with_all_threads_kept_the_pool_is_seen_as_exhausted_and_a_release_is_called_once_one_is_free() -> None:
    hooks = Slow()
    bench = Bench(ThreadedHooks(hooks, threads=1))
    bench.runner.call(call(1, Hook.ON_OWN))
    await until(lambda: bench.failed == [1])
    assert bench.runner.counts.threads == bench.runner.counts.late == 1
    bench.runner.call(call(2, Hook.ON_RELEASE, bundle=OTHER))
    bench.runner.call(call(3, Hook.ON_OWN, bundle="a/b/0x10000000_0xffffffff"))
    await until(lambda: sorted(bench.failed) == [1, 2, 3])
    hooks.gate.set()
    await until(lambda: bench.runner.counts.running == 0)
    assert hooks.log == [("own begins", 5), ("own ends", 5), ("release to None", 5)]  # the third was never called


# --- a class without on_own ------------------------------------------------------------------------------------------


class ServesOnly(BlockingBrokerHooks):
    """Has no `on_own`; its `on_release` returns when the test lets it."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str, int]] = []
        self.gate = threading.Event()
        _gates.append(self.gate)

    def on_serve(self, bundle: str, generation: int) -> None:
        self.log.append(("serve", bundle, generation))

    def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        assert self.gate.wait(20)
        self.log.append(("release", bundle, generation))


class ServesOnlyInTheLoop(BrokerHooks):
    """The same as coroutines, which swallow their cancellation."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str, int]] = []
        self.gate = asyncio.Event()
        _gates.append(self.gate)

    async def on_serve(self, bundle: str, generation: int) -> None:
        self.log.append(("serve", bundle, generation))

    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        while not self.gate.is_set():
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                continue
        self.log.append(("release", bundle, generation))


@pytest.mark.parametrize("make", benches(ServesOnly, ServesOnlyInTheLoop), ids=["threads", "coroutines"])
async def test_a_bundle_that_comes_back_behind_a_late_release_is_declined_without_an_on_own_too(make) -> None:
    bench, hooks = make()
    bench.runner.call(call(1, Hook.ON_RELEASE, 5))
    await until(lambda: bench.failed == [1])
    bench.runner.call(call(2, Hook.ON_OWN, 8))
    assert len(bench.finished) == 1, (
        "it waits for its turn, or the bundle would be assigned to a broker that cannot serve it"
    )
    await until(lambda: bench.failed == [1, 2])
    bench.runner.call(call(0, Hook.ON_RELEASE, 8))  # of what was prepared
    hooks.gate.set()
    await until(lambda: bench.runner.counts.running == 0)
    bench.runner.call(call(3, Hook.ON_OWN, 11))
    await until(lambda: len(bench.finished) == 3)
    assert bench.finished[-1] == HookFinished(3, None)
    bench.runner.call(call(0, Hook.ON_SERVE, 11))
    await until(lambda: bench.runner.counts.running == 0)
    assert hooks.log[0] == ("release", BUNDLE, 5)
    assert hooks.log[-1] == ("serve", BUNDLE, 11)


@pytest.mark.parametrize("make", benches(ServesOnly, ServesOnlyInTheLoop), ids=["threads", "coroutines"])
async def test_its_turn_may_come_in_time(make) -> None:
    bench, hooks = make()
    bench.runner.call(call(1, Hook.ON_RELEASE, 5, deadline_s=20))
    bench.runner.call(call(2, Hook.ON_OWN, 8, deadline_s=20))
    assert bench.finished == []
    hooks.gate.set()
    await until(lambda: len(bench.finished) == 2)
    assert bench.finished == [HookFinished(1, None), HookFinished(2, None)]


async def test_with_all_threads_kept_no_bundle_is_taken_that_no_thread_could_serve() -> None:
    hooks = ServesOnly()
    bench = Bench(ThreadedHooks(hooks, threads=1))
    bench.runner.call(call(1, Hook.ON_RELEASE, bundle=OTHER))
    await until(lambda: bench.failed == [1])
    bench.runner.call(call(2, Hook.ON_OWN))
    await until(lambda: bench.failed == [1, 2])


async def test_a_notification_to_serve_that_waits_for_a_thread_waits_on() -> None:
    hooks = ServesOnly()
    bench = Bench(ThreadedHooks(hooks, threads=1))
    bench.runner.call(call(1, Hook.ON_OWN, 5))
    bench.runner.call(call(2, Hook.ON_RELEASE, bundle=OTHER))
    bench.runner.call(call(0, Hook.ON_SERVE, 5))
    await until(lambda: bench.failed == [2] and bench.runner.counts.late == 2)
    hooks.gate.set()
    await until(lambda: bench.runner.counts.running == 0)
    assert hooks.log == [("release", OTHER, 5), ("serve", BUNDLE, 5)]


# --- the end of a member --------------------------------------------------------------------------------------------


class Long(BrokerHooks):
    def __init__(self) -> None:
        self.log: list[str] = []
        self.gate = asyncio.Event()
        _gates.append(self.gate)

    async def on_own(self, bundle: str, generation: int) -> None:
        self.log.append("own begins")
        await self.gate.wait()
        self.log.append("own ends")

    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        self.log.append("release begins")
        await asyncio.sleep(0.02)
        self.log.append("release ends")


async def test_closing_starts_and_awaits_what_waits_behind_a_running_hook() -> None:
    hooks = Long()
    bench = Bench(hooks)
    bench.runner.call(call(1, Hook.ON_OWN, deadline_s=20))
    bench.runner.call(call(0, Hook.ON_RELEASE, deadline_s=20))
    closing = asyncio.create_task(bench.runner.close(20.0))
    await asyncio.sleep(0)
    hooks.gate.set()
    await closing
    assert hooks.log == ["own begins", "own ends", "release begins", "release ends"]


async def test_closing_waits_for_a_release_behind_a_late_hook_and_not_for_the_late_hook_alone() -> None:
    hooks = Slow()
    bench = Bench(ThreadedHooks(hooks, threads=4))
    bench.runner.call(call(1, Hook.ON_OWN))
    bench.runner.call(call(2, Hook.ON_OWN, bundle=OTHER))
    await until(lambda: sorted(bench.failed) == [1, 2])
    async with asyncio.timeout(20):
        await bench.runner.close(1000.0)  # both had their deadlines; nothing else is to be called
    assert hooks.log == [("own begins", 5), ("own begins", 5)]
    hooks.gate.set()


async def test_a_release_that_is_owed_counts_until_it_is_called_although_newer_ones_come() -> None:
    hooks = Slow()
    bench = Bench(ThreadedHooks(hooks, threads=4))
    bench.runner.call(call(1, Hook.ON_OWN))
    await until(lambda: bench.failed == [1])
    bench.runner.call(call(2, Hook.ON_RELEASE))
    await until(lambda: bench.failed == [1, 2])
    counts = [bench.runner.counts.owed]
    for hook_id in (3, 4):
        bench.runner.call(call(hook_id, Hook.ON_RELEASE, generation=6))
        counts.append(bench.runner.counts.owed)
        await until(partial(lambda count: len(bench.failed) == count, hook_id))
        counts.append(bench.runner.counts.owed)
    assert counts == [1] * 5
    hooks.gate.set()
    await until(lambda: bench.runner.counts.running == 0)
    assert bench.runner.counts.owed == 0
    assert hooks.log == [("own begins", 5), ("own ends", 5), ("release to None", 5)]


async def test_what_is_left_at_the_end_is_named() -> None:
    bench = Bench(Long())
    with capture_logs() as lines:
        bench.runner.call(call(1, Hook.ON_OWN, deadline_s=1000))
        bench.runner.call(call(0, Hook.ON_RELEASE, deadline_s=1000))
        await bench.runner.close(0.05)
    (line,) = [line for line in lines if line["event"] == "hooks-left"]
    assert (line["broker"], line["running"], line["not_called"]) == ("b1", 1, 1)
    assert line["not_returned"] == [f"on_own of {BUNDLE}"]
    assert line["bundles"] == [BUNDLE]


async def test_a_release_that_is_owed_is_called_while_the_member_closes() -> None:
    hooks = Slow()
    bench = Bench(ThreadedHooks(hooks, threads=4))
    bench.runner.call(call(1, Hook.ON_OWN))
    await until(lambda: bench.failed == [1])
    bench.runner.call(call(2, Hook.ON_RELEASE))
    await until(lambda: bench.failed == [1, 2])
    closing = asyncio.create_task(bench.runner.close(20.0))
    await asyncio.sleep(0)
    hooks.gate.set()
    await closing
    await until(lambda: bench.runner.counts.running == 0)
    assert hooks.log == [("own begins", 5), ("own ends", 5), ("release to None", 5)]


async def test_closing_has_a_bound() -> None:
    hooks = Long()
    bench = Bench(hooks)
    bench.runner.call(call(1, Hook.ON_OWN, deadline_s=1000))
    bench.runner.call(call(0, Hook.ON_RELEASE, deadline_s=1000))
    async with asyncio.timeout(20):
        await bench.runner.close(0.05)
    assert hooks.log == ["own begins"]


class Sleeper(BrokerHooks):
    """Ends at its cancellation, unless it swallows it."""

    def __init__(self, gate: asyncio.Event | None = None) -> None:
        self.gate = gate

    async def on_own(self, bundle: str, generation: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            if self.gate is not None:
                await self.gate.wait()


async def test_a_hook_that_ends_at_its_cancellation_is_not_reported_as_late_once_more() -> None:
    with capture_logs() as lines:
        bench = Bench(Sleeper())
        bench.runner.call(call(1, Hook.ON_OWN))
        await until(lambda: bench.runner.counts.running == 0)
        assert bench.failed == [1]
        assert lines == []


async def test_a_hook_that_runs_on_after_its_cancellation_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_runner, "OBEYED_S", 0.01)
    gate = asyncio.Event()
    _gates.append(gate)
    with capture_logs() as lines:
        bench = Bench(Sleeper(gate))
        bench.runner.call(call(1, Hook.ON_OWN))
        await until(lambda: bench.failed == [1])
        await asyncio.sleep(0.05)  # turns of the loop
        assert bench.runner.counts.late == 1
        gate.set()
        await until(lambda: bench.runner.counts.running == 0)
        assert [line["event"] for line in lines] == ["late-hook-returned"]
