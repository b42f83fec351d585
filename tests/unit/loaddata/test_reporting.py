"""When load is told: upstream's four changes and its age, with strict comparisons."""

import math
from dataclasses import replace

import pytest

from loaddata.model.broker_load import BrokerLoad, ResourceUsage, ResourceWeights
from loaddata.report.reporter import ReportCause, WrittenReport, change_percent, changes, load_due, top_due
from loaddata.settings import LoadSettings

LOAD = BrokerLoad(
    cpu=ResourceUsage(50, 100),
    msg_rate_in=60,
    msg_rate_out=40,
    msg_throughput_in=600,
    msg_throughput_out=400,
    bundles=10,
    max_resource_usage=0.5,
)
SETTINGS = LoadSettings(report_peak_percent=0)
WEIGHTS = ResourceWeights()


@pytest.mark.parametrize(
    ("before", "now", "percent"), [(0, 0, 0), (0, 5, math.inf), (100, 110, 10), (100, 0, 100), (200, 100, 50)]
)
def test_change(before: float, now: float, percent: float) -> None:
    assert change_percent(before, now) == percent


@pytest.mark.parametrize(
    ("now", "cause", "words"),
    [
        ({}, None, ""),
        ({"max_resource_usage": 0.59}, None, ""),
        ({"max_resource_usage": 0.61}, ReportCause.CHANGE, "resource usage changed by 11.0"),
        ({"max_resource_usage": 0.39}, ReportCause.CHANGE, "resource usage"),
        ({"msg_rate_in": 70}, None, ""),  # 100 -> 110 is 10 %, not more
        ({"msg_rate_in": 71}, ReportCause.CHANGE, "message rate changed by 11.0"),
        ({"msg_throughput_out": 250}, ReportCause.CHANGE, "throughput changed by 15.0"),
        ({"bundles": 11}, None, ""),
        ({"bundles": 12}, ReportCause.CHANGE, "bundles changed by 20.0"),
        ({"bundles": 0}, ReportCause.CHANGE, "bundles changed by 100.0"),
        ({"weighted_max_ema": 0.1, "topics": 9}, None, ""),  # the averages do not trigger
    ],
)
def test_what_makes_it_due(now: dict[str, float], cause: ReportCause | None, words: str) -> None:
    values = {name: getattr(LOAD, name) for name in LOAD.__slots__} | now
    due = load_due(WrittenReport(LOAD, 0.0), BrokerLoad(**values), 900.0, SETTINGS, WEIGHTS)
    assert (None if due is None else due.cause) is cause
    if due is not None:
        assert words in due.why


def test_the_first_and_the_old() -> None:
    first = load_due(None, LOAD, 5.0, SETTINGS, WEIGHTS)
    assert first.cause is ReportCause.FIRST
    assert load_due(WrittenReport(LOAD, 0.0), LOAD, 900.0, SETTINGS, WEIGHTS) is None
    old = load_due(WrittenReport(LOAD, 0.0), LOAD, 900.1, SETTINGS, WEIGHTS)
    assert (old.cause, old.why) == (ReportCause.AGE, "the last report is 900.1 s old, more than 900 s")


def test_from_nothing_to_something() -> None:
    due = load_due(WrittenReport(BrokerLoad(max_resource_usage=0.5), 0.0), LOAD, 1.0, SETTINGS, WEIGHTS)
    assert "inf" in due.why


@pytest.mark.parametrize(
    ("before", "now", "is_due"), [(0.5, 0.89, False), (0.5, 0.9, True), (0.95, 0.91, False), (0.9, 0.89, True)]
)
def test_a_broker_that_comes_to_stay_at_its_peak_or_leaves_it(before: float, now: float, is_due: bool) -> None:
    held, load = replace(LOAD, peak_share=before), replace(LOAD, peak_share=now)
    due = load_due(WrittenReport(held, 0.0), load, 900.0, LoadSettings(), WEIGHTS)
    assert (due is not None and due.cause is ReportCause.CHANGE) == is_due
    assert load_due(WrittenReport(held, 0.0), load, 900.0, SETTINGS, WEIGHTS) is None, "never, as upstream"


def test_the_modular_managers_way_compares_the_weighted_maximum() -> None:
    weights = ResourceWeights(cpu=2.0)
    now = replace(LOAD, cpu=ResourceUsage(56, 100), max_resource_usage=0.56)
    assert changes(LOAD, now)["resource usage"] == pytest.approx(6)
    assert changes(LOAD, now, weights)["resource usage"] == pytest.approx(12)
    weighted = SETTINGS.model_copy(update={"report_compares": "weighted"})
    assert load_due(WrittenReport(LOAD, 0.0), now, 900.0, SETTINGS, weights) is None
    assert load_due(WrittenReport(LOAD, 0.0), now, 900.0, weighted, weights) is not None


def test_top_bundles() -> None:
    first = top_due(None, 1, 0.0, 15.0)
    assert first.cause is ReportCause.FIRST
    assert top_due((7, 0.0), 7, 99.0, 15.0) is None
    assert top_due((7, 0.0), 8, 14.9, 15.0) is None
    due = top_due((7, 0.0), 8, 15.0, 15.0)
    assert due.cause is ReportCause.SAMPLED
