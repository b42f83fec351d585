"""Private event loop in its own thread, for blocking callers, and blocking classes made of those for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from statechannel.broker.exits import ChannelStoppedError, Stopped
from statechannel.broker.hooks import refuse_inside_hook
from statechannel.broker.opening_process import OfOneProcess, opening_process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
    from types import TracebackType

T = TypeVar("T")
_P = ParamSpec("_P")

CLOSED = Stopped("closed", "this channel was closed")
_LET_GO_S = 1.0


class LoopThread:
    """Runs coroutines for callers in other threads."""

    def __init__(self, name: str) -> None:
        self.process = opening_process()
        self._loop = asyncio.new_event_loop()
        self._submitting = threading.Lock()
        self._finishing = threading.Lock()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            with self._submitting:
                self._ended = True  # nothing is submitted from here on
            self._loop.run_until_complete(self._let_go())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    @staticmethod
    async def _let_go() -> None:
        """Cancel running coroutines: their callers wait in other threads, and would wait for ever."""
        await asyncio.sleep(0)  # what was submitted last becomes a task
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=_LET_GO_S)

    @property
    def ended(self) -> bool:
        return self._ended

    def call(self, coroutine: Coroutine[object, object, T]) -> T:
        """Run a coroutine to its end, and wait for it. Not from the loop's own thread.

        Raises:
            ChannelStoppedError: The loop has ended, or ended before the coroutine did; or this process is the child of a fork.
            RuntimeError: Called from the loop's own thread, which would wait for itself.
        """
        if self.process.forked is not None:  # before the locks, which other threads of the parent may hold
            coroutine.close()
            raise ChannelStoppedError(self.process.forked)
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("a blocking method was called from the channel's own thread")
        with self._submitting:
            if self._ended:
                coroutine.close()
                raise ChannelStoppedError(CLOSED)
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except CancelledError:
            if self._ended:
                raise ChannelStoppedError(CLOSED) from None
            raise
        except BaseException:
            future.cancel()
            raise

    def ask(self, function: Callable[[], T]) -> T:
        """Run a plain function in the loop's thread, and wait for it."""

        async def run() -> T:
            return function()

        return self.call(run())

    def iterate(self, stream: AsyncIterator[T]) -> Iterator[T]:
        """Items of a stream of the loop; each step of the iterator waits for the next one. Its end closes the stream."""
        try:
            while True:
                try:
                    yield self.call(anext(stream))  # type: ignore[arg-type]  # a generator's step is a coroutine
                except StopAsyncIteration:
                    return
        finally:
            with contextlib.suppress(RuntimeError, ChannelStoppedError):
                self.call(stream.aclose())  # type: ignore[attr-defined]  # as a generator it has one

    def finish(self, last: Callable[[], Awaitable[object]]) -> None:
        """Run the last coroutine, then end loop and thread; idempotent, from any thread.

        Raises:
            ChannelStoppedError: This process is the child of a fork.
            RuntimeError: Called from the loop's own thread, which would wait for itself.
        """
        if not self._ended:
            self.process.require()
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking method was called from the channel's own thread")

        async def run() -> None:
            await last()

        with self._finishing:  # a second caller waits until it is closed
            if self._ended:
                return
            try:
                self.call(run())
            finally:
                self.close()

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10.0)


class BlockingTwin(OfOneProcess):
    """Base of the blocking classes, whose docstrings name their twins.

    Args:
        loop: The private loop, in which the twin was opened.
    """

    _twin: Any

    def __init__(self, loop: LoopThread, twin: Any) -> None:
        self._loop = loop
        self._twin = twin

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop.process.forked is None:  # the child of a fork leaves the block, too: nothing there is its own
            self.close()

    def __repr__(self) -> str:
        return repr(self._twin).replace(type(self._twin).__name__, type(self).__name__, 1)

    @property
    def stopped(self) -> Stopped | None:
        """See `stopped` there."""
        stopped: Stopped | None = self._twin.stopped
        return stopped

    def close(self) -> None:
        """See `close` there. A second call does nothing."""
        self._loop.finish(self._twin.close)


def direct(method: Callable[Concatenate[Any, _P], T]) -> Callable[Concatenate[Any, _P], T]:
    """A method that any thread may call."""
    return _as_twin(method, lambda _, call: call())


def in_loop(method: Callable[Concatenate[Any, _P], T]) -> Callable[Concatenate[Any, _P], T]:
    """A method that is called in the loop's thread."""
    return _as_twin(method, LoopThread.ask)


def waiting(
    method: Callable[Concatenate[Any, _P], Coroutine[Any, Any, T]], *, from_hooks: bool = False
) -> Callable[Concatenate[Any, _P], T]:
    """A coroutine that runs in the loop, while the caller waits.

    Args:
        from_hooks: Hooks may call it, too.
    """

    def wait(loop: LoopThread, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if not from_hooks:
            refuse_inside_hook(f"StateChannel.{method.__name__}")
        return loop.call(call())

    return _as_twin(method, wait)


def making(
    wrap: Callable[[LoopThread, Any], T], method: Callable[Concatenate[Any, _P], Any]
) -> Callable[Concatenate[Any, _P], T]:
    """A coroutine whose result has a blocking class of its own."""
    return _as_twin(method, lambda loop, call: wrap(loop, loop.call(call())), returns=wrap.__name__)


def _as_twin(
    method: Callable[Concatenate[Any, _P], Any], way: Callable[[LoopThread, Callable[[], Any]], T], returns: str = ""
) -> Callable[Concatenate[Any, _P], T]:
    def call(self: BlockingTwin, /, *args: _P.args, **kwargs: _P.kwargs) -> T:
        return way(self._loop, lambda: method(self._twin, *args, **kwargs))

    signature = inspect.signature(method)
    call.__name__, call.__doc__ = method.__name__, f"See `{method.__name__}` there."
    call.__signature__ = signature.replace(return_annotation=returns) if returns else signature  # type: ignore[attr-defined]
    return call
