"""Habits of bundles: their mean traffic of the last hours, and how much of what they do beyond it passes by itself. Pure.

A move pays if the load that it levels is still there later. For each of the largest bundles the mean of its traffic is
remembered, wherever it was served, and its deviations from it: of a deviation d, d - d' has passed if it is d' in the mean of the
following `PASSES_S`. The part that passes, weighted by the squares of the deviations, is learnt from all bundles: for small
deviations, and for large ones (`LARGE`), of which each bundle has a count of its own as well. A bundle counts with what is
to be expected over the next hours:

    expected = now - passes * (now - mean)

Bursts and noise pass (1), so that such bundles count with their mean. Growth, waves, and load that has come to stay do not (0).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from math import exp
from typing import Any, NamedTuple
from zlib import crc32

from shedders.model.cluster import Bundle
from shedders.model.readings import MOST
from shedders.weighted_move.loads import traffic_of
from statechannel.protocol.bundle import parse_key

MOST_BUNDLES = 1_000  # the largest ones are remembered
MEAN_S = 21_600.0  # time over which the mean is taken
PASSES_S = 3_600.0  # a deviation that has passed within this time was not worth a move
LEARNT_S = 21_600.0  # time over which it is learnt what passes
OLD_S = 1_800.0  # a younger mean is no habit
PHASES = 16
OVER = 0.5  # a large deviation has passed when it is less than this part of what it was
LASTS = 3.0  # one that has lasted for this multiple of the usual time will not pass as the others did
LARGE = 0.5  # a deviation by at least this part of the mean is a burst, or another load than before
PRIOR = 0.003  # weight of the prior that nothing passes: some deviations of 2 % of a broker's traffic
OWN = 0.18  # weight of all bundles' deviations against a bundle's own: two deviations by 30 % of its mean
FAR = 10.0  # a deviation counts as at most this many average brokers' traffic
NEAR = 0.02  # a bundle this close to its expectation counts with what it does
_FIELDS = 9
_NONE = -1.0


class BundleHabit(NamedTuple):
    """What is remembered of a bundle; traffic in parts of an average broker's.

    Attributes:
        mean: Of its traffic, over `seen_s`, at most `MEAN_S`.
        distance, then, change, age_s: The last sample: by how much it deviated, its traffic, its mean change since, and the
            seconds since; age -1 without one.
        gone, seen: Sums of the squares of its large deviations, each times the part that has passed, and plain.
        last: Its traffic when it was last seen.
    """

    mean: float
    seen_s: float = 0.0
    distance: float = 0.0
    then: float = 0.0
    change: float = 0.0
    age_s: float = _NONE
    gone: float = 0.0
    seen: float = 0.0
    last: float = 0.0


@dataclass(slots=True)
class PassingSums:
    """How much of deviations has passed: sums of their squares, each times the part that has, and plain.

    Attributes:
        lasted: The sum of the squares, each times the seconds until it had passed.
    """

    gone: float = 0.0
    seen: float = 0.0
    lasted: float = 0.0

    @property
    def part(self) -> float:
        """The part that passes; 0 as long as little is known."""
        return self.gone / (self.seen + PRIOR)

    @property
    def usual_s(self) -> float:
        """For how long deviations last that pass."""
        return self.lasted / self.seen if self.seen > 0 else 0.0

    def add(self, distance: float, change: float, age_s: float) -> None:
        """Add a deviation, how the traffic has changed since, and for how long it lasted."""
        self.gone -= distance * change
        self.seen += distance * distance
        self.lasted += distance * distance * min(age_s, PASSES_S)


@dataclass(slots=True)
class Habits:
    """The memory of bundles' traffic.

    Attributes:
        bundles: By bundle; at most `MOST_BUNDLES`.
        small, large: What passes of all bundles' small and large deviations.
        least: Bundles with less traffic, in bytes a second, are too small to be among them.
    """

    bundles: dict[str, BundleHabit] = field(default_factory=dict)
    small: PassingSums = field(default_factory=PassingSums)
    large: PassingSums = field(default_factory=PassingSums)
    least: float = 0.0
    _unit: float = 0.0

    @classmethod
    def recall(cls, memory: Any, passed_s: float) -> Habits:
        """The memory from JSON."""
        if not isinstance(memory, Mapping):
            return cls()
        table, sums = memory.get("bundles"), _figures(memory.get("passing"), 7) or [0.0] * 7
        kept = exp(-passed_s / LEARNT_S)
        bundles: dict[str, BundleHabit] = {}
        for name, row in table.items() if isinstance(table, Mapping) else ():
            values = _figures(row, _FIELDS)
            if values is None or len(bundles) >= MOST_BUNDLES:
                continue
            mean, seen_s, distance, then, change, age_s, gone, seen, last = values
            if age_s >= 0:
                age_s += passed_s
            bundles[str(name)] = BundleHabit(
                mean, seen_s, distance, then, change, age_s, gone * kept, seen * kept, last
            )
        small, large = (PassingSums(*(value * kept for value in sums[place : place + 3])) for place in (0, 3))
        return cls(bundles, small, large, sums[6])

    def dumped(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "bundles": {name: [_short(value) for value in self.bundles[name]] for name in sorted(self.bundles)},
            "passing": [
                *map(_short, (self.small.gone, self.small.seen, self.small.lasted)),
                *map(_short, (self.large.gone, self.large.seen, self.large.lasted, self.least)),
            ],
        }

    def see(
        self, heavy: Iterable[tuple[float, Bundle]], unit: float, passed_s: float, present: Mapping[str, object]
    ) -> None:
        """Add this decision's traffic.

        Args:
            heavy: Bundles that their owners have measured, with bytes a second, corrected where an owner's figures are wrong.
            unit: An average broker's traffic, in bytes a second.
            present: All bundles: others are forgotten.
        """
        self._unit = unit
        if not unit > 0:
            return
        largest = nlargest(MOST_BUNDLES, heavy, key=_by_traffic)
        self.least = largest[-1][0] * 0.5 if len(largest) == MOST_BUNDLES else 0.0
        split = [name for name in self.bundles if name not in present]
        for traffic, bundle in largest:
            habit = self.bundles.get(bundle.name) or self._inherited(bundle.name, traffic / unit, split)
            # Samples of all bundles at once would miss, or meet, every burst of the same period.
            offset_s = crc32(bundle.name.encode()) % PHASES / PHASES * PASSES_S
            self.bundles[bundle.name] = self._seen(habit, traffic / unit, passed_s, offset_s)
        for name in split:
            del self.bundles[name]
        if len(self.bundles) > MOST_BUNDLES:
            kept = nlargest(MOST_BUNDLES, self.bundles, key=lambda name: (self.bundles[name].mean, name))
            self.bundles = {name: self.bundles[name] for name in kept}

    def _inherited(self, name: str, traffic: float, split: Iterable[str]) -> BundleHabit | None:
        """The habit of a bundle whose parent was split: that of the parent, as much less as it has less traffic."""
        parts = parse_key(name.encode()) if split else None
        for parent in split:
            whole = parse_key(parent.encode())
            if parts is None or whole is None or whole.namespace != parts.namespace:
                continue
            if whole.lower <= parts.lower and parts.upper <= whole.upper:
                habit = self.bundles[parent]
                share = traffic / habit.last if habit.last > 0 else 0.0
                return BundleHabit(habit.mean * min(1.0, share), habit.seen_s)
        return None

    def _seen(self, habit: BundleHabit | None, traffic: float, passed_s: float, offset_s: float) -> BundleHabit:
        if habit is None:
            return BundleHabit(traffic, last=traffic)
        mean, seen_s, distance, then, change, age_s, gone, seen, _ = habit
        seen_s = min(MEAN_S, seen_s + passed_s)
        if age_s > 0:
            change += (traffic - then - change) * min(1.0, passed_s / age_s)
        deviates = traffic - mean
        if seen_s > 0:
            mean += deviates * min(1.0, passed_s / seen_s)
        was_large = age_s >= 0 and abs(distance) >= LARGE * (then - distance)
        over = was_large and abs(deviates) < OVER * abs(distance)
        if over or age_s >= PASSES_S:
            change = traffic - then if over else change
            (self.large if was_large else self.small).add(distance, change, age_s)
            if was_large:
                gone, seen = gone - distance * change, seen + distance * distance
            age_s = _NONE
        begins = abs(deviates) >= LARGE * mean and not was_large and age_s < PASSES_S / 2
        if seen_s >= OLD_S and (begins or (age_s < 0 and seen_s >= min(MEAN_S, OLD_S + offset_s))):
            distance, then, change, age_s = max(-FAR, min(FAR, traffic - mean)), traffic, 0.0, 0.0
        return BundleHabit(mean, seen_s, distance, then, change, age_s, gone, seen, traffic)

    def passes(self, habit: BundleHabit, traffic: float) -> float:
        """The part of a bundle's present deviation that passes: 0 to 1."""
        if abs(traffic - habit.mean) < LARGE * habit.mean:
            return max(0.0, min(1.0, self.small.part))
        prior = OWN * habit.mean * habit.mean
        total = habit.seen + prior
        part = (habit.gone + prior * self.large.part) / total if total > 0 else self.large.part
        usual_s = self.large.usual_s
        if usual_s > 0 and habit.age_s > 0:
            part *= min(1.0, LASTS - habit.age_s / usual_s)
        return max(0.0, min(1.0, part))

    def expected(self, bundle: Bundle, traffic: float) -> float:
        """The traffic to be expected over the next hours, in parts of the present one."""
        habit = self.bundles.get(bundle.name)
        if habit is None or habit.seen_s < OLD_S or not traffic > 0 or not self._unit > 0:
            return 1.0
        now = traffic / self._unit
        part = 1 - self.passes(habit, now) * (now - habit.mean) / now
        return part if abs(part - 1) > NEAR else 1.0


def bytes_of(bundle: Bundle) -> float:
    """Bytes a second, as they count for moves."""
    traffic = traffic_of(bundle)
    return 0.0 if traffic is None else traffic.msg_throughput


def _by_traffic(pair: tuple[float, Bundle]) -> tuple[float, str]:
    return pair[0], pair[1].name


def _figures(row: Any, count: int) -> list[float] | None:
    """A row of figures, which may be negative; None if it is not one."""
    if not isinstance(row, list | tuple) or len(row) != count:
        return None
    values = [float(value) for value in row if type(value) in (int, float) and abs(value) <= MOST]
    return values if len(values) == count else None


def _short(value: float) -> float:
    return float(f"{value:.3g}")
