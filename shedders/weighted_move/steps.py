"""What the filters have said in one decision of `weighted-move`, so that nobody is asked in vain again and again. Pure.

Filters refuse a broker to whole namespaces, as a rule: isolation, anti-affinity, versions. The idlest brokers of a cluster may
well be such that none of a busy broker's namespaces may use; they must not stand in the way of those that may be used.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import sqrt
from operator import attrgetter
from typing import Final, NamedTuple

from shedders.model.cluster import Bundle
from shedders.shedding.leveling import CanTake, refused
from shedders.weighted_move.loads import BrokerLevel, BundleDemand

CLOSED: Final = 2
"""So many bundles of a namespace refused, and none let in: the broker is not asked for another one in this decision."""

_NOBODY: Final[frozenset[str]] = frozenset()


class FilterRefusals:
    """See the module.

    Args:
        can_take: Filters; None: every broker may take every bundle.

    Attributes:
        count: How many answers were no.
        closed: By broker, namespaces of which it is asked no more.
    """

    def __init__(self, can_take: CanTake | None) -> None:
        self._can_take = can_take
        self._times: Counter[tuple[str, str]] = Counter()
        self._open: set[tuple[str, str]] = set()
        self.count = 0
        self.closed: dict[str, set[str]] = {}

    def why(self, bundle: Bundle, broker: str) -> str | None:
        """Why a broker may not take a bundle; None if it may."""
        if self._can_take is None:
            return None
        fault = refused(self._can_take, bundle, broker)
        key = broker, bundle.namespace
        if fault is None:
            self._open.add(key)
            return None
        self.count += 1
        self._times[key] += 1
        if self._times[key] >= CLOSED and key not in self._open:
            self.closed.setdefault(broker, set()).add(bundle.namespace)
        return fault

    def closed_to(self, broker: str) -> set[str] | frozenset[str]:
        """Namespaces of which this broker is asked no more."""
        return self.closed.get(broker, _NOBODY)


DESTINATIONS = 3
"""Brokers looked at together for a bundle: the idlest that are left."""

DESTINATIONS_MAX = 24
"""So many are asked whether they take anything of a broker."""

REFUSALS_MAX = 24
"""Answers of filters that one step waits for, once the decision has had `REFUSALS` of them."""

REFUSALS = 3_000
"""Refusals of one decision after which less is asked: tens of milliseconds."""

SKIPPED = 50_000
"""Brokers of one decision that are passed over because they are closed to all that a source has; more are asked again."""

ALL = 24
"""Bundles of one broker that are all looked at; of more than this, those around the two best sizes."""

AROUND = 4
"""So many to both sides."""

EXCHANGED = 12
"""Bundles of a broker for which something is looked for that could come back."""

QUARTER = 0.25
"""A move that takes more than half a gap has to lower the busier of the two by this part of the gap, at least."""


_size = attrgetter("size")


@dataclass(frozen=True, slots=True)
class StepRules:
    """Bounds of one decision.

    Attributes:
        rest: Levels this far from 1 are level.
        least: Gain per churn below which nothing goes.
        move_cost: What a move costs beside its load, 1 for the traffic of an average broker.
        churn: Load that may go, in the same unit; moves: their number.
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
        back: It comes back for another bundle.
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
    """A candidate: what goes, what comes back, and what that is worth."""

    value: float
    going: BundleDemand
    back: BundleDemand | None
    source: BrokerLevel
    destination: BrokerLevel
    after: tuple[float, float]


class Steps:
    """See the module.

    Args:
        cargo: A broker's bundles that may go, the smallest first; the list is used up.
        refused: Why a broker may not get a bundle; None where it may.
        filters: What of that the filters have said.
    """

    def __init__(
        self,
        sides: Sequence[BrokerLevel],
        rules: StepRules,
        cargo: Callable[[BrokerLevel], list[BundleDemand]],
        refused: Callable[[Bundle, BrokerLevel], str | None],
        filters: FilterRefusals | None = None,
    ) -> None:
        self._rules = rules
        self._cargo = cargo
        self._refused = refused
        self._filters = filters or FilterRefusals(None)
        self._namespaces: dict[str, frozenset[str]] = {}
        self._skipped = 0
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
        """All of them; `stuck` says of brokers that give nothing (more) why."""
        rules = self._rules
        while self._hot and (self._over or self._under):
            level, _, source = heappop(self._hot)
            if -level != source.level:
                continue  # it has changed since, and has another entry
            if not source.level > 1 - rules.rest:
                break
            if source.waits or not ((source.over and source.level > source.aim) or self._under):
                continue
            room = len(self.steps) < rules.moves and self.churn < rules.churn
            found = self._best(source) if room else None
            if found is not None:
                self._take(found)
                heappush(self._hot, (-source.level, source.name, source))
                continue
            if source.over:
                self._over.discard(source.name)
                word = "nothing-fits" if room else "budget"
                why = self._refusal or "none of its bundles is worth moving to any of the idlest brokers"
                if not room:
                    why = f"{len(self.steps)} moves with {self.churn:.2f} of an average broker's traffic are enough at once"
                self.stuck[source.name] = (word, f"it stands at {source.level:.3f} of the average; {why}")
        return self.steps

    def _best(self, source: BrokerLevel) -> CandidateMove | None:
        """The best step from this broker that nobody refuses."""
        self._refusal = ""
        cargo = self._cargo(source)
        refusals = 0
        for some in self._takers(source):
            ranked = self._singles(source, some, cargo)
            ranked.sort(key=_worst_last)
            for found in ranked:
                fault = self._refused(found.going.bundle, found.destination)
                if fault is None:
                    return found
                refusals += 1
                self._refusal = f"{found.destination.name} may not take {found.going.bundle.name}: {fault}"
                if refusals >= REFUSALS_MAX and self._filters.count >= REFUSALS:
                    return None
        may = source.takes and len(self.steps) + 2 <= self._rules.moves  # an exchange is two moves
        idlest = next(self._takers(source), []) if may else []
        return self._exchange(source, idlest, cargo)

    def _takers(self, source: BrokerLevel) -> Iterator[list[BrokerLevel]]:
        """The idlest brokers that may get something of this one, a few at a time."""
        some: list[BrokerLevel] = []
        asked = 0
        least = self._rules.least / 2
        for level, _, side in self._cold:
            if asked >= DESTINATIONS_MAX or not source.level - level > least:
                break
            if side is source or side.given or not (source.over or side.under) or self._is_closed(source, side):
                continue
            some.append(side)
            asked += 1
            if len(some) == DESTINATIONS:
                yield some
                some = []
        if some:
            yield some

    def _is_closed(self, source: BrokerLevel, side: BrokerLevel) -> bool:
        """Whether a broker takes nothing of all that another one has."""
        closed = self._filters.closed_to(side.name)
        if not closed or self._skipped >= SKIPPED:
            return False
        known = self._namespaces.get(source.name)
        if known is None:
            known = self._namespaces[source.name] = frozenset(one.bundle.namespace for one in self._cargo(source))
        if not known <= closed:
            return False
        self._skipped += 1
        self._refusal = self._refusal or f"{side.name} may take nothing of it"
        return True

    def has_room(self, source: BrokerLevel, bundle: Bundle, gap: float) -> bool:
        """Whether anybody may take a bundle, however large it is, who stands lower than its broker by so large a part."""
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
        self, source: BrokerLevel, some: Sequence[BrokerLevel], cargo: Sequence[BundleDemand]
    ) -> list[CandidateMove]:
        found: list[CandidateMove] = []
        rules = self._rules
        for side in some:
            gap = source.level - side.level
            closed = self._filters.closed_to(side.name)
            may_go = [one for one in cargo if one.bundle.namespace not in closed] if closed else cargo
            for one in self._sized(source, side, may_go):
                use = one.use
                after = source.with_(-use[0], -use[1], -use[2]), side.with_(*use)
                top = max(after)
                if not top < source.level or (after[1] > after[0] and source.level - top < QUARTER * gap):
                    continue
                value = gained(source, side, after) / (one.churn + rules.move_cost)
                if value >= rules.least and (source.urgent or not one.young):
                    found.append(CandidateMove(value, one, None, source, side, after))
        return found

    def _sized(self, source: BrokerLevel, side: BrokerLevel, cargo: Sequence[BundleDemand]) -> Sequence[BundleDemand]:
        """Bundles that are about as large as is wanted."""
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
        found: list[BundleDemand] = []
        done = 0
        for size in (cheapest, wanted):
            place = bisect_left(cargo, size / source.scale, key=_size)
            first = max(done, place - AROUND)
            done = min(len(cargo), max(first, place + AROUND))
            found += cargo[first:done]
        return found

    def _ratio(self, source: BrokerLevel, side: BrokerLevel) -> float:
        """What something that is 1 on the source is on the other."""
        resource = source.busiest
        mine, theirs = source.inverse[resource], side.inverse[resource]
        return theirs / mine if mine > 0 and theirs > 0 else 1.0

    def _exchange(
        self, source: BrokerLevel, some: Sequence[BrokerLevel], cargo: Sequence[BundleDemand]
    ) -> CandidateMove | None:
        """The best exchange with one of the idlest brokers."""
        found: list[CandidateMove] = []
        for side in some:
            theirs = self._cargo(side)
            if not theirs or side.taken:
                continue
            ratio = self._ratio(source, side)
            wanted = min((source.level - side.level) / (1 + ratio), max(source.level - source.aim, self._rules.rest))
            for one in cargo[-EXCHANGED:]:
                target = (one.size - wanted / source.scale) * ratio
                if target <= 0 or one.young:
                    continue
                place = bisect_left(theirs, target, key=_size)
                for other in theirs[max(0, place - 1) : place + 2]:
                    exchange = self._swap(source, side, one, other)
                    if exchange is not None:
                        found.append(exchange)
        found.sort(key=_worst_last)
        for swap in found[:REFUSALS_MAX]:
            if swap.back is not None and not (
                self._refused(swap.going.bundle, swap.destination) or self._refused(swap.back.bundle, swap.source)
            ):
                return swap
        return None

    def _swap(
        self, source: BrokerLevel, side: BrokerLevel, one: BundleDemand, other: BundleDemand
    ) -> CandidateMove | None:
        if other.young:
            return None
        cpu, inwards, outwards = (there - back for there, back in zip(one.use, other.use, strict=True))
        after = source.with_(-cpu, -inwards, -outwards), side.with_(cpu, inwards, outwards)
        if not max(after) < source.level or after[1] > after[0]:
            return None
        value = gained(source, side, after) / (one.churn + other.churn + 2 * self._rules.move_cost)
        return CandidateMove(value, one, other, source, side, after) if value >= self._rules.least else None

    def _take(self, found: CandidateMove) -> None:
        """Book it."""
        source, side = found.source, found.destination
        before, resource = (source.level, side.level), source.busiest
        self._cold.remove((side.level, side.name, side))
        for one, giver, taker in ((found.going, source, side), (found.back, side, source)):
            if one is None:
                continue
            self._cargo(giver).remove(one)
            giver.add(one.use, -1)
            taker.add(one.use, 1)
            taker.came += 1
            self.churn += one.churn
            back = one is found.back
            self.steps.append(MoveStep(one, giver, taker, resource, before, found.after, found.value, back))
        insort(self._cold, (side.level, side.name, side))
        heappush(self._hot, (-side.level, side.name, side))
        if not source.given and source.takes:
            self._cold = [entry for entry in self._cold if entry[2] is not source]
        source.given = side.taken = True
        if not source.level > source.aim:
            self._over.discard(source.name)
        if side.under and not side.level < 1 - self._rules.rest:
            side.under = False
            self._under.discard(side.name)


def gained(source: BrokerLevel, side: BrokerLevel, after: tuple[float, float]) -> float:
    """By how much the squares of two levels fall, each weighted with its broker's capacity."""
    lost = source.capacity * (source.level * source.level - after[0] * after[0])
    return lost - side.capacity * (after[1] * after[1] - side.level * side.level)


def _worst_last(found: CandidateMove) -> tuple[float, str, str]:
    return -found.value, found.going.bundle.name, found.destination.name
