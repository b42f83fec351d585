"""The reaction table alone, with every answer of its neighbours set: what is called, what is written, what is held, and when."""

from __future__ import annotations

from typing import Any

import pytest

from statechannel.engine import reactions
from statechannel.engine.inputs import HookFinished
from statechannel.engine.proposals import ProposalResult, ProposalStatus
from statechannel.engine.reactions import DueReaction, ServedBundle
from statechannel.protocol.states import Action, Flow, State
from tests.support.stub_context import HIGH, LOW, FoldLog
from tests.support.stub_context import ReactionsBench as Bench

QUARTERS = ["0x00000000_0x40000000", "0x40000000_0x80000000"]
LOWER, UPPER = (f"t/n/{item}" for item in QUARTERS)


@pytest.fixture
def bench() -> Bench:
    return Bench()


# --- each state ---------------------------------------------------------------------------------------------------------


def test_assigning_prepares_then_returns_then_serves(bench):
    bench.seen(LOW, "Assigning", to="a", writer="b", operation="op1", flow="assignment", colour="red")
    assert bench.hooks() == [("on_own", LOW, 3, None)]
    assert bench.written() == []
    assert bench.reactions.holdings == {LOW: ServedBundle(None, 3)}
    assert (bench.reactions.serving(), bench.reactions.serving_count) == ({}, 0)
    bench.finish()
    (result,) = bench.written()
    done = result.pop("done")
    assert result == {
        "key": LOW, "state": State.ASSIGNED, "action": Action.RETURN, "flow": "assignment", "operation": "op1",
        "from_": None, "to": "a", "carried": {"colour": "red"}, "reason": None,
    }  # fmt: skip
    done(ProposalResult(ProposalStatus.ACCEPTED))
    bench.seen(LOW, "Assigned", to="a")
    assert bench.hooks() == [("on_serve", LOW, 3, None)]
    assert (bench.reactions.serving(), bench.reactions.serving_count) == ({LOW: 3}, 1)
    assert (bench.reactions.generation(LOW), bench.reactions.generation(HIGH)) == (3, None)
    assert bench.reactions.tasks == {}
    bench.changed()
    assert (bench.hooks(), bench.written()) == ([], [])


def test_assigning_of_another_is_nothing(bench):
    bench.seen(LOW, "Assigning", to="b")
    bench.seen(LOW, "Assigned", to="b", writer="b")
    assert (bench.hooks(), bench.written(), bench.reactions.tasks) == ([], [], {})


def test_while_draining_it_declines_without_a_hook(bench):
    bench.context.draining = True
    bench.seen(LOW, "Assigning", to="a", writer="b", operation="op1", flow="assignment")
    assert bench.hooks() == []
    (result,) = bench.written()
    assert (result["state"], result["action"], result["from_"], result["flow"], result["operation"]) == (
        State.UNASSIGNED, Action.DECLINE, "a", "shutdown", "op1",
    )  # fmt: skip
    assert result.get("to") is None


def test_a_draining_that_begins_while_it_prepares_turns_the_return_into_a_decline(bench):
    bench.seen(LOW, "Assigning", to="a", writer="b")
    bench.hooks()
    bench.reactions.recheck()
    assert (bench.hooks(), bench.written()) == ([], [])
    bench.context.draining = True
    bench.reactions.recheck()
    assert bench.hooks() == [("on_release", LOW, 3, None)]
    assert bench.one_written() == (State.UNASSIGNED, Action.DECLINE, "a", None)
    assert bench.reactions.holdings == {}


def test_a_draining_that_begins_behind_the_record_leaves_it(bench):
    bench.seen(LOW, "Assigning", to="a", writer="b")
    bench.hooks()
    bench.finish()
    bench.written()
    bench.context.draining = True
    bench.reactions.recheck()
    assert (bench.hooks(), bench.written()) == ([], [])


def test_assigned_by_another_process_of_this_broker_is_resumed(bench):
    bench.log.own(LOW, "a", writer="a-0")
    bench.heard_ms["a-0"] = 77
    bench.changed()
    assert bench.hooks() == [("on_own", LOW, 4, None)]
    bench.finish()
    (result,) = bench.written()
    assert (result["state"], result["action"], result["to"], result["lost"]) == (
        State.ASSIGNED, Action.RESUME, "a", {"broker": "a", "incarnation": "a-0", "last_heard_ms": 77},
    )  # fmt: skip
    bench.seen(LOW, "Assigned", to="a")
    assert bench.hooks() == [("on_serve", LOW, 4, None)]


def test_a_predecessor_that_was_never_heard_is_not_told(bench):
    bench.log.own(LOW, "a", writer="a-0")
    bench.changed()
    bench.hooks()
    bench.finish()
    (result,) = bench.written()
    assert result["lost"] is None


def test_this_process_is_no_predecessor_of_its_own(bench):
    bench.serving()
    bench.heard_ms["a-1"] = 77
    bench.context.lost = {"b"}
    bench.seen(LOW, "Releasing", from_="a", to="b")
    bench.hooks()
    bench.finish()
    (result,) = bench.written()
    assert (result["action"], result["lost"]) == (Action.RESUME, None)


def test_what_it_serves_is_resumed_where_nobody_can_know_that_it_does(bench):
    bench.serving()
    bench.log.key(LOW).server = None
    bench.changed()
    assert bench.hooks() == [("on_own", LOW, 4, None)]
    bench.finish()
    (result,) = bench.written()
    assert (result["action"], result["lost"]) == (Action.RESUME, None)


def test_what_another_process_serves_under_this_id_is_let_go(bench):
    bench.serving()
    bench.seen(LOW, "Assigned", to="a", writer="a-2")
    assert bench.hooks() == [("on_release", LOW, 3, None), ("on_own", LOW, 5, None)]
    assert bench.reactions.serving() == {}


def test_what_goes_to_another_is_let_go_and_told_whose_it_is(bench):
    bench.serving()
    bench.seen(LOW, "Assigning", to="b", writer="b", forced=True)
    assert bench.hooks() == [("on_release", LOW, 3, "b")]
    assert (bench.reactions.holdings, bench.reactions.tasks) == ({}, {})


def test_what_it_only_prepares_and_goes_elsewhere_is_let_go_at_that_generation(bench):
    bench.seen(LOW, "Assigning", to="a", writer="b")
    bench.hooks()
    bench.seen(LOW, "Unassigned", from_="a", writer="b", forced=True)
    assert bench.hooks() == [("on_release", LOW, 3, None)]


def test_releasing_with_a_destination_lets_go_then_assigns(bench):
    bench.serving()
    bench.seen(LOW, "Releasing", from_="a", to="b", operation="op2", flow="transfer")
    assert bench.hooks() == [("on_release", LOW, 3, "b")]
    assert bench.reactions.serving() == {LOW: 3}, "it serves until the hook has returned"
    bench.finish()
    assert bench.reactions.serving() == {}
    (result,) = bench.written()
    assert (result["state"], result["action"], result["from_"], result["to"], result["operation"], result["flow"]) == (
        State.ASSIGNING, Action.TRANSFER, "a", "b", "op2", "transfer",
    )  # fmt: skip


def test_releasing_without_one_unassigns(bench):
    bench.serving()
    bench.seen(LOW, "Releasing", from_="a")
    assert bench.hooks() == [("on_release", LOW, 3, None)]
    bench.finish()
    assert bench.one_written() == (State.UNASSIGNED, Action.UNLOAD, "a", None)


def test_a_restarted_source_writes_at_once(bench):
    bench.log.own(LOW, "a", writer="a-0")
    bench.log.move(LOW, "Releasing", "a", "b", writer="a-0")
    bench.changed()
    assert bench.hooks() == []
    assert bench.one_written() == (State.ASSIGNING, Action.TRANSFER, "a", "b")


@pytest.mark.parametrize("draining", [False, True])
def test_a_destination_that_is_lost_before_has_it_taken_back_unless_draining(bench, draining):
    bench.serving()
    bench.context.lost = {"b"}
    bench.context.draining = draining
    bench.seen(LOW, "Releasing", from_="a", to="b")
    assert bench.hooks() == [("on_release", LOW, 3, "b") if draining else ("on_own", LOW, 5, None)]
    bench.finish()
    wanted = (State.ASSIGNING, Action.TRANSFER, "a", "b") if draining else (State.ASSIGNED, Action.RESUME, None, "a")
    assert bench.one_written() == wanted


@pytest.mark.parametrize("draining", [False, True])
def test_one_that_is_lost_while_it_lets_go_as_well(bench, draining):
    bench.serving()
    bench.seen(LOW, "Releasing", from_="a", to="b")
    bench.hooks()
    bench.context.lost = {"b"}
    bench.context.draining = draining
    bench.finish()
    if draining:
        assert bench.one_written() == (State.ASSIGNING, Action.TRANSFER, "a", "b")
        return
    assert bench.hooks() == [("on_own", LOW, 5, None)]
    assert bench.reactions.holdings == {LOW: ServedBundle(None, 5)}
    assert bench.written() == []
    bench.finish()
    assert bench.one_written() == (State.ASSIGNED, Action.RESUME, None, "a")


def test_a_bundle_that_is_unassigned_is_no_ones_concern(bench):
    bench.serving()
    bench.context.lost = {"b"}
    bench.seen(LOW, "Releasing", from_="a")
    bench.hooks()
    bench.finish()
    assert bench.one_written() == (State.UNASSIGNED, Action.UNLOAD, "a", None)
    bench.seen(LOW, "Unassigned", from_="a")
    assert (bench.hooks(), bench.reactions.tasks, bench.reactions.holdings) == ([], {}, {})


# --- splits -------------------------------------------------------------------------------------------------------------


def test_a_split_prepares_its_children_then_serves_them_in_place_of_their_parent(bench):
    bench.serving()
    bench.seen(LOW, "Splitting", from_="a", children=QUARTERS, operation="op3", flow="split")
    assert bench.hooks() == [("on_own", LOWER, 6, None), ("on_own", UPPER, 6, None)]
    assert bench.reactions.serving() == {LOW: 3}
    first, second = bench.context.hook_ids
    bench.reactions.hook_finished(HookFinished(first))
    assert bench.written() == []
    bench.reactions.hook_finished(HookFinished(second))
    (result,) = bench.written()
    assert (result["state"], result["action"], result["from_"], result["children"], result["operation"]) == (
        State.DELETED, Action.SPLIT, "a", QUARTERS, "op3",
    )  # fmt: skip
    bench.seen(LOW, "Deleted", from_="a", children=QUARTERS)
    assert bench.hooks() == [("on_serve", LOWER, 6, None), ("on_serve", UPPER, 6, None)]
    assert bench.reactions.serving() == {LOWER: 6, UPPER: 6}
    assert bench.reactions.tasks == {}


@pytest.mark.parametrize(
    "children",
    [
        None, QUARTERS[:1], ["0x00000000_0x80000000"], [QUARTERS[0], "0x40000000_0x80000001"],
        ["0x00000001_0x40000000", QUARTERS[1]],
    ],
)  # fmt: skip
def test_without_a_plan_that_fits_it_is_cut_in_two(bench, children):
    bench.serving()
    bench.seen(LOW, "Splitting", from_="a", **({} if children is None else {"children": children}))
    assert bench.hooks() == [("on_own", LOWER, 6, None), ("on_own", UPPER, 6, None)]


@pytest.mark.parametrize(
    "parts",
    [
        ["0x00000000_0x00000005", "0x00000005_0x80000000"],
        ["0x00000000_0x00000005", "0x00000005_0x00000007", "0x00000007_0x80000000"],
    ],
)
def test_a_plan_with_two_parts_or_more_is_kept(parts):
    bench = Bench()
    bench.serving()
    bench.seen(LOW, "Splitting", from_="a", children=parts)
    assert [hook[1] for hook in bench.hooks()] == [f"t/n/{part}" for part in parts]


@pytest.mark.parametrize(("width", "cut"), [(1, False), (2, True)])
def test_a_bundle_too_narrow_to_cut_is_given_up(width, cut):
    narrow = f"0x00000000_0x{width:08x}"
    bench = Bench(FoldLog((narrow, f"0x{width:08x}_0xffffffff")))
    bench.serving(f"t/n/{narrow}")
    bench.seen(f"t/n/{narrow}", "Splitting", from_="a")
    assert len(bench.hooks()) == (2 if cut else 1)
    if cut:
        return
    bench.finish()
    assert bench.one_written() == (State.ASSIGNED, Action.RESUME, None, "a")
    bench.seen(f"t/n/{narrow}", "Assigned", to="a")
    assert bench.hooks() == [("on_serve", f"t/n/{narrow}", 5, None)]


@pytest.mark.parametrize(("most", "cut"), [(2, True), (1, False)])
def test_a_plan_with_too_many_parts_is_given_up(most, cut):
    bench = Bench(split_parts_max=most)
    bench.serving()
    bench.seen(LOW, "Splitting", from_="a", children=QUARTERS)
    hooks = bench.hooks()
    assert hooks == ([("on_own", LOWER, 6, None), ("on_own", UPPER, 6, None)] if cut else [("on_own", LOW, 5, None)])


def test_a_restarted_splitter_gives_up(bench):
    bench.log.own(LOW, "a", writer="a-0")
    bench.log.move(LOW, "Splitting", "a", writer="a-0")
    bench.changed()
    assert bench.hooks() == [("on_own", LOW, 5, None)]
    assert bench.reactions.holdings == {LOW: ServedBundle(None, 5)}
    bench.finish()
    assert bench.one_written() == (State.ASSIGNED, Action.RESUME, None, "a")


def test_a_split_that_another_process_committed_is_resumed_child_by_child(bench):
    bench.log.own(LOW, "a", writer="a-0")
    bench.log.move(LOW, "Splitting", "a", writer="a-0")
    bench.log.move(LOW, "Deleted", "a", writer="a-0", children=QUARTERS)
    bench.changed()
    assert bench.hooks() == [("on_own", LOWER, 7, None), ("on_own", UPPER, 7, None)]


@pytest.mark.parametrize(
    "others", [QUARTERS, ["0x00000000_0x20000000", "0x20000000_0x80000000"]], ids=["as meant", "cut elsewhere"]
)
def test_what_it_prepared_for_a_split_that_somebody_else_commits_is_let_go_and_its_own_children_are_kept(bench, others):
    bench.serving()
    bench.seen(LOW, "Splitting", from_="a", children=QUARTERS)
    bench.hooks()
    bench.seen(LOW, "Deleted", from_="a", writer="a-0", children=others)
    hooks = bench.hooks()
    names = [f"t/n/{other}" for other in others]
    assert {hook for hook in hooks if hook[0] == "on_release"} == {
        ("on_release", LOW, 3, None), ("on_release", LOWER, 6, None), ("on_release", UPPER, 6, None),
    }  # fmt: skip
    assert [hook for hook in hooks if hook[0] == "on_own"] == [("on_own", name, 7, None) for name in names]
    assert bench.reactions.holdings == {name: ServedBundle(None, 7) for name in bench.reactions.tasks} != {}


@pytest.mark.parametrize("leader", ["a", "b"])
def test_a_split_that_is_repaired_over_its_head_lets_its_children_go(bench, leader):
    bench.serving()
    bench.seen(LOW, "Splitting", from_="a", children=QUARTERS)
    bench.hooks()
    bench.seen(LOW, "Unassigned", from_="a", writer=leader, forced=True)
    assert set(bench.hooks()) == {
        ("on_release", LOW, 3, None), ("on_release", LOWER, 6, None), ("on_release", UPPER, 6, None),
    }  # fmt: skip
    assert (bench.reactions.holdings, bench.reactions.tasks) == ({}, {})


# --- hooks that fail ----------------------------------------------------------------------------------------------------


def test_own_fails_in_an_assignment(bench):
    bench.seen(LOW, "Assigning", to="a", writer="b", operation="op1")
    bench.hooks()
    about = {"due": DueReaction.RETURN, "version": 2, "operation": "op1", "offset": 1}
    assert bench.reactions.about(bench.context.hook_ids[0]) == about
    bench.finish("no disk")
    assert bench.reactions.about(bench.context.hook_ids[0]) == {}
    assert bench.hooks() == [("on_release", LOW, 3, None)]
    (made,) = bench.written()
    assert (made["state"], made["action"], made["from_"], made["reason"]) == (
        State.UNASSIGNED, Action.DECLINE, "a", "no disk",
    )  # fmt: skip
    assert bench.context.events == []


def test_own_fails_in_a_resumption(bench):
    bench.log.own(LOW, "a", writer="a-0")
    bench.changed()
    bench.hooks()
    bench.finish("no disk")
    assert bench.hooks() == [("on_release", LOW, 4, None)]
    (result,) = bench.written()
    assert (result["state"], result["action"], result["flow"], result["from_"]) == (
        State.RELEASING, Action.DECLINE, Flow.UNLOAD, "a",
    )  # fmt: skip


def test_own_fails_in_a_taking_back(bench):
    bench.serving()
    bench.context.lost = {"b"}
    bench.seen(LOW, "Releasing", from_="a", to="b")
    bench.hooks()
    bench.finish("no disk")
    assert bench.hooks() == [("on_release", LOW, 3, "b")]
    assert bench.one_written() == (State.ASSIGNING, Action.TRANSFER, "a", "b"), (
        "not taken back again, though it is lost"
    )


def test_own_of_a_child_fails_and_the_split_is_given_up(bench):
    bench.serving()
    bench.seen(LOW, "Splitting", from_="a", children=QUARTERS)
    bench.hooks()
    old = list(bench.context.hook_ids)
    bench.finish("no disk", 0)
    assert bench.hooks() == [
        ("on_release", LOWER, 6, None), ("on_release", UPPER, 6, None), ("on_own", LOW, 5, None),
    ]  # fmt: skip
    assert bench.reactions.holdings == {LOW: ServedBundle(3, 5, ending=True)}
    assert list(bench.reactions._hook_tasks) == bench.context.hook_ids[-1:], "nobody waits for the others"
    bench.reactions.hook_finished(HookFinished(old[1]))  # comes too late to count
    assert bench.written() == []
    bench.finish()
    assert bench.one_written() == (State.ASSIGNED, Action.RESUME, None, "a")


@pytest.mark.parametrize(("after_s", "late"), [(14.9, False), (15.0, True)])
def test_a_giving_up_has_a_deadline_of_its_own(bench, after_s, late):
    bench.serving()
    bench.seen(LOW, "Splitting", from_="a", children=QUARTERS)
    bench.hooks()
    bench.later(5.0)
    bench.finish("no disk")
    bench.context.events.clear()
    bench.later(after_s)
    assert [event for event, _ in bench.context.events] == (["hook.late"] if late else [])


def test_own_fails_in_a_giving_up(bench):
    bench.log.own(LOW, "a", writer="a-0")
    bench.log.move(LOW, "Splitting", "a", writer="a-0")
    bench.changed()
    bench.hooks()
    bench.finish("no disk")
    assert bench.hooks() == [("on_release", LOW, 5, None)]
    assert bench.one_written() == (State.ASSIGNED, Action.RESUME, None, "a")


def test_release_fails_and_the_record_is_written_all_the_same(bench):
    bench.serving()
    bench.seen(LOW, "Releasing", from_="a", to="b")
    bench.hooks()
    bench.finish("stuck")
    assert bench.one_written() == (State.ASSIGNING, Action.TRANSFER, "a", "b")
    assert bench.reactions.holdings == {}


def test_hooks_that_nobody_waits_for_any_more_are_nothing(bench):
    bench.seen(LOW, "Assigning", to="a", writer="b")
    bench.hooks()
    bench.seen(LOW, "Unassigned", from_="a", writer="b", forced=True)
    bench.finish()
    bench.reactions.hook_finished(HookFinished(999, "unknown"))
    assert (bench.written(), bench.context.events) == ([], [])


@pytest.mark.parametrize(("after_s", "late"), [(14.9, False), (15.0, True)])
def test_a_hook_has_until_its_deadline(bench, after_s, late):
    bench.seen(LOW, "Assigning", to="a", writer="b")
    bench.hooks()
    bench.later(after_s)
    assert [event for event, _ in bench.context.events] == (["hook.late"] if late else [])
    assert bool(bench.written()) is late


# --- writing ------------------------------------------------------------------------------------------------------------


def ready(bench: Bench) -> None:
    bench.seen(LOW, "Assigning", to="a", writer="b")
    bench.hooks()
    bench.finish()


def test_an_accepted_record_is_not_written_again_and_a_rejected_one_after_the_interval(bench):
    ready(bench)
    assert bench.one_written() == (State.ASSIGNED, Action.RETURN, None, "a")
    bench.done(ProposalResult(ProposalStatus.REJECTED))
    bench.later(0.49)
    assert bench.written() == []
    bench.later(0.01)
    assert bench.one_written() == (State.ASSIGNED, Action.RETURN, None, "a")
    bench.done(ProposalResult(ProposalStatus.ACCEPTED))
    bench.later(0.6)
    assert bench.written() == []


def test_one_whose_end_is_open_is_written_again_after_two_intervals(bench):
    ready(bench)
    assert len(bench.written()) == 1
    bench.later(0.99)
    assert bench.written() == []
    bench.later(0.01)
    assert len(bench.written()) == 1
    bench.later(0.5)
    assert bench.written() == []


def test_what_has_no_room_is_tried_again(bench):
    bench.proposals.full = True
    ready(bench)
    bench.proposals.full = False
    bench.later(0.4)
    assert bench.written() == []
    bench.later(0.1)
    assert len(bench.written()) == 1


def test_nothing_is_written_while_it_may_not_and_then_after_the_interval(bench):
    bench.context.may_write = False
    ready(bench)
    bench.later(0.6)
    assert bench.written() == []
    bench.context.may_write = True
    bench.later(0.4)
    assert bench.written() == []
    bench.later(0.1)
    assert len(bench.written()) == 1


@pytest.mark.parametrize(("after_s", "writes"), [(1.9, False), (2.0, True), (2.1, True)])
def test_who_waits_for_a_lease_waits_from_the_beginning(bench, after_s, writes):
    asked = []

    def wait_s(key: Any, due: DueReaction) -> float:
        asked.append((key.name, due))
        return 2.0

    bench.reactions._lease_wait_s = wait_s
    ready(bench)
    assert asked == [(LOW, DueReaction.RETURN)]
    bench.later(after_s)
    assert bool(bench.written()) is writes
    assert len(asked) == (2 if writes else 1), "it asks again when it has waited"


def test_an_end_that_comes_when_the_state_asks_for_something_else_changes_nothing(bench):
    ready(bench)
    bench.one_written()
    late = bench.done
    bench.seen(LOW, "Unassigned", from_="a", writer="b", forced=True)
    bench.seen(LOW, "Assigning", to="a", writer="b")
    bench.hooks()
    bench.finish()
    assert len(bench.written()) == 1
    late(ProposalResult(ProposalStatus.REJECTED))
    bench.later(0.9)
    assert bench.written() == []


def test_what_is_not_due_takes_no_room_of_a_tick(bench, monkeypatch):
    monkeypatch.setattr(reactions, "RETRIES_A_TICK", 1)
    bench.seen(LOW, "Assigning", to="a", writer="b")
    bench.hooks()
    (low,) = bench.context.hook_ids
    bench.proposals.full = True
    bench.seen(HIGH, "Assigning", to="a", writer="b")
    bench.hooks()
    bench.finish()
    bench.proposals.full = False
    bench.later(0.5)  # the first one waits for its hook
    assert [proposal["key"] for proposal in bench.written()] == [HIGH]
    bench.later(0.6)
    bench.proposals.full = True
    bench.reactions.hook_finished(HookFinished(low))
    bench.proposals.full = False
    bench.later(0.4)  # and now for its next turn
    assert [proposal["key"] for proposal in bench.written()] == [HIGH]
    bench.later(0.1)
    assert [proposal["key"] for proposal in bench.written()] == [LOW]


def test_what_cannot_be_written_for_long_is_no_late_hook(bench):
    bench.proposals.full = True
    ready(bench)
    bench.later(20.0)
    assert bench.context.events == []


# --- joined anew --------------------------------------------------------------------------------------------------------


def test_what_moved_on_unseen_is_let_go(bench):
    bench.seen(LOW, "Assigning", to="a", writer="b")
    bench.hooks()
    bench.log.move(LOW, "Unassigned", "a", writer="b", forced=True)
    bench.reactions.view_replaced(bench.log.view)
    assert bench.hooks() == [("on_release", LOW, 3, None)]
    assert (bench.reactions.holdings, bench.reactions.tasks) == ({}, {})


def test_a_split_of_a_bundle_that_is_gone_is_let_go_with_its_children(bench):
    bench.serving()
    bench.seen(LOW, "Splitting", from_="a", children=QUARTERS)
    bench.hooks()
    other = FoldLog(("0x00000000_0xffffffff",))
    bench.context.views = [other.view]
    bench.reactions.view_replaced(other.view)
    assert sorted(bench.hooks()) == [
        ("on_release", LOWER, 6, None), ("on_release", LOW, 3, None), ("on_release", UPPER, 6, None),
    ]  # fmt: skip
    assert (bench.reactions.holdings, bench.reactions.tasks) == ({}, {})


def test_a_bundle_too_narrow_to_cut_may_lie_anywhere():
    ranges = ("0x00000000_0x00000008", "0x00000008_0x00000009", "0x00000009_0xffffffff")
    bench, narrow = Bench(FoldLog(ranges)), f"t/n/{ranges[1]}"
    bench.serving(narrow)
    bench.seen(narrow, "Splitting", from_="a")
    assert bench.hooks() == [("on_own", narrow, 5, None)]
