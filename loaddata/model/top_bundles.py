"""The heaviest bundles of a broker, as reported to the leader (upstream `TopKBundles`, `TopBundlesLoadData`). Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from loaddata.model.averages import TimedAverages, is_sound
from loaddata.model.bundle_load import BundleAverages, BundleStats

THROUGHPUT_STEP: Final = 100_000.0
RATE_STEP: Final = 100.0
COUNT_STEP: Final = 500
CACHE_STEP_BYTES: Final = 100_000


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
        count_max: Number of reported bundles; 0: all (upstream `loadBalancerMaxNumberOfBundlesInBundleLoadReport`, 10).
        with_policies: Also those whose namespace has an isolation policy or an anti-affinity group (upstream
            `loadBalancerSheddingBundlesWithPoliciesEnabled`, false).
        system_tenants: Tenants whose namespaces serve the cluster itself.
        system_namespaces: Further namespaces that do.
        excluded: Namespaces that are never shed (upstream `loadBalancerSheddingExcludedNamespaces`).
        idle: Also those without any throughput, which upstream drops (the modular manager wants every bundle).
    """

    count_max: int = 10
    with_policies: bool = False
    system_tenants: frozenset[str] = frozenset({"pulsar", "sla-monitor"})
    system_namespaces: frozenset[str] = frozenset({"pulsar/system"})
    excluded: frozenset[str] = frozenset()
    idle: bool = False


def top_bundles(
    bundles: Mapping[str, LocalBundle],
    rules: TopRules,
    has_policy: Callable[[str], bool] = lambda _: False,
) -> Sequence[TopBundle]:
    """The heaviest bundles, the lightest of them first: the order in which the shedder tries them.

    Ties are broken by name, so that the same bundles are chosen on every run. Bundles whose figures are not finite
    or negative are left out.

    Args:
        bundles: Bundle key to its load.
        has_policy: Whether a namespace has an isolation policy or an anti-affinity group.
    """
    ranked = [
        (order_of(bundle.stats), name) for name, bundle in bundles.items() if _counts(name, bundle, rules, has_policy)
    ]
    ranked.sort(reverse=True)
    chosen = ranked[: rules.count_max] if rules.count_max > 0 else ranked
    return [_top(name, bundles[name]) for _, name in reversed(chosen)]


def _counts(name: str, bundle: LocalBundle, rules: TopRules, has_policy: Callable[[str], bool]) -> bool:
    namespace = name.rpartition("/")[0]
    tenant = namespace.partition("/")[0]
    if tenant in rules.system_tenants or namespace in rules.system_namespaces or namespace in rules.excluded:
        return False
    if not is_sound(bundle.stats) or (not rules.idle and bundle.stats.msg_throughput <= 0):
        return False
    return rules.with_policies or not has_policy(namespace)


def _top(name: str, bundle: LocalBundle) -> TopBundle:
    return TopBundle(name, bundle.stats, bundle.timed.averages, bundle.non_persistent)


def heaviest_first(bundles: Iterable[TopBundle]) -> list[TopBundle]:
    """The reverse order, for people."""
    return sorted(bundles, key=lambda bundle: (order_of(bundle.stats), bundle.name), reverse=True)
