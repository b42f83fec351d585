"""Who is sick gives the leader's seat up and comes back when it is well; who is not led acts in a leader's place."""

import pytest

from statechannel.engine.config import EngineConfig
from statechannel.engine.effects import Append
from statechannel.engine.inputs import AppendFailed
from statechannel.engine.seat import OUTSTANDING_MAX, Deputy, Echo, Health, Seat, SeatBounds
from tests.support.lone_engine import CREATED, NAMESPACE, LoneEngine

BOUNDS = SeatBounds.of(EngineConfig())
WELL = Health(normal=True, registry_silence_s=0.5, echo_age_s=0.1, unheard_s=0.1, others_fit=True)


def test_bounds_follow_the_expiry_and_the_heartbeats() -> None:
    bounds = SeatBounds.of(EngineConfig(member_expiry_s=10.0, heartbeat_interval_s=2.0, settle_s=7.0))
    assert bounds == SeatBounds(
        registry_s=10.0, recovery_s=17.0, probe_s=10.0, unheard_s=16.0, echo_s=26.0, deputy_s=20.0, deputy_rank_s=10.0
    )


# --- own records ------------------------------------------------------------------------------------------------------


def test_the_oldest_record_that_is_not_read_back_tells_the_age() -> None:
    echo = Echo(2)
    echo.written(0, "r1", 10.0)
    echo.written(0, "r2", 11.0)
    echo.written(1, "r3", 12.0)
    assert (echo.age_s(0, 15.0), echo.age_s(1, 15.0), echo.oldest_s(15.0)) == (5.0, 3.0, 5.0)
    echo.read_back(0, "r1", 20.0)
    assert echo.age_s(0, 15.0) == 4.0


def test_the_round_trip_is_the_newest_one_of_the_slowest_partition() -> None:
    echo = Echo(2)
    assert echo.round_trip_s == 0.0
    echo.written(0, "r1", 10.0)
    echo.written(1, "r2", 10.0)
    assert echo.round_trip_s == 0.0  # what is in flight may be lost
    echo.read_back(0, "r1", 14.0)
    echo.read_back(1, "r2", 11.0)
    assert echo.round_trip_s == 4.0
    echo.written(0, "r3", 110.0)
    echo.read_back(0, "of somebody else", 111.0)
    echo.read_back(0, "r3", 110.25)
    assert echo.round_trip_s == 1.0


def test_a_record_that_is_read_back_answers_for_those_before_it() -> None:
    echo = Echo(1)
    for number in range(4):
        echo.written(0, f"r{number}", float(number))
    echo.read_back(0, "r2", 20.0)  # r0 and r1 were refused, and never come
    assert echo.age_s(0, 10.0) == 7.0
    echo.read_back(0, "r2", 20.0)
    echo.read_back(0, "of somebody else", 20.0)
    assert echo.age_s(0, 10.0) == 7.0
    echo.read_back(0, "r3", 20.0)
    assert echo.age_s(0, 10.0) == 0.0


@pytest.mark.parametrize("more", [0, 1, 10, 10_000])
def test_of_too_many_outstanding_records_the_oldest_and_the_newest_are_kept(more: int) -> None:
    echo = Echo(1)
    for number in range(OUTSTANDING_MAX + more):
        echo.written(0, f"r{number}", float(number))
    assert echo.age_s(0, 100_000.0) == 100_000.0
    assert len(echo._sent_at_s[0]) <= OUTSTANDING_MAX
    echo.read_back(0, f"r{OUTSTANDING_MAX + more - 1}", 20.0)
    assert echo.age_s(0, 100_000.0) == 0.0


def test_who_reads_none_of_many_records_back_is_well_with_the_first_that_comes() -> None:
    lone = LoneEngine([(NAMESPACE, CREATED, 99_000)], cold_start_after_s=3.0)
    lone.run(15.0)
    lone.fail = lambda _: AppendFailed(0, "topic authorization failed", 1, never_written=False)
    lone.run(10.0 * OUTSTANDING_MAX)
    assert not lone.engine.accepting
    lone.fail = lambda _: None
    lone.run(3.0)
    assert lone.engine.accepting
    assert lone.engine.candidacy.seat.fit


def test_a_partition_that_is_joined_again_is_waited_for_no_more() -> None:
    echo = Echo(1)
    echo.written(0, "r", 1.0)
    echo.restarted(0)
    assert echo.age_s(0, 50.0) == 0.0


# --- the decision -----------------------------------------------------------------------------------------------------


def test_a_blip_of_safe_mode_keeps_the_seat() -> None:
    seat = Seat(BOUNDS)
    seat.check(0.0, WELL)
    seat.check(5.0, WELL._replace(normal=False, registry_silence_s=5.0))
    assert seat.withdrawn is None
    assert seat.fit


def test_own_silence_beyond_the_expiry_ends_it_and_only_normal_mode_brings_it_back() -> None:
    seat = Seat(BOUNDS)
    seat.check(0.0, WELL)
    seat.check(6.0, WELL._replace(normal=False, registry_silence_s=6.0))
    assert seat.withdrawn is None  # exactly the expiry: the others bear as much
    seat.check(6.1, WELL._replace(normal=False, registry_silence_s=6.1))
    assert seat.withdrawn is not None
    assert not seat.fit
    seat.check(7.0, WELL._replace(normal=False, registry_silence_s=0.2))  # heard again, settling
    assert seat.withdrawn is not None
    seat.check(9.0, WELL)
    assert seat.withdrawn is None
    assert seat.fit


def test_who_is_heard_and_never_gets_back_to_normal_gives_the_seat_up_all_the_same() -> None:
    seat = Seat(BOUNDS)
    seat.check(0.0, WELL)
    late = WELL._replace(normal=False, registry_silence_s=4.5)  # each heartbeat is read back five seconds late
    seat.check(BOUNDS.recovery_s, late)
    assert seat.withdrawn is None
    seat.check(BOUNDS.recovery_s + 0.1, late)
    assert seat.withdrawn is not None


def test_channel_records_that_do_not_come_back_end_it_where_somebody_else_could_lead() -> None:
    seat = Seat(BOUNDS)
    silent = WELL._replace(echo_age_s=BOUNDS.echo_s + 0.1)
    seat.check(0.0, WELL._replace(echo_age_s=BOUNDS.echo_s))
    assert (seat.withdrawn, seat.writes) == (None, True)
    seat.check(1.0, silent._replace(others_fit=False))
    assert seat.withdrawn is None  # the partition may be away for everybody
    assert not seat.writes
    assert not seat.fit
    seat.check(2.0, silent)
    assert seat.withdrawn is not None
    seat.check(3.0, silent._replace(echo_age_s=BOUNDS.probe_s + 0.1))
    assert seat.withdrawn is not None
    seat.check(4.0, silent._replace(echo_age_s=BOUNDS.probe_s))
    assert (seat.withdrawn, seat.writes, seat.fit) == (None, True, True)


def test_who_reads_nothing_of_a_partition_does_not_call_itself_fit() -> None:
    seat = Seat(BOUNDS)
    seat.check(0.0, WELL._replace(unheard_s=BOUNDS.unheard_s))
    assert seat.fit
    seat.check(1.0, WELL._replace(unheard_s=BOUNDS.unheard_s + 0.1))
    assert not seat.fit
    assert seat.withdrawn is None


def test_the_deputy_waits_for_two_expiries_and_one_more_for_each_rank() -> None:
    first, second = Deputy(BOUNDS), Deputy(BOUNDS)
    for now_s, expected in ((0.0, (False, False)), (11.9, (False, False)), (12.0, (True, False)), (18.0, (True, True))):
        first.check(now_s, able=True, led=False, rank=0)
        second.check(now_s, able=True, led=False, rank=1)
        assert (first.acting, second.acting) == expected
    assert not second.check(19.0, able=True, led=False, rank=3)  # who acts goes on when others come
    assert second.acting
    assert second.check(20.0, able=True, led=True, rank=1)
    assert not second.acting
    assert first.check(20.0, able=False, led=False, rank=0)
    assert not first.acting
    first.check(21.0, able=True, led=False, rank=0)
    first.check(32.9, able=True, led=False, rank=0)
    assert not first.acting  # counted from when it was able again


# --- the engine -------------------------------------------------------------------------------------------------------


def _leader() -> LoneEngine:
    lone = LoneEngine([(NAMESPACE, CREATED, 99_000)], cold_start_after_s=3.0)
    for _ in range(15):
        lone.run(1.0)
    assert lone.engine.leading
    return lone


def _run_beside(lone: LoneEngine, other: str | None, seconds: int, *, phase: str = "caught-up") -> None:
    for _ in range(seconds):
        if other is not None:
            lone.hear(other, phase=phase)
        lone.run(1.0)


def _refuse_channel(_: Append) -> AppendFailed:
    return AppendFailed(0, "topic authorization failed", 1, never_written=False)


def test_a_leader_that_cannot_write_the_channel_gives_the_seat_to_another_and_takes_no_bundles() -> None:
    lone = _leader()
    _run_beside(lone, "b", 10)
    lone.fail = _refuse_channel
    _run_beside(lone, "b", 13)
    assert lone.engine.leading  # within what is borne: 2 expiries and 3 heartbeats
    _run_beside(lone, "b", 4)
    assert not lone.engine.leading
    assert not lone.engine.accepting
    assert lone.events.count("leader.withdrew") == 1
    _run_beside(lone, "b", 20)
    assert lone.events.count("leader.fit-again") == 0
    lone.fail = lambda _: None  # its probes arrive again
    _run_beside(lone, "b", 3)
    assert lone.events.count("leader.fit-again") == 1
    assert lone.engine.accepting


def test_a_leader_that_cannot_write_stays_while_nobody_else_could_lead() -> None:
    for other, phase in ((None, ""), ("b", "joining")):
        lone = _leader()
        lone.fail = _refuse_channel
        _run_beside(lone, other, 30, phase=phase)
        assert lone.engine.leading


def test_a_member_that_hears_no_leader_acts_for_it_until_one_is_heard() -> None:
    lone = LoneEngine([(NAMESPACE, CREATED, 99_000)], cold_start_after_s=3.0)
    lone.run(15.0)
    lone.elect(elected=False)
    lone.run(11.0)
    assert not lone.engine.context.acts_as_leader
    lone.run(2.0)
    assert lone.engine.deputizing
    assert not lone.engine.leading
    assert lone.events.count("deputy.began") == 1
    lone.elect(elected=True)
    lone.run(1.0)
    assert lone.engine.leading
    assert not lone.engine.deputizing
    assert lone.events.count("deputy.ended") == 1


def test_a_deputy_says_so_and_the_next_rank_holds_back() -> None:
    lone = LoneEngine([(NAMESPACE, CREATED, 99_000)], cold_start_after_s=3.0)
    lone.run(15.0)
    lone.elect(elected=False)
    for _ in range(40):
        lone.hear("0", deputy=True)
        lone.run(1.0)
    assert not lone.engine.deputizing
    for _ in range(40):  # of a higher rank: no reason to wait
        lone.hear("b", deputy=True)
        lone.run(1.0)
    assert lone.engine.deputizing
    for _ in range(2):
        lone.hear("b", leading=True)
        lone.run(1.0)
    assert not lone.engine.deputizing


# --- a source that cannot write ---------------------------------------------------------------------------------------


def test_with_the_lease_option_who_says_that_it_cannot_write_has_stopped_serving() -> None:
    lone = LoneEngine([(NAMESPACE, CREATED, 99_000)], cold_start_after_s=3.0, lease_s=4.0)
    lone.run(15.0)
    _run_beside(lone, "b", 5)
    lone.fail = _refuse_channel
    _run_beside(lone, "b", 14)
    assert lone.events.count("lease.ran-out") == 0
    assert lone.engine.lease.holds(lone.engine.now.mono_s)
    _run_beside(lone, "b", 3)
    assert not lone.engine.candidacy.seat.writes
    assert lone.events.count("lease.ran-out") == 1
    assert not lone.engine.lease.holds(lone.engine.now.mono_s)
    lone.fail = lambda _: None
    _run_beside(lone, "b", 3)
    assert lone.events.count("lease.resumed") == 1
    assert lone.engine.lease.holds(lone.engine.now.mono_s)
