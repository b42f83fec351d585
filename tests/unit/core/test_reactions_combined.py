"""Where reactions begin and end, and every combination of state, brokers, writer and holding."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from statechannel.engine.reactions import RETRIES_A_TICK, DueReaction, ReactionTask, ServedBundle
from statechannel.protocol.keys import Writer
from statechannel.protocol.states import State
from tests.support.stub_context import HIGH, LOW, FoldLog
from tests.support.stub_context import ReactionsBench as Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


# --- entry points -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("why", ["not registered", "not judged"])
def test_nothing_is_begun_before_it_may(bench, why):
    bench.context.registered = why != "not registered"
    bench.context.not_judged = {0} if why == "not judged" else set()
    bench.seen(LOW, "Assigning", to="a", writer="b")
    assert (bench.hooks(), bench.reactions.tasks) == ([], {})
    bench.context.registered, bench.context.not_judged = True, set()
    bench.reactions.view_replaced(bench.log.view)
    assert bench.hooks() == [("on_own", LOW, 3, None)]


def test_the_same_state_once_more_is_not_begun_anew(bench):
    bench.seen(LOW, "Assigning", to="a", writer="b")
    assert len(bench.hooks()) == 1
    bench.changed()
    bench.reactions.view_replaced(bench.log.view)
    assert bench.hooks() == []


def test_another_state_at_the_same_version_is(bench):
    bench.seen(LOW, "Assigning", to="a", writer="b")
    bench.hooks()
    bench.log.key(LOW).record_id = "another history"
    bench.changed()
    assert bench.hooks() == [("on_own", LOW, 3, None)]


def test_after_a_join_what_has_moved_on_unseen_is_let_go(bench):
    bench.serving()
    bench.serving(HIGH)
    bench.log.move(LOW, "Assigning", to="b", writer="b", forced=True)
    bench.reactions.view_replaced(bench.log.view)
    assert bench.hooks() == [("on_release", LOW, 3, "b")]
    assert bench.reactions.serving() == {HIGH: 3}


def test_after_a_join_a_task_whose_bundle_is_gone_is_dropped(bench):
    bench.seen(LOW, "Assigning", to="a", writer="b")
    bench.hooks()
    empty = FoldLog(("0x00000000_0xffffffff",))
    bench.context.views = [empty.view]
    bench.reactions.view_replaced(empty.view)
    assert (bench.reactions.tasks, bench.reactions.holdings) == ({}, {})
    assert bench.hooks() == [("on_release", LOW, 3, None)]


def test_a_namespace_that_goes_takes_its_bundles_along_and_no_others(bench):
    bench.serving()
    bench.seen(HIGH, "Assigning", to="a", writer="b")
    bench.hooks()
    bench.reactions.holdings["t/nn/0x00000000_0xffffffff"] = ServedBundle(1)
    space = bench.log.key("t/n")
    bench.reactions.state_changed(bench.log.view, space)
    assert bench.hooks() == [], "it lives"
    space.state = State.DELETED
    bench.reactions.state_changed(bench.log.view, space)
    assert sorted(bench.hooks()) == [("on_release", LOW, 3, None), ("on_release", HIGH, 3, None)]
    assert list(bench.reactions.holdings) == ["t/nn/0x00000000_0xffffffff"]
    assert bench.reactions.tasks == {}


def test_release_all_lets_everything_go_and_forgets_what_was_due(bench):
    bench.serving()
    bench.seen(HIGH, "Assigning", to="a", writer="b")
    bench.hooks()
    bench.reactions.release_all()
    assert bench.hooks() == [("on_release", LOW, 3, None), ("on_release", HIGH, 3, None)]
    assert (bench.reactions.holdings, bench.reactions.tasks) == ({}, {})
    bench.finish()
    assert bench.written() == []


def test_the_source_is_told_where_its_bundle_went(bench):
    key = bench.log.own(LOW, "b")
    bench.reactions.moved(State.ASSIGNED, key)
    assert bench.hooks() == []
    key.from_ = "a"
    bench.reactions.moved(State.ASSIGNING, key)
    assert bench.hooks() == []
    bench.reactions.moved(State.ASSIGNED, key)
    assert bench.hooks() == [("on_moved", LOW, 3, "b")]
    key.to = "a"
    bench.reactions.moved(State.ASSIGNED, key)
    assert bench.hooks() == []


def test_a_tick_takes_up_no_more_than_its_share(bench):
    log = bench.log
    bench.context.may_write = False
    count = RETRIES_A_TICK + 1
    bounds = [index * 0x1000 for index in range(count)] + [0xFFFFFFFF]
    log.write("t/m", id="ns2", version=1, base=None, state="Active",
              children=[f"0x{a:08x}_0x{b:08x}" for a, b in itertools.pairwise(bounds)])  # fmt: skip
    bench.context.draining = True
    for key in list(log.view.live()):
        if key.namespace == "t/m":
            log.move(key.name, "Assigning", to="a", writer="b")
            bench.changed(key.name)
    bench.context.may_write = True
    assert bench.written() == []
    bench.later(0.5)
    assert len(bench.written()) == RETRIES_A_TICK
    bench.reactions.tick()
    assert len(bench.written()) == 1


# --- all combinations ---------------------------------------------------------------------------------------------------

ME, OTHER = "a", "b"
LIVE = (State.UNASSIGNED, State.ASSIGNING, State.ASSIGNED, State.RELEASING, State.SPLITTING, State.DELETED)
VERSION = 9


def a_key(state: State | None, from_: str | None, to: str | None, writer: tuple[str, str]) -> Any:
    """A key as it may lie in a view, whatever led there."""
    key = FoldLog().key(LOW)
    key.state, key.version, key.from_, key.to, key.writer = state, VERSION, from_, to, Writer(*writer)
    key.record_id, key.derived, key.server = "r", False, None
    return key


def kept(key: Any, holding: ServedBundle) -> str:
    """What becomes of a holding: the sentences of `Reactions` and of protocol.md section 2, not its code."""
    served, prepared = holding.generation, holding.prepared
    mine_as_owner = key.state is State.ASSIGNED and key.to == ME
    mine_as_source = key.state in (State.RELEASING, State.SPLITTING) and key.from_ == ME
    mine_to_be = key.state is State.ASSIGNING and key.to == ME
    by_this_process = key.writer == Writer("a", "a-1")
    if mine_as_owner and by_this_process and prepared == VERSION:
        return "begins"
    if (mine_as_owner and served == VERSION) or (mine_as_source and served == VERSION - 1):
        return "goes on"
    if served is None and prepared == VERSION + 1 and (mine_as_owner or mine_as_source or mine_to_be):
        return "is prepared"
    return "is split" if key.state is State.DELETED and by_this_process and served is not None else "ends"


@pytest.mark.parametrize("state", [None, *LIVE])
@pytest.mark.parametrize("from_", [None, ME, OTHER])
@pytest.mark.parametrize("to", [None, ME, OTHER])
@pytest.mark.parametrize("writer", [("a", "a-1"), ("a", "a-0"), ("b", "b-1")])
def test_what_becomes_of_a_holding(state, from_, to, writer):
    numbers = (None, VERSION - 1, VERSION, VERSION + 1)
    for served, prepared in itertools.product(numbers, numbers):
        bench = Bench()
        key = a_key(state, from_, to, writer)
        before = ServedBundle(served, prepared)
        bench.reactions.holdings[LOW] = ServedBundle(served, prepared)
        bench.reactions._settle(LOW, key)
        end, hooks, holdings = kept(key, before), bench.hooks(), bench.reactions.holdings
        if state is None:
            end = "ends"
        peer = (key.owner or key.bound_for) if end == "ends" else None
        released = ("on_release", LOW, (served if served is not None else prepared) or 0, None if peer == ME else peer)
        wanted = {"begins": [("on_serve", LOW, VERSION, None)], "ends": [released]}.get(end, [])
        assert hooks == wanted, (end, before)
        after = {
            "begins": {LOW: ServedBundle(VERSION, None)},
            "goes on": {LOW: ServedBundle(served, prepared, ending=key.state is not State.ASSIGNED)},
            "is prepared": {LOW: before},
        }.get(end, {})
        assert holdings == after, (end, before)


def test_a_holding_of_a_key_that_is_not_there_ends():
    bench = Bench()
    bench.reactions.holdings[LOW] = ServedBundle(7, None)
    bench.reactions._settle(HIGH, None)
    assert bench.hooks() == []
    bench.reactions._settle(LOW, None)
    assert bench.hooks() == [("on_release", LOW, 7, None)]


@pytest.mark.parametrize("state", LIVE)
@pytest.mark.parametrize("from_", [None, ME, OTHER, "lost"])
@pytest.mark.parametrize("to", [None, ME, OTHER, "lost"])
@pytest.mark.parametrize("draining", [False, True])
@pytest.mark.parametrize("serves", [False, True])
def test_what_is_due(state, from_, to, draining, serves):
    bench = Bench()
    bench.context.draining, bench.context.lost = draining, {"lost", None}
    key = a_key(state, from_, to, ("a", "a-1"))
    if serves and key.generation is not None:
        bench.reactions.holdings[LOW] = ServedBundle(key.generation)
    for server in (None, Writer("a", "a-1"), Writer("a", "a-0")):
        key.server = server
        wanted = None
        if state is State.ASSIGNING and to == ME:
            wanted = DueReaction.DECLINE if draining else DueReaction.RETURN
        elif state is State.ASSIGNED and to == ME and not (serves and server == Writer("a", "a-1")):
            wanted = DueReaction.RESUME
        elif state is State.RELEASING and from_ == ME:
            wanted = DueReaction.TAKE_BACK if to == "lost" and not draining else DueReaction.LET_GO
        elif state is State.SPLITTING and from_ == ME:
            wanted = DueReaction.COMMIT_SPLIT if serves else DueReaction.GIVE_UP
        assert bench.reactions.due(key) is wanted


@pytest.mark.parametrize("generation", [None, VERSION - 1, VERSION, VERSION + 1])
def test_it_serves_only_the_generation_of_the_state(generation):
    bench = Bench()
    key = a_key(State.ASSIGNED, None, ME, ("a", "a-1"))
    assert not bench.reactions.serves(key)
    bench.reactions.holdings[LOW] = ServedBundle(generation, VERSION)
    assert bench.reactions.serves(key) is (generation == VERSION)
    key.state = State.UNASSIGNED
    assert not bench.reactions.serves(key), "nobody serves that"


def test_a_task_without_a_holding_ends_with_its_state(bench):
    bench.context.draining = True
    bench.context.may_write = False
    bench.seen(LOW, "Assigning", to="a", writer="b")
    assert (list(bench.reactions.tasks), bench.reactions.holdings) == ([LOW], {})
    bench.seen(LOW, "Assigning", to="b", writer="b", forced=True)
    assert bench.reactions.tasks == {}


def test_a_partition_that_is_joined_anew_concerns_its_own_bundles_only():
    bench = Bench()
    other = FoldLog()
    bench.context.partition_of = lambda namespace: {"t/n": 0, "t/far": 1}[namespace]
    far = "t/far/0x00000000_0xffffffff"
    bench.serving()
    bench.reactions.holdings[far] = ServedBundle(5)
    task = ReactionTask(DueReaction.LET_GO, 1, "x", 0.0)
    bench.reactions.tasks[far] = task
    bench.reactions.view_replaced(bench.log.view)
    assert bench.reactions.holdings.keys() == {LOW, far}
    assert bench.reactions.tasks == {far: task}
    other.view.partition = 1
    bench.reactions.view_replaced(other.view)
    assert bench.hooks() == [("on_release", far, 5, None)]
    assert bench.reactions.holdings.keys() == {LOW}
    assert bench.reactions.tasks == {}


def test_after_a_join_a_task_whose_state_asks_nothing_any_more_is_dropped(bench):
    bench.context.may_write = False
    bench.context.draining = True
    bench.seen(LOW, "Assigning", to="a", writer="b")
    bench.log.move(LOW, "Unassigned", from_="a", writer="b", forced=True)
    bench.reactions.view_replaced(bench.log.view)
    assert bench.reactions.tasks == {}


@pytest.mark.parametrize("changed", ["version", "id"])
def test_what_is_due_again_for_another_record_is_begun_again(bench, changed):
    bench.log.own(LOW, "a", writer="a-0")
    bench.changed()
    assert bench.hooks() == [("on_own", LOW, 4, None)]
    key = bench.log.key(LOW)
    key.version, key.record_id = (4, key.record_id) if changed == "version" else (3, "x")
    bench.reactions._react(LOW, key)
    assert bench.hooks() == [("on_own", LOW, key.version + 1, None)]
    bench.reactions._react(LOW, key)
    assert bench.hooks() == []
