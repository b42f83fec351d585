"""What requests and hooks see of the engine."""

from statechannel.broker.exits import Stopped
from statechannel.broker.requests import EngineSurroundings
from statechannel.engine.commands import Lookup
from statechannel.engine.effects import CallHook, Hook
from statechannel.engine.reactions import ServedBundle
from tests.support.lone_engine import BUNDLE, CREATED, LISTENERS, NAMESPACE, LoneEngine

JOINED_S = 60.0


def joined(**config: float) -> tuple[LoneEngine, EngineSurroundings]:
    alone = LoneEngine([(NAMESPACE, CREATED, 0)], **config)
    alone.run(JOINED_S)
    return alone, EngineSurroundings(alone.engine)


def test_who_it_is_and_whom_it_hears() -> None:
    alone, around = joined()
    alone.hear("b")
    assert (around.broker, around.incarnation) == ("a", "a-1")
    asked = [("a", None), ("a", "a-1"), ("a", "a-2"), ("b", "b-1"), ("c", None), ("c", "c-1")]
    assert [around.is_alive(*who) for who in asked] == [True, True, False, True, False, False]
    assert around.urls_of("a") == LISTENERS


def test_an_owner_is_that_of_a_bundle_or_of_the_bundle_of_a_topic() -> None:
    alone, around = joined()
    names = (BUNDLE.decode(), "t/n/topic", "t/unknown/topic", "nonsense")
    assert [around.owner_of(name) for name in names] == [None, None, None, None]
    assert around.serving_count() == 0
    alone.ask(Lookup("t/n/topic", 60.0), lambda _: None)
    alone.run(1.0)
    assert [around.owner_of(name) for name in names] == ["a", "a", None, None]
    assert around.serving_count() == 1


def test_it_acts_while_it_may_start_operations() -> None:
    early = LoneEngine([(NAMESPACE, CREATED, 0)])
    assert not EngineSurroundings(early.engine).acting
    alone, around = joined()
    assert around.acting
    alone.engine.stop("closed", "its end")
    assert not around.acting


def test_letting_go_ends_the_engine_once_and_names_what_is_to_be_released() -> None:
    alone, around = joined(hook_deadline_s=9.0)
    holdings = {
        "served": ServedBundle(generation=7),
        "prepared": ServedBundle(prepared=8),
        "both": ServedBundle(generation=0, prepared=9),
        "neither": ServedBundle(),
    }
    alone.engine.reactions.holdings.update(holdings)
    assert around.serving_count() == 2
    generations = {"served": 7, "prepared": 8, "both": 0, "neither": 0}
    expected = [CallHook(0, Hook.ON_RELEASE, name, number, None, 9.0) for name, number in generations.items()]
    assert around.let_go(Stopped("closed", "its end")) == expected
    stopped = alone.engine.stopped
    assert (stopped.reason, stopped.detail) == ("closed", "its end")
    assert around.let_go(Stopped("other", "")) == []
    assert alone.engine.stopped == stopped
