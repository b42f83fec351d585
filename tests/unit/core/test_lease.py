"""The lease at one moment: a process that was paused may be asked before its engine has heard of the time that went by."""

import orjson
import pytest

from statechannel.core.commands import CreateNamespace, Lookup, Owned, Shutdown
from statechannel.core.inputs import AppendFailed
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
    assert isinstance(answers[-1], Owned)
    return lone, answers[-1].generation


def test_who_serves_may_serve_at_that_generation():
    lone, generation = serving(lease_s=2.5)
    assert lone.engine.lease.serves_at(NAME, lone._now_s) == generation
    assert lone.engine.lease.serves_at("t/n/0x00000000_0x80000000", lone._now_s) is None


@pytest.mark.parametrize(("lease_s", "later_s", "may"), [(2.5, 2.0, True), (2.5, 4.0, False), (None, 4_000.0, True)])
def test_after_a_pause_the_clock_decides_not_what_was_stepped_last(lease_s, later_s, may):
    lone, generation = serving(lease_s=lease_s)
    before = lone.engine.serving()
    assert lone.engine.lease.serves_at(NAME, lone._now_s + later_s) == (generation if may else None)
    assert lone.engine.serving() == before == {NAME: generation}


def kinds(lone: LoneEngine, first: int) -> set[tuple[str, str]]:
    """Kind and writer of what stands in the registry from a place on."""
    values = [orjson.loads(value) for _, _, value in lone.registry[first:]]
    return {(value["kind"], value["broker"]) for value in values}


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
    assert lone.engine.lease.suspended
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
    assert not lone.engine.lease.suspended
    first = len(lone.registry)
    lone.run(2.0)
    assert kinds(lone, first) == {("member", "a")}


def test_a_goodbye_is_said_by_who_is_suspended_too():
    lone, _ = serving(lease_s=2.5)
    lone.deaf = True
    lone.run(10.0)
    assert lone.engine.lease.suspended
    lone.ask(Shutdown(1.0), lambda _: None)
    lone.run(5.0)
    assert [orjson.loads(value)["leaving"] for _, _, value in lone.registry if b'"member"' in value][-1] is True
