"""The wall clock, and the clock of the engine: seconds that also pass while the machine is suspended.

`time.monotonic` (CLOCK_MONOTONIC) stops while a machine is suspended: a lease measured by it would not expire, and after the
resume the process would consider itself fresh. All times of an engine come from here, so that two clocks are never mixed in a
comparison: after a resume, deadlines, expiry, silence and lease include the elapsed time, as after any pause of the process.
Durations that concern this process alone (turns of the loop, the watchdog, timers of asyncio) use `time.monotonic`.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

BOOT_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)
"""Available on Linux; None elsewhere, where no time passes for the engine during a suspend."""


def engine_s() -> float:
    """Seconds of the engine's clock. Only differences are meaningful, and only within this clock."""
    return time.monotonic() if BOOT_CLOCK is None else time.clock_gettime(BOOT_CLOCK)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def moment(timestamp_ms: int | None) -> str:
    if timestamp_ms is None:
        return "-"
    try:
        at = datetime.fromtimestamp(timestamp_ms / 1_000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms}ms"
    return f"{at:%Y-%m-%d %H:%M:%S}.{timestamp_ms % 1_000:03d}Z"


def duration(length_ms: float | None) -> str:
    if length_ms is None:
        return "-"
    if length_ms < 1_000:  # noqa: PLR2004 - of units
        return f"{length_ms:.0f} ms"
    seconds = length_ms / 1_000
    if seconds < 120:  # noqa: PLR2004
        return f"{seconds:.2f} s"
    minutes = seconds / 60
    return f"{minutes:.1f} min" if minutes < 120 else f"{minutes / 60:.1f} h"  # noqa: PLR2004
