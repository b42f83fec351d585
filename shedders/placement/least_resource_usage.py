"""LeastResourceUsageWithWeight: a bundle goes to a broker well below the average usage (both of upstream's generations)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import fsum
from typing import Any, ClassVar

from pydantic import Field

from loaddata.model.broker_load import ResourceWeights
from shedders.model.candidates import CandidateReader, KnownBrokers, Projection, blind, pick, unplaced
from shedders.model.cluster import Bundle, Cluster
from shedders.model.plan import Placed
from shedders.model.readings import HistorySettings, ReadingSettings, Smoothed
from shedders.model.strategy import StrategySettings

# A report has to have a limit for one of these, else its load of 0 means nothing.
_ANY_RESOURCE = ResourceWeights(direct_memory=1.0)


class LeastResourceUsageSettings(ReadingSettings):
    difference_percent: float = Field(
        default=10.0,
        ge=0,
        description="A broker is preferred if it is this many points below the average of the candidates "
        "(loadBalancerAverageResourceUsageDifferenceThresholdPercentage).",
    )


class ModularLeastResourceUsageSettings(LeastResourceUsageSettings, HistorySettings):
    """Settings of `least-resource-usage-modular`."""


class LeastResourceUsage:
    """Prefers brokers whose usage is well below the average of the candidates.

        preferred = {b : x_b + d <= mean(x)}        d = `difference_percent` / 100

    with x the moving average of the weighted maximum that the broker reports (`weighted_max_ema`), with the bundles in flight
    added (`shedders.model.candidates`). One of the preferred brokers takes the bundle, chosen by a hash of the bundle's name;
    if there are none, the least loaded does. Brokers of unknown load are considered only if no load is known; then the one
    with the fewest bundles takes it.
    A stale report counts, with the bundles added that are known to have come since.

    Example (also a test): x = 0.8, 0.5 and 0.2, mean 0.5, d = 0.1: only 0.2 + 0.1 <= 0.5. With 0.55, 0.5 and 0.45 no broker is
    preferred, and the third takes it; with `upstream` any of the three.

    `upstream`: x is the report alone, however old, without bundles in flight, of which this class of Pulsar knows nothing: until
    the next report all may go to one broker. If no broker is preferred any candidate may take it, even one without a
    report. It draws from the preferred ones at random: `Placed.best` has them all. The mean is summed in the order of a hash
    set there, of names here, so that it may differ in its last bit. Source: `LeastResourceUsageWithWeight` of the
    extensible load manager (Pulsar 4.2.4); corrections: design/decisions/0030.
    """

    name: ClassVar[str] = "least-resource-usage"
    Settings: ClassVar[type[StrategySettings]] = LeastResourceUsageSettings

    def __init__(self, settings: LeastResourceUsageSettings) -> None:
        self.settings = settings
        self._reader = CandidateReader(settings, _ANY_RESOURCE)
        self._projection: tuple[Cluster, Projection] | None = None

    def place(
        self,
        cluster: Cluster,
        bundle: Bundle,
        candidates: Sequence[str],
        booked: Mapping[str, Sequence[str]],
        memory: Mapping[str, Any],
    ) -> Placed:
        """Choose; see the class. Remembers nothing of its own."""
        known = self._reader.of(cluster)
        names, removed = known.judged(candidates)
        if self.settings.upstream:
            usages = {name: known.loads[name].weighted_max_ema for name in names}
            return choose_as_upstream(bundle, candidates, usages, removed, self.settings, memory)
        if not names:
            return blind(cluster, bundle, candidates, booked, removed, memory)
        if self._projection is None or self._projection[0] is not cluster:
            averages = {name: load.weighted_max_ema for name, load in known.loads.items()}
            self._projection = (cluster, Projection(cluster, known.loads, averages))
        projection = self._projection[1]
        usages = projection.of(names, booked)
        placed = choose(bundle, usages, removed, self.settings, memory)
        return replace(placed, why=placed.why + known.remark(names)) if known.lapsed else placed


class ModularLeastResourceUsage:
    """Like `LeastResourceUsage`, but computes the moving average itself, of the weighted maximum of the reports.

    x = history * x + (1 - history) * r for the time between two measurements (`shedders.model.readings`). A broker without
    bundles or without messages restarts with r, like one that has been restarted.

    Example (also a test): history 0.9 a minute. A had x = 0.8 and now has r = 0.4, a minute later: 0.76. B had 0.2, has r = 0.6:
    0.24. Mean 0.5, so B is preferred. If B has no bundles it is 0.6, and no broker is (0.68 on average, d = 0.1): B again,
    as the less loaded.

    `upstream`: the average advances with every placement; see `LeastResourceUsage` for the rest. Upstream forgets brokers
    when they leave. Source: `LeastResourceUsageWithWeight` of the modular load manager (Pulsar 4.2.4); corrections:
    design/decisions/0025, 0030.
    """

    name: ClassVar[str] = "least-resource-usage-modular"
    Settings: ClassVar[type[StrategySettings]] = ModularLeastResourceUsageSettings

    def __init__(self, settings: ModularLeastResourceUsageSettings) -> None:
        self.settings = settings
        self._reader = CandidateReader(settings, settings.weights)
        # The last result for a cluster and a memory, reused if both are the same.
        self._last: tuple[Cluster, dict[str, Any], Projection] | None = None

    def place(
        self,
        cluster: Cluster,
        bundle: Bundle,
        candidates: Sequence[str],
        booked: Mapping[str, Sequence[str]],
        memory: Mapping[str, Any],
    ) -> Placed:
        """Choose; see the class. Remembers smoothed usages."""
        known = self._reader.of(cluster)
        names, removed = known.judged(candidates)
        if self.settings.upstream:
            smoothed = Smoothed.recall(memory, cluster.brokers)
            usages: dict[str, float] = {}
            for name in names:
                if _is_fresh(cluster, name, known):
                    smoothed.forget(name)
                usages[name] = smoothed.count(name, known.usages[name], self.settings.history_share)
            return choose_as_upstream(bundle, candidates, usages, removed, self.settings, smoothed.as_memory())
        projection, memory = self._smooth(cluster, known, memory)
        if not names:
            return blind(cluster, bundle, candidates, booked, removed, memory)
        usages = projection.of(names, booked)
        placed = choose(bundle, usages, removed, self.settings, memory)
        return replace(placed, why=placed.why + known.remark(names)) if known.lapsed else placed

    def _smooth(
        self, cluster: Cluster, known: KnownBrokers, memory: Mapping[str, Any]
    ) -> tuple[Projection, Mapping[str, Any]]:
        if self._last is not None and self._last[0] is cluster and self._last[1]["usage"] is memory.get("usage"):
            return self._last[2], self._last[1]
        smoothed = Smoothed.recall(memory, cluster.brokers)
        usages: dict[str, float] = {}
        for name, load in known.loads.items():
            if _is_fresh(cluster, name, known):
                smoothed.forget(name)
            measured_at_ms = load.updated_at_ms or cluster.now_ms
            usages[name] = smoothed.advance(name, known.usages[name], measured_at_ms, self.settings)
        after = smoothed.as_memory()
        projection = Projection(cluster, known.loads, usages)
        self._last = (cluster, after, projection)
        return projection, after


def choose(
    bundle: Bundle,
    usages: Mapping[str, float],
    removed: Mapping[str, tuple[str, str]],
    settings: LeastResourceUsageSettings,
    memory: Mapping[str, Any],
) -> Placed:
    """One of the brokers well below the average, else the least loaded.

    Args:
        usages: Of the candidates with usable reports, at least one, sorted.
    """
    average = fsum(usages.values()) / len(usages)
    best = _preferred(usages, average, settings)
    why = f"one of {len(best)} at least {settings.difference_percent:g} points below the average {average:.3f}"
    if not best:
        least = min(usages.values())
        best = [name for name, usage in usages.items() if usage == least]
        why = (
            f"none is {settings.difference_percent:g} points below the average {average:.3f}; the least has {least:.3f}"
        )
    return Placed(bundle.name, pick(bundle.name, best), why, best, removed, usages, memory)


def choose_as_upstream(
    bundle: Bundle,
    candidates: Sequence[str],
    usages: Mapping[str, float],
    removed: Mapping[str, tuple[str, str]],
    settings: LeastResourceUsageSettings,
    memory: Mapping[str, Any],
) -> Placed:
    """One of the brokers well below the average, else any candidate.

    Args:
        usages: Of the candidates with usable reports, sorted.
    """
    if not candidates:
        return unplaced(bundle, memory)
    total = 0.0
    for usage in usages.values():
        total += usage
    average = total / len(usages) if usages else 0.0
    best = _preferred(usages, average, settings) or sorted(candidates)
    why = f"one of {len(best)} of {len(candidates)}; average {average:.3f}"
    return Placed(bundle.name, pick(bundle.name, best), why, best, removed, usages, memory)


def _preferred(usages: Mapping[str, float], average: float, settings: LeastResourceUsageSettings) -> list[str]:
    difference = settings.difference_percent / 100.0
    return [name for name, usage in usages.items() if usage + difference <= average]


def _is_fresh(cluster: Cluster, name: str, known: KnownBrokers) -> bool:
    load = known.loads[name]
    return not cluster.bundles_of.count(name) or (load.msg_rate_in == 0 and load.msg_rate_out == 0)
