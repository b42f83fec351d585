"""The clocks of a live broker: its own for waits and ages, and what it believes to be the log's time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


def wall_ms() -> int:
    """This machine's wall clock, milliseconds since 1970."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class LiveClocks:
    """Monotonic seconds for waits and ages; an estimate of the log's time for what people read and by which policies lapse."""

    mono_s: Callable[[], float] = time.monotonic
    log_ms: Callable[[], int] = wall_ms
