"""Variation of each unit's demand over time: noise, daily waves, changes of single topics. Computable in any order.

It is one factor per unit: 1 is the average.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from shedders.contest.draws import alike, drawn

if TYPE_CHECKING:
    from shedders.contest.trace import Floats, Ints

FLOOR: Final = 0.05
"""Noise takes no more than all but this of a unit's load."""
_WIDTH: Final = math.sqrt(12.0)
"""Of an even distribution whose standard deviation is 1."""
_KEPT: Final = 4


@dataclass
class NoiseLayer:
    """Values drawn at intervals, independently for each unit, with linear interpolation.

    Attributes:
        sd: Standard deviation; the same at every moment.
        number: Of this layer: layers are independent.
    """

    seed: int
    number: int
    sd: float
    every_s: float
    units: int
    _drawn: OrderedDict[int, Floats] = field(default_factory=OrderedDict)

    def at(self, time_s: float) -> Floats:
        """What is added to the factors."""
        place = time_s / self.every_s
        slot = math.floor(place)
        rest = place - slot
        if rest == 0:
            return self._values(slot) * self.sd
        # Between two independent values the mixture is narrower than each; this undoes it.
        scale = self.sd / math.sqrt((1 - rest) * (1 - rest) + rest * rest)
        return self._values(slot) * ((1 - rest) * scale) + self._values(slot + 1) * (rest * scale)

    def _values(self, slot: int) -> Floats:
        values = self._drawn.get(slot)
        if values is None:
            values = (drawn(self.seed, self.units, "noise", self.number, slot) - 0.5) * _WIDTH
            self._drawn[slot] = values
            while len(self._drawn) > _KEPT:
                self._drawn.popitem(last=False)
        return values


@dataclass(frozen=True)
class NamespaceWave:
    """A wave for each namespace.

    Attributes:
        ahead_s: By how much each namespace is ahead.
        namespace: Of each unit.
    """

    height: float
    period_s: float
    ahead_s: Sequence[float]
    namespace: Ints

    def at(self, time_s: float) -> Floats:
        """Factor of each unit."""
        turns = [2 * math.pi * ((time_s + ahead) / self.period_s) for ahead in self.ahead_s]
        return np.array([1 + self.height * alike(math.sin(turn)) for turn in turns])[self.namespace]


@dataclass(frozen=True)
class LoadSwell:
    """Some units have another load for some time.

    Attributes:
        peak: Factor of each of them at the height of it.
        full_s: From then on it is in full; before, from `from_s` on, it rises.
        until_s: From then on all is as before.
    """

    units: Ints
    peak: Floats
    from_s: float
    full_s: float
    until_s: float = math.inf

    def height(self, time_s: float) -> float:
        """0: nothing of it, 1: in full."""
        if not self.from_s <= time_s < self.until_s:
            return 0.0
        if time_s >= self.full_s:
            return 1.0
        return (time_s - self.from_s) / (self.full_s - self.from_s)


@dataclass(frozen=True)
class DemandVariation:
    """All of it together.

    Attributes:
        absent: Units that are not there before a time.
    """

    units: int
    layers: Sequence[NoiseLayer] = ()
    wave: NamespaceWave | None = None
    swells: Sequence[LoadSwell] = ()
    absent: Sequence[tuple[float, Ints]] = ()

    def at(self, time_s: float) -> Floats:
        """Factor of each unit at a time."""
        factors = np.ones(self.units)
        for layer in self.layers:
            factors += layer.at(time_s)
        if self.layers:
            np.maximum(factors, FLOOR, out=factors)
        if self.wave is not None:
            factors *= self.wave.at(time_s)
        for swell in self.swells:
            height = swell.height(time_s)
            if height > 0:
                factors[swell.units] *= 1 + height * (swell.peak - 1)
        for until_s, units in self.absent:
            if time_s < until_s:
                factors[units] = 0.0
        return factors
