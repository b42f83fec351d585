"""A partition that stands still, or is not kept up with, while the registry is heard: its view says how old it is."""

import pytest

from statechannel.engine.commands import (
    CreateNamespace,
    Lookup,
    NotFound,
    Outcome,
    Owned,
    Transfer,
    Undetermined,
    Unowned,
)
from statechannel.engine.context import Mode
from statechannel.engine.freshness import lag_s
from statechannel.protocol.replica import Replica
from statechannel.protocol.states import State
from tests.unit.core.test_floods import leader, ring


def test_a_partition_that_is_not_heard_has_an_old_view_whatever_the_registry_says() -> None:
    alone = leader()
    (bundle,) = ring(alone, 1)
    outcomes: list[Outcome] = []

    def stale_age_s() -> float | None:
        alone.ask(Lookup(bundle, 60.0), outcomes.append)
        answer = outcomes[-1]
        assert isinstance(answer, Owned)
        return answer.stale_age_s

    assert stale_age_s() is None
    alone.hold = True  # nothing comes in the channel, not even a heartbeat
    alone.run(5.5)
    assert stale_age_s() is None, "within safe mode's patience and two heartbeats"
    alone.run(4)
    assert alone.engine.mode is Mode.NORMAL, "the registry is heard"
    age_s = stale_age_s()
    assert 8.5 <= age_s <= 10.6
    alone.let_through()
    assert stale_age_s() is None


@pytest.mark.parametrize("kafka_is_away", [False, True])
def test_an_old_view_names_no_owner_that_is_lost(kafka_is_away: bool) -> None:
    alone = leader()
    (bundle,) = ring(alone, 1)
    alone.hear("z", listeners={"http": "http://z"})
    alone.ask(Lookup(bundle, 60.0), lambda _: None)
    alone.ask(Transfer(bundle, "z", "op-1", 60.0), lambda _: None)
    key = alone.engine.key(bundle)
    assert key.state is State.ASSIGNING
    generation = key.version + 1
    returned = {"action": "return", "flow": "transfer", "operation": "op-1", "from": "a", "to": "z"}
    alone.move(bundle, "z-1", "Assigned", **returned)
    answers: list[Outcome] = []

    def ask(timeout_s: float = 0.5) -> Outcome:
        alone.ask(Lookup(bundle, timeout_s), answers.append)
        alone.run(timeout_s + 0.3)
        return answers[-1]

    assert ask() == Owned(bundle, "z", generation, {"http": "http://z"})
    assert alone.engine.cached_owner(alone.now_s, bundle) == answers[-1]
    alone.hold = True  # no heartbeat of the channel, and none of z
    alone.deaf = kafka_is_away
    alone.run(10)
    answer = ask()
    assert alone.engine.cached_owner(alone.now_s, bundle) is None
    if kafka_is_away:  # then nobody can be called lost, and the answer says how old it is
        assert (answer.broker, answer.urls) == ("z", {"http": "http://z"})
        assert answer.stale_age_s is not None
        return
    assert alone.engine.mode is Mode.NORMAL
    assert alone.engine.context.is_lost("z")
    assert isinstance(answer, Undetermined)
    assert answer.reason == "owner-not-heard"
    assert "z is not heard" in answer.message
    alone.deaf = True  # an outage brings nobody back
    alone.run(10)
    assert alone.engine.mode is Mode.SAFE
    assert isinstance(ask(), Undetermined)


def test_a_view_that_is_behind_is_old_although_records_arrive_all_the_time() -> None:
    alone = leader()
    (bundle,) = ring(alone, 1)
    answers: list[Outcome] = []
    alone.behind_s = 17.0  # what is taken in now has waited for so long
    for _ in range(20):
        alone.put(b"junk", b"?")
        alone.run(1.0)
    assert alone.engine.mode is Mode.NORMAL
    alone.ask(Lookup(bundle, 60.0), answers.append)
    answer = answers[-1]
    assert isinstance(answer, Owned)
    assert 16.0 <= answer.stale_age_s <= 19.0
    assert 16.0 <= alone.engine.status()["partitions"][0]["lag_s"] <= 19.0
    alone.behind_s = 0.0
    alone.put(b"junk", b"?")
    alone.ask(Lookup(bundle, 60.0), answers.append)
    caught_up = answers[-1]
    assert isinstance(caught_up, Owned)
    assert caught_up.stale_age_s is None


@pytest.mark.parametrize(("behind_s", "is_old"), [(0.0, False), (17.0, True)])
def test_what_an_old_view_does_not_know_says_its_age_too(behind_s: float, is_old: bool) -> None:
    alone = leader()
    answers: list[Outcome] = []
    alone.ask(CreateNamespace("t/free", (0, 0xFFFFFFFF), "op9", 10), answers.append)
    alone.run(1.0)
    alone.behind_s = behind_s
    for _ in range(20):
        alone.put(b"junk", b"?")
        alone.run(1.0)
    for name in ("t/absent/topic", "t/free/0x00000000_0x00000001"):
        alone.ask(Lookup(name, 60.0), answers.append)
        answer = answers[-1]
        assert isinstance(answer, NotFound)
        assert (answer.stale_age_s is not None) is is_old
    alone.ask(Lookup("t/free/topic", 60.0, read_only=True), answers.append)
    answer = answers[-1]
    assert isinstance(answer, Unowned)
    assert (answer.stale_age_s is not None) is is_old


def test_what_is_known_of_an_earlier_moment_takes_nothing_back() -> None:
    replica = Replica(0, 1, compaction_lag_s=60.0, kept_records_max=10)
    assert replica.current_at_s is None
    for as_of_s, known_s in ((None, None), (5.0, 5.0), (4.0, 5.0), (None, 5.0), (5.5, 5.5)):
        replica.complete_as_of(as_of_s)
        assert replica.current_at_s == known_s


def test_before_a_view_was_ever_complete_its_lag_counts_from_when_it_was_opened() -> None:
    alone = leader()
    replica = alone.engine.replicas[0]
    replica.current_at_s, replica.read_at_s = None, alone.engine.now.mono_s - 3.0
    assert lag_s(alone.engine.now, replica) == pytest.approx(3.0)
