"""A departure while a partition is joined anew: it waits for it, and says no more than it knows."""

import pytest

from statechannel.engine.commands import Done, Lookup, Outcome, Rejected, Shutdown
from statechannel.protocol.states import State
from tests.support.lone_engine import BUNDLE, CREATED, NAMESPACE, LoneEngine


def owner() -> LoneEngine:
    """It serves one bundle, and `b` could take it."""
    engine, outcomes = LoneEngine([(NAMESPACE, CREATED, 1000)]), list[Outcome]()
    engine.run(8)
    engine.ask(Lookup(BUNDLE.decode(), 10.0), outcomes.append)
    assert engine.engine.serving() == {BUNDLE.decode(): 3}
    engine.hear("b")
    return engine


def rejoin(engine: LoneEngine) -> None:
    """It begins to join anew, and comes no further."""
    engine.away = True
    engine.between_steps(lambda: engine.engine.transitions.start_over(0, "a gap"))
    engine.run(0.1)
    assert not engine.engine.caught_up


def leave(engine: LoneEngine, budget_s: float) -> list[Outcome]:
    outcomes: list[Outcome] = []
    engine.ask(Shutdown(budget_s), outcomes.append)
    return outcomes


def hear_b(engine: LoneEngine, seconds: int) -> None:
    for _ in range(seconds):
        engine.hear("b")
        engine.run(1)


def test_a_bundle_is_handed_over_once_the_partition_is_joined() -> None:
    engine = owner()
    rejoin(engine)
    outcomes = leave(engine, 60.0)
    hear_b(engine, 5)
    assert outcomes == []
    assert engine.events.count("shutdown.began") == 1
    engine.away = False
    hear_b(engine, 2)
    assert [type(outcome) for outcome in outcomes] == [Done]
    view = engine.engine.replicas[0].view
    assert [(key.state, key.from_, key.to) for key in view.live()] == [(State.ASSIGNING, "a", "b")]


@pytest.mark.parametrize("again", [False, True])
def test_what_is_left_at_the_deadline_is_counted_and_said(again: bool) -> None:
    engine = owner()
    rejoin(engine)
    outcomes = leave(engine, 3.0)
    if again:
        engine.reopen()
    hear_b(engine, 2)
    assert outcomes == []
    hear_b(engine, 2)
    (answer,) = outcomes
    assert isinstance(answer, Rejected)
    assert answer.reason == "shutdown-late"
    assert answer.message.startswith("1 bundles, and what else")
    assert "was being joined" in answer.message
    assert engine.engine.stopped.reason == "shutdown-late"


def test_a_partition_that_is_read_no_further_is_not_waited_for() -> None:
    engine = owner()
    engine.put(BUNDLE, b'{"format":9}')
    outcomes = leave(engine, 60.0)
    hear_b(engine, 1)
    assert [(type(outcome), getattr(outcome, "reason", "")) for outcome in outcomes] == [(Rejected, "shutdown-late")]


def test_who_never_was_caught_up_leaves_at_once() -> None:
    engine = LoneEngine([(NAMESPACE, CREATED, 1000)] * 5, first=4)
    engine.run(2)
    assert not engine.engine.caught_up
    outcomes = leave(engine, 60.0)
    engine.run(1)
    assert [type(outcome) for outcome in outcomes] == [Done]


def test_a_bundle_is_handed_over_while_another_partition_was_never_joined() -> None:
    records = [(key, value and value.replace(b'"a-1"', b'"a-0"'), 1000) for key, value, _ in owner().channel]
    records = [(key, value and value.replace(b'"partitions":1', b'"partitions":2'), ms) for key, value, ms in records]
    engine = LoneEngine(records, partitions=2)
    engine.run(8)
    assert engine.engine.serving() == {BUNDLE.decode(): 4}, "it resumed what its predecessor had"
    engine.hear("b")
    outcomes = leave(engine, 60.0)
    hear_b(engine, 2)
    assert [type(outcome) for outcome in outcomes] == [Done]
    (key,) = engine.engine.replicas[0].view.live()
    assert (key.state, key.from_, key.to) == (State.ASSIGNING, "a", "b")


def test_who_was_never_heard_leaves_without_a_goodbye() -> None:
    engine = LoneEngine([(NAMESPACE, CREATED, 1000)])
    outcomes = leave(engine, 60.0)
    assert [type(outcome) for outcome in outcomes] == [Done]
    assert engine.engine.stopped is not None
    assert engine.registry == []


def test_what_its_predecessor_had_is_not_waited_for_before_it_hears_itself() -> None:
    records = [(key, value and value.replace(b'"a-1"', b'"a-0"'), 1000) for key, value, _ in owner().channel]
    engine = LoneEngine(records)
    engine.deaf = True
    engine.run(8)
    assert engine.registry != []
    assert engine.engine.serving() == {}
    outcomes = leave(engine, 60.0)
    engine.run(4)
    assert [getattr(outcome, "reason", "") for outcome in outcomes] == ["log-away"]


def test_a_cold_start_under_way_is_given_up() -> None:
    written = [(key, value) for key, value, _ in owner().channel if key != b"!heartbeat"]
    records = [(key, value and value.replace(b'"a-1"', b'"a-0"'), 1) for key, value in written]
    engine = LoneEngine([(b"!heartbeat", b"", 1), *records], first=1)
    engine.hold = True
    engine.run(20)
    assert engine.engine.cold_start.running
    outcomes = leave(engine, 60.0)
    engine.hold = False
    engine.run(4)
    assert [type(outcome) for outcome in outcomes] == [Done]
