"""The one bounded queue between the threads of the Kafka clients and the loop that steps the engine."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from statechannel.core.inputs import Input


class Inbox:
    """Inputs in the order of their arrival, with back-pressure for readers of the log.

    Args:
        limit: Inputs that may wait before `offer` blocks.
        wake: Called when the first input comes after `take` found nothing, in the thread that put it.
    """

    def __init__(self, limit: int, wake: Callable[[], None]) -> None:
        self._limit = limit
        self._wake = wake
        self._items: deque[Input] = deque()
        self._room = threading.Condition()
        self._woken = False
        self._closed = False

    def __len__(self) -> int:
        return len(self._items)

    def offer(self, inputs: Sequence[Input]) -> None:
        """Put a batch of what was read; blocks while the inbox is full. Dropped once the inbox is closed.

        A batch goes in whole, so the inbox may hold one batch more than its limit.
        """
        with self._room:
            while len(self._items) >= self._limit and not self._closed:
                self._room.wait()
            wake = self._put(inputs)
        if wake:
            self._wake()

    def push(self, item: Input) -> None:
        """Put one input without ever blocking: reports and commands, whose number is bounded where they begin."""
        with self._room:
            wake = self._put((item,))
        if wake:
            self._wake()

    def _put(self, inputs: Sequence[Input]) -> bool:
        """Whether the loop must be woken, which is done without the lock: the loop takes it first thing."""
        if self._closed:
            return False
        self._items.extend(inputs)
        wake, self._woken = not self._woken, True
        return wake

    def take(self, limit: int) -> list[Input]:
        """Take at most `limit` inputs; an empty answer means that the next input will wake the loop."""
        items = self._items
        with self._room:
            if not items:
                self._woken = False
                return []
            was_full = len(items) >= self._limit
            taken = [items.popleft() for _ in range(min(limit, len(items)))]
            if was_full and len(items) < self._limit:
                self._room.notify_all()
            return taken

    def close(self) -> None:
        """Refuse further inputs, forget those that wait, and let blocked readers go."""
        with self._room:
            self._closed = True
            self._items.clear()
            self._room.notify_all()
