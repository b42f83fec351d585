"""This process in the registry alone: every bound of silence, of its predecessor's and of another's under its id."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from statechannel.engine.context import Mode
from statechannel.engine.effects import Hook
from statechannel.engine.inputs import HookFailed, PositionReached
from statechannel.engine.lease import Lease
from statechannel.engine.presence import FRESH_TO_REFUSE
from statechannel.engine.troubles import UNPLACED_KEPT_MS, BlockedLoop, NoBroker
from statechannel.protocol.log import Topic
from statechannel.protocol.record import FORMAT
from statechannel.protocol.view import View
from tests.support.presence_bench import EXPIRY_S, INTERVAL_S, SAFE_S, SETTLE_S, PresenceBench


@pytest.fixture
def bench() -> PresenceBench:
    return PresenceBench()


# --- silence, modes, lease ----------------------------------------------------------------------------------------------


def test_silence_counts_from_the_sending_of_what_is_read_back_and_not_from_its_reading(bench):
    bench.normal()
    heard_s = bench.now_s
    bench.later(INTERVAL_S)
    (own,) = bench.sent()
    bench.later(2.5, tick=False)
    assert bench.presence.silence_s == bench.now_s - heard_s == 3.5
    bench.read(own)
    assert bench.presence.silence_s == 2.5
    assert bench.presence.heartbeat_age_at_s(bench.now_s + 1) == 3.5


@pytest.mark.parametrize(("silent_s", "holds"), [(2.4, True), (2.5, True), (2.501, False)])
def test_a_lease_counts_from_the_sending(silent_s, holds):
    """protocol.md section 8: a reader that lags must not believe that it was heard a moment ago."""
    bench = PresenceBench(lease_s=2.5)
    bench.normal()
    reactions: Any = None
    lease = Lease(bench.context, bench.presence, reactions)
    bench.later(1.0)
    (own,) = bench.sent()
    sent_s = bench.now_s
    bench.later(2.0, tick=False)
    bench.read(own)
    assert lease.holds(sent_s + silent_s) is holds


def test_an_older_heartbeat_that_comes_later_makes_nobody_younger_or_older(bench):
    bench.normal()
    bench.later(1.0)
    (first,) = bench.sent()
    bench.later(1.0)
    (second,) = bench.sent()
    bench.read(second)
    assert bench.presence.silence_s == 0.0
    bench.later(1.0, tick=False)
    bench.read(first)
    assert bench.presence.silence_s == 1.0
    bench.read(second)
    assert bench.presence.silence_s == 1.0, "each counts once"


@pytest.mark.parametrize(("silent_s", "mode"), [(SAFE_S, Mode.NORMAL), (SAFE_S + 0.01, Mode.SAFE)])
def test_beyond_its_bound_silence_is_safe_mode(bench, silent_s, mode):
    bench.normal()
    bench.later(silent_s)
    assert bench.context.registry_mode is mode


def test_from_safe_mode_it_settles_until_all_are_heard_again(bench):
    bench.normal()
    for broker in ("b", "c"):
        bench.hear(broker, f"{broker}-1")
    bench.later(SAFE_S + 1)
    own = bench.sent()[-1]
    assert bench.context.registry_mode is Mode.SAFE
    bench.read(own)
    bench.presence.tick()
    assert bench.context.registry_mode is Mode.SETTLING
    bench.hear("b", "b-1")
    bench.presence.tick()
    assert bench.context.registry_mode is Mode.SETTLING
    bench.hear("c", "c-1")
    bench.presence.tick()
    assert bench.context.registry_mode is Mode.NORMAL
    assert "mode from safe" in bench.notices
    changes = [(facts["before"], facts["mode"]) for name, facts in bench.context.events if name == "mode.changed"]
    assert changes == [("normal", "safe"), ("safe", "settling"), ("settling", "normal")]


@pytest.mark.parametrize(("after_s", "mode"), [(SETTLE_S - 0.1, Mode.SETTLING), (SETTLE_S, Mode.NORMAL)])
def test_settling_ends_after_its_time_whoever_is_missing(after_s, mode):
    bench = PresenceBench(safe_after_s=1_000.0, member_expiry_s=1_001.0)
    bench.normal()
    bench.hear("b", "b-1")
    bench.later(1_000.5)
    assert bench.context.registry_mode is Mode.SAFE
    bench.read(bench.sent()[-1])
    bench.presence.tick()
    assert bench.context.registry_mode is Mode.SETTLING
    bench.later(after_s)
    assert bench.context.registry_mode is mode


def test_who_was_cut_off_holds_no_silence_against_the_others(bench):
    bench.normal()
    bench.hear("b", "b-1")
    bench.later(EXPIRY_S + 1)
    assert bench.context.registry_mode is Mode.SAFE
    assert "b" in bench.presence.members.alive, "nothing expires while it is cut off"
    bench.read(bench.sent()[-1])
    bench.presence.tick()
    assert bench.presence.members.alive["b"].heard_at_s == bench.now_s


@pytest.mark.parametrize(("after_s", "lost"), [(EXPIRY_S, False), (EXPIRY_S + 0.01, True)])
def test_a_silent_member_is_lost_and_repair_hears_of_it(after_s, lost):
    bench = PresenceBench(safe_after_s=100.0)
    bench.normal()
    bench.hear("b", "b-1")
    bench.notices.clear()
    bench.later(after_s)
    assert (bench.notices == ["lost b", "members"]) is lost
    assert ("member.lost" in bench.events()) is lost


def test_absence_is_known_after_having_listened_for_the_expiry():
    bench = PresenceBench(safe_after_s=100.0)
    assert not bench.context.knows_absence()
    bench.normal()
    began_s = bench.context.listening_since_s
    bench.later(began_s + EXPIRY_S - bench.now_s - 0.5)
    assert not bench.context.knows_absence()
    bench.later(0.5)
    assert bench.context.knows_absence()
    bench.later(101)
    assert not bench.context.knows_absence(), "in safe mode nobody is called lost"


def test_heartbeats_go_out_at_the_interval_and_with_each_change_of_mode(bench):
    bench.normal()
    bench.later(INTERVAL_S - 0.01)
    assert bench.sent() == []
    bench.later(0.01)
    assert len(bench.sent()) == 1
    bench.presence.announce_change()
    assert len(bench.sent()) == 1
    bench.later(INTERVAL_S - 0.01)
    assert bench.sent() == []


# --- beginning ----------------------------------------------------------------------------------------------------------


def test_nothing_is_written_before_the_registry_was_read_to_its_end():
    bench = PresenceBench(end=2)
    bench.later(1)
    assert bench.sent() == []
    assert bench.presence.silence_s == 0.0
    bench.presence.announce_change()
    assert bench.sent() == []
    bench.hear("b", "b-1")
    bench.later(1)
    assert bench.sent() == []
    assert bench.context.listening_since_s is None
    bench.presence.reached(PositionReached(Topic.REGISTRY, 0, 2))
    assert bench.context.listening_since_s == bench.now_s
    bench.presence.tick()
    assert len(bench.sent()) == 1
    assert bench.presence.silence_s == 0.0


def test_it_is_normal_once_its_own_record_was_read(bench):
    bench.presence.tick()
    (own,) = bench.sent()
    assert (own["since"], own["seq"], own["leading"], own["term"], own["leaving"]) == (-1, 1, False, -1, False)
    bench.later(0.5)
    assert bench.context.registry_mode is Mode.STARTING
    since = bench.read(own)
    bench.presence.tick()
    assert bench.context.registry_mode is Mode.NORMAL
    (second,) = bench.sent()
    assert (second["since"], second["seq"]) == (since, 2)


def test_a_heartbeat_tells_how_the_process_is(bench):
    bench.presence.tick()
    (own,) = bench.sent()
    expected = {"http": None, "take_over": False, "accepting": True, "draining": False, "writable": True, "fit": True}
    assert {name: own[name] for name in expected} == expected


@pytest.mark.parametrize("http", ["", "http://a:8080"])
def test_the_address_of_its_pages_is_told_where_it_has_one(bench, http):
    bench.context.identity = replace(bench.context.identity, http=http)
    bench.presence.tick()
    assert bench.sent()[0]["http"] == (http or None)


def test_the_address_of_its_api_is_announced_as_soon_as_it_is_served(bench):
    bench.presence.tick()
    bench.presence.announce_api("https://b1.example.org:8450")
    assert [heartbeat["api"] for heartbeat in bench.sent()] == [None, "https://b1.example.org:8450"]


def test_what_blocks_its_loop_is_told(bench):
    bench.presence.tick()
    assert bench.sent()[0]["blocked"] is None
    bench.context.troubles.blocked = BlockedLoop(2, 1.04, "broker.py:20 in main", None, 99)
    bench.later(5)
    expected = {"times": 2, "seconds": 1.0, "place": "broker.py:20 in main", "hook": None, "at_ms": 99}
    assert bench.sent()[-1]["blocked"] == expected


def test_hooks_that_fail_are_reported_with_count_and_last_error(bench):
    bench.presence.tick()
    assert bench.sent()[0]["hooks_failed"] is None
    for at_ms in (90, 99):
        bench.context.troubles.note(HookFailed(Hook.ON_RELEASE, "t/n/x", "did not return"), at_ms)
    bench.later(5)
    last = {"times": 2, "since_ms": 90, "at_ms": 99, "bundle": "t/n/x", "error": "did not return"}
    assert bench.sent()[-1]["hooks_failed"] == {"on_release": last}


def test_bundles_without_a_broker_are_reported_until_one_takes_them_or_nobody_asks(bench):
    unplaced, now_ms = bench.context.troubles.unplaced, bench.context.now.wall_ms
    unplaced.note("t/n/x", NoBroker("isolation", "not x"), now_ms)
    unplaced.note("t/n/y", NoBroker("cordon", "not y", lasting=True), now_ms + 1)
    bench.later(5)
    bench.presence.tick()
    expected = {"bundles": 2, "bundle": "t/n/y", "reason": "cordon", "cause": "policies", "message": "not y"}
    assert bench.sent()[-1]["unplaced"] == expected | {"since_ms": now_ms, "at_ms": now_ms + 1}
    unplaced.forget("t/n/x")
    assert (unplaced.fields(now_ms) or {})["bundles"] == 1
    assert unplaced.fields(now_ms + 1 + UNPLACED_KEPT_MS) is not None
    assert unplaced.fields(now_ms + 2 + UNPLACED_KEPT_MS) is None


def test_the_extensions_that_run_with_it_are_told(bench):
    bench.context.identity = replace(bench.context.identity, extensions=("balancer",))
    bench.presence.tick()
    assert bench.sent()[0]["extensions"] == ["balancer"]


@pytest.mark.parametrize(
    ("draining", "writes", "accepting"), [(False, True, True), (True, True, False), (False, False, False)]
)
def test_who_drains_or_cannot_write_accepts_no_bundles(bench, draining, writes, accepting):
    bench.context.draining = draining
    bench.context.seat.writes = writes
    bench.presence.tick()
    (own,) = bench.sent()
    assert (own["accepting"], own["draining"], own["writable"]) == (accepting, draining, writes)


@pytest.mark.parametrize(("after_s", "announced"), [(EXPIRY_S, False), (EXPIRY_S + 0.01, True)])
def test_it_waits_until_its_predecessor_has_expired(after_s, announced):
    bench = PresenceBench(end=1)
    bench.hear("a", "a-0")
    bench.presence.tick()
    assert not bench.context.announced
    bench.later(after_s)
    assert bench.context.announced is announced


def test_the_age_of_a_predecessor_counts_by_the_logs_times():
    bench = PresenceBench(end=2)
    bench.hear("a", "a-0", at_ms=10_000)
    bench.hear("b", "b-1", at_ms=10_000 + round(1_000 * EXPIRY_S) + 10)
    bench.presence.tick()
    assert bench.context.announced


def test_who_takes_over_does_not_wait():
    bench = PresenceBench(end=1, take_over=True)
    bench.hear("a", "a-0")
    bench.presence.tick()
    assert bench.context.announced
    (own,) = bench.sent()
    assert own["take_over"] is True
    bench.read(own)
    bench.presence.tick()
    assert bench.sent()[-1]["take_over"] is False
    assert bench.context.stopped is None


@pytest.mark.parametrize("take_over", [False, True])
def test_a_predecessor_that_is_heard_while_it_listens_has_the_id(take_over):
    bench = PresenceBench(end=1, take_over=take_over)
    bench.hear("a", "a-0")
    for _ in range(FRESH_TO_REFUSE):
        assert bench.context.stopped is None
        bench.hear("a", "a-0")
    assert bench.context.stopped == (None if take_over else "id-in-use")


def test_what_lay_in_the_registry_before_is_no_sign_of_life():
    bench = PresenceBench(end=5)
    for _ in range(5):
        bench.hear("a", "a-0")
    assert bench.context.stopped is None
    assert bench.presence.predecessor_heard_ms("a-0") == bench.context.now.wall_ms
    assert bench.presence.predecessor_heard_ms("a-9") is None


def test_two_that_begin_at_the_same_time_do_not_both_go_on():
    for apart_ms, stopped in ((5_999, "id-in-use"), (6_000, None)):
        bench = PresenceBench()
        bench.presence.tick()
        (own,) = bench.sent()
        bench.hear("a", "a-2", at_ms=50_000)
        bench.read(own, at_ms=50_000 + apart_ms)
        assert bench.context.stopped == stopped


def test_one_that_was_read_back_before_this_one_wrote_is_its_predecessor():
    bench = PresenceBench(end=1)
    bench.hear("a", "a-0", since=0)
    bench.hear("a", "a-0", since=0)
    assert bench.context.stopped is None
    assert not bench.context.announced


def test_another_is_the_member_until_the_own_first_record_is_read():
    bench = PresenceBench()
    bench.presence.tick()
    bench.hear("a", "a-2", at_ms=50_000)
    assert bench.presence.members.alive["a"].incarnation == "a-2"


def test_a_goodbye_of_the_other_leaves_the_id_free():
    bench = PresenceBench()
    bench.presence.tick()
    (own,) = bench.sent()
    bench.hear("a", "a-2", at_ms=50_000)
    bench.hear("a", "a-2", at_ms=50_001, leaving=True)
    bench.read(own, at_ms=50_002)
    assert bench.context.stopped is None


# --- another process under this id ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("silent_ms", "stopped"), [(5_999, None), (6_000, "replaced")])
def test_one_that_comes_when_this_was_silent_for_the_expiry_replaces_it(bench, silent_ms, stopped):
    bench.normal()
    bench.hear("a", "a-2", at_ms=bench.presence.last_ms + silent_ms)
    assert bench.context.stopped == stopped
    assert bench.presence.members.alive["a"].incarnation == ("a-2" if stopped else "a-1")


def test_one_that_must_give_way_is_none_of_the_members(bench):
    bench.normal()
    bench.hear("a", "a-2", at_ms=bench.presence.last_ms + 1)
    assert not bench.presence.members.knows("a-2")
    assert (bench.events(), bench.notices) == ([], [])


def test_one_that_takes_over_replaces_it_at_once(bench):
    bench.normal()
    bench.hear("a", "a-2", take_over=True)
    assert bench.context.stopped == "replaced"


@pytest.mark.parametrize(("above", "stopped"), [(0, None), (1, "replaced")])
def test_one_that_was_read_back_behind_this_replaces_it(bench, above, stopped):
    bench.hear("b", "b-1")
    bench.normal()
    bench.hear("a", "a-2", since=bench.presence._own_first_offset + above)
    assert bench.context.stopped == stopped
    assert bench.presence.members.alive["a"].incarnation == ("a-2" if stopped else "a-1")


def test_its_goodbye_replaces_nobody(bench):
    bench.normal()
    bench.hear("a", "a-2", at_ms=bench.presence.last_ms + 60_000, since=99, leaving=True)
    assert bench.context.stopped is None


def test_one_that_is_heard_again_is_what_this_one_replaced(bench):
    bench.normal()
    bench.hear("a", "a-2", at_ms=bench.presence.last_ms + 1)
    bench.hear("a", "a-2", at_ms=bench.presence.last_ms + 60_000)
    assert bench.context.stopped is None


# --- the seat -----------------------------------------------------------------------------------------------------------


def test_a_leader_counts_from_the_reading_of_its_own_claim(bench):
    bench.normal()
    bench.later(1.0)
    (before,) = bench.sent()
    bench.presence.elected_changed(elected=True)
    (claim,) = bench.sent()
    assert (before["leading"], claim["leading"]) == (False, True)
    assert (bench.context.is_elected, bench.context.term) == (False, -1)
    bench.read(before)
    assert bench.context.term == -1
    offset = bench.read(claim)
    assert (bench.context.is_elected, bench.context.term) == (True, offset)
    assert bench.notices == ["leadership"]
    assert bench.events() == ["leader.elected"]
    bench.presence.elected_changed(elected=True)
    assert bench.sent() == []
    bench.later(1.0)
    bench.read(bench.sent()[-1])
    assert bench.context.term == offset


def test_the_first_record_of_a_registry_may_be_a_claim(bench):
    bench.presence.elected_changed(elected=True)
    bench.presence.tick()
    assert bench.read(bench.sent()[0]) == 0
    bench.presence.tick()
    assert (bench.context.is_elected, bench.context.term) == (True, 0)
    bench.presence.elected_changed(elected=False)
    assert (bench.context.is_elected, bench.context.term) == (False, -1)


def test_what_does_not_claim_the_lead_is_no_claim(bench):
    bench.normal()
    bench.presence.elected_changed(elected=True)
    (claim,) = bench.sent()
    bench.read(claim | {"leading": False})  # somebody writes under this process's name
    assert bench.context.term == -1


def test_a_claim_of_an_earlier_term_is_none(bench):
    bench.normal()
    bench.presence.elected_changed(elected=True)
    (old,) = bench.sent()
    bench.presence.elected_changed(elected=False)
    bench.presence.elected_changed(elected=True)
    (claim,) = bench.sent()
    bench.read(old)
    assert bench.context.term == -1
    bench.read(claim)
    assert bench.context.is_elected


def test_a_leader_that_is_not_elected_any_more_says_so_once(bench):
    bench.normal()
    bench.presence.elected_changed(elected=True)
    bench.presence.elected_changed(elected=False)
    assert bench.events() == []
    bench.presence.elected_changed(elected=True)
    bench.read(bench.sent()[-1])
    bench.notices.clear()
    bench.events()
    bench.presence.elected_changed(elected=False)
    assert (bench.context.term, bench.context.is_elected, bench.notices) == (-1, False, ["leadership"])
    assert bench.events() == ["leader.resigned"]
    bench.presence.elected_changed(elected=False)
    assert bench.notices == ["leadership"]


def test_it_does_not_lead_outside_of_normal_mode(bench):
    bench.normal()
    bench.presence.elected_changed(elected=True)
    bench.read(bench.sent()[-1])
    assert bench.context.is_elected
    bench.later(SAFE_S + 1)
    assert (bench.context.registry_mode, bench.context.is_elected) == (Mode.SAFE, False)
    assert bench.context.term >= 0


# --- others, the end ----------------------------------------------------------------------------------------------------


def test_who_comes_and_goes_is_told_once(bench):
    bench.normal()
    bench.hear("b", "b-1")
    assert (bench.events(), bench.notices) == (["member.joined"], ["members"])
    bench.hear("b", "b-1")
    assert (bench.events(), bench.notices) == ([], ["members"])
    bench.hear("b", "b-2", since=50)
    assert (bench.events(), bench.notices) == (["member.joined"], ["members"] * 2)
    bench.hear("b", "b-2", leaving=True)
    assert (bench.events(), bench.notices) == (["member.left"], ["members"] * 3)
    bench.hear("b", "b-2")
    assert (bench.events(), bench.notices) == ([], ["members"] * 3)


@pytest.mark.parametrize("more", [{}, {"since": 2}, {"leaving": True}], ids=str)
def test_another_process_that_does_not_replace_a_member_neither_comes_nor_goes(bench, more):
    bench.normal()
    bench.hear("b", "b-1", since=5)
    bench.events()
    bench.notices.clear()
    bench.hear("b", "b-0", **more)
    assert (bench.events(), bench.notices) == ([], [])
    assert bench.presence.members.alive["b"].incarnation == "b-1"


def test_a_late_record_of_one_that_said_goodbye_is_told_to_nobody(bench):
    bench.normal()
    bench.hear("b", "b-0", leaving=True)
    bench.hear("b", "b-1")
    bench.events()
    bench.hear("b", "b-0")
    assert bench.events() == []


def test_the_size_of_a_heartbeat_counts(bench):
    bench.normal()
    bench.hear("b", "b-1")
    size_bytes = bench.presence.members.alive["b"].size_bytes
    bench.hear("b", "b-1", x="y" * 100)
    assert bench.presence.members.alive["b"].size_bytes == size_bytes + len(',"x":""') + 100


def test_what_lay_there_before_is_told_to_nobody_but_counts():
    bench = PresenceBench(end=2)
    bench.hear("b", "b-1")
    bench.hear("b", "b-1", leaving=True)
    assert bench.events() == []
    assert bench.notices == ["members", "members"]
    bench.hear("c", "c-1")
    assert bench.events() == ["member.joined"]


def test_kafkas_clock_is_read_from_own_records_and_every_partition_hears_of_it(bench):
    heard: list[Any] = []
    lost = {"view": View(0, 1), "is_headless": False, "kept": None}
    bench.context.replicas = [
        SimpleNamespace(partition=0, applied=-1, phase="waiting", caught_up=False, learn_clock=heard.append, **lost)
    ]
    bench.presence.tick()
    sent_ms = round(1_000 * bench.now_s)
    bench.later(2.0)
    assert (bench.presence.clock_ahead_ms, bench.presence.last_ms) == (None, 0)
    bench.read(bench.sent()[0], at_ms=sent_ms + 250)
    assert bench.presence.clock_ahead_ms == 250
    assert heard == [250]
    assert "partition 0 was waiting" in bench.notices


def test_a_newer_format_is_written_once_all_who_could_be_there_read_it():
    bench = PresenceBench(newest_format=FORMAT + 1, safe_after_s=100.0)
    bench.normal()
    bench.hear("b", "b-1", formats=[FORMAT])
    bench.later(EXPIRY_S - 0.1)
    bench.hear("b", "b-1", formats=[FORMAT, FORMAT + 1])
    bench.presence.tick()
    assert bench.presence.writes_format == FORMAT, "somebody may be there who was not heard yet"
    bench.events()
    bench.later(0.2)
    assert bench.presence.writes_format == FORMAT + 1
    assert bench.context.events == [("format.changed", {"before": FORMAT, "format": FORMAT + 1})]
    bench.hear("c", "c-1")
    bench.events()
    bench.presence.tick()
    assert bench.presence.writes_format == FORMAT
    assert bench.events() == ["format.changed"]


def test_a_goodbye_is_the_last_that_it_writes(bench):
    bench.normal()
    assert (bench.presence.goodbye_sent, bench.presence.goodbye_heard) == (False, False)
    bench.presence.say_goodbye()
    (last,) = bench.sent()
    assert last["leaving"] is True
    bench.presence.say_goodbye()
    bench.presence.announce_change()
    bench.later(5)
    assert bench.sent() == []
    bench.read(last)
    assert (bench.presence.goodbye_sent, bench.presence.goodbye_heard) == (True, True)


def test_nor_does_it_claim_the_lead_behind_its_goodbye(bench):
    bench.normal()
    bench.presence.say_goodbye()
    bench.sent()
    bench.presence.elected_changed(elected=True)
    assert bench.sent() == []


def test_who_was_never_there_says_no_goodbye_and_does_not_come_any_more():
    bench = PresenceBench(end=1)
    bench.hear("a", "a-0")
    bench.presence.tick()
    bench.presence.say_goodbye()
    assert (bench.sent(), bench.presence.goodbye_sent) == ([], True)
    bench.later(EXPIRY_S + 0.01)  # its predecessor has expired
    assert (bench.sent(), bench.context.announced) == ([], False)
