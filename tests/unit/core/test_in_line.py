"""Bundles in line to be assigned: in an order of each broker's own, and few at once."""

from collections import Counter

import pytest

from statechannel.engine.commands import Lookup, Outcome, Owned
from statechannel.engine.lookups import InLine
from tests.unit.core.test_floods import leader, ring

BUNDLES = [f"t/n/0x{number:08x}_0x{number + 1:08x}" for number in range(500)]


def order(salt: str, names: list[str]) -> list[str]:
    line = InLine(salt)
    for name in names:
        line.add(name)
    return [name for name in iter(line.take, None) if name is not None]


def test_each_has_its_turn_once_whatever_the_order_of_coming() -> None:
    assert sorted(order("i1", [*BUNDLES, *BUNDLES])) == BUNDLES
    assert order("i1", BUNDLES) == order("i1", BUNDLES[::-1])


def test_two_processes_begin_elsewhere() -> None:
    result, other = order("01M80G4K19TYFTZ54RFRG10NTD", BUNDLES), order("01M80G4W370G63F5AF1NSK1Z3C", BUNDLES)
    assert len(set(result[:50]) & set(other[:50])) < 20


def test_who_is_dropped_has_no_turn_and_leaves_nothing() -> None:
    line = InLine("i1")
    for name in BUNDLES:
        line.add(name)
    for name in BUNDLES[:499]:
        line.drop(name)
    assert len(line) == 1
    assert len(line._line) < 100
    assert line.take() == BUNDLES[499]
    assert line.take() is None


@pytest.mark.parametrize("assigning_max", [1, 7, 64])
def test_no_more_assignments_are_begun_than_may_be_and_all_end(assigning_max: int) -> None:
    engine, outcomes = leader(assigning_max=assigning_max), list[Outcome]()
    bundles = ring(engine, 300)
    engine.hold = True
    for bundle in bundles:
        engine.ask(Lookup(bundle, 60.0), outcomes.append)
    assert len(engine.engine.lookups.assigning) == assigning_max
    engine.hold = False
    engine.let_through()
    engine.run(20)
    assert Counter(type(outcome) for outcome in outcomes) == {Owned: 300}


def test_who_lost_patience_is_not_assigned() -> None:
    engine, outcomes = leader(assigning_max=1), list[Outcome]()
    bundles = ring(engine, 3)
    engine.hold = True
    for bundle in bundles:
        engine.ask(Lookup(bundle, 1.0), outcomes.append)
    engine.run(2)
    assert len(outcomes) == 3
    engine.hold = False
    engine.let_through()
    engine.run(2)
    assert sum(key.owner is not None for key in engine.engine.replicas[0].view.live() if key.namespace == "t/m") == 1
