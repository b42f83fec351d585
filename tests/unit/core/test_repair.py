"""Repair where nobody may have a bundle: it stays in the eye of repair, and is given away as soon as somebody may."""

from collections.abc import Mapping, Sequence

from statechannel.engine.commands import Lookup
from statechannel.protocol.states import State
from tests.support.lone_engine import BUNDLE
from tests.unit.core.test_floods import leader


class Told:
    """Places every bundle where the test says."""

    def __init__(self) -> None:
        self.broker: str | None = None

    def choose(self, bundle: str, candidates: Sequence[str], load: Mapping[str, int]) -> str | None:
        return self.broker


def test_a_lost_brokers_bundle_waits_for_somebody_and_needs_no_lookup() -> None:
    alone, result = leader(), Told()
    alone.engine.placer.placement = result
    alone.hear("z")
    result.broker = "z"
    alone.ask(Lookup(BUNDLE.decode(), 1.0), lambda _: None)
    (key,) = alone.engine.replicas[0].view.live()
    assert (key.state, key.to) == (State.ASSIGNING, "z")

    result.broker = None  # policies are read anew, or nobody accepts
    written = len(alone.written(BUNDLE))
    alone.run(40)  # z is lost long since
    assert (key.state, key.to, len(alone.written(BUNDLE))) == (State.ASSIGNING, "z", written)

    result.broker = "a"
    alone.run(5)
    assert (key.state, key.to) == (State.ASSIGNED, "a")
