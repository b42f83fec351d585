"""Heartbeats alone: who writes which when, at each bound of time and rank (protocol.md section 5)."""

from __future__ import annotations

import pytest

from tests.support.duties_bench import STEP_S, DutiesBench


@pytest.fixture
def bench() -> DutiesBench:
    return DutiesBench()


# --- heartbeats -----------------------------------------------------------------------------------------------------


def test_a_heartbeat_says_how_far_the_log_is_clean(bench):
    bench.settle(bench.read("t/x"))
    bench.duties.tick()
    ((partition, fields),) = bench.written.heartbeats
    assert partition == 0
    assert fields == {
        "format": 1, "kind": "heartbeat", "id": "id1", "covers": 0, "by": {"broker": "a", "incarnation": "a-1"},
        "clean_to": 0, "partitions": 1, "highest": 0, "written_at_ms": 100_000,
    }  # fmt: skip
    assert bench.echoed == [(0, "id1", 100.0)]


def test_with_a_debt_it_vouches_for_nothing(bench):
    bench.read("t/x")
    assert bench.beats() == [-1]


@pytest.mark.parametrize("debt", [False, True])
@pytest.mark.parametrize("joining", [False, True])
def test_a_leader_writes_one_each_interval_and_more_for_a_joiner_where_it_is_clean(bench, debt, joining):
    key = bench.read("t/x")
    if not debt:
        bench.settle(key)
    assert len(bench.beats()) == 1
    if joining:
        bench.join()
    bench.later(0.125)
    assert bench.beats() == []
    bench.later(0.125)
    hurried = joining and not debt
    assert len(bench.beats()) == hurried
    bench.later(0.5)
    assert len(bench.beats()) == hurried
    bench.later(0.125)
    assert bench.beats() == []
    bench.later(0.125)
    assert len(bench.beats()) == 1


def test_a_joiner_does_not_make_them_fewer():
    bench = DutiesBench(heartbeat_interval_s=0.125)
    bench.join()
    assert len(bench.beats()) == 1
    bench.later(0.125)
    assert len(bench.beats()) == 1


def test_the_first_clean_one_behind_a_debt_does_not_wait(bench):
    bench.join()
    key = bench.read("t/x")
    assert bench.beats() == [-1]
    bench.settle(key)
    assert bench.beats() == [0]


@pytest.mark.parametrize(("rank", "patience_s"), [(0, 3.0), (1, 4.0), (2, 5.0)])
@pytest.mark.parametrize("since", ["ready", "read", "written"])
def test_the_others_write_one_where_none_was_read_for_so_long(rank, patience_s, since):
    bench = DutiesBench()
    bench.follow(rank)
    if since != "ready":
        bench.later(1)
        bench.duties.heartbeat_read(0, clean=False)
    if since == "written":
        bench.later(patience_s)
        assert len(bench.beats()) == 1
    bench.later(patience_s - STEP_S)
    assert bench.beats() == []
    bench.later(STEP_S)
    assert len(bench.beats()) == 1


def test_who_writes_them_says_so_and_says_when_it_ceases(bench):
    bench.follow()
    bench.later(3)
    bench.duties.tick()
    assert bench.facts_of("duty.began") == [
        {"duty": "heartbeats", "partition": 0, "why": "no other member writes them"}
    ]
    for _ in range(16):
        bench.later(STEP_S)
        bench.duties.heartbeat_read(0, clean=True)
        bench.duties.tick()
        assert bench.facts_of("duty.ended") == []
    for _ in range(2):
        bench.later(STEP_S)
        bench.duties.heartbeat_read(0, clean=True)
        bench.duties.tick()
        assert bench.facts_of("duty.ended") == [{"duty": "heartbeats", "partition": 0}], "once"
    assert len(bench.facts_of("duty.began")) == 1


@pytest.mark.parametrize(("leading", "why"), [(True, "this broker leads"), (False, "no leader is heard")])
def test_who_acts_as_leader_says_why(bench, leading, why):
    bench.context.leading = leading
    for _ in range(2):
        bench.duties.tick()
        assert bench.facts_of("duty.began") == [{"duty": "heartbeats", "partition": 0, "why": why}], "once"


def test_debts_are_a_duty_until_none_is_open(bench):
    bench.join()
    keys = [bench.read("t/x"), bench.read("t/y")]
    bench.paid()
    began = [facts["duty"] for facts in bench.facts_of("duty.began")]
    assert began == ["debts", "heartbeats"]
    bench.settle(keys[0])
    bench.paid()
    assert bench.facts_of("duty.ended") == []
    bench.settle(keys[1])
    for _ in range(2):
        bench.paid()
        assert bench.facts_of("duty.ended") == [{"duty": "debts", "partition": 0}], "once"
    bench.read("t/x")
    bench.later(5)
    bench.paid()
    assert [facts["duty"] for facts in bench.facts_of("duty.began")] == ["debts", "heartbeats", "debts"]


@pytest.mark.parametrize("why", ["probe", "held back", "refused"])
def test_who_has_to_read_one_back_writes_one_each_interval_whoever_else_does(bench, why):
    bench.follow()
    assert bench.beats() == []
    written = bench.written
    {"probe": bench.probes, "held back": written.holding_back, "refused": written.awaiting_proof}[why].add(0)
    assert len(bench.beats()) == 1
    bench.later(0.75)
    bench.duties.heartbeat_read(0, clean=True)
    assert bench.beats() == []
    bench.later(STEP_S)
    assert len(bench.beats()) == 1


def test_who_has_to_read_one_back_does_not_write_fewer_for_a_joiner(bench):
    bench.join()
    bench.probes.add(0)
    assert len(bench.beats()) == 1
    bench.later(STEP_S)
    assert len(bench.beats()) == 1


@pytest.mark.parametrize("announced", [False, True])
@pytest.mark.parametrize("holds_back", [False, True])
@pytest.mark.parametrize("leads", [False, True])
def test_in_safe_mode_only_what_was_held_back_makes_it_write_and_it_vouches_for_nothing(
    bench, announced, holds_back, leads
):
    if not leads:
        bench.follow()
    bench.settle(bench.read("t/x"))
    bench.context.may_write = False
    bench.context.announced = announced
    bench.later(5)
    if holds_back:
        bench.written.holding_back.add(0)
    assert bench.beats() == ([-1] if announced and holds_back else [])


def test_what_vouched_for_nothing_was_no_clean_one(bench):
    bench.join()
    bench.settle(bench.read("t/x"))
    bench.context.may_write = False
    bench.written.holding_back.add(0)
    assert bench.beats() == [-1]
    bench.context.may_write = True
    bench.written.holding_back.clear()
    assert bench.beats() == [0]


# --- a clock that begins with nought --------------------------------------------------------------------------------


def test_heartbeats_of_the_first_second():
    bench = DutiesBench(at_s=0.0)
    bench.follow()
    bench.later(2.75)
    assert bench.beats() == []
    bench.later(STEP_S)
    assert len(bench.beats()) == 1


@pytest.mark.parametrize(("at_s", "beats"), [(0.125, 0), (0.25, 1)])
def test_clean_heartbeats_for_a_joiner_of_the_first_second(at_s, beats):
    bench = DutiesBench(at_s=0.0)
    bench.join()
    bench.later(at_s)
    assert len(bench.beats()) == beats


def test_a_leader_of_the_first_second():
    bench = DutiesBench(at_s=0.0)
    bench.later(0.75)
    assert bench.beats() == []
    bench.later(STEP_S)
    assert len(bench.beats()) == 1
