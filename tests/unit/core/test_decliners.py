"""A lookup that ends without an answer names who declined the bundle, where that is what keeps it from being assigned."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import pytest

from statechannel.engine.commands import Lookup, Outcome, Owned, Undetermined
from statechannel.engine.effects import Hook
from statechannel.engine.inputs import HookFinished
from statechannel.engine.placement import FewestBundles
from statechannel.engine.troubles import NoBroker
from statechannel.protocol.states import State
from tests.support.lone_engine import LoneEngine
from tests.unit.core.test_floods import leader, ring

REASON = "no space on /data"


def declined(alone: LoneEngine, bundle: str, *brokers: str) -> None:
    """These brokers decline a bundle, one after the other."""
    for broker in brokers:
        record = SimpleNamespace(from_=broker, forced=False, state=State.UNASSIGNED, text={"reason": REASON}.get)
        alone.engine.placer.accepted(record, SimpleNamespace(name=bundle, was=State.ASSIGNING))
        alone.run(0.5)


def asked(alone: LoneEngine, bundle: str) -> Undetermined:
    outcomes: list[Outcome] = []
    alone.ask(Lookup(bundle, 2.0), outcomes.append)
    alone.run(3.0)
    (outcome,) = outcomes
    assert isinstance(outcome, Undetermined)
    return outcome


@pytest.fixture
def alone() -> LoneEngine:
    return leader()


@pytest.fixture
def bundle(alone: LoneEngine) -> str:
    (name,) = ring(alone, 1)
    return name


def test_who_declined_is_named_with_the_reason(alone: LoneEngine, bundle: str) -> None:
    declined(alone, bundle, "a")
    outcome = asked(alone, bundle)
    assert outcome.reason == "declined"
    assert f"a declined 3 s ago: {REASON}; asked again in" in outcome.message
    assert [decline.broker for decline in outcome.declines] == ["a"]


def test_the_newest_come_first_and_no_more_than_five_are_named(alone: LoneEngine, bundle: str) -> None:
    others = [f"b{number}" for number in range(40)]
    for broker in others:
        alone.hear(broker)
    declined(alone, bundle, *others[:7], "a")
    for broker in others[7:]:
        declined(alone, bundle, broker)
        alone.hear(broker)
    declined(alone, bundle, "b3")
    for broker in others:
        alone.hear(broker)
    outcome = asked(alone, bundle)
    assert outcome.reason == "declined"
    assert [decline.broker for decline in outcome.declines][-2:] == ["b39", "b3"]
    assert len(outcome.declines) == 41
    named = [word for word in outcome.message.split() if word in {"a", *others}]
    assert named == ["b3", "b39", "b38", "b37", "b36"]
    assert outcome.message.endswith("; 36 more declined before")


def test_one_that_declines_again_is_the_newest(alone: LoneEngine, bundle: str) -> None:
    declined(alone, bundle, "b", "c", "b")
    assert [decliner.broker for decliner in alone.engine.placer.decliners(bundle)] == ["c", "b"]


def test_where_no_other_broker_may_take_it_the_decliner_is_asked_sooner_and_then_ever_later() -> None:
    alone = leader(decline_memory_s=30.0)
    (bundle,) = ring(alone, 1)
    outcomes: list[Outcome] = []
    tries = list[float]()
    alone.hold_hooks = True
    alone.ask(Lookup(bundle, 29.0), outcomes.append)
    began_s = alone.now_s
    while not outcomes:
        alone.run(0.1)
        for call in alone.held_hooks:
            if call.hook is Hook.ON_OWN:
                tries.append(alone.now_s - began_s)
                alone.report(HookFinished(call.hook_id, "on_own raised RuntimeError: first"))
        alone.held_hooks.clear()
    assert tries == pytest.approx([0, 5, 15], abs=1)
    (outcome,) = outcomes
    assert outcome.reason == "declined"
    (decline,) = outcome.declines
    assert decline.again_in_s == pytest.approx(6, abs=1)  # 20 s after the third, of which 14 are over
    alone.hold_hooks = False
    alone.run(7.0)
    alone.ask(Lookup(bundle, 1.0), outcomes.append)
    alone.run(1.0)
    assert isinstance(outcomes[-1], Owned)


def test_while_another_broker_may_take_it_the_decliner_is_left_out(alone: LoneEngine, bundle: str) -> None:
    alone.hear("b")
    declined(alone, bundle, "a")
    alone.run(4.0)
    alone.hear("b")
    alone.run(4.0)
    alone.hear("b")
    key = alone.engine.key(bundle)
    assert alone.engine.placer.choose(key) == "b"
    assert alone.engine.placer.choose(key, without="b") == "a"


def test_what_a_decliner_gives_as_its_reason_is_one_line_without_controls(alone: LoneEngine, bundle: str) -> None:
    record = SimpleNamespace(from_="a", forced=False, state=State.UNASSIGNED, text={"reason": "a\nb\x1b[31mred"}.get)
    alone.engine.placer.accepted(record, SimpleNamespace(name=bundle, was=State.ASSIGNING))
    outcome = asked(alone, bundle)
    assert outcome.declines[0].reason == "a b\ufffd[31mred"
    assert "a b\ufffd[31mred" in outcome.message


def test_who_declined_and_takes_no_bundles_by_now_is_not_named(alone: LoneEngine, bundle: str, monkeypatch):
    declined(alone, bundle, "b", "a")
    assert [decline.broker for decline in asked(alone, bundle).declines] == ["a"]
    monkeypatch.setattr(alone.engine.context, "accepts", lambda _: False)
    monkeypatch.setattr(alone.engine.context.members, "takers", lambda *_, **__: ())
    outcome = asked(alone, bundle)
    assert (outcome.reason, outcome.declines) == ("timed-out", ())
    assert outcome.message.endswith("no broker accepts bundles")


def test_where_another_broker_would_take_it_the_cause_is_another(alone: LoneEngine, bundle: str) -> None:
    """Its record does not reach the log."""
    alone.hear("b")
    declined(alone, bundle, "b")
    alone.hold = True
    outcome = asked(alone, bundle)
    assert (outcome.reason, outcome.declines) == ("timed-out", ())
    assert outcome.message.endswith("being assigned")


class Refusing(FewestBundles):
    """Chooses nobody, as where policies forbid every broker."""

    def __init__(self, *, lasting: bool) -> None:
        self.lasting, self.refuses = lasting, True

    def choose(self, bundle: str, candidates: Sequence[str], load: Mapping[str, int]) -> str | None:
        return None if self.refuses else super().choose(bundle, candidates, load)

    def refusal(self, bundle: str) -> NoBroker | None:
        return NoBroker("isolation", "gold forbids a", self.lasting) if self.refuses else None


@pytest.mark.parametrize("lasting", [True, False])
def test_where_policies_leave_no_broker_the_answer_says_so(alone: LoneEngine, bundle: str, *, lasting: bool) -> None:
    placement = alone.engine.placer.placement = Refusing(lasting=lasting)
    outcomes: list[Outcome] = []
    alone.ask(Lookup(bundle, 2.0), outcomes.append)
    assert len(outcomes) == lasting, "where waiting cannot help it is answered at once"
    unplaced = alone.engine.context.troubles.unplaced
    assert (unplaced.fields(0) or {})["reason"] == "isolation"
    alone.run(3.0)
    (outcome,) = outcomes
    assert isinstance(outcome, Undetermined)
    assert (outcome.reason, outcome.message) == ("no-broker-allowed", f"{bundle}: gold forbids a")
    placement.refuses = False
    alone.ask(Lookup(bundle, 2.0), outcomes.append)
    alone.run(3.0)
    assert isinstance(outcomes[-1], Owned)
    assert unplaced.fields(0) is None
