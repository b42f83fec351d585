"""A channel in the test's own process: real members on the simulator's log, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from statechannel.api import Done, Outcome, Owned, StateChannel
from statechannel.api.extensions import checks_of, placement_of
from statechannel.broker import arguments
from statechannel.broker.assembly import Opened, make_host, make_observer
from statechannel.broker.hooks import BlockingBrokerHooks, BrokerHooks
from statechannel.broker.host_platform import HostClocks, HostPlatform
from statechannel.operations import checks
from statechannel.router import Router
from statechannel.settings import Settings, to_identity
from statechannel.settings.relations import require_relations
from statechannel.testing.kit_broker import KitBroker, KitLog
from statechannel.testing.kit_parts import (
    HookEvents,
    KitEvent,
    KitMemberLog,
    KitMetrics,
    KitNotes,
    KitPlacement,
    NoWatch,
    call_at_once,
)
from statechannel.testing.loop import THREAD_PATIENCE_S, TIME_LIMIT_S, KitError, ProcessLife, RealTimeLoop, VirtualLoop
from statechannel.testing.network import KitProcess, KitStage
from statechannel.testing.watched_hooks import HookWatcher, watched

if TYPE_CHECKING:
    from statechannel.api.extensions import Extension
    from statechannel.engine.placement import Placement

WAIT_S = 60.0
_TICK_S = 0.5
"""Between two looks of an engine at its deadlines: they are as exact as that."""
_LOOK_S = 0.05
_CLOSE_S = 5.0
_CLOSING_LIMIT_S = float("inf")

T = TypeVar("T")


class OutcomeError(KitError):
    """An operation of the kit did not end as asked."""

    def __init__(self, what: str, outcome: Outcome) -> None:
        super().__init__(f"{what} ended as {outcome!r}.", hint=getattr(outcome, "hint", ""))
        self.outcome = outcome


class NotSettledError(KitError):
    """The channel is still busy."""

    def __init__(self, waited_s: float, why: str) -> None:
        super().__init__(
            f"After {waited_s:g} s the channel is not at rest: {why}.",
            hint="Resume paused brokers and restore the log first; a hook that hangs ends at its deadline (hooks.deadline_s).",
        )


class WrongTestLoopError(KitError):
    """A kit was used in another event loop than its own."""

    def __init__(self) -> None:
        super().__init__(
            "The kit was used outside its event loop: its virtual time passes only there.",
            hint="With pytest ask for the fixture `channel_kit` in an `async def` test, without another event loop around it; "
            "elsewhere `with ChannelKit() as kit: kit.run(...)`.",
        )


class ChannelKit:
    """A channel in the test's own process, with brokers that are real members: engine, hooks, requests, API.

    There is no Kafka, no Java, and no thread but those of hooks that are plain functions. Time is virtual: `await
    asyncio.sleep(600)` in a hook takes no time at all, and nothing but waiting makes time pass.

    Example:
        ```
        def test_hand_over() -> None:
            with ChannelKit() as kit:
                kit.run(hand_over(kit))

        async def hand_over(kit: ChannelKit) -> None:
            a, b = await kit.broker("a", MyHooks()), await kit.broker("b", MyHooks())
            bundle, *_ = await kit.namespace("example/orders")
            await kit.own(bundle, "a")
            await kit.own(bundle, "b")
        ```

    Args:
        settings: Settings of all brokers, by group (settings.md): `{"hooks": {"deadline_s": 2}}`.
        seed: Of what is random; equal seeds give equal orders.
        real_time: Time passes as it does, and sockets work; for hooks with a real store.
        time_limit_s: Virtual time after which a test fails that does not end.
        thread_patience_s: Real time for which virtual time waits for a hook in a thread.

    Attributes:
        brokers: The newest process of each broker, by id.
    """

    def __init__(
        self,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        partitions: int = 1,
        seed: int = 0,
        real_time: bool = False,
        time_limit_s: float = TIME_LIMIT_S,
        thread_patience_s: float = THREAD_PATIENCE_S,
    ) -> None:
        checks.whole("partitions", partitions, 1)
        self._groups = {name: dict(values) for name, values in (settings or {}).items()}
        self._settings = _settings(self._groups)
        self.loop: RealTimeLoop | VirtualLoop
        if real_time:
            self.loop = RealTimeLoop()
        else:
            self.loop = VirtualLoop(time_limit_s=time_limit_s, thread_patience_s=thread_patience_s)
        lag_ms = self._settings.channel.min_compaction_lag_ms
        self._stage = KitStage(self.loop, seed, partitions=partitions, lag_ms=lag_ms)
        self.log = KitLog(self._stage)
        self.brokers: dict[str, KitBroker] = {}
        self.notes = KitNotes(lambda: self.now_s)
        self._routers: list[Router] = []
        self._lives: list[ProcessLife] = []
        self._begun: list[KitBroker] = []
        self._wanted: dict[str, str] = {}

    # --- life -------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, scenario: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the kit's event loop to its end; time goes on where the last one left it."""
        return self.loop.run_until_complete(scenario)

    def close(self) -> None:
        if self.loop.is_closed():
            return
        for broker in self._begun:
            broker.kill()
        if isinstance(self.loop, VirtualLoop):
            self.loop.time_limit_s = _CLOSING_LIMIT_S
        try:
            self.loop.run_until_complete(self._cancel_rest())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()
            for life in self._lives:
                if life.killed:
                    life.close()

    async def _cancel_rest(self) -> None:
        for router in self._routers:
            await router.close()
        killed = {task for life in self._lives if life.killed for task in life.tasks}
        rest = asyncio.all_tasks() - {asyncio.current_task()} - killed
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=_CLOSE_S)

    # --- brokers ----------------------------------------------------------------------------------------------------

    async def broker(
        self,
        name: str,
        hooks: BrokerHooks | BlockingBrokerHooks | None = None,
        *,
        listeners: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        placement: Placement | None = None,
        extensions: Sequence[Extension] = (),
        join_timeout_s: float | None = None,
        hook_settings: Mapping[str, Any] | None = None,
        watcher: HookWatcher | None = None,
        **groups: Mapping[str, Any],
    ) -> KitBroker:
        """Start a broker, and return once it may own bundles.

        The id of a killed broker may be used again: as in reality its next process waits until the former one counts as lost,
        unless `membership={"take_over": True}`.

        Args:
            hooks: For asyncio, or plain functions (these run in threads).
            watcher: Sees the calls of the hooks, instead of `ChannelKit.events`.
            hook_settings, groups: Settings of this broker, over those of the kit; see `StateChannel.open`.

        Raises:
            ArgumentTypeError, ArgumentValueError, SettingsError, ChannelStoppedError, JoinTimeoutError: As `StateChannel.open`.
        """
        self._check_loop()
        blocking = isinstance(hooks, BlockingBrokerHooks)
        arguments.check_opening(
            hooks_class=BlockingBrokerHooks if blocking else BrokerHooks,
            settings=None,
            broker=name,
            hooks=hooks,
            listeners=listeners,
            properties=properties,
            flags={},
            join_timeout_s=join_timeout_s,
            placement=placement,
            extensions=extensions,
            metrics_registry=None,
            on_stuck=None,
        )
        own = arguments.groups_of(groups, hook_settings, self.broker, None)
        merged = {group: {**self._groups.get(group, {}), **own.get(group, {})} for group in {*self._groups, *own}}
        settings = _settings(merged) if own else self._settings
        process = self._process(name)
        member = BrokerHooks()
        if hooks is not None:
            seen_by = HookEvents(self.notes, process) if watcher is None else watcher
            member = watched(hooks, seen_by, self._thread_call, all_hooks=watcher is not None)
        host = make_host(
            settings,
            to_identity(
                name,
                listeners=listeners,
                properties=properties,
                extensions=[e.name for e in extensions],
                checks=checks_of(extensions),
            ),
            member,
            process,
            KitMetrics(self.notes, process),
            partitions=len(self._stage.logs),
            placement=KitPlacement(self._wanted, placement or placement_of(extensions)),
            platform=self._platform(process),
        )
        process.serve(host)
        broker = KitBroker(self.loop, name, process, host)
        self._begun.append(broker)
        context = process.life.context()
        context.run(host.start)
        opened = Opened(host, KitMemberLog(process, settings, self._platform(process)), None)
        # What `StateChannel.open` does once a member runs; the kit has started its own.
        joining = StateChannel._joined(opened, settings, extensions, lambda _: None, join_timeout_s)  # noqa: SLF001
        broker.channel = await self.loop.create_task(joining, context=context)
        self.brokers[name] = broker
        return broker

    async def router(self, join_timeout_s: float = WAIT_S) -> Router:
        """A `Router` that follows the kit's channel; the kit closes it."""
        self._check_loop()
        process = self._process("router", observes=True)
        platform = self._platform(process)
        host = make_observer(
            self._settings,
            process,
            KitMetrics(self.notes, process),
            partitions=len(self._stage.logs),
            platform=platform,
        )
        process.serve(host)
        host.start()
        router = Router(Opened(host, KitMemberLog(process, self._settings, platform), None), self._settings)
        self._routers.append(router)
        await host.wait_caught_up(join_timeout_s)
        return router

    def _process(self, name: str, *, observes: bool = False) -> KitProcess:
        process = KitProcess(self._stage, f"{name}#{len(self._lives) + 1}", observes=observes)
        self._lives.append(process.life)
        return process

    def _platform(self, process: KitProcess) -> HostPlatform:
        clocks = HostClocks(now=lambda: process.now, mono_s=self.loop.time)
        return HostPlatform(
            clocks,
            watch=NoWatch,
            aside=call_at_once,
            tunes_collector=False,
            tick_interval_s=_TICK_S,
            beat_s=60.0,
            observe_s=60.0,
        )

    def _thread_call(self, call: asyncio.Future[None]) -> None:
        if isinstance(self.loop, VirtualLoop):
            self.loop.wait_for_thread(call)

    # --- what the cluster does --------------------------------------------------------------------------------------

    async def namespace(self, name: str = "test/kit", bundles: int = 4) -> list[str]:
        """Create a namespace; returns the names of its bundles, in order.

        Raises:
            OutcomeError: It exists already, or no broker lives.
        """
        created = await self._running_channel().create_namespace(name, bundles).outcome(WAIT_S)
        _require_done(f"creating {name}", created)
        return sorted(
            seen.bundle for seen in self._running_channel().picture().bundles if seen.bundle.startswith(f"{name}/")
        )

    async def own(self, bundle: str, broker: str) -> int:
        """Let a broker own a bundle: assigned to it, or transferred; returns the generation by which it serves.

        Raises:
            OutcomeError: It declined, ...
        """
        member = self._member(broker).channel
        self._wanted[bundle] = broker
        answer = await member.lookup(bundle, timeout_s=WAIT_S)
        if not isinstance(answer, Owned):
            raise OutcomeError(f"assigning {bundle}", answer)
        if answer.broker != broker:
            moved = await member.transfer(answer.bundle, broker).outcome(WAIT_S)
            _require_done(f"moving {bundle} from {answer.broker} to {broker}", moved)
        await self.settle()
        generation = member.serves(answer.bundle)
        if generation is None:
            raise OutcomeError(f"assigning {bundle}", await member.lookup(bundle, read_only=True, timeout_s=WAIT_S))
        return generation

    async def unload(self, bundle: str) -> None:
        """Release a bundle: it has no owner until it is looked up or `own` is called.

        Raises:
            OutcomeError: Nobody owns it, ...
        """
        _require_done(f"unloading {bundle}", await self._running_channel().unload(bundle).outcome(WAIT_S))

    async def split(self, bundle: str, parts: int = 2, *, at: Sequence[int] = ()) -> list[str]:
        """Split a bundle; returns its children, in order.

        Raises:
            OutcomeError: It was given up, ...
        """
        before = {seen.bundle for seen in self._running_channel().picture().bundles}
        _require_done(
            f"splitting {bundle}", await self._running_channel().split(bundle, at=at, parts=parts).outcome(WAIT_S)
        )
        await self.settle()
        return sorted({seen.bundle for seen in self._running_channel().picture().bundles} - before)

    def owner(self, name: str) -> str | None:
        """The broker that serves a bundle, or a topic's bundle, as the log has it; None without one."""
        located = self._running_channel().locate(name)
        seen = {bundle.bundle: bundle.owner for bundle in self._running_channel().picture().bundles}
        return seen.get(located) if isinstance(located, str) else None

    def owners(self) -> dict[str, str]:
        return {seen.bundle: seen.owner for seen in self._running_channel().picture().bundles if seen.owner is not None}

    # --- time -------------------------------------------------------------------------------------------------------

    @property
    def events(self) -> Sequence[KitEvent]:
        """What happened, the newest last; the last 100,000 events."""
        return self.notes.events

    @property
    def now_s(self) -> float:
        """Time since the kit began."""
        return self._stage.events.now_s

    async def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._check_loop()
        await asyncio.sleep(seconds)

    async def settle(self, timeout_s: float = WAIT_S) -> None:
        """Wait until all brokers that are neither killed nor paused are at rest, and what the dead ones owned has an owner.

        Raises:
            NotSettledError: They are not after `timeout_s`.
        """
        self._check_loop()
        began_s = self.now_s
        ends = [log.end for log in self._stage.logs]
        while True:
            why = self._unsettled(ends)
            if not why:
                await asyncio.sleep(_LOOK_S + 2 * self._stage.delay_s)
                why = self._unsettled(ends)
            if not why:
                return
            if self.now_s - began_s > timeout_s:
                raise NotSettledError(timeout_s, why)
            await asyncio.sleep(_LOOK_S)

    def _unsettled(self, ends: Sequence[int]) -> str:
        running = [broker for broker in self.brokers.values() if broker.running]
        if not running:
            return ""
        for broker in running:
            if why := broker.unsettled(ends):
                return why
        if not any(broker.channel.leading for broker in running):
            return "no broker leads"
        alive = {broker.name for broker in self.brokers.values() if broker.alive}
        for seen in running[0].channel.picture().bundles:
            if seen.owner is not None and seen.owner not in alive:
                return f"{seen.bundle} is owned by {seen.owner}, which is lost"
        return ""

    # --- parts ------------------------------------------------------------------------------------------------------

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self.loop:
            raise WrongTestLoopError

    def _member(self, name: str) -> KitBroker:
        broker = self.brokers.get(name)
        if broker is None or not broker.running:
            raise KitError(f"No broker {name} runs.", hint=f"Start it: await kit.broker({name!r}, ...).")
        return broker

    def _running_channel(self) -> StateChannel:
        self._check_loop()
        running = next((broker for broker in self.brokers.values() if broker.running), None)
        if running is None:
            raise KitError("No broker runs.", hint="Start one first: await kit.broker('a', ...).")
        return running.channel


def _settings(groups: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Settings of a test: those of the environment and of files have no part in it."""
    settings = Settings(**groups)
    require_relations(settings, by_opening=True)
    return settings


def _require_done(what: str, outcome: Outcome) -> None:
    if not isinstance(outcome, Done):
        raise OutcomeError(what, outcome)
