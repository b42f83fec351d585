"""A cluster in virtual time: what happens to it, and what it costs."""

from collections.abc import Sequence

import pytest

from shedders.contest.contenders import contender
from shedders.contest.outcome import RunOutcome
from shedders.contest.trace import Costs, Namespace, TraceEvent, TraceEventKind, TraceMachine
from shedders.contest.world import ContestWorld, simulate
from tests.support.plain_trace import PlainTrace

MENDED = "extensible/transfer+least-resource-usage@recommended"
UPSTREAM = "modular/threshold+least-long-term-rate@upstream"
MACHINES = [TraceMachine(f"b{item}", cores=4, bandwidth_in_kbit=1e6, bandwidth_out_kbit=1e6) for item in range(4)]
RATES = [2e6 / (1 + item % 7) for item in range(64)]


def _trace(
    events: Sequence[TraceEvent] = (),
    owners: Sequence[str | None] = (),
    steps: int = 60,
    machines: int = 4,
    **more: object,
) -> PlainTrace:
    spaces = [Namespace("t/n", 16, owners=owners), Namespace("t/later", 8)]
    if not any(event.what is TraceEventKind.CREATE for event in events):
        spaces.pop()
    rates = [RATES for _ in spaces]
    return PlainTrace(MACHINES[:machines], spaces, rates, steps=steps, events=events, **more)  # type: ignore[arg-type]


def _ran(trace: PlainTrace, name: str = MENDED) -> ContestWorld:
    world = ContestWorld(trace, contender(name))
    for step in range(trace.steps):
        world.step(step)
    return world


def _held(world: ContestWorld) -> dict[str, int]:
    return dict(sorted(world._channel.load().items()))


def _outcome(trace: PlainTrace, name: str = MENDED) -> RunOutcome:
    return simulate(trace, contender(name))


@pytest.mark.parametrize("name", [MENDED, UPSTREAM, "modular/avg+avg@upstream"])
def test_the_same_run_gives_the_same_outcome_bit_for_bit(name: str) -> None:
    events = [
        TraceEvent(200.0, TraceEventKind.LOST, "b1"),
        TraceEvent(400.0, TraceEventKind.JOIN, "b1"),
        TraceEvent(300.0, TraceEventKind.LOSSY, "b2", 0.5),
    ]
    first, second = (_outcome(_trace(events, owners=["b0"] * 16), name) for _ in range(2))
    assert first.digest() == second.digest()
    assert first.digest() != _outcome(_trace(owners=["b0"] * 16), name).digest()


def test_everything_that_is_looked_up_is_served() -> None:
    world = _ran(_trace(steps=3))
    assert sum(_held(world).values()) == 16
    assert len(_held(world)) == 4
    assert world.meter.measures().unavailable_bundle_s == 0


def test_a_lost_broker_costs_what_it_takes_to_notice() -> None:
    owners = ["b0"] * 4 + ["b1"] * 12
    world = _ran(
        _trace([TraceEvent(100.0, TraceEventKind.LOST, "b0")], owners=owners, steps=7, costs=Costs(loss_detect_s=6.0))
    )
    assert "b0" not in _held(world)
    assert sum(_held(world).values()) == 16
    assert world.meter.measures().unavailable_bundle_s == 4 * 6.0


def test_a_broker_that_leaves_hands_over() -> None:
    owners = ["b0"] * 4 + ["b1"] * 12
    costs = Costs(transfer_gap_s=0.25)
    world = _ran(_trace([TraceEvent(100.0, TraceEventKind.LEAVE, "b1")], owners=owners, steps=7, costs=costs))
    assert "b1" not in _held(world)
    assert sum(_held(world).values()) == 16
    assert world.meter.measures().unavailable_bundle_s == 12 * 0.25
    assert not world.meter.moves, "the balancer has nothing to do with it"


def test_nobody_is_left() -> None:
    events = [TraceEvent(100.0, TraceEventKind.LOST, "b0"), TraceEvent(200.0, TraceEventKind.JOIN, "b0")]
    world = _ran(_trace(events, machines=1, owners=["b0"] * 16, steps=15))
    assert _held(world) == {"b0": 16}
    # 6 s to notice, and 100 s in which there is nobody.
    assert world.meter.measures().unavailable_bundle_s == 16 * (6 + 100)


def test_a_broker_joins_empty_and_is_given_load() -> None:
    trace = _trace([TraceEvent(60.0, TraceEventKind.JOIN, "b3")], steps=120)
    world = _ran(trace, "modular/avg+avg@recommended,shedding.avg.low_threshold=2,shedding.avg.hit_count_low=1")
    assert world.meter.series().loads["b3"][:3] == [None] * 3
    assert _held(world)["b3"] > 0


def test_a_namespace_that_is_created_is_placed_within_a_minute() -> None:
    trace = _trace([TraceEvent(100.0, TraceEventKind.CREATE, namespace="t/later")], owners=["b0"] * 16, steps=10)
    world = _ran(trace)
    assert sum(_held(world).values()) == 24
    assert 0 < world.meter.measures().unavailable_bundle_s <= 8 * 60.0


def test_a_slow_broker_is_full_and_looks_idle() -> None:
    owners = [f"b{item % 4}" for item in range(16)]
    quick = _ran(_trace(owners=owners, steps=4))
    slow = _ran(_trace([TraceEvent(0.0, TraceEventKind.SLOW, "b0", 0.02)], owners=owners, steps=4))
    assert slow.meter.series().loads["b0"][3] == pytest.approx(quick.meter.series().loads["b0"][3] * 50)  # type: ignore[operator]
    result, honest = (item._view().loads["b0"].load.max_resource_usage for item in (slow, quick))
    assert result < honest
    assert slow.meter.measures().refused_share > 0


def test_what_its_broker_served_from_the_start_is_measured() -> None:
    world = _ran(_trace(owners=["b0"] * 16, steps=2))
    cluster = world.manager._cluster()
    known = [bundle for bundle in cluster.bundles.values() if bundle.stats is not None]
    assert len(known) == 10, "as many as a report has"
    assert not any(item.secondhand for item in known)


def test_a_silent_broker_tells_nothing_new() -> None:
    world = _ran(_trace([TraceEvent(0.0, TraceEventKind.SILENT, "b0", 0.0)], owners=["b0"] * 16, steps=4))
    assert sorted(world._view().loads) == ["b1", "b2", "b3"]


def test_a_bundle_that_is_too_big_is_cut_by_its_owner() -> None:
    name = f"{MENDED},splitting.max_bandwidth_mib=40,splitting.hit_threshold=1"
    owners = [f"b{item % 4}" for item in range(16)]
    outcome = _outcome(_trace(owners=owners, steps=60, factor=lambda _step: 8.0), name)
    assert outcome.measures.splits > 0


def test_a_strategy_that_fails_is_told_and_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("planned")

    monkeypatch.setattr("shedders.shedding.transfer.TransferShedder.plan", broken)
    outcome = _outcome(_trace(owners=["b0"] * 16, steps=12))
    assert outcome.measures.moves == 0
    assert any("planned" in remark and "3 times" in remark for remark in outcome.remarks), outcome.remarks


def test_unloading_costs_more_than_transferring() -> None:
    trace = _trace(owners=["b0"] * 16, steps=60, costs=Costs(transfer_gap_s=0.1, unload_gap_s=1.0), cpu_per_mb=8.0)
    upstream, mended = (_outcome(trace, f"modular/avg+avg@{how}") for how in ("upstream", "recommended"))
    for outcome, gap_s in ((upstream, 1.0), (mended, 0.1)):
        assert outcome.measures.moves
        assert outcome.measures.unavailable_bundle_s == pytest.approx(outcome.measures.moves * gap_s)
        assert outcome.measures.reconnects > 0


UPSTREAM_EXTENSIBLE = "extensible/transfer+least-resource-usage@upstream"
SPLITS = ",splitting.max_bandwidth_mib=40,splitting.hit_threshold=0"
EVENLY = [f"b{item % 4}" for item in range(16)]


def _hot(_step: int) -> float:
    return 8.0


def test_children_that_are_unloaded_are_unserved_for_the_gap_alone() -> None:
    """Not for a whole step: they are looked up within it."""
    costs = Costs(split_gap_s=0.0, transfer_gap_s=0.0, unload_gap_s=1.0)
    outcome = _outcome(_trace(owners=EVENLY, steps=8, factor=_hot, costs=costs), UPSTREAM + SPLITS)
    assert outcome.measures.splits > 0
    children = 2 * outcome.measures.splits
    assert outcome.measures.unavailable_bundle_s == children * 1.0 + outcome.measures.moves * 1.0


def test_children_stay_with_their_owner_under_the_extensible_manager_of_upstream() -> None:
    costs = Costs(split_gap_s=0.25, transfer_gap_s=0.0, unload_gap_s=1.0)
    outcome = _outcome(_trace(owners=EVENLY, steps=8, factor=_hot, costs=costs), UPSTREAM_EXTENSIBLE + SPLITS)
    assert outcome.measures.splits > 0
    assert outcome.measures.unavailable_bundle_s == outcome.measures.splits * 0.25


@pytest.mark.parametrize(("name", "at_once"), [(UPSTREAM, False), (UPSTREAM_EXTENSIBLE, False), (MENDED, True)])
def test_only_our_leader_decides_at_once_after_a_split(name: str, at_once: bool) -> None:
    # The first splits fall between the decisions at 60 and 120 s.
    world = _ran(_trace(owners=EVENLY, steps=9, factor=_hot), f"{name}{SPLITS},balancer.split_interval_s=80")
    assert world.meter.splits > 0
    assert (len(world.decisions_ms) > 2) is at_once


@pytest.mark.parametrize(("name", "remembered"), [(UPSTREAM, False), (UPSTREAM_EXTENSIBLE, False), (MENDED, True)])
def test_what_a_leaving_broker_hands_over_was_not_shed(name: str, remembered: bool) -> None:
    """Pulsar's leader remembers what it has unloaded itself; ours reads in the log what has moved."""
    owners = ["b0"] * 4 + ["b1"] * 12
    world = _ran(_trace([TraceEvent(20.0, TraceEventKind.LEAVE, "b1")], owners=owners, steps=2), name)
    assert bool(world.manager._cluster().recent.bundles) is remembered
    assert bool(world.manager._cluster().recent.brokers) is remembered


def test_a_leaving_broker_unloads_where_the_manager_does() -> None:
    owners = ["b0"] * 4 + ["b1"] * 12
    costs = Costs(transfer_gap_s=0.25, unload_gap_s=1.0)
    world = _ran(_trace([TraceEvent(20.0, TraceEventKind.LEAVE, "b1")], owners=owners, steps=2, costs=costs), UPSTREAM)
    assert world.meter.measures().unavailable_bundle_s == 12 * 1.0


def test_what_pulsars_leader_placed_counts_once() -> None:
    """As on its way or as served, not as both until the next reading."""
    trace = _trace([TraceEvent(60.0, TraceEventKind.CREATE, namespace="t/later")], owners=EVENLY, steps=6)
    world = _ran(trace, UPSTREAM)
    assert world.manager._stale is not None
    at_s, cluster = world.manager._stale
    assert at_s == 100.0, "some were placed at 80 s, the others now"
    served = [
        bundle for bundle in cluster.bundles.values() if bundle.name.startswith("t/later/") and bundle.owner is not None
    ]
    booked = [item for some in world.manager._prebooked.values() for item in some]
    assert served
    assert booked
    assert not {item.name for item in served} & set(booked)
