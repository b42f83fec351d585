"""DeviationShedder: tables computed by hand, ours and upstream's."""

from dataclasses import replace

import pytest

from shedders.model.cluster import RecentMoves
from shedders.model.plan import Reason
from shedders.shedding.deviation import DeviationSettings, DeviationShedder
from tests.support.loads import by_bytes, by_messages, left, moved

USAGES = {"a": 0.5, "b": 0.5, "c": 0.5}
EXAMPLE = by_bytes(USAGES, {"a": [700, 150, 50], "b": [200, 100], "c": []})


def shed(cluster, **settings):
    return DeviationShedder(DeviationSettings(**settings)).plan(cluster, {})


def test_worked_example():
    plan = shed(EXAMPLE)
    assert moved(plan) == [("a", "c", 700.0)]
    assert plan.stats == pytest.approx({"mean": 400.0, "deviation": 374.1657, "deviation_after": 216.0247})
    assert left(plan) == {"b": "within-deviations", "c": "nothing-fits"}
    assert plan.reason == Reason.OVERLOADED


def test_the_receiver_that_gets_lighter():
    """Upstream reckons 0 - 700 for c, so that it goes on receiving.

    900, 300, 0: 700 goes, and a has 200, c -700, b 300 is the highest: (300 - 400) / sd is below 0. It ends.
    """
    plan = shed(EXAMPLE, upstream=True)
    assert moved(plan) == [("a", None, 700.0)]
    # (200^2 + 300^2 + 700^2) / 3 - 400^2: the square hides the sign.
    assert plan.stats["deviation_after"] == pytest.approx(216.0247)
    # 1,200, 0, 0, mean 400: 500 goes to b (-500), then 400 to b again (-900); 300 is below the mean.
    cluster = by_bytes(USAGES, {"a": [500, 400, 300], "b": [], "c": []})
    assert [load for _, _, load in moved(shed(cluster, upstream=True))] == [500.0, 400.0]
    # Ours: 500 to b, then 400 to c.
    assert moved(shed(cluster)) == [("a", "b", 500.0), ("a", "c", 400.0)]


def test_a_bundle_that_would_only_carry_it_over_is_passed_by():
    cluster = by_bytes(USAGES, {"a": [800, 100], "b": [300], "c": [100]})
    # 800 + 100 is not below 900; 100 is.
    assert moved(shed(cluster, max_deviations=1.0)) == [("a", "c", 100.0)]
    assert moved(shed(cluster, max_deviations=1.0, upstream=True)) == [("a", None, 100.0)]


def test_a_broker_without_a_bundle_that_fits_makes_room_for_the_next():
    cluster = by_bytes({**USAGES, "d": 0.5}, {"a": [1_000], "b": [800, 100], "c": [], "d": [50]})
    # mean 487.5, sd 464.4; a stands out by 1.1, its one bundle only carries it over. b by 0.89: not enough for 0.9.
    plan = shed(cluster)
    assert (moved(plan), left(plan)["a"]) == ([], "nothing-fits")
    plan = shed(cluster, max_deviations=0.8)
    assert moved(plan)[0] == ("b", "c", 800.0)
    assert moved(shed(cluster, max_deviations=0.8, upstream=True))[0] == ("b", None, 800.0)


def test_two_brokers_differ_by_one_deviation_however_little():
    cluster = by_bytes({"a": 0.5, "b": 0.5}, {"a": [490, 5, 5], "b": [480]})
    # mean 490, sd 10: 1 deviation, but 2 % above the mean.
    assert moved(shed(cluster)) == []
    assert moved(shed(cluster, min_excess_percent=0)) == [("a", "b", 5.0), ("a", "b", 5.0)]
    # Upstream makes them 495 and 475, and mean 490 then has a negative variance: it ends.
    assert [load for _, _, load in moved(shed(cluster, upstream=True))] == [5.0]


def test_all_alike():
    cluster = by_bytes(USAGES, {"a": [100, 100], "b": [100, 100], "c": [100, 100]})
    for upstream in (False, True):
        plan = shed(cluster, upstream=upstream)
        assert (plan.reason, set(left(plan).values())) == (Reason.HIT_COUNT, {"within-deviations"})


def test_equal_ones_that_rounding_makes_unequal():
    """3 x 0.1: the mean is 0.10000000000000002, the variance negative, its root not a number; nothing stands out."""
    cluster = by_bytes(USAGES, {"a": [0.1], "b": [0.1], "c": [0.1]})
    for upstream in (False, True):
        assert not shed(cluster, upstream=upstream, min_excess_percent=0, max_deviations=0).moves


def test_upstream_runs_out_of_brokers():
    """Equal loads whose mean is rounded down stand out one by one, until the set is empty: there it throws."""
    value = 788.9346277843777
    assert (value + value + value) / 3 < value
    cluster = by_bytes(USAGES, {"a": [value], "b": [value], "c": [value]})
    plan = shed(cluster, upstream=True, max_deviations=0)
    assert (plan.moves, plan.reason) == ([], Reason.NO_BUNDLES)
    assert shed(cluster, max_deviations=0, min_excess_percent=0).moves == []


def test_messages():
    cluster = by_messages(USAGES, {"a": [700, 150, 50], "b": [200, 100], "c": []})
    assert moved(shed(cluster)) == []
    assert moved(shed(cluster, measure="rate")) == [("a", "c", 700.0)]


def test_upstream_does_not_spare_what_was_moved_lately():
    recent = RecentMoves(bundles={EXAMPLE.bundles_of["a"][0].name: 5.0})
    changed = replace(EXAMPLE, recent=recent)
    assert moved(shed(changed, upstream=True)) == [("a", None, 700.0)]
    assert moved(shed(changed)) == [("a", "c", 150.0), ("a", "c", 50.0)]
    assert left(shed(changed))[EXAMPLE.bundles_of["a"][0].name] == "recently-moved"


def test_filters_are_asked():
    shedder = DeviationShedder(DeviationSettings(), can_take=lambda bundle, broker: "no" if broker == "c" else None)
    assert moved(shedder.plan(EXAMPLE, {})) == [("a", "b", 150.0), ("a", "b", 50.0)]
