"""Virtual time: what happens next, in a fixed order."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class Events:
    """A queue of actions by time; those of the same time run in the order in which they were put in.

    Attributes:
        now_s: Virtual time in seconds since the start of the run.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.steps = 0
        self._queue: list[tuple[float, int, Action]] = []
        self._count = 0

    def at(self, when_s: float, action: Action) -> None:
        """Run an action at a time; now, if the time has passed."""
        self._count += 1
        heapq.heappush(self._queue, (max(when_s, self.now_s), self._count, action))

    def after(self, delay_s: float, action: Action) -> None:
        """Run an action after a while."""
        self.at(self.now_s + delay_s, action)

    def run_until(self, end_s: float) -> None:
        """Run everything that happens before a time."""
        while self._queue and self._queue[0][0] < end_s:
            self.now_s, _, action = heapq.heappop(self._queue)
            self.steps += 1
            action()
        self.now_s = end_s
