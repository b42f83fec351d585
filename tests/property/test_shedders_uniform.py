"""UniformLoadShedder on random clusters."""

from hypothesis import given, settings
from hypothesis import strategies as st

from shedders.model.cluster import Cluster
from shedders.shedding.uniform import UniformLoadShedder, UniformSettings
from tests.support.uneven import check_loads, check_moves, clusters, plain, shuffled


def shedder(*, upstream: bool, **settings) -> UniformLoadShedder:
    return UniformLoadShedder(
        UniformSettings(
            upstream=upstream, min_unload_msg_per_s=10, min_unload_bytes_per_s=10, max_unload_share=0.5, **settings
        )
    )


@settings(deadline=None)
@given(clusters(), st.booleans(), st.integers(0, 99))
def test_what_may_go_goes_once_and_away_whatever_the_order(cluster: Cluster, upstream: bool, seed: int) -> None:
    plan = shedder(upstream=upstream).plan(cluster, {})
    check_moves(cluster, plan, upstream=upstream)
    assert plain(plan) == plain(shedder(upstream=upstream).plan(shuffled(cluster, seed), {}))


@settings(deadline=None)
@given(clusters(), st.sampled_from([0.2, 0.5, 1.0]))
def test_no_destination_ends_above_where_its_source_stood(cluster: Cluster, share: float) -> None:
    strategy = UniformLoadShedder(UniformSettings(min_unload_msg_per_s=10, max_unload_share=share))
    plan = strategy.plan(cluster, {})
    check_loads(
        cluster,
        plan,
        lambda name: cluster.brokers[name].load.msg_rate,
        lambda name: cluster.bundles[name].averages.short.msg_rate,
    )
    assert len({move.source for move in plan.moves}) <= 1
