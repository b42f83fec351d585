"""History of one broker for `weighted-move`: its use, its noise, and for how long it has deviated from the mean. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

from shedders.model.readings import is_amount
from shedders.weighted_move.loads import Use

SMOOTHED = 3
"""A broker's use is the mean of up to this many of its last readings; fewer after a move."""

NOISE = 0.04
"""Prior for the noise of a new broker, in parts of its level: that of ordinary traffic."""

NOISE_WEIGHT = 4
"""Weight of the prior, in readings."""

NOISE_WINDOW = 20
"""Number of readings over which noise is measured."""

NEWS = 0.2
"""A level that changed by at least this part is new: hits of the old one do not count for it."""

JUMP = 4.0
"""A reading this many standard deviations off is not noise."""

USUAL_S = 900.0
"""A level that has lasted for this time is the usual one: three times a burst."""

PLACED = 0.1
"""If the number of a broker's bundles changes by more than this part, its load is a new one; splits change less."""

_SPREAD = 0.8862
"""Standard deviation of a reading in parts of the mean distance between two of them (sqrt(pi) / 2)."""

_DIGITS = 4
_FIELDS = 14


@dataclass(slots=True)
class BrokerHistory:
    """The history of one broker.

    Attributes:
        count: Readings since bundles came or went, at most `SMOOTHED`.
        use: Their mean.
        last: Its level at the last reading, in parts of a limit.
        noise: Mean distance between two readings, over `noted` of them.
        mean: Mean level of the readings that are in `use`.
        usual: Its level over the last quarter of an hour before it deviated, in parts of a limit.
        bundles: Number of its bundles at the last reading.
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
        """Add a reading. The same as before is the same report: it counts, but not for the noise.

        The mean restarts after bundles came or went, and with a reading that is too far off for noise; if it is very far off,
        hits are reset as well.

        Args:
            moved: Whether bundles came or went.
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
        """The part of its use that is not new: all of it once it has lasted for `hits` hits."""
        if self.over[0] >= hits or not self.usual < self.mean * (1 - NEWS / 2):
            return 1.0
        return self.usual / self.mean

    def deviation(self, level: float) -> float:
        """Standard deviation of `use`, in parts of a limit: the measured one combined with the prior."""
        single = (self.noted * self.noise * _SPREAD + NOISE_WEIGHT * NOISE * level) / (self.noted + NOISE_WEIGHT)
        return single / sqrt(max(1, self.count))

    def hit(self, *, above: bool, below: bool, passed_s: float) -> None:
        """Count a hit above or below, or reset the count."""
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
        return [value if isinstance(value, int) else float(f"{value:.{_DIGITS}g}") for value in row]


def _one_more(hits: tuple[int, float], passed_s: float) -> tuple[int, float]:
    count, since_s = hits
    return min(count + 1, 1_000), since_s + passed_s if count else 0.0


def watched(row: Any) -> BrokerHistory | None:
    """A history from JSON; None if it is not a row of `BrokerHistory.dumped`."""
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
    """A row of `count` amounts; None if it is not one."""
    if not isinstance(row, list | tuple) or len(row) != count:
        return None
    values = [
        float(value)
        for value in row
        if isinstance(value, int | float) and not isinstance(value, bool) and is_amount(value)
    ]
    return values if len(values) == count else None
