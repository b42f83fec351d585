"""Steps of a `weighted-move` plan: the choice of moves by gain per churn. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, nlargest
from itertools import islice
from math import inf, sqrt
from operator import attrgetter
from typing import Final, NamedTuple

from shedders.model.cluster import Bundle
from shedders.model.plan import SplitWanted
from shedders.model.readings import MOST
from shedders.weighted_move.loads import OVERLOADED, BrokerLevel, BundleDemand
from shedders.weighted_move.memory import Memory
from shedders.weighted_move.refusals import FilterRefusals

DESTINATIONS = 3  # number of brokers compared at once for a bundle: the idlest that are left
DESTINATIONS_MAX = 24  # maximum number of destinations tried for one source
REFUSALS_MAX = 24  # maximum number of refusals in one step, once the decision has had `REFUSALS` of them
REFUSALS = 3_000  # refusals of one decision after which fewer destinations are tried: tens of milliseconds
SKIPPED = 50_000  # maximum number of brokers of one decision that are skipped as closed to all bundles of a source
ALL = 24  # up to this number all bundles of a broker are compared; of more, those around the two best sizes
AROUND = 4  # number of bundles to each side of such a size
EXCHANGED = 12  # number of a broker's bundles for which an exchange is searched
COMPLEMENTS = 8  # number of brokers, with the least use of a source's busiest resource, for exchanges across resources
COMPLEMENT_GAIN = 4.0  # such an exchange has to gain this multiple of the least gain: it moves much for a small change
COMPLEMENT_SEARCHES = 64  # maximum number of sources of one decision for which they are searched: a tenth of a second
RELIEVED: Final = 0.8  # an overloaded broker gives bundles down to this part of its limit
# From this multiple of that part on a relief ends rather than with a bundle that takes more than twice as much as is missing: the
# next decisions would have to bring it, or others, back.
NEAR_ENOUGH: Final = OVERLOADED / RELIEVED
ROUNDED: Final = 1 + 1e-9  # a bound has to hold for rounded figures as well
SPREAD = 0.25  # part of its value by which a move ranks higher that takes a bundle of a namespace to a broker that has none of it
RANK_MAX: Final = (1 + SPREAD) * ROUNDED  # the most by which a move ranks higher than its value
QUARTER = 0.25  # a move of more than half a gap has to lower the busier of the two by at least this part of the gap
BIG = 0.2  # a bundle with less than this part of an average broker's load can be balanced by others
SPLITS_MAX = 4  # maximum number of splits in one decision: each costs its clients a reconnect
LOOKED_MAX = 32  # maximum number of brokers for whose bundles room is searched: filters may confine those of hundreds
_size = attrgetter("size")


@dataclass(frozen=True, slots=True)
class StepRules:
    """Bounds of one decision.

    Attributes:
        rest: Levels this close to 1 count as 1.
        least: Minimum gain per churn.
        move_cost: Cost of a move in addition to its load, 1 for the traffic of an average broker.
        churn: Load that may move, in the same unit; moves: their number.
    """

    rest: float
    least: float
    move_cost: float
    churn: float
    moves: int


class MoveStep(NamedTuple):
    """One move, or half of an exchange.

    Attributes:
        before, after: Levels of source and destination.
        value: Gain per churn.
        back: It is returned for another bundle.
    """

    cargo: BundleDemand
    source: BrokerLevel
    destination: BrokerLevel
    resource: int
    before: tuple[float, float]
    after: tuple[float, float]
    value: float
    back: bool = False


class CandidateMove(NamedTuple):
    """A possible move or exchange, and its value.

    Attributes:
        rank: The value, more for a move that spreads a namespace evenly, and less for one that concentrates it.
    """

    rank: float
    value: float
    going: BundleDemand
    back: BundleDemand | None
    source: BrokerLevel
    destination: BrokerLevel
    after: tuple[float, float]


# Value (negated, so that the most sorts first), bundle and destination, then what a `CandidateMove` needs.
ValuedMove = tuple[float, str, str, BundleDemand, BrokerLevel, tuple[float, float]]


class Steps:
    """The search for the best moves.

    Args:
        cargo: A broker's movable bundles, the smallest first; the list is consumed.
        refused: Why a broker may not get a bundle; None if it may.
        filters: The cache of the filters' refusals.
        backs: By how much dearer a move is that takes a bundle back to where it was; 1 for others.
        count: Counts a broker's bundles by namespace.
    """

    def __init__(
        self,
        sides: Sequence[BrokerLevel],
        rules: StepRules,
        cargo: Callable[[BrokerLevel], list[BundleDemand]],
        refused: Callable[[Bundle, BrokerLevel], str | None],
        filters: FilterRefusals | None = None,
        backs: Callable[[Bundle, BrokerLevel], float] | None = None,
        count: Callable[[str], Counter[str]] | None = None,
    ) -> None:
        self._count = count or _none_known
        self._counts: dict[str, Counter[str]] = {}
        self._backs = backs or _same
        self._rules = rules
        self._cargo = cargo
        self._refused = refused
        self._filters = filters or FilterRefusals(None)
        self._namespaces: dict[str, frozenset[str]] = {}
        self._densities: dict[tuple[str, int], float] = {}
        self._sorted: dict[int, tuple[int, Sequence[tuple[float, str, BrokerLevel]]]] = {}
        self._skipped = self._searches = 0
        # What a bundle has of it is not known for sure: an exchange might fill a broker with it.
        self._memory_is_scarce = any(side.memory_is_scarce for side in sides)
        self._hot = [(-side.level, side.name, side) for side in sides]
        heapify(self._hot)
        self._cold = sorted((side.level, side.name, side) for side in sides if side.takes)
        self._under = {side.name for side in sides if side.under}
        self._over = {side.name for side in sides if side.over}
        self._refusal = ""
        self.churn = 0.0
        self.steps: list[MoveStep] = []
        self.stuck: dict[str, tuple[str, str]] = {}

    def run(self) -> Sequence[MoveStep]:
        """All steps; `stuck` has the brokers that give no (more) bundles, with the reason."""
        rules = self._rules
        while self._hot and (self._over or self._under):
            level, _, source = heappop(self._hot)
            if -level != source.level:
                continue  # outdated: it has another entry
            if not source.level > 1 - rules.rest:
                break
            if source.waits or not ((source.over and source.level > source.aim) or (self._under and not source.probed)):
                continue
            room = len(self.steps) < rules.moves and self.churn < rules.churn
            candidate = self._best(source) if room else None
            if candidate is not None:
                if self._ends_relief(candidate):
                    self._over.discard(source.name)
                else:
                    self._take(candidate)
                    heappush(self._hot, (-source.level, source.name, source))
                continue
            if source.over:
                self._over.discard(source.name)
                word = "nothing-fits" if room else "budget"
                why = self._refusal or "none of its bundles is worth moving to one of the idlest brokers"
                if not room:
                    why = f"{len(self.steps)} moves with {self.churn:.2f} of an average broker's traffic are the most at once"
                self.stuck[source.name] = (word, f"it is at {source.level:.3f} of the average; {why}")
        return self.steps

    def _ends_relief(self, candidate: CandidateMove) -> bool:
        """Whether a broker that is only relieved of the worst is near enough to its aim, and this step takes far too much.

        Never where a broker is idle: that has to be filled anyway.
        """
        source, missing = candidate.source, candidate.source.level - candidate.source.aim
        if source.probed:
            return source.level - candidate.after[0] > 2 * missing
        if not source.relieved or self._under or not missing > 0:
            return False
        return source.level <= source.aim * NEAR_ENOUGH and source.level - candidate.after[0] > 2 * missing

    def _best(self, source: BrokerLevel) -> CandidateMove | None:
        """The best step from this broker that no filter refuses."""
        self._refusal = ""
        cargo = self._cargo(source)
        refusals = 0
        without: dict[int, float] = {}
        for takers in self._takers(source):
            for candidate in self._singles(source, takers, cargo, without):
                fault = self._refused(candidate.going.bundle, candidate.destination)
                if fault is None:
                    return candidate
                refusals += 1
                self._refusal = f"{candidate.destination.name} may not take {candidate.going.bundle.name}: {fault}"
                if refusals >= REFUSALS_MAX and self._filters.count >= REFUSALS:
                    return None
        if not source.takes or len(self.steps) + 2 > self._rules.moves:  # an exchange is two moves
            return None
        idlest = next(self._takers(source), [])
        return self._exchange(source, idlest, cargo) or self._exchange_across(source, cargo)

    def _takers(self, source: BrokerLevel) -> Iterator[list[BrokerLevel]]:
        """The idlest brokers that may get bundles of this one, a few at a time."""
        takers: list[BrokerLevel] = []
        asked = 0
        least = self._rules.least / 2
        for level, _, side in self._cold:
            if asked >= DESTINATIONS_MAX or not source.level - level > least:
                break
            if side is source or side.gives or not (source.over or side.under) or self._is_closed(source, side):
                continue
            takers.append(side)
            asked += 1
            if len(takers) == DESTINATIONS:
                yield takers
                takers = []
        if takers:
            yield takers

    def _is_closed(self, source: BrokerLevel, side: BrokerLevel) -> bool:
        """Whether a broker is closed to all bundles of another one."""
        closed = self._filters.closed_to(side.name)
        if not closed or self._skipped >= SKIPPED:
            return False
        known = self._namespaces.get(source.name)
        if known is None:
            known = self._namespaces[source.name] = frozenset(demand.bundle.namespace for demand in self._cargo(source))
        if not known <= closed:
            return False
        self._skipped += 1
        self._refusal = self._refusal or f"{side.name} may take none of its bundles"
        return True

    def has_room(self, source: BrokerLevel, bundle: Bundle, gap: float) -> bool:
        """Whether any broker may take a bundle, regardless of its size, whose level is lower by at least `gap`."""
        asked = 0
        for level, _, side in self._cold:
            if asked >= DESTINATIONS_MAX or not level < source.level * (1 - gap):
                return False
            if side is source or bundle.namespace in self._filters.closed_to(side.name):
                continue
            if self._refused(bundle, side) is None:
                return True
            asked += 1
        return False

    def _singles(
        self,
        source: BrokerLevel,
        takers: Sequence[BrokerLevel],
        cargo: Sequence[BundleDemand],
        without: dict[int, float],
    ) -> Iterator[CandidateMove]:
        """Possible moves to these brokers, the best first.

        Args:
            without: Cache for this source: by bundle demand, the level that it leaves behind.
        """
        valued: list[ValuedMove] = []
        cost, least, level, urgent = self._rules.move_cost, self._rules.least, source.level, source.urgent
        density = self._density(source, cargo)
        for side in takers:
            if self._highest_value(source, side, density) < least:
                continue
            closed = self._filters.closed_to(side.name)
            may_go = [demand for demand in cargo if demand.bundle.namespace not in closed] if closed else cargo
            sized = self._sized(source, side, may_go)
            for demand, destination_after in zip(sized, side.with_each(sized), strict=True):
                if not destination_after < level:
                    continue
                source_after = without.get(id(demand))
                if source_after is None:
                    use = demand.use
                    source_after = without[id(demand)] = source.with_(-use[0], -use[1], -use[2], -use[3])
                value = gained(source, side, source_after, destination_after) / (demand.churn + cost)
                if value >= least and (urgent or not demand.young):
                    valued.append(
                        (-value, demand.bundle.name, side.name, demand, side, (source_after, destination_after))
                    )
        valued.sort()
        return self._ranked(source, valued)

    def _ranked(
        self,
        source: BrokerLevel,
        valued: Sequence[ValuedMove],
    ) -> Iterator[CandidateMove]:
        """These moves by rank. Mostly the first is taken, so that the ranks of the rest are computed only when needed.

        Args:
            valued: Sorted.
        """
        least = self._rules.least
        waiting: list[tuple[float, str, str, CandidateMove]] = []
        for negated, bundle, broker, demand, side, after in valued:
            while waiting and -waiting[0][0] > -negated * RANK_MAX:
                yield heappop(waiting)[3]
            value = -negated / self._backs(demand.bundle, side)
            if value >= least:
                space = demand.bundle.namespace
                rank = value * evens(self._bundles_of(source)[space] - 1, self._bundles_of(side)[space])
                heappush(
                    waiting, (-rank, bundle, broker, CandidateMove(rank, value, demand, None, source, side, after))
                )
        while waiting:
            yield heappop(waiting)[3]

    def _density(self, source: BrokerLevel, cargo: Sequence[BundleDemand]) -> float:
        """The most by which any of its bundles lowers a broker's level for its churn."""
        resource = source.busiest
        density = self._densities.get((source.name, resource))
        if density is None:
            scale = source.inverse[resource] * source.scale
            density = max((_per_churn(demand.use[resource] * scale, demand.churn) for demand in cargo), default=0.0)
            self._densities[source.name, resource] = density
        return density

    def _highest_value(self, source: BrokerLevel, side: BrokerLevel, density: float) -> float:
        """A bound on the value of each move to a broker that is busiest by the same resource.

        A bundle that lowers the source's level a by s raises the other's level b by at least r * s, and costs at least
        s / density + cost:

            value <= density * (2 * s * (C_a * a - C_b * b * r) - s^2 * (C_a + C_b * r^2)) / (s + density * cost)

        which has its maximum where s^2 + 2 * s * density * cost = 2 * density * cost * (first factor) / (second factor).
        """
        resource = source.busiest
        if side.busiest != resource or not side.inverse[resource] > 0:
            return inf
        ratio = side.inverse[resource] * side.scale / (source.inverse[resource] * source.scale)
        slope = source.capacity * source.level - side.capacity * side.level * ratio
        if not slope > 0:
            return 0.0
        curve, cost = source.capacity + side.capacity * ratio * ratio, density * self._rules.move_cost
        if not cost > 0:
            return 2 * density * slope * ROUNDED
        size = 2 * cost * slope / curve
        size /= sqrt(cost * cost + size) + cost
        return density * size * (2 * slope - size * curve) / (size + cost) * ROUNDED

    def _bundles_of(self, side: BrokerLevel) -> Counter[str]:
        """How many bundles of each namespace a broker has after the steps so far."""
        counts = self._counts.get(side.name)
        if counts is None:
            counts = self._counts[side.name] = self._count(side.name)
        return counts

    def _sized(self, source: BrokerLevel, side: BrokerLevel, cargo: Sequence[BundleDemand]) -> Sequence[BundleDemand]:
        """Bundles of about the best sizes."""
        if len(cargo) <= ALL:
            return cargo
        gap, level = source.level - side.level, source.level
        ratio = self._ratio(source, side)
        half = gap / (1 + ratio)
        wanted = (
            min(half, max(level - source.aim, self._rules.rest)) if source.over else min(half, (1 - side.level) / ratio)
        )
        cost = self._rules.move_cost
        cheapest = min(wanted, sqrt(cost * cost + gap * cost) - cost)
        sized: list[BundleDemand] = []
        done = 0
        for size in (cheapest, wanted):
            place = bisect_left(cargo, size / source.scale, key=_size)
            first = max(done, place - AROUND)
            done = min(len(cargo), max(first, place + AROUND))
            sized += cargo[first:done]
        return sized

    def _ratio(self, source: BrokerLevel, side: BrokerLevel) -> float:
        """The load on the other broker of a bundle that has load 1 on the source."""
        resource = source.busiest
        mine, theirs = source.inverse[resource], side.inverse[resource]
        return theirs / mine if mine > 0 and theirs > 0 else 1.0

    def _exchange(
        self, source: BrokerLevel, takers: Sequence[BrokerLevel], cargo: Sequence[BundleDemand]
    ) -> CandidateMove | None:
        """The best exchange with one of the idlest brokers."""
        candidates: list[CandidateMove] = []
        for side in takers:
            theirs = self._cargo(side)
            if not theirs or side.taken:
                continue
            ratio = self._ratio(source, side)
            wanted = min((source.level - side.level) / (1 + ratio), max(source.level - source.aim, self._rules.rest))
            for demand in cargo[-EXCHANGED:]:
                target = (demand.size - wanted / source.scale) * ratio
                if target <= 0 or demand.young:
                    continue
                place = bisect_left(theirs, target, key=_size)
                for other in theirs[max(0, place - 1) : place + 2]:
                    exchange = self._swap(source, side, demand, other, self._rules.least)
                    if exchange is not None and not exchange.after[1] > exchange.after[0]:
                        candidates.append(exchange)
        return self._permitted(candidates)

    def _exchange_across(self, source: BrokerLevel, cargo: Sequence[BundleDemand]) -> CandidateMove | None:
        """The best exchange with a broker that is as busy, but by another resource: it takes what the source has too much of."""
        resource, least = source.busiest, COMPLEMENT_GAIN * self._rules.least
        several = sum(inverse > 0 for inverse in source.inverse) > 1
        if not several or self._memory_is_scarce or self._searches >= COMPLEMENT_SEARCHES:
            return None
        self._searches += 1
        levels = self._by_use(resource)
        low = (levels[place][2] for place in range(bisect_left(levels, (source.level - least / 2,))))
        complements = islice(
            (side for side in low if side is not source and not self._is_closed(source, side)), COMPLEMENTS
        )
        going = _of_most((demand for demand in cargo if not demand.young), lambda demand: demand.use[resource])
        candidates: list[CandidateMove] = []
        for side in complements:
            inverse = side.inverse[resource]
            coming = _of_most(self._cargo(side), lambda demand: demand.size - demand.use[resource] * inverse)  # noqa: B023
            for demand in going:
                for other in coming:
                    if other.use[resource] < demand.use[resource]:
                        exchange = self._swap(source, side, demand, other, least)
                        if exchange is not None:
                            candidates.append(exchange)
        return self._permitted(candidates)

    def _by_use(self, resource: int) -> Sequence[tuple[float, str, BrokerLevel]]:
        """The brokers that may get bundles, with their levels by this resource alone, the lowest first."""
        steps_made, levels = self._sorted.get(resource, (-1, ()))
        if steps_made != len(self.steps):
            levels = sorted(
                (side.use[resource] * side.inverse[resource] * side.scale, side.name, side) for _, _, side in self._cold
            )
            self._sorted[resource] = len(self.steps), levels
        return levels

    def _permitted(self, exchanges: Iterable[CandidateMove]) -> CandidateMove | None:
        """The best of these that no filter refuses."""
        for swap in sorted(exchanges, key=_worst_last)[:REFUSALS_MAX]:
            if swap.back is not None and not (
                self._refused(swap.going.bundle, swap.destination) or self._refused(swap.back.bundle, swap.source)
            ):
                return swap
        return None

    def _swap(
        self, source: BrokerLevel, side: BrokerLevel, demand: BundleDemand, other: BundleDemand, least: float
    ) -> CandidateMove | None:
        """An exchange, if it is worth at least this much."""
        if other.young:
            return None
        cpu, inwards, outwards, cached = (there - back for there, back in zip(demand.use, other.use, strict=True))
        after = source.with_(-cpu, -inwards, -outwards, -cached), side.with_(cpu, inwards, outwards, cached)
        value = gained(source, side, *after) / (demand.churn + other.churn + 2 * self._rules.move_cost)
        if value >= least:
            value /= max(self._backs(demand.bundle, side), self._backs(other.bundle, source))
        return CandidateMove(value, value, demand, other, source, side, after) if value >= least else None

    def _take(self, candidate: CandidateMove) -> None:
        source, side = candidate.source, candidate.destination
        before, resource = (source.level, side.level), source.busiest
        del self._cold[bisect_left(self._cold, (side.level, side.name))]
        for demand, giver, taker in ((candidate.going, source, side), (candidate.back, side, source)):
            if demand is None:
                continue
            self._cargo(giver).remove(demand)
            self._bundles_of(giver)[demand.bundle.namespace] -= 1
            self._bundles_of(taker)[demand.bundle.namespace] += 1
            giver.add(demand.use, -1)
            taker.add(demand.use, 1)
            taker.came += 1
            self.churn += demand.churn
            back = demand is candidate.back
            self.steps.append(MoveStep(demand, giver, taker, resource, before, candidate.after, candidate.value, back))
        insort(self._cold, (side.level, side.name, side))
        heappush(self._hot, (-side.level, side.name, side))
        if not source.gives and source.takes:
            del self._cold[bisect_left(self._cold, (before[0], source.name))]
        source.gives = side.taken = True
        if not source.level > source.aim:
            self._over.discard(source.name)
        if side.under and not side.level < 1 - self._rules.rest:
            side.under = False
            self._under.discard(side.name)


def _per_churn(lowers: float, churn: float) -> float:
    """By how much a bundle lowers a level for its churn; bounded, as some have none."""
    return min(MOST, lowers / churn) if churn > 0 else MOST * (lowers > 0)


def evens(mine: int, theirs: int) -> float:
    """By how much more a move is preferred that spreads a namespace evenly: its bundles tend to be busy at the same time.

    Args:
        mine: Other bundles of the namespace that the source has; `theirs`: those of the destination.
    """
    return 1 + SPREAD * (mine - theirs) / max(1, mine + theirs)


def gained(source: BrokerLevel, side: BrokerLevel, source_after: float, destination_after: float) -> float:
    """By how much the squares of two levels fall, each weighted with its broker's capacity.

    0 unless both end below the source's level; well below it, if the destination ends as the busier of the two.

    Args:
        source_after: The source's level with the move; `destination_after`: the destination's.
    """
    before, level = source.level, side.level
    top = max(destination_after, source_after)
    if not top < before or (destination_after > source_after and before - top < QUARTER * (before - level)):
        return 0.0
    return source.capacity * (before * before - source_after * source_after) - side.capacity * (
        destination_after * destination_after - level * level
    )


def _of_most(cargo: Iterable[BundleDemand], part: Callable[[BundleDemand], float]) -> list[BundleDemand]:
    return nlargest(EXCHANGED, cargo, key=lambda demand: (part(demand), demand.bundle.name))


def _none_known(_name: str) -> Counter[str]:
    return Counter()


def _same(_bundle: Bundle, _side: BrokerLevel) -> float:
    return 1.0


def _worst_last(candidate: CandidateMove) -> tuple[float, str, str]:
    return -candidate.rank, candidate.going.bundle.name, candidate.destination.name


def wanted_splits(
    stuck: Sequence[BrokerLevel],
    cargo: Callable[[BrokerLevel], list[BundleDemand]],
    memory: Memory,
    gap: float,
    has_room: Callable[[BrokerLevel, Bundle, float], bool],
) -> list[SplitWanted]:
    """The largest bundle of each broker that has too much load and no movable bundle.

    Args:
        stuck: Those brokers, the busiest first.
        gap: How far above the level a broker may be.
        has_room: Whether any broker with a lower level may take a bundle at all: if not, its parts could go nowhere either.
    """
    splits: list[SplitWanted] = []
    looked = 0
    for side in stuck:
        if len(splits) >= SPLITS_MAX or not side.level > 1 + gap:
            continue
        largest = next(reversed(cargo(side)), None)
        if largest is None or largest.young or largest.size * side.scale < BIG:
            continue
        bundle = largest.bundle
        if bundle.name in memory.asked or bundle.stats is None or bundle.stats.topics < 2:  # noqa: PLR2004
            continue
        looked += 1
        if looked > LOOKED_MAX or not has_room(side, bundle, gap):
            continue
        memory.asked[bundle.name] = (largest.throughput, 0.0)
        splits.append(
            SplitWanted(
                bundle.name,
                f"{side.name} is at {side.level:.3f} of the average, {largest.size * side.scale:.3f} of it this bundle, too "
                "much for any other broker",
            )
        )
    return splits
