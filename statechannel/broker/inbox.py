"""Bounded queue between the threads of the Kafka clients and the engine's loop."""

from __future__ import annotations

import threading
from collections import deque
from enum import Enum
from itertools import cycle
from typing import TYPE_CHECKING

from statechannel.protocol.log import RecordRead, RecordsRead

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from statechannel.engine.inputs import Input


SIZE_LIMIT_BYTES = 64 * 2**20


class InboxLane(Enum):
    """Lane of an input: it only waits behind others of its lane."""

    MEMBERSHIP = "membership"  # the registry and the election: who is there must be known however much is written
    CALLS = "calls"  # commands of callers: an answer that says its age now, rather than one that is sure much later
    REPORTS = "reports"  # hooks and deliveries that have ended: they are not late because much was read meanwhile
    LOG = "log"  # all else


class _Line:
    """Inputs of one lane, in the order of their arrival."""

    def __init__(self, limit: int, limit_bytes: int) -> None:
        self._limit = limit
        self._limit_bytes = limit_bytes
        self.items: deque[Input] = deque()
        self.size = 0
        self.size_bytes = 0

    @property
    def full(self) -> bool:
        return self.size >= self._limit or self.size_bytes >= self._limit_bytes

    def put(self, inputs: Sequence[Input]) -> None:
        if len(inputs) == 1:  # nearly always, where nothing waits
            self.items.append(inputs[0])
            self.size += _weight(inputs[0])
            self.size_bytes += _bytes(inputs[0])
            return
        self.items.extend(inputs)
        self.size += sum(map(_weight, inputs))
        self.size_bytes += sum(map(_bytes, inputs))

    def take(self, limit: int) -> list[Input]:
        items = self.items
        taken = [items.popleft()]
        if not items:
            self.size = self.size_bytes = 0
            return taken
        size = _weight(taken[0])
        while items and size < limit and (size := size + _weight(items[0])) <= limit:
            taken.append(items.popleft())
        self.size -= sum(map(_weight, taken))
        self.size_bytes -= sum(map(_bytes, taken))
        return taken

    def clear(self) -> None:
        self.items.clear()
        self.size = self.size_bytes = 0


class Inbox:
    """Inputs of several lanes, each in the order of arrival, with back-pressure for readers of the log.

    The lanes take turns, so that a flood in one of them delays the others by no more than a portion or two.

    Args:
        limit: Queued inputs of a lane beyond which `offer` blocks (each record of a portion counts).
        limit_bytes: The same limit for the bytes of their values.
        wake: Called for the first input after an empty `take`, in the thread of the caller.
    """

    def __init__(self, limit: int, wake: Callable[[], None], limit_bytes: int = SIZE_LIMIT_BYTES) -> None:
        self._wake = wake
        self._lines = {lane: _Line(limit, limit_bytes) for lane in InboxLane}
        self._turns = cycle(self._lines.values())
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._woken = False
        self._closed = False

    def __len__(self) -> int:
        return sum(line.size for line in self._lines.values())

    @property
    def size_bytes(self) -> int:
        return sum(line.size_bytes for line in self._lines.values())

    def offer(self, inputs: Sequence[Input], lane: InboxLane = InboxLane.LOG) -> None:
        """Put a batch of read records; blocks while its lane is full. Dropped once the inbox is closed.

        A batch is not divided, so a lane may exceed its limits by one batch.
        """
        line = self._lines[lane]
        with self._lock:
            while line.full and not self._closed:
                self._room.wait()
            wake = self._put(line, inputs)
        if wake:
            self._wake()

    def push(self, item: Input, lane: InboxLane = InboxLane.LOG) -> None:
        """Put one input without blocking: reports and commands, whose number is bounded at their origin."""
        with self._lock:
            wake = self._put(self._lines[lane], (item,))
        if wake:
            self._wake()

    def _put(self, line: _Line, inputs: Sequence[Input]) -> bool:
        """Whether the loop must be woken, outside the lock: the loop takes the lock first."""
        if self._closed:
            return False
        line.put(inputs)
        wake, self._woken = not self._woken, True
        return wake

    def take(self, limit: int) -> list[Input]:
        """Take at most `limit` inputs of one lane, or one portion; after an empty result the next input wakes the loop."""
        with self._lock:
            for _ in self._lines:
                line = next(self._turns)
                if line.items:
                    break
            else:
                self._woken = False
                return []
            was_full = line.full
            taken = line.take(limit)
            if was_full and not line.full:
                self._room.notify_all()
            return taken

    def close(self) -> None:
        """Refuse further inputs, drop queued ones, and release blocked readers."""
        with self._lock:
            self._closed = True
            for line in self._lines.values():
                line.clear()
            self._room.notify_all()


def _weight(item: Input) -> int:
    return len(item.records) if isinstance(item, RecordsRead) else 1


def _bytes(item: Input) -> int:
    if item.__class__ is RecordRead:
        return len(item.value or b"")
    return item.size_bytes if isinstance(item, RecordsRead) else 0
