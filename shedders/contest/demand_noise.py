"""Random numbers by seed, and the variation of each unit's demand: noise, daily waves, changes of single topics.

Variation is one factor per unit: 1 is the average. It can be computed in any order of time.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from zlib import crc32

import numpy as np

if TYPE_CHECKING:
    from shedders.contest.trace import Floats, Ints


def drawn(seed: int, count: int, *words: str | int) -> Floats:
    """`count` numbers from 0 to below 1, which depend only on the seed, the words and the count.

    Streams of different words are independent. Only `Generator.random` of PCG64 is used: whole numbers over 2**53, the same on
    every machine and in every version of numpy.
    """
    entropy = [seed, *(word if isinstance(word, int) else crc32(word.encode()) for word in words)]
    return np.random.Generator(np.random.PCG64(entropy)).random(count)


def round_digits(value: float) -> float:
    """The value rounded to 12 digits, as the last digits of sines and powers differ between machines."""
    return float(f"{value:.12g}")


def shuffled(seed: int, count: int, *words: str | int) -> Ints:
    """0 to count - 1 in an order that depends only on the seed, the words and the count."""
    return np.argsort(drawn(seed, count, *words), kind="stable")


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
        """Values of all units at a time, which are added to their factors."""
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


def noise_layers(seed: int, layers: Iterable[tuple[float, float]], units: int) -> list[NoiseLayer]:
    """Independent layers of a standard deviation and seconds between two draws."""
    return [NoiseLayer(seed, number, sd, every_s, units) for number, (sd, every_s) in enumerate(layers)]


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
        turns = [2 * math.pi * ((time_s + ahead) / self.period_s) for ahead in self.ahead_s]
        return np.array([1 + self.height * round_digits(math.sin(turn)) for turn in turns])[self.namespace]


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
    """Variation of the demand of all units: noise, waves, swells, and units that begin later.

    Attributes:
        absent: Units that are not there before a time.
    """

    units: int
    layers: Sequence[NoiseLayer] = ()
    wave: NamespaceWave | None = None
    swells: Sequence[LoadSwell] = ()
    absent: Sequence[tuple[float, Ints]] = ()

    def at(self, time_s: float) -> Floats:
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
