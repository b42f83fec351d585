"""The trace of a live cluster with load that is made up: the simulator is told what the brokers measure."""

from __future__ import annotations

import pytest

from loaddata.measure.synthetic import SimulatedSettings
from shedders.contest.contenders import contender
from shedders.contest.trace import Namespace, Trace
from shedders.contest.world import ContestWorld, simulate
from statechannel.protocol.bundle import bundle_key, namespace_bounds
from tests.support.predictions import synthetic_trace

SETTINGS = SimulatedSettings(topics=50, msg_rate=60, heavy=20, hot_namespace="t/hot", hot_from_s=1_060.0, wave=0.1)
BROKERS = ["b1", "b2", "b3"]
OWNERS = {"t/hot": ["b1"] * 8, "t/cold": ["b2", "b3"] * 4}

QUICK = "ours,balancer.interval_s=5,load.measure_interval_s=1,shedding.weighted-move.payback_min=0.2"
"""Ours, ten times as fast as usual."""


def trace(steps: int = 240) -> Trace:
    return synthetic_trace(
        SETTINGS,
        3,
        brokers=BROKERS,
        namespaces=[Namespace(name, 8, owners=owners) for name, owners in OWNERS.items()],
        begin_s=1_000.0,
        steps=steps,
        step_s=1.0,
        disturbed_s=[60.0],
    )


@pytest.mark.parametrize("step", [0, 59, 60, 200])
def test_brokers_measure_in_the_simulator_what_they_measure_live(step: int) -> None:
    """Before anything has moved: usage of each machine as `SimulatedHost` reads it, and what it serves."""
    result = trace()
    world = ContestWorld(result, contender("ours"))
    served: dict[str, list[str]] = {name: [] for name in BROKERS}
    for namespace, owners in OWNERS.items():
        bounds = namespace_bounds(8)
        for owner, lower, upper in zip(owners, bounds[:-1], bounds[1:], strict=True):
            served[owner].append(bundle_key(namespace, lower, upper))
    world._unit_demand = result.demand(step)
    world._bundle_demand = world._table.demand(world._unit_demand)
    _, loads = world._loads()
    for number, name in enumerate(BROKERS):
        _, host = SETTINGS.source(3, lambda name=name: served[name], lambda: 1_000.0 + step)  # type: ignore[misc]
        usage = host.read(0.0)
        live = max(usage.cpu.percent, usage.bandwidth_in.percent, usage.bandwidth_out.percent) / 100
        assert loads[number] == pytest.approx(live, rel=1e-4), name


def test_it_answers_the_same_in_whatever_order_it_is_asked() -> None:
    result, other = trace(), trace()
    late = result.demand(100)
    assert [list(row) for row in result.demand(3)] == [list(row) for row in other.demand(3)]
    assert [list(row) for row in other.demand(100)] == [list(row) for row in late]


def test_a_hot_spot_is_balanced_in_the_simulator() -> None:
    results = [simulate(trace(), contender(QUICK)) for _ in range(2)]
    assert results[0].digest() == results[1].digest()
    assert results[0].remarks == []
    loads = [[series[at] for series in results[0].series.loads.values()] for at in (62, -1)]
    assert max(loads[0]) - min(loads[0]) > 2 * (max(loads[1]) - min(loads[1]))  # type: ignore[type-var,operator]
    assert results[0].moves
    assert results[0].measures.returns == 0
