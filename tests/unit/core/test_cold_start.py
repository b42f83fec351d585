"""Who may take what it reads for the truth, when that counts, and what others make of it (protocol section 5)."""

import orjson
import pytest

from statechannel.core import codec
from statechannel.core.commands import Lookup, Owned
from statechannel.core.inputs import AppendFailed, RecordRead, Topic
from statechannel.core.replica import Phase, Replica
from tests.support.lone_engine import BUNDLE, CREATED, NAMESPACE, LoneEngine, heartbeat, mark

KEY = codec.COLD_START_KEY
WHOLE = [(NAMESPACE, CREATED, 1)]
CLEANED = [(b"!heartbeat", b"", 1), *WHOLE]


def in_a_cold_start(**config: float) -> LoneEngine:
    """A process that has taken its view for the truth; its asserts and its mark are held on their way."""
    alone = LoneEngine(CLEANED, first=1, **config)
    alone.hold = True
    alone.run(20)
    assert alone.engine.cold_start.running
    assert not alone.engine.caught_up
    return alone


def marks_held(alone: LoneEngine) -> int:
    return sum(append.key == KEY for append in alone.held)


def lands_all_but_the_mark(alone: LoneEngine) -> None:
    """The asserts are judged; what follows them is held again."""
    alone.let_through()
    alone.hold = True
    alone.run(0.5)


def test_alone_on_a_cleaned_log_it_starts_cold():
    alone = LoneEngine(CLEANED, first=1)
    alone.run(30)
    assert alone.engine.caught_up
    assert len(alone.written(KEY)) == 1


def test_a_heartbeat_before_the_mark_makes_it_void():
    alone = LoneEngine(WHOLE)
    alone.hear("b", phase="joining")
    alone.run(3)
    read = len(alone.channel) - 1
    alone.put(b"!heartbeat", heartbeat("a-1", 0))
    alone.put(KEY, mark("b-1", read))
    assert alone.restarts == 0
    assert alone.engine.caught_up


def test_a_mark_counts_that_no_word_of_others_came_before():
    alone = LoneEngine(WHOLE)
    alone.hear("b", phase="joining")
    alone.run(3)
    alone.put(KEY, mark("b-1", len(alone.channel) - 1))
    assert alone.restarts == 1
    assert not alone.engine.caught_up


def test_a_late_copy_of_an_old_mark_is_void_for_one_who_joined_since():
    """Of all heartbeats only the newest is left in a cleaned log; it is enough, whoever wrote it (simulator, seed 10563)."""
    alone = LoneEngine(CLEANED, first=1)
    alone.hear("b")
    alone.run(3)
    alone.put(b"!heartbeat", heartbeat("b-1", len(alone.channel) - 1))
    assert alone.engine.caught_up
    alone.put(KEY, mark("b-1", 0))
    assert alone.engine.caught_up
    assert alone.restarts == 0


def test_its_own_late_heartbeat_ends_a_cold_start_as_well():
    alone = in_a_cold_start()
    alone.put(b"!heartbeat", heartbeat("a-1", 1))
    assert alone.restarts == 1
    assert not alone.engine.cold_start.running


def test_of_two_marks_the_first_counts():
    """Two that think they lead take what they read for the truth at the same time."""
    alone = in_a_cold_start()
    lands_all_but_the_mark(alone)
    assert marks_held(alone) == 1
    alone.hear("b", phase="joining")
    through = alone.engine.cold_start.running[0].through
    alone.let_through()
    assert alone.engine.caught_up
    alone.put(KEY, mark("b-1", through))
    assert alone.engine.caught_up
    assert alone.restarts == 0


def test_own_mark_is_void_too():
    alone = in_a_cold_start()
    lands_all_but_the_mark(alone)
    alone.hear("b", phase="joining")
    alone.put(KEY, mark("b-1", alone.engine.cold_start.running[0].through))
    assert alone.restarts == 1
    alone.let_through()
    assert not alone.engine.caught_up


def test_marks_of_strangers_cost_nothing():
    alone = LoneEngine(WHOLE)
    alone.run(12)
    for number in range(20):
        alone.put(KEY, mark(f"stranger-{number}", len(alone.channel) - 1))
        assert alone.engine.caught_up
    assert alone.restarts == 0


def test_a_mark_is_doubted_while_the_registry_is_read_less_far():
    alone = LoneEngine(WHOLE, cold_start_after_s=1.0)
    alone.run(3)
    read = len(alone.channel) - 1
    alone.put(KEY, mark("b-1", read))
    assert alone.engine.cold_start.in_doubt
    alone.put(KEY, mark("stranger", read))  # void beside b's, and does not hide it
    assert alone.engine.cold_start.in_doubt
    alone.hear("b")
    alone.run(0.5)
    assert alone.restarts == 1


def test_doubt_ends_where_the_registry_knows_nobody():
    alone = LoneEngine(WHOLE, cold_start_after_s=1.0)
    alone.run(3)
    alone.put(KEY, mark("stranger", len(alone.channel) - 1))
    assert not alone.engine.caught_up
    alone.run(2)
    assert alone.engine.caught_up
    assert alone.restarts == 0


def test_what_a_doubted_view_accepts_is_neither_served_nor_answered():
    """Its own record counts in this view; which history counts is not known yet (simulator, seed 16794)."""
    alone = LoneEngine(WHOLE, cold_start_after_s=1.0)
    alone.run(8)
    answers = []
    alone.hold = True
    alone.ask(Lookup("t/n/0x00000000_0xffffffff", 60.0), answers.append)
    assigning = [append for append in alone.held if append.key == BUNDLE]
    alone.put(KEY, mark("b-1", len(alone.channel) - 1))
    assert assigning
    assert alone.engine.cold_start.in_doubt
    alone.let_through()
    assert alone.engine.replicas[0].view.get(BUNDLE.decode()).state == "Assigning"
    assert alone.engine.serving() == {}
    assert answers == []
    alone.run(5)
    assert alone.restarts == 0
    assert list(alone.engine.serving()) == [BUNDLE.decode()]
    assert isinstance(answers[0], Owned)


def test_nobody_is_answered_from_the_middle_of_a_portion():
    """What follows in the same portion was read, too (simulator, seed 18797)."""
    alone = LoneEngine(WHOLE)
    alone.hear("z")
    alone.run(5)
    answers = []
    alone.hold = True
    alone.ask(Lookup("t/n/0x00000000_0xffffffff", 60.0), answers.append)
    covers = len(alone.channel) - 1
    head = {"format": 1, "kind": "proposal", "covers": covers, "by": {"broker": "z", "incarnation": "z-1"}}
    steps = [("p1", 2, "ns1/0x00000000_0xffffffff", "Assigning", None, "z"), ("p2", 3, "p1", "Assigned", None, "z")]
    steps.append(("p3", 4, "p2", "Releasing", "z", "a"))
    records = [
        head | {"id": name, "version": version, "base": base, "state": state, "from": source, "to": to}
        for name, version, base, state, source, to in steps
    ]
    alone.put_portion([(BUNDLE, orjson.dumps(one)) for one in records])
    assert alone.engine.replicas[0].view.get(BUNDLE.decode()).state == "Releasing"
    assert answers == []
    assert alone.engine.lookups.waiting == 1


def test_no_mark_where_the_registry_tells_of_a_caught_up_member():
    alone = in_a_cold_start()
    alone.hear("z")
    lands_all_but_the_mark(alone)
    assert marks_held(alone) == 0
    assert alone.restarts == 1


def test_no_mark_without_leadership():
    alone = in_a_cold_start()
    alone.elect(elected=False)
    lands_all_but_the_mark(alone)
    assert marks_held(alone) == 0
    alone.elect(elected=True)
    alone.run(1)
    assert marks_held(alone) == 1


def test_no_mark_while_another_mark_is_in_doubt():
    alone = in_a_cold_start(cold_start_after_s=1.0)
    alone.put(KEY, mark("y-1", len(alone.channel) - 1))
    lands_all_but_the_mark(alone)
    assert alone.engine.cold_start.in_doubt
    assert marks_held(alone) == 0


def test_what_was_on_its_way_before_takes_no_place_of_an_assert():
    """Its own records lie in the part that it re-read: nobody will say any more what became of them."""
    alone = LoneEngine(WHOLE, pending_max=2)
    alone.run(3)
    view = alone.engine.replicas[0].view
    alone.hold = True
    bundle = next(iter(view.live()))
    answers: list = []
    for _ in range(2):
        alone.between_steps(lambda: alone.engine.proposals.restate(bundle, answers.append))
    assert len(alone.held) == 2
    alone.hear("b", phase="joining")
    alone.put(KEY, mark("b-1", len(alone.channel) - 1))
    assert alone.restarts == 1
    alone.let_through()
    alone.run(60)
    assert alone.engine.caught_up
    assert len(answers) == 2


def test_a_strict_reader_does_not_read_on_over_a_cold_start():
    """A log without gaps, judged since by the view of a lenient reader: only a caught-up member can tell."""
    told = LoneEngine([*WHOLE, (KEY, mark("gone", 0), 2)])
    told.run(1)
    assert not told.engine.caught_up
    assert told.restarts == 1
    told.put(b"!heartbeat", heartbeat("b-1", len(told.channel) - 1))
    assert told.engine.caught_up


def test_the_bulk_of_a_replay_ends_before_a_cold_start():
    replica = Replica(0, 1, compaction_lag_s=3600.0, kept_records_max=10, tail_records=1)
    replica.opened(0.0, 0, 10)
    values = [*WHOLE, (KEY, mark("gone", 0), 2), *[(b"!heartbeat", b"", 3)] * 8]
    records = [RecordRead(Topic.CHANNEL, 0, offset, ms, key, value) for offset, (key, value, ms) in enumerate(values)]
    assert replica.read_many(0.0, records) == 1
    for record in records[1:]:
        replica.read(0.0, record)
    assert replica.phase is Phase.START_OVER


@pytest.mark.parametrize("through", ["0", None, 1.5, True])
def test_a_mark_without_an_offset_is_none(through):
    value = orjson.dumps({"through": through, "by": {"broker": "x", "incarnation": "b-1"}})
    alone = LoneEngine(WHOLE)
    alone.hear("b", phase="joining")
    alone.run(3)
    alone.put(KEY, value)
    assert alone.engine.caught_up
    assert alone.restarts == 0


def test_a_mark_in_a_portion_counts():
    alone = LoneEngine(WHOLE)
    alone.hear("b", phase="joining")
    alone.run(3)
    alone.put_portion([(KEY, mark("b-1", len(alone.channel) - 1))])
    assert alone.restarts == 1


@pytest.mark.parametrize("never_written", [True, False])
@pytest.mark.parametrize("key", [NAMESPACE, KEY])
def test_it_goes_on_after_appends_that_fail(key, never_written):
    alone = LoneEngine(CLEANED, first=1, unknown_limit_s=5.0)
    failures = []

    def fail(append):
        if append.key != key or len(failures) == 3:
            return None
        failures.append(append)
        return AppendFailed(append.token, "no", 1, never_written=never_written)

    alone.fail = fail
    alone.run(60)
    assert len(failures) == 3
    assert alone.engine.caught_up
    assert len(alone.written(KEY)) == 1


def test_its_asserts_wait_for_room():
    alone = LoneEngine([*CLEANED, *[(b"t/n%d" % number, b"junk", 2) for number in range(9)]], first=1, pending_max=3)
    alone.run(30)
    assert alone.engine.caught_up


def test_a_newer_format_among_what_was_kept_aside_stops_it():
    alone = LoneEngine(CLEANED, first=1)
    alone.run(5)
    alone.put(b"t/n", b'{"format":2}')
    alone.run(30)
    assert alone.engine.replicas[0].phase is Phase.STOPPED
    assert not alone.written(KEY)


@pytest.mark.parametrize(
    "value", [None, b"", b"{", b"7", b"{}", b'{"through":1}', b'{"through":1,"by":{"incarnation":7}}']
)
def test_what_is_no_mark_changes_nothing(value):
    alone = LoneEngine(WHOLE)
    alone.run(3)
    alone.put(KEY, value)
    assert alone.engine.caught_up
