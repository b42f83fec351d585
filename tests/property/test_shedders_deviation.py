"""DeviationShedder on random clusters."""

from hypothesis import given, settings
from hypothesis import strategies as st

from shedders.model.cluster import Cluster
from shedders.shedding.deviation import DeviationSettings, DeviationShedder
from tests.support.uneven import check_loads, check_moves, clusters, plain, shuffled


def shedder(*, upstream: bool, **settings) -> DeviationShedder:
    return DeviationShedder(DeviationSettings(upstream=upstream, **settings))


@settings(deadline=None)
@given(clusters(), st.booleans(), st.integers(0, 99))
def test_what_may_go_goes_once_and_away_whatever_the_order(cluster: Cluster, upstream: bool, seed: int) -> None:
    plan = shedder(upstream=upstream).plan(cluster, {})
    check_moves(cluster, plan, upstream=upstream)
    assert plain(plan) == plain(shedder(upstream=upstream).plan(shuffled(cluster, seed), {}))


@settings(deadline=None)
@given(clusters(), st.sampled_from([0.0, 0.5, 1.0]))
def test_no_destination_ends_above_where_its_source_stood(cluster: Cluster, deviations: float) -> None:
    plan = shedder(upstream=False, measure="rate", max_deviations=deviations).plan(cluster, {})
    check_loads(cluster, plan, plan.scores.__getitem__, lambda name: cluster.bundles[name].averages.short.msg_rate)
    assert plan.stats.get("deviation_after", 0.0) <= plan.stats.get("deviation", 0.0) * (1 + 1e-9) + 1e-9
