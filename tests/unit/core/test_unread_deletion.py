"""Records that no broker had read were deleted: what brokers held before is not given up with them (protocol.md section 5)."""

import pytest

from statechannel.protocol.codec import HEAD_KEY, HEARTBEAT_KEY
from statechannel.protocol.replica import Phase
from statechannel.protocol.states import State
from tests.support.lone_engine import BUNDLE, CREATED, NAMESPACE, LoneEngine, heartbeat

LONG_S = 60


def deleted_unread(**config) -> LoneEngine:
    """A broker that judged the log, and from which the newest record is deleted before it reads it."""
    alone = LoneEngine([(NAMESPACE, CREATED, 100_000)], **config)
    alone.run(12)
    assert alone.engine.caught_up
    delete_unread(alone)
    return alone


def delete_unread(alone: LoneEngine) -> None:
    alone.away = True
    alone.put(HEARTBEAT_KEY, heartbeat("z-1", len(alone.channel) - 1))
    alone.first = alone.deleted = len(alone.channel)
    alone.away = False
    alone.reopen()


def wait(alone: LoneEngine, seconds: int = LONG_S) -> None:
    for _ in range(seconds):
        alone.run(1)
        alone.ask_end()


def test_where_no_broker_has_read_what_was_deleted_the_leader_goes_on_from_what_it_held() -> None:
    alone = deleted_unread()
    before = alone.engine.replicas[0].view.highest
    assert alone.engine.replicas[0].phase is Phase.WAITING
    assert not alone.engine.accepting
    first = alone.deleted
    wait(alone)
    view = alone.engine.replicas[0].view
    assert alone.engine.accepting
    assert {key.name for key in view.existing()} == {NAMESPACE.decode(), BUNDLE.decode()}
    assert view.keys[BUNDLE].version > before + 2, "what was deleted may have been served at a later generation"
    assert min(alone.written(HEAD_KEY)[-1], alone.written(NAMESPACE)[-1], alone.written(BUNDLE)[-1]) >= first


def test_a_broker_that_joins_behind_it_holds_the_same() -> None:
    alone = deleted_unread()
    wait(alone)
    other = LoneEngine(alone.channel, deleted=alone.deleted)
    other.hear("z")
    for _ in range(5):
        other.put(HEARTBEAT_KEY, heartbeat("z-1", len(other.channel) - 1))
        other.run(1)
    held = [
        {key.name: (key.state, key.version) for key in engine.replicas[0].view.existing()}
        for engine in (alone.engine, other.engine)
    ]
    assert other.engine.caught_up
    assert held[0] == held[1]


def test_what_lies_above_the_deleted_records_counts_as_well() -> None:
    alone = deleted_unread()
    alone.put(b"t/m", CREATED)
    wait(alone)
    states = {key.name: key.state for key in alone.engine.replicas[0].view.existing() if key.is_namespace}
    assert states == {"t/n": State.ACTIVE, "t/m": State.ACTIVE}


def test_a_second_deletion_meanwhile_takes_nothing_from_it() -> None:
    alone = deleted_unread()
    delete_unread(alone)
    wait(alone)
    assert BUNDLE in alone.engine.replicas[0].view.keys
    assert alone.engine.accepting


@pytest.mark.parametrize("more", [{}, {"kept": {"0": 0}}, {"kept": {"0": "x"}}, {"kept": {"0": 10**9}}, {"kept": 3}])
def test_a_member_that_kept_less_or_nothing_does_not_delay_it(more) -> None:
    alone = deleted_unread()
    for seq in range(LONG_S):
        alone.hear("z", phase="joining", seq=seq, **more)
        alone.run(1)
        alone.ask_end()
    assert alone.engine.accepting


def test_the_member_that_had_read_most_goes_first() -> None:
    alone = deleted_unread()
    for seq in range(LONG_S):
        alone.hear("z", phase="joining", seq=seq, kept={"0": alone.deleted - 1})
        alone.run(1)
        alone.ask_end()
    assert "cold-start.began" not in alone.events
    assert alone.engine.replicas[0].phase is Phase.WAITING
    wait(alone)
    assert alone.engine.accepting, "it has died meanwhile"


def test_a_broker_that_knows_the_rest_counts_more() -> None:
    """It restates, and marks the head: then its history is the one."""
    alone = deleted_unread()
    first = alone.deleted
    by = b'{"broker":"z","incarnation":"z-1"}'
    for seq in range(LONG_S):
        alone.hear("z", seq=seq)
        alone.run(1)
    assert "cold-start.began" not in alone.events
    alone.put(HEAD_KEY, b'{"through":%d,"first":%d,"known":-1,"by":%s}' % (len(alone.channel) - 1, first, by))
    alone.put(HEARTBEAT_KEY, heartbeat("z-1", len(alone.channel) - 1))
    alone.run(1)
    assert alone.engine.caught_up
    assert not alone.engine.replicas[0].view.keys.get(NAMESPACE), "it was not restated, so it did not exist any more"
