"""A partition that stands still while the registry is heard: its view says how old it is."""

from statechannel.core.commands import Lookup, Outcome, Owned
from statechannel.core.presence import Mode
from tests.unit.core.test_floods import leader, ring


def test_a_partition_that_is_not_heard_has_an_old_view_whatever_the_registry_says() -> None:
    alone = leader()
    (bundle,) = ring(alone, 1)
    told: list[Outcome] = []

    def stale_age_s() -> float | None:
        alone.ask(Lookup(bundle, 60.0), told.append)
        answer = told[-1]
        assert isinstance(answer, Owned)
        return answer.stale_age_s

    assert stale_age_s() is None
    alone.hold = True  # nothing comes in the channel, not even a heartbeat
    alone.run(5.5)
    assert stale_age_s() is None, "within safe mode's patience and two heartbeats"
    alone.run(4)
    assert alone.engine.mode is Mode.NORMAL, "the registry is heard"
    age_s = stale_age_s()
    assert age_s is not None
    assert 8.5 <= age_s <= 10.6
    alone.let_through()
    assert stale_age_s() is None
