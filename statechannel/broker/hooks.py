"""Hooks of an embedding broker: coroutines, or plain functions in separate threads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar, copy_context

from statechannel.errors import StateChannelError

_caller: ContextVar[object | None] = ContextVar("statechannel_hook", default=None)


class HookReentryError(StateChannelError):
    """A hook called a blocking method of the channel, which waits for the hook."""

    def __init__(self, method: str) -> None:
        super().__init__(
            f"A hook called {method}(), which waits for the channel, while the channel waits for the hook.",
            hint="Start a task from the hook, and let the hook return.",
        )


class BrokerHooks:
    """Callbacks of a broker; inherit and override what you need. Every default does nothing.

    Each call has a deadline (`hooks.deadline_s`, at most the rest of the flow's own limit). A hook that raises or
    overruns it is logged, counted, and has the effect named below; no bundle is ever stuck because of a hook. (One whose
    `on_serve` raises is assigned, and yours to unload.)
    Hooks of different bundles run concurrently; those of one bundle run one after the other, also behind one that
    runs past its deadline. (PIP-192, "Bundle
    State Channel"; upstream does this inside `NamespaceService.onNamespaceBundleOwned` and `unload`.)

    What a hook raises is written to the program's log, and its text to the channel, which keeps it for everybody who reads
    the topic. Drivers put addresses with passwords into such texts: raise a text of your own, `from None`.
    """

    async def on_own(self, bundle: str, generation: int) -> None:
        """Prepare to serve a bundle that is being assigned to this broker; do not serve yet.

        For a child of a split (`on_split` has named it) the generation is a proposed one, which a split that is given up
        does not use up: do not fence the parent, or a topic, by it before `on_serve`. It may come again for the same
        generation or a higher one: what it does must be idempotent.

        Raising, or overrunning the deadline, declines the bundle: another broker is chosen. When the bundle was this
        broker's already (a restart, a bundle taken back), it is unloaded instead; a split is abandoned.
        """

    async def on_serve(self, bundle: str, generation: int) -> None:
        """Serve: this broker owns the bundle. Fence storage with `generation`; what is served only grows for a topic.

        A notification: steps that can fail belong in `on_own`. Raising is logged and counted; the bundle stays here, and nothing
        calls this again for it: once the cause is fixed, unload it.
        """

    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        """Stop serving; when this returns, no operation with `generation` may begin any more.

        Also called when another broker ended the generation, and to undo `on_own` when the proposal of this
        broker was rejected. Raising or overrunning does not delay the bundle: storage fences by generation.

        Args:
            bundle: Key of the bundle.
            generation: The generation that ends.
            destination: Broker to redirect clients to; None if unknown.
        """

    async def on_moved(self, bundle: str, owner: str | None, urls: Mapping[str, str]) -> None:
        """A bundle that this broker served has a new owner: redirect its clients to its `urls`.

        A notification: nothing waits for it.
        """

    async def on_split(self, parent: str, children: Sequence[str], generation: int) -> None:
        """A bundle that this broker serves is about to be split here: take no more writes to `parent`.

        Called before `on_own` of the children, which may copy the parent's data: what is written to the parent before this
        returns is copied, and nothing may be written afterwards. The parent's clients wait, or try again: until the
        children are served, lookups still name this broker. Reads may go on.

        The hooks of a split share one deadline. Raising, or overrunning it, gives the split up. A split that is given up
        calls `on_release` of the children, `on_own` of the parent at a generation above its former one, and `on_serve` of the
        parent once it takes writes again. Such a split does not use its generation up: the parent comes back by a smaller
        one, and another owner may get the same number. Do not fence the parent, or a topic, by it before `on_serve`.

        It may come late, as to a process that was paused: fence it by `generation`, as `on_own`.

        Args:
            parent: Key of the bundle.
            children: Keys of its parts, in order.
            generation: Proposed: by which the children will be served if the split is committed; above the parent's.
        """

    async def on_split_done(self, parent: str, children: Sequence[str], generation: int) -> None:
        """A split is committed: the parent is gone for ever, its data may be dropped.

        A notification, at the same time as `on_serve` of the children. It is the only call that allows that: `on_release`
        does not. A process that ends, or whose lease expires, before it was called is not called again: then the parent got its
        `on_release`, and the children copy from it once more.

        Args:
            parent: Key of the former bundle.
            children: Keys of its parts, which this broker serves.
            generation: By which it does.
        """


class BlockingBrokerHooks:
    """The same hooks as plain functions, for `BlockingStateChannel`; they run in separate threads.

    A function cannot be stopped at its deadline. It counts as failed, and the next hook of its bundle waits until it returns.
    What it raises becomes public, as with `BrokerHooks`: no password may be in its text.
    """

    def on_own(self, bundle: str, generation: int) -> None:
        """See `BrokerHooks.on_own`."""

    def on_serve(self, bundle: str, generation: int) -> None:
        """See `BrokerHooks.on_serve`."""

    def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        """See `BrokerHooks.on_release`."""

    def on_moved(self, bundle: str, owner: str | None, urls: Mapping[str, str]) -> None:
        """See `BrokerHooks.on_moved`."""

    def on_split(self, parent: str, children: Sequence[str], generation: int) -> None:
        """See `BrokerHooks.on_split`."""

    def on_split_done(self, parent: str, children: Sequence[str], generation: int) -> None:
        """See `BrokerHooks.on_split_done`."""


class HookRunsOnError(Exception):
    """A hook in a thread still runs although its task was cancelled: threads cannot be stopped from outside."""

    def __init__(self, ended: asyncio.Future[None]) -> None:
        super().__init__("the thread of a hook still runs")
        self.ended = ended


class ThreadedHooks(BrokerHooks):
    """Calls plain functions in a bounded pool of threads.

    A function that never returns occupies its thread; with all threads occupied, later hooks overrun their deadlines.

    Args:
        threads: Maximum number of concurrent hooks; may be set until the first is called.
    """

    def __init__(
        self,
        hooks: BlockingBrokerHooks,
        *,
        threads: int = 32,
        on_call: Callable[[asyncio.Future[None]], None] | None = None,
    ) -> None:
        self._hooks = hooks
        self._on_call = on_call
        self._pool: ThreadPoolExecutor | None = None
        self.threads = threads

    @property
    def name(self) -> str:
        return type(self._hooks).__name__

    def overrides(self, hook: str) -> bool:
        return getattr(type(self._hooks), hook) is not getattr(BlockingBrokerHooks, hook)

    async def on_own(self, bundle: str, generation: int) -> None:
        await self._call(lambda: self._hooks.on_own(bundle, generation))

    async def on_serve(self, bundle: str, generation: int) -> None:
        """A hook that waits for a thread keeps waiting after its deadline: the bundle stays here."""
        await self._call(lambda: self._hooks.on_serve(bundle, generation), keep=True)

    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        """A hook that waits for a thread keeps waiting after its deadline."""
        await self._call(lambda: self._hooks.on_release(bundle, generation, destination), keep=True)

    async def on_moved(self, bundle: str, owner: str | None, urls: Mapping[str, str]) -> None:
        await self._call(lambda: self._hooks.on_moved(bundle, owner, urls))

    async def on_split(self, parent: str, children: Sequence[str], generation: int) -> None:
        await self._call(lambda: self._hooks.on_split(parent, children, generation))

    async def on_split_done(self, parent: str, children: Sequence[str], generation: int) -> None:
        """A hook that waits for a thread keeps waiting after its deadline."""
        await self._call(lambda: self._hooks.on_split_done(parent, children, generation), keep=True)

    async def _call(self, function: Callable[[], None], *, keep: bool = False) -> None:
        """Run it in a thread.

        Args:
            keep: A cancellation does not remove it while it waits for a free thread.

        Raises:
            HookRunsOnError: Cancelled, and the function still runs in its thread (or, if kept, will run).
        """

        def run() -> None:
            _caller.set(threading.get_ident())
            function()

        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="statechannel-hook")
        begun = self._pool.submit(copy_context().run, run)
        if self._on_call is not None:
            self._on_call(ended)
        begun.add_done_callback(lambda begun: _post(loop, lambda: _settle(ended, begun)))
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            if ended.done() or (not keep and begun.cancel()):
                raise
            raise HookRunsOnError(ended) from None

    def close(self) -> None:
        """Release idle threads; hanging ones are abandoned."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _post(loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> None:
    """Post a callback to the loop, if it still runs; from any thread."""
    with contextlib.suppress(RuntimeError):  # closed: what waited there has ended with it
        loop.call_soon_threadsafe(act)


def _settle(ended: asyncio.Future[None], begun: Future[None]) -> None:
    """Pass the end of a function to the loop."""
    if ended.done():
        return
    if begun.cancelled():
        ended.cancel()
        return
    raised = begun.exception()
    if raised is None:
        ended.set_result(None)
    else:
        ended.set_exception(raised)


def mark_caller() -> None:
    """Mark this task as a hook from here on."""
    _caller.set(asyncio.current_task())


def refuse_inside_hook(method: str) -> None:
    """Raise if the caller is a hook itself (not a task that a hook started).

    Raises:
        HookReentryError: The caller is a hook.
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
