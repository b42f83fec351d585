"""Small scopes of the search without a violation, planted bugs that it finds, and what the search itself stands on."""

from __future__ import annotations

from random import Random

import pytest

from statechannel.engine.config import EngineConfig, Identity
from statechannel.engine.engine import Engine
from statechannel.engine.inputs import Tick
from tests.interleavings.automaton import Automaton, digest_of, now_at
from tests.interleavings.cluster import Cluster
from tests.interleavings.flows import FLOWS, start_of
from tests.interleavings.search import Case, explore, run_case
from tests.interleavings.state import Danger

WHOLE = [
    ("transfer", "none"),
    ("transfer", "late"),
    ("transfer-fine", "none"),
    ("transfer-of-leader", "none"),
    ("transfer-among-three", "none"),
    ("unload", "late"),
    ("split", "late"),
    ("split-by-leader", "seat"),
    ("shutdown", "none"),
]
"""Searched to their end."""
CUT = [
    ("transfer", "death"),
    ("split", "death"),
    ("split", "rejoin"),
    ("split-with-lease", "cut"),
    ("loss", "sleep"),
    ("loss-with-lease", "sleep"),
    ("cold-start", "none"),
    ("waking-behind-a-cold-start", "cut"),
]
CUT_STATES = 200
"""Of these only the beginning; `python -m tests.interleavings` goes on."""


@pytest.mark.parametrize(("flow", "scope"), WHOLE)
def test_nothing_goes_wrong_in_any_order(flow: str, scope: str) -> None:
    search = run_case(Case(flow, scope)).search
    assert search.violation == ""
    assert search.complete
    assert search.calm > 0


@pytest.mark.parametrize(("flow", "scope"), CUT)
def test_nothing_goes_wrong_in_the_orders_that_come_first(flow: str, scope: str) -> None:
    search = run_case(Case(flow, scope, CUT_STATES)).search
    assert search.violation == ""
    assert search.states == CUT_STATES


@pytest.mark.parametrize(
    ("bug", "flow", "scope"),
    [
        ("no-assert-paid", "transfer", "late"),
        ("resumed-at-the-same-generation", "transfer", "death"),
        ("source-serves-on", "loss", "sleep"),
        ("lease-ignored", "loss-with-lease", "cut"),
        ("hook-deadline-ignored", "unload", "hang"),
        ("parts-let-go-in-a-split", "split", "rejoin"),
        ("released-in-doubt", "waking-behind-a-cold-start", "cut"),
    ],
)
def test_a_planted_bug_is_found(bug: str, flow: str, scope: str) -> None:
    search = run_case(Case(flow, scope, 3_000, bug)).search
    assert search.violation


def test_dangerous_moments_are_counted() -> None:
    seen = run_case(Case("transfer", "late")).search.seen
    assert seen[Danger.LATE_ACCEPTED] > 0
    assert seen[Danger.LATE_OWED] > 0
    assert seen[Danger.OLD_OWNER] == 0


def test_states_of_an_engine_are_told_apart_by_what_is_in_them() -> None:
    """A pickled and restored engine is the same state; one that has seen time pass is another."""

    def make() -> Engine:
        return Engine(Identity("a", "a-1", b"0123456789", 1_000), EngineConfig())

    engine = make()
    before = digest_of(engine)
    assert before == digest_of(make())
    automaton = Automaton()
    number = automaton.add(engine)
    automaton.take(number)
    assert digest_of(automaton.take(number)) == before, "the second is made of the pickle"
    moved = make()
    moved.step(now_at(1.0), Tick())
    assert digest_of(moved) != before


@pytest.mark.parametrize("flow", ["transfer-fine", "split-fine"])
def test_a_state_has_the_same_future_on_whatever_way_it_was_reached(flow: str) -> None:
    """What the search merges: engines that live on by themselves, in random orders, end in states that it has met."""
    start = start_of(FLOWS[flow], "none")
    search = explore(start, keep=True)
    rng = Random(5)
    for _ in range(20):
        cluster = Cluster(start.automaton, start.setting, start.state)
        for slot in list(cluster.alive()):
            cluster.live[slot] = start.automaton.take(cluster.processes[slot].state)
        while moves := [*cluster.moves(), *cluster.periods()]:
            rng.choice(moves).act(cluster)
        assert cluster.freeze() in search.reached
