"""Runs the first stretch of a coroutine before its task does."""

from __future__ import annotations

import asyncio
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Coroutine, Generator
from typing import Any


class BegunCoroutine(Coroutine[Any, Any, None]):
    """A coroutine whose first stretch runs at once, as if the task that is to run the rest ran it already.

    A hook that waits for nothing has ended after it; by a task it would end two turns of the loop later, and these
    turns would lie between two owners. (Python 3.12 can start its own tasks so, `eager_start`.) The first step of the
    task takes what the first stretch came to.
    """

    __slots__ = ("_coroutine", "_raised", "_taken", "_waits_for", "ended")

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._coroutine = coroutine
        self._waits_for: Any = None
        self._raised: BaseException | None = None
        self._taken = False
        self.ended = False

    def run(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
        """The first stretch; what it raises is kept for the task."""
        _enter_task(loop, task)
        try:
            self._waits_for = self._coroutine.send(None)
        except BaseException as error:
            self._raised = error
            self.ended = isinstance(error, StopIteration) and not task.cancelling()
        finally:
            _leave_task(loop, task)

    def send(self, value: Any) -> Any:
        """A step of the task."""
        if self._taken:
            return self._coroutine.send(value)
        self._taken = True
        if self._raised is not None:
            raise self._raised
        return self._waits_for

    def throw(self, error: Any, _value: Any = None, _trace: Any = None, /) -> Any:
        """A step of the task that was cancelled, by the hook's first stretch itself or since; tasks give one argument."""
        if self._taken:
            return self._coroutine.throw(error)
        self._taken = True
        if self._raised is not None:
            raise error if isinstance(self._raised, StopIteration) else self._raised
        if asyncio.isfuture(self._waits_for) and self._waits_for.cancel(*error.args):
            return self._waits_for  # as a task does: it ends what it waits for, and hears of that end
        return self._coroutine.throw(error)

    def close(self) -> None:
        """Nobody goes on with it."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, None]:
        raise TypeError("a coroutine that has begun is for its task only")
