"""Floods of commands and records: no step of the engine does much, however much waits. Counted in calls of functions."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from statechannel.engine import repair
from statechannel.engine.commands import (
    AwaitOperation,
    CreateNamespace,
    DeleteNamespace,
    Done,
    Lookup,
    Outcome,
    Owned,
    Rejected,
    Split,
    Started,
    Undetermined,
)
from statechannel.engine.effects import Effect
from statechannel.engine.engine import Engine
from statechannel.engine.inputs import Input, Now
from statechannel.protocol.bundle import children_of, namespace_bounds
from statechannel.protocol.states import State
from tests.support.lone_engine import BUNDLE, CREATED, NAMESPACE, LoneEngine

CALLS_MAX = 500_000
"""Calls of Python and C functions, which are the same on each machine; the bound of 100 ms is measured by `make bench`."""


class Steps:
    """The step of most calls since it was made."""

    def __init__(self) -> None:
        self.calls_max = 0
        self.of = ""
        self._calls = 0

    def count(self, _: FrameType, event: str, __: object) -> None:
        """Of `sys.setprofile`."""
        self._calls += event in ("call", "c_call")

    def stepped(self, event: Input) -> None:
        """A step has ended."""
        if self._calls > self.calls_max:
            self.calls_max, self.of = self._calls, type(event).__name__
        self._calls = 0


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    steps = Steps()
    step = Engine.step

    def measured(self: Engine, now: Now, event: Input) -> list[Effect]:
        sys.setprofile(steps.count)
        try:
            return step(self, now, event)
        finally:
            sys.setprofile(None)
            steps.stepped(event)

    monkeypatch.setattr(Engine, "step", measured)
    yield steps
    assert steps.calls_max < CALLS_MAX, f"a step of {steps.of} made {steps.calls_max} calls"


def leader(**config: int) -> LoneEngine:
    engine = LoneEngine([(NAMESPACE, CREATED, 0)], **config)
    engine.run(12)
    assert engine.engine.leading
    return engine


def ring(engine: LoneEngine, count: int) -> list[str]:
    """Bundles of a new namespace."""
    outcomes: list[Outcome] = []
    engine.ask(CreateNamespace("t/m", tuple(namespace_bounds(count)), "op-m", 60.0), outcomes.append)
    assert isinstance(outcomes[0], Started)
    return [key.name for key in engine.engine.replicas[0].view.live() if key.namespace == "t/m"]


def kinds(outcomes: list[Outcome]) -> Counter[str]:
    return Counter(type(outcome).__name__ for outcome in outcomes)


def test_more_assignments_than_may_be_on_their_way(steps: Steps) -> None:
    engine, outcomes = leader(pending_max=1_000, assigning_max=2_000), list[Outcome]()
    bundles = ring(engine, 3_000)
    engine.hold = True
    for bundle in bundles:
        engine.ask(Lookup(bundle, 60.0), outcomes.append)
    assert len(engine.engine.proposals) == engine.engine.config.pending_max
    engine.run(1)
    engine.let_through()
    engine.run(3)
    assert kinds(outcomes) == {"Owned": 3_000}


def test_lookups_whose_time_is_over_together(steps: Steps) -> None:
    engine, outcomes = leader(), list[Outcome]()
    bundles = ring(engine, 3_000)
    engine.hold = True
    for number in range(6_000):
        engine.ask(Lookup(bundles[number % 3_000], 3.0), outcomes.append)
    engine.run(2.5)
    assert not outcomes
    engine.run(3)
    assert kinds(outcomes) == {"Undetermined": 6_000}
    assert engine.engine.lookups.waiting == 0


def test_many_who_wait_for_one_bundle_are_answered_in_several_steps(steps: Steps) -> None:
    engine, outcomes = leader(), list[Outcome]()
    engine.hold = True
    for _ in range(5_000):
        engine.ask(Lookup(BUNDLE.decode(), 60.0), outcomes.append)
    engine.let_through()
    assert 0 < len(outcomes) < 5_000
    assert engine.engine.wake_at_s < engine.engine.now.mono_s + 0.1, "the others do not wait for the next interval"
    engine.run(1.5)
    assert kinds(outcomes) == {"Owned": 5_000}


def test_one_lookup_too_many_is_told_so() -> None:
    engine, outcomes = leader(lookup_waiting_max=100), list[Outcome]()
    engine.hold = True
    for _ in range(101):
        engine.ask(Lookup(BUNDLE.decode(), 60.0), outcomes.append)
    assert outcomes == [Undetermined("busy", "too many lookups wait (lookup_waiting_max)", "Try again.")]
    engine.let_through()
    engine.ask(Lookup(BUNDLE.decode(), 60.0), outcomes.append)
    assert isinstance(outcomes[-1], Owned)


def test_creations_beyond_the_bound_are_refused_and_waiters_find_their_end(steps: Steps) -> None:
    engine, begun, ended = leader(pending_max=1_000), list[Outcome](), list[Outcome]()
    engine.hold = True
    for number in range(1_500):
        command = CreateNamespace(f"t/c{number}", tuple(namespace_bounds(4)), f"c{number}", 60.0)
        engine.ask(command, begun.append)
        engine.ask(AwaitOperation(f"c{number}", 5.0), ended.append)
    refused = [item for item in begun if isinstance(item, Rejected)]
    assert {item.reason for item in refused} == {"busy"}
    engine.let_through()
    assert kinds(begun) == {"Started": 1_500 - len(refused), "Rejected": len(refused)}
    engine.run(7)
    assert kinds(ended) == {"Done": 1_500 - len(refused), "NotFound": len(refused)}


def test_the_largest_ring_is_created_and_deleted(steps: Steps) -> None:
    engine, outcomes = leader(), list[Outcome]()
    assert len(ring(engine, 32_768)) == 32_768
    engine.ask(DeleteNamespace("t/m", "op-d", 60.0), outcomes.append)
    engine.ask(AwaitOperation("op-d", 60.0), outcomes.append)
    engine.run(3)
    assert [type(outcome) for outcome in outcomes] == [Started, Done]


def owner(**config: int) -> LoneEngine:
    engine, outcomes = leader(**config), list[Outcome]()
    engine.ask(Lookup(BUNDLE.decode(), 60.0), outcomes.append)
    assert isinstance(outcomes[0], Owned)
    return engine


def test_a_split_into_more_parts_than_a_step_may_make_is_refused(steps: Steps) -> None:
    engine, outcomes = owner(), list[Outcome]()
    engine.ask(Split(BUNDLE.decode(), "s1", 60.0, parts=4_097), outcomes.append)
    assert [(outcome.reason, outcome.bundle) for outcome in outcomes] == [("bad-split", BUNDLE.decode())]
    engine.ask(Split(BUNDLE.decode(), "s2", 60.0, parts=4_096), outcomes.append)
    engine.ask(AwaitOperation("s2", 60.0), outcomes.append)
    assert [type(outcome) for outcome in outcomes[1:]] == [Started, Done]
    assert engine.engine.reactions.serving_count == 4_096


def test_a_foreign_wish_for_more_parts_is_given_up(steps: Steps) -> None:
    engine = owner()
    key = engine.engine.key(BUNDLE.decode())
    engine.move(key.name, "x-1", "Splitting", **{"from": "a", "children": children_of(namespace_bounds(32_768))})
    assert (key.state, key.owner) == (State.ASSIGNED, "a")
    assert engine.engine.reactions.serving_count == 1


def test_debts_of_many_keys_are_paid_and_joins_hurry_them(steps: Steps) -> None:
    engine = leader()
    for number in range(3_000):
        engine.channel.append((b"t/j%d" % number, b"junk", 0))
    engine.put(b"t/last", b"junk")
    open_debts = engine.engine.replicas[0].view.ledger.open
    assert len(open_debts) == 3_001
    engine.run(1.5)
    assert 0 < len(open_debts) < 3_001
    assert engine.engine.duties.oldest_debt_s() == pytest.approx(1.4, abs=0.3)
    engine.hear("b", phase="joining")
    engine.run(0.2)
    assert engine.engine.wake_at_s < engine.engine.now.mono_s + 0.1, "a join waits for the last of them"
    engine.run(5)
    assert not open_debts
    assert engine.engine.duties.oldest_debt_s() == 0.0


def test_junk_is_purged_portion_by_portion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statechannel.engine.maintenance.LOOKED_AT_A_TICK", 50)
    engine = leader(compaction_lag_s=30, purge_interval_s=10)
    for number in range(200):
        engine.put(b"t/j%d" % number, b"junk")
    engine.run(70)
    keys = engine.engine.replicas[0].view.keys
    assert [keys[b"t/j%d" % number].purged for number in range(200)] == [True] * 200
    assert not engine.engine.duties._quiet or all(not key.purged for key in engine.engine.duties._quiet)


@contextmanager
def patched(portion: int) -> Iterator[None]:
    before, repair.LOOKED_AT_A_TICK = repair.LOOKED_AT_A_TICK, portion
    try:
        yield
    finally:
        repair.LOOKED_AT_A_TICK = before


def test_orphans_are_found_by_a_scan_over_several_steps() -> None:
    engine, outcomes = leader(), list[Outcome]()
    engine.hear("b")
    bundles = ring(engine, 400)
    for bundle in bundles:
        engine.ask(Lookup(bundle, 60.0), outcomes.append)
    view = engine.engine.replicas[0].view
    assert view.load["b"] > 100
    with patched(37):
        engine.run(20)  # `b` never answers, and is not heard again
    assert "b" not in view.load
    assert {key.owner for key in view.live() if key.namespace == "t/m"} == {"a"}
