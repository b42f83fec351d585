"""AvgShedder on random clusters."""

from hypothesis import given, settings
from hypothesis import strategies as st

from shedders.model.cluster import Cluster
from shedders.shedding.avg import AvgSettings, AvgShedder
from tests.support.uneven import check_loads, check_moves, clusters, plain, shuffled


def shedder(*, upstream: bool, **settings) -> AvgShedder:
    return AvgShedder(
        AvgSettings(
            upstream=upstream,
            hit_count_high=1,
            hit_count_low=1,
            min_unload_msg_per_s=10,
            min_unload_bytes_per_s=10,
            **settings,
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
    plan = shedder(upstream=False, max_unload_share=share).plan(cluster, {})

    def points(name: str) -> float:
        bundle = cluster.bundles[name]
        rates = sum(item.averages.short.msg_rate for item in cluster.bundles_of[bundle.owner])
        return bundle.averages.short.msg_rate / rates * plan.scores[bundle.owner]

    check_loads(cluster, plan, plan.scores.__getitem__, points)
    check_loads(
        cluster,
        plan,
        lambda name: cluster.brokers[name].load.msg_rate,
        lambda name: cluster.bundles[name].averages.short.msg_rate,
    )


@settings(deadline=None)
@given(clusters(), st.booleans())
def test_placement_follows_the_plan(cluster: Cluster, upstream: bool) -> None:
    strategy = shedder(upstream=upstream)
    plan = strategy.plan(cluster, {})
    for move in plan.moves:
        others = [name for name in cluster.broker_names if name != move.source]
        if move.destination in others:
            assert (
                strategy.place(cluster, cluster.bundles[move.bundle], others, {}, plan.memory).broker
                == move.destination
            )
