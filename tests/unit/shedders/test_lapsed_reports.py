"""Placements by reports that are older than the last change of what their broker owns: they count, with what came since."""

from dataclasses import replace
from typing import Any

import pytest

from shedders.model.cluster import Cluster, RecentMoves
from shedders.placement.least_long_term_rate import LeastLongTermMessageRate, LeastLongTermRateSettings
from shedders.placement.least_resource_usage import (
    LeastResourceUsage,
    LeastResourceUsageSettings,
    ModularLeastResourceUsage,
    ModularLeastResourceUsageSettings,
)
from shedders.shedding.avg import AvgSettings, AvgShedder
from tests.support.drains import Twin, make_cluster, plan
from tests.support.loads import bundle, by_bytes

NEW = bundle(99, None, bytes_per_s=100.0)
STRATEGIES = {
    "least-resource-usage": lambda upstream: LeastResourceUsage(LeastResourceUsageSettings(upstream=upstream)),
    "modular": lambda upstream: ModularLeastResourceUsage(ModularLeastResourceUsageSettings(upstream=upstream)),
    "long-term": lambda upstream: LeastLongTermMessageRate(LeastLongTermRateSettings(upstream=upstream)),
    "avg": lambda upstream: AvgShedder(AvgSettings(upstream=upstream)),
}
each = pytest.mark.parametrize("name", STRATEGIES)


def three(**changes: Any) -> Cluster:
    """a is busy and has one bundle, b and c are idle and have more."""
    cluster = by_bytes({"a": 0.8, "b": 0.2, "c": 0.3}, {"a": [800.0], "b": [100.0, 100.0], "c": [100.0, 100.0, 100.0]})
    return replace(cluster, brokers={name: replace(broker, **changes) for name, broker in cluster.brokers.items()})


def placed(name: str, cluster: Cluster, *, upstream: bool = False, booked: Any = None) -> Any:
    return STRATEGIES[name](upstream).place(cluster, NEW, ["a", "b", "c"], booked or {}, {})


@each
def test_a_lapsed_report_is_the_best_that_is_known(name: str) -> None:
    fresh, result = placed(name, three()), placed(name, three(load_lapsed=True))
    assert (result.broker, dict(result.scores), result.removed) == (fresh.broker, dict(fresh.scores), {})
    assert "the reports of a, b, c are stale" in result.why
    assert "last change" not in fresh.why


@each
def test_it_is_said_of_those_alone_whose_report_has_lapsed(name: str) -> None:
    cluster = three()
    changed = replace(cluster, brokers={**cluster.brokers, "b": replace(cluster.brokers["b"], load_lapsed=True)})
    assert "the report of b is stale" in placed(name, changed).why


@each
def test_without_a_usable_report_it_is_the_fewest_bundles(name: str) -> None:
    for change in ({"load": None}, {"load_lapsed": True, "load_age_s": 1_801.0}):
        result = placed(name, three(**change))
        assert (result.broker, result.why) == ("a", "no candidate's load is known; fewest bundles: 1")


@each
def test_upstream_asks_for_no_marks(name: str) -> None:
    assert placed(name, three(load_lapsed=True), upstream=True) == placed(name, three(), upstream=True)


@pytest.mark.parametrize("name", ["least-resource-usage", "modular", "avg"])
def test_what_came_since_the_report_is_added_once(name: str) -> None:
    base = three(load_lapsed=True, load_age_s=10.0)
    come = bundle(50, "b", bytes_per_s=500.0)
    before = bundle(51, "b", bytes_per_s=500.0)
    going = bundle(52, "b", bytes_per_s=500.0, in_flight=True)
    recent = RecentMoves({come.name: 9.0, before.name: 10.0, going.name: 0.0, "t/n/gone": 1.0}, {})
    cluster = replace(
        base, bundles={**base.bundles, **{item.name: item for item in (come, before, going)}}, recent=recent
    )
    expected = 0.2 + 500.0 * (1.3 / 1_300.0)
    for booked in ({}, {"b": [come.name]}):
        result = placed(name, cluster, booked=booked)
        assert result.scores["b"] == pytest.approx(expected)
        assert result.broker == "c"
    fresh = replace(cluster, brokers=three().brokers)
    assert placed(name, fresh).scores["b"] == pytest.approx(0.2), "a report that has not lapsed counts it"


def test_a_drain_goes_by_loads_from_its_first_move_to_its_last() -> None:
    cluster = make_cluster({"b1": 10, "b2": 8, "b3": 15})
    for name, usage in (("b2", 0.5), ("b3", 0.1)):
        broker = cluster.brokers[name]
        busy = replace(broker, load=replace(broker.load, weighted_max_ema=usage))
        cluster = replace(cluster, brokers={**cluster.brokers, name: busy})
    twin = Twin(cluster, plan(moves_at_once=1), report_s=1_000.0)
    assert twin.run().left == ()
    assert len(twin.begun) == 10
    assert {move.destination for _, move in twin.begun} == {"b3"}, "b2 has fewer bundles, and is much busier"
    assert not [move.why for _, move in twin.begun if "no candidate's load is known" in move.why]
    assert "is stale, bundles that came since are added" in twin.begun[-1][1].why
