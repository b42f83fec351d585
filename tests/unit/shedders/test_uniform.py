"""UniformLoadShedder: tables computed by hand, ours and upstream's."""

from dataclasses import replace

import pytest

from loaddata.model.broker_load import BrokerLoad, ResourceUsage
from shedders.model.cluster import Broker, Cluster
from shedders.model.plan import Reason
from shedders.shedding.uniform import UniformLoadShedder, UniformSettings
from tests.support.loads import MIB, broker, bundle, by_bytes, by_messages, cluster, left, moved

USAGES = {"a": 0.5, "b": 0.5}
EXAMPLE = by_messages(USAGES, {"a": [6_000, 2_500, 900, 600], "b": [2_000]})


def shed(cluster: Cluster, **settings):
    return UniformLoadShedder(UniformSettings(**settings)).plan(cluster, {})


def reporting(cluster: Cluster, **rates: float) -> Cluster:
    """The same cluster with brokers that report other message rates than their bundles' averages add up to."""
    brokers = {
        name: replace(broker, load=replace(broker.load, msg_rate_in=rates.get(name, broker.load.msg_rate_in)))
        for name, broker in cluster.brokers.items()
    }
    return replace(cluster, brokers=brokers)


@pytest.mark.parametrize("upstream", [False, True])
def test_worked_example(upstream: bool):
    plan = shed(EXAMPLE, upstream=upstream)
    destination = None if upstream else "b"
    assert moved(plan) == [("a", destination, 900.0), ("a", destination, 600.0)]
    assert plan.reason == Reason.OVERLOADED
    assert (plan.stats["rate_max"], plan.stats["rate_min"]) == (10_000, 2_000)


def test_messages_within_the_difference():
    # 3,000 against 2,000 is exactly 50 %, and that is not more.
    cluster = by_messages(USAGES, {"a": [1_500, 1_500], "b": [2_000]})
    for upstream in (False, True):
        plan = shed(cluster, upstream=upstream, min_unload_msg_per_s=100)
        assert (plan.reason, left(plan)) == (Reason.HIT_COUNT, {"a": "within-range", "b": "within-range"})
        assert shed(cluster, upstream=upstream, min_unload_msg_per_s=100, max_rate_difference_percent=49.9).reason == (
            Reason.NO_BUNDLES
        )
        assert shed(cluster, upstream=upstream, max_rate_difference_percent=0).reason == Reason.HIT_COUNT


def test_bytes_within_the_ratio():
    cluster = by_bytes(USAGES, {"a": [16, 16, 4, 4], "b": [10]}, MIB)
    for upstream in (False, True):
        assert moved(shed(cluster, upstream=upstream)) == []
        assert moved(shed(cluster, upstream=upstream, max_throughput_ratio=-1)) == []
    # 30 * 0.2 = 6 MiB/s; ours finds the missing 2 more than the floor of 1.
    assert moved(shed(cluster, upstream=True, max_throughput_ratio=3.9), MIB) == [("a", None, 4.0)]
    assert moved(shed(cluster, max_throughput_ratio=3.9), MIB) == [("a", "b", 4.0), ("a", "b", 4.0)]


@pytest.mark.parametrize(("share", "floor", "moves"), [(0.2, 1_600, 2), (0.2, 1_601, 0), (0.0, 0, 0)])
@pytest.mark.parametrize("upstream", [False, True])
def test_the_floor(share: float, floor: int, moves: int, upstream: bool):
    plan = shed(EXAMPLE, upstream=upstream, max_unload_share=share, min_unload_msg_per_s=floor)
    assert len(plan.moves) == moves
    if not moves and not (upstream and not share):
        assert left(plan)["a"] == "below-floor"


def test_more_than_half_would_turn_it_round():
    cluster = by_messages(USAGES, {"a": [7_000, 1_500, 1_500], "b": [2_000]})
    # Upstream: 8,000 * 1.0, so 7,000 go, and then b has 9,000 and a 3,000.
    assert moved(shed(cluster, upstream=True, max_unload_share=1.0)) == [("a", None, 7_000.0)]
    # Ours: 4,000 at most: both of 1,500.
    assert moved(shed(cluster, max_unload_share=1.0)) == [("a", "b", 1_500.0), ("a", "b", 1_500.0)]


def test_bundles_that_fit_behind_one_that_does_not():
    cluster = by_messages(USAGES, {"a": [5_000, 1_600, 1_500, 1_000, 900], "b": [2_000]})
    for upstream in (False, True):
        # 8,000 * 0.2 = 1,600, all of it in one.
        assert [load for _, _, load in moved(shed(cluster, upstream=upstream))] == [1_600.0]
    # Ours has a third way where a floor's worth is missing: the smallest larger one.
    cluster = by_messages(USAGES, {"a": [6_000, 4_000], "b": [2_000]})
    assert moved(shed(cluster)) == [("a", "b", 4_000.0)]
    assert moved(shed(cluster, upstream=True)) == []


def test_no_more_bundles_than():
    for upstream in (False, True):
        assert len(shed(EXAMPLE, upstream=upstream, max_bundles_per_cycle=1).moves) == 1
        assert len(shed(EXAMPLE, upstream=upstream, max_bundles_per_cycle=0).moves) == 0


def test_whole_numbers_as_upstream():
    """Q is cut once, and by the whole part of each bundle: 0.9 more than it had is given."""
    cluster = by_messages(USAGES, {"a": [5_999.5, 1_499.9, 900.9, 0.4], "b": [401.7]})
    # 8,400.7 - 401.7 = 7,999.0; * 0.2 = 1,599.8, cut to 1,599; less 1,499 (of 1,499.9) is 100; 0.4 fits.
    assert [load for _, _, load in moved(shed(cluster, upstream=True))] == [1_499.9, 0.4]
    cluster = by_messages(USAGES, {"a": [6_000.0, 1_000.9, 599.5, 399.0], "b": [0.4]})
    # 7,999.4 - 0.4 = 7,999; 1,599; less 1,000 is 599; 599.5 does not fit, 399 does.
    assert [load for _, _, load in moved(shed(cluster, upstream=True))] == [1_000.9, 399.0]


def test_nothing_counts_as_one_for_upstream():
    cluster = by_messages(USAGES, {"a": [8_000.5, 1_999.5], "b": []})
    # (10,000 - 1) * 0.2 = 1,999.8, cut to 1,999: neither fits.
    assert moved(shed(cluster, upstream=True)) == []
    # Ours: 10,000 * 0.2 = 2,000.
    assert moved(shed(cluster)) == [("a", "b", 1_999.5)]
    idle = by_messages(USAGES, {"a": [1.2, 0.4], "b": []})
    assert shed(idle, upstream=True).reason == Reason.NO_BUNDLES, "60 % more than 1"


def test_upstream_moves_idle_bundles_along():
    cluster = by_messages(USAGES, {"a": [8_000, 1_500, 0, 0], "b": [500]})
    assert [load for _, _, load in moved(shed(cluster, upstream=True))] == [1_500.0, 0.0, 0.0]
    assert [load for _, _, load in moved(shed(cluster))] == [1_500.0]


def test_a_quota_of_more_than_an_int_holds():
    cluster = by_bytes(USAGES, {"a": [30e9, 3e9, 2.2e9, 2e9], "b": [1e9]})
    # 36.2e9 * 0.2 = 7.24e9 saturates at 2,147,483,647: 2e9 fits, nothing else.
    assert [load for _, _, load in moved(shed(cluster, upstream=True))] == [2e9]
    assert [load for _, _, load in moved(shed(cluster))] == [3e9, 2.2e9, 2e9]


def test_a_minimum_that_upstream_does_not_find():
    """With 2^31 - 1 bytes/s and more everywhere the minimum stays at its starting value."""
    cluster = by_bytes(USAGES, {"a": [9e9, 3e8], "b": [3e9]})
    assert shed(cluster, upstream=True).stats["throughput_min"] == 2**31 - 1
    # 9.3e9 / 2,147,483,647 = 4.33 is more than 4; in truth it is 3.1.
    assert [load for _, _, load in moved(shed(cluster, upstream=True))] == [3e8]
    assert moved(shed(cluster)) == []


def test_bytes_where_messages_cannot_do_it():
    """Messages are too far apart, but too few to move: upstream leaves it at that."""
    bundles = [
        bundle(1, "a", bytes_per_s=60 * MIB, msg_per_s=400),
        bundle(2, "a", bytes_per_s=10 * MIB, msg_per_s=400),
        bundle(3, "b", bytes_per_s=10 * MIB, msg_per_s=200),
    ]
    brokers = [
        broker("a", 0.5, bytes_per_s=70 * MIB, msg_per_s=800),
        broker("b", 0.5, bytes_per_s=10 * MIB, msg_per_s=200),
    ]
    base = cluster(brokers, bundles)
    assert moved(shed(base, upstream=True)) == []
    # 60 * 0.2 = 12 MiB/s.
    assert moved(shed(base), MIB) == [("a", "b", 10.0)]


def test_one_shot_values_do_not_decide_alone():
    """A burst that the averages do not know (pull request 19893)."""
    cluster = reporting(by_messages(USAGES, {"a": [1_300, 500, 200], "b": [2_000]}), a=10_000)
    assert [load for _, _, load in moved(shed(cluster, upstream=True))] == [1_300.0, 200.0]
    assert shed(cluster).reason == Reason.HIT_COUNT
    # Nor a broker that reports nothing yet of what its bundles bring.
    cluster = reporting(by_messages(USAGES, {"a": [6_000, 900, 600], "b": [7_000]}), b=0)
    # 7,499 * 0.2 = 1,499.
    assert [load for _, _, load in moved(shed(cluster, upstream=True))] == [900.0]
    assert moved(shed(cluster)) == []


def test_equally_busy_brokers_go_by_name():
    cluster = by_messages({"c": 0.1, "a": 0.1, "b": 0.1}, {"a": [4_000, 2_000], "b": [4_000, 2_000], "c": []})
    assert {move.source for move in shed(cluster).moves} == {"a"}
    assert {move.source for move in shed(cluster, upstream=True, max_unload_share=0.5).moves} == {"a"}


@pytest.mark.parametrize("upstream", [False, True])
def test_sole_bundle(upstream: bool):
    cluster = by_messages(USAGES, {"a": [10_000], "b": [2_000]})
    assert left(shed(cluster, upstream=upstream))["a"] == "sole-bundle"


def test_no_limit_is_needed():
    """Usage has no part in it: a report without limits will do."""
    brokers = {
        name: Broker(name, load=BrokerLoad(ResourceUsage(), msg_rate_in=broker.load.msg_rate_in))
        for name, broker in EXAMPLE.brokers.items()
    }
    assert len(shed(replace(EXAMPLE, brokers=brokers)).moves) == 2


def test_more_receivers_than_are_reckoned_with():
    usages = {f"b{number:03}": 0.1 for number in range(200)}
    cluster = by_messages(usages, {"b000": [3_000, 3_000, 900, 900], **{name: [100] for name in list(usages)[1:]}})
    plan = shed(cluster)
    assert moved(plan) == [("b000", "b001", 900.0)]
