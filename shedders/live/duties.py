"""Duties of an extension: each in a task of its own, begun again with back-off when it fails. None can stop the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import structlog

from statechannel.runtime.exits import ChannelStoppedError

_log = structlog.get_logger(__name__)

Duty = Callable[[], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class _State:
    begun_s: float
    wait_s: float
    running: bool = True
    failures: int = 0
    error: str = ""


class Duties:
    """See the module. In the loop's thread.

    Args:
        first_wait_s: Before a duty that has failed begins again; doubled each time.
        longest_wait_s: Longest such wait; a duty that has run for so long has recovered.
        now_s: Monotonic.
        over: Whether the member has stopped, so that a duty that its absence ends does not begin again.
    """

    def __init__(
        self,
        *,
        first_wait_s: Callable[[], float],
        longest_wait_s: Callable[[], float],
        now_s: Callable[[], float],
        over: Callable[[], bool],
    ) -> None:
        self._first_wait_s = first_wait_s
        self._longest_wait_s = longest_wait_s
        self._now_s = now_s
        self._over = over
        self._states: dict[str, _State] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, name: str, duty: Duty) -> None:
        """Do a duty from now on."""
        task = asyncio.get_running_loop().create_task(self._for_ever(name, duty), name=f"duty-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End all of them."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def failing(self) -> dict[str, str]:
        """The last error of each duty that waits to begin again, or has begun again a moment ago."""
        now_s = self._now_s()
        return {
            name: f"{one.error} (failed {one.failures} times)" if one.failures > 1 else one.error
            for name, one in sorted(self._states.items())
            if one.error and not (one.running and now_s - one.begun_s >= self._longest_wait_s())
        }

    async def _for_ever(self, name: str, duty: Duty) -> None:
        state = self._states[name] = _State(self._now_s(), self._first_wait_s())
        while True:
            state.begun_s, state.running = self._now_s(), True
            try:
                await duty()
                error: Exception = RuntimeError("it came to an end")
            except ChannelStoppedError as stopped:
                if self._over():
                    return
                error = stopped  # too many commands wait, for one
            except Exception as raised:
                error = raised
            if self._now_s() - state.begun_s >= self._longest_wait_s():
                state.wait_s, state.failures = self._first_wait_s(), 0
            state.running, state.failures, state.error = False, state.failures + 1, repr(error)
            _log.error("duty-failed", duty=name, again_in_s=state.wait_s, exc_info=error)
            await asyncio.sleep(state.wait_s)
            state.wait_s = min(self._longest_wait_s(), 2 * state.wait_s)
