"""Average and spread of broker loads for TransferShedder: a stable one of ours, and upstream's arithmetic as it is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping


class Spread:
    """Mean and standard deviation over brokers, kept up to date while moves are planned.

    The deviation is taken from the mean in a second pass over exactly rounded sums, so it is never below zero or not a
    number, whatever the order of the brokers (design/decisions/0046).
    """

    def __init__(self, loads: Mapping[str, float]) -> None:
        self.loads = dict(loads)
        self.mean = math.fsum(self.loads.values()) / len(self.loads) if self.loads else 0.0
        self.std = self._std()

    def shift(self, source: str, destination: str, amount: float) -> None:
        """Book that this much load goes from one broker to another; a source does not sink below 0."""
        self.loads[source] = max(0.0, self.loads[source] - amount)
        self.loads[destination] += amount
        self.std = self._std()

    def _std(self) -> float:
        if not self.loads:
            return 0.0
        squares = math.fsum((load - self.mean) * (load - self.mean) for load in self.loads.values())
        return math.sqrt(squares / len(self.loads))


class UpstreamSpread:
    """Upstream's `LoadStats`: running sums of loads and of their squares, in the order given.

    The difference of two nearly equal numbers under the root can be below zero; Java's root of that is not a number, and
    every comparison with it is false. So it is here.
    """

    def __init__(self, loads: Iterable[float]) -> None:
        total, self._squares, self._count = 0.0, 0.0, 0
        for load in loads:
            total += load
            self._squares += load * load
            self._count += 1
        self.mean = divide(total, self._count) if self._count else 0.0
        self.std = root(divide(self._squares, self._count) - self.mean * self.mean) if self._count else 0.0

    def shift(self, source: float, destination: float, amount: float) -> None:
        """Book a pair by the loads that its brokers had before."""
        self._squares -= source * source + destination * destination
        lower, higher = larger(0.0, source - amount), destination + amount
        self._squares += lower * lower + higher * higher
        self.std = root(abs(divide(self._squares, self._count) - self.mean * self.mean))


def divide(value: float, by: float) -> float:
    """Division as IEEE 754 has it: by zero it gives an infinity or not-a-number, never an error."""
    if by:
        return value / by
    if not value or math.isnan(value):
        return math.nan
    return math.copysign(math.inf, value) * math.copysign(1.0, by)


def larger(left: float, right: float) -> float:
    """The larger one; not-a-number if either is (Java's `Math.max`)."""
    return math.nan if math.isnan(left) or math.isnan(right) else max(left, right)


def root(value: float) -> float:
    """Square root; not-a-number below zero."""
    return math.sqrt(value) if value >= 0 else math.nan


def ascending(load: float) -> tuple[bool, float, float]:
    """Sort key of Java's `Double.compare`: -0.0 before 0.0, not-a-number last."""
    return (True, 0.0, 0.0) if math.isnan(load) else (False, load, math.copysign(1.0, load))
