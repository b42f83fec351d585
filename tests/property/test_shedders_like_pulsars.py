"""Strategies of Pulsar on random clusters: what may go goes once, and no destination ends above where its source stood."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shedders.model.cluster import Cluster
from shedders.model.plan import Plan
from shedders.shedding.avg import AvgSettings, AvgShedder
from shedders.shedding.deviation import DeviationSettings, DeviationShedder
from shedders.shedding.overload import OverloadSettings, OverloadShedder
from shedders.shedding.threshold import (
    RangeThresholdSettings,
    RangeThresholdShedder,
    ThresholdSettings,
    ThresholdShedder,
)
from shedders.shedding.uniform import UniformLoadShedder, UniformSettings
from tests.support.uneven import check_loads, check_moves, clusters, plain, shuffled

LITTLE: dict[str, Any] = {"min_unload_msg_per_s": 10, "min_unload_bytes_per_s": 10}
NEXT_TO_NOTHING: dict[str, Any] = {"min_unload_msg_per_s": 1, "min_unload_mib_per_s": 0.001}


def avg(**more: Any) -> AvgShedder:
    return AvgShedder(AvgSettings(hit_count_high=1, hit_count_low=1, **LITTLE | more))


def uniform(**more: Any) -> UniformLoadShedder:
    return UniformLoadShedder(UniformSettings(**LITTLE | {"max_unload_share": 0.5} | more))


def deviation(**more: Any) -> DeviationShedder:
    return DeviationShedder(DeviationSettings(**more))


BY_USAGE: dict[str, Callable[..., Any]] = {
    "overload": lambda **more: OverloadShedder(OverloadSettings(overloaded_percent=60, **more)),
    "range-threshold": lambda **more: RangeThresholdShedder(RangeThresholdSettings(**NEXT_TO_NOTHING | more)),
    "threshold": lambda **more: ThresholdShedder(ThresholdSettings(lower_boundary=True, **NEXT_TO_NOTHING | more)),
}
ALL: dict[str, Callable[..., Any]] = {"avg": avg, "deviation": deviation, "uniform": uniform, **BY_USAGE}


@pytest.mark.parametrize("name", ALL)
@settings(deadline=None)
@given(clusters(), st.booleans(), st.integers(0, 99))
def test_what_may_go_goes_once_and_away_whatever_the_order(
    name: str, cluster: Cluster, upstream: bool, seed: int
) -> None:
    plan = ALL[name](upstream=upstream).plan(cluster, {})
    check_moves(cluster, plan, upstream=upstream)
    assert plain(plan) == plain(ALL[name](upstream=upstream).plan(shuffled(cluster, seed), {}))


def check_scores(cluster: Cluster, plan: Plan) -> None:
    """A bundle has its part of the messages of its owner's score."""

    def part(name: str) -> float:
        bundle = cluster.bundles[name]
        rates = sum(item.averages.short.msg_rate for item in cluster.bundles_of[bundle.owner])
        return bundle.averages.short.msg_rate / rates * plan.scores[bundle.owner]

    check_loads(cluster, plan, plan.scores.__getitem__, part)


def check_rates(cluster: Cluster, plan: Plan) -> None:
    def rate(name: str) -> float:
        return cluster.bundles[name].averages.short.msg_rate

    check_loads(cluster, plan, lambda name: cluster.brokers[name].load.msg_rate, rate)


@pytest.mark.parametrize("name", BY_USAGE)
@settings(deadline=None)
@given(clusters())
def test_by_usage_no_destination_ends_above_where_its_source_stood(name: str, cluster: Cluster) -> None:
    check_scores(cluster, BY_USAGE[name](upstream=False).plan(cluster, {}))


@settings(deadline=None)
@given(clusters(), st.sampled_from([0.2, 0.5, 1.0]))
def test_nor_does_one_of_avg(cluster: Cluster, share: float) -> None:
    plan = avg(upstream=False, max_unload_share=share).plan(cluster, {})
    check_scores(cluster, plan)
    check_rates(cluster, plan)


@settings(deadline=None)
@given(clusters(), st.sampled_from([0.2, 0.5, 1.0]))
def test_nor_does_one_of_uniform(cluster: Cluster, share: float) -> None:
    strategy = UniformLoadShedder(UniformSettings(min_unload_msg_per_s=10, max_unload_share=share))
    plan = strategy.plan(cluster, {})
    check_rates(cluster, plan)
    assert len({move.source for move in plan.moves}) <= 1


@settings(deadline=None)
@given(clusters(), st.sampled_from([0.0, 0.5, 1.0]))
def test_nor_does_one_of_deviation(cluster: Cluster, deviations: float) -> None:
    plan = deviation(upstream=False, measure="rate", max_deviations=deviations).plan(cluster, {})
    check_loads(cluster, plan, plan.scores.__getitem__, lambda name: cluster.bundles[name].averages.short.msg_rate)
    assert plan.stats.get("deviation_after", 0.0) <= plan.stats.get("deviation", 0.0) * (1 + 1e-9) + 1e-9


@settings(deadline=None)
@given(clusters(), st.booleans())
def test_a_placement_of_avg_follows_its_plan(cluster: Cluster, upstream: bool) -> None:
    strategy = avg(upstream=upstream)
    plan = strategy.plan(cluster, {})
    for move in plan.moves:
        others = [name for name in cluster.broker_names if name != move.source]
        if move.destination in others:
            placed = strategy.place(cluster, cluster.bundles[move.bundle], others, {}, plan.memory)
            assert placed.broker == move.destination


@settings(deadline=None)
@given(clusters(), st.integers(0, 3))
def test_looking_again_changes_nothing(cluster: Cluster, times: int) -> None:
    """Averages advance by measurements: the same reports give the same plan, however often they are looked at."""
    strategy = BY_USAGE["threshold"](upstream=False)
    first = again = strategy.plan(cluster, {})
    for _ in range(times):
        again = strategy.plan(cluster, again.memory)
    assert plain(first) == plain(again)
