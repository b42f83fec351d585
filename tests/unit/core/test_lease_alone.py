"""The lease alone: when it runs out, is taken up again, and who waits for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from statechannel.engine.context import Mode
from statechannel.engine.inputs import Now
from statechannel.engine.lease import Lease
from statechannel.engine.reactions import DueReaction
from statechannel.protocol.keys import Writer
from tests.support.stub_context import ReactionsBench, StubContext


class Leased:
    """A lease of 2.5 s, its silence set by the test."""

    def __init__(self, lease_s: float | None = 2.5, *, take_over: bool = False) -> None:
        self.context: Any = StubContext(lease_s=lease_s, take_over=take_over)
        self.calls: list[str] = []
        self.context.announced, self.context.registry_mode = True, Mode.NORMAL
        self.context.members = SimpleNamespace(others_fit=lambda own: self.others_fit)
        self.presence: Any = SimpleNamespace(
            silence_s=0.0,
            heartbeat_age_at_s=lambda now_s: self.heartbeat_age_s + now_s - self.context.now.mono_s,
            announce_change=lambda: self.calls.append("announced"),
        )
        self.others_fit = False
        self.heartbeat_age_s = 0.0
        reactions: Any = SimpleNamespace(
            release_all=lambda: self.calls.append("released"),
            view_replaced=self.calls.append,
            serving_count=3,
            generation=lambda name: 7,
        )
        self.context.replicas = [SimpleNamespace(partition=number, view=f"view {number}") for number in range(2)]
        self.lease = Lease(self.context, self.presence, reactions)

    def tick(self, silence_s: float, heartbeat_age_s: float | None = None) -> list[str]:
        self.presence.silence_s = silence_s
        self.heartbeat_age_s = silence_s if heartbeat_age_s is None else heartbeat_age_s
        self.lease.tick()
        events, self.calls[:] = list(self.calls), []
        return events


def test_it_runs_out_once_and_is_taken_up_again_where_it_may_write_and_judges():
    leased = Leased()
    assert leased.tick(2.5) == []
    assert leased.tick(2.51) == ["released"]
    assert leased.tick(9.0) == []
    leased.context.may_write = False
    assert leased.tick(0.5) == ["announced"]
    leased.context.may_write = True
    leased.context.not_judged = {0}
    assert leased.tick(0.5) == ["view 1"]
    assert leased.tick(0.5) == []
    assert leased.tick(3.0) == ["released"]
    names = [name for name, _ in leased.context.events]
    assert [name for name in names if name.startswith("lease")] == ["lease.ran-out", "lease.resumed", "lease.ran-out"]


def test_it_runs_out_at_once_where_the_others_are_told_that_its_channel_records_are_lost():
    leased = Leased()
    leased.context.seat.writes = False
    assert leased.lease.serves_at("x", 100.0) is None
    assert leased.tick(0.0) == ["released"]
    assert leased.tick(0.0) == []
    leased.context.seat.writes = True
    assert leased.lease.serves_at("x", 100.0) == 7
    assert leased.tick(0.0) == ["view 0", "view 1"]


def test_without_one_or_before_it_is_announced_nothing_runs_out():
    assert Leased(None).tick(1_000.0) == []
    leased = Leased()
    leased.context.announced = False
    assert leased.tick(1_000.0) == []


@pytest.mark.parametrize(("now_s", "generation"), [(102.5, 7), (102.6, None)])
def test_who_may_serve_at_a_moment(now_s, generation):
    leased = Leased()
    assert leased.lease.serves_at("x", now_s) == generation
    leased.context.stopped = "closed"
    assert leased.lease.serves_at("x", now_s) is None
    assert Leased(None).lease.serves_at("x", 1e9) == 7


@pytest.mark.parametrize("due", list(DueReaction))
@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("take_over", [False, True])
@pytest.mark.parametrize("serves", [False, True])
@pytest.mark.parametrize(
    "server", [None, "a-0", "a-1", "a-2"]
)  # unknown, its predecessor, itself, and one that is not heard
def test_who_waits_for_a_lease_to_run_out(due, forced, take_over, serves, server):
    def wait_s(lease_s: float | None, *, take_over: bool) -> float:
        reactions: Any = ReactionsBench(lease_s=lease_s, take_over=take_over, tick_interval_s=0.25).reactions
        reactions.serves = lambda _: serves
        reactions._presence = SimpleNamespace(may_be_replaced_by=lambda writer: writer.incarnation == "a-2")
        waited_s: float = reactions._lease_wait_s(key, due)
        return waited_s

    key: Any = SimpleNamespace(forced=forced, server=None if server is None else Writer("a", server))
    of_predecessor = due in (DueReaction.RESUME, DueReaction.GIVE_UP, DueReaction.TAKE_BACK, DueReaction.LET_GO)
    inherits = of_predecessor and not serves
    if inherits and server == "a-2":
        expected_s = 2.75
    else:
        expected_s = 2.5 if (due is DueReaction.RETURN and forced) or (inherits and take_over) else 0.0
    assert wait_s(2.5, take_over=take_over) == expected_s
    assert wait_s(None, take_over=True) == 0.0


@pytest.mark.parametrize(
    ("silence_s", "mode", "suspended"),
    [(2.5, Mode.SAFE, False), (2.51, Mode.SAFE, True), (2.51, Mode.STARTING, True), (9.0, Mode.SETTLING, True)],
)
def test_who_hears_itself_no_more_suspends_its_heartbeats(silence_s, mode, suspended):
    leased = Leased()
    leased.context.registry_mode = mode
    leased.tick(silence_s)
    assert leased.context.suspended is suspended


def test_they_are_resumed_and_announced_at_once_when_it_hears_itself_again():
    leased = Leased()
    leased.tick(9.0)
    assert leased.tick(2.5) == ["announced", "view 0", "view 1"]
    assert not leased.context.suspended
    names = [name for name, _ in leased.context.events]
    assert names == ["membership.suspended", "lease.ran-out", "membership.resumed", "lease.resumed"]
    assert leased.context.events[0][1] == {"silence_s": 9.0, "mute_s": 0.0}


def test_a_probe_ends_the_suspension_and_only_a_heartbeat_brings_the_lease_back():
    leased = Leased()
    leased.tick(9.0)
    assert leased.tick(0.5, heartbeat_age_s=9.0) == ["announced"]
    assert not leased.context.suspended
    assert leased.context.lease_ran_out
    assert leased.lease.serves_at("x", 100.0) is None
    assert leased.tick(0.5) == ["view 0", "view 1"]
    assert leased.lease.serves_at("x", 100.0) == 7


def mute(leased: Leased, at_s: float, *, others_fit: bool = True) -> bool:
    """A moment at which the channel does not take its records."""
    leased.others_fit = others_fit
    leased.context.seat.writes = False
    leased.context.now = Now(at_s, 0)
    leased.tick(0.0)
    return leased.context.suspended


def test_who_cannot_write_suspends_them_where_another_could_do_better_for_an_expiry():
    leased = Leased()
    assert not mute(leased, 100.0)
    assert not mute(leased, 106.0)
    assert mute(leased, 106.01)
    leased.context.seat.writes = True
    leased.tick(0.0)
    assert not leased.context.suspended
    assert not mute(leased, 107.0)


def test_where_all_are_cut_off_from_the_channel_nobody_suspends_them():
    leased = Leased()
    assert not mute(leased, 100.0)
    assert not mute(leased, 105.9)
    assert not mute(leased, 106.5, others_fit=False)
    assert not mute(leased, 107.0)
    assert not mute(leased, 113.0)
    assert mute(leased, 113.01)


def test_without_a_lease_who_hears_nothing_goes_on_serving_and_is_a_member():
    leased = Leased(None)
    assert not mute(leased, 100.0)
    assert not mute(leased, 900.0)
    leased.tick(1_000.0)
    assert not leased.context.suspended


@pytest.mark.parametrize(
    ("silence_s", "mode", "suspended"),
    [(6.0, Mode.STARTING, False), (6.01, Mode.STARTING, True), (60.0, Mode.NORMAL, False), (60.0, Mode.SAFE, False)],
)
def test_without_a_lease_only_who_is_not_a_member_yet_suspends_its_heartbeats(silence_s, mode, suspended):
    leased = Leased(None)
    leased.context.registry_mode, leased.context.registered = mode, mode is not Mode.STARTING
    leased.tick(silence_s)
    assert leased.context.suspended is suspended
    expected = [("membership.suspended", {"silence_s": silence_s, "mute_s": 0.0})] if suspended else []
    assert leased.context.events == expected
