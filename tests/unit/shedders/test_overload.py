"""OverloadShedder: tables computed by hand, ours and upstream's."""

import pytest

from shedders.model.plan import Reason
from shedders.shedding.overload import OverloadSettings, OverloadShedder
from tests.support.loads import by_bytes, by_messages, left, moved

EXAMPLE = by_bytes({"a": 0.9, "b": 0.3}, {"a": [600, 200, 60, 40], "b": []})


def shed(cluster, **settings):
    return OverloadShedder(OverloadSettings(**settings)).plan(cluster, {})


def test_worked_example():
    plan = shed(EXAMPLE)
    assert moved(plan) == [("a", "b", 60.0), ("a", "b", 40.0)]
    assert plan.reason == Reason.OVERLOADED
    assert plan.stats == {"limit": 0.85}


def test_worked_example_as_upstream():
    # 900 * (0.9 - 0.85 + 0.05) = 90.
    assert moved(shed(EXAMPLE, upstream=True)) == [("a", None, 600.0)]


@pytest.mark.parametrize(("usage", "sheds"), [(0.8499, False), (0.875, True), (0.9, True)])
@pytest.mark.parametrize("upstream", [False, True])
def test_the_limit_itself_counts(usage: float, sheds: bool, upstream: bool):
    # 0.875 is exact in single precision, so that 87.5 % is neither more nor less.
    cluster = by_bytes({"a": usage, "b": 0.1}, {"a": [30, 30, 30, 30, 30], "b": []})
    limit = 87.5 if usage == 0.875 else 85.0
    assert bool(shed(cluster, upstream=upstream, overloaded_percent=limit).moves) is sheds


def test_greedy_takes_until_there_is_enough():
    # 1,000 * (0.95 - 0.85 + 0.05) = 150: 90, then 80 makes 170.
    cluster = by_bytes({"a": 0.95, "b": 0.1}, {"a": [90, 80, 70, 60] + [50] * 14, "b": []})
    assert moved(shed(cluster, upstream=True)) == [("a", None, 90.0), ("a", None, 80.0)]
    # 1,000 * 0.15 / 0.95 = 158: 90, then 60 (80 and 70 are too much): 150.
    assert moved(shed(cluster)) == [("a", "b", 90.0), ("a", "b", 60.0)]


def test_nobody_is_better_off():
    cluster = by_bytes({"a": 0.9, "b": 0.86}, {"a": [300, 300, 300], "b": [300, 300, 260]})
    plan = shed(cluster)
    assert (moved(plan), left(plan)) == ([], {"a": "nothing-fits", "b": "nothing-fits"})
    assert [source for source, _, _ in moved(shed(cluster, upstream=True))] == ["a", "b"]


def test_equal_bundles_go_by_name():
    cluster = by_bytes({"a": 0.9, "b": 0.1}, {"a": [100, 100, 100], "b": []})
    names = [bundle.name for bundle in cluster.bundles_of["a"]]
    assert [move.bundle for move in shed(cluster, upstream=True).moves] == names[:1]


def test_messages_where_there_are_no_bytes():
    cluster = by_messages({"a": 0.9, "b": 0.3}, {"a": [600, 200, 60, 40], "b": []})
    assert moved(shed(cluster)) == [("a", "b", 60.0), ("a", "b", 40.0)]
    # Upstream needs 0 bytes, and takes one bundle all the same.
    assert moved(shed(cluster, upstream=True)) == [("a", None, 0.0)]


def test_usage_without_traffic():
    cluster = by_bytes({"a": 0.9, "b": 0.3}, {"a": [0, 0], "b": []})
    assert left(shed(cluster)) == {"a": "little-traffic", "b": "within-limit"}


@pytest.mark.parametrize("upstream", [False, True])
def test_sole_bundle(upstream: bool):
    cluster = by_bytes({"a": 0.9, "b": 0.3}, {"a": [600], "b": []})
    assert left(shed(cluster, upstream=upstream)) == {"a": "sole-bundle", "b": "within-limit"}
