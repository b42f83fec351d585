"""ThresholdShedder on random clusters."""

from hypothesis import given, settings
from hypothesis import strategies as st

from shedders.model.cluster import Cluster
from shedders.shedding.threshold import ThresholdSettings, ThresholdShedder
from tests.support.uneven import check_loads, check_moves, clusters, plain, shuffled


def shedder(*, upstream: bool, **settings) -> ThresholdShedder:
    return ThresholdShedder(
        ThresholdSettings(
            upstream=upstream, lower_boundary=True, min_unload_mib_per_s=0.001, min_unload_msg_per_s=1, **settings
        )
    )


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
    check_loads(cluster, plan, plan.scores.__getitem__, _weight(cluster, plan.scores))


@settings(deadline=None)
@given(clusters(), st.integers(0, 3))
def test_looking_again_changes_nothing(cluster: Cluster, times: int) -> None:
    """The averages advance by measurements: the same reports give the same plan, however often they are looked at."""
    first = shedder(upstream=False).plan(cluster, {})
    again = first
    for _ in range(times):
        again = shedder(upstream=False).plan(cluster, again.memory)
    assert plain(first) == plain(again)


def _weight(cluster: Cluster, usages):
    def weight(name: str) -> float:
        bundle = cluster.bundles[name]
        rates = sum(item.averages.short.msg_rate for item in cluster.bundles_of[bundle.owner])
        return bundle.averages.short.msg_rate / rates * usages[bundle.owner]

    return weight
