"""Triggers of splits: limits that a bundle exceeded several times in a row, and caps per namespace and cycle.

The condition is the first that holds, each strictly greater: topics > `max_topics` (`Topics`); producers and consumers >
`max_sessions`, 0 for no limit (`Sessions`); messages a second both ways > `max_msg_rate` (`MsgRate`); bytes a second both ways
> `max_bandwidth_mib` * 2^20 (`Bandwidth`). It must hold more than `hit_threshold` times in a row; where the long-term average is
within the limit, so that the traffic has only risen, more than `burst_hit_threshold` times. The split algorithm decides where
to cut. A namespace has at most `max_bundles`, planned ones included, and a cycle at most `max_per_cycle` splits.

Worked example, defaults: t/n/0x00000000_0x80000000 has 5 topics and 40,000 messages a second, nine cycles in a row. Eight times
it is left with `hits`, then it is cut in the middle, at 0x40000000, with reason `MsgRate`. If one of its topics alone has
38,000, then any part with it has more than 30,000, and the rest, 2,000, is less than a tenth of that: it is left with
`hot-topic`.

Ours (decision records 43, 44): the bundle furthest over its limits first (upstream: any order), cuts in several places
(upstream refuses all but one), no cut if one hot topic is the cause; an invalid answer of an algorithm costs one bundle, not
the cycle. With `upstream` hits of a bundle without figures are forgotten, as there.

Words for bundles left whole: `no-stats`, `bad-load`, `in-flight`, `estimated` (not measured since it was split off),
`few-topics`, `bad-name`, `too-narrow`, `hits`, `hot-topic`, `hot-spot` (several splits in a row took next to nothing off it),
`no-positions`, `algorithm-failed`, `namespace-full`, `cycle-full`. Bundles within the limits are not mentioned, nor those that
no broker serves or reports, unless they were over a limit the last time.

Source: upstream `DefaultNamespaceBundleSplitStrategyImpl`; its older `BundleSplitterTask` is `measure: long`, `hit_threshold:
0` and no cap per cycle. Upstream's check for bundles in Splitting with the same end has no counterpart: here a split is one
record.

Hot topics, which no split makes smaller, are left whole (`shedders.split.hot_topics`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal

from pydantic import Field

from loaddata.model.bundle_load import BundleStats, TrafficRates
from loaddata.model.bundle_load import is_sound as stats_sound
from shedders.model.amounts import BYTES, MESSAGES, rate
from shedders.model.cluster import Bundle, Cluster
from shedders.model.cuts import CannotSplitError, children, ends
from shedders.model.plan import SplitPlan
from shedders.model.readings import is_sound
from shedders.model.strategy import SplitAlgorithm, StrategySettings
from shedders.split.hot_topics import BundleLimits, Lineage, hot_topic
from statechannel.protocol.bundle import MAX_CHILDREN


class SplitSettings(StrategySettings):
    """When bundles are split; defaults are upstream's if upstream has the setting, but for `hit_threshold`."""

    upstream: bool = Field(
        default=False,
        description="Choose as Pulsar does, one cut each, in order of the names; `hit_threshold` is a setting of its own.",
    )
    max_topics: int = Field(
        default=1000, ge=0, description="Topics of a bundle (loadBalancerNamespaceBundleMaxTopics)."
    )
    max_sessions: int = Field(
        default=1000,
        description="Producers and consumers of a bundle; 0 or less: no limit (loadBalancerNamespaceBundleMaxSessions).",
    )
    max_msg_rate: int = Field(
        default=30_000, ge=1, description="Messages a second, both ways (loadBalancerNamespaceBundleMaxMsgRate)."
    )
    max_bandwidth_mib: int = Field(
        default=100, ge=1, description="MiB a second, both ways (loadBalancerNamespaceBundleMaxBandwidthMbytes)."
    )
    max_bundles: int = Field(
        default=128,
        ge=1,
        le=MAX_CHILDREN,
        description="Bundles of a namespace, for automatic splits (loadBalancerNamespaceMaximumBundles).",
    )
    max_per_cycle: int = Field(
        default=10,
        ge=0,
        description="Bundles split in one cycle; 0: no limit (loadBalancerMaxNumberOfBundlesToSplitPerCycle).",
    )
    hit_threshold: int = Field(
        default=8,
        ge=0,
        description="A bundle is split if the condition held more than this many times in a row "
        "(loadBalancerNamespaceBundleSplitConditionHitCountThreshold, 3): longer than a typical burst, like `hits` of "
        "`weighted-move`, since all clients of a bundle that is split connect again.",
    )
    burst_hit_threshold: int = Field(
        default=30,
        ge=0,
        description="The same for a bundle whose long-term average is within the limit: it has only risen, and most bursts end "
        "by themselves. Upstream: no such rule.",
    )
    measure: Literal["now", "short", "long"] = Field(
        default="now",
        description="Traffic at this moment, or which average (upstream's newer manager: now; its older one: long).",
    )
    unload_children: bool = Field(
        default=False,
        description="Unload the children, so that they are placed again (loadBalancerAutoUnloadSplitBundlesEnabled; upstream's "
        "older manager: true). Without it the shedder may move them.",
    )
    worth_percent: float = Field(
        default=10.0,
        ge=0,
        description="A bundle with a hot topic is split only if its other topics have this percentage of the limit; upstream: "
        "no such rule.",
    )
    fruitless_percent: float = Field(
        default=10.0, ge=0, le=100, description="A split that takes less than this off a bundle was fruitless."
    )
    fruitless_max: int = Field(
        default=3,
        ge=1,
        description="After this many fruitless splits in a row a bundle is left whole; upstream: no such rule.",
    )


MIB = 1024 * 1024
FEW_TOPICS = 2
_WORD = 1 << 32


@dataclass(frozen=True, slots=True)
class Splits:
    """The result of one cycle over all bundles.

    Attributes:
        plans: First those to split, in order; then those left whole, by name.
        why: Why no bundle was examined; None if they were.
        memory: State for the next cycle (`hits`, `lineage`); JSON-able.
    """

    plans: Sequence[SplitPlan]
    why: str | None = None
    memory: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Over:
    """A bundle over a limit: upstream's reason, by how much, and the figures.

    Attributes:
        usual: Its long-term average, for people, where that is within all limits: then it has only risen; else empty.
    """

    bundle: Bundle
    reason: str
    heat: float
    why: str
    usual: str = ""


class SplitWhen:
    """Chooses which bundles to split; the algorithm decides where."""

    def __init__(self, settings: SplitSettings, algorithm: SplitAlgorithm) -> None:
        self.settings = settings
        self.algorithm = algorithm

    def plan(self, cluster: Cluster, memory: Mapping[str, Any], broker: str | None = None) -> Splits:
        """Decide once.

        Args:
            memory: `Splits.memory` of the last cycle; empty at first.
            broker: Only bundles of this broker; None: all.
        """
        return _Cycle(cluster, self.settings, self.algorithm, memory).splits(broker)


class _Cycle:
    def __init__(
        self, cluster: Cluster, settings: SplitSettings, algorithm: SplitAlgorithm, memory: Mapping[str, Any]
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._algorithm = algorithm
        self._limits = _limits(settings)
        self._hits = _counts(memory.get("hits"))
        self._lineage = Lineage.remembered(memory.get("lineage"))
        self._planned: Counter[str] = Counter()
        self._chosen: list[SplitPlan] = []
        self._left: dict[str, SplitPlan] = {}

    def splits(self, broker: str | None) -> Splits:
        bundles = self._cluster.bundles
        self._hits = {name: count for name, count in self._hits.items() if name in bundles}
        if self._cluster.safe is None:
            if self._settings.upstream:
                # Upstream keeps only hits of bundles that have figures in this cycle.
                kept = {
                    name
                    for name in self._hits
                    if bundles[name].stats is not None and self._is_served(bundles[name], broker)
                }
                self._hits = {name: count for name, count in self._hits.items() if name in kept}
                self._as_upstream([name for name in sorted(bundles) if self._is_served(bundles[name], broker)])
            else:
                self._hottest_first(broker)
        memory = {"hits": dict(sorted(self._hits.items())), "lineage": self._lineage.dumped(bundles.keys())}
        why = None if self._cluster.safe is None else f"the cluster is left alone: {self._cluster.safe}"
        return Splits([*self._chosen, *(self._left[name] for name in sorted(self._left))], why, memory)

    def _is_served(self, bundle: Bundle, broker: str | None) -> bool:
        return bundle.owner is not None and broker in (None, bundle.owner)

    def _hottest_first(self, broker: str | None) -> None:
        over = list(self._over_limits(broker))
        for candidate in sorted(over, key=lambda candidate: (-candidate.heat, candidate.bundle.name)):
            bundle = candidate.bundle
            trouble = (
                self._full(candidate) or self._uncuttable(bundle) or self._in_vain(candidate) or self._cut(candidate)
            )
            if trouble is not None:
                self._leave(bundle, *trouble)

    def _over_limits(self, broker: str | None) -> Iterator[_Over]:
        striking = self._striking(broker)
        bundles, known = self._cluster.bundles, set(striking)
        # A bundle that is within the limits again starts counting from zero.
        self._hits = {
            name: hits
            for name, hits in self._hits.items()
            if name in known or not self._is_served(bundles[name], broker)
        }
        for name in sorted(striking):
            bundle = bundles[name]
            trouble = self._unsuitable(bundle)
            over = None if trouble is not None else self._measure(bundle)
            if over is None:
                hits = self._hits.pop(name, 0)
                if trouble is not None and (hits or trouble[0] != "no-stats"):
                    self._leave(bundle, *trouble)
                continue
            trouble = self._too_few(bundle) or self._too_seldom(over)
            if trouble is None:
                yield over
            else:
                self._leave(bundle, *trouble)

    def _striking(self, broker: str | None) -> list[str]:
        """Bundles to examine: all except those with valid figures within all limits, and those to be ignored.

        One loop without calls: nearly all of a hundred thousand bundles end here.
        """
        # Comparing integers with floats is slow; these are the same numbers.
        msg_rate, throughput = _as_float(self._limits.msg_rate), _as_float(self._limits.throughput)
        topics, sessions = self._limits.topics, inf if self._limits.sessions is None else self._limits.sessions
        measure, hits = self._settings.measure, self._hits
        names = []
        for name, bundle in self._cluster.bundles.items():
            owner, stats = bundle.owner, bundle.stats
            if owner is None or (broker is not None and owner != broker):
                continue
            if stats is None:
                if bundle.in_flight or bundle.estimated or name in hits:
                    names.append(name)
                continue
            traffic: TrafficRates = stats
            if measure != "now":
                traffic = bundle.averages.short if measure == "short" else bundle.averages.long
            rate_in, rate_out = traffic.msg_rate_in, traffic.msg_rate_out
            size_in, size_out = traffic.msg_throughput_in, traffic.msg_throughput_out
            consumers, producers = stats.consumers, stats.producers
            if not (
                rate_in + rate_out <= msg_rate
                and size_in + size_out <= throughput
                and 0 <= stats.topics <= topics
                and consumers + producers <= sessions
                and rate_in >= 0.0
                and rate_out >= 0.0
                and size_in >= 0.0
                and size_out >= 0.0
                and consumers >= 0
                and producers >= 0
            ):
                names.append(name)
        return names

    def _unsuitable(self, bundle: Bundle) -> tuple[str, str] | None:
        if bundle.in_flight:
            return "in-flight", "it is in flight or being split"
        if bundle.estimated:
            return "estimated", "it was not measured since it was split off"
        if bundle.stats is None:
            return "no-stats", "its owner does not report it"
        if not stats_sound(bundle.stats) or not is_sound(self._traffic(bundle, bundle.stats)):
            return "bad-load", "its figures are not all finite and positive"
        return None

    def _too_few(self, bundle: Bundle) -> tuple[str, str] | None:
        topics = 0 if bundle.stats is None else bundle.stats.topics
        return None if topics >= FEW_TOPICS else ("few-topics", f"it has {topics}: splitting would separate nothing")

    def _uncuttable(self, bundle: Bundle) -> tuple[str, str] | None:
        try:
            lower, upper = ends(bundle)
        except CannotSplitError as error:
            return "bad-name", str(error)
        return None if upper - lower > 1 else ("too-narrow", "its range cannot be cut")

    def _too_seldom(self, over: _Over) -> tuple[str, str] | None:
        name = over.bundle.name
        hits = self._hits[name] = self._hits.get(name, 0) + 1
        needed, because = self._settings.hit_threshold, ""
        if over.usual and not self._settings.upstream:
            needed = max(needed, self._settings.burst_hit_threshold)
            because = f", as its average is {over.usual}"
        if hits > needed:
            return None
        return "hits", f"{over.why}; {hits} times in a row, more than {needed} are needed{because}"

    def _traffic(self, bundle: Bundle, stats: BundleStats) -> TrafficRates:
        if self._settings.measure == "now":
            return stats
        return bundle.averages.short if self._settings.measure == "short" else bundle.averages.long

    def _measure(self, bundle: Bundle) -> _Over | None:
        """Which limit it is over, the first that applies; None if none."""
        stats = bundle.stats
        if stats is None:
            return None
        traffic = self._traffic(bundle, stats)
        limits = self._limits
        over = [
            (reason, value, limit, unit)
            for reason, value, limit, unit in (
                ("Topics", stats.topics, limits.topics, "topics"),
                ("Sessions", stats.consumers + stats.producers, limits.sessions, "sessions"),
                ("MsgRate", traffic.msg_rate, limits.msg_rate, MESSAGES),
                ("Bandwidth", traffic.msg_throughput, limits.throughput, BYTES),
            )
            if limit is not None and value > limit
        ]
        if not over:
            return None
        heat = max(value / max(limit, 1.0) for _, value, limit, _ in over)
        reason, value, limit, unit = over[0]
        most = rate(limit, unit) if unit == BYTES else f"{limit:.0f}"
        usual = self._usual(bundle, [reason for reason, *_ in over])
        return _Over(bundle, reason, heat, f"{rate(value, unit)}, at most {most}", usual)

    def _usual(self, bundle: Bundle, reasons: Sequence[str]) -> str:
        """The long-term average of what is over its limit, for people, if that is within it; else empty."""
        long, limits = bundle.averages.long, self._limits
        averages = {
            "MsgRate": (long.msg_rate, limits.msg_rate, MESSAGES),
            "Bandwidth": (long.msg_throughput, limits.throughput, BYTES),
        }
        known = [averages[reason] for reason in reasons if reason in averages]
        if not long.samples or len(known) < len(reasons) or any(average > limit for average, limit, _ in known):
            return ""
        average, _, unit = known[0]
        return rate(average, unit)

    def _in_vain(self, over: _Over) -> tuple[str, str] | None:
        """Why splitting would not help: one topic is the cause."""
        settings = self._settings
        hot = hot_topic(over.bundle, over.reason, self._limits, settings.worth_percent)
        if hot is not None:
            return "hot-topic", f"{over.why}; {hot}"
        size = self._size(over)
        vain = self._lineage.in_vain(over.bundle.name, over.reason, size, settings.fruitless_percent)
        if vain >= settings.fruitless_max:
            why = f"{over.why}; {vain} splits in a row took less than {settings.fruitless_percent:g}% off"
            return "hot-spot", f"{why}: one topic probably has all the load; split by hand if not"
        return None

    def _size(self, over: _Over) -> float:
        stats = over.bundle.stats
        if stats is None:
            return 0.0
        traffic = self._traffic(over.bundle, stats)
        return {
            "Topics": float(stats.topics),
            "Sessions": float(stats.sessions),
            "MsgRate": traffic.msg_rate,
            "Bandwidth": traffic.msg_throughput,
        }[over.reason]

    def _full(self, over: _Over) -> tuple[str, str] | None:
        settings = self._settings
        if settings.max_per_cycle and len(self._chosen) >= settings.max_per_cycle:
            return "cycle-full", f"{over.why}; {settings.max_per_cycle} hotter bundles are split in this cycle"
        namespace = over.bundle.namespace
        if self._room(namespace) < 1:
            return "namespace-full", f"{over.why}; {namespace} has {settings.max_bundles} bundles, split by hand"
        return None

    def _cut(self, over: _Over) -> tuple[str, str] | None:
        bundle = over.bundle
        try:
            answer = list(self._algorithm.positions(bundle))
            names = children(bundle, answer) if answer else []
        except CannotSplitError as error:
            return "algorithm-failed", str(error)
        except Exception as error:
            return "algorithm-failed", f"{self._algorithm.name} fails: {error!r}"
        if not answer:
            return "no-positions", f"{over.why}; {self._algorithm.name} finds no place, {bundle.topics_known}"
        cuts = fewer(sorted(answer), self._room(bundle.namespace))
        if len(cuts) < len(answer):
            names = children(bundle, cuts)
        self._planned[bundle.namespace] += len(cuts)
        self._lineage.split(bundle.name, names, over.reason, self._size(over))
        self._choose(over, cuts, f"{over.why}, {self._hits[bundle.name]} times in a row")
        return None

    def _room(self, namespace: str) -> int:
        have = self._cluster.bundles_in.count(namespace) + self._planned[namespace]
        return self._settings.max_bundles - have

    def _choose(self, over: _Over, cuts: Sequence[int], why: str) -> None:
        self._hits.pop(over.bundle.name, None)
        self._chosen.append(SplitPlan(over.bundle.name, cuts, over.reason, why))

    def _leave(self, bundle: Bundle, reason: str, why: str) -> None:
        self._left[bundle.name] = SplitPlan(bundle.name, (), reason, why)

    # --- upstream ------------------------------------------------------------------------

    def _as_upstream(self, names: Sequence[str]) -> None:
        for name in names:
            bundle = self._cluster.bundles[name]
            if bundle.in_flight or bundle.owner is None or bundle.stats is None or bundle.stats.topics < FEW_TOPICS:
                continue
            trouble = self._uncuttable(bundle)
            if trouble is not None:
                self._leave(bundle, *trouble)
                continue
            over = self._measure(bundle)
            if over is None:
                self._hits.pop(name, None)
                continue
            trouble = self._too_seldom(over)
            if trouble is None and self._room(bundle.namespace) < 1:
                trouble = "namespace-full", f"{bundle.namespace} has {self._settings.max_bundles} bundles"
            if trouble is not None:
                self._leave(bundle, *trouble)
            elif not self._cut_as_upstream(over):
                return
            if self._settings.max_per_cycle and len(self._chosen) == self._settings.max_per_cycle:
                return

    def _cut_as_upstream(self, over: _Over) -> bool:
        """Plan the split; whether the cycle goes on: a cut outside the bundle ends it, and its splits are lost."""
        bundle = over.bundle
        try:
            answer = list(self._algorithm.positions(bundle))
        except Exception as error:
            self._leave(bundle, "algorithm-failed", str(error))
            return True
        if len(answer) != 1:
            self._leave(bundle, "no-positions", f"{over.why}; {len(answer)} places to cut, not one")
            return True
        try:
            children(bundle, answer)
        except CannotSplitError as error:
            lost = len(self._chosen)
            self._chosen.clear()
            self._leave(bundle, "algorithm-failed", f"{error}; upstream's cycle ends here, {lost} splits are lost")
            return False
        self._planned[bundle.namespace] += 1
        self._choose(over, answer, over.why)
        return True


def _limits(settings: SplitSettings) -> BundleLimits:
    throughput = settings.max_bandwidth_mib * MIB
    if settings.upstream:
        # Upstream multiplies two 32-bit numbers: 2,048 MiB is negative.
        throughput = (throughput + _WORD // 2) % _WORD - _WORD // 2
    sessions = settings.max_sessions if settings.max_sessions > 0 else None
    return BundleLimits(settings.max_topics, sessions, settings.max_msg_rate, throughput)


def _as_float(limit: float) -> float:
    """The number as a float, if that is exact."""
    return float(limit) if float(limit) == limit else limit


def _counts(table: object) -> dict[str, int]:
    """A table of counts from memory; invalid entries are dropped."""
    if not isinstance(table, Mapping):
        return {}
    return {str(name): count for name, count in table.items() if type(count) is int and count > 0}


def fewer(cuts: Sequence[int], most: int) -> Sequence[int]:
    """At most `most` of the cuts, evenly chosen."""
    if len(cuts) <= most:
        return cuts
    return [cuts[(2 * index + 1) * len(cuts) // (2 * most)] for index in range(most)]
