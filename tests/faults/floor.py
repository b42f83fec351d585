"""How busy the machine is: how late a thread wakes that wanted to wake every few milliseconds, on each processor.

One thread that may run anywhere tells nothing of a processor that the hypervisor took away: it runs on another one. And
one that wants little is never late, where others wait: what they waited for a processor the kernel counts (`waited_s`).
"""

import os
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

INTERVAL_S = 0.01
NOTED_S = 0.05
"""A wait longer than this beyond the interval counts as the machine's stall."""


class _Processor:
    """Measures on one processor, in a thread of its own."""

    def __init__(self, number: int, stop: threading.Event) -> None:
        self.late_s: list[float] = []
        self.stalls: list[tuple[float, float]] = []
        self._number = number
        self._stop = stop
        self.thread = threading.Thread(target=self._run, name=f"floor-{number}", daemon=True)

    def _run(self) -> None:
        os.sched_setaffinity(0, {self._number})  # of this thread alone
        while not self._stop.is_set():
            before_s = time.monotonic()
            time.sleep(INTERVAL_S)
            now_s = time.monotonic()
            late_s = now_s - before_s - INTERVAL_S
            self.late_s.append(late_s)
            if late_s > NOTED_S:
                self.stalls.append((now_s, late_s))

    def stalled_s(self, since_s: float) -> float:
        return sum(late_s for at_s, late_s in self.stalls if at_s >= since_s)


class Floor:
    """Measures from `start` to `stop`."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._processors = [_Processor(number, self._stop) for number in sorted(os.sched_getaffinity(0))]

    def start(self) -> None:
        for processor in self._processors:
            processor.thread.start()

    def stop(self) -> None:
        self._stop.set()
        for processor in self._processors:
            processor.thread.join(5)

    def stalled_s(self, since_s: float) -> float:
        """Sum of the stalls since a moment of the monotonic clock, of the processor that stalled most."""
        return max(processor.stalled_s(since_s) for processor in self._processors)

    def summary(self) -> dict[str, float]:
        """Milliseconds, of all processors together; stalls as `stalled_s`."""
        late = sorted(late_s for processor in self._processors for late_s in processor.late_s) or [0.0]
        return {
            "p50_ms": round(late[len(late) // 2] * 1_000, 2),
            "p99_ms": round(late[int(len(late) * 0.99)] * 1_000, 2),
            "max_ms": round(late[-1] * 1_000, 1),
            "stalled_s": round(self.stalled_s(0.0), 2),
        }


def waited_s(pids: Iterable[int], root: Path = Path("/proc")) -> dict[str, float]:
    """For each thread of these processes how long it could have run and had no processor, since it began (`schedstat`)."""
    waits_s: dict[str, float] = {}
    for pid in pids:
        for file in root.glob(f"{pid}/task/*/schedstat"):
            try:
                waits_s[str(file)] = int(file.read_text().split()[1]) / 1e9
            except (OSError, ValueError, IndexError):  # it has just ended
                continue
    return waits_s


def withheld_s(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """How long the thread waited that waited longest between the two."""
    return max((waited - before.get(thread, 0.0) for thread, waited in after.items()), default=0.0)
