"""The wall clock, and the clock of the engine: seconds that also pass while the machine is suspended.

`time.monotonic` (CLOCK_MONOTONIC) stops while a machine is suspended: a lease measured by it would not expire, and after the
resume the process would consider itself fresh. All times of an engine come from here, so that two clocks are never mixed in a
comparison: after a resume, deadlines, expiry, silence and lease include the elapsed time, as after any pause of the process.
Durations that concern this process alone (turns of the loop, the watchdog, timers of asyncio) use `time.monotonic`.
"""

from __future__ import annotations

import time

BOOT_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)
"""Available on Linux; None elsewhere, where no time passes for the engine during a suspend."""


def engine_s() -> float:
    """Seconds of the engine's clock. Only differences are meaningful, and only within this clock."""
    return time.monotonic() if BOOT_CLOCK is None else time.clock_gettime(BOOT_CLOCK)


def now_ms() -> int:
    """This machine's wall clock, milliseconds since 1970."""
    return time.time_ns() // 1_000_000
