"""The one bounded queue between the threads of the Kafka clients and the loop that steps the engine."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from statechannel.core.inputs import RecordsRead

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from statechannel.core.inputs import Input


class Inbox:
    """Inputs in the order of their arrival, with back-pressure for readers of the log.

    Args:
        limit: Inputs that may wait before (each record of a portion is one) `offer` blocks.
        wake: Called when the first input comes after `take` found nothing, in the thread that put it.
    """

    def __init__(self, limit: int, wake: Callable[[], None]) -> None:
        self._limit = limit
        self._wake = wake
        self._items: deque[Input] = deque()
        self._size = 0
        self._room = threading.Condition()
        self._woken = False
        self._closed = False

    def __len__(self) -> int:
        return self._size

    def offer(self, inputs: Sequence[Input]) -> None:
        """Put a batch of what was read; blocks while the inbox is full. Dropped once the inbox is closed.

        A batch goes in whole, so the inbox may hold one batch more than its limit.
        """
        with self._room:
            while self._size >= self._limit and not self._closed:
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
        self._size += sum(map(_weight, inputs))
        wake, self._woken = not self._woken, True
        return wake

    def take(self, limit: int) -> list[Input]:
        """Take at most `limit` inputs, or one portion of records; after an empty answer the next input wakes the loop."""
        items = self._items
        with self._room:
            if not items:
                self._woken = False
                return []
            was_full = self._size >= self._limit
            taken = [items.popleft()]
            size = _weight(taken[0])
            while items and size < limit and (size := size + _weight(items[0])) <= limit:
                taken.append(items.popleft())
            self._size -= sum(map(_weight, taken))
            if was_full and self._size < self._limit:
                self._room.notify_all()
            return taken

    def close(self) -> None:
        """Refuse further inputs, forget those that wait, and let blocked readers go."""
        with self._room:
            self._closed = True
            self._items.clear()
            self._size = 0
            self._room.notify_all()


def _weight(item: Input) -> int:
    return len(item.records) if isinstance(item, RecordsRead) else 1
