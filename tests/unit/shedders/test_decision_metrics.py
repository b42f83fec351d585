"""Metrics of the balancer: what is counted, and that no label can grow without end."""

from math import inf
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from shedders.balancer.metrics import OTHER, WORDS_MAX, BalancerMetrics, Words
from shedders.decisions.builder import skipped_record
from shedders.decisions.record import DistancePart
from shedders.decisions.topic import WriteCounts
from shedders.model.plan import Left
from tests.support.decision_records import WHOLE, move, occasion, record
from tests.support.log_lines import capture_logs

OWN = {"channel": "c", "broker": "b1"}


def make_metrics(**more: Any) -> BalancerMetrics:
    return BalancerMetrics("c", "b1", **more)


def value(metrics: BalancerMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"statechannel_{name}", {**OWN, **labels})


def test_moves_placements_and_splits_are_counted_and_timed() -> None:
    metrics = make_metrics()
    metrics.shed("transferred", "Overloaded", 0.2)
    metrics.shed("transferred", "Overloaded", inf)
    metrics.shed("rejected", "Underloaded")
    metrics.assigned("strategy", "least-resource-usage")
    metrics.assigned_after("strategy", "least-resource-usage", 0.01)
    metrics.split("split", "MsgRate", 1.5)
    assert value(metrics, "shed_total", result="transferred", reason="Overloaded") == 2
    assert value(metrics, "shed_total", result="rejected", reason="Underloaded") == 1
    assert value(metrics, "shed_seconds_count", result="transferred", reason="Overloaded") == 1
    assert value(metrics, "shed_seconds_sum", result="transferred", reason="Overloaded") == pytest.approx(0.2)
    assert value(metrics, "assign_total", result="strategy", reason="least-resource-usage") == 1
    assert value(metrics, "assign_seconds_count", result="strategy", reason="least-resource-usage") == 1
    assert value(metrics, "split_seconds_bucket", result="split", reason="MsgRate", le="2.5") == 1


def test_decisions_scores_and_spread() -> None:
    metrics = make_metrics()
    left = [Left("b3", "outdated", "x"), Left(WHOLE, "outdated", "x"), Left("b2", "two words", "x")]
    metrics.decided(record(moves=[move()], scores={"b1": 0.9, "b2": 0.3, "b3": inf}, left=left))
    assert value(metrics, "balancer_cycles_total", subject="shed", outcome="Success", reason="Overloaded") == 1
    assert value(metrics, "balancer_decision_seconds_sum", subject="shed") == pytest.approx(0.0045)
    assert value(metrics, "balancer_broker_score", broker="b1") == 0.9
    assert value(metrics, "balancer_broker_score", broker="b3") is None
    assert value(metrics, "balancer_score_mean") == pytest.approx(0.6)
    assert value(metrics, "balancer_score_std") == pytest.approx(0.3)
    assert value(metrics, "balancer_score_max_over_mean") == pytest.approx(1.5)
    assert value(metrics, "balancer_left_alone_total", reason="outdated") == 2
    assert value(metrics, "balancer_left_alone_total", reason=OTHER) == 1
    metrics.decided(skipped_record(occasion(2), "safe-mode", "Kafka is away"))
    assert value(metrics, "balancer_cycles_total", subject="shed", outcome="Skip", reason="safe-mode") == 1
    assert value(metrics, "balancer_broker_score", broker="b2") == 0.3
    metrics.decided(record(scores={"b2": 0.0}))
    assert value(metrics, "balancer_broker_score", broker="b1") is None
    assert value(metrics, "balancer_score_max_over_mean") == 0
    metrics.stopped()
    assert value(metrics, "balancer_broker_score", broker="b2") is None


def test_the_distance_to_the_best_of_the_newest_decision() -> None:
    metrics = make_metrics()
    distance = DistancePart(
        largest_use=0.7, broker="b1", resource="cpu", bound=0.6, gap_percent=16.7, any_load_bound=0.5, load_moved=1e6
    )

    def values() -> list[float | None]:
        return [value(metrics, f"balancer_largest_use{end}") for end in ("", "_bound", "_any_load_bound")]

    metrics.decided(record().model_copy(update={"distance": distance}))
    assert values() == [0.7, 0.6, 0.5]
    metrics.decided(skipped_record(occasion(2), "safe-mode", "Kafka is away"))
    assert values() == [0.7, 0.6, 0.5]  # as the scores: nothing new is known
    metrics.decided(record())
    assert values() == [0, 0, 0]
    metrics.decided(record().model_copy(update={"distance": distance}))
    metrics.stopped()
    assert values() == [0, 0, 0]


def test_all_scores_count_where_the_record_had_no_room() -> None:
    metrics = make_metrics()
    metrics.decided(record(scores={"b1": 1.0}), {"b1": 1.0, "b2": 3.0})
    assert value(metrics, "balancer_score_mean") == 2.0


def test_records_are_counted_by_what_became_of_them() -> None:
    metrics = make_metrics()
    metrics.written(WriteCounts(written=3, dropped=1, failed=2, unwritable=0))
    metrics.written(WriteCounts(written=5, dropped=1, failed=2, unwritable=0))
    assert value(metrics, "balancer_decision_records_total", result="written") == 5
    assert value(metrics, "balancer_decision_records_total", result="failed") == 2
    assert value(metrics, "balancer_decision_records_total", result="unwritable") is None


def test_a_label_has_few_values() -> None:
    words = Words(2)
    assert [words(item) for item in ("a", "b", "c", "a", "no word", None)] == ["a", "b", OTHER, "a", OTHER, "none"]
    metrics = make_metrics()
    for number in range(3 * WORDS_MAX):
        metrics.shed(f"result-{number}", f"reason-{number}")
    lines = [line for line in generate_latest(metrics.registry).decode().splitlines() if "shed_total{" in line]
    assert len(lines) <= WORDS_MAX + 1


def test_no_bundle_stands_in_a_label() -> None:
    metrics = make_metrics()
    metrics.shed(WHOLE, WHOLE)
    metrics.decided(record(moves=[move()], left=[Left(WHOLE, WHOLE, "x")], scores={"b1": 1.0}))
    assert WHOLE not in generate_latest(metrics.registry).decode()


def test_members_of_one_process_share_a_registry() -> None:
    registry = CollectorRegistry()
    metrics, two = BalancerMetrics("c", "b1", registry), BalancerMetrics("c", "b2", registry)
    metrics.shed("transferred", "Overloaded", 1.0)
    two.shed("transferred", "Overloaded", 1.0)
    for broker in ("b1", "b2"):
        labels = {"channel": "c", "broker": broker, "result": "transferred", "reason": "Overloaded"}
        assert registry.get_sample_value("statechannel_shed_total", labels) == 1


@pytest.mark.parametrize("wanted", [True, False])
def test_the_debug_setting_logs_every_score(wanted: bool) -> None:
    with capture_logs() as logs:
        make_metrics(log_scores=wanted).decided(record(scores={"b1": 0.5, "b2": 0.1}, stats={"average": 0.3}))
    scores = [(line["scored"], line["score"]) for line in logs if line["event"] == "balancer.score"]
    assert scores == ([("b1", 0.5), ("b2", 0.1)] if wanted else [])
    assert [line["stat_average"] for line in logs if line["event"] == "balancer.stats"] == ([0.3] if wanted else [])
