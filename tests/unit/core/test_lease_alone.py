"""The lease alone: when it runs out, is taken up again, and who waits for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from statechannel.engine.inputs import Now
from statechannel.engine.lease import Lease
from statechannel.engine.presence import Mode
from statechannel.engine.reactions import DueReaction
from tests.support.stub_engine import StubEngine


class Leased:
    """A lease of 2.5 s, its silence set by the test."""

    def __init__(self, lease_s: float | None = 2.5, *, take_over: bool = False) -> None:
        self.engine: Any = StubEngine(lease_s=lease_s, take_over=take_over)
        self.told: list[str] = []
        self.serves = True
        self.engine.presence = SimpleNamespace(
            announced=True,
            mode=Mode.NORMAL,
            silence_s=0.0,
            heartbeat_age_at_s=lambda now_s: self.heartbeat_age_s + now_s - self.engine.now.mono_s,
            members=SimpleNamespace(others_fit=lambda own: self.others_fit),
            announce_change=lambda: self.told.append("announced"),
        )
        self.others_fit = False
        self.heartbeat_age_s = 0.0
        self.engine.reactions = SimpleNamespace(
            release_all=lambda: self.told.append("released"),
            view_replaced=self.told.append,
            serving_count=3,
            generation=lambda name: 7,
            serves=lambda key: self.serves,
        )
        self.engine.candidacy = SimpleNamespace(seat=SimpleNamespace(writes=True))
        self.engine.replicas = [SimpleNamespace(partition=number, view=f"view {number}") for number in range(2)]
        self.lease = Lease(self.engine)

    def tick(self, silence_s: float, heartbeat_age_s: float | None = None) -> list[str]:
        self.engine.presence.silence_s = silence_s
        self.heartbeat_age_s = silence_s if heartbeat_age_s is None else heartbeat_age_s
        self.lease.tick()
        told, self.told[:] = list(self.told), []
        return told


def test_it_runs_out_once_and_is_taken_up_again_where_it_may_write_and_judges():
    leased = Leased()
    assert leased.tick(2.5) == []
    assert leased.tick(2.51) == ["released"]
    assert leased.tick(9.0) == []
    leased.engine.may_write = False
    assert leased.tick(0.5) == ["announced"]
    leased.engine.may_write = True
    leased.engine.not_judged = {0}
    assert leased.tick(0.5) == ["view 1"]
    assert leased.tick(0.5) == []
    assert leased.tick(3.0) == ["released"]
    names = [name for name, _ in leased.engine.events]
    assert [name for name in names if name.startswith("lease")] == ["lease.ran-out", "lease.resumed", "lease.ran-out"]


def test_it_runs_out_at_once_where_the_others_are_told_that_its_channel_records_are_lost():
    leased = Leased()
    leased.engine.candidacy.seat.writes = False
    assert leased.lease.serves_at("x", 100.0) is None
    assert leased.tick(0.0) == ["released"]
    assert leased.tick(0.0) == []
    leased.engine.candidacy.seat.writes = True
    assert leased.lease.serves_at("x", 100.0) == 7
    assert leased.tick(0.0) == ["view 0", "view 1"]


def test_without_one_or_before_it_is_announced_nothing_runs_out():
    assert Leased(None).tick(1_000.0) == []
    leased = Leased()
    leased.engine.presence.announced = False
    assert leased.tick(1_000.0) == []


@pytest.mark.parametrize(("now_s", "generation"), [(102.5, 7), (102.6, None)])
def test_who_may_serve_at_a_moment(now_s, generation):
    leased = Leased()
    assert leased.lease.serves_at("x", now_s) == generation
    leased.engine.stopped = "closed"
    assert leased.lease.serves_at("x", now_s) is None
    assert Leased(None).lease.serves_at("x", 1e9) == 7


@pytest.mark.parametrize("due", list(DueReaction))
@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("take_over", [False, True])
@pytest.mark.parametrize("serves", [False, True])
def test_who_waits_for_a_lease_to_run_out(due, forced, take_over, serves):
    leased = Leased(take_over=take_over)
    leased.serves = serves
    key: Any = SimpleNamespace(forced=forced)
    inherits = (
        due in (DueReaction.RESUME, DueReaction.GIVE_UP, DueReaction.TAKE_BACK, DueReaction.LET_GO)
        and take_over
        and not serves
    )
    waits = (due is DueReaction.RETURN and forced) or inherits
    assert leased.lease.wait_s(key, due) == (2.5 if waits else 0.0)
    assert Leased(None, take_over=True).lease.wait_s(key, due) == 0.0


@pytest.mark.parametrize(
    ("silence_s", "mode", "suspended"),
    [(2.5, Mode.SAFE, False), (2.51, Mode.SAFE, True), (2.51, Mode.STARTING, True), (9.0, Mode.SETTLING, True)],
)
def test_who_hears_itself_no_more_suspends_its_heartbeats(silence_s, mode, suspended):
    leased = Leased()
    leased.engine.presence.mode = mode
    leased.tick(silence_s)
    assert leased.lease.suspended is suspended


def test_they_are_resumed_and_announced_at_once_when_it_hears_itself_again():
    leased = Leased()
    leased.tick(9.0)
    assert leased.tick(2.5) == ["announced", "view 0", "view 1"]
    assert not leased.lease.suspended
    names = [name for name, _ in leased.engine.events]
    assert names == ["membership.suspended", "lease.ran-out", "membership.resumed", "lease.resumed"]
    assert leased.engine.events[0][1] == {"silence_s": 9.0, "mute_s": 0.0}


def test_a_probe_ends_the_suspension_and_only_a_heartbeat_brings_the_lease_back():
    leased = Leased()
    leased.tick(9.0)
    assert leased.tick(0.5, heartbeat_age_s=9.0) == ["announced"]
    assert not leased.lease.suspended
    assert leased.lease.ran_out
    assert leased.lease.serves_at("x", 100.0) is None
    assert leased.tick(0.5) == ["view 0", "view 1"]
    assert leased.lease.serves_at("x", 100.0) == 7


def mute(leased: Leased, at_s: float, *, others_fit: bool = True) -> bool:
    """A moment at which the channel does not take its records."""
    leased.others_fit = others_fit
    leased.engine.candidacy.seat.writes = False
    leased.engine.now = Now(at_s, 0)
    leased.tick(0.0)
    return leased.lease.suspended


def test_who_cannot_write_suspends_them_where_another_could_do_better_for_an_expiry():
    leased = Leased()
    assert not mute(leased, 100.0)
    assert not mute(leased, 106.0)
    assert mute(leased, 106.01)
    leased.engine.candidacy.seat.writes = True
    leased.tick(0.0)
    assert not leased.lease.suspended
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
    assert not leased.lease.suspended
