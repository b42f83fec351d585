"""A cluster in virtual time: what happens to it, and what it costs."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from shedders.balancer.settings import BalancerSettings
from shedders.contest.contenders import contender
from shedders.contest.manager import ManagerDecision
from shedders.contest.outcome import RunOutcome
from shedders.contest.trace import Costs, Namespace, Trace, TraceEvent, TraceEventKind, TraceMachine
from shedders.contest.world import ContestWorld, simulate
from shedders.model.cluster import IsolationPolicy, Policies
from tests.support.plain_trace import plain_trace

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
) -> Trace:
    spaces = [Namespace("t/n", 16, owners=owners), Namespace("t/later", 8)]
    if not any(event.what is TraceEventKind.CREATE for event in events):
        spaces.pop()
    rates = [RATES for _ in spaces]
    return plain_trace(MACHINES[:machines], spaces, rates, steps=steps, events=events, **more)  # type: ignore[arg-type]


def _ran(trace: Trace, name: str = MENDED) -> ContestWorld:
    world = ContestWorld(trace, contender(name))
    for step in range(trace.steps):
        world.step(step)
    return world


def _held(world: ContestWorld) -> dict[str, int]:
    return dict(sorted(world._channel.bundle_counts().items()))


def _outcome(trace: Trace, name: str = MENDED) -> RunOutcome:
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
    assert outcome.measures.rounds == 0
    assert outcome.measures.unavailable_bundle_s == children * 1.0
    assert 0 < outcome.measures.moves < children, "those that are placed on another broker are moved"


def test_traffic_of_a_split_is_churn_once() -> None:
    """As moved, where a child is placed on another broker, or as split, where it stays."""
    upstream, stays = (
        _outcome(_trace(owners=EVENLY, steps=5, factor=_hot), name + SPLITS) for name in (UPSTREAM, MENDED)
    )
    for outcome in (upstream, stays):
        assert (outcome.measures.splits, outcome.measures.rounds) == (14, 0)
        assert outcome.measures.reconnects >= 14 * 4 * 3, "the sessions of all their topics"
    assert upstream.measures.moved_share > 0
    assert stays.measures.split_share == stays.measures.churn_share
    assert upstream.measures.churn_share == pytest.approx(stays.measures.churn_share)


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


# --- what live brokers bound ------------------------------------------------------------------------------------------------


def test_no_more_moves_are_under_way_than_live_brokers_have() -> None:
    """A hand-over takes 30 s here: of a decision's moves two begin, and two more each time that they have ended."""
    trace = _trace(owners=["b0"] * 16, steps=30, cpu_per_mb=8.0, costs=Costs(transfer_gap_s=30.0))
    bounded = _outcome(trace, "ours,balancer.moves_at_once=2")
    by_time = Counter(move.at_s for move in bounded.moves)
    assert len(bounded.moves) > 4
    assert max(by_time.values()) == 2
    for begun_s in by_time:
        assert sum(number for at_s, number in by_time.items() if begun_s - 30.0 < at_s <= begun_s) <= 2 + 2
    assert max(Counter(move.at_s for move in _outcome(trace, "ours,balancer.moves_at_once=100").moves).values()) > 2
    assert ContestWorld(trace, contender("ours")).manager.moves_at_once == BalancerSettings().moves_at_once
    assert ContestWorld(trace, contender(UPSTREAM)).manager.moves_at_once is None


def test_a_move_that_waited_for_too_long_is_not_made() -> None:
    """It is no longer booked, so the next decision does not count it any more."""
    trace = _trace(owners=["b0"] * 16, steps=30, cpu_per_mb=8.0, costs=Costs(transfer_gap_s=600.0))
    outcome = _outcome(trace, "ours,balancer.moves_at_once=1,balancer.move_timeout_s=100")
    assert len(outcome.moves) == 1


def test_a_decision_asks_for_no_more_splits_than_live_brokers_do_at_once() -> None:
    def splits_at(name: str) -> list[int]:
        world = ContestWorld(_trace(owners=["b0"] * 16, steps=12), contender(name))
        monkey = ManagerDecision((), sorted(world._table.names), 0.0)
        world.manager.decide = lambda: monkey  # type: ignore[method-assign]
        counts = []
        for step in range(8):
            before = world.meter.splits
            world.step(step)
            counts.append(world.meter.splits - before)
        return counts

    assert max(splits_at(MENDED)) == BalancerSettings().splits_at_once
    assert max(splits_at(f"{MENDED},balancer.splits_at_once=2")) == 2
    assert max(splits_at(f"{MENDED},balancer.splits_at_once=0")) == 0
    assert max(splits_at(f"{MENDED},balancer.splitting=false")) == 0


# --- direct memory, wrong limits, policies ----------------------------------------------------------------------------------


def test_direct_memory_fills_brokers_as_anything_else() -> None:
    """12,288 MiB wanted on one of four brokers with 8,192 each: overloaded, refused, and the bound of all four."""
    rate = sum(RATES)
    trace = _trace(owners=["b0"] * 16, steps=4, memory_per_mb=12_288e6 / rate)
    world = _ran(trace)
    measures = world.meter.measures()
    assert world.meter.series().loads["b0"][1] == pytest.approx(1.5)
    assert measures.max_over_bound == pytest.approx(4.0, rel=0.01)
    assert measures.overloaded_broker_s == 4 * 20
    assert measures.refused_share == pytest.approx(1 / 3, rel=0.01)
    told = world._view().loads["b0"].load
    assert told.direct_memory.percent == pytest.approx(100.0)


def test_a_broker_whose_network_is_slower_than_it_says_is_full_in_that_alone() -> None:
    slow = TraceEvent(0.0, TraceEventKind.SLOW, "b0", 0.1, resources=("bandwidth-out",))
    quick, wrong = (_ran(_trace(events, owners=EVENLY, steps=4)) for events in ((), (slow,)))
    use, _ = quick._loads()
    rows = quick._capacity.real_use(use)[:, 0] / quick._capacity.rows[:, 0]
    assert wrong.meter.series().loads["b0"][2] == pytest.approx(max(rows[0], rows[1], 10 * rows[2], rows[3]))
    assert wrong._view().loads["b0"].load.bandwidth_out.limit == MACHINES[0].bandwidth_out_kbit, "what it promises"


ZONES = Policies(
    isolation=(IsolationPolicy("near", ("t/n",), ("b0", "b1"), ("b2",), 2),), pins={"t/n/0x00000000_0x10000000": "b1"}
)


@pytest.mark.parametrize("name", [MENDED, "ours", UPSTREAM, UPSTREAM_EXTENSIBLE])
def test_policies_bind_all_contenders(name: str) -> None:
    world = _ran(_trace(steps=20, policies=ZONES, cpu_per_mb=8.0), name)
    assert set(_held(world)) == {"b0", "b1"}
    pinned = world._table.number["t/n/0x00000000_0x10000000"]
    assert world._names[int(world._table.owner[pinned])] == "b1"
    assert world.meter.measures().misplaced_bundle_s == 0


def test_bundles_where_policies_forbid_them_are_counted() -> None:
    world = _ran(_trace(steps=1, policies=ZONES, owners=["b0"] * 14 + ["b2", "b3"]))
    # Those two, and the pinned one, which is on b0.
    assert world.meter.measures().misplaced_bundle_s == 3 * 20.0


def test_secondaries_are_allowed_where_too_few_primaries_are_alive() -> None:
    lost = TraceEvent(0.0, TraceEventKind.LOST, "b0")
    world = _ran(_trace([lost], steps=2, policies=ZONES, owners=["b1"] * 14 + ["b2"] * 2))
    assert world.meter.measures().misplaced_bundle_s == 0
    assert set(_held(world)) == {"b1", "b2"}


def test_balance_is_of_each_part_that_policies_divide_the_brokers_into() -> None:
    """b0 and b1 share what they may have evenly; that b2 and b3 may have none of it is no unevenness."""
    owners = [f"b{item % 2}" for item in range(16)]
    apart = Policies(isolation=(IsolationPolicy("near", ("t/n",), ("b0", "b1")),))
    free, divided = (_ran(_trace(steps=3, owners=owners, policies=some)) for some in (Policies(), apart))
    _, loads = divided._loads()
    assert divided.meter.measures().max_over_mean == pytest.approx(loads[:2].max() / loads[:2].mean())
    assert free.meter.measures().max_over_mean == pytest.approx(loads.max() / loads.mean())
    assert divided.meter.measures().max_over_bound < free.meter.measures().max_over_bound
    whole = divided._capacity.even_load(divided._bundle_demand, np.array([0, 1]))
    assert divided.meter.measures().max_over_bound == pytest.approx(loads[:2].max() / whole)


def test_a_pin_makes_the_bound_that_of_its_broker() -> None:
    """Half of the load has to be on one of four brokers."""
    pinned = {f"t/n/0x{item << 28:08x}_0x{(item + 1) << 28:08x}": "b0" for item in range(8)}
    owners = ["b0"] * 8 + ["b1", "b2", "b3"] * 2 + ["b1", "b2"]
    world = _ran(_trace(steps=3, owners=owners, policies=Policies(pins=pinned)))
    assert world.meter.measures().max_over_bound == pytest.approx(1.0, rel=0.001)
    assert world.meter.measures().misplaced_bundle_s == 0
