"""Search for the moves of one `weighted-move` plan: greedy by value, then exchanges, then bundles to split. Pure.

The **value** of a move is what it takes from the cluster's cost, for the traffic that moves:

    value = (cost before - cost after, of both brokers) / ((traffic + `MOVE_COST`) * k)

with `k` for moving a bundle back, or once more. The busiest broker is relieved first, by its best move; each counts at once.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, nlargest
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from shedders.model.cluster import Bundle
from shedders.model.plan import SplitWanted
from shedders.model.strategy import CanTake
from shedders.shedding.draft import refused
from shedders.weighted_move.loads import BrokerLevel, BundleDemand, Use, level_of

MOVE_COST = 0.01  # fixed cost of a move, in parts of an average broker's traffic: of two equal plans the one with fewer is better
REST = 0.02  # levels this close to 1 count as 1: reports are not more precise
TAKERS, TAKERS_MAX = 3, 24  # brokers that are compared at once for a bundle, the cheapest first; the most for a source
AROUND = 4  # bundles to each side of a size that are compared, where a broker has many
SPREAD = 0.25  # a move ranks higher by this part of its value if the destination has nothing of the bundle's namespace
EXCHANGED = 10  # bundles of each side for which an exchange is searched
REFUSALS = 3_000  # refusals of one decision after which fewer destinations are tried: tens of milliseconds
BIG = 0.2  # a bundle with less than this part of an average broker's load can be balanced by others
SPLIT_PAID = 5.0  # price of a split, in that of a move: all clients of the bundle reconnect, for no gain of its own
_size = attrgetter("size")


@dataclass(slots=True)
class FilterRefusals:
    """The filters' refusals in one decision: as a rule a broker is closed to whole namespaces.

    Attributes:
        count: Their number.
        closed: By broker, the namespaces of which it has refused two bundles, and taken none.
    """

    can_take: CanTake | None
    count: int = 0
    closed: dict[str, set[str]] = field(default_factory=dict)
    _times: Counter[tuple[str, str]] = field(default_factory=Counter)
    _open: set[tuple[str, str]] = field(default_factory=set)

    def why(self, bundle: Bundle, broker: str) -> str | None:
        if self.can_take is None:
            return None
        refusal, key = refused(self.can_take, bundle, broker), (broker, bundle.namespace)
        if refusal is None:
            self._open.add(key)
            return None
        self.count += 1
        self._times[key] += 1
        if self._times[key] > 1 and key not in self._open:
            self.closed.setdefault(broker, set()).add(bundle.namespace)
        return refusal


@dataclass(frozen=True, slots=True)
class MoveRules:
    """Bounds of one decision.

    Attributes:
        least: Minimum value of a move.
        traffic: Traffic that may move, 1 for an average broker's; `moves`: their number.
        gap: How far above perfect balance a broker has too much load.
    """

    least: float
    traffic: float
    moves: int
    gap: float


class Step(NamedTuple):
    """One move, or half of an exchange.

    Attributes:
        before, after: Levels of both brokers.
        costs: Cost of both brokers together before and after.
        value: Its value.
        back: It is returned for another bundle.
    """

    demand: BundleDemand
    source: BrokerLevel
    destination: BrokerLevel
    resource: int
    before: tuple[float, float]
    after: tuple[float, float]
    costs: tuple[float, float]
    value: float
    back: bool = False


class CandidateMove(NamedTuple):
    """A possible move, or exchange: its rank (the value, more for one that spreads a namespace), and what it does."""

    rank: float
    value: float
    going: BundleDemand
    back: BundleDemand | None
    source: BrokerLevel
    destination: BrokerLevel
    powers: tuple[float, float]


class MoveSearch:
    """The search.

    Args:
        demands: A broker's movable bundles, the smallest first; the list is consumed.
        dearer: By how much dearer it is to move a bundle to a broker: `k`; infinite if it may not.
        count: A broker's bundles by namespace.

    Attributes:
        steps: The moves.
        stuck: Brokers that give no (more) bundles: a stable word, and why.
    """

    def __init__(
        self,
        sides: Sequence[BrokerLevel],
        rules: MoveRules,
        demands: Callable[[BrokerLevel], list[BundleDemand]],
        dearer: Callable[[Bundle, BrokerLevel], float],
        refusals: FilterRefusals,
        count: Callable[[str], Counter[str]],
    ) -> None:
        self._rules, self._demands, self._dearer, self._refusals, self._count = rules, demands, dearer, refusals, count
        self._counts: dict[str, Counter[str]] = {}
        self._hot = [(-side.level, side.name, side) for side in sides]
        heapify(self._hot)
        self._cold = sorted((side.level, side.name, side) for side in sides if side.takes)
        self._under = {side.name for side in sides if side.under and side.takes}
        self._searches = TAKERS_MAX
        self._refusal = ""
        self._stuck: list[BrokerLevel] = []
        self.traffic = 0.0
        self.steps: list[Step] = []
        self.stuck: dict[str, tuple[str, str]] = {}

    def run(self) -> None:
        rules = self._rules
        while self._hot:
            level, _, source = heappop(self._hot)
            if -level != source.level:
                continue  # outdated: it has another entry
            if not source.level > 1 and not self._under:
                break
            wants = source.over and source.level > source.aim
            if not wants and not self._under:
                continue
            room = len(self.steps) < rules.moves and self.traffic < rules.traffic
            best = self._best(source, wants=wants) if room else None
            if best is not None:
                self._take(best)
                heappush(self._hot, (-source.level, source.name, source))
            elif wants:
                if room:
                    self._stuck.append(source)
                    self.stuck[source.name] = "nothing-fits", self._refusal or "no move is worth its traffic"
                else:
                    moved = f"{len(self.steps)} moves with {self.traffic:.2f} of an average broker's traffic"
                    self.stuck[source.name] = "budget", f"{moved} are the most at once"

    def _best(self, source: BrokerLevel, *, wants: bool) -> CandidateMove | None:
        """The best step from this broker that no filter refuses."""
        self._refusal = ""
        demands, refusals = self._demands(source), 0
        after: dict[int, float] = {}
        for takers in self._takers(source, wants=wants):
            for candidate in self._ranked(source, self._valued(source, takers, demands, after)):
                fault = self._refusals.why(candidate.going.bundle, candidate.destination.name)
                if fault is None:
                    return candidate
                refusals += 1
                self._refusal = f"{candidate.destination.name} may not take {candidate.going.bundle.name}: {fault}"
                if refusals >= TAKERS_MAX and self._refusals.count >= REFUSALS:
                    return None
        return self._exchange(source, demands) if wants else None

    def _takers(self, source: BrokerLevel, *, wants: bool) -> Iterator[list[BrokerLevel]]:
        """The cheapest brokers that may get bundles of this one, a few at a time."""
        spaces: frozenset[str] | None = None
        takers: list[BrokerLevel] = []
        asked = 0
        for level, name, side in self._cold:
            if asked >= TAKERS_MAX or not level < source.level - self._rules.least:
                break
            if side is source or side.gives or not (wants or side.under):
                continue
            closed = self._refusals.closed.get(name)
            if closed:
                spaces = spaces or frozenset(demand.bundle.namespace for demand in self._demands(source))
                if spaces <= closed:
                    continue
            takers.append(side)
            asked += 1
            if len(takers) == TAKERS:
                yield takers
                takers = []
        if takers:
            yield takers

    def _valued(
        self,
        source: BrokerLevel,
        takers: Sequence[BrokerLevel],
        demands: Sequence[BundleDemand],
        after: dict[int, float],
    ) -> list[tuple[float, str, str, BundleDemand, BrokerLevel, tuple[float, float]]]:
        """Moves to these brokers that are worth it, before going back counts; the best first.

        Args:
            after: Cache for this source: by bundle demand, the power that it leaves behind.
        """
        least, power = self._rules.least, source.power
        cost, valued = source.cost_of(source.power), []
        for side in takers:
            closed = self._refusals.closed.get(side.name)
            sized = self._sized(source, side, demands)
            if closed:
                sized = [demand for demand in sized if demand.bundle.namespace not in closed]
            missing = [demand for demand in sized if id(demand) not in after]
            after.update(zip(map(id, missing), source.powers([each.use for each in missing], -1), strict=True))
            both = cost + side.cost_of(side.power)
            for demand, taken in zip(sized, side.powers([each.use for each in sized], 1), strict=True):
                if taken < power:
                    given_away = after[id(demand)]
                    value = (both - source.cost_of(given_away) - side.cost_of(taken)) / (demand.traffic + MOVE_COST)
                    if value >= least:
                        valued.append((-value, demand.bundle.name, side.name, demand, side, (given_away, taken)))
        valued.sort()
        return valued

    def _ranked(
        self,
        source: BrokerLevel,
        valued: Sequence[tuple[float, str, str, BundleDemand, BrokerLevel, tuple[float, float]]],
    ) -> Iterator[CandidateMove]:
        """These moves by rank; mostly the first is taken, so that the ranks of the rest are computed only when needed."""
        waiting: list[tuple[float, str, str, CandidateMove]] = []
        for negated, bundle, broker, demand, side, powers in valued:
            while waiting and -waiting[0][0] >= -negated * (1 + SPREAD):
                yield heappop(waiting)[3]
            value = -negated / self._dearer(demand.bundle, side)
            if value >= self._rules.least:
                space = demand.bundle.namespace
                mine, theirs = self._bundles_of(source)[space] - 1, self._bundles_of(side)[space]
                rank = value * (1 + SPREAD * (mine - theirs) / max(1, mine + theirs))
                candidate = CandidateMove(rank, value, demand, None, source, side, powers)
                heappush(waiting, (-rank, bundle, broker, candidate))
        while waiting:
            yield heappop(waiting)[3]

    def _sized(self, source: BrokerLevel, side: BrokerLevel, demands: Sequence[BundleDemand]) -> Sequence[BundleDemand]:
        """Bundles of about the best sizes: what both brokers want, and a quarter of it, which costs less to move."""
        if len(demands) <= TAKERS_MAX:
            return demands
        wanted, done = self._wanted(source, side), 0
        sized: list[BundleDemand] = []
        for size in (wanted / 4, wanted):
            place = bisect_left(demands, size, key=_size)
            first = max(done, place - AROUND)
            done = min(len(demands), max(first, place + AROUND))
            sized += demands[first:done]
        return sized

    def _wanted(self, source: BrokerLevel, side: BrokerLevel) -> float:
        """The size of a bundle that levels both brokers, or brings the source to its aim."""
        half = (source.level - side.level) / (1 + source.capacity / side.capacity)
        return min(half, max(REST, source.level - source.aim)) if source.over else half

    def _exchange(self, source: BrokerLevel, demands: Sequence[BundleDemand]) -> CandidateMove | None:
        """The best exchange with one of the cheapest brokers, or with one that uses little of what the source is busy with."""
        if not source.takes or len(self.steps) + 2 > self._rules.moves or self._searches <= 0:  # it is two moves
            return None
        self._searches -= 1
        resource = source.busiest
        below = [side for level, _, side in self._cold if side is not source and level < source.level]
        idle = nlargest(6, below, key=lambda side: (-side.use[resource] * side.inverse[resource], side.name))
        going = _most(demands, lambda demand: demand.use[resource])
        exchanges: list[CandidateMove] = []
        for side in dict.fromkeys([*below[:TAKERS], *idle]):
            theirs = self._demands(side)
            across = _most(theirs, lambda demand: demand.size - demand.use[resource] * side.inverse[resource])  # noqa: B023
            wanted = self._wanted(source, side)
            for demand in going:
                ratio = source.capacity / side.capacity
                place = bisect_left(theirs, (demand.size - wanted) * ratio, key=_size)
                near = theirs[max(0, place - AROUND) : place + AROUND // 2]
                uses, others = [], []
                for other in {id(each): each for each in (*near, *across)}.values():
                    if not other.young:
                        others.append(other)
                        uses.append(_less(demand.use, other.use))
                exchanges += self._valued_exchanges(source, side, demand, others, uses)
        for exchange in sorted(
            exchanges, key=lambda each: (-each.value, each.going.bundle.name, each.destination.name)
        )[:TAKERS_MAX]:
            back = exchange.back
            if back is not None and not (
                self._refusals.why(exchange.going.bundle, exchange.destination.name)
                or self._refusals.why(back.bundle, source.name)
            ):
                return exchange
        return None

    def _valued_exchanges(
        self,
        source: BrokerLevel,
        side: BrokerLevel,
        demand: BundleDemand,
        others: Sequence[BundleDemand],
        uses: Sequence[Use],
    ) -> Iterator[CandidateMove]:
        """Exchanges of a bundle for one of these that are worth their traffic."""
        both = source.cost_of(source.power) + side.cost_of(side.power)
        for other, mine, taken in zip(others, source.powers(uses, -1), side.powers(uses, 1), strict=True):
            if max(mine, taken) < source.power:
                value = both - source.cost_of(mine) - side.cost_of(taken)
                value /= demand.traffic + other.traffic + 2 * MOVE_COST
                if value >= self._rules.least:
                    value /= max(self._dearer(demand.bundle, side), self._dearer(other.bundle, source))
                if value >= self._rules.least:
                    yield CandidateMove(value, value, demand, other, source, side, (mine, taken))

    def _bundles_of(self, side: BrokerLevel) -> Counter[str]:
        """How many bundles of each namespace a broker has after the steps so far."""
        if side.name not in self._counts:
            self._counts[side.name] = self._count(side.name)
        return self._counts[side.name]

    def _take(self, best: CandidateMove) -> None:
        source, side = best.source, best.destination
        before, resource = (source.level, side.level), source.busiest
        costs = (
            source.cost_of(source.power) + side.cost_of(side.power),
            sum(each.cost_of(power) for each, power in zip((source, side), best.powers, strict=True)),
        )
        del self._cold[bisect_left(self._cold, (side.level, side.name))]
        if source.takes and not source.gives:
            del self._cold[bisect_left(self._cold, (source.level, source.name))]
        after = level_of(best.powers[0]), level_of(best.powers[1])
        for demand, giver, taker in ((best.going, source, side), (best.back, side, source)):
            if demand is not None:
                self._demands(giver).remove(demand)
                self._bundles_of(giver)[demand.bundle.namespace] -= 1
                self._bundles_of(taker)[demand.bundle.namespace] += 1
                giver.add(demand.use, -1)
                taker.add(demand.use, 1)
                self.traffic += demand.traffic
                back = demand is best.back
                self.steps.append(Step(demand, giver, taker, resource, before, after, costs, best.value, back))
        insort(self._cold, (side.level, side.name, side))
        heappush(self._hot, (-side.level, side.name, side))
        source.gives = side.taken = True
        if side.under and side.level >= 1 - REST:
            side.under = False
            self._under.discard(side.name)

    def splits(self, asked: Callable[[str], bool]) -> list[SplitWanted]:
        """The largest bundle of each broker that is stuck with too much load, if a cheaper broker might take a part of it.

        Args:
            asked: Whether a bundle's split was asked for lately.
        """
        wanted: list[SplitWanted] = []
        for source in self._stuck:
            largest = next(reversed(self._demands(source)), None)
            if largest is None or largest.young or largest.size < BIG or not source.owes >= SPLIT_PAID:
                continue
            bundle = largest.bundle
            topics = 0 if bundle.stats is None else bundle.stats.topics
            cheaper = (
                side for level, _, side in self._cold if level < source.level - self._rules.gap and side is not source
            )
            if topics < 2 or asked(bundle.name):  # noqa: PLR2004 - a single topic cannot be split
                continue
            if any(self._refusals.why(bundle, each.name) is None for each in islice(cheaper, TAKERS_MAX)):
                why = f"{source.name} has level {source.level:.3f}, {largest.size:.3f} of it this bundle: too much for any other"
                wanted.append(SplitWanted(bundle.name, f"{why} broker"))
        return wanted[:AROUND]


def _most(demands: Iterable[BundleDemand], part: Callable[[BundleDemand], float]) -> list[BundleDemand]:
    return nlargest(EXCHANGED, demands, key=lambda demand: (part(demand), demand.bundle.name))


def _less(use: Use, other: Use) -> Use:
    return use[0] - other[0], use[1] - other[1], use[2] - other[2], use[3] - other[3]
