"""LeastLongTermMessageRate: a bundle goes to the broker with the fewest messages a second in the long run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, ClassVar

from pydantic import Field

from shedders.model.candidates import (
    BookedSums,
    CandidateReader,
    KnownBrokers,
    Projection,
    blind,
    came_since,
    pick,
    unplaced,
)
from shedders.model.cluster import Bundle, Cluster
from shedders.model.plan import Placed
from shedders.model.readings import UsageSettings, is_sound
from shedders.model.strategy import StrategySettings

LEAST_RATE = 1.0  # minimum message rate of a bundle in flight, so that idle ones spread as well


class LeastLongTermRateSettings(UsageSettings):
    overloaded_percent: float = Field(
        default=85.0,
        ge=0,
        description="A broker above this takes no bundle if there is another (loadBalancerBrokerOverloadedThresholdPercentage).",
    )


class LeastLongTermMessageRate:
    """Takes the broker with the lowest score: the long-term message rates of its bundles and of those in flight to it.

        score = infinite                                        if r > `overloaded_percent` / 100
                sum of (in + out) over bundles in flight
                + sum of in + sum of out over its bundles       else

    with r the weighted maximum of the report, with the bundles in flight added (`shedders.model.candidates`). If all are
    overloaded, the one with the least r. Brokers of unknown load are considered only if no load is known; then the one with
    the fewest bundles takes it. A stale report counts, with the bundles added that are known to have come since. Ties are
    broken by a hash of the bundle's name. The bundle's own rate does not matter.

    Example (also a test): A has bundles with 300 and 200 messages/s, B with 400 and one with 50 in flight, C with 10 but
    r = 0.9: 500, 450 and infinite, so B. With all at r > 0.85 the one with the least; with `upstream` any of them.

    `upstream`: r is the report alone, however old; idle bundles in flight count nothing; ties are broken at random:
    `Placed.best` has them all. Sums are made in the order of a hash set there, of names here: scores may differ in the last
    bit, and brokers that are equal here may not be there. Source: `LeastLongTermMessageRate` of Pulsar 4.2.4; corrections:
    design/decisions/0030.
    """

    name: ClassVar[str] = "least-long-term-rate"
    Settings: ClassVar[type[StrategySettings]] = LeastLongTermRateSettings

    def __init__(self, settings: LeastLongTermRateSettings) -> None:
        self.settings = settings
        self._reader = CandidateReader(settings, settings.weights)
        self._seen: tuple[Cluster, _Rates] | None = None

    def place(
        self,
        cluster: Cluster,
        bundle: Bundle,
        candidates: Sequence[str],
        booked: Mapping[str, Sequence[str]],
        memory: Mapping[str, Any],
    ) -> Placed:
        """Choose; see the class. Remembers nothing of its own."""
        if not candidates:
            return unplaced(bundle, memory)
        known = self._reader.of(cluster)
        if self._seen is None or self._seen[0] is not cluster:
            self._seen = (cluster, _Rates(cluster, known, 0.0 if self.settings.upstream else LEAST_RATE))
        rates = self._seen[1]
        names, removed = known.judged(candidates)
        if not names and not self.settings.upstream:
            return blind(cluster, bundle, candidates, booked, removed, memory)
        limit = self.settings.overloaded_percent / 100.0
        usages = rates.projection.of(names, {} if self.settings.upstream else booked)
        counted = rates.of(names, booked)
        scores = {name: inf if usages[name] > limit else counted[name] for name in names}
        least = min(scores.values(), default=inf)
        if least < inf:
            best = [name for name in names if scores[name] == least]
            why = f"fewest messages in the long run: {least:.6g}/s"
        elif self.settings.upstream:
            best = sorted(candidates)
            why = f"all are above {limit:.3f} or unknown"
        else:
            lowest = min(usages.values())
            best = [name for name in names if usages[name] == lowest]
            why = f"all are above {limit:.3f}; the least has {lowest:.3f}"
        why += known.remark(names)
        finite = {name: score for name, score in scores.items() if score < inf}
        return Placed(bundle.name, pick(bundle.name, best), why, best, removed, finite, memory)


class _Rates:
    """Long-term message rates of brokers, computed once for each state of the cluster."""

    def __init__(self, cluster: Cluster, known: KnownBrokers, least: float) -> None:
        self._cluster = cluster
        self._least = least
        self._owned: dict[str, float] = {}
        # Bundles that have arrived count as owned, although the broker's report does not have them yet.
        self._booked = BookedSums(self._rate, came_since(cluster, known.lapsed))
        self.projection = Projection(cluster, known.loads, known.usages)

    def of(self, names: Sequence[str], booked: Mapping[str, Sequence[str]]) -> dict[str, float]:
        """The rates of the bundles that each broker owns and of those in flight to it."""
        owned = self._owned
        for name in names:
            if name not in owned:
                owned[name] = self._of_owned(name)
        totals = {name: owned[name] for name in names}
        for broker in booked:
            if broker in totals:
                totals[broker] = self._booked.of(broker, booked[broker]) + totals[broker]
        return totals

    def _of_owned(self, broker: str) -> float:
        inward = outward = 0.0
        # By name: these sums are rounded at each step, and the same cluster has to give the same.
        for bundle in self._cluster.bundles_of.get(broker, ()):
            if is_sound(bundle.averages.long):
                inward += bundle.averages.long.msg_rate_in
                outward += bundle.averages.long.msg_rate_out
        return inward + outward

    def _rate(self, name: str) -> float:
        bundle = self._cluster.bundles.get(name, Bundle(name))
        return max(self._least, bundle.averages.long.msg_rate) if is_sound(bundle.averages.long) else self._least
