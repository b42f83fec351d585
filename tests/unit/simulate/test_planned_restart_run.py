"""The contest's rolling restart: our command is simulated where it is planned; Pulsar's managers have none."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from shedders.contest.contenders import contender
from shedders.contest.scenario import load_scenario
from shedders.contest.trace import Trace
from shedders.contest.workload import scenario_trace
from shedders.contest.world import ContestWorld, simulate

END_S = 4_500.0


def restart_trace(*, planned: bool) -> Trace:
    trace = scenario_trace(load_scenario("rolling-restart"), 1)
    assert all(event.planned for event in trace.events if event.what == "leave")
    trace.events = [replace(event, planned=planned and event.planned) for event in trace.events]
    trace.steps = int(END_S // trace.step_s)
    return trace


def played(trace: Trace, who: str) -> ContestWorld:
    world = ContestWorld(trace, contender(who))
    for step in range(trace.steps):
        world.step(step)
    return world


def test_a_planned_restart_hands_each_bundle_over_once_and_the_first_brokers_twice() -> None:
    trace = restart_trace(planned=True)
    bundles = sum(namespace.bundles for namespace in trace.namespaces)
    first = Counter(owner for namespace in trace.namespaces for owner in namespace.owners)["b-1"]
    world = played(trace, "ours")
    measures = world.meter.measures()
    assert bundles <= world.handed_over <= bundles + first + 5, "some may have moved before it began"
    assert measures.moved_share < 0.4
    begun_s = min(event.at_s for event in trace.events)
    ended_s = max(event.at_s for event in trace.events)
    assert not [move for move in world.meter.moves if begun_s <= move.at_s < ended_s], "the balancer holds still"
    without = played(restart_trace(planned=False), "ours")
    assert without.meter.measures().moved_share > 2 * measures.moved_share
    assert without.handed_over > world.handed_over


@pytest.mark.parametrize("who", ["modular/avg+avg@upstream", "extensible/transfer+least-resource-usage@upstream"])
def test_pulsar_knows_of_no_plan(who: str) -> None:
    with_plan, without = (simulate(restart_trace(planned=planned), contender(who)) for planned in (True, False))
    assert with_plan.digest() == without.digest()
