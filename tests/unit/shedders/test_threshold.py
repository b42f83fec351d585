"""ThresholdShedder: tables computed by hand, ours and upstream's."""

from dataclasses import replace

import pytest

from loaddata.model.broker_load import ResourceUsage
from shedders.model.cluster import Cluster, Policies
from shedders.model.plan import Label, Reason
from shedders.shedding.threshold import ThresholdSettings, ThresholdShedder
from tests.support.loads import MIB, NOW_MS, broker, bundle, by_bytes, by_messages, cluster, left, moved

EXAMPLE = by_bytes({"a": 0.8, "b": 0.42}, {"a": [200, 80, 30, 10], "b": []}, MIB)


def shed(cluster: Cluster, memory=None, **settings):
    return ThresholdShedder(ThresholdSettings(**settings)).plan(cluster, memory or {})


def test_worked_example():
    plan = shed(EXAMPLE)
    assert moved(plan, MIB) == [("a", "b", 30.0), ("a", "b", 10.0)]
    assert (plan.label, plan.reason) == (Label.SUCCESS, Reason.OVERLOADED)
    assert plan.stats == pytest.approx({"average": 0.61, "average_present": 0.61, "threshold": 0.1})
    assert plan.memory["usage"] == pytest.approx({"a": 0.8, "b": 0.42})


def test_worked_example_as_upstream():
    plan = shed(EXAMPLE, upstream=True)
    # 320 * (0.8 - 0.61 - 0.1 + 0.05) = 44.8 MiB/s, and the heaviest is taken whatever its size.
    assert moved(plan, MIB) == [("a", None, 200.0)]


def test_without_transfer_the_placement_chooses():
    assert moved(shed(EXAMPLE, transfer=False), MIB) == [("a", None, 30.0), ("a", None, 10.0)]


@pytest.mark.parametrize(
    ("usage", "moves"), [(0.59, 0), (0.60, 2), (0.61, 2)], ids=["just-within", "on-the-threshold", "above"]
)
def test_from_the_threshold_on(usage: float, moves: int):
    # Mean of usage and 0.4; above by (usage - 0.4) / 2: 0.1 at 0.6 (a hair more, in single precision). 1,280 MiB/s.
    cluster = by_bytes({"a": usage, "b": 0.4}, {"a": [800, 200, 160, 120], "b": []}, MIB)
    if moves:
        # share = (0.1 - 0.1 + 0.05) / 0.6 = 1/12: 106 MiB/s. No one fits; of the larger 120 ends b at 0.456.
        assert moved(shed(cluster), MIB) == [("a", "b", 120.0)]
    else:
        assert left(shed(cluster)) == {"a": "within-threshold", "b": "within-threshold"}


def test_a_swap_of_places_is_no_gain():
    # Either bundle would only carry the load over: half of 0.8 on top of 0.4 is 0.8 again.
    plan = shed(by_bytes({"a": 0.8, "b": 0.4}, {"a": [160, 160], "b": []}, MIB))
    assert (plan.label, plan.reason, left(plan)["a"]) == (Label.SKIP, Reason.NO_BUNDLES, "nothing-fits")
    assert moved(shed(EXAMPLE, upstream=True)), "upstream does it"


def test_smoothed_and_present_usage_must_agree():
    """After a perfect move the average still reads 0.86 to 0.14 (PIP-217): ours does not shed on, upstream does."""
    after = by_bytes({"a": 0.5, "b": 0.5}, {"a": [200, 100, 30, 20], "b": []}, MIB)
    memory = {"usage": {"a": 0.9, "b": 0.1}, "measured_at_ms": {"a": NOW_MS - 60_000, "b": NOW_MS - 60_000}}
    ours, theirs = shed(after, memory), shed(after, memory, upstream=True)
    assert ours.memory["usage"] == pytest.approx({"a": 0.86, "b": 0.14})
    assert theirs.memory["usage"] == pytest.approx({"a": 0.86, "b": 0.14})
    assert moved(ours) == []
    assert moved(theirs, MIB) == [("a", None, 200.0)]


def test_the_average_advances_by_measurements_not_by_looks():
    memory = {"usage": {"a": 0.2, "b": 0.4}, "measured_at_ms": {"a": NOW_MS - 30_000, "b": NOW_MS}}
    kept = 0.9**0.5
    once = shed(EXAMPLE, memory)
    assert once.memory["usage"] == pytest.approx({"a": 0.2 * kept + 0.8 * (1 - kept), "b": 0.4})
    again = shed(EXAMPLE, once.memory)
    assert again.memory == once.memory
    theirs = shed(EXAMPLE, memory, upstream=True)
    assert theirs.memory["usage"] == pytest.approx({"a": 0.26, "b": 0.402})
    assert shed(EXAMPLE, theirs.memory, upstream=True).memory["usage"]["a"] == pytest.approx(0.314)


def test_brokers_that_left_are_forgotten():
    for upstream in (False, True):
        plan = shed(EXAMPLE, {"usage": {"gone": 0.9, "a": 0.8}}, upstream=upstream)
        assert set(plan.memory["usage"]) == {"a", "b"}


@pytest.mark.parametrize(
    "garbage", [{"usage": {"a": float("nan"), "b": "x"}}, {"usage": [1]}, {"usage": {"a": 10**400}}]
)
def test_memory_that_is_no_memory_is_forgotten(garbage):
    assert moved(shed(EXAMPLE, garbage), MIB) == moved(shed(EXAMPLE), MIB)


def test_messages_where_bytes_are_too_few():
    """A CPU full of small messages: upstream never relieves it."""
    cluster = by_messages({"a": 0.8, "b": 0.42}, {"a": [20_000, 8_000, 3_000, 1_000], "b": []})
    assert moved(shed(cluster)) == [("a", "b", 3_000.0), ("a", "b", 1_000.0)]
    theirs = shed(cluster, upstream=True)
    assert (moved(theirs), left(theirs)["a"]) == ([], "little-traffic")


def test_the_floor():
    cluster = by_bytes({"a": 0.8, "b": 0.4}, {"a": [30, 10, 8, 5], "b": []}, MIB)
    # 53 * 3/16 = 9.9 MiB/s, less than 10.
    assert left(shed(cluster))["a"] == "little-traffic"
    # 53 * 0.15 = 7.95.
    assert left(shed(cluster, upstream=True))["a"] == "little-traffic"
    assert moved(shed(cluster, upstream=True, min_unload_mib_per_s=7.9), MIB) == [("a", None, 30.0)]


@pytest.mark.parametrize("bundles", [[], [320]])
@pytest.mark.parametrize("upstream", [False, True])
def test_one_bundle_or_none_is_not_spread(bundles, upstream: bool):
    cluster = by_bytes({"a": 0.8, "b": 0.4}, {"a": bundles, "b": []}, MIB)
    busy = replace(cluster.brokers["a"], load=replace(cluster.brokers["a"].load, msg_throughput_in=320 * MIB))
    cluster = replace(cluster, brokers={**cluster.brokers, "a": busy})
    assert left(shed(cluster, upstream=upstream))["a"] == "sole-bundle"


TEN = {f"b{number:02}": 0.8 for number in range(10)}
LOW = by_bytes({**TEN, "idle": 0.0}, {"b00": [300, 60, 30, 10], "b01": [200, 200]}, MIB)


def test_lower_boundary():
    """Ten brokers at 0.8 and one at 0: mean 0.727, nobody above 0.827 (pull request 17456)."""
    off = shed(LOW)
    assert (moved(off), off.reason) == ([], Reason.HIT_COUNT)
    plan = shed(LOW, lower_boundary=True)
    # 400 * 0.1 * 0.5 / 0.8 = 25 MiB/s: 10 fits, 15 are missing, the smallest larger one has 30.
    assert moved(plan, MIB) == [("b00", "idle", 10.0), ("b00", "idle", 30.0)]
    assert plan.reason == Reason.UNDERLOADED


def test_lower_boundary_as_upstream():
    plan = shed(LOW, lower_boundary=True, upstream=True)
    # 400 * 0.1 * 0.5 = 20 MiB/s.
    assert moved(plan, MIB) == [("b00", None, 300.0)]
    assert plan.reason == Reason.UNDERLOADED


def test_upstream_feeds_the_average_twice_where_it_looks_at_the_lower_boundary():
    memory = {"usage": {**TEN, "idle": 0.5}}
    once = shed(LOW, memory, upstream=True).memory["usage"]["idle"]
    twice = shed(LOW, memory, upstream=True, lower_boundary=True).memory["usage"]["idle"]
    assert (once, twice) == pytest.approx((0.45, 0.405))


def test_an_average_of_nothing_ends_it():
    cluster = by_bytes({"a": 0.0, "b": 0.0}, {"a": [200, 200], "b": []}, MIB)
    for upstream in (False, True):
        assert moved(shed(cluster, upstream=upstream, lower_boundary=True)) == []


def test_signals_above_the_limit_count():
    cluster = by_bytes({"a": 1.4, "b": 0.4}, {"a": [200, 80, 30, 10], "b": []}, MIB)
    assert shed(cluster, upstream=True).scores["a"] == pytest.approx(1.4)


def test_single_precision():
    """As Java: 1f / 3f * 100 = 33.333335876..., where double precision has 33.333333333..."""
    cluster = by_bytes({"a": 0.5, "b": 0.5}, {"a": [], "b": []})
    third = replace(cluster.brokers["a"], load=replace(cluster.brokers["a"].load, cpu=ResourceUsage(1.0, 3.0)))
    cluster = replace(cluster, brokers={**cluster.brokers, "a": third})
    assert shed(cluster, upstream=True).scores["a"] == 0.33333335876464844


def test_many_high_ones_do_not_all_send_to_the_least():
    cluster = by_bytes(
        {"a": 0.9, "b": 0.9, "c": 0.3, "d": 0.31}, {"a": [40, 40, 40, 40], "b": [40, 40, 40, 40], "c": [], "d": []}, MIB
    )
    plan = shed(cluster)
    # 0.2975 above; share (0.2975 - 0.1 + 0.05) / 0.9 = 0.275: 44 MiB/s; one of 40 each (0.225 of load).
    assert moved(plan, MIB) == [("a", "c", 40.0), ("b", "d", 40.0)]


def test_filters_are_asked():
    shedder = ThresholdShedder(ThresholdSettings(), can_take=lambda bundle, broker: "no" if broker == "b" else None)
    cluster = by_bytes({"a": 0.8, "b": 0.1, "c": 0.3}, {"a": [200, 80, 30, 10], "b": [], "c": []}, MIB)
    plan = shedder.plan(cluster, {})
    assert {move.destination for move in plan.moves} == {"c"}


def test_a_filter_that_fails_lets_nothing_in():
    def broken(bundle, broker):
        raise RuntimeError("down")

    plan = ThresholdShedder(ThresholdSettings(), can_take=broken).plan(EXAMPLE, {})
    assert left(plan)["a"] == "nothing-fits"
    assert "RuntimeError('down')" in next(bundle.why for bundle in plan.left if bundle.name == "a")


def test_excluded_as_upstream_counts_as_moved():
    """Upstream finds only afterwards that it may not go, and looks for no replacement."""
    policies = Policies(excluded=frozenset({"t/x"}))
    base = cluster(
        [broker("a", 0.8, bytes_per_s=320 * MIB), broker("b", 0.42)],
        [
            bundle(1, "a", bytes_per_s=200 * MIB, namespace="t/x"),
            bundle(2, "a", bytes_per_s=80 * MIB),
            bundle(3, "a", bytes_per_s=40 * MIB),
        ],
        policies=policies,
    )
    theirs = shed(base, upstream=True)
    assert (moved(theirs), left(theirs)[base.bundles_of["a"][-1].name]) == ([], "excluded")
    assert moved(shed(base), MIB) == [("a", "b", 40.0)]
