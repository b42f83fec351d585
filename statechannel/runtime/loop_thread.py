"""A private event loop in a thread of its own, for callers that block."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for callers in other threads."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def call(self, coroutine: Coroutine[object, object, T]) -> T:
        """Run a coroutine to its end, and wait for it. Not from the loop's own thread.

        Raises:
            RuntimeError: Called from the loop's own thread, which would wait for itself.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("a blocking method was called from the channel's own thread")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def ask(self, function: Callable[[], T]) -> T:
        """Run a plain function in the loop's thread, and wait for it."""

        async def run() -> T:
            return function()

        return self.call(run())

    def finish(self, last: Callable[[], Awaitable[object]]) -> None:
        """Run the last coroutine, then end loop and thread."""

        async def run() -> None:
            await last()

        try:
            self.call(run())
        finally:
            self.close()

    def close(self) -> None:
        """End loop and thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10.0)
