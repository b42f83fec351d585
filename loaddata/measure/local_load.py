"""This broker's own load: figures, averages, moving averages (PIP-192 `BundlesLoadData`, never published). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loaddata.model.broker_load import (
    BrokerLoad,
    BrokerTraffic,
    HostUsage,
    PeakWindow,
    UpdateRules,
    is_sound_usage,
    updated,
)
from loaddata.model.bundle_load import BundleStats, LocalBundle, SampleClock, TimedAverages
from loaddata.model.figures import wall_ms
from loaddata.source import MeasuredBundle
from statechannel.protocol.bundle import is_bundle


@dataclass(slots=True)
class LocalLoad:
    """Fold of readings. Times go in; a reading changes everything at once.

    Attributes:
        bundles_max: Bundles beyond this many are left out, the last by name.
        load: The broker's load; `updated_at_ms` 0 before the first reading.
        bundles: Every bundle served, by key, also those with invalid figures: their averages wait.
        measured_s: Monotonic time of the newest; None before the first.
        dropped: Counts of what was left out, by reason.
    """

    rules: UpdateRules = field(default_factory=UpdateRules)
    clock: SampleClock = field(default_factory=SampleClock)
    bundles_max: int = 100_000
    load: BrokerLoad = field(default_factory=BrokerLoad)
    bundles: Mapping[str, LocalBundle] = field(default_factory=dict)
    reading: int = 0
    measured_s: float | None = None
    dropped: Counter[str] = field(default_factory=Counter)
    _sampled_s: float | None = None
    _peak: PeakWindow = field(default_factory=PeakWindow)

    def measured(
        self, usage: HostUsage, bundles: Mapping[str, MeasuredBundle], *, now_s: float, now_ms: int
    ) -> BrokerLoad:
        """Add a reading.

        Args:
            usage: Of the host; a resource with invalid figures keeps its last reading.
            bundles: The bundles served now; missing ones are dropped with their averages: the leader continues them from the
                reports of both brokers (`continued`).
            now_s: Monotonic.
            now_ms: Wall time.
        """
        served = self._named(bundles)
        traffic = BrokerTraffic.of(bundle.stats for bundle in served.values())
        self.dropped["bundle-figures"] += traffic.unsound
        self.dropped["host-figures"] += sum(not is_sound_usage(resource) for resource in usage)
        self.bundles = {name: self._local(name, bundle, now_s) for name, bundle in served.items()}
        samples, self._sampled_s = self.clock.due(self._sampled_s, now_s)
        valid_ms = wall_ms(now_ms)
        self.dropped["clock"] += valid_ms != now_ms
        load = updated(self.load, usage, traffic, samples=samples, now_ms=valid_ms, rules=self.rules)
        self.load = self._peak.added(load, samples)
        self.reading += 1
        self.measured_s = now_s
        return self.load

    def _named(self, bundles: Mapping[Any, MeasuredBundle]) -> dict[str, MeasuredBundle]:
        named = {
            name: bundle
            for name, bundle in bundles.items()
            if isinstance(name, str) and is_bundle(name) and isinstance(getattr(bundle, "stats", None), BundleStats)
        }
        self.dropped["bundle-name"] += len(bundles) - len(named)
        if len(named) > self.bundles_max:
            self.dropped["too-many-bundles"] += len(named) - self.bundles_max
            named = {name: named[name] for name in sorted(named)[: self.bundles_max]}
        return named

    def _local(self, name: str, bundle: MeasuredBundle, now_s: float) -> LocalBundle:
        known = self.bundles.get(name)
        timed = TimedAverages() if known is None else known.timed
        return LocalBundle(bundle.stats, timed.advanced(bundle.stats, now_s, self.clock), bundle.non_persistent is True)
