"""DeviationShedder: brokers that stand out by standard deviations give bundles to the least loaded."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from shedders.model.amounts import BYTES, MESSAGES, rate
from shedders.model.cluster import Bundle, Cluster
from shedders.model.plan import Plan, Reason
from shedders.model.readings import SheddingSettings, may_receive
from shedders.model.strategy import StrategySettings
from shedders.shedding.draft import Draft, Measure, bytes_of, messages_of
from shedders.shedding.leveling import CanTake, refused


class DeviationSettings(SheddingSettings):
    """Settings of `deviation`."""

    measure: Literal["throughput", "rate"] = Field(
        default="throughput",
        description="What is evened out: bytes or messages a second (upstream leaves it to a subclass).",
    )
    max_deviations: float = Field(
        default=0.9,
        ge=0,
        description="A broker may be so many standard deviations above the mean; of two brokers that differ at all the higher "
        "one is exactly 1 above (upstream leaves it to a subclass).",
    )
    min_excess_percent: float = Field(
        default=10.0,
        ge=0,
        description="A broker that is above the mean by less is left alone, in percent of the mean. Ours: deviations alone "
        "say nothing about the size.",
    )


class DeviationShedder:
    """Takes from the most loaded broker and gives to the least loaded while the most loaded one stands out.

    With x a broker's traffic and mean and sd over all brokers, the most loaded one stands out while

        (x - mean) / sd > `max_deviations`   and   x - mean > mean * `min_excess_percent` / 100

    Its heaviest bundle w with w + least < x goes, so that the receiver ends below where it stood; x, least and sd become what
    they will be. If none goes, the next most loaded broker is looked at.

    Example (also a test): A has 900 bytes/s, B 300, C 0: mean 400, sd 374.17; A stands out by 1.34. Of its bundles with 700,
    150 and 50 that with 700 goes to C: 200, 300, 700, mean 400, sd 216.02. Now C stands out by 1.39, but who gets gives
    nothing in the same plan; B is below the mean.

    Words for brokers left alone: `within-deviations`, `nothing-fits`; and those of `shedders.shedding.draft`.

    `upstream`: the receiver's traffic is *reduced* by what it gets, so that it receives everything and sd goes wrong; bundles
    that were moved lately are not spared; no minimum excess. Upstream says bundle -> broker where every other shedder says
    broker -> bundle; a plan here does not show it. Brokers and bundles of equal traffic go by name, as upstream; sums are
    made in the order of names, there in that of a hash map. Source: `DeviationShedder` (abstract, never used, not in Pulsar
    4.2.4 any more); what is mended: design/decisions/0028.

    Args:
        can_take: Filters; without it every broker may take every bundle.
    """

    name: ClassVar[str] = "deviation"
    Settings: ClassVar[type[StrategySettings]] = DeviationSettings

    def __init__(self, settings: DeviationSettings, can_take: CanTake | None = None) -> None:
        self.settings = settings
        self._can_take = can_take

    def plan(self, cluster: Cluster, memory: Mapping[str, Any]) -> Plan:  # noqa: ARG002  (of the port)
        """Decide once; remembers nothing."""
        settings = self.settings
        if settings.upstream:
            settings = settings.model_copy(update={"grace_s": -1.0})
        draft = Draft(self.name, cluster, settings, {}, None, self._can_take)
        if draft.stopped is not None:
            return draft.stopped
        measure: Measure = bytes_of if settings.measure == "throughput" else messages_of
        draft.scores = {name: measure(load) for name, load in draft.loads.items()}
        spread = _Spread(draft.scores)
        deviation = spread.deviation
        draft.stats.update(mean=spread.mean, deviation=_finite(deviation))
        if settings.upstream:
            self._as_upstream(draft, measure, spread)
        else:
            self._mended(draft, measure, spread)
        draft.stats.update(deviation_after=_finite(spread.deviation))
        for name in draft.loads:
            if name not in spread.looked_at:
                why = f"{self._told(draft.scores[name])}, mean {self._told(spread.mean)}, deviation {self._told(deviation)}"
                draft.leave(name, "within-deviations", why)
        if spread.looked_at:
            return draft.plan(f"{len(spread.looked_at)} stand out, none could be relieved", Reason.NO_BUNDLES)
        return draft.plan("no broker stands out", Reason.HIT_COUNT)

    def _told(self, value: float) -> str:
        return rate(value, BYTES if self.settings.measure == "throughput" else MESSAGES)

    def _mended(self, draft: Draft, measure: Measure, spread: _Spread) -> None:
        excess = spread.mean * self.settings.min_excess_percent / 100
        waiting: dict[str, list[tuple[Bundle, float]]] = {}
        # Who gives in a plan gets nothing in it, and the other way round.
        barred = {name for name in draft.loads if not may_receive(draft.cluster, name)}
        given, got = set[str](), set[str]()
        while spread.stands_out(self.settings.max_deviations) and spread.highest - spread.mean > excess:
            top = spread.top
            spread.looked_at.add(top)
            if top not in waiting:
                # The lightest first: they are taken from the end.
                waiting[top] = [pair for pair in draft.weighed(top, measure) if pair[1] > 0 and top not in got][::-1]
            receiver = self._give_one(draft, spread, waiting[top], barred)
            if receiver is None:
                if top not in given:
                    why = (
                        f"{self._told(spread.highest)}, mean {self._told(spread.mean)}; no bundle of it levels that out"
                    )
                    draft.leave(top, "nothing-fits", why)
                spread.drop_top()
                continue
            barred.add(top)
            given.add(top)
            got.add(receiver)

    def _give_one(
        self, draft: Draft, spread: _Spread, waiting: list[tuple[Bundle, float]], barred: set[str]
    ) -> str | None:
        """Move the heaviest bundle that fits anywhere, and say where; those that do not fit are not looked at again."""
        top, highest = spread.top, spread.highest
        while waiting:
            bundle, weight = waiting.pop()
            tried = 0
            for least, name in spread.brokers:
                if not least + weight < highest or tried >= self.settings.max_destinations_per_bundle:
                    break
                if name == top or name in barred:
                    continue
                tried += 1
                if refused(self._can_take, bundle, name) is None:
                    why = (
                        f"{top} has {self._told(highest)}, mean {self._told(spread.mean)}; this is {self._told(weight)}"
                    )
                    why = f"{why}, for {name} with {self._told(least)}"
                    destination = name if self.settings.transfer else None
                    draft.move(bundle, top, Reason.OVERLOADED, weight, why, destination)
                    spread.shift(top, name, weight, weight)
                    return name
        return None

    def _as_upstream(self, draft: Draft, measure: Measure, spread: _Spread) -> None:
        last: str | None = None
        chosen = set[str]()
        waiting: list[tuple[float, str, Bundle]] = []
        ordered: dict[str, list[tuple[float, str, Bundle]]] = {}
        while spread.brokers and spread.stands_out_upstream(self.settings.max_deviations):
            top, highest, least = spread.top, spread.highest, spread.brokers[0]
            spread.looked_at.add(top)
            if top != last:
                if top not in ordered:
                    ordered[top] = sorted(
                        (weight, bundle.name, bundle) for bundle, weight in draft.weighed(top, measure)
                    )
                waiting = [one for one in ordered[top] if one[1] not in chosen]
                last = top
            while waiting:
                weight, name, bundle = waiting.pop()
                if weight + least[0] < highest:
                    chosen.add(name)
                    why = (
                        f"{top} has {self._told(highest)}, mean {self._told(spread.mean)}; this is {self._told(weight)}"
                    )
                    draft.move(bundle, top, Reason.OVERLOADED, weight, why)
                    spread.shift(top, least[1], weight, -weight)
                    break
            else:
                spread.drop_top()
        if not spread.brokers:
            # There it fails, and what was found so far is lost.
            draft.moves.clear()


def _finite(value: float) -> float:
    return value if value > 0 else 0.0


class _Spread:
    """Brokers' traffic in order, with mean and standard deviation of all.

    Attributes:
        brokers: Those not dropped, least first, equal ones by name.
        looked_at: Brokers that stood out.
    """

    def __init__(self, traffic: Mapping[str, float]) -> None:
        self._values = dict(traffic)
        self.brokers = sorted((value, name) for name, value in traffic.items())
        self._count = len(self.brokers)
        total = self._squares = 0.0
        for value in traffic.values():
            total += value
            self._squares += value * value
        self.mean = total / self._count
        self.looked_at: set[str] = set()

    @property
    def top(self) -> str:
        return self.brokers[-1][1]

    @property
    def highest(self) -> float:
        return self.brokers[-1][0]

    @property
    def deviation(self) -> float:
        """Not-a-number where rounding makes the variance negative."""
        variance = self._squares / self._count - self.mean * self.mean
        return math.sqrt(variance) if variance >= 0 else math.nan

    def stands_out(self, deviations: float) -> bool:
        """Whether the most loaded one does; nobody does where all are equal."""
        return bool(self.brokers) and self.deviation > 0 and (self.highest - self.mean) / self.deviation > deviations

    def stands_out_upstream(self, deviations: float) -> bool:
        """The same, but with a deviation of 0 whoever is above the mean at all."""
        above, deviation = self.highest - self.mean, self.deviation
        return above > 0 if deviation == 0 else above / deviation > deviations

    def drop_top(self) -> None:
        self.brokers.pop()

    def shift(self, source: str, destination: str, given: float, got: float) -> None:
        high, low = self._values[source], self._values[destination]
        for name, before, after in ((source, high, high - given), (destination, low, low + got)):
            del self.brokers[bisect_left(self.brokers, (before, name))]
            insort(self.brokers, (after, name))
            self._values[name] = after
        self._squares -= high * high + low * low
        self._squares += (high - given) * (high - given) + (low + got) * (low + got)
