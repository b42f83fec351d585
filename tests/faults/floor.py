"""How busy the machine is: how late a task wakes that wanted to wake every few milliseconds."""

from __future__ import annotations

import threading
import time

INTERVAL_S = 0.01
NOTED_S = 0.05
"""A wait longer than this beyond the interval counts as the machine's stall."""


class Floor:
    """Measures in a thread of its own, from `start` to `stop`."""

    def __init__(self) -> None:
        self._late_s: list[float] = []
        self._stalls: list[tuple[float, float]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="floor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(5)

    def _run(self) -> None:
        while not self._stop.is_set():
            before_s = time.monotonic()
            time.sleep(INTERVAL_S)
            now_s = time.monotonic()
            late_s = now_s - before_s - INTERVAL_S
            self._late_s.append(late_s)
            if late_s > NOTED_S:
                self._stalls.append((now_s, late_s))

    def stalled_s(self, since_s: float) -> float:
        """Sum of the stalls since a moment of the monotonic clock."""
        return sum(late_s for at_s, late_s in self._stalls if at_s >= since_s)

    def summary(self) -> dict[str, float]:
        """Milliseconds."""
        late = sorted(self._late_s) or [0.0]
        return {
            "p50_ms": round(late[len(late) // 2] * 1_000, 2),
            "p99_ms": round(late[int(len(late) * 0.99)] * 1_000, 2),
            "max_ms": round(late[-1] * 1_000, 1),
            "stalled_s": round(sum(late_s for _, late_s in self._stalls), 2),
        }
