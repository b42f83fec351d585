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
def rig(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A `PlacementRecorder` with its records, notes and metrics."""
    install(monkeypatch)
    result = SimpleNamespace(records=[], notes=[], ends=[], counts=WriteCounts(), metrics=BalancerMetrics("c", "b1"))
    chosen, settings = choose(BalancerSettings()), BalancerSettings()
    ports: Any = SimpleNamespace(
        channel=SimpleNamespace(term=-1, identity=SimpleNamespace(broker="b1")),
        settings=lambda: settings,
        manager=lambda: "extensible",
        bounds=settings.record_bounds(),
        chosen=lambda: chosen,
        inputs=lambda _: Inputs(channel={"0": 7}, policies=3),
        write=result.records.append,
        metrics=result.metrics,
        clocks=SimpleNamespace(log_ms=lambda: 1_000),
    )

    def take() -> list[PlacedNote]:
        notes, result.notes = result.notes, []
        return notes

    def take_ends() -> list[PlacedEnd]:
        ends, result.ends = result.ends, []
        return ends

    result.telling = PlacementRecorder(ports, take_notes=take, take_ends=take_ends, counts=lambda: result.counts)
    return result


def count(rig: SimpleNamespace, metric: str, **labels: str) -> float:
    value = rig.metrics.registry.get_sample_value(metric, {"channel": "c", "broker": "b1", **labels})
    return value or 0.0


def test_nothing_is_written_where_nothing_was_placed(rig: SimpleNamespace) -> None:
    rig.telling.record()
    rig.notes = [PlacedNote(NAMES[0], None, "asked", None, "modular")]
    rig.telling.record()
    assert rig.records == []
    assert count(rig, "statechannel_assign_total", result="asked", reason="modular") == 1


def test_a_storm_becomes_a_few_records_that_have_all_of_it(rig: SimpleNamespace) -> None:
    rig.notes = [
        PlacedNote(name, "b2", "strategy", Placed(name, "b2", "least used", best=("b2",)), "lru") for name in NAMES
    ]
    rig.telling.record()
    assert [len(record.placed) for record in rig.records] == [BATCH_MAX, BATCH_MAX, 50]
    assert [placement.bundle for record in rig.records for placement in record.placed] == NAMES
    assert not any(record.cut for record in rig.records)
    assert [record.cycle for record in rig.records] == [1, 2, 3]
    assert [record.settings is None for record in rig.records] == [False, True, True]
    assert {record.leader for record in rig.records} == {"b1"}
    assert count(rig, "statechannel_assign_total", result="strategy", reason="lru") == 450
    rig.telling.record()
    assert len(rig.records) == 3


def test_where_the_strategy_chose_nobody_the_record_says_who_took_it_and_how(rig: SimpleNamespace) -> None:
    rig.notes = [
        PlacedNote(NAMES[0], "b3", "fewest", Placed(NAMES[0], None, "no broker has reported")),
        PlacedNote(NAMES[1], None, "nobody", Placed(NAMES[1], None, "the filters left nobody")),
        PlacedNote(NAMES[2], "b1", "failed", None),
        PlacedNote(NAMES[3], None, "failed", None),
    ]
    rig.telling.record()
    fewest, nobody, failed, lost = rig.records[0].placed
    assert (fewest.broker, nobody.broker, failed.broker) == ("b3", None, "b1")
    assert fewest.why.startswith("no broker has reported; the strategy chose no broker")
    assert nobody.why == "the filters left nobody"
    assert failed.why.startswith("the placement failed")
    assert lost.why.startswith("the placement failed (see the broker's log); no broker took it")
    assert rig.records[0].label == "Failure"  # one bundle found no broker


def test_what_became_of_the_records_is_counted_once(rig: SimpleNamespace) -> None:
    rig.counts = WriteCounts(written=5, dropped=2)
    rig.telling.record()
    rig.telling.record()
    assert count(rig, "statechannel_balancer_decision_records_total", result="written") == 5
    assert count(rig, "statechannel_balancer_decision_records_total", result="dropped") == 2


def test_how_long_a_bundle_waited_for_its_place_is_timed(rig: SimpleNamespace) -> None:
    rig.ends = [PlacedEnd("strategy", "lru", 0.2), PlacedEnd("strategy", "lru", 0.4)]
    rig.telling.record()
    rig.telling.record()
    labels = {"result": "strategy", "reason": "lru"}
    assert count(rig, "statechannel_assign_seconds_count", **labels) == 2
    assert count(rig, "statechannel_assign_seconds_sum", **labels) == pytest.approx(0.6)
    assert count(rig, "statechannel_assign_total", **labels) == 0
