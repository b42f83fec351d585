"""Repair where nobody may have a bundle: it stays in the eye of repair, and is given away as soon as somebody may."""

from collections.abc import Mapping, Sequence

import orjson

from statechannel.engine.commands import Lookup
from statechannel.engine.placement import FewestBundles
from statechannel.engine.troubles import NoBroker
from statechannel.protocol.keys import KeyState
from statechannel.protocol.states import State
from tests.support.lone_engine import BUNDLE, LoneEngine
from tests.unit.core.test_floods import leader


def test_a_pause_says_when_it_ends_by_itself() -> None:
    alone = leader(mass_loss_pause_s=60)
    for broker in ("w", "x", "y", "z"):
        alone.hear(broker)
    context, began_s = alone.engine.context, alone.now_s
    while context.repair_paused is None:
        alone.run(0.1)
        assert alone.now_s < began_s + 60, "four of five were lost at once"
    ends_ms = round(alone.now_s * 1_000) + 60_000
    assert context.repair_resumes_at_ms == ends_ms
    alone.run(2)
    assert orjson.loads(alone.registry[-1][2])["repair_resumes_at_ms"] == ends_ms
    alone.engine.repair.resume()
    alone.run(2)
    assert orjson.loads(alone.registry[-1][2])["repair_resumes_at_ms"] is None


class Told:
    """Places every bundle where the test says."""

    broker: str | None = "z"
    candidates: Sequence[str] = ()

    def choose(self, bundle: str, candidates: Sequence[str], load: Mapping[str, int]) -> str | None:
        self.candidates = candidates
        return self.broker

    def refusal(self, bundle: str) -> NoBroker | None:
        return None if self.broker else NoBroker("pin", f"{bundle} is pinned to z")


def leader_with_z() -> tuple[LoneEngine, KeyState, Told]:
    """A bundle is assigned to `z`, which is heard no more."""
    alone, result = leader(), Told()
    alone.engine.placer.placement = result
    alone.hear("z")
    alone.ask(Lookup(BUNDLE.decode(), 1.0), lambda _: None)
    (key,) = alone.engine.replicas[0].view.live()
    return alone, key, result


def test_what_a_lost_broker_leaves_goes_to_none_that_is_about_to_be_lost_too() -> None:
    alone, key, _ = leader_with_z()
    alone.engine.placer.placement = FewestBundles()
    alone.run(1)
    alone.hear("y")  # for the last time
    while key.to == "z":
        alone.run(0.1)
    assert (key.to, alone.engine.context.is_lost("y")) == ("a", False)


def test_who_hears_nothing_takes_nobody_else_for_silent() -> None:
    alone, key, result = leader_with_z()
    alone.deaf = True
    alone.run(3.5)
    alone.engine.placer.choose(key)
    assert result.candidates == ["a", "z"]


def test_a_lost_brokers_bundle_waits_for_somebody_and_needs_no_lookup() -> None:
    alone, key, result = leader_with_z()
    assert (key.state, key.to) == (State.ASSIGNING, "z")

    result.broker = None  # policies are read anew, or nobody accepts
    written = len(alone.written(BUNDLE))
    alone.run(40)  # z is lost long since
    assert (key.state, key.to, len(alone.written(BUNDLE))) == (State.ASSIGNING, "z", written)
    unplaced = alone.engine.context.troubles.unplaced
    assert (unplaced.fields(round(alone.now_s * 1_000)) or {})["reason"] == "pin", "operators read why it waits"

    result.broker = "a"
    alone.run(5)
    assert (key.state, key.to) == (State.ASSIGNED, "a")
    assert unplaced.fields(round(alone.now_s * 1_000)) is None
