"""One broker over time, as `weighted-move` watches it: its use, its noise, and for how long it has stood apart. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

from shedders.model.readings import is_amount
from shedders.weighted_move.loads import Use

SMOOTHED = 3
"""A broker's use is the mean of its last readings, so many once there are as many; fewer after a move."""

NOISE = 0.04
"""Taken for the noise of a broker nobody has watched yet, in parts of its level: as much as ordinary traffic shows."""

NOISE_WEIGHT = 4
"""What is taken for granted counts as much as so many readings."""

NOISE_WINDOW = 20
"""Readings that the measured noise goes back to."""

NEWS = 0.2
"""A level that differs so much from what it was is another matter: hits for the old one do not count for it."""

JUMP = 4.0
"""A reading so many standard deviations off is no noise."""

USUAL_S = 900.0
"""What has lasted for so long is usual: three times a burst."""

PLACED = 0.1
"""When a broker has so much more or fewer bundles, in parts of what it had, its load is another one; splits change less."""

_SPREAD = 0.8862
"""Standard deviation of a reading in parts of the mean distance between two of them (sqrt(pi) / 2)."""

_DIGITS = 4
_FIELDS = 14


@dataclass(slots=True)
class BrokerHistory:
    """One broker over time.

    Attributes:
        count: Readings since something came to it or went, at most `SMOOTHED`.
        use: Their mean.
        last: Its level at the last reading, in parts of a limit.
        noise: Mean distance between two readings, over `noted` of them.
        mean: Mean level of the readings that are in `use`.
        usual: Its level over the last quarter of an hour before it stood apart, in parts of a limit.
        bundles: How many it had then.
        over, under: Hits in a row, with the seconds since the first.
    """

    count: int = 0
    use: Use = (0.0, 0.0, 0.0)
    last: float = 0.0
    noise: float = 0.0
    noted: int = 0
    mean: float = 0.0
    usual: float = 0.0
    bundles: int = 0
    over: tuple[int, float] = (0, 0.0)
    under: tuple[int, float] = (0, 0.0)

    def read(self, use: Use, level: float, bundles: int, *, moved: bool, passed_s: float) -> None:
        """One more reading. The same as before is the same report: it counts, but tells nothing of noise.

        After something came or went everything begins anew; so it does with a reading that is too far off for noise, and where it
        is very far off hits do, too.

        Args:
            moved: Something did.
        """
        more = abs(bundles - self.bundles)
        if moved or more > max(1, self.bundles * PLACED):
            self.count = 0
        self.bundles = bundles
        news = False
        if not self.count:
            self.usual = level
        elif level != self.last:
            jump = abs(level - self.last)
            if abs(level - self.mean) > JUMP * self.deviation(self.mean):
                self.count = 0
                news = abs(level - self.mean) > NEWS * self.mean
            self.noted = min(self.noted + 1, NOISE_WINDOW)
            self.noise += (min(jump, JUMP * NOISE * level) - self.noise) / self.noted
        if not (self.over[0] or self.under[0] or news):
            self.usual += (level - self.usual) * min(1.0, passed_s / USUAL_S)
        if news:
            self.over = self.under = (0, 0.0)
        self.last = level
        self.count = min(self.count + 1, SMOOTHED)
        old = self.use
        self.use = (
            old[0] + (use[0] - old[0]) / self.count,
            old[1] + (use[1] - old[1]) / self.count,
            old[2] + (use[2] - old[2]) / self.count,
        )
        self.mean += (level - self.mean) / self.count

    def steady(self, hits: int) -> float:
        """Which part of its use is no news: all of it once it has lasted for so many hits."""
        if self.over[0] >= hits or not self.usual < self.mean * (1 - NEWS / 2):
            return 1.0
        return self.usual / self.mean

    def deviation(self, level: float) -> float:
        """Standard deviation of `use`, in parts of a limit: what was measured, and what is taken for granted beside it."""
        single = (self.noted * self.noise * _SPREAD + NOISE_WEIGHT * NOISE * level) / (self.noted + NOISE_WEIGHT)
        return single / sqrt(max(1, self.count))

    def hit(self, *, above: bool, below: bool, passed_s: float) -> None:
        """Count, or begin anew."""
        self.over = _one_more(self.over, passed_s) if above else (0, 0.0)
        self.under = _one_more(self.under, passed_s) if below else (0, 0.0)

    def dumped(self) -> list[float]:
        """For JSON."""
        averages = (self.mean, self.usual)
        row = (
            self.count,
            *self.use,
            self.last,
            self.noise,
            self.noted,
            *averages,
            self.bundles,
            *self.over,
            *self.under,
        )
        return [one if isinstance(one, int) else float(f"{one:.{_DIGITS}g}") for one in row]


def _one_more(hits: tuple[int, float], passed_s: float) -> tuple[int, float]:
    count, since_s = hits
    return min(count + 1, 1_000), since_s + passed_s if count else 0.0


def watched(row: Any) -> BrokerHistory | None:
    """Out of JSON; None where that is no row of `BrokerHistory.dumped`."""
    values = numbers(row, _FIELDS)
    if values is None:
        return None
    count, cpu, inwards, outwards, last, noise, noted, mean, usual, bundles, over, over_s, under, under_s = values
    return BrokerHistory(
        min(int(count), SMOOTHED),
        (cpu, inwards, outwards),
        last,
        noise,
        min(int(noted), NOISE_WINDOW),
        mean,
        usual,
        int(min(bundles, 1e9)),
        (min(int(over), 1_000), over_s),
        (min(int(under), 1_000), under_s),
    )


def numbers(row: Any, count: int) -> list[float] | None:
    """A row of so many amounts; None where it is none."""
    if not isinstance(row, list | tuple) or len(row) != count:
        return None
    found = [float(one) for one in row if isinstance(one, int | float) and not isinstance(one, bool) and is_amount(one)]
    return found if len(found) == count else None
