"""Traces of snapshots: the brokers' reports come out again, however the bundles' figures are known."""

import numpy as np
import orjson
import pytest

from shedders.contest.contenders import contender
from shedders.contest.snapshot_trace import from_snapshot, places
from shedders.contest.world import simulate
from shedders.model.cluster import Cluster
from shedders.snapshots.cluster import snapshot_of
from shedders.snapshots.file import SnapshotError, parse_snapshot

HALF = 0x80000000


def report(cpu=412.0, **rates):
    return {
        "cpu": {"usage": cpu, "limit": 400.0},
        "direct_memory": {"usage": 100.0, "limit": 1_000.0},
        "bandwidth_in": {"usage": 1.0, "limit": 5e6},
        "bandwidth_out": {"usage": 1.0, "limit": 5e6},
        **rates,
    }


def rates(amount):
    return {
        "msg_rate_in": amount,
        "msg_rate_out": 2 * amount,
        "msg_throughput_in": 100 * amount,
        "msg_throughput_out": 200 * amount,
    }


def snapshot(bundles, brokers=None):
    value = {
        "kind": "statechannel-snapshot",
        "format": 1,
        "brokers": brokers or {"b1": {"load": report(**rates(40.0)), "domain": "d1"}, "b2": {}},
        "bundles": bundles,
    }
    return parse_snapshot(orjson.dumps(value))


def both(lower, upper):
    return {"t/a/0x00000000_0x80000000": lower, "t/a/0x80000000_0xffffffff": upper}


def in_halves(trace, values):
    lower = trace.units.position < HALF
    return [float(values[lower].sum()), float(values[~lower].sum())]


def test_figures_by_hand():
    """b1 uses 412 of 400 points, 12 of which are idle: 400, of which the bundles have 3 of 4 and 1 of 4."""
    trace = from_snapshot(
        snapshot(
            both(
                {"owner": "b1", "stats": rates(30.0) | {"producers": 80, "consumers": 80}},
                {"owner": "b1", "stats": rates(10.0)},
            )
        )
    )
    assert [machine.name for machine in trace.machines] == ["b1", "b2"]
    assert (trace.machines[0].cores, trace.machines[0].bandwidth_in_kbit, trace.machines[0].domain) == (4, 5e6, "d1")
    assert trace.namespaces[0].owners == ("b1", "b1")
    assert in_halves(trace, trace.base.msg_rate_in) == pytest.approx([30, 10])
    assert in_halves(trace, trace.base.msg_throughput_out) == pytest.approx([6_000, 2_000])
    assert in_halves(trace, trace.base.cpu) == pytest.approx([300, 100])
    assert in_halves(trace, trace.base.direct_memory_mib) == pytest.approx([75, 25])
    assert in_halves(trace, trace.units.sessions) == [160, 16]
    assert trace.units.position[:8].tolist() == places(0, HALF)
    assert any("b2 reported nothing" in remark for remark in trace.remarks)


def test_bundles_without_figures_share_the_rest():
    trace = from_snapshot(snapshot(both({"owner": "b1", "stats": rates(30.0)}, {"owner": "b1"})))
    assert in_halves(trace, trace.base.msg_rate_in) == pytest.approx([30, 10])
    assert in_halves(trace, trace.base.cpu) == pytest.approx([300, 100])
    assert any("b1 has 1 bundles without figures" in remark for remark in trace.remarks)


def test_averages_count_where_nothing_is_known_of_the_moment():
    trace = from_snapshot(
        snapshot(
            both(
                {"owner": "b1", "short": rates(30.0) | {"samples": 3}, "long": rates(99.0) | {"samples": 9}},
                {"owner": "b1", "long": rates(10.0) | {"samples": 9}},
            )
        )
    )
    assert in_halves(trace, trace.base.msg_rate_in) == pytest.approx([30, 10])


def test_known_topics_are_units_and_the_rest_is_spread():
    topics = [{"name": "persistent://t/a/x", "position": 5, **rates(21.0)}]
    trace = from_snapshot(
        snapshot(both({"owner": "b1", "stats": rates(30.0), "topics": topics}, {"owner": "b1", "stats": rates(10.0)}))
    )
    place = np.flatnonzero(trace.units.position == 5)
    assert trace.base.msg_rate_in[place].tolist() == [21]
    assert trace.base.cpu[place] == pytest.approx([210])
    assert in_halves(trace, trace.base.msg_rate_in) == pytest.approx([30, 10])
    assert in_halves(trace, trace.base.cpu) == pytest.approx([300, 100])


def test_gaps_and_owners_that_are_gone():
    value = snapshot({"t/a/0x80000000_0xffffffff": {"owner": None, "stats": rates(1.0)}})
    trace = from_snapshot(value)
    assert trace.namespaces[0].bounds == (0, HALF, 0xFFFFFFFF)
    assert trace.namespaces[0].owners == (None, None)
    assert any("1 parts of rings" in remark for remark in trace.remarks)
    # 75 us a message in both directions: nobody says better.
    assert trace.base.cpu.sum() == pytest.approx(3 * 25e-6 * 100)


def test_nothing_to_simulate_is_refused():
    with pytest.raises(SnapshotError, match="at least one broker and one bundle"):
        from_snapshot(snapshot_of(Cluster({}, {})))


def test_it_goes_on_with_noise_and_can_be_run():
    some = {"owner": "b1", "stats": rates(20.0)}
    trace = from_snapshot(snapshot(both(some, some)), hours=0.5)
    assert trace.steps == 90
    assert trace.demand(30).cpu.sum() == pytest.approx(400, rel=0.15)
    assert not np.array_equal(trace.demand(30).cpu, trace.demand(31).cpu)
    outcome = simulate(trace, contender("extensible/transfer+least-resource-usage@recommended"))
    assert outcome.measures.max_over_mean > 1


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [
        (0, 64, [4, 12, 20, 28, 36, 44, 52, 60]),
        (0, 2, [0, 1]),
        (7, 8, [7]),
        (0xFFFFFFFE, 0xFFFFFFFF, [0xFFFFFFFE, 0xFFFFFFFF]),
    ],
)
def test_places_lie_inside(lower, upper, expected):
    assert places(lower, upper) == expected
