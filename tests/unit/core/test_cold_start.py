"""Who may take what it reads for the truth, when that counts, and what others make of it (protocol.md section 5)."""

import orjson
import pytest

from statechannel.engine.commands import Lookup, Owned
from statechannel.engine.config import EngineConfig, Identity
from statechannel.engine.effects import Append, Emit
from statechannel.engine.engine import Engine
from statechannel.engine.inputs import AppendFailed, LeadershipChanged, Now, PartitionOpened, PositionReached, Tick
from statechannel.engine.proposals import ProposalStatus
from statechannel.protocol import codec
from statechannel.protocol.digest import digest
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.replica import Phase, Replica
from statechannel.protocol.states import IN_FLIGHT, Action, Flow, State
from tests.support.cold_start_logs import cold_start_log, proposal
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
    assert alone.engine.caught_up  # a whole log: the mark is crossed strictly


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
    assert alone.engine.context.in_doubt
    alone.put(KEY, mark("stranger", read))  # void beside b's, and does not hide it
    assert alone.engine.context.in_doubt
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
    alone = LoneEngine(WHOLE, cold_start_after_s=1.0, heartbeat_interval_s=0.3)
    alone.run(8)
    answers = []
    alone.hold = True
    alone.ask(Lookup("t/n/0x00000000_0xffffffff", 60.0), answers.append)
    assigning = [append for append in alone.held if append.key == BUNDLE]
    alone.put(KEY, mark("b-1", len(alone.channel) - 1))
    assert assigning
    assert alone.engine.context.in_doubt
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
    alone.put_portion([(BUNDLE, orjson.dumps(record)) for record in records])
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
    assert 0 in alone.engine.context.doubtful
    assert marks_held(alone) == 0
    lands_all_but_the_mark(alone)
    assert 0 not in alone.engine.context.doubtful, "the registry was read since, and knows no such process"
    assert marks_held(alone) == 1


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


def test_nothing_is_told_as_accepted_of_a_view_that_is_only_taken_for_the_truth():
    """Another's record was first, and the cleaner has taken it; until the mark is read back its word may still count."""
    alone = LoneEngine(WHOLE)
    alone.run(5)
    alone.hold = True
    bundle = next(iter(alone.engine.replicas[0].view.live()))
    ends: list = []
    fields = {"action": Action.OWN, "flow": Flow.ASSIGNMENT, "operation": "op2", "to": "y"}
    alone.between_steps(lambda: alone.engine.proposals.propose(bundle, State.ASSIGNING, ends.append, **fields))
    (own,) = [append for append in alone.held if append.key == BUNDLE]
    alone.away = True
    alone.put(BUNDLE, proposal("p1", 2, "ns1/0x00000000_0xffffffff", "Assigning", to="z"))
    alone.first = len(alone.channel)
    alone.held = [own]
    alone.let_through()
    alone.hold = True
    active = {"version": 1, "asserts": "ns1", "state": "Active", "children": ["0x00000000_0xffffffff"]}
    alone.put(NAMESPACE, restated("z-1", alone.first, active))
    alone.reopen()
    alone.away = False
    alone.run(20)
    assert alone.engine.cold_start.running
    assert alone.engine.replicas[0].view.get(BUNDLE.decode()).to == "y"
    assert ProposalStatus.ACCEPTED not in [end.status for end in ends]


def test_each_partition_is_waited_for_as_long():
    """One has waited for long and another is joined anew: a heartbeat of that one may still come within the bound."""
    engine, registry, began = Engine(Identity("a", "a-1", b"0123456789", 1000), EngineConfig(partitions=2)), [], []
    now_s = 100.0

    def step(event):
        for effect in engine.step(Now(now_s, round(now_s * 1000)), event):
            if isinstance(effect, Append) and effect.topic is Topic.REGISTRY:
                registry.append(effect.value)
            elif isinstance(effect, Emit) and effect.event == "cold-start.began":
                began.append(effect.facts["partition"])

    def opened(partition, first):
        step(PartitionOpened(Topic.CHANNEL, partition, 0, first))
        step(PositionReached(Topic.CHANNEL, partition, first, now_s))

    def run(seconds):
        nonlocal now_s
        for _ in range(round(seconds * 10)):
            now_s += 0.1
            step(Tick())
            for offset in range(engine.presence._position, len(registry)):
                step(RecordRead(Topic.REGISTRY, 0, offset, round(now_s * 1000), b"a", registry[offset]))

    step(PartitionOpened(Topic.REGISTRY, 0, 0, 0))
    opened(0, 5)
    opened(1, 0)
    run(30)
    assert [replica.phase for replica in engine.replicas] == [Phase.WAITING, Phase.CAUGHT_UP]
    step(RecordRead(Topic.CHANNEL, 1, 7, round(now_s * 1000), b"!heartbeat", b"behind a gap"))
    opened(1, 8)
    step(LeadershipChanged(True))
    run(5)
    assert began == [0]


JUNK = {"version": 9, "asserts": "p9", "state": "Assigning", "from": None, "to": "y"}
GONE = {"version": 0, "asserts": None, "state": "Absent", "from": None, "to": None}


def restated(writer: str, covers: int, fields: dict) -> bytes:
    head = {"format": 1, "kind": "assert", "id": f"as-{writer}", "covers": covers}
    return orjson.dumps(head | {"by": {"broker": "x", "incarnation": writer}} | fields)


def owned() -> list[tuple[bytes, bytes | None, int]]:
    """A bundle of z at generation 3, and junk that only a lenient reader believes."""
    p1 = proposal("p1", 2, "ns1/0x00000000_0xffffffff", "Assigning", to="z")
    junk = proposal("p9", 9, "p8", "Assigning", to="y")
    return [*WHOLE, (BUNDLE, p1, 2), (BUNDLE, proposal("p2", 3, "p1", "Assigned", to="z"), 3), (BUNDLE, junk, 4)]


@pytest.mark.parametrize(
    ("more", "version", "state"),
    [
        pytest.param([(KEY, b"x")], 3, "Assigned", id="junk"),
        pytest.param([(KEY, None)], 3, "Assigned", id="a null"),
        pytest.param([(KEY, mark("gone", 3))], 3, "Assigned", id="a mark without asserts"),
        pytest.param([(BUNDLE, restated("gone", 3, JUNK))], 3, "Assigned", id="asserts without a mark"),
        pytest.param(
            [(BUNDLE, restated("gone", 3, JUNK)), (KEY, mark("gone", 3))], 9, "Assigning", id="a higher version"
        ),
        pytest.param(
            [(BUNDLE, restated("gone", 3, GONE)), (KEY, mark("gone", 3))], 1, "Unassigned", id="it had not read it"
        ),
        pytest.param(
            [(NAMESPACE, restated("gone", 3, {**GONE})), (KEY, mark("gone", 3))], None, None, id="no namespace"
        ),
        pytest.param(
            [(BUNDLE, restated("gone", 3, JUNK)), (KEY, mark("other", 3))], 3, "Assigned", id="of another writer"
        ),
        pytest.param(
            [(BUNDLE, restated("gone", 3, JUNK)), (KEY, mark("gone", 4))], 3, "Assigned", id="before its own view"
        ),
        pytest.param(
            [(BUNDLE, restated("gone", 3, JUNK)), (b"!heartbeat", heartbeat("b-1", -1)), (KEY, mark("gone", 3))],
            3, "Assigned", id="a void mark",
        ),
        pytest.param(
            [(BUNDLE, restated("gone", 3, JUNK)), (b"!heartbeat", b"x"), (KEY, mark("gone", 3))],
            9, "Assigning", id="no heartbeat makes it void",
        ),
        pytest.param(
            [(BUNDLE, restated("gone", 1, {**GONE, "version": 2, "state": "Assigning", "to": "z"})),
             (KEY, mark("gone", 3))], 3, "Assigned", id="an older one that has not seen it",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("tail", [1, 10_000])
def test_a_strict_reader_crosses_a_cold_start(more, version, state, tail):
    """What counts behind a mark are the asserts of its writer, and nothing else that stands there."""
    alone = LoneEngine([*owned(), *[(key, value, 5) for key, value in more]], replay_tail_records=tail)
    alone.run(1)
    assert alone.engine.caught_up
    assert alone.restarts == 0
    held = alone.engine.replicas[0].view.get(BUNDLE.decode())
    assert (held and (held.version, held.state)) == (version and (version, state))
    assert ("cold-start.overruled" in alone.events) is (version != 3)


def test_a_strict_reader_holds_what_the_cold_starter_holds():
    records, alone = cold_start_log(differs=True)
    strict = LoneEngine([(record.key, record.value, record.timestamp_ms) for record in records])
    assert strict.engine.caught_up
    assert digest([strict.engine.replicas[0].view]) == digest([alone.engine.replicas[0].view])
    view = strict.engine.replicas[0].view
    assert sum(view.load.values()) == sum(key.bound_for is not None for key in view.live())
    assert set(view.in_flight) == {key for key in view.live() if key.state in IN_FLIGHT}


def test_the_bulk_of_a_replay_ends_before_a_cold_start():
    replica = Replica(0, 1, compaction_lag_s=3600.0, kept_records_max=10, tail_records=1)
    replica.opened(0.0, 0, 10)
    values = [*WHOLE, (KEY, mark("gone", 0), 2), *[(b"!heartbeat", b"", 3)] * 8]
    records = [RecordRead(Topic.CHANNEL, 0, offset, ms, key, value) for offset, (key, value, ms) in enumerate(values)]
    assert replica.read_many(0.0, records) == 1
    for record in records[1:]:
        replica.read(0.0, record)
    assert replica.marks.newest == 1
    assert replica.caught_up


def test_a_heartbeat_in_the_same_portion_does_not_hide_the_asserts_behind_it():
    """The bulk of a replay takes a whole portion in before it looks at the heartbeats of it."""
    values = [*owned(), (b"!heartbeat", heartbeat("b-1", -1), 5), (BUNDLE, restated("gone", 4, JUNK), 5)]
    values.append((KEY, mark("gone", 4), 5))
    records = [RecordRead(Topic.CHANNEL, 0, offset, ms, key, value) for offset, (key, value, ms) in enumerate(values)]
    replica = Replica(0, 1, compaction_lag_s=3600.0, kept_records_max=10, tail_records=1)
    replica.opened(0.0, 0, len(records))
    assert replica.read_many(0.0, records) == len(records) - 1
    replica.read(0.0, records[-1])
    held = replica.view.get(BUNDLE.decode())
    assert (held.version, held.state) == (9, "Assigning")


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
