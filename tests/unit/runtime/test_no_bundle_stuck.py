"""Conformance: no bundle is ever stuck because of a hook. The engine and the runner of hooks together, whatever hook is late."""

import asyncio
from collections.abc import Callable

import pytest

from statechannel.broker.hook_runner import HookRunner
from statechannel.broker.hooks import BrokerHooks
from statechannel.engine.commands import Lookup, Outcome, Unload
from statechannel.engine.effects import CallHook, Hook
from statechannel.engine.inputs import HookFinished
from tests.support.lone_engine import LoneEngine
from tests.support.waits import until
from tests.unit.core.test_floods import leader, ring

DEADLINE_S = 0.05


class Recording(BrokerHooks):
    """Knows what it serves. One hook swallows its cancellation until the gate opens."""

    def __init__(self, late: Hook) -> None:
        self.late = late
        self.gate = asyncio.Event()
        self.serving: dict[str, int] = {}

    async def _pass(self, hook: Hook) -> None:
        while hook is self.late and not self.gate.is_set():
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                continue

    async def on_serve(self, bundle: str, generation: int) -> None:
        await self._pass(Hook.ON_SERVE)
        self.serving[bundle] = generation

    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        await self._pass(Hook.ON_RELEASE)
        if self.serving.get(bundle, generation) <= generation:
            self.serving.pop(bundle, None)


class Preparing(Recording):
    async def on_own(self, bundle: str, generation: int) -> None:
        await self._pass(Hook.ON_OWN)


class Bench:
    """The engine of a single broker, whose hooks a real runner calls."""

    def __init__(self, hooks: BrokerHooks) -> None:
        self.alone: LoneEngine = leader(decline_memory_s=6.0, hook_deadline_s=10.0)
        self.alone.hold_hooks = True
        self.ended: list[HookFinished] = []
        self.runner = HookRunner(hooks, feed=self._feed, urls_of=lambda _: {}, broker="a")
        self.failures = 0

    def _feed(self, event: object) -> None:
        assert isinstance(event, HookFinished)
        self.ended.append(event)

    async def settle(self) -> None:
        """Until no hook waits for anything but a late one."""
        alone = self.alone
        while alone.held_hooks or self.ended:
            calls, alone.held_hooks[:] = list(alone.held_hooks), []
            for call in calls:
                self.runner.call(CallHook(call.hook_id, call.hook, call.bundle, call.generation, call.peer, DEADLINE_S))
            await until(lambda: self.runner.counts.running == self.runner.counts.late)
            ended, self.ended = self.ended, []
            for event in ended:
                self.failures += event.error is not None
                alone.report(event)

    async def ask(self, command: Lookup | Unload) -> list[Outcome]:
        outcomes: list[Outcome] = []
        self.alone.ask(command, outcomes.append)
        await self.settle()
        return outcomes

    async def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            self.alone.run(1.0)
            await self.settle()


@pytest.mark.parametrize("late", [Hook.ON_RELEASE, Hook.ON_SERVE, Hook.ON_OWN])
@pytest.mark.parametrize("make", [Recording, Preparing])
async def test_whichever_hook_is_late_the_bundle_is_served_in_the_end(make: Callable[[Hook], Recording], late: Hook):
    hooks = make(late)
    bench = Bench(hooks)
    (bundle,) = ring(bench.alone, 1)
    try:
        await bench.ask(Lookup(bundle, 60.0))
        await bench.ask(Unload(bundle, "op-1", 60.0))
        await bench.ask(Lookup(bundle, 60.0))
        await bench.pass_time(3)
        if late is not Hook.ON_OWN or make is Preparing:
            assert bench.failures, "the late hook kept the bundle from coming back"
            assert bench.alone.engine.serving() == {}
    finally:
        hooks.gate.set()
    await until(lambda: bench.runner.counts.running == 0)
    await bench.settle()
    await bench.ask(Lookup(bundle, 60.0))
    await bench.pass_time(8)  # it is asked again
    (answer,) = await bench.ask(Lookup(bundle, 60.0))
    assert hooks.serving == bench.alone.engine.serving() == {bundle: answer.generation}
