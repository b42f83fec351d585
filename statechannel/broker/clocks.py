"""The clock of an engine: seconds that pass also while the machine sleeps.

`time.monotonic` (CLOCK_MONOTONIC) stands still while a machine is suspended: a lease counted with it would not run out, and
after the wake the process would take itself for fresh. Every time of an engine comes from here, so that two clocks never meet in
a comparison: deadlines, expiry, silence and lease all see at the wake that time has passed, as after any pause of the process.
Lengths that concern this process alone (turns of the loop, the watchdog, timers of asyncio) stay with `time.monotonic`.
"""

from __future__ import annotations

import time

from statechannel.engine.inputs import Now

BOOT_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)
"""Linux has it; None elsewhere, where a suspended machine's engine sees no time pass."""


def engine_s() -> float:
    """Seconds of the engine's clock. Only differences mean something, and never with those of another clock."""
    return time.monotonic() if BOOT_CLOCK is None else time.clock_gettime(BOOT_CLOCK)


def read_clocks() -> Now:
    """The engine's clock, and the wall clock."""
    return Now(engine_s(), time.time_ns() // 1_000_000)
