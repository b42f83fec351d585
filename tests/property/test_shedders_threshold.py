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
def test_what_may_go_goes_once_and_away_whatever_the_order(made: Cluster, upstream: bool, seed: int) -> None:
    plan = shedder(upstream=upstream).plan(made, {})
    check_moves(made, plan, upstream=upstream)
    assert plain(plan) == plain(shedder(upstream=upstream).plan(shuffled(made, seed), {}))


@settings(deadline=None)
@given(clusters())
def test_no_destination_ends_above_where_its_source_stood(made: Cluster) -> None:
    plan = shedder(upstream=False).plan(made, {})
    check_loads(made, plan, plan.scores.__getitem__, _weight(made, plan.scores))


@settings(deadline=None)
@given(clusters(), st.integers(0, 3))
def test_looking_again_changes_nothing(made: Cluster, times: int) -> None:
    """The averages advance by measurements: the same reports give the same plan, however often they are looked at."""
    first = shedder(upstream=False).plan(made, {})
    again = first
    for _ in range(times):
        again = shedder(upstream=False).plan(made, again.memory)
    assert plain(first) == plain(again)


def _weight(made: Cluster, usages):
    def weight(name: str) -> float:
        bundle = made.bundles[name]
        rates = sum(one.averages.short.msg_rate for one in made.bundles_of[bundle.owner])
        return bundle.averages.short.msg_rate / rates * usages[bundle.owner]

    return weight
