"""Payment of debts alone: which are paid when, at each bound of age, rank and number (protocol.md section 3)."""

from __future__ import annotations

import pytest

from statechannel.engine.maintenance import _Quiet
from statechannel.engine.proposals import ProposalResult, ProposalStatus
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import View
from tests.support.duties_bench import STEP_S, DutiesBench, namespaces


@pytest.fixture
def bench() -> DutiesBench:
    return DutiesBench()


# --- debts, by their age --------------------------------------------------------------------------------------------


def test_a_leader_pays_at_the_age_of_its_setting():
    bench = DutiesBench(debt_age_leader_s=1.5)
    bench.read("t/x")
    assert bench.paid() == []
    bench.later(1.25)
    assert bench.paid() == []
    bench.later(STEP_S)
    assert bench.paid() == ["t/x"]
    assert bench.facts_of("duty.began")[-1] == {"duty": "debts", "partition": 0, "why": "this broker leads"}


def test_a_leader_pays_at_once_while_somebody_joins(bench):
    bench.join()
    bench.read("t/x")
    assert bench.paid() == ["t/x"]


@pytest.mark.parametrize(("rank", "patience_s"), [(0, 4.0), (1, 6.0), (3, 10.0)])
@pytest.mark.parametrize("joining", [False, True])
def test_the_others_wait_a_tenth_of_the_lag_and_an_interval_more_for_each_rank(rank, patience_s, joining):
    bench = DutiesBench(heartbeat_interval_s=2.0)
    bench.follow(rank)
    if joining:
        bench.join()
    bench.read("t/x")
    assert bench.paid() == []
    bench.later(patience_s - STEP_S)
    assert bench.paid() == []
    bench.later(STEP_S)
    assert bench.paid() == ["t/x"]
    assert {"duty": "debts", "partition": 0, "why": "no other member pays them"} in bench.facts_of("duty.began")


def test_a_debt_is_as_old_as_this_process_knows_it(bench):
    bench.read("t/x")
    bench.paid()
    bench.later(0.5)
    bench.read("t/y")
    bench.paid()
    assert bench.duties.oldest_debt_s() == 0.5
    bench.later(0.5)
    assert bench.paid() == ["t/x"]
    assert bench.duties.oldest_debt_s() == 1.0
    bench.later(0.5)
    assert bench.paid() == ["t/y"]


def test_the_oldest_of_all_partitions_is_told():
    bench = DutiesBench(partitions=2)
    assert bench.duties.oldest_debt_s() == 0.0
    bench.read(*namespaces(1, 1))
    assert bench.duties.oldest_debt_s() == 0.0, "nobody has looked at it yet"
    bench.paid()
    bench.later(2)
    bench.read(*namespaces(0, 1))
    bench.paid()
    bench.later(1)
    assert bench.duties.oldest_debt_s() == 3.0


def test_the_age_of_a_debt_begins_anew_with_the_debt(bench):
    key = bench.read("t/x")
    bench.paid()
    bench.settle(key)
    bench.later(2)
    bench.read("t/x")
    assert bench.paid() == []


def test_nothing_is_paid_in_safe_mode(bench):
    bench.read("t/x")
    bench.paid()
    bench.later(5)
    bench.context.may_write = False
    assert bench.paid() == []
    assert bench.duties.oldest_debt_s() == 5.0


def test_nothing_is_paid_where_nothing_is_judged():
    bench = DutiesBench(partitions=2)
    names = [*namespaces(0, 1), *namespaces(1, 1)]
    for name in names:
        bench.read(name)
    bench.paid()
    bench.later(5)
    bench.context.not_judged = {0}
    assert bench.paid() == names[1:]
    assert bench.facts_of("duty.ended") == [{"duty": "heartbeats", "partition": 0}]
    bench.later(5)
    bench.context.not_judged = {1}
    bench.paid()
    assert bench.facts_of("duty.ended")[1:] == [
        {"duty": "debts", "partition": 1},
        {"duty": "heartbeats", "partition": 1},
    ]


# --- debts, by their number -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("debts", "paid"), [(1, 1), (2, 2), (3, 2)])
@pytest.mark.parametrize("joining", [False, True])
@pytest.mark.parametrize("room", [5, 6])
def test_so_many_are_paid_in_a_tick_and_a_join_hurries_the_rest(debts, paid, joining, room):
    bench = DutiesBench(debt_batch_max=2)
    for number in range(debts):
        bench.read(f"t/x{number}")
    bench.paid()
    bench.later(1)
    if joining:
        bench.join()
    bench.written.room = room
    assert bench.paid() == [f"t/x{number}" for number in range(paid)]
    assert bench.woken == ([(bench.duties.tick, 0.05)] if paid == 2 and joining and room == 6 else [])


def test_the_room_is_half_of_all_that_may_be_on_their_way():
    bench = DutiesBench(debt_batch_max=1, pending_max=12)
    bench.join()
    bench.read("t/x")
    bench.written.room = 6
    bench.paid()
    assert bench.woken == []


def test_where_no_more_may_be_on_their_way_the_tick_ends(bench):
    for name in ("t/x", "t/y"):
        bench.read(name)
    bench.written.full = True
    bench.join()
    assert bench.paid() == []
    assert "debts" not in [facts["duty"] for facts in bench.facts_of("duty.began")]
    bench.written.full = False
    assert bench.paid() == ["t/y"], "the one that was refused waits for its turn"


def test_the_younger_wait_though_an_older_one_is_on_its_way(bench):
    bench.read("t/x")
    bench.paid()
    bench.later(1)
    bench.read("t/y")
    assert bench.paid() == ["t/x"]
    bench.later(0.5)
    assert bench.paid() == []
    bench.later(0.5)
    assert bench.paid() == ["t/y"]


@pytest.mark.parametrize("by_tick", [False, True])
def test_one_that_is_on_its_way_is_not_paid_again_for_four_retries(by_tick):
    bench = DutiesBench(retry_interval_s=0.5)
    bench.join()
    bench.read("t/x")
    assert bench.paid() == ["t/x"]

    def again() -> list[str]:
        if by_tick:
            return bench.paid()
        bench.read("t/x")
        return bench.paid_at_once()

    bench.later(1.75)
    assert again() == []
    bench.later(STEP_S)
    assert again() == ["t/x"]


def test_once_its_end_is_known_it_is_paid_again(bench):
    bench.join()
    bench.read("t/x")
    bench.paid()
    bench.written.done["t/x"](ProposalResult(ProposalStatus.REJECTED))
    assert bench.paid() == ["t/x"]


# --- two payers -----------------------------------------------------------------------------------------------------


def outrun(
    bench: DutiesBench, name: str = "t/x", *, status: ProposalStatus = ProposalStatus.ACCEPTED, at: int = 0
) -> None:
    """An assert of ours was accepted and began a debt: somebody else's had settled the one that it meant."""
    key = next(key for key in bench.context.replicas[0].view.keys.values() if key.name == name)
    offset = bench.open(key)[key].since_offset + at
    bench.written.done[name](ProposalResult(status, Verdict.ACCEPTED, offset))


@pytest.mark.parametrize(("rank", "gap_s"), [(0, 0.5), (1, 1.0), (2, 1.5)])
@pytest.mark.parametrize("times", [1, 2])
def test_who_was_outrun_waits_by_its_rank(rank, gap_s, times):
    bench = DutiesBench()
    bench.join()
    bench.rank = rank
    bench.read("t/x")
    bench.paid()
    for _ in range(times):
        outrun(bench)
    bench.later(gap_s * times - STEP_S)
    assert bench.paid() == []
    bench.later(STEP_S)
    assert bench.paid() == ["t/x"]


@pytest.mark.parametrize(
    ("status", "at"), [(ProposalStatus.REJECTED, 0), (ProposalStatus.UNKNOWN, 0), (ProposalStatus.ACCEPTED, 1)]
)
def test_who_was_not_does_not(bench, status, at):
    bench.join()
    bench.read("t/x")
    bench.paid()
    outrun(bench, status=status, at=at)
    assert bench.paid() == ["t/x"]


def test_who_has_settled_it_was_not_outrun(bench):
    bench.join()
    key = bench.read("t/x")
    bench.paid()
    bench.settle(key)
    bench.written.done["t/x"](ProposalResult(ProposalStatus.ACCEPTED, Verdict.ASSERT_EQUAL, 0))
    bench.read("t/x")
    assert bench.paid_at_once() == ["t/x"]


def test_who_was_outrun_does_not_pay_at_the_end_of_a_step(bench):
    bench.join()
    bench.read("t/x")
    bench.paid_at_once()
    outrun(bench)
    bench.later(60)
    bench.read("t/x")
    assert bench.paid_at_once() == []
    assert bench.paid() == []
    bench.later(0.5)
    assert bench.paid() == ["t/x"]


def test_it_is_forgotten_with_the_debt():
    bench = DutiesBench(partitions=2)
    bench.join()
    (mine,), (other,) = namespaces(0, 1), namespaces(1, 1)
    keys = [bench.read(mine), bench.read(other)]
    bench.paid()
    for key in keys:
        bench.written.done[key.name](ProposalResult(ProposalStatus.ACCEPTED, Verdict.ACCEPTED, 0))
    bench.settle(keys[0])
    bench.paid()
    bench.read(mine)
    bench.read(other)
    assert bench.paid_at_once() == [mine], "the other partition's debt is still open"


# --- at the end of a step -------------------------------------------------------------------------------------------


def test_while_somebody_joins_what_was_read_is_paid_at_once_and_only_once(bench):
    bench.join()
    bench.read("t/x")
    assert bench.paid_at_once() == ["t/x"]
    assert {"duty": "debts", "partition": 0, "why": "joins wait for it"} in bench.facts_of("duty.began")
    bench.later(60)
    assert bench.paid_at_once() == []


@pytest.mark.parametrize("leads", [False, True])
@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("debt", [False, True])
def test_only_a_leader_that_may_write_does_so(bench, leads, writes, debt):
    bench.join()
    key = bench.read("t/x")
    if not debt:
        bench.settle(key)
    bench.context.acts_as_leader, bench.context.may_write = leads, writes
    bench.duties.pay_what_was_read()
    does = leads and writes
    assert bench.written.asserts == (["t/x"] if does and debt else [])
    assert len(bench.written.heartbeats) == (does and not debt)


def test_what_was_settled_in_the_same_step_is_no_debt(bench):
    bench.join()
    bench.settle(bench.read("t/x"))
    bench.read("t/y")
    assert bench.paid_at_once() == ["t/y"]


def test_no_heartbeat_is_written_at_the_end_of_a_step_that_leaves_a_debt(bench):
    bench.join()
    bench.read("t/x")
    bench.duties.pay_what_was_read()
    assert bench.written.heartbeats == []


@pytest.mark.parametrize(("after_s", "beats"), [(0.125, 0), (0.25, 1)])
def test_a_step_that_leaves_no_debt_ends_with_a_heartbeat_that_joins_wait_for(bench, after_s, beats):
    bench.join()
    bench.duties.tick()
    bench.settle(bench.read("t/x"))
    bench.later(after_s)
    bench.written.heartbeats.clear()
    bench.duties.pay_what_was_read()
    assert len(bench.written.heartbeats) == beats


@pytest.mark.parametrize("debt", [False, True])
def test_what_is_not_judged_is_neither_paid_nor_vouched_for(bench, debt):
    bench.join()
    key = bench.read("t/x")
    if not debt:
        bench.settle(key)
    bench.context.not_judged = {0}
    assert bench.paid_at_once() == []
    assert bench.written.heartbeats == []


@pytest.mark.parametrize(
    ("lag_s", "interval_s", "within_s"), [(40.0, 1.0, 4.0), (3_600.0, 1.0, 5.0), (10.0, 1.0, 2.0), (40.0, 3.0, 6.0)]
)
@pytest.mark.parametrize("since", ["joined", "heard"])
def test_without_a_join_it_is_urgent_where_nothing_was_clean_for_long(lag_s, interval_s, within_s, since):
    bench = DutiesBench(compaction_lag_s=lag_s, heartbeat_interval_s=interval_s)
    if since == "heard":
        bench.later(60)
        bench.duties.heartbeat_read(0, clean=True)
    bench.later(within_s)
    bench.duties.heartbeat_read(0, clean=False)
    bench.read("t/x")
    assert bench.paid_at_once() == []
    bench.later(STEP_S)
    bench.read("t/x")
    assert bench.paid_at_once() == ["t/x"]


def test_it_is_so_of_one_partition_and_not_of_another():
    bench = DutiesBench(partitions=2, debt_age_leader_s=60.0)
    bench.later(10)
    bench.duties.heartbeat_read(1, clean=True)
    (mine,), (other,) = namespaces(0, 1), namespaces(1, 1)
    bench.read(mine)
    bench.read(other)
    assert bench.paid_at_once() == [mine]
    assert bench.paid() == []
    bench.later(60)
    bench.duties.heartbeat_read(1, clean=True)
    assert bench.paid() == [mine, other]


# --- another view ---------------------------------------------------------------------------------------------------


def test_what_was_known_of_the_keys_of_a_view_goes_with_it():
    bench = DutiesBench(partitions=2)
    bench.join()
    (mine,), (other,) = namespaces(0, 1), namespaces(1, 1)
    for name in (mine, other):
        bench.read(name)
    bench.paid()
    for name in (mine, other):
        bench.written.done[name](ProposalResult(ProposalStatus.ACCEPTED, Verdict.ACCEPTED, 0))
    bench.later(0.5)
    bench.paid()
    duties = bench.duties
    for replica in bench.context.replicas:
        duties._quiet |= dict.fromkeys(replica.view.keys.values(), _Quiet(0, 0, 1))
    duties._purging.update({0: iter([]), 1: iter([])})
    bench.context.replicas[0].view = View(0, 2)
    bench.read(mine)
    duties.view_replaced(0)
    for table in (duties._paying, duties._outrun, duties._quiet):
        assert [key.name for key in table] == [other]
    assert [*duties._purging] == [1]
    bench.later(2)
    assert duties.oldest_debt_s() == 2.5, "of the other partition"
    bench.context.replicas[1].view.ledger.open.clear()
    assert duties.oldest_debt_s() == 2.0, "the new view's debts are as old as it is"


# --- a clock that begins with nought --------------------------------------------------------------------------------


@pytest.mark.parametrize("by_tick", [False, True])
def test_debts_of_the_first_second(by_tick):
    bench = DutiesBench(at_s=0.0)
    bench.join()
    bench.read("t/x")
    assert (bench.paid() if by_tick else bench.paid_at_once()) == ["t/x"]


def test_nothing_was_clean_in_the_first_seconds():
    bench = DutiesBench(at_s=0.0)
    bench.later(4.25)
    bench.read("t/x")
    assert bench.paid_at_once() == ["t/x"]
