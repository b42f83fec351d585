"""Hooks with a watcher around each call: when it began, each of its steps, and how it ended. What they do is not changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from statechannel.broker.hook_runner import overridden
from statechannel.broker.hooks import BlockingBrokerHooks, BrokerHooks, ThreadedHooks
from statechannel.engine.effects import Hook

if TYPE_CHECKING:
    import asyncio


class HookCall(NamedTuple):
    """One call of a hook.

    Attributes:
        arguments: Those after the bundle, in order.
    """

    hook: Hook
    bundle: str
    arguments: tuple[Any, ...]

    @property
    def generation(self) -> int | None:
        """The generation that was passed; None for `on_moved`."""
        numbers = [value for value in self.arguments if type(value) is int]
        return numbers[0] if numbers else None


class HookWatcher(Protocol):
    """Sees the calls of one broker's hooks."""

    def began(self, call: HookCall) -> None:
        """The hook is about to be called."""

    def stepped(self, call: HookCall, took_s: float) -> None:
        """A coroutine ran until its next wait, for this real time: the event loop stood still meanwhile."""

    def ended(self, call: HookCall, raised: BaseException | None) -> None:
        """The hook returned, raised, or was cancelled."""


def watched(
    hooks: BrokerHooks | BlockingBrokerHooks,
    watcher: HookWatcher,
    on_thread_call: Callable[[asyncio.Future[None]], None] | None = None,
) -> BrokerHooks:
    """The same hooks for a host, which overrides what they override.

    Args:
        on_thread_call: Called with the future of each call of plain functions, which run in threads.
    """
    if isinstance(hooks, BlockingBrokerHooks):
        threaded = ThreadedHooks(hooks)
        plain = {hook.value: _plain(hooks, hook, watcher) for hook in Hook if overridden(threaded, hook)}
        kind = type(type(hooks).__name__, (BlockingBrokerHooks,), plain)
        return ThreadedHooks(kind(), on_call=on_thread_call)
    methods = {hook.value: _coroutine(hooks, hook, watcher) for hook in Hook if overridden(hooks, hook)}
    made: BrokerHooks = type(type(hooks).__name__, (BrokerHooks,), methods)()
    return made


def _plain(hooks: BlockingBrokerHooks, hook: Hook, watcher: HookWatcher) -> Callable[..., None]:
    def call(_self: object, bundle: str, *arguments: Any) -> None:
        seen = HookCall(hook, bundle, arguments)
        watcher.began(seen)
        try:
            getattr(hooks, hook)(bundle, *arguments)
        except BaseException as error:
            watcher.ended(seen, error)
            raise
        watcher.ended(seen, None)

    return call


def _coroutine(hooks: BrokerHooks, hook: Hook, watcher: HookWatcher) -> Callable[..., Coroutine[Any, Any, None]]:
    async def call(_self: object, bundle: str, *arguments: Any) -> None:
        seen = HookCall(hook, bundle, arguments)
        watcher.began(seen)
        try:
            await _Steps(lambda: getattr(hooks, hook)(bundle, *arguments), lambda took_s: watcher.stepped(seen, took_s))
        except BaseException as error:
            watcher.ended(seen, error)
            raise
        watcher.ended(seen, None)

    return call


class _Steps:
    """Awaits a coroutine, and measures each of its steps."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, None]], stepped: Callable[[float], None]) -> None:
        self._begin = begin
        self._stepped = stepped

    def __await__(self) -> Generator[Any, Any, None]:
        began_s = time.perf_counter()
        coroutine = self._begin()
        value: Any = None
        raised: BaseException | None = None
        while True:
            try:
                waits_for = coroutine.send(value) if raised is None else coroutine.throw(raised)
            except StopIteration:
                return
            finally:
                self._stepped(time.perf_counter() - began_s)
            value = raised = None
            try:
                value = yield waits_for
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:  # noqa: BLE001 - a cancellation is the coroutine's own affair
                raised = error
            began_s = time.perf_counter()
