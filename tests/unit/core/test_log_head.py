"""Records that were deleted from the channel: what members restate, and what one that joins waits for (protocol.md section 6)."""

import orjson
import pytest

from statechannel.engine.commands import CreateNamespace, Undetermined
from statechannel.engine.inputs import HeadLost
from statechannel.engine.log_head import RESTATE_GAP_S
from statechannel.engine.lookups import NO_BROKER
from statechannel.engine.proven_positions import ProvenPositions
from statechannel.protocol.codec import COLD_START_KEY, HEAD_KEY, HEARTBEAT_KEY
from statechannel.protocol.replica import Phase
from tests.support.lone_engine import BUNDLE, CREATED, NAMESPACE, LoneEngine, heartbeat, member

NEVER_S = 120
KNOWN = 50
THIS, OTHER = "topic-one", "topic-two"
DEAD = [(1_000, b"z", member("z", log=THIS, applied={"0": KNOWN}))]
"""The registry of a cluster that has died; the last that one of its brokers said."""
FOREIGN = [(1_000, b"z", member("z", log=OTHER, applied={"0": 3}))]
LOG = [(NAMESPACE, CREATED, 1_000)]


def phase(alone: LoneEngine) -> Phase:
    return alone.engine.replicas[0].phase


def wait_long(alone: LoneEngine) -> None:
    """Nobody writes; its reader asks where the log ends, and what it begins is given time to end."""
    for _ in range(NEVER_S):
        alone.run(1)
        alone.ask_end()


def marks(alone: LoneEngine) -> list[dict]:
    return [orjson.loads(alone.channel[offset][1] or b"") for offset in alone.written(HEAD_KEY)]


# --- a log that is shorter than what was read of it, or another one -------------------------------------------------


@pytest.mark.parametrize("registry", [DEAD, FOREIGN], ids=["shorter", "another topic"])
@pytest.mark.parametrize("log", [LOG, []], ids=["some records", "empty"])
def test_a_log_that_holds_less_than_brokers_have_read_is_not_joined(registry, log) -> None:
    alone = LoneEngine(log, log=THIS, registry=registry)
    wait_long(alone)
    assert phase(alone) is Phase.WAITING
    assert "log.shorter" in alone.events
    assert "cold-start.began" not in alone.events
    assert not alone.engine.accepting
    assert alone.channel == log, "it writes nothing"


@pytest.mark.parametrize(("registry", "bound"), [(DEAD, 2 * KNOWN), (FOREIGN, 2 * 3)], ids=["shorter", "another topic"])
def test_who_is_to_accept_the_loss_starts_cold_above_every_version_that_can_have_been_served(registry, bound) -> None:
    alone = LoneEngine(LOG, log=THIS, registry=registry, accept_lost_head=True)
    wait_long(alone)
    assert alone.engine.accepting
    view = alone.engine.replicas[0].view
    assert min(key.version for key in view.live()) > bound


@pytest.mark.parametrize("registry", [DEAD, FOREIGN], ids=["shorter", "another topic"])
def test_who_is_to_accept_the_loss_begins_with_an_empty_log_as_well(registry) -> None:
    alone = LoneEngine([], log=THIS, registry=registry, accept_lost_head=True)
    wait_long(alone)
    assert alone.engine.accepting
    assert "cold-start.ended" in alone.events


def version_of_a_new_namespace(alone: LoneEngine) -> int:
    """Of its bundles: the generation that the first owner would serve comes after it."""
    alone.ask(CreateNamespace("t/new", (0, 0xFFFFFFFF), "op-new", 5.0), lambda _: None)
    alone.run(1)
    return min(key.version for key in alone.engine.replicas[0].view.live() if key.namespace == "t/new")


IMPORTED = 2**20 - 7
"""Versions may be higher than two for each offset: an import goes on above those of its source."""


@pytest.mark.parametrize("topic", [THIS, OTHER], ids=["shorter", "another topic"])
@pytest.mark.parametrize("deleted", [0, 3], ids=["from 0", "from where it was cut"])
@pytest.mark.parametrize("versions", [{}, {"versions_below": 2**20}], ids=["by its length", "by its versions"])
def test_of_an_empty_log_everything_begins_above_all_that_the_registry_proves(topic, deleted, versions) -> None:
    """Nothing names the namespaces that there were: whichever is created may be one of them."""
    registry = [(1_000, b"z", member("z", log=topic, applied={"0": KNOWN}, **versions))]
    log = [(HEARTBEAT_KEY, b"", 1_000)] * deleted
    bound = IMPORTED if versions else 2 * KNOWN
    alone = LoneEngine(log, log=THIS, registry=registry, deleted=deleted, accept_lost_head=True)
    wait_long(alone)
    first = version_of_a_new_namespace(alone)
    assert first > bound

    marked = next(at for at, (key, _, _) in enumerate(alone.channel) if key == COLD_START_KEY)
    for end in (marked + 1, alone.written(HEAD_KEY)[0] + 1, alone.written(b"t/new")[0]):
        later = LoneEngine(alone.channel[:end], log=THIS, registry=registry, deleted=deleted, accept_lost_head=True)
        wait_long(later)
        assert version_of_a_new_namespace(later) > bound, "who comes after it knows that, too"


@pytest.mark.parametrize("topic", [THIS, OTHER], ids=["shorter", "another topic"])
def test_who_waits_keeps_what_the_registry_proves_longer_than_the_registry(topic) -> None:
    """It keeps heartbeats for an hour; the operator who accepts a loss may come after days."""
    dead = [(1_000, b"z", member("z", log=topic, applied={"0": KNOWN}, versions_below=2**20))]
    waits = LoneEngine([], log=THIS, registry=dead)
    wait_long(waits)
    assert phase(waits) is Phase.WAITING
    restarted = LoneEngine([], log=THIS, registry=waits.registry[-10:], take_over=True)
    wait_long(restarted)
    assert phase(restarted) is Phase.WAITING
    accepts = LoneEngine([], log=THIS, registry=restarted.registry[-10:], take_over=True, accept_lost_head=True)
    wait_long(accepts)
    assert version_of_a_new_namespace(accepts) > IMPORTED
    assert b'"known":null' in accepts.registry[-1][2], "what was given up is missed no longer"


@pytest.mark.parametrize("junk", [-1, 2**62, True, "9", None, 1.5])
def test_what_is_no_version_proves_nothing(junk: object) -> None:
    positions = ProvenPositions(THIS, 1)
    positions.take({"versions_below": junk, "known": junk})
    assert positions.versions_below == 0
    assert not positions.foreign


def test_where_nothing_is_left_at_all_it_is_a_new_cluster() -> None:
    alone = LoneEngine([], log=THIS)
    alone.run(12)
    assert version_of_a_new_namespace(alone) == 1


def test_a_log_as_long_as_what_was_read_of_it_is_joined_at_once() -> None:
    alone = LoneEngine(LOG, log=THIS, registry=[(1_000, b"z", member("z", log=THIS, applied={"0": 0}))])
    alone.run(12)
    assert alone.engine.accepting
    assert "log.shorter" not in alone.events


def test_who_reads_more_slowly_than_others_does_not_start_over() -> None:
    """A member had read further when it joined: what it has read by then is in the log."""
    alone = LoneEngine(LOG, log=THIS)
    alone.away = True
    alone.hear("z", log=THIS, applied={"0": 2})
    for clean_to in (0, 1):
        alone.put(HEARTBEAT_KEY, heartbeat("z-1", clean_to))
    alone.run(3)
    alone.away = False
    alone.run(12)
    assert alone.engine.caught_up
    assert alone.restarts == 0


def test_a_forged_position_stops_nobody_while_a_member_lives() -> None:
    """That it waits for a word is all that the registry can do to it."""
    forged = (1_000, b"x", member("x", log=THIS, applied={"0": 10**9}))
    alone = LoneEngine(LOG, log=THIS, registry=[forged])
    for second in range(20):
        alone.hear("z", log=THIS, applied={"0": len(alone.channel) - 1}, seq=second)
        alone.put(HEARTBEAT_KEY, heartbeat("z-1", len(alone.channel) - 1))
        alone.run(1)
    assert alone.engine.caught_up
    assert alone.engine.accepting


# --- a log whose end was truncated, and that is as long as before ----------------------------------------------------

CUT, READ = 2, 4
"""Where the records of the second leader begin, and how far a broker had read those of the first."""
LOST = [(1_000, b"z", member("z", log=THIS, applied={"0": READ}, epochs={"0": 1}))]
REGROWN = [*LOG, *[(HEARTBEAT_KEY, heartbeat("y-1", offset), 1_000 + offset) for offset in range(READ + 2)]]
LEADERS = {0: 1, CUT: 2}


def test_a_log_in_which_other_records_lie_than_brokers_have_read_is_not_joined() -> None:
    """It has no gap, it is long enough, and a member vouches for it; but generations were served by what it had."""
    alone = LoneEngine(REGROWN, log=THIS, registry=LOST, epochs=LEADERS)
    for _ in range(NEVER_S):
        alone.run(1)
        alone.put(HEARTBEAT_KEY, heartbeat("y-1", len(alone.channel) - 1))
    assert phase(alone) is Phase.WAITING
    assert "log.shorter" in alone.events
    assert not alone.engine.accepting


@pytest.mark.parametrize("epoch", [2, -1, "x", None])
def test_what_the_same_leader_took_or_nobody_knows_who_is_the_same_record(epoch: object) -> None:
    registry = [(1_000, b"z", member("z", log=THIS, applied={"0": READ}, epochs={"0": epoch}))]
    alone = LoneEngine(REGROWN, log=THIS, registry=registry, epochs=LEADERS)
    alone.run(12)
    assert alone.engine.accepting


def test_who_had_read_less_than_was_truncated_does_not_go_on_as_if_that_had_never_been() -> None:
    alone = LoneEngine(LOG, log=THIS, epochs={0: 1})
    alone.run(12)
    assert alone.engine.accepting
    end = len(alone.channel)
    alone.epochs[end] = 2
    alone.hear("z", log=THIS, applied={"0": end + 3}, epochs={"0": 1})
    alone.hear("z", incarnation="z-2", seq=1, since=1, log=THIS, applied={"0": 0}, epochs={"0": 1}, phase="joining")
    alone.run(3)
    assert phase(alone) is Phase.WAITING
    assert not alone.engine.accepting


def test_who_waits_tells_those_that_start_when_the_registry_has_forgotten_who_had_read_it() -> None:
    waiting = LoneEngine(REGROWN, log=THIS, registry=LOST, epochs=LEADERS)
    wait_long(waiting)
    assert phase(waiting) is Phase.WAITING
    last = [(1_000, key, value) for _, key, value in waiting.registry[-1:]]
    later = LoneEngine(waiting.channel, log=THIS, registry=last, accept_lost_head=True, take_over=True)
    wait_long(later)
    assert later.engine.accepting
    assert marks(later)[-1]["known"] == READ


def test_who_is_to_accept_a_truncation_starts_cold_above_every_version_that_can_have_been_served() -> None:
    alone = LoneEngine(REGROWN, log=THIS, registry=LOST, epochs=LEADERS, accept_lost_head=True)
    wait_long(alone)
    assert alone.engine.accepting
    assert min(key.version for key in alone.engine.replicas[0].view.live()) > 2 * READ
    assert marks(alone)[-1]["known"] == READ
    later = LoneEngine(alone.channel, log=THIS, registry=LOST, epochs=LEADERS)
    later.run(12)
    later.put(HEARTBEAT_KEY, heartbeat("a-1", len(later.channel) - 1))
    later.run(2)
    assert later.engine.caught_up, "the mark says that the loss was accepted"


@pytest.mark.parametrize(
    ("log", "deleted", "registry"),
    [
        (LOG, 0, DEAD),
        (LOG, 0, FOREIGN),
        ([], 0, DEAD),
        ([], 0, FOREIGN),
        ([*LOG, (BUNDLE, b"junk", 1_000)], 1, DEAD),
        ([*LOG, (NAMESPACE, CREATED, 1_000)], 1, []),
    ],
    ids=["shorter", "another topic", "emptied", "another topic, empty", "head and end lost", "head lost"],
)
def test_a_router_answers_nothing_from_a_log_that_has_lost_records(log, deleted, registry) -> None:
    """No namespace is missing, and none is there, for as long as nobody lives who knows."""
    alone = LoneEngine(log, log=THIS, registry=registry, deleted=deleted, observes=True)
    lookups = alone.engine.lookups
    for _ in range(30):
        alone.run(1)
        alone.ask_end()
        answers = [lookups.peek(lookups.answer_now, name) for name in ("t/n/topic", BUNDLE.decode(), "t/other/topic")]
        assert {type(answer) for answer in answers} == {Undetermined}, answers
    assert {answer.reason for answer in answers} == {NO_BROKER}
    assert "--accept-lost-head" in answers[0].hint, "to start a broker would not be enough"
    assert alone.channel == log


# --- a log that begins above 0 --------------------------------------------------------------------------------------


def test_who_is_alone_with_a_log_without_its_head_waits_for_who_knows_it() -> None:
    alone = LoneEngine([*LOG, (BUNDLE, b"junk", 1_000)], deleted=1)
    wait_long(alone)
    assert phase(alone) is Phase.WAITING
    assert "cold-start.began" not in alone.events


def test_a_heartbeat_alone_does_not_vouch_for_what_was_deleted() -> None:
    alone = LoneEngine([*LOG, (BUNDLE, b"junk", 1_000)], deleted=1)
    for _ in range(10):
        alone.put(HEARTBEAT_KEY, heartbeat("z-1", len(alone.channel) - 1))
        alone.run(1)
    assert phase(alone) is Phase.WAITING
    by = {"broker": "z", "incarnation": "z-1"}
    alone.put(HEAD_KEY, orjson.dumps({"through": len(alone.channel) - 1, "first": 1, "known": -1, "by": by}))
    alone.put(HEARTBEAT_KEY, heartbeat("z-1", len(alone.channel) - 1))
    assert alone.engine.caught_up


def test_the_leader_restates_what_was_deleted_before_it_marks_the_head() -> None:
    alone = LoneEngine(LOG)
    alone.run(12)
    end = len(alone.channel)
    alone.report(HeadLost(0, end))
    alone.run(2)
    (mark,) = marks(alone)
    assert mark["first"] == end
    restated = [offset for offset in alone.written(NAMESPACE) if offset >= end]
    assert restated
    assert restated[-1] < alone.written(HEAD_KEY)[0]
    assert "log.restated" in alone.events


def test_deletions_that_go_on_are_restated_again_with_a_pause_between_rounds() -> None:
    alone = LoneEngine(LOG)
    alone.run(12)
    rounds = 4
    for _ in range(rounds):
        alone.report(HeadLost(0, len(alone.channel)))
        alone.run(RESTATE_GAP_S / 2)
    alone.run(2 * RESTATE_GAP_S)
    firsts = [mark["first"] for mark in marks(alone)]
    assert firsts == sorted(set(firsts)), "each round marks a later offset"
    assert 2 <= len(firsts) <= rounds
    last = alone.written(NAMESPACE)[-1]
    assert firsts[-1] <= last < alone.written(HEAD_KEY)[-1]
    assert alone.engine.caught_up


def test_what_is_above_the_deleted_part_already_is_not_restated() -> None:
    alone = LoneEngine(LOG)
    alone.run(12)
    alone.report(HeadLost(0, 5))
    alone.run(2)
    again = len(alone.written(NAMESPACE))
    alone.run(RESTATE_GAP_S)
    alone.report(HeadLost(0, alone.written(NAMESPACE)[-1]))
    alone.run(2)
    assert len(marks(alone)) == 2
    assert len(alone.written(NAMESPACE)) == again
