"""The one bounded queue between the threads of the Kafka clients and the loop that steps the engine."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from statechannel.core.inputs import RecordRead, RecordsRead

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from statechannel.core.inputs import Input


SIZE_LIMIT_BYTES = 64 * 2**20


class Inbox:
    """Inputs in the order of their arrival, with back-pressure for readers of the log.

    Args:
        limit: Inputs that may wait before (each record of a portion is one) `offer` blocks.
        limit_bytes: Likewise for the bytes of their values: records may be small or large, the memory is the same.
        wake: Called when the first input comes after `take` found nothing, in the thread that put it.
    """

    def __init__(self, limit: int, wake: Callable[[], None], limit_bytes: int = SIZE_LIMIT_BYTES) -> None:
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._wake = wake
        self._items: deque[Input] = deque()
        self._size = 0
        self._room = threading.Condition()
        self._woken = False
        self._closed = False

    def __len__(self) -> int:
        return self._size

    @property
    def size_bytes(self) -> int:
        """Bytes of the values that wait."""
        return self._bytes

    @property
    def _full(self) -> bool:
        return self._size >= self._limit or self._bytes >= self._limit_bytes

    def offer(self, inputs: Sequence[Input]) -> None:
        """Put a batch of what was read; blocks while the inbox is full. Dropped once the inbox is closed.

        A batch goes in whole, so the inbox may hold one batch more than its limits.
        """
        with self._room:
            while self._full and not self._closed:
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
        self._bytes += sum(map(_bytes, inputs))
        wake, self._woken = not self._woken, True
        return wake

    def take(self, limit: int) -> list[Input]:
        """Take at most `limit` inputs, or one portion of records; after an empty answer the next input wakes the loop."""
        items = self._items
        with self._room:
            if not items:
                self._woken = False
                return []
            was_full = self._full
            taken = [items.popleft()]
            size = _weight(taken[0])
            while items and size < limit and (size := size + _weight(items[0])) <= limit:
                taken.append(items.popleft())
            self._size -= sum(map(_weight, taken))
            self._bytes -= sum(map(_bytes, taken))
            if was_full and not self._full:
                self._room.notify_all()
            return taken

    def close(self) -> None:
        """Refuse further inputs, forget those that wait, and let blocked readers go."""
        with self._room:
            self._closed = True
            self._items.clear()
            self._size = self._bytes = 0
            self._room.notify_all()


def _weight(item: Input) -> int:
    return len(item.records) if isinstance(item, RecordsRead) else 1


def _bytes(item: Input) -> int:
    if item.__class__ is RecordRead:
        return len(item.value or b"")
    return item.size_bytes if isinstance(item, RecordsRead) else 0
