"""The lease at one moment: a process that was paused may be asked before its engine has heard of the time that went by."""

import orjson
import pytest

from statechannel.engine.commands import CreateNamespace, Lookup, Shutdown, Split, Transfer, Unload
from statechannel.engine.inputs import AppendFailed, HookFinished
from tests.support.lone_engine import BUNDLE, LoneEngine

NAME = BUNDLE.decode()


def serving(**config) -> tuple[LoneEngine, int]:
    """An engine that serves a bundle, and its generation."""
    lone = LoneEngine([], **config)
    lone.run(15)
    answers: list = []
    lone.ask(CreateNamespace("t/n", (0, 0xFFFFFFFF), "op1", 10), answers.append)
    lone.run(1)
    lone.ask(Lookup(NAME, 10), answers.append)
    lone.run(5)
    return lone, answers[-1].generation


def test_who_serves_may_serve_at_that_generation():
    lone, generation = serving(lease_s=2.5)
    assert lone.engine.lease.serves_at(NAME, lone.now_s) == generation
    assert lone.engine.lease.serves_at("t/n/0x00000000_0x80000000", lone.now_s) is None


@pytest.mark.parametrize("change", [Unload(NAME, "op2", 10), Transfer(NAME, "b", "op2", 10), Split(NAME, "op2", 10)])
def test_no_write_from_the_moment_that_the_end_of_the_generation_is_read_although_reads_go_on(change):
    lone, generation = serving(split_hooks=True)
    lone.hold_hooks = True
    accepts, reads = lone.engine.lease.accepts_writes_at, lone.engine.lease.serves_at
    assert accepts(NAME, lone.now_s) == reads(NAME, lone.now_s) == generation
    lone.hear("b")
    lone.ask(change, lambda _: None)
    lone.run(1)
    assert [call.hook for call in lone.held_hooks] == ["on_split" if isinstance(change, Split) else "on_release"]
    assert accepts(NAME, lone.now_s) is None
    assert reads(NAME, lone.now_s) == generation


@pytest.mark.parametrize(("lease_s", "later_s", "may"), [(2.5, 2.0, True), (2.5, 4.0, False), (None, 4_000.0, True)])
def test_after_a_pause_the_clock_decides_not_what_was_stepped_last(lease_s, later_s, may):
    lone, generation = serving(lease_s=lease_s)
    before = lone.engine.serving()
    assert lone.engine.lease.serves_at(NAME, lone.now_s + later_s) == (generation if may else None)
    assert lone.engine.serving() == before == {NAME: generation}


def kinds(lone: LoneEngine, first: int) -> set[tuple[str, str]]:
    """Kind and writer of what stands in the registry from a place on."""
    values = [orjson.loads(value) for _, _, value in lone.registry[first:]]
    return {(value["kind"], value["broker"]) for value in values}


def test_writes_stop_with_the_lease_as_reads_do():
    lone, generation = serving(lease_s=2.5)
    assert lone.engine.lease.accepts_writes_at(NAME, lone.now_s + 2.0) == generation
    assert lone.engine.lease.accepts_writes_at(NAME, lone.now_s + 4.0) is None
    lone.engine.stop("closed", "on request")
    assert lone.engine.lease.accepts_writes_at(NAME, lone.now_s) is None


def test_a_parent_that_comes_back_takes_writes_by_its_new_generation():
    lone, generation = serving(split_hooks=True)
    lone.hold_hooks = True
    lone.ask(Split(NAME, "op2", 10), lambda _: None)
    lone.run(1)
    lone.hold_hooks = False
    lone.report(HookFinished(lone.held_hooks[0].hook_id, "a client writes for ever"))
    lone.run(1)
    assert lone.engine.lease.accepts_writes_at(NAME, lone.now_s) == generation + 2


def test_an_owner_that_reads_the_registry_no_more_is_no_member_until_it_does():
    lone, generation = serving(lease_s=2.5)
    lone.deaf = True
    lone.run(2.4)
    assert lone.engine.serving() == {NAME: generation}
    lone.run(0.5)
    assert lone.engine.serving() == {}
    first = len(lone.registry)
    lone.run(60.0)
    assert kinds(lone, first) == {("probe", "a")}
    assert lone.engine.status()["suspended"]
    lone.deaf = False
    lone.run(0.2)  # its probes, and nothing else, tell it that it hears again
    first = len(lone.registry)
    lone.run(5.0)
    assert kinds(lone, first) == {("member", "a")}
    assert NAME in lone.engine.serving()
    assert lone.events.count("membership.suspended") == lone.events.count("membership.resumed") == 1


def test_others_take_no_probe_for_a_heartbeat():
    lone, _ = serving(lease_s=2.5)
    lone.hear("b")
    for number in range(80):
        lone.hear("b", kind="probe", seq=number)
        lone.run(0.1)
    assert "b" not in lone.engine.presence.members.alive


@pytest.mark.parametrize(
    "changed",
    [{"incarnation": "a-2"}, {"seq": 10**6}, {"seq": "7"}, {"kind": "pro"}, {"format": 2}, {"incarnation": None}],
)
def test_what_is_no_probe_of_its_own_does_not_prolong_the_lease(changed):
    lone, _ = serving(lease_s=2.5)
    lone.deaf = True
    lone.run(10.0)
    sent = [value for _, _, value in lone.registry if orjson.loads(value)["kind"] == "probe"]
    lone.registry[:] = [(ms, b"a", orjson.dumps(orjson.loads(sent[-1]) | changed)) for ms, _, _ in lone.registry]
    lone.deaf = False
    lone.hear("c")  # has everything before it read
    assert lone.engine.context.suspended
    assert not lone.engine.lease.holds(lone.engine.now.mono_s)


def test_a_member_that_cannot_write_the_channel_leaves_its_place_where_another_could_take_it():
    lone, _ = serving(lease_s=2.5)
    lone.hear("b")
    lone.fail = lambda _: AppendFailed(0, "topic authorization failed", 1, never_written=False)
    for _ in range(40):
        lone.hear("b")
        lone.run(1.0)
    first = len(lone.registry)
    lone.run(2.0)
    assert kinds(lone, first) == {("probe", "a")}
    assert lone.engine.mode == "normal"  # it hears itself
    lone.fail = lambda _: None
    for _ in range(5):
        lone.hear("b")
        lone.run(1.0)
    assert not lone.engine.context.suspended
    first = len(lone.registry)
    lone.run(2.0)
    assert kinds(lone, first) == {("member", "a")}


def test_a_member_that_cannot_write_the_channel_keeps_its_place_where_no_other_could_take_it():
    lone, _ = serving(lease_s=2.5)
    lone.fail = lambda _: AppendFailed(0, "topic authorization failed", 1, never_written=False)
    first = len(lone.registry)
    for _ in range(40):
        lone.hear("b", fit=False)
        lone.run(1.0)
    assert kinds(lone, first) == {("member", "a"), ("member", "b")}
    assert not lone.engine.status()["suspended"]


def test_a_goodbye_is_said_by_who_is_suspended_too():
    lone, _ = serving(lease_s=2.5)
    lone.deaf = True
    lone.run(10.0)
    assert lone.engine.context.suspended
    lone.ask(Shutdown(1.0), lambda _: None)
    lone.run(5.0)
    assert [orjson.loads(value)["leaving"] for _, _, value in lone.registry if b'"member"' in value][-1] is True


def test_no_probe_lets_it_serve_beside_a_newcomer_that_took_its_id_in_silence():
    lone, _ = serving(lease_s=2.5)
    lone.deaf = True
    lone.run(10.0)
    lone.deaf = False
    lone._pump()  # it hears its probes
    lone.deaf = True
    lone.hear("a", incarnation="a-2", since=-1)  # which comes before its next heartbeat
    for _ in range(20):
        lone.run(0.1)
        assert lone.events.count("membership.resumed") == 1
        assert lone.engine.serving() == {}
        assert lone.engine.lease.serves_at(NAME, lone.now_s) is None
    lone.deaf = False
    lone.run(0.2)
    assert lone.engine.stopped.reason == "replaced"


def test_nothing_is_taken_back_or_taken_up_once_the_lease_ran_out():
    lone, _ = serving(lease_s=2.5)
    lone.deaf = True
    lone.run(2.8)  # not in safe mode yet: it may write
    assert lone.engine.mode == "normal"
    lone.move(NAME, "z-1", "Releasing", **RELEASED)
    for _ in range(300):
        assert lone.engine.serving() == {}
        lone.run(0.1)
    key = lone.engine.key(NAME)
    assert key.state != "Releasing"  # what it let go of is let go of all the same


def test_what_a_state_asked_for_meanwhile_is_begun_with_the_lease():
    lone, _ = serving(lease_s=2.5)
    lone.deaf = True
    lone.run(2.8)
    lone.hear("b")
    lone.move(NAME, "a-0", "Assigned", **RESUMED)
    lone.run(0.5)
    assert lone.engine.reactions.tasks == {}
    lone.deaf = False
    lone.run(15.0)
    assert list(lone.engine.serving()) == [NAME]


def test_in_safe_mode_it_does_not_let_go_of_what_a_later_process_of_its_id_serves():
    lone, _ = serving(lease_s=2.5)
    lone.deaf = True
    lone.run(20.0)
    assert lone.engine.mode == "safe"
    lone.move(NAME, "a-2", "Assigned", **RESUMED)
    lone.move(NAME, "z-1", "Releasing", **RELEASED)
    lone.run(5.0)
    key = lone.engine.key(NAME)
    assert key.state == "Releasing"


RESUMED = {"from": None, "to": "a", "flow": "resume", "action": "resume"}
RELEASED = {"from": "a", "to": "b", "flow": "transfer", "action": "transfer"}


@pytest.mark.parametrize("released", [False, True])
def test_what_a_process_serves_that_took_its_id_over_unheard_is_left_to_it(released):
    lone, _ = serving(lease_s=2.5)
    lone.hear("b")
    lone.run(0.5)
    lone.deaf = True  # it reads the registry late, and holds its lease meanwhile
    lone.hear("a", incarnation="a-2", since=-1, take_over=True)
    lone.move(NAME, "a-2", "Assigned", **RESUMED)
    if released:  # the other one has not read it yet, and serves
        lone.move(NAME, "z-1", "Releasing", **RELEASED)
    end = len(lone.channel)
    for _ in range(60):
        lone.run(0.1)
        assert NAME not in [key.decode() for key, _, _ in lone.channel[end:]]
        assert lone.engine.serving() == {}
    lone.deaf = False
    lone.run(0.2)
    assert lone.engine.stopped.reason == "replaced"


@pytest.mark.parametrize("released", [False, True])
def test_a_late_record_of_a_process_that_never_comes_keeps_a_bundle_for_one_lease(released):
    lone, generation = serving(lease_s=2.5)
    lone.hear("b")
    lone.move(NAME, "a-2", "Assigned", **RESUMED)
    if released:
        lone.move(NAME, "z-1", "Releasing", **RELEASED)
    end = len(lone.channel)
    lone.run(2.4)
    assert NAME not in [key.decode() for key, _, _ in lone.channel[end:]]
    lone.run(0.6)
    if released:
        assert (lone.engine.key(NAME).state, lone.engine.key(NAME).to) == ("Assigning", "b")
    else:
        assert lone.engine.serving() == {NAME: generation + 2}


def test_what_its_predecessor_served_is_resumed_at_once():
    lone, generation = serving(lease_s=2.5)
    lone.engine.presence._foreign_last_ms["a-0"] = 1
    lone.move(NAME, "a-0", "Assigned", **RESUMED)
    lone.run(0.2)
    assert lone.engine.serving() == {NAME: generation + 2}


@pytest.mark.parametrize("lease_s", [2.5, None])
def test_who_never_hears_itself_is_no_member_for_the_others_either(lease_s):
    lone = LoneEngine([], lease_s=lease_s)
    lone.deaf = True
    lone.run(20.0)
    assert lone.engine.mode == "starting"
    first = len(lone.registry)
    lone.run(10.0)
    assert kinds(lone, first) == {("probe", "a")}
    lone.deaf = False
    lone.run(5.0)
    assert lone.engine.mode == "normal"
    assert lone.engine.lease.holds(lone.now_s)


def test_without_the_lease_who_serves_goes_on_and_is_heard():
    lone, generation = serving()
    lone.deaf = True
    first = len(lone.registry)
    lone.run(60.0)
    assert kinds(lone, first) == {("member", "a")}
    assert lone.engine.serving() == {NAME: generation}


def test_a_leader_whose_lease_ran_out_chooses_another_before_safe_mode_begins_too():
    lone, _ = serving(lease_s=2.5, safe_after_s=4.0)
    lone.elect(elected=True)
    lone.run(1.0)
    lone.hear("b")
    lone.deaf = True
    lone.run(2.8)
    assert lone.engine.mode == "normal"
    key = lone.engine.key(NAME)
    assert lone.engine.placer.choose(key) == "b"
    assert lone.engine.placer.choose(key, without="b") is None
    assert not lone.engine.context.accepts("a")


def test_who_hears_itself_late_reads_who_took_its_place_before_it_acts():
    lone = LoneEngine([])
    lone.deaf = True
    lone.run(20.0)
    lone.hear("a", incarnation="a-2", seq=1, since=-1)
    lone.hear("a", incarnation="a-2", seq=2, since=len(lone.registry) - 1)
    lone.read_registry_record()  # its own first, and nothing of what follows
    lone.run(0.2)
    assert lone.engine.mode == "starting"
    lone.deaf = False
    lone.run(0.2)
    assert lone.engine.stopped.reason == "replaced"
