"""Load of bundles: this moment's figures, their averages (upstream `BundleData`), and the heaviest bundles of a broker. Pure.

One step of an average is upstream's: `n = min(n + 1, max); avg = ((n - 1) * avg + sample) / n`, a plain mean until the window is
full and a moving average with weight `1 / max` from then on. Upstream takes a step for every bundle whenever any broker writes a
report, so that "10 samples" last as long as the cluster is small. Here a step is taken once per sampling interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from operator import attrgetter
from typing import Final

from loaddata.model.figures import FIGURE_MAX, is_count, is_figure


@dataclass(frozen=True, slots=True)
class TrafficRates:
    """Traffic of a broker, bundle or topic.

    Attributes:
        msg_rate_in: Messages a second, received; `_out` sent.
        msg_throughput_in: Bytes a second, received; `_out` sent.
    """

    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    msg_throughput_in: float = 0.0
    msg_throughput_out: float = 0.0

    @property
    def msg_rate(self) -> float:
        """Messages a second in both directions."""
        return self.msg_rate_in + self.msg_rate_out

    @property
    def msg_throughput(self) -> float:
        """Bytes a second in both directions."""
        return self.msg_throughput_in + self.msg_throughput_out


@dataclass(frozen=True, slots=True)
class BundleStats(TrafficRates):
    """Present figures of a bundle (upstream `NamespaceBundleStats`).

    Attributes:
        cache_size_bytes: Bytes of its topics in the broker's cache.
    """

    topics: int = 0
    consumers: int = 0
    producers: int = 0
    cache_size_bytes: int = 0

    @property
    def sessions(self) -> int:
        return self.consumers + self.producers


@dataclass(frozen=True, slots=True)
class MessageAverage(TrafficRates):
    """Averages over time (upstream `TimeAverageMessageData`).

    Attributes:
        samples: How many samples are in it, at most the window's size; 0 for a default that the first sample replaces.
    """

    samples: int = 0


UNSEEN = MessageAverage(50.0, 50.0, 50_000.0, 50_000.0)  # upstream's default for an unmeasured bundle


@dataclass(frozen=True, slots=True)
class BundleAverages:
    """Short-term (10 samples) and long-term (1,000 samples) averages of one bundle (upstream `BundleData`)."""

    short: MessageAverage = field(default=UNSEEN)
    long: MessageAverage = field(default=UNSEEN)


SHORT_SAMPLES: Final = 10
LONG_SAMPLES: Final = 1_000
RECENT_SAMPLES: Final = 120
"""A bundle with fewer samples came lately: ten minutes."""
_MOST: Final = float(FIGURE_MAX)


def pushed(average: MessageAverage, stats: BundleStats, max_samples: int) -> MessageAverage:
    """Add a sample: upstream's step, driven by the call (`TimeAverageMessageData.update`).

    Args:
        average: Its figures do not count while it has no samples: the first one replaces a default.
        max_samples: Size of the window, at least 1.
    """
    n = min(average.samples + 1, max_samples)
    return MessageAverage(
        ((n - 1) * average.msg_rate_in + stats.msg_rate_in) / n,
        ((n - 1) * average.msg_rate_out + stats.msg_rate_out) / n,
        ((n - 1) * average.msg_throughput_in + stats.msg_throughput_in) / n,
        ((n - 1) * average.msg_throughput_out + stats.msg_throughput_out) / n,
        n,
    )


def pushed_both(averages: BundleAverages, stats: BundleStats) -> BundleAverages:
    """Add a sample to both windows (upstream `BundleData.update`)."""
    return BundleAverages(
        short=pushed(averages.short, stats, SHORT_SAMPLES), long=pushed(averages.long, stats, LONG_SAMPLES)
    )


def continued(kept: MessageAverage, fresh: MessageAverage, max_samples: int) -> MessageAverage:
    """Continue an average: `fresh` was started on another broker, `kept` is the former one.

    As if the mean of `fresh` had been pushed as often as `fresh` has samples, within the window.
    """
    if kept.samples == 0 or fresh.samples >= max_samples:
        return fresh
    if fresh.samples == 0:
        return kept
    n = min(kept.samples + fresh.samples, max_samples)
    old = n - fresh.samples

    def mixed(before: float, now: float) -> float:
        return (old * before + fresh.samples * now) / n

    return MessageAverage(
        mixed(kept.msg_rate_in, fresh.msg_rate_in),
        mixed(kept.msg_rate_out, fresh.msg_rate_out),
        mixed(kept.msg_throughput_in, fresh.msg_throughput_in),
        mixed(kept.msg_throughput_out, fresh.msg_throughput_out),
        n,
    )


def is_sound(stats: BundleStats) -> bool:
    """Whether every figure is finite, not negative and not absurdly large: one NaN would stay in an average forever."""
    if (
        type(stats.msg_rate_in) is type(stats.msg_rate_out) is float
        and type(stats.msg_throughput_in) is type(stats.msg_throughput_out) is float
        and type(stats.topics) is type(stats.consumers) is type(stats.producers) is type(stats.cache_size_bytes) is int
    ):
        # The usual case: the same check without a call for each figure, as it runs for thousands of bundles.
        return (
            0.0 <= stats.msg_rate_in <= _MOST
            and 0.0 <= stats.msg_rate_out <= _MOST
            and 0.0 <= stats.msg_throughput_in <= _MOST
            and 0.0 <= stats.msg_throughput_out <= _MOST
            and 0 <= stats.topics <= FIGURE_MAX
            and 0 <= stats.consumers <= FIGURE_MAX
            and 0 <= stats.producers <= FIGURE_MAX
            and 0 <= stats.cache_size_bytes <= FIGURE_MAX
        )
    rates = (stats.msg_rate_in, stats.msg_rate_out, stats.msg_throughput_in, stats.msg_throughput_out)
    counts = (stats.topics, stats.consumers, stats.producers, stats.cache_size_bytes)
    return all(map(is_figure, rates)) and all(map(is_count, counts))


@dataclass(frozen=True, slots=True)
class SampleClock:
    """When samples are due.

    Attributes:
        interval_s: Time between two samples, in seconds.
        catch_up_max: After a gap the newest reading counts as at most this many samples; the rest of the gap is left out,
            since the load in it is unknown.
    """

    interval_s: float = 5.0
    catch_up_max: int = 10

    def due(self, sampled_s: float | None, now_s: float) -> tuple[int, float]:
        """How many samples are due, and the time up to which they count.

        The first call is a sample. Then there is one for each whole interval that has passed; the remainder counts
        towards the next one, so that the number of samples does not depend on the number of calls. A clock that
        does not advance, or is not finite, gives none.

        Args:
            sampled_s: Time up to which samples were taken, monotonic; None before the first.
            now_s: Monotonic time now.
        """
        if sampled_s is None:
            return 1, now_s
        passed = (now_s - sampled_s) / self.interval_s
        if not math.isfinite(passed):
            return 0, sampled_s
        # The tolerance keeps a timer that fires a rounding error early from losing a sample.
        whole = math.floor(passed + 1e-9)
        if whole <= 0:
            return 0, sampled_s
        return min(whole, self.catch_up_max), sampled_s + whole * self.interval_s


@dataclass(frozen=True, slots=True)
class TimedAverages:
    """Averages of one bundle with the time up to which they were taken.

    Attributes:
        sampled_s: Monotonic; None before the first sample.
        refused: Samples that were not taken because a figure was not finite or negative.
    """

    averages: BundleAverages = field(default_factory=BundleAverages)
    sampled_s: float | None = None
    refused: int = 0

    def advanced(self, stats: BundleStats, now_s: float, clock: SampleClock) -> TimedAverages:
        """Take the samples that are due by now; an unsound reading lets time pass without one."""
        count, sampled_s = clock.due(self.sampled_s, now_s)
        if count == 0:
            return self
        if not is_sound(stats):
            return TimedAverages(self.averages, sampled_s, self.refused + count)
        averages = self.averages
        for _ in range(count):
            averages = pushed_both(averages, stats)
        return TimedAverages(averages, sampled_s, self.refused)


THROUGHPUT_STEP: Final = 100_000.0
RATE_STEP: Final = 100.0
COUNT_STEP: Final = 500
CACHE_STEP_BYTES: Final = 100_000
_SYSTEM_TENANTS: Final = frozenset({"pulsar", "sla-monitor"})
"""Tenants whose namespaces serve the cluster itself."""


@dataclass(frozen=True, slots=True)
class LocalBundle:
    """One bundle that this broker serves (an entry of PIP-192's `BundlesLoadData`, which never leaves the broker).

    Attributes:
        timed: Its averages, as this broker took them.
    """

    stats: BundleStats
    timed: TimedAverages = field(default_factory=TimedAverages)
    non_persistent: bool = False


@dataclass(frozen=True, slots=True)
class TopBundle:
    """One bundle in a report. `averages` are ours: upstream's entry has the name and this moment's figures only."""

    name: str
    stats: BundleStats
    averages: BundleAverages = field(default_factory=BundleAverages)
    non_persistent: bool = False


def order_of(stats: BundleStats) -> tuple[int, int, int, int, int]:
    """Key of upstream's `NamespaceBundleStats` order, by buckets: equal keys are ties.

    Bytes in and out in steps of 100,000, messages in steps of 100 (rounded half up, as `Math.round`), then topics and
    sessions in steps of 500 and cached bytes in steps of 100,000 (rounded down, as division of longs).
    """
    return (
        _bucket(stats.msg_throughput_in, THROUGHPUT_STEP),
        _bucket(stats.msg_throughput_out, THROUGHPUT_STEP),
        _bucket(stats.msg_rate, RATE_STEP),
        (stats.topics + stats.sessions) // COUNT_STEP,
        stats.cache_size_bytes // CACHE_STEP_BYTES,
    )


def _bucket(value: float, step: float) -> int:
    return math.floor(value / step + 0.5)


@dataclass(frozen=True, slots=True)
class TopRules:
    """Selection of the top bundles.

    Attributes:
        count_max: Number of the heaviest in upstream's order; 0: all (upstream
            `loadBalancerMaxNumberOfBundlesInBundleLoadReport`, 10).
        by_resource_max: Number of the heaviest by messages a second, which take CPU, and of those by bytes sent, that are added;
            upstream's order is by bytes received (0 as upstream).
        recent_max: Number of the heaviest of those that came within `RECENT_SAMPLES` that are added: what they do here, and did
            at their former broker, shows which of the two reports wrong figures (0 as upstream).
        with_policies: Also those whose namespace has an isolation policy or an anti-affinity group (upstream
            `loadBalancerSheddingBundlesWithPoliciesEnabled`, false).
        excluded: Namespaces that are never shed (upstream `loadBalancerSheddingExcludedNamespaces`).
        idle: Also those without any throughput, which upstream drops (the modular manager wants every bundle).
    """

    count_max: int = 10
    by_resource_max: int = 0
    recent_max: int = 0
    with_policies: bool = False
    excluded: frozenset[str] = frozenset()
    idle: bool = False


def top_bundles(
    bundles: Mapping[str, LocalBundle], rules: TopRules, has_policy: Callable[[str], bool] = lambda _: False
) -> Sequence[TopBundle]:
    """The bundles to report, the lightest of them first: the order in which the shedder tries them.

    Ties are broken by name, so that the same bundles are chosen on every run. Bundles whose figures are not finite
    or negative are left out.

    Args:
        has_policy: Whether a namespace has an isolation policy or an anti-affinity group.
    """
    ranked = [
        (order_of(bundle.stats), name) for name, bundle in bundles.items() if _counts(name, bundle, rules, has_policy)
    ]
    ranked.sort()
    return [_top(name, bundles[name]) for name in _select([name for _, name in ranked], bundles, rules)]


def _select(ranked: Sequence[str], bundles: Mapping[str, LocalBundle], rules: TopRules) -> list[str]:
    """Those that are reported, in the same order.

    Args:
        ranked: The lightest first.
    """
    if rules.count_max <= 0 or len(ranked) <= rules.count_max:
        return list(ranked)
    chosen = set(ranked[-rules.count_max :])
    recent = [
        name for name in ranked if name not in chosen and bundles[name].timed.averages.long.samples < RECENT_SAMPLES
    ]
    chosen.update(recent[-rules.recent_max :] if rules.recent_max else ())
    for figure in (attrgetter("stats.msg_rate"), attrgetter("stats.msg_throughput_out")):
        heaviest = nlargest(rules.by_resource_max, ((figure(bundles[name]), name) for name in ranked))
        chosen.update(name for _, name in heaviest)
    return [name for name in ranked if name in chosen]


def _counts(name: str, bundle: LocalBundle, rules: TopRules, has_policy: Callable[[str], bool]) -> bool:
    namespace = name.rpartition("/")[0]
    tenant = namespace.partition("/")[0]
    if tenant in _SYSTEM_TENANTS or namespace in rules.excluded:
        return False
    if not is_sound(bundle.stats) or (not rules.idle and bundle.stats.msg_throughput <= 0):
        return False
    return rules.with_policies or not has_policy(namespace)


def _top(name: str, bundle: LocalBundle) -> TopBundle:
    return TopBundle(name, bundle.stats, bundle.timed.averages, bundle.non_persistent)


def heaviest_first(bundles: Iterable[TopBundle]) -> list[TopBundle]:
    return sorted(bundles, key=lambda bundle: (order_of(bundle.stats), bundle.name), reverse=True)
