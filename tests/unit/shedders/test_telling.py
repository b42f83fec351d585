"""Placements are told in batches, with what became of the records."""

from types import SimpleNamespace
from typing import Any

import pytest

from shedders.balancer.active_strategies import choose
from shedders.balancer.metrics import BalancerMetrics
from shedders.balancer.placement import BATCH_MAX, PlacedEnd, PlacedNote, PlacementRecorder
from shedders.balancer.settings import BalancerSettings
from shedders.decisions.record import Inputs
from shedders.decisions.topic import WriteCounts
from shedders.model.plan import Placed
from tests.support.strategies import install

NAMES = [f"acme/orders/0x{n:08x}_0x{n + 1:08x}" for n in range(450)]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A `PlacementRecorder` with its records, notes and metrics."""
    install(monkeypatch)
    found = SimpleNamespace(records=[], notes=[], ends=[], counts=WriteCounts(), metrics=BalancerMetrics("c", "b1"))
    chosen, settings = choose(BalancerSettings()), BalancerSettings()
    ports: Any = SimpleNamespace(
        channel=SimpleNamespace(term=-1, identity=SimpleNamespace(broker="b1")),
        settings=lambda: settings,
        manager=lambda: "extensible",
        bounds=settings.record_bounds(),
        chosen=lambda: chosen,
        inputs=lambda _: Inputs(channel={"0": 7}, policies=3),
        write=found.records.append,
        metrics=found.metrics,
        clocks=SimpleNamespace(log_ms=lambda: 1_000),
    )

    def take() -> list[PlacedNote]:
        notes, found.notes = found.notes, []
        return notes

    def take_ends() -> list[PlacedEnd]:
        ends, found.ends = found.ends, []
        return ends

    found.telling = PlacementRecorder(
        ports,
        take_notes=take,
        take_ends=take_ends,
        counts=lambda: found.counts,
    )
    return found


def count(told: SimpleNamespace, metric: str, **labels: str) -> float:
    value = told.metrics.registry.get_sample_value(metric, {"channel": "c", "broker": "b1", **labels})
    return value or 0.0


def test_nothing_is_written_where_nothing_was_placed(told: SimpleNamespace) -> None:
    told.telling.record()
    told.notes = [PlacedNote(NAMES[0], None, "asked", None, "modular")]
    told.telling.record()
    assert told.records == []
    assert count(told, "statechannel_assign_total", result="asked", reason="modular") == 1


def test_a_storm_becomes_a_few_records_that_have_all_of_it(told: SimpleNamespace) -> None:
    told.notes = [
        PlacedNote(name, "b2", "strategy", Placed(name, "b2", "least used", best=("b2",)), "lru") for name in NAMES
    ]
    told.telling.record()
    assert [len(one.placed) for one in told.records] == [BATCH_MAX, BATCH_MAX, 50]
    assert [one.bundle for record in told.records for one in record.placed] == NAMES
    assert not any(one.cut for one in told.records)
    assert [one.cycle for one in told.records] == [1, 2, 3]
    assert [one.settings is None for one in told.records] == [False, True, True]
    assert {one.leader for one in told.records} == {"b1"}
    assert count(told, "statechannel_assign_total", result="strategy", reason="lru") == 450
    told.telling.record()
    assert len(told.records) == 3


def test_where_the_strategy_chose_nobody_the_record_says_who_took_it_and_how(told: SimpleNamespace) -> None:
    told.notes = [
        PlacedNote(NAMES[0], "b3", "fewest", Placed(NAMES[0], None, "no broker has reported")),
        PlacedNote(NAMES[1], None, "nobody", Placed(NAMES[1], None, "the filters left nobody")),
        PlacedNote(NAMES[2], "b1", "failed", None),
        PlacedNote(NAMES[3], None, "failed", None),
    ]
    told.telling.record()
    fewest, nobody, failed, lost = told.records[0].placed
    assert (fewest.broker, nobody.broker, failed.broker) == ("b3", None, "b1")
    assert fewest.why.startswith("no broker has reported; the strategy chose no broker")
    assert nobody.why == "the filters left nobody"
    assert failed.why.startswith("the placement failed")
    assert lost.why.startswith("the placement failed (see the broker's log); no broker took it")
    assert told.records[0].label == "Failure"  # one bundle found no broker


def test_what_became_of_the_records_is_counted_once(told: SimpleNamespace) -> None:
    told.counts = WriteCounts(written=5, dropped=2)
    told.telling.record()
    told.telling.record()
    assert count(told, "statechannel_balancer_decision_records_total", result="written") == 5
    assert count(told, "statechannel_balancer_decision_records_total", result="dropped") == 2


def test_how_long_a_bundle_waited_for_its_place_is_timed(told: SimpleNamespace) -> None:
    told.ends = [PlacedEnd("strategy", "lru", 0.2), PlacedEnd("strategy", "lru", 0.4)]
    told.telling.record()
    told.telling.record()
    labels = {"result": "strategy", "reason": "lru"}
    assert count(told, "statechannel_assign_seconds_count", **labels) == 2
    assert count(told, "statechannel_assign_seconds_sum", **labels) == pytest.approx(0.6)
    assert count(told, "statechannel_assign_total", **labels) == 0
