"""RangeThresholdShedder: as ThresholdShedder, with the lower boundary always looked at."""

from shedders.model.plan import Reason
from shedders.shedding.threshold import RangeThresholdSettings, RangeThresholdShedder
from tests.support.loads import MIB, by_bytes, moved

TEN = {f"b{number:02}": 0.8 for number in range(10)}
EXAMPLE = by_bytes({**TEN, "idle": 0.0}, {"b00": [300, 60, 30, 10], "b01": [200, 200]}, MIB)


def shed(cluster, **settings):
    return RangeThresholdShedder(RangeThresholdSettings(**settings)).plan(cluster, {})


def test_worked_example():
    plan = shed(EXAMPLE)
    assert moved(plan, MIB) == [("b00", "idle", 30.0), ("b00", "idle", 10.0), ("b00", "idle", 60.0)]
    assert plan.reason == Reason.UNDERLOADED


def test_worked_example_as_upstream():
    # 400 * 0.1 = 40 MiB/s.
    assert moved(shed(EXAMPLE, upstream=True), MIB) == [("b00", None, 300.0)]


def test_upstream_stops_at_a_highest_broker_with_one_bundle():
    cluster = by_bytes({**TEN, "b00": 0.81, "idle": 0.0}, {"b00": [400], "b01": [300, 60, 30, 10]}, MIB)
    assert moved(shed(cluster, upstream=True)) == []
    assert {move.source for move in shed(cluster).moves} == {"b01"}


def test_the_threshold_comes_first():
    cluster = by_bytes({"a": 0.8, "b": 0.42}, {"a": [200, 80, 30, 10], "b": []}, MIB)
    assert moved(shed(cluster), MIB) == [("a", "b", 30.0), ("a", "b", 10.0)]
    assert shed(cluster).reason == Reason.OVERLOADED


def test_upstream_looks_at_it_whatever_the_settings_say():
    assert moved(shed(EXAMPLE, lower_boundary=False)) == []
    assert moved(shed(EXAMPLE, lower_boundary=False, upstream=True), MIB) == [("b00", None, 300.0)]
