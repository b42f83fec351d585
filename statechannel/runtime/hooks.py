"""The hooks of an embedding broker, and how they are called: with a deadline, never trusted to return."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING

from statechannel.core.effects import Hook
from statechannel.core.inputs import HookFinished
from statechannel.errors import StateChannelError
from statechannel.logger import SafeLogger
from statechannel.runtime.begun import BegunCoroutine

if TYPE_CHECKING:
    from statechannel.core.effects import CallHook
    from statechannel.core.inputs import Input

_log = SafeLogger(__name__)
_caller: ContextVar[object | None] = ContextVar("statechannel_hook", default=None)


class HookReentryError(StateChannelError):
    """A hook called a method that waits for the channel, which waits for the hook."""

    def __init__(self, method: str) -> None:
        super().__init__(
            f"A hook called {method}(), which waits for the channel, while the channel waits for the hook.",
            hint="Start a task of your own from the hook, and let the hook return.",
        )


class BrokerHooks:
    """What a broker wants to be told; inherit and override what you need. Every default does nothing.

    Each call has a deadline (`hooks.deadline_s`, at most the rest of the flow's own limit). What raises or
    overruns it is logged, counted, and ends in the state named below; no bundle is ever stuck because of a hook.
    Hooks of different bundles run at the same time; those of one bundle run one after the other. (PIP-192, "Bundle
    State Channel"; upstream does this inside `NamespaceService.onNamespaceBundleOwned` and `unload`.)
    """

    async def on_own(self, bundle: str, generation: int) -> None:
        """Prepare to serve a bundle that is being assigned to this broker; do not serve yet.

        Raising, or overrunning the deadline, declines the bundle: another broker is chosen. When the bundle was this
        broker's already (a restart, a bundle taken back), it unloads itself instead; a split is given up.
        """

    async def on_serve(self, bundle: str, generation: int) -> None:
        """Serve: this broker owns the bundle. Fence storage with `generation`; it only grows for a topic.

        A notification: what can fail belongs into `on_own`. Raising is logged and counted; the bundle stays here.
        """

    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        """Stop serving; when this returns, no operation with `generation` may begin any more.

        Also called when somebody else ended the generation, and to undo `on_own` when the verdict went against this
        broker. Raising or overrunning does not hold the bundle back: storage fences by generation.

        Args:
            bundle: Key of the bundle.
            generation: The generation that ends.
            destination: Broker to which clients may be sent on; None where it is not known.
        """

    async def on_moved(self, bundle: str, owner: str | None, urls: Mapping[str, str]) -> None:
        """A bundle that this broker served has a new owner: clients that still ask can be told its `urls`.

        A notification: nothing waits for it.
        """


class BlockingBrokerHooks:
    """The same hooks as plain functions, for `BlockingStateChannel`; they run in threads of their own."""

    def on_own(self, bundle: str, generation: int) -> None:
        """See `BrokerHooks.on_own`."""

    def on_serve(self, bundle: str, generation: int) -> None:
        """See `BrokerHooks.on_serve`."""

    def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        """See `BrokerHooks.on_release`."""

    def on_moved(self, bundle: str, owner: str | None, urls: Mapping[str, str]) -> None:
        """See `BrokerHooks.on_moved`."""


class ThreadedHooks(BrokerHooks):
    """Calls plain functions in a bounded pool of threads.

    A function that never returns keeps its thread; with all threads kept, later hooks overrun their deadlines.

    Args:
        hooks: The functions.
        threads: Hooks that may run at the same time.
    """

    def __init__(self, hooks: BlockingBrokerHooks, *, threads: int = 32) -> None:
        self._hooks = hooks
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="statechannel-hook")

    def overrides(self, hook: Hook) -> bool:
        """Whether the user's class has this hook at all."""
        return getattr(type(self._hooks), hook) is not getattr(BlockingBrokerHooks, hook)

    async def on_own(self, bundle: str, generation: int) -> None:
        """See `BrokerHooks.on_own`."""
        await self._call(lambda: self._hooks.on_own(bundle, generation))

    async def on_serve(self, bundle: str, generation: int) -> None:
        """See `BrokerHooks.on_serve`."""
        await self._call(lambda: self._hooks.on_serve(bundle, generation))

    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        """See `BrokerHooks.on_release`."""
        await self._call(lambda: self._hooks.on_release(bundle, generation, destination))

    async def on_moved(self, bundle: str, owner: str | None, urls: Mapping[str, str]) -> None:
        """See `BrokerHooks.on_moved`."""
        await self._call(lambda: self._hooks.on_moved(bundle, owner, urls))

    async def _call(self, function: Callable[[], None]) -> None:
        def run() -> None:
            _caller.set(threading.get_ident())
            function()

        await asyncio.get_running_loop().run_in_executor(self._pool, copy_context().run, run)

    def close(self) -> None:
        """Let idle threads go; those that hang are left behind."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def refuse_inside_hook(method: str) -> None:
    """Raise if the caller is a hook itself (not a task that a hook started).

    Raises:
        HookReentryError: It is.
    """
    caller = _caller.get()
    if caller is None:
        return
    if isinstance(caller, int):
        inside = caller == threading.get_ident()
    else:
        try:
            inside = caller is asyncio.current_task()
        except RuntimeError:
            inside = False
    if inside:
        raise HookReentryError(method)


class _Call:
    """One call of a hook: waiting for the one before it on the same bundle, or running."""

    __slots__ = ("asked_s", "before", "effect", "next", "task", "timer")

    def __init__(self, effect: CallHook) -> None:
        self.effect = effect
        self.asked_s = time.monotonic()
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.before: _Call | None = None
        self.next: _Call | None = None


class HookRunner:
    """Runs hooks as tasks and tells the engine how they ended; those of one bundle one after the other.

    A hook is given up at its deadline even if it swallows its cancellation.

    Args:
        feed: Takes `HookFinished`.
        urls_of: Listeners of a broker as it registered them, for `on_moved`.
        on_problem: Told the hook and the error of each that failed; for metrics.
        on_end: Told of each call that ended, with the seconds since it was asked for, and its error.
    """

    def __init__(
        self,
        hooks: BrokerHooks,
        *,
        feed: Callable[[Input], None],
        urls_of: Callable[[str], Mapping[str, str]],
        on_problem: Callable[[Hook, str], None] | None = None,
        on_end: Callable[[CallHook, float, str | None], None] | None = None,
    ) -> None:
        self._hooks = hooks
        self._feed = feed
        self._urls_of = urls_of
        self._on_problem = on_problem
        self._on_end = on_end
        self._open: set[_Call] = set()
        self._last: dict[str, _Call] = {}
        self._wanted = frozenset(hook for hook in Hook if _overridden(hooks, hook))

    @property
    def running(self) -> int:
        """Calls that have not ended."""
        return len(self._open)

    def call(self, effect: CallHook) -> None:
        """Call a hook; one that nobody has overridden has ended already."""
        if effect.hook not in self._wanted:
            self._tell(effect, None)
            return
        call = _Call(effect)
        self._open.add(call)
        before = self._last.get(effect.bundle)
        self._last[effect.bundle] = call
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + effect.deadline_s
        if before is not None:
            before.next, call.before = call, before
        elif asyncio.current_task() is None and loop.get_task_factory() is None:
            self._start_at_once(call)
        else:
            self._start(call)
        if call in self._open:
            call.timer = loop.call_at(ends_s, self._overran, call)

    def _start_at_once(self, call: _Call) -> None:
        """As `_start`, but the hook runs up to its first wait before this returns.

        Only for asyncio's own tasks: what those of the embedder's task factory do with a coroutine is not known.
        """
        loop, context = asyncio.get_running_loop(), copy_context()
        begun = BegunCoroutine(self._marked(call.effect))
        name = f"statechannel {call.effect.hook} {call.effect.bundle}"
        call.task = task = loop.create_task(begun, name=name, context=context)
        context.run(begun.run, loop, task)
        if begun.ended and call in self._open:
            self._end(call, None)
        else:
            task.add_done_callback(lambda task: self._returned(call, task))

    def _start(self, call: _Call) -> None:
        name = f"statechannel {call.effect.hook} {call.effect.bundle}"
        call.before = None
        call.task = asyncio.get_running_loop().create_task(self._marked(call.effect), name=name)
        call.task.add_done_callback(lambda task: self._returned(call, task))

    def _returned(self, call: _Call, task: asyncio.Task[None]) -> None:
        raised = None if task.cancelled() else task.exception()  # taken in any case, or asyncio complains
        if call not in self._open:
            return
        effect = call.effect
        if task.cancelled():
            self._end(call, f"{effect.hook} was cancelled")
        elif raised is not None:
            _log.error("hook-raised", hook=effect.hook, bundle=effect.bundle, exc_info=raised)
            self._end(call, f"{effect.hook} raised {type(raised).__name__}: {raised}")
        else:
            self._end(call, None)

    def _overran(self, call: _Call) -> None:
        effect = call.effect
        if call.task is not None:
            call.task.cancel()
            self._end(call, f"{effect.hook} did not return within {effect.deadline_s:g} s")
        else:
            self._end(call, f"{effect.hook} was not called: the hook before it did not return in time")

    def _end(self, call: _Call, error: str | None) -> None:
        effect = call.effect
        self._open.discard(call)
        if call.timer is not None:
            call.timer.cancel()
        if self._last.get(effect.bundle) is call:
            del self._last[effect.bundle]
        if error is not None:
            _log.warning("hook-failed", bundle=effect.bundle, generation=effect.generation, error=error)
            if self._on_problem is not None:
                self._on_problem(effect.hook, error)
        if self._on_end is not None:
            self._on_end(effect, time.monotonic() - call.asked_s, error)
        self._tell(effect, error)
        self._hand_on(call)

    def _hand_on(self, call: _Call) -> None:
        """The next one of the bundle: it starts now, or goes on waiting for the one before this."""
        before, after = call.before, call.next
        call.before = None
        if after is None:
            if before is not None and before in self._open:
                before.next = None
                self._last[call.effect.bundle] = before
            return
        if before is not None and before in self._open:
            before.next, after.before = after, before
        else:
            after.before = None
            self._start(after)

    def _tell(self, effect: CallHook, error: str | None) -> None:
        if effect.hook_id:
            self._feed(HookFinished(effect.hook_id, error))

    async def _marked(self, effect: CallHook) -> None:
        _caller.set(asyncio.current_task())
        await self._coroutine(effect)

    def _coroutine(self, effect: CallHook) -> Awaitable[None]:
        hooks, bundle, generation = self._hooks, effect.bundle, effect.generation
        match effect.hook:
            case Hook.ON_OWN:
                return hooks.on_own(bundle, generation)
            case Hook.ON_SERVE:
                return hooks.on_serve(bundle, generation)
            case Hook.ON_RELEASE:
                return hooks.on_release(bundle, generation, effect.peer)
            case Hook.ON_MOVED:
                urls = {} if effect.peer is None else self._urls_of(effect.peer)
                return hooks.on_moved(bundle, effect.peer, urls)

    async def close(self, timeout_s: float) -> None:
        """Let what still runs finish for a little while, then cancel it."""
        tasks = {call.task for call in self._open if call.task is not None}
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout_s)
            for task in late:
                task.cancel()
        for call in list(self._open):
            if call.timer is not None:
                call.timer.cancel()
        self._open.clear()


def _overridden(hooks: BrokerHooks, hook: Hook) -> bool:
    if isinstance(hooks, ThreadedHooks):
        return hooks.overrides(hook)
    method = getattr(hooks, hook)
    return getattr(method, "__func__", method) is not getattr(BrokerHooks, hook)
