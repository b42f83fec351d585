"""Stalls of the event loop, by the driver itself or by other code before the driver's turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass


@dataclass(slots=True)
class StallsSeen:
    """The longest times since the start.

    Attributes:
        turn_max_s: Delay of a turn of the driver: other code in the loop.
        burst_cpu_max_s: The same in processor time of the loop's thread, without delays by a busy machine.
    """

    turn_max_s: float = 0.0
    burst_max_s: float = 0.0
    burst_cpu_max_s: float = 0.0


class Stalls:
    """Measures each turn of a driver; the clocks are the loop's own (monotonic) and that of its thread.

    Attributes:
        on_turn: Called with the delay (seconds) of each turn.
        on_burst: Called with the duration (seconds) of each turn.
    """

    def __init__(self, mono_s: Callable[[], float] = time.monotonic) -> None:
        self._mono_s = mono_s
        self.seen = StallsSeen()
        self.on_turn: Callable[[float], None] | None = None
        self.on_burst: Callable[[float], None] | None = None
        self._due_s: float | None = None
        self._began_s = 0.0
        self._began_cpu_s = 0.0

    @property
    def max_s(self) -> float:
        return max(self.seen.turn_max_s, self.seen.burst_max_s)

    def due(self, at_s: float) -> None:
        """Note that a turn is due at this time; of several the earliest counts. Also from other threads."""
        due_s = self._due_s
        if due_s is None or at_s < due_s:
            self._due_s = at_s

    def begin(self) -> None:
        self._began_s, self._began_cpu_s = self._mono_s(), time.thread_time()
        due_s, self._due_s = self._due_s, None
        if due_s is not None:
            late_s = self._began_s - due_s
            self.seen.turn_max_s = max(self.seen.turn_max_s, late_s)
            if self.on_turn is not None:
                self.on_turn(late_s)

    def end(self) -> None:
        seen, held_s = self.seen, self._mono_s() - self._began_s
        if self.on_burst is not None:
            self.on_burst(held_s)
        seen.burst_max_s = max(seen.burst_max_s, held_s)
        if held_s > seen.burst_cpu_max_s:  # the thread's clock costs a call of the system
            seen.burst_cpu_max_s = max(seen.burst_cpu_max_s, time.thread_time() - self._began_cpu_s)

    def reset(self) -> StallsSeen:
        """The longest times since the last call; resets them."""
        seen, self.seen = self.seen, StallsSeen()
        return seen

    def to_json(self) -> dict[str, float]:
        return {name.removesuffix("_s") + "_ms": value * 1000 for name, value in asdict(self.seen).items()}
