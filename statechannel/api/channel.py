"""A member of the channel for asyncio: opens it with its extensions, and closes both."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, Unpack, cast

from statechannel.api.extensions import Running, checks_of, placement_of
from statechannel.api.member import ChannelMember
from statechannel.broker import arguments
from statechannel.broker.assembly import Opened, open_member
from statechannel.broker.exits import ChannelStoppedError, Stopped
from statechannel.broker.hooks import BrokerHooks
from statechannel.broker.opening_process import OfOneLoop
from statechannel.broker.supervision import LOOP_CLOSED
from statechannel.engine import commands
from statechannel.errors import StateChannelError
from statechannel.settings import SettingGroups, Settings, to_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence

    from prometheus_client import CollectorRegistry

    from statechannel.api.extensions import Extension
    from statechannel.api.status import MemberStatus
    from statechannel.engine.placement import Placement


class StateChannel(ChannelMember, OfOneLoop):
    """A member of the channel, open from `open` to `close`. For one loop; not for several threads.

    Example:
        ```
        async with StateChannel.open(broker="b1", kafka={"bootstrap_servers": "127.0.0.1:9092"}) as channel:
            print(await channel.lookup("tenant/namespace/topic"))
        ```
    """

    def __init__(self, opened: Opened, settings: Settings, extensions: Running | None = None) -> None:
        super().__init__(opened, settings)
        self._extensions = extensions or Running((), close_timeout_s=settings.runtime.close_timeout_s)
        self._ending: asyncio.Task[Stopped] | None = None

    def __repr__(self) -> str:
        host = self._host
        serving = f"{host.engine.mode}, serving {host.engine.reactions.serving_count} bundles"
        state = serving if host.stopped is None else f"stopped: {host.stopped.reason}"
        return f"<{type(self).__name__} {host.engine.identity.broker} ({state})>"

    @classmethod
    def open(
        cls,
        settings: Settings | None = None,
        *,
        broker: str,
        hooks: BrokerHooks | None = None,
        listeners: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        persistent: bool = True,
        non_persistent: bool = True,
        create_topics: bool = False,
        join_timeout_s: float | None = None,
        placement: Placement | None = None,
        extensions: Sequence[Extension] = (),
        metrics_registry: CollectorRegistry | None = None,
        on_stuck: Callable[[], None] | None = None,
        hook_settings: Mapping[str, Any] | None = None,
        **groups: Unpack[SettingGroups],
    ) -> Opening:
        """Join the channel: `async with StateChannel.open(...) as channel`, or `await StateChannel.open(...)`.

        Returns once this broker has caught up, is registered, and may own bundles.

        Args:
            settings: All settings (`load_settings`, `Settings`); None reads them from the environment and `groups`.
            broker: Id of this broker; unique among the living (1-128 of `A-Za-z0-9_.:-`, the first not `-`). After a crash the
                next process under this id waits until the former counts as lost, unless `membership={"take_over": True}` says
                that it has ended (hooks.md, "Under a supervisor").
            hooks: The broker's hooks.
            listeners: URL for clients, by protocol name.
            properties: Free text by name, shown in the registry; with the listeners 8 KiB as JSON at most.
            persistent: Serves persistent topics.
            non_persistent: Serves non-persistent topics.
            create_topics: Create missing topics of the channel.
            join_timeout_s: Longest wait for catching up; None takes `runtime.join_timeout_s` of the settings.
            placement: Chooses brokers for bundles; None: the first that an extension offers, else fewest bundles.
            extensions: Extensions that run with this member (`statechannel.api.extensions`).
            metrics_registry: Prometheus registry of the embedder; None creates a new one.
            on_stuck: Called, from another thread, when the event loop is stuck.
            hook_settings: Settings of the group `hooks` if no `settings` are given: `{"deadline_s": 5}`.
            groups: Settings of the other groups (settings.md): `kafka={"bootstrap_servers": ...}, repair={...}`.

        Raises:
            ArgumentTypeError, ArgumentValueError: An argument is invalid; the message says which, and what is expected.
            SettingsError: A setting is wrong.
            KafkaAdapterError: Kafka is unavailable, or the topics are missing or have wrong settings.
            ChannelStoppedError: The id is in use, a newer format, ...; `stopped.reason` says which.
            JoinTimeoutError: It took too long.

        If it fails, or is cancelled, after this broker has been heard, it first shuts down gracefully, with
        `hooks.shutdown_budget_s`: it may serve bundles while an extension is starting.
        """

        async def make(begun: Callable[[StateChannel], None]) -> StateChannel:
            arguments.check_opening(
                hooks_class=BrokerHooks,
                settings=settings,
                broker=broker,
                hooks=hooks,
                listeners=listeners,
                properties=properties,
                flags={"persistent": persistent, "non_persistent": non_persistent, "create_topics": create_topics},
                join_timeout_s=join_timeout_s,
                placement=placement,
                extensions=extensions,
                metrics_registry=metrics_registry,
                on_stuck=on_stuck,
            )
            values = arguments.settings_of(settings, arguments.groups_of(groups, hook_settings, cls.open, settings))
            identity = to_identity(
                broker,
                listeners=listeners,
                persistent=persistent,
                non_persistent=non_persistent,
                properties=properties,
                extensions=[extension.name for extension in extensions],
                checks=checks_of(extensions),
            )
            opened = await open_member(
                values,
                identity,
                hooks or BrokerHooks(),
                create_topics=create_topics,
                placement=placement if placement is not None else placement_of(extensions),
                registry=metrics_registry,
                on_stuck=on_stuck,
            )
            return await cls._joined(opened, values, extensions, begun, join_timeout_s)

        return Opening(cls, make)

    @classmethod
    async def _joined(
        cls,
        opened: Opened,
        settings: Settings,
        extensions: Sequence[Extension],
        begun: Callable[[StateChannel], None],
        timeout_s: float | None,
    ) -> StateChannel:
        """The channel of a started member, once it has caught up. For `open`, and for the test kit.

        Args:
            begun: Called with the channel before that.
        """
        channel = cls(opened, settings, Running(extensions, close_timeout_s=settings.runtime.close_timeout_s))
        begun(channel)
        await channel._join(timeout_s)
        return channel

    async def _join(self, timeout_s: float | None) -> None:
        starting: asyncio.Future[Any] | None = None
        try:
            await self._host.wait_caught_up(self._settings.runtime.join_timeout_s if timeout_s is None else timeout_s)
            starting = asyncio.ensure_future(self._extensions.start(self))
            await self._wait_started(starting)
        except BaseException:
            await asyncio.shield(self._abandon(starting))
            raise
        self._ending = asyncio.get_running_loop().create_task(self._end(), name="end-of-extensions")

    async def _wait_started(self, starting: asyncio.Future[Any]) -> None:
        ended = asyncio.ensure_future(self._host.wait_stopped())
        try:
            await asyncio.wait({starting, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        if starting.done():
            starting.result()
        if self._host.stopped is not None:
            raise ChannelStoppedError(self._host.stopped)

    async def _abandon(self, starting: asyncio.Future[Any] | None) -> None:
        """Hand over first: an extension may choose the destinations, and takes its time to close."""
        await self._shut_down()
        if starting is not None and not starting.done():
            starting.cancel()
            await asyncio.wait({starting}, timeout=self._extensions.close_timeout_s)
        if starting is not None and starting.done() and not starting.cancelled():
            starting.exception()  # asked for, or asyncio reports it as never retrieved
        await self._extensions.close()

    async def _end(self) -> Stopped:
        stopped = await self._host.wait_stopped()
        await self._extensions.close()
        return stopped

    def status(self) -> MemberStatus:
        """Status of this member: mode, leader, lag, debts, in-flight bundles, extensions. JSON-able."""
        self._look("status")
        return cast("MemberStatus", {**self._host.status(), "extensions": self._extensions.status()})

    # --- leaving ----------------------------------------------------------------------------------------------------

    async def wait_stopped(self) -> Stopped:
        """Wait until this member has ended for any reason; everything is closed then, including extensions.

        Once it has, this and the other methods of leaving return at once, in any loop.
        """
        if (over := self._over()) is not None:
            return over
        self._enter("StateChannel.wait_stopped")
        return await self._ended()

    def _over(self) -> Stopped | None:
        """How this member ended, if nothing of it is left to wait for."""
        if self._loop.is_closed():
            return self._host.stopped or LOOP_CLOSED
        ending = self._ending
        ended = ending is not None and ending.done() and not ending.cancelled() and ending.exception() is None
        return ending.result() if ending is not None and ended else None

    async def _ended(self) -> Stopped:
        return await (self._host.wait_stopped() if self._ending is None else asyncio.shield(self._ending))

    async def shutdown(self, budget_s: float | None = None) -> Stopped:
        """Shut down gracefully: announce, hand over the bundles, resign, send a goodbye; then close everything.

        Args:
            budget_s: Time for the hand-overs, by default `shutdown_budget_s`; remaining bundles are repaired by the leader.
                Hooks have it and `runtime.shutdown_grace_s`, at most `hooks.deadline_s` each; then they are cancelled.
                Closing Kafka's clients takes up to `runtime.close_timeout_s` more.

        Returns:
            How it ended; `stopped.clean` is whether all bundles were handed over.
        """
        if (over := self._over()) is not None:
            return over
        self._enter("StateChannel.shutdown")
        return await self._shut_down(budget_s)

    @property
    def shutdown_budget_s(self) -> float:
        """What a shutdown would take now at most: `hooks.shutdown_budget_s`, and `hooks.shutdown_bundle_s` for each bundle."""
        self._host.process.require()
        hooks = self._settings.hooks
        return hooks.shutdown_budget_s + hooks.shutdown_bundle_s * self._host.engine.reactions.serving_count

    async def _shut_down(self, budget_s: float | None = None) -> Stopped:
        budget_s = self.shutdown_budget_s if budget_s is None else budget_s
        host = self._host
        if host.stopped is None:
            with contextlib.suppress(ChannelStoppedError):
                asked = host.submit(commands.Shutdown(budget_s))
                done, _ = await asyncio.wait({asked}, timeout=budget_s + self._settings.runtime.shutdown_grace_s)
                if not done:
                    detail = f"the shutdown did not end within {budget_s:g} s; the leader repairs the remaining bundles"
                    host.stop(Stopped("shutdown-late", detail))
        return await self._ended()

    async def close(self) -> None:
        """`shutdown` with the budget of the settings."""
        await self.shutdown()


_Opens = TypeVar("_Opens", bound=OfOneLoop)


class OpenedTwiceError(StateChannelError, RuntimeError):
    """An opening was awaited a second time: it opens one member."""

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"`{kind}.open(...)` was awaited already: it is open, or is being opened.",
            hint=f"Keep what the first `await` returned; for another one call `{kind}.open` again.",
        )


class Unopened(Generic[_Opens]):
    """What an `open` returns: await it, or enter it. Any other use is answered with what to write.

    Args:
        make: Opens one, and hands on what is begun; called again where it failed.
    """

    def __init__(
        self, kind: type[_Opens], make: Callable[[Callable[[_Opens], None]], Coroutine[Any, Any, _Opens]]
    ) -> None:
        self._kind = kind
        self._call = f"{kind.__name__}.open(...)"
        self._make = make
        self._begun: _Opens | None = None
        self._awaited = False
        self._opens = False
        self._over = asyncio.Event()

    def _begin(self, begun: _Opens) -> None:
        self._begun = begun

    async def _open(self) -> _Opens:
        """A call that failed may be awaited again."""
        self._awaited = True
        if self._opens:
            raise OpenedTwiceError(self._kind.__name__)
        self._opens = True
        self._over.clear()
        try:
            return await self._make(self._begin)
        except BaseException:
            self._opens = False
            raise
        finally:
            self._over.set()

    def __getattr__(self, name: str) -> NoReturn:
        kind = self.__dict__.get("_kind")
        if kind is not None and hasattr(kind, name):
            write = f"`... = await {self._call}`, or `async with {self._call} as ...:`"
            raise AttributeError(f"`{self._call}` is not open yet and has no `{name}`: write {write}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __await__(self) -> Generator[Any, Any, _Opens]:
        return self._open().__await__()

    def __del__(self) -> None:
        if not self.__dict__.get("_awaited", True):
            # As Python does for coroutines; a `ResourceWarning` would not be shown.
            text = f"`{self._call}` was never awaited: nothing was opened"
            warnings.warn(text, RuntimeWarning, source=self, stacklevel=2)

    def __enter__(self) -> NoReturn:
        self._awaited = True
        raise TypeError(f"it is opened in an event loop: write `async with {self._call}`, or use Blocking{self._call}")

    def __exit__(self, *_: object) -> None:
        """Never reached; Python asks for it before it calls `__enter__`."""

    async def __aenter__(self) -> _Opens:
        return await self

    async def __aexit__(self, *raised: object) -> None:
        if self._begun is not None:
            await self._begun.__aexit__(*raised)


class Opening(Unopened[StateChannel]):
    """What `StateChannel.open` returns: await it, or enter it."""

    async def shutdown(self, budget_s: float | None = None) -> Stopped | None:
        """See `StateChannel.shutdown`. A call that still opens the member ends before this one returns, mostly with an error.

        Returns:
            How it ended; None where no member was begun: cancel the call that opens it.
        """
        if self._begun is None:
            return None
        await self._begun.shutdown(budget_s)
        await self._over.wait()
        return await self._begun.wait_stopped()
