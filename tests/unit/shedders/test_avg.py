"""AvgShedder, shedding and placement: tables computed by hand, ours and upstream's."""

from dataclasses import replace

import pytest

from shedders.model.cluster import Cluster
from shedders.model.plan import Reason
from shedders.shedding.avg import AvgSettings, AvgShedder
from tests.support.loads import MIB, broker, bundle, by_bytes, by_messages, cluster, left, moved

USAGES = {"a": 0.8, "b": 0.6, "c": 0.45, "d": 0.2}
EXAMPLE = by_messages(USAGES, {"a": [30_000, 15_000, 4_000, 1_000], "b": [20_000], "c": [20_000], "d": [10_000]})
HITS = {"hits_low": {"a": 1, "b": 1, "c": 1, "d": 1}, "hits_high": {"a": 1, "d": 1}}


def shed(cluster: Cluster, memory=None, **settings):
    return AvgShedder(AvgSettings(**settings)).plan(cluster, memory or {})


def test_worked_example():
    first = shed(EXAMPLE)
    assert (moved(first), first.reason) == ([], Reason.HIT_COUNT)
    assert {key: first.memory[key] for key in HITS} == HITS
    second = shed(EXAMPLE, first.memory)
    assert moved(second) == [("a", "d", 4_000.0), ("a", "d", 1_000.0), ("a", "d", 15_000.0)]
    assert {key: second.memory[key] for key in HITS} == {"hits_low": {"b": 2, "c": 2}, "hits_high": {}}
    assert second.memory["plan"] == {move.bundle: "d" for move in second.moves}
    assert left(second)["b"] == "hit-count"


def test_worked_example_as_upstream():
    second = shed(EXAMPLE, HITS, upstream=True)
    assert moved(second) == [("a", "d", 4_000.0), ("a", "d", 1_000.0)]


@pytest.mark.parametrize(
    ("usage", "low", "high"),
    [(0.34, None, None), (0.35, 1, None), (0.59, 1, None), (0.6, 1, 1)],
    ids=["below-low", "low", "below-high", "high"],
)
@pytest.mark.parametrize("upstream", [False, True])
def test_thresholds(usage: float, low: int | None, high: int | None, upstream: bool):
    # a has 20 points; in single precision 35 % and 60 % are exactly that.
    cluster = by_messages({"a": 0.2, "b": usage}, {"a": [1, 1], "b": [1, 1]})
    memory = shed(cluster, upstream=upstream).memory
    for name in ("a", "b"):
        assert (memory["hits_low"].get(name), memory["hits_high"].get(name)) == (low, high)


def test_one_that_is_not_urgent_ends_the_row_of_urgent_ones():
    cluster = by_messages({"a": 0.2, "b": 0.5}, {"a": [1, 1], "b": [1, 1]})
    for upstream in (False, True):
        memory = shed(cluster, {"hits_low": {"a": 3}, "hits_high": {"a": 1, "b": 1}}, upstream=upstream).memory
        assert (memory["hits_low"], memory["hits_high"]) == ({"a": 4, "b": 1}, {})


def test_low_hits_fire_too():
    cluster = by_messages({"a": 0.5, "b": 0.2}, {"a": [20_000, 5_000, 5_000], "b": [5_000]})
    for upstream in (False, True):
        assert moved(shed(cluster, {"hits_low": {"a": 6}}, upstream=upstream)) == []
        # 25,000 * 0.2 = 5,000: exactly one of them, by name.
        assert moved(shed(cluster, {"hits_low": {"a": 7}}, upstream=upstream)) == [("a", "b", 5_000.0)]


def test_no_pair_forgets_all_hits():
    cluster = by_messages({"a": 0.5, "b": 0.5, "c": 0.5}, {"a": [1, 1]})
    for upstream in (False, True):
        memory = shed(cluster, {"hits_low": {"a": 3}, "hits_high": {"b": 1}}, upstream=upstream).memory
        assert (memory["hits_low"], memory["hits_high"]) == ({}, {})


def test_hits_of_brokers_that_left():
    cluster = by_messages({"a": 0.6, "b": 0.2}, {"a": [1, 1]})
    assert "gone" not in shed(cluster, {"hits_low": {"gone": 3}}).memory["hits_low"]
    assert shed(cluster, {"hits_low": {"gone": 3}}, upstream=True).memory["hits_low"]["gone"] == 3


def test_hits_are_kept_where_nothing_could_go():
    """Upstream starts all over, ours goes as soon as something fits."""
    cluster = by_messages({"a": 0.8, "b": 0.2}, {"a": [1_100], "b": [0]})
    ours = shed(cluster, {"hits_high": {"a": 1}})
    assert (left(ours)["a"], ours.memory["hits_high"]) == ("sole-bundle", {"a": 2, "b": 1})
    theirs = shed(cluster, {"hits_high": {"a": 1}}, upstream=True)
    assert (left(theirs)["a"], theirs.memory["hits_high"]) == ("little-traffic", {})


def test_upstream_sheds_a_sole_bundle():
    cluster = by_messages({"a": 0.8, "b": 0.2}, {"a": [2_000], "b": []})
    settings = {"max_unload_share": 1.0, "hit_count_high": 1}
    assert moved(shed(cluster, upstream=True, **settings)) == [("a", "b", 2_000.0)]
    assert moved(shed(cluster, **settings)) == []


@pytest.mark.parametrize(("rate", "moves"), [(1_000, 0), (1_000.5, 1)])
def test_not_more_than_the_floor_is_not_worth_it(rate: float, moves: int):
    cluster = by_messages({"a": 0.8, "b": 0.2}, {"a": [rate * 4, rate], "b": []})
    for upstream in (False, True):
        # A fifth of five times the rate.
        assert len(shed(cluster, upstream=upstream, hit_count_high=1).moves) == moves


def test_bytes_where_messages_are_too_few():
    cluster = by_bytes({"a": 0.8, "b": 0.2}, {"a": [80, 12, 8], "b": []}, MIB)
    for upstream in (False, True):
        assert moved(shed(cluster, upstream=upstream, hit_count_high=1), MIB) == [("a", "b", 12.0), ("a", "b", 8.0)]


def test_no_score_ends_above_though_traffic_would_allow_it():
    """The busy broker has little traffic for its score: half of the difference in traffic is most of its score."""
    bundles = [bundle(1, "a", msg_per_s=6_000), bundle(2, "a", msg_per_s=6_000), bundle(3, "b", msg_per_s=100)]
    base = cluster([broker("a", 0.9, msg_per_s=12_000), broker("b", 0.5, msg_per_s=100)], bundles)
    # 6,000 weigh 45 points; b would end at 95.
    plan = shed(base, hit_count_high=1, max_unload_share=0.5)
    assert (moved(plan), left(plan)["a"]) == ([], "nothing-fits")
    base = cluster([broker("a", 0.9, msg_per_s=12_000), broker("b", 0.4, msg_per_s=100)], bundles)
    assert moved(shed(base, hit_count_high=1, max_unload_share=0.5)) == [("a", "b", 6_000.0)]


def test_the_one_in_the_middle():
    cluster = by_messages({"a": 0.9, "b": 0.5, "c": 0.1}, {"a": [1, 1]})
    memory = {"hits_low": {"b": 5}}
    for upstream in (False, True):
        assert "b" not in shed(cluster, memory, upstream=upstream).memory["hits_low"]
    # With a threshold of 0 upstream pairs it with itself, and counts it twice.
    assert shed(cluster, memory, upstream=True, low_threshold=0).memory["hits_low"]["b"] == 7
    assert "b" not in shed(cluster, memory, low_threshold=0).memory["hits_low"]


def test_scores_of_nothing_with_a_threshold_of_nothing():
    cluster = by_messages({"a": 0.0, "b": 0.0}, {"a": [9_000, 9_000]})
    assert moved(shed(cluster, low_threshold=0, hit_count_low=1)) == []


def test_a_cordoned_receiver():
    changed = replace(EXAMPLE, brokers={**EXAMPLE.brokers, "d": replace(EXAMPLE.brokers["d"], accepting=False)})
    plan = shed(changed, HITS)
    assert (moved(plan), left(plan)["d"]) == ([], "not-accepting")


def test_equal_data_share_a_destination_upstream():
    """Bundles whose averages and topics are equal overwrite each other's destination (pull request 26246)."""
    usages = {"a": 0.9, "b": 0.8, "c": 0.2, "d": 0.1}
    cluster = by_messages(usages, {"a": [30_000, 5_000], "b": [30_000, 5_000], "c": [], "d": []})
    settings = {"hit_count_high": 1}
    # Pairs (a, d) and (b, c): 5,000 of each.
    assert moved(shed(cluster, **settings)) == [("a", "d", 5_000.0), ("b", "c", 5_000.0)]
    assert moved(shed(cluster, upstream=True, **settings)) == [("a", "c", 5_000.0), ("b", "c", 5_000.0)]


def place(cluster: Cluster, bundle, candidates, memory=None, booked=None, **settings):
    return AvgShedder(AvgSettings(**settings)).place(cluster, bundle, candidates, booked or {}, memory or {})


NEW = bundle(99, None, msg_per_s=100)


def test_placement_follows_the_plan():
    for upstream in (False, True):
        memory = shed(EXAMPLE, HITS, upstream=upstream).memory
        planned = shed(EXAMPLE, HITS, upstream=upstream).moves[0]
        answer = place(EXAMPLE, EXAMPLE.bundles[planned.bundle], ["b", "c", "d"], memory, upstream=upstream)
        assert (answer.broker, list(answer.best)) == ("d", ["d"])


def test_placement_without_a_plan():
    answer = place(EXAMPLE, NEW, ["a", "b", "c"])
    assert (answer.broker, list(answer.best)) == ("c", ["c"])
    theirs = place(EXAMPLE, NEW, ["a", "b", "c"], upstream=True)
    assert list(theirs.best) == ["a", "b", "c"]
    assert theirs.broker in theirs.best
    again = place(
        EXAMPLE, replace(NEW, name="t/other/0x00000000_0xffffffff"), ["a", "b", "c"], theirs.memory, upstream=True
    )
    assert (again.broker, list(again.best)) == (theirs.broker, [theirs.broker]), "equal data: remembered"


def test_a_planned_destination_that_may_not_take_it():
    memory = {"plan": {NEW.name: "d"}}
    assert place(EXAMPLE, NEW, ["a", "b"], memory).broker == "b"
    assert place(EXAMPLE, NEW, ["a", "d"], memory).broker == "d"


@pytest.mark.parametrize("upstream", [False, True])
def test_nobody_may_take_it(upstream: bool):
    assert place(EXAMPLE, NEW, [], upstream=upstream).broker is None


@pytest.mark.parametrize("garbage", [{"plan": 1, "hits_low": [], "hits_high": {"a": "x", "b": -1, "d": True}}])
def test_memory_that_is_no_memory_is_forgotten(garbage):
    for upstream in (False, True):
        assert shed(EXAMPLE, garbage, upstream=upstream).memory["hits_low"] == HITS["hits_low"]
        assert place(EXAMPLE, NEW, ["a", "b"], garbage, upstream=upstream).broker in {"a", "b"}
