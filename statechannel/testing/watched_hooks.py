"""Hooks with a watcher around each call: when it began, each of its steps, and how it ended. What they do is not changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any, NamedTuple, Protocol

from statechannel.broker.hook_runner import overridden
from statechannel.broker.hooks import BlockingBrokerHooks, BrokerHooks, ThreadedHooks
from statechannel.engine.effects import Hook


class HookCall(NamedTuple):
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
        """The hook is about to be called. What this raises, the hook seems to raise: it is not called then."""

    def holds_s(self, call: HookCall) -> float:
        """How much longer than by itself the first wait of a coroutine takes; below 0: it is cancelled in that wait."""

    def stepped(self, call: HookCall, took_s: float) -> None:
        """A coroutine ran until its next wait, for this real time: the event loop stood still meanwhile."""

    def cancelling(self, call: HookCall) -> None:
        """A coroutine is being cancelled."""

    def ended(self, call: HookCall, raised: BaseException | None) -> None:
        """The hook returned, raised, or was cancelled."""


def watched(
    hooks: BrokerHooks | BlockingBrokerHooks,
    watcher: HookWatcher,
    on_thread_call: Callable[[asyncio.Future[None]], None] | None = None,
    *,
    all_hooks: bool = False,
) -> BrokerHooks:
    """The same hooks for a host, which overrides what they override.

    Args:
        on_thread_call: Called with the future of each call of plain functions, which run in threads.
        all_hooks: Also the calls of hooks that are not overridden are seen; those of splits only if one of them is.
    """
    if isinstance(hooks, BlockingBrokerHooks):
        threaded = ThreadedHooks(hooks)
        seen = _seen({hook for hook in Hook if overridden(threaded, hook)}, all_hooks=all_hooks)
        plain = {hook.value: _plain(hooks, hook, watcher) for hook in seen}
        kind = type(type(hooks).__name__, (BlockingBrokerHooks,), plain)
        return ThreadedHooks(kind(), on_call=on_thread_call)
    seen = _seen({hook for hook in Hook if overridden(hooks, hook)}, all_hooks=all_hooks)
    methods = {hook.value: _coroutine(hooks, hook, watcher) for hook in seen}
    same: BrokerHooks = type(type(hooks).__name__, (BrokerHooks,), methods)()
    return same


_OF_SPLITS = frozenset({Hook.ON_SPLIT, Hook.ON_SPLIT_DONE})


def _seen(wanted: set[Hook], *, all_hooks: bool) -> set[Hook]:
    if not all_hooks:
        return wanted
    return set(Hook) if wanted & _OF_SPLITS else set(Hook) - _OF_SPLITS


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
            await _Steps(seen, lambda: getattr(hooks, hook)(bundle, *arguments), watcher)
        except BaseException as error:
            watcher.ended(seen, error)
            raise
        watcher.ended(seen, None)

    return call


class _Steps:
    """Awaits a coroutine, and measures each of its steps."""

    def __init__(self, call: HookCall, begin: Callable[[], Coroutine[Any, Any, None]], watcher: HookWatcher) -> None:
        self._call = call
        self._begin = begin
        self._watcher = watcher

    def __await__(self) -> Generator[Any, Any, None]:
        began_s = time.perf_counter()
        coroutine = self._begin()
        value: Any = None
        raised: BaseException | None = None
        hold_s = self._watcher.holds_s(self._call)
        while True:
            try:
                waits_for = coroutine.send(value) if raised is None else coroutine.throw(raised)
            except StopIteration:
                return
            finally:
                self._watcher.stepped(self._call, time.perf_counter() - began_s)
            value = raised = None
            task = asyncio.current_task() if hold_s < 0 else None
            if task is not None:
                hold_s = 0.0
                task.get_loop().call_soon(task.cancel)
            try:
                value = yield waits_for
                if hold_s > 0:
                    held_s, hold_s = hold_s, 0.0
                    yield from asyncio.sleep(held_s).__await__()
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:
                raised = error
                if isinstance(error, asyncio.CancelledError):
                    self._watcher.cancelling(self._call)
            began_s = time.perf_counter()
