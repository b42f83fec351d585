"""OverloadShedder on random clusters."""

from hypothesis import given, settings
from hypothesis import strategies as st

from shedders.model.cluster import Cluster
from shedders.shedding.overload import OverloadSettings, OverloadShedder
from tests.support.uneven import check_loads, check_moves, clusters, plain, shuffled


def shedder(*, upstream: bool, **settings) -> OverloadShedder:
    return OverloadShedder(OverloadSettings(upstream=upstream, overloaded_percent=60, **settings))


@settings(deadline=None)
@given(clusters(), st.booleans(), st.integers(0, 99))
def test_what_may_go_goes_once_and_away_whatever_the_order(cluster: Cluster, upstream: bool, seed: int) -> None:
    plan = shedder(upstream=upstream).plan(cluster, {})
    check_moves(cluster, plan, upstream=upstream)
    assert plain(plan) == plain(shedder(upstream=upstream).plan(shuffled(cluster, seed), {}))


@settings(deadline=None)
@given(clusters())
def test_no_destination_ends_above_where_its_source_stood(cluster: Cluster) -> None:
    plan = shedder(upstream=False).plan(cluster, {})

    def weight(name: str) -> float:
        bundle = cluster.bundles[name]
        rates = sum(item.averages.short.msg_rate for item in cluster.bundles_of[bundle.owner])
        return bundle.averages.short.msg_rate / rates * plan.scores[bundle.owner]

    check_loads(cluster, plan, plan.scores.__getitem__, weight)
