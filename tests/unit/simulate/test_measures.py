"""Measures, by hand."""

import numpy as np
import pytest

from shedders.contest.bundles import BundleTable, ContestChannel, bounds_of
from shedders.contest.measures import MachineCapacity, Meter
from shedders.contest.outcome import Measures
from shedders.contest.trace import Demand, Namespace, TraceMachine, Units
from shedders.contest.zones import PolicyZones
from shedders.model.cluster import Policies
from tests.support.plain_trace import plain_trace

MACHINES = [
    TraceMachine("b0", cores=2, bandwidth_in_kbit=8e3, bandwidth_out_kbit=8e3, idle_percent=10),
    TraceMachine("b1", cores=4, bandwidth_in_kbit=16e3, bandwidth_out_kbit=16e3, idle_percent=10),
]
ALIVE = np.array([0, 1])


def _demand(cpu: list[float], size: list[float]) -> np.ndarray:
    rows = np.zeros((6, len(cpu)))
    rows[2], rows[3], rows[4] = size, size, cpu
    return rows


def _memory(mib: list[float]) -> np.ndarray:
    rows = np.zeros((6, len(mib)))
    rows[5] = mib
    return rows


def test_a_load_is_the_fullest_resource_of_the_real_machine() -> None:
    capacity = MachineCapacity(MACHINES)
    use = _demand([100.0, 100.0], [2e5, 1.6e6])
    # b0: CPU (20 + 100) / 200, network 0.2 of 1 MB/s; b1: CPU (40 + 100) / 400, network 1.6 of 2 MB/s.
    assert capacity.loads(use) == pytest.approx([0.6, 0.8])
    capacity.slow_down(1, 0.5)
    assert capacity.loads(use) == pytest.approx([0.6, 1.6])
    capacity.slow_down(1, 1.0)
    assert capacity.loads(use) == pytest.approx([0.6, 0.8])
    assert capacity.loads(_memory([2_048.0, 6_144.0])) == pytest.approx([0.25, 0.75])
    capacity.slow_down(1, 0.5)
    assert capacity.loads(_memory([2_048.0, 6_144.0])) == pytest.approx([0.25, 0.75]), "memory is not slow"
    capacity.slow_down(1, 0.5, ["direct-memory"])
    assert capacity.loads(_memory([2_048.0, 6_144.0])) == pytest.approx([0.25, 1.5])


def _bound(topics: np.ndarray, alive: np.ndarray = ALIVE) -> float:
    """The bound of topics that lie evenly on the ring of a namespace with two bundles."""
    count = topics.shape[1]
    positions = np.arange(count, dtype=np.int64) * (2**32 // count)
    table = BundleTable(Units(np.zeros(count, dtype=np.int64), positions, np.ones(count, dtype=np.int64)))
    table.add_namespace(0, ContestChannel().create("t/n", bounds_of(2, ())))
    zones = PolicyZones(Policies(), ["b0", "b1"], table)
    [(brokers, bound)] = zones.parts(
        table.demand(Demand(*topics)),
        alive,
        MachineCapacity(MACHINES),
        lambda bundles: topics[:, table.units_in(bundles)],
    )
    assert brokers.tolist() == alive.tolist()
    return bound


def test_the_bound_is_the_whole_or_the_largest_topic_however_bundles_are_split() -> None:
    # CPU: 60 idle + 240 wanted, of 600; network: 0.3 of 3 MB/s.
    assert _bound(_demand([120.0, 120.0], [1.5e5, 1.5e5])) == pytest.approx(0.5)
    # One topic of 1.4 MB/s: on b1 it takes 0.7, on b0 1.4; as two topics of a bundle it can be split.
    assert _bound(_demand([0.0, 0.0], [1.4e6, 1e5])) == pytest.approx(0.7)
    assert _bound(_demand([0.0, 0.0], [1.4e6, 1e5]), np.array([0])) == pytest.approx(1.5)
    assert _bound(_demand([0.0] * 4, [0.8e6, 0.6e6, 5e4, 5e4])) == pytest.approx(0.5)
    # Direct memory: 12,288 of 16,384 MiB, or a topic of 10,000 on a broker of 8,192.
    assert _bound(_memory([6_144.0, 6_144.0])) == pytest.approx(0.75)
    assert _bound(_memory([10_000.0, 0.0])) == pytest.approx(10_000 / 8_192)


def _meter(steps: int, **more: object) -> Meter:
    trace = plain_trace(MACHINES, [Namespace("t/n", 1)], [[1.0]], steps=steps, step_s=60.0, **more)  # type: ignore[arg-type]
    return Meter(trace, ["b0", "b1"])


def _step(meter: Meter, first: float, second: float, bound: float = 0.5) -> None:
    meter.step(np.array([first, second]), [(ALIVE, bound)], 100.0, 5.0, 1.0, 0)


def test_balance_is_judged_in_its_spans_and_all_else_everywhere() -> None:
    meter = _meter(4, judged=[(60.0, 180.0)])
    for first, second in ((0.9, 0.1), (0.6, 0.4), (0.5, 0.5), (0.9, 0.1)):
        _step(meter, first, second)
    measures = meter.measures()
    assert measures.max_over_mean == pytest.approx(1.1)
    assert measures.max_over_bound == pytest.approx(1.1)
    assert measures.std == pytest.approx(0.05)
    assert measures.overloaded_broker_s == 120.0
    assert measures.refused_share == pytest.approx(0.05)
    assert measures.unavailable_share == pytest.approx(0.01)


def test_a_return_is_a_move_to_where_it_was_within_half_an_hour() -> None:
    meter = _meter(90)
    for at_s, source, destination in ((0, "b0", "b1"), (600, "b1", "b0"), (5_000, "b0", "b1"), (5_100, "b1", "b2")):
        meter.record_move(float(at_s), "x", source, destination, 0.1, "")
    assert meter.returns == 1, "at 5,000 s it had left b1 for 4,400 s"
    meter.record_split("x", ["y"])
    meter.record_move(5_200.0, "y", "b2", "b1", 0.1, "")
    assert meter.returns == 2, "a child was where its parent was"


def test_load_that_only_went_back_is_measured_in_three_windows() -> None:
    meter = _meter(2_000)
    _step(meter, 0.5, 0.5)
    hour_s = 3_600.0
    for at_s, bundle, source, destination, share in (
        (0.0, "x", "b0", "b1", 0.4),
        (0.9 * hour_s, "x", "b1", "b0", 0.1),  # within an hour
        (5.0 * hour_s, "x", "b0", "b1", 0.2),  # it had left b1 4.1 hours before
        (30.0 * hour_s, "x", "b1", "b0", 0.1),  # it had left b0 25 hours before
        (31.0 * hour_s, "y", "b0", "b1", 0.2),
    ):
        meter.record_move(at_s, bundle, source, destination, share, "")
    measures = meter.measures()
    assert measures.moved_share == pytest.approx(1.0)
    shares = (measures.returned_share_1h, measures.returned_share_6h, measures.returned_share_24h)
    assert shares == pytest.approx((0.1, 0.3, 0.3))
    assert (measures.returned_moves_1h, measures.returned_moves_6h, measures.returned_moves_24h) == (1, 2, 2)
    meter.record_split("y", ["y1", "y2"])
    meter.record_move(31.5 * hour_s, "y2", "b1", "b0", 1.0, "")
    assert meter.measures().returned_share_1h == pytest.approx(1.1 / 2), "a child was where its parent was"


def test_a_bundle_that_nothing_returns_has_no_share() -> None:
    assert _measures_of_nothing().returned_share_24h == 0


def _measures_of_nothing() -> Measures:
    meter = _meter(3)
    _step(meter, 0.5, 0.5)
    return meter.measures()


def test_splits_are_churn_beside_what_is_moved() -> None:
    meter = _meter(3)
    _step(meter, 0.5, 0.5)
    meter.record_move(0.0, "x", "b0", "b1", 0.25, "")
    meter.record_split("y", ["y1", "y2"])
    meter.record_split_off(0.5, 12)
    measures = meter.measures()
    assert (measures.moved_share, measures.split_share, measures.churn_share) == (0.25, 0.5, 0.75)
    assert (measures.splits, measures.reconnects) == (1, 12)


def test_of_several_parts_the_worst_counts() -> None:
    meter = _meter(1, judged=[(0.0, 60.0)])
    parts = [(np.array([0]), 0.2), (np.array([1]), 0.5)]
    meter.step(np.array([0.3, 0.6]), parts, 100.0, 0.0, 0.0, 0, misplaced=4)
    measures = meter.measures()
    assert measures.max_over_mean == 1.0
    assert measures.max_over_bound == pytest.approx(1.5)
    assert measures.misplaced_bundle_s == 4 * 60.0


def test_settled_is_five_good_minutes() -> None:
    meter = _meter(20, disturbances=[0.0, 600.0])
    for step in range(20):
        good = 3 <= step < 10 or step >= 12
        _step(meter, 0.54 if good else 0.7, 0.4)
    meter.rounds_s += [60.0, 120.0, 240.0, 660.0]
    measures = meter.measures()
    assert measures.settle_s == 180.0
    assert measures.rounds_to_settle == 2
    never = _meter(20)
    for step in range(20):
        _step(never, 0.7 if step % 5 == 0 else 0.5, 0.5)
    assert never.measures().settle_s is None


def test_long_runs_keep_the_worst_of_each_stretch() -> None:
    meter = _meter(1_440)
    for step in range(1_440):
        _step(meter, 0.9 if step == 701 else 0.5, 0.5)
    series = meter.series()
    assert len(series.at_s) == 720
    assert 701 * 60.0 in series.at_s
    assert series.loads["b0"][350] == 0.9


@pytest.mark.parametrize(("alive", "loads"), [([], [0.5, 0.5]), ([0, 1], [0.0, 0.0])])
def test_where_nothing_can_be_balanced_nothing_is_judged(alive: list[int], loads: list[float]) -> None:
    """Nobody there, or no load at all: as even as can be, and a number."""
    meter = _meter(2, judged=[(0.0, 120.0)])
    _step(meter, 0.75, 0.25)
    meter.step(np.array(loads), [(np.array(alive, dtype=np.int64), 0.0)], 0.0, 0.0, 0.0, 0)
    measures = meter.measures()
    assert measures.max_over_mean == pytest.approx((1.5 + 1.0) / 2)
    assert measures.max_over_bound == pytest.approx((1.5 + 1.0) / 2)
    assert measures.bound_over_mean == pytest.approx(1.0)
