"""Clocks of a live broker: its own for waits and ages, and an estimate of the log's time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from loaddata.model.figures import LATEST_MS

WINDOW_S: Final = 120.0
"""Window of records that determine the time: dozens of heartbeats of every broker."""
SAMPLES_MAX: Final = 240
QUIET_S: Final = 10.0
"""After this time without records the next ones may be a backlog: the former estimate counts as a new sample."""


def wall_ms() -> int:
    """This machine's wall clock, milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class BalancerLogClock:
    """The log's time, estimated from the timestamps of records and this process's monotonic clock.

    Kafka stamps a record when it appends it, and it is read afterwards: at that moment the log's time was no earlier. Of the
    records of the last `WINDOW_S` the latest time counts, continued by the monotonic clock. So a backlog does not turn it back,
    and a record stamped by a Kafka broker with a fast clock affects it for no longer than that. It runs on while nothing is
    read. Only before the first record it is this machine's wall clock.

    `heard` belongs to one thread; the other methods are thread-safe.
    """

    def __init__(self, mono_s: Callable[[], float] = time.monotonic, wall: Callable[[], int] = wall_ms) -> None:
        self._mono_s = mono_s
        self._wall = wall
        self._newest_ms = 0
        self._samples: deque[tuple[float, float]] = deque(maxlen=SAMPLES_MAX)
        self._ahead_ms: float | None = None

    def heard(self, timestamp_ms: int) -> None:
        """Record the timestamp of the newest record; the same as before means no new record."""
        if timestamp_ms == self._newest_ms or not 0 < timestamp_ms <= LATEST_MS:
            return
        now_s = self._mono_s()
        self._newest_ms = timestamp_ms
        if self._ahead_ms is not None and self._samples[-1][0] < now_s - QUIET_S:
            self._samples.append((now_s, self._ahead_ms))
        self._samples.append((now_s, timestamp_ms - now_s * 1_000))
        while self._samples[0][0] < now_s - WINDOW_S:
            self._samples.popleft()
        self._ahead_ms = max(ahead_ms for _, ahead_ms in self._samples)

    def now_ms(self) -> int:
        """The log's time now."""
        return self._wall() if self._ahead_ms is None else round(self._ahead_ms + self._mono_s() * 1_000)

    def ahead_ms(self) -> int | None:
        """How far this machine's wall clock is ahead of the log's time; None before the first record."""
        return None if self._ahead_ms is None else self._wall() - self.now_ms()


@dataclass(frozen=True, slots=True)
class LiveClocks:
    """Monotonic seconds for waits and ages; an estimate of the log's time for people and for the expiry of policies."""

    mono_s: Callable[[], float] = time.monotonic
    log_ms: Callable[[], int] = wall_ms
