"""Handing over ahead of the end: what later requests change."""

from statechannel.engine.commands import Done, Lookup, Outcome, PreStop
from tests.support.lone_engine import LoneEngine
from tests.unit.core.test_floods import leader, ring


def owner_of_one() -> tuple[LoneEngine, str]:
    alone = leader()
    (name,) = ring(alone, 1)
    alone.ask(Lookup(name, 60.0), lambda _: None)
    assert alone.engine.key(name).owner == "a"  # type: ignore[union-attr]
    alone.hear("z")
    return alone, name


def test_a_shorter_notice_counts_at_once() -> None:
    alone, name = owner_of_one()
    first: list[Outcome] = []
    second: list[Outcome] = []
    alone.ask(PreStop(60.0, 50.0), first.append)
    alone.run(1)
    assert alone.engine.key(name).owner == "a"  # type: ignore[union-attr]
    alone.ask(PreStop(5.0, 0.0), second.append)
    alone.run(1)
    assert alone.engine.key(name).owner != "a"  # type: ignore[union-attr]
    assert [outcome.result for outcome in first + second if isinstance(outcome, Done)] == ["handed-over"] * 2


def test_a_longer_notice_defers_nothing() -> None:
    alone, name = owner_of_one()
    outcomes: list[Outcome] = []
    alone.ask(PreStop(5.0, 1.0), lambda _: None)
    alone.ask(PreStop(4.0, 100.0), outcomes.append)
    alone.run(2)
    assert alone.engine.key(name).owner != "a"  # type: ignore[union-attr]
    alone.run(3)
    assert [type(outcome) for outcome in outcomes] == [Done]
