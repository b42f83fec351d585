"""Stories with faults: brokers of a kit with the hooks of an embedder, in what happens to a cluster."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from statechannel.api import BlockingBrokerHooks, BrokerHooks, StateChannel
from statechannel.engine.effects import Hook
from statechannel.testing.kit import ChannelKit, OutcomeError
from statechannel.testing.kit_broker import KitBroker
from statechannel.testing.monitor import GRACE_S, FindingList, Monitor, Serves
from statechannel.testing.promises import HookPromise

H = TypeVar("H", bound=BrokerHooks | BlockingBrokerHooks)

DEADLINE_S = 5.0
TOPICS = 24
_LOST_S = 12.0
_POLL_S = 0.05
STORY_SETTINGS: dict[str, dict[str, Any]] = {
    "hooks": {"deadline_s": DEADLINE_S, "shutdown_budget_s": 20.0},
    "repair": {"decline_memory_s": 6.0, "mass_loss_pause_s": 1.0},
}


@dataclass(frozen=True, slots=True)
class HookProbes(Generic[H]):
    """How a check asks a broker what it does.

    Attributes:
        make: Makes the hooks of one broker process.
        serves, accepts_writes: Generation by which these hooks would serve a read, or take a write, now.
        write: Writes as a client of this broker does; raises if it is refused.
        read: Reads as a client of this broker does; None where there is nothing.
        attach: Gives the hooks the channel that they were opened with.
    """

    make: Callable[[], H]
    serves: Serves[H] | None
    accepts_writes: Serves[H] | None
    write: Callable[[H, str, str, str], Awaitable[None] | None] | None
    read: Callable[[H, str, str], Awaitable[str | None] | str | None] | None
    attach: Callable[[H, StateChannel], None] | None


class StoryStage(Generic[H]):
    def __init__(self, kit: ChannelKit, probes: HookProbes[H], findings: FindingList, namespace: str) -> None:
        self.kit = kit
        self._namespace = namespace
        self.bundles: list[str] = []
        self._probes = probes
        self._findings = findings
        self._monitors: dict[KitBroker, Monitor[H]] = {}
        self._all: list[Monitor[H]] = []
        self._written: dict[str, str] = {}

    async def open(self, name: str, **groups: dict[str, Any]) -> KitBroker:
        probes = self._probes
        hooks = probes.make()
        monitor: Monitor[H] = Monitor(
            hooks, self._findings, probes.serves, probes.accepts_writes, lambda: self.kit.now_s, DEADLINE_S
        )
        monitor.expect(*self.bundles)
        self._all.append(monitor)
        broker = await self.kit.broker(name, hooks, watcher=monitor, **groups)  # type: ignore[arg-type]
        self._monitors[broker] = monitor
        if probes.attach is not None:
            probes.attach(hooks, broker.channel)
        return broker

    async def begin(self, *names: str, bundles: int = 4, **groups: dict[str, Any]) -> list[KitBroker]:
        brokers = [await self.open(name, **groups) for name in names]
        self.bundles = await self.kit.namespace(self._namespace, bundles)
        for monitor in self._all:
            monitor.expect(*self.bundles)
        return brokers

    def monitor(self, broker: KitBroker) -> Monitor[H]:
        return self._monitors[broker]

    def kill(self, broker: KitBroker) -> None:
        self._monitors[broker].active = False
        broker.kill()

    def pause(self, broker: KitBroker) -> None:
        """As SIGSTOP: nothing is expected of it meanwhile."""
        self._monitors[broker].active = False
        broker.pause()

    async def resume(self, broker: KitBroker) -> None:
        """As SIGCONT; what it has to stop it learns at once."""
        broker.resume()
        await self.kit.settle()
        self._monitors[broker].active = True

    async def advance(self, seconds: float = 1.5) -> None:
        """Let time pass, and probe the bundles of all brokers."""
        await self.kit.advance(seconds)
        for monitor in self._all:
            monitor.probe_all()

    async def check(self) -> None:
        """Let time pass, probe the bundles, and read each topic."""
        await self.advance()
        await self.read_all()

    async def own_all(self, name: str, most: int | None = None) -> None:
        """Hand all bundles, or the first ones, over to a broker."""
        for bundle in self.bundles[:most]:
            await self.kit.own(bundle, name)

    async def watch(self) -> None:
        """Probe the bundles of all brokers, again and again, until it is cancelled."""
        while True:
            await asyncio.sleep(_POLL_S)
            for monitor in self._all:
                monitor.probe_all()

    def finish(self) -> None:
        """End all monitors, and check the calls that are still open."""
        for monitor in self._all:
            monitor.finish()

    # --- clients ----------------------------------------------------------------------------------------------------

    async def write_all(self, value: str) -> None:
        """Write each topic at its owner; what is acknowledged has to be found from then on."""
        for number in range(TOPICS):
            topic = f"{self._namespace}/topic-{number}"
            holder = self._holder(topic)
            if self._probes.write is None or holder is None:
                continue
            broker, bundle = holder
            error = await self._refusal(broker, bundle, topic, value)
            if error is not None:
                await asyncio.sleep(GRACE_S)  # it may begin to serve a moment after `on_serve`
                error = await self._refusal(broker, bundle, topic, value)
            if error is None:
                self._written[topic] = value
            else:
                self._add(
                    HookPromise.TAKES_WRITES,
                    bundle,
                    f"a write by the owner was refused: {type(error).__name__}: {error}",
                )

    async def _refusal(self, broker: KitBroker, bundle: str, topic: str, value: str) -> Exception | None:
        try:
            await self.write(broker, bundle, topic, value)
        except Exception as error:
            return error
        return None

    async def read_all(self) -> None:
        """Read each topic at its owner."""
        for topic, value in self._written.items():
            holder = self._holder(topic)
            if self._probes.read is None or holder is None:
                continue
            broker, bundle = holder
            try:
                seen = self._probes.read(self._monitors[broker].hooks, bundle, topic)
                seen = await seen if inspect.isawaitable(seen) else seen
            except Exception as error:
                self._add(HookPromise.KEEPS_WRITES, bundle, f"{topic} cannot be read: {type(error).__name__}: {error}")
                continue
            if seen != value:
                self._add(
                    HookPromise.KEEPS_WRITES, bundle, f"{topic} was written with {value!r}, and is read as {seen!r}"
                )

    async def write(self, broker: KitBroker, bundle: str, topic: str, value: str) -> None:
        """One write through the code of one process, which may be paused: such a write comes late."""
        write = self._probes.write
        done = None if write is None else write(self._monitors[broker].hooks, bundle, topic, value)
        if inspect.isawaitable(done):
            await done

    async def write_late(self, broker: KitBroker, bundle: str) -> None:
        """A write that a process began while it owned the bundle reaches storage after another one has taken over."""
        topic = next((topic for topic in self._written if self._holder(topic, bundle) is not None), None)
        if self._probes.write is None or topic is None:
            return
        try:
            await self.write(broker, bundle, topic, "late")
        except Exception:
            return
        self._add(
            HookPromise.FENCES,
            bundle,
            "a paused process wrote after another one served the bundle, and storage took it",
        )

    def _holder(self, topic: str, bundle: str | None = None) -> tuple[KitBroker, str] | None:
        running = [broker for broker in self.kit.brokers.values() if broker.running]
        located = running[0].channel.locate(topic) if running else None
        if not isinstance(located, str) or bundle not in (None, located):
            return None
        return next(((b, located) for b in running if b.serves(located) is not None), None)

    def _add(self, code: HookPromise, bundle: str, message: str) -> None:
        self._findings.add(code, f"{bundle}: {message}", hook=None, bundle=bundle)


Story = Callable[[StoryStage[Any]], Awaitable[None]]


async def _handed_over(stage: StoryStage[Any]) -> None:
    kit = stage.kit
    await stage.begin("a", "b")
    await stage.own_all("a")
    await stage.write_all("first")
    for owner in ("b", "a", "b"):
        await kit.own(stage.bundles[0], owner)
        await kit.own(stage.bundles[1], owner)
        await stage.check()
        await stage.write_all(f"by {owner}")
    await kit.unload(stage.bundles[2])
    await stage.advance()
    await kit.own(stage.bundles[2], "a")
    await stage.check()


async def _killed(stage: StoryStage[Any]) -> None:
    kit = stage.kit
    a, _ = await stage.begin("a", "b")
    await stage.own_all("a", most=2)
    await stage.write_all("first")
    stage.kill(a)
    a = await stage.open("a", membership={"take_over": True})
    await kit.settle()
    await stage.check()
    await stage.write_all("second")
    stage.kill(a)
    await kit.advance(_LOST_S)
    await kit.settle()
    await stage.own_all("b", most=2)
    await stage.check()


async def _paused(stage: StoryStage[Any]) -> None:
    kit = stage.kit
    a, _ = await stage.begin("a", "b")
    await stage.own_all("a", most=2)
    await stage.write_all("first")
    stage.pause(a)
    await kit.advance(_LOST_S)
    await stage.own_all("b", most=2)
    await stage.write_all("second")
    await stage.write_late(a, stage.bundles[0])
    await stage.resume(a)
    await stage.check()
    await kit.own(stage.bundles[0], "a")
    await stage.check()


async def _log_away(stage: StoryStage[Any]) -> None:
    kit = stage.kit
    await stage.begin("a", "b")
    await stage.own_all("a")
    await stage.write_all("first")
    kit.log.lose()
    await stage.advance(30)
    kit.log.restore()
    await kit.settle()
    await stage.check()
    kit.log.slow(0.3)
    await kit.own(stage.bundles[0], "b")
    kit.log.restore()
    await stage.check()


async def _lease_expired(stage: StoryStage[Any]) -> None:
    kit = stage.kit
    await stage.begin("a", safe_mode={"lease_s": 4.0})
    await stage.own_all("a")
    await stage.write_all("first")
    kit.log.lose()
    await stage.advance(15)
    kit.log.restore()
    await kit.settle()
    await stage.check()


async def _split(stage: StoryStage[Any]) -> None:
    kit = stage.kit
    await stage.begin("a", "b", bundles=2)
    await stage.own_all("a")
    await stage.write_all("first")
    children = await kit.split(stage.bundles[0], parts=3)
    await stage.check()
    await stage.write_all("second")
    await kit.own(children[1], "b")
    await kit.split(children[1])
    await stage.check()


async def _split_given_up(stage: StoryStage[Any]) -> None:
    kit = stage.kit
    a, _ = await stage.begin("a", "b", bundles=2)
    await stage.own_all("a")
    await stage.write_all("first")
    plan = stage.monitor(a).plan
    for hook in (Hook.ON_OWN, Hook.ON_SPLIT):
        plan.fail, plan.fails = (hook, None), 1
        with suppress(OutcomeError):
            await kit.split(stage.bundles[0], parts=2)
        plan.fails = 0
        await kit.settle()
        await stage.check()
        await stage.write_all(f"after a failing {hook}")
    await kit.split(stage.bundles[0], parts=3)
    await stage.check()


async def _declined(stage: StoryStage[Any]) -> None:
    kit = stage.kit
    _, b = await stage.begin("a", "b")
    await kit.own(stage.bundles[0], "a")
    await stage.write_all("first")
    plan = stage.monitor(b).plan
    plan.fail, plan.fails = (Hook.ON_OWN, stage.bundles[0]), 1
    with suppress(OutcomeError):
        await kit.own(stage.bundles[0], "b")
    await kit.advance(10)
    plan.hold, plan.holds, plan.hold_s = (Hook.ON_OWN, stage.bundles[0]), 1, 3 * DEADLINE_S
    with suppress(OutcomeError):
        await kit.own(stage.bundles[0], "b")
    plan.holds = 0
    await kit.advance(10)
    await kit.own(stage.bundles[0], "a")
    await kit.own(stage.bundles[0], "b")
    await stage.check()


async def _stopped(stage: StoryStage[Any]) -> None:
    kit = stage.kit
    a, _ = await stage.begin("a", "b")
    await stage.own_all("a")
    await stage.write_all("first")
    await a.stop()
    await stage.check()
    await stage.open("a")
    await kit.own(stage.bundles[0], "a")
    await stage.check()


STORIES: dict[str, Story] = {
    "handed-over": _handed_over,
    "killed": _killed,
    "paused": _paused,
    "log-away": _log_away,
    "lease-expired": _lease_expired,
    "declined": _declined,
    "stopped": _stopped,
}
SPLIT_STORIES: dict[str, Story] = {"split-by-channel": _split, "split-given-up-by-channel": _split_given_up}
