"""Proven lower bounds on the largest use that moves of bundles can reach. Pure.

The largest use is the largest `use / limit` over all brokers and resources. A relaxation allows all that the real problem allows,
and more, so no real solution is below its optimum. In this one bundles may be cut in pieces:

* Level: all brokers together hold all use of a resource. Brokers that take no bundles hold at most what they have.
* Rest: use that no move can take away from a broker stays there.
* Largest bundle: a single bundle is on some broker as a whole, at best on the one where it takes the least part.
* Load: a broker above a level has to give the difference away. For a resource, or a weighted mean of several, that costs at least
  the load of the pieces with the most use for their load; the largest of these costs counts. The sum over all brokers is at most
  the load that may be moved.

The first three hold for any load. The last one is joint: all resources share one load. A bundle with more load than may be moved
stays. What is given away may go anywhere: where brokers differ much in which resource is scarce, no mixture of bundles fills them
all, and the bound is too low.

Bundles are read broker by broker, the most used first, up to a fixed number. Of the other brokers only the most use that a unit
of load can take away is known: as if they had only bundles of that kind. That lowers the bound, and it still holds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from operator import itemgetter, mul
from typing import Final, NamedTuple

from shedders.model.readings import MOST

BUNDLES_READ: Final = 3_000  # a few milliseconds
BROKER_COSTS: Final = 2  # a broker takes as long as this number of bundles; they are read the less for it
BUNDLES_READ_LEAST: Final = 500
LARGEST: Final = 4  # number of the largest bundles for which the best broker is searched
STEPS_MAX: Final = 60
ROUNDS: Final = 6  # largest number of rounds of the search for weights of the resources
FACTOR: Final = 4.0  # largest change of a weight in one round
MIXED: Final = 1_200  # number of bundles in all rounds, less one for each broker: a few milliseconds
_USE = itemgetter(0)
_LOAD = itemgetter(1)
ROUNDING: Final = 1e-9  # relative error of sums; the bound is lowered and the load is raised by it


class BrokerUse(NamedTuple):
    """A broker.

    Attributes:
        use: By resource, in its own unit.
        limits: Likewise; 0: none is known, so that the resource does not count on this broker.
        most: Use of each resource that one unit of load takes away at most; infinite if unknown.
    """

    use: tuple[float, ...]
    limits: tuple[float, ...]
    most: tuple[float, ...]
    bundles: int
    takes: bool = True


BundleUse = tuple[tuple[float, ...], float]
"""A bundle that can be moved: its use by resource, and the load that a move of it costs."""


class RelaxedBound:
    """Bounds for one cluster.

    Args:
        bundles: The bundles of a broker that can be moved, by the broker's place in `brokers`.
        bundles_read: Largest number of bundles that are read; by default as many as take some milliseconds.

    Attributes:
        levels: The largest use of each broker now.
        any_load: No moves get below this, whatever load they move.
    """

    def __init__(
        self,
        brokers: Sequence[BrokerUse],
        bundles: Callable[[int], Iterable[BundleUse]],
        *,
        bundles_read: int | None = None,
    ) -> None:
        self._brokers = brokers
        self.levels = [level_of(broker.use, broker.limits) for broker in brokers]
        self._read: dict[int, Sequence[BundleUse]] = {}
        self._slopes: dict[int, Sequence[tuple[float, float]]] = {}
        self._bound = max(self.levels, default=0.0)
        if any(broker.takes for broker in brokers):
            self._bound = max(map(self._even_level, range(len(brokers[0].limits))), default=0.0)
            usual = max(BUNDLES_READ_LEAST, BUNDLES_READ - BROKER_COSTS * len(brokers))
            self._read_bundles(bundles, usual if bundles_read is None else bundles_read)
            self._bound = max(self._bound, self._largest_bundle())
        self.any_load = _lowered(self._bound)

    def within(self, load: float) -> float:
        """No moves with at most this load in all get below this."""
        load += load * ROUNDING
        bound = self._reached(load, self._bound, {})
        movable: dict[int, Sequence[BundleUse]] = {}
        for place, read in self._read.items():
            if self.levels[place] > bound:
                light = [bundle for bundle in read if bundle[1] <= load]
                bound = max(bound, self._rest(place, light))
                movable[place] = light
        curves = {place: self._single(place, bundles, bound) for place, bundles in movable.items()}
        bound = self._reached(load, bound, curves)
        rounds = max(0, MIXED - len(self._brokers)) // max(1, sum(map(len, movable.values())))
        for place, bundles in movable.items():
            if self.levels[place] > bound:
                curves[place] += self._mixed(place, bundles, curves[place], bound, min(ROUNDS, rounds))
        return _lowered(self._reached(load, bound, curves))

    # --- any load ---------------------------------------------------------------------------------------------------

    def _even_level(self, resource: int) -> float:
        """The level if all use of a resource is spread by capacity over the brokers that take bundles."""
        used = room = 0.0
        others = []
        for broker in self._brokers:
            use, limit = broker.use[resource], broker.limits[resource]
            if not broker.takes:
                if limit > 0:
                    others.append((use / limit, use, limit))
            elif limit > 0:
                used += use
                room += limit
            else:
                return 0.0  # it could take everything
        others.sort(reverse=True)
        level = used / room
        for own, use, limit in others:
            if own <= level:
                break
            used += use
            room += limit
            level = used / room
        return level

    def _read_bundles(self, bundles: Callable[[int], Iterable[BundleUse]], bundles_read: int) -> None:
        left = bundles_read
        for place in sorted(range(len(self._brokers)), key=lambda place: -self.levels[place]):
            broker = self._brokers[place]
            if self.levels[place] <= self._bound:
                break
            if broker.bundles <= left:
                self._read[place] = read = list(bundles(place))
                left -= broker.bundles
                rest = self._rest(place, read)
            else:
                rest = max((level for level, weight in self._lines(place) if weight >= MOST), default=0.0)
            self._bound = max(self._bound, rest)

    def _rest(self, place: int, bundles: Sequence[BundleUse]) -> float:
        broker = self._brokers[place]
        return level_of(_without(broker.use, bundles), broker.limits)

    def _largest_bundle(self) -> float:
        """Level of the bundle that makes the most of a broker even where it makes the least."""
        takers = [broker.limits for broker in self._brokers if broker.takes]
        room = tuple(0.0 if min(limits) <= 0 else max(limits) for limits in zip(*takers, strict=True))
        large = [
            (level, place, bundle)
            for place, read in self._read.items()
            if read and level_of(list(map(max, zip(*map(_USE, read), strict=True))), room) > self._bound
            for bundle in read
            if (level := level_of(bundle[0], room)) > self._bound
        ]
        large.sort(key=itemgetter(0), reverse=True)
        kinds = Counter(takers)
        highest = 0.0
        for _, place, bundle in large[:LARGEST]:
            own = self._brokers[place]
            alone = [other for other in self._read[place] if other is not bundle]
            best = level_of(_without(own.use, alone), own.limits)
            for limits, count in kinds.items():
                if count > 1 or limits != own.limits or not own.takes:
                    best = min(best, level_of(bundle[0], limits))
            highest = max(highest, best)
        return highest

    # --- a given load -----------------------------------------------------------------------------------------------

    def _single(self, place: int, bundles: Sequence[BundleUse], bound: float) -> list[_Curve]:
        """A curve for each resource above the bound."""
        return [
            _Curve.of(level, zip(owns, map(_LOAD, bundles), strict=True), bound)
            for level, owns in self._parts(place, bundles, bound)
        ]

    def _mixed(
        self, place: int, bundles: Sequence[BundleUse], single: Sequence[_Curve], bound: float, rounds: int
    ) -> list[_Curve]:
        """Curves for weighted means of the resources above the bound: what has to go of each has to go of their mean.

        A bundle takes all its resources along, so the cheapest bundles for one resource may be of little use for another. At
        first a resource weighs what the next bit of it costs by itself; those of which the cheapest bundles for the mean leave
        too much get more.
        """
        parts = self._parts(place, bundles, bound)
        loads = list(map(_LOAD, bundles))
        costs = [curve.at(bound)[1] for curve in single if curve.level > bound]
        weights = [cost / sum(costs) if sum(costs) > 0 else 1 / len(costs) for cost in costs]
        curves: list[_Curve] = []
        for _ in range(rounds if len(parts) > 1 else 0):
            level = sum(weight * own for weight, (own, _) in zip(weights, parts, strict=True))
            rows = zip(*(owns for _, owns in parts), strict=True)
            means = [sum(map(mul, weights, row)) for row in rows]
            curves.append(_Curve.of(level, zip(means, loads, strict=True), bound))
            cheapest = sorted(
                range(len(bundles)), key=lambda bundle: loads[bundle] / means[bundle] if means[bundle] > 0 else inf
            )
            left = level - bound
            gone = [0.0] * len(parts)
            for bundle in cheapest:
                if left <= 0 or means[bundle] <= 0:
                    break
                part = min(1.0, left / means[bundle])
                left -= part * means[bundle]
                for resource, (_, owns) in enumerate(parts):
                    gone[resource] += part * owns[bundle]
            raised = [
                weight * min(FACTOR, max(1 / FACTOR, (own - bound) / amount if amount > 0 else FACTOR))
                for weight, (own, _), amount in zip(weights, parts, gone, strict=True)
            ]
            weights = [weight / sum(raised) for weight in raised]
        return curves

    def _parts(self, place: int, bundles: Sequence[BundleUse], bound: float) -> list[tuple[float, list[float]]]:
        """Level of each resource above the bound, and of each bundle."""
        broker = self._brokers[place]
        return [
            (use / limit, [own[resource] / limit for own, _ in bundles])
            for resource, (use, limit) in enumerate(zip(broker.use, broker.limits, strict=True))
            if limit > 0 and use / limit > bound
        ]

    def _reached(self, load: float, bound: float, curves: Mapping[int, Sequence[_Curve]]) -> float:
        """The lowest level above `bound` that costs at most this load.

        The cost is convex in the level, so Newton's method from below never passes the solution: each step is a bound.
        """
        high = [place for place, level in enumerate(self.levels) if level > bound]
        # The lowest last, as they are done first.
        high.sort(key=self.levels.__getitem__, reverse=True)
        lines = [(self.levels[place], self._lines(place)) for place in high if place not in curves]
        curved = [curves[place] for place in high if place in curves]
        reached = bound
        for _ in range(STEPS_MAX):
            cost = slope = 0.0
            while lines and lines[-1][0] <= bound:
                lines.pop()
            for _, pairs in lines:
                most = steepness = 0.0
                for level, weight in pairs:
                    own = (level - bound) * weight
                    if own > most:
                        most, steepness = own, weight
                cost += most
                slope += steepness
            for broker in curved:
                most, steepness = max((curve.at(bound) for curve in broker), default=(0.0, 0.0))
                cost += most
                slope += steepness
            if cost < load * (1 - ROUNDING):
                return reached  # rounding has led past the solution
            reached = bound
            if cost <= load or slope <= 0:
                break
            bound += (cost - load) / slope
        return reached

    def _lines(self, place: int) -> Sequence[tuple[float, float]]:
        """Of each resource with a high level the level, and the least load that lowers it by 1."""
        lines = self._slopes.get(place)
        if lines is None:
            use, limits, most, _, _ = self._brokers[place]
            lines = self._slopes[place] = [
                (own / limit, min(MOST, limit / rate) if rate > 0 else MOST)
                for own, limit, rate in zip(use, limits, most, strict=True)
                if own > self._bound * limit > 0
            ]
        return lines


class _Curve(NamedTuple):
    """Least load that lowers a broker's level of one resource by an amount: convex, in straight pieces.

    Attributes:
        lowered: Where the pieces end, from 0 on; `load`: what that costs.
    """

    level: float
    lowered: Sequence[float]
    load: Sequence[float]

    @classmethod
    def of(cls, level: float, pieces: Iterable[tuple[float, float]], bound: float) -> _Curve:
        """The curve of bundles, given by their level and load, as far as it is needed down to the bound."""
        ranked = [(own / load if load > 0 else inf, own, load) for own, load in pieces if own > 0]
        ranked.sort(key=itemgetter(0), reverse=True)
        lowered, cost = [0.0], [0.0]
        for _, own, load in ranked:
            if lowered[-1] >= level - bound:
                break
            lowered.append(lowered[-1] + own)
            cost.append(cost[-1] + load)
        return cls(level, lowered, cost)

    def at(self, bound: float) -> tuple[float, float]:
        """The load that brings the level down to the bound, and the load for each further 1."""
        amount = self.level - bound
        if amount <= 0 or len(self.lowered) < 2:  # noqa: PLR2004 - no piece
            return 0.0, 0.0
        piece = min(bisect_right(self.lowered, amount), len(self.lowered) - 1)
        begin, end = self.lowered[piece - 1], self.lowered[piece]
        if not end > begin:
            return self.load[piece], 0.0
        slope = min(MOST, (self.load[piece] - self.load[piece - 1]) / (end - begin))
        return self.load[piece - 1] + slope * (amount - begin), slope


def level_of(use: Sequence[float], limits: Sequence[float]) -> float:
    """The largest part of a limit that is used; 0 without limits."""
    level = 0.0
    for own, limit in zip(use, limits, strict=True):
        if limit > 0 and own > level * limit:
            level = own / limit
    return level


def _without(use: Sequence[float], bundles: Sequence[BundleUse]) -> list[float]:
    """Use without that of these bundles; negative where they claim more than there is."""
    if not bundles:
        return list(use)
    return [own - sum(column) for own, column in zip(use, zip(*map(_USE, bundles), strict=True), strict=True)]


def _lowered(bound: float) -> float:
    return bound * (1 - ROUNDING)
