"""DeviationShedder: brokers that are standard deviations above the mean give bundles to the least loaded."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from shedders.model.amounts import BYTES, MESSAGES, LoadUnit, rate
from shedders.model.cluster import Bundle, Cluster
from shedders.model.plan import Plan, Reason
from shedders.model.readings import SheddingSettings, may_receive
from shedders.model.strategy import CanTake, StrategySettings
from shedders.shedding.draft import Draft, Measure, bytes_of, messages_of, refused


class DeviationSettings(SheddingSettings):
    measure: Literal["throughput", "rate"] = Field(
        default="throughput",
        description="The balanced quantity: bytes or messages a second (upstream leaves it to a subclass).",
    )
    max_deviations: float = Field(
        default=0.9,
        ge=0,
        description="Allowed distance of a broker above the mean, in standard deviations; of two brokers that differ at all the "
        "higher one is exactly 1 above (upstream leaves it to a subclass).",
    )
    min_excess_percent: float = Field(
        default=10.0,
        ge=0,
        description="A broker that is above the mean by less is left alone, in percent of the mean. Ours: deviations alone do "
        "not show the size of the difference.",
    )


class DeviationShedder:
    """Moves bundles from the most to the least loaded broker while the most loaded one is an outlier.

    With x a broker's traffic and mean and sd over all brokers, the most loaded one is an outlier while

        (x - mean) / sd > `max_deviations`   and   x - mean > mean * `min_excess_percent` / 100

    Its heaviest bundle w with w + least < x goes, so that the receiver ends below the source's present load; x, least and sd
    are updated. If none goes, the next most loaded broker is examined.

    Example (also a test): A has 900 bytes/s, B 300, C 0: mean 400, sd 374.17; A is 1.34 above. Of its bundles with 700,
    150 and 50 that with 700 goes to C: 200, 300, 700, mean 400, sd 216.02. Now C is 1.39 above, but a receiver gives
    nothing in the same plan; B is below the mean.

    Words for brokers left alone: `within-deviations`, `nothing-fits`; and those of `shedders.shedding.draft`.

    `upstream`: the receiver's traffic is *reduced* by what it gets, so that it receives everything and sd goes wrong; bundles
    that were moved recently may move again; no minimum excess. Upstream returns bundle -> broker where every other shedder
    returns broker -> bundle; a plan here does not show it. Brokers and bundles of equal traffic are ordered by name, as
    upstream; sums are made in the order of names, there in that of a hash map. Source: `DeviationShedder` (abstract, never
    used, removed in Pulsar 4.2.4); corrections: design/decisions/0028.

    Args:
        can_take: Filters; without it every broker may take every bundle.
    """

    name: ClassVar[str] = "deviation"
    Settings: ClassVar[type[StrategySettings]] = DeviationSettings

    def __init__(self, settings: DeviationSettings, can_take: CanTake | None = None) -> None:
        self.settings = settings
        self._can_take = can_take

    def plan(self, cluster: Cluster, memory: Mapping[str, Any]) -> Plan:  # noqa: ARG002  (of the port)
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
            self._corrected(draft, measure, spread)
        draft.stats.update(deviation_after=_finite(spread.deviation))
        for name in draft.loads:
            if name not in spread.outliers:
                why = f"{self._rate(draft.scores[name])}, mean {self._rate(spread.mean)}, deviation {self._rate(deviation)}"
                draft.leave(name, "within-deviations", why)
        if spread.outliers:
            return draft.plan(
                f"{len(spread.outliers)} brokers deviate too far, none could be relieved", Reason.NO_BUNDLES
            )
        return draft.plan("no broker deviates too far from the mean", Reason.HIT_COUNT)

    @property
    def _unit(self) -> LoadUnit:
        return BYTES if self.settings.measure == "throughput" else MESSAGES

    def _rate(self, value: float) -> str:
        return rate(value, self._unit)

    def _corrected(self, draft: Draft, measure: Measure, spread: _Spread) -> None:
        excess = spread.mean * self.settings.min_excess_percent / 100
        waiting: dict[str, list[tuple[Bundle, float]]] = {}
        # A giver gets nothing in the same plan, and a receiver gives nothing.
        barred = {name for name in draft.loads if not may_receive(draft.cluster, name)}
        givers, receivers = set[str](), set[str]()
        while spread.is_outlier(self.settings.max_deviations) and spread.highest - spread.mean > excess:
            top = spread.top
            spread.outliers.add(top)
            if top not in waiting:
                # The lightest first: they are taken from the end.
                waiting[top] = [pair for pair in draft.weighed(top, measure) if pair[1] > 0 and top not in receivers][
                    ::-1
                ]
            receiver = self._give_one(draft, spread, waiting[top], barred)
            if receiver is None:
                if top not in givers:
                    why = f"{self._rate(spread.highest)}, mean {self._rate(spread.mean)}; none of its bundles would level it"
                    draft.leave(top, "nothing-fits", why)
                spread.drop_top()
                continue
            barred.add(top)
            givers.add(top)
            receivers.add(receiver)

    def _give_one(
        self, draft: Draft, spread: _Spread, waiting: list[tuple[Bundle, float]], barred: set[str]
    ) -> str | None:
        """Move the heaviest bundle that fits anywhere, and return its destination; those that do not fit are dropped."""
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
                        f"{top} has {self._rate(highest)}, mean {self._rate(spread.mean)}; this is {self._rate(weight)}"
                    )
                    why = f"{why}, for {name} with {self._rate(least)}"
                    destination = name if self.settings.transfer else None
                    draft.move(bundle, top, Reason.OVERLOADED, weight, why, destination, self._unit)
                    spread.shift(top, name, weight, weight)
                    return name
        return None

    def _as_upstream(self, draft: Draft, measure: Measure, spread: _Spread) -> None:
        last: str | None = None
        chosen = set[str]()
        waiting: list[tuple[float, str, Bundle]] = []
        ordered: dict[str, list[tuple[float, str, Bundle]]] = {}
        while spread.brokers and spread.is_outlier_upstream(self.settings.max_deviations):
            top, highest, least = spread.top, spread.highest, spread.brokers[0]
            spread.outliers.add(top)
            if top != last:
                if top not in ordered:
                    ordered[top] = sorted(
                        (weight, bundle.name, bundle) for bundle, weight in draft.weighed(top, measure)
                    )
                waiting = [entry for entry in ordered[top] if entry[1] not in chosen]
                last = top
            while waiting:
                weight, name, bundle = waiting.pop()
                if weight + least[0] < highest:
                    chosen.add(name)
                    why = (
                        f"{top} has {self._rate(highest)}, mean {self._rate(spread.mean)}; this is {self._rate(weight)}"
                    )
                    draft.move(bundle, top, Reason.OVERLOADED, weight, why, unit=self._unit)
                    spread.shift(top, least[1], weight, -weight)
                    break
            else:
                spread.drop_top()
        if not spread.brokers:
            # Upstream fails here, and loses the moves found so far.
            draft.moves.clear()


def _finite(value: float) -> float:
    return value if value > 0 else 0.0


class _Spread:
    """Brokers' traffic in order, with mean and standard deviation of all.

    Attributes:
        brokers: Those not dropped, least first, equal ones by name.
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
        self.outliers: set[str] = set()

    @property
    def top(self) -> str:
        return self.brokers[-1][1]

    @property
    def highest(self) -> float:
        return self.brokers[-1][0]

    @property
    def deviation(self) -> float:
        """Standard deviation; not-a-number if rounding makes the variance negative."""
        variance = self._squares / self._count - self.mean * self.mean
        return math.sqrt(variance) if variance >= 0 else math.nan

    def is_outlier(self, deviations: float) -> bool:
        """Whether the most loaded broker is one; none is if all are equal."""
        return bool(self.brokers) and self.deviation > 0 and (self.highest - self.mean) / self.deviation > deviations

    def is_outlier_upstream(self, deviations: float) -> bool:
        """Whether the most loaded broker is one; with a deviation of 0 any broker above the mean is one."""
        above, deviation = self.highest - self.mean, self.deviation
        return above > 0 if deviation == 0 else above / deviation > deviations

    def drop_top(self) -> None:
        self.brokers.pop()

    def shift(self, source: str, destination: str, lost: float, gained: float) -> None:
        high, low = self._values[source], self._values[destination]
        for name, before, after in ((source, high, high - lost), (destination, low, low + gained)):
            del self.brokers[bisect_left(self.brokers, (before, name))]
            insort(self.brokers, (after, name))
            self._values[name] = after
        self._squares -= high * high + low * low
        self._squares += (high - lost) * (high - lost) + (low + gained) * (low + gained)
