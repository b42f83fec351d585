"""How long brokers have too much load before it passes by itself. Pure.

A move that levels a burst has to be undone once it is over. For each time that a broker's level rose, this notes how long it
stayed there. If it fell by itself, until then. If bundles were moved away, the part of the load above the mean counts as the
burst, and moved bundles as having the same share of it: it has passed once half of what is left of it has gone; if it has not
within `LASTS_S` after the move, it has stayed. A raised level is expected to fall soon if most earlier ones did that had lasted
as long. Where most last for longer than a few minutes, waiting only leaves brokers uneven: larger gaps are followed at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import exp
from typing import Any

from shedders.model.readings import numbers

ENDS_S = (90.0, 150.0, 210.0, 270.0, 390.0, 510.0, 750.0, 990.0, 1_470.0, 1_950.0)
"""Durations are counted in classes with these upper ends, between whole minutes: decisions are a minute apart, more or less."""
LASTS_S = 1_800.0
KEPT_S = 21_600.0  # time over which counts fade
FEW = 2.5  # two that passed are chance; three of the last hours fade to this
SOON_S = 180.0  # three decisions
BRIEF_S = 60.0  # what is over so soon says nothing about what a move is worth
WAITS = 2  # a level that is expected to fall soon is left alone for up to this multiple of the usual hits
PASSED = 0.5  # a relieved burst has passed when this part of what is left of it has gone


@dataclass(frozen=True, slots=True)
class RelievedBurst:
    """A broker that gave bundles because its level had risen.

    Attributes:
        lasted_s: For how long it had risen by then.
        passed_level: At this level or below, in parts of the mean, the cause has passed.
        since_s: Seconds since.
    """

    lasted_s: float
    passed_level: float
    since_s: float = 0.0


@dataclass(slots=True)
class Bursts:
    """The memory of levels that rose.

    Attributes:
        passed: By class of duration, how many passed, fading.
        stayed: How many did not, likewise.
        relieved: By broker, those of which it is not known yet.
    """

    passed: list[float] = field(default_factory=lambda: [0.0] * len(ENDS_S))
    stayed: float = 0.0
    relieved: dict[str, RelievedBurst] = field(default_factory=dict)

    @classmethod
    def recall(cls, memory: Any, passed_s: float, present: Mapping[str, object]) -> Bursts:
        """The memory from JSON; brokers that left are dropped."""
        if not isinstance(memory, Mapping):
            return cls()
        counts = numbers(memory.get("counts"), len(ENDS_S) + 1) or [0.0] * (len(ENDS_S) + 1)
        kept = exp(-passed_s / KEPT_S)
        table = memory.get("relieved")
        relieved = {
            str(name): RelievedBurst(values[0], values[1], values[2] + passed_s)
            for name, row in (table.items() if isinstance(table, Mapping) else ())
            if name in present and (values := numbers(row, 3)) is not None
        }
        return cls([count * kept for count in counts[:-1]], counts[-1] * kept, relieved)

    def dumped(self) -> dict[str, Any]:
        """For JSON; empty if nothing is known. Enough digits for the fading of one decision."""
        counts = [float(f"{count:.6g}") for count in (*self.passed, self.stayed)]
        relieved = {
            name: [round(burst.lasted_s, 1), round(burst.passed_level, 4), round(burst.since_s, 1)]
            for name, burst in sorted(self.relieved.items())
        }
        return {name: value for name, value in (("counts", counts), ("relieved", relieved)) if value and any(value)}

    def ended(self, lasted_s: float) -> None:
        """Count a level that has risen and is over; one that lasted for longer than the last class has stayed."""
        place = bisect_left(ENDS_S, lasted_s)
        if place < len(ENDS_S):
            self.passed[place] += 1.0
        else:
            self.stayed += 1.0

    def relieve(self, name: str, lasted_s: float, before: float, after: float) -> None:
        """A broker gives bundles because its level has risen. This replaces a rise of the same broker whose end is still open.

        Args:
            lasted_s: For how long.
            before, after: Its level, in parts of the mean, without and with the moves.
        """
        self.relieved[name] = RelievedBurst(lasted_s, after * (1 - PASSED * (1 - 1 / before)))

    def adjust(self, name: str, before: float, after: float) -> None:
        """A broker gives or gets bundles for another cause, which changes the level at which its relieved burst has passed.

        Args:
            before, after: As for `relieve`.
        """
        burst = self.relieved.get(name)
        if burst is not None:
            level = burst.passed_level
            level = level * after / before if after < before else level + after - before
            self.relieved[name] = replace(burst, passed_level=level)

    def look(self, levels: Mapping[str, float]) -> None:
        """Find out whether what was relieved would have passed.

        Args:
            levels: Of each broker, in parts of the mean.
        """
        for name, burst in list(self.relieved.items()):
            level = levels.get(name)
            if level is None or level <= burst.passed_level:
                if level is not None:
                    self.ended(burst.lasted_s + burst.since_s)
                del self.relieved[name]
            elif burst.since_s >= LASTS_S:
                self.stayed += 1.0
                del self.relieved[name]

    def passes_soon(self, lasted_s: float, passed_s: float) -> bool:
        """Whether most levels that had lasted for this long fell within `SOON_S`, to the end of that class.

        Args:
            passed_s: Time between two decisions: none of them can have fallen sooner.
        """
        soon, later = self._fell(bisect_left(ENDS_S, lasted_s + passed_s), lasted_s + SOON_S)
        return soon >= max(FEW, later)

    @property
    def rises_last(self) -> bool:
        """Whether most levels that outlasted the class of `BRIEF_S` stayed for longer than another `SOON_S`."""
        soon, later = self._fell(bisect_left(ENDS_S, BRIEF_S) + 1, BRIEF_S + SOON_S)
        return later >= FEW and later > soon

    def _fell(self, first: int, until_s: float) -> tuple[float, float]:
        """Of the levels of this class and longer ones, how many fell until then, and how many later or never."""
        end = bisect_left(ENDS_S, until_s) + 1
        return sum(self.passed[first:end]), self.stayed + sum(self.passed[end:])
