"""The hooks of a split: the parent takes no more writes, its children are prepared, it is dropped; or it gets its writes back."""

from collections.abc import Callable

from statechannel.engine.effects import CallHook, Hook
from statechannel.engine.inputs import HookFinished
from statechannel.protocol.states import Action, State
from tests.support.stub_context import LOW
from tests.support.stub_context import ReactionsBench as Bench

QUARTERS = ["0x00000000_0x40000000", "0x40000000_0x80000000"]
LOWER, UPPER = (f"t/n/{one}" for one in QUARTERS)


def splitting() -> Bench:
    bench = Bench(split_hooks=True)
    bench.serving()
    bench.seen(LOW, "Splitting", from_="a", children=QUARTERS)
    return bench


def test_the_parent_stops_writes_before_its_children_are_prepared_and_is_dropped_when_they_are_served():
    bench = splitting()
    (call,) = [one for one in bench.context.effects if isinstance(one, CallHook)]
    assert (call.hook, call.bundle, call.generation, call.children) == (Hook.ON_SPLIT, LOW, 6, (LOWER, UPPER))
    assert bench.hooks() == [("on_split", LOW, 6, None)]
    bench.context.now.mono_s += 5
    bench.finish()
    left_s = {one.deadline_s for one in bench.context.effects if isinstance(one, CallHook)}
    assert left_s == {bench.context.config.hook_deadline_s - 5}
    assert bench.hooks() == [("on_own", LOWER, 6, None), ("on_own", UPPER, 6, None)]
    for which in bench.context.hook_ids[:]:
        bench.reactions.hook_finished(HookFinished(which))
    assert bench.one_written()[:2] == (State.DELETED, Action.SPLIT)
    bench.seen(LOW, "Deleted", from_="a", children=QUARTERS)
    (done,) = [one for one in bench.context.effects if isinstance(one, CallHook) and one.hook is Hook.ON_SPLIT_DONE]
    assert (done.hook_id, done.children) == (0, (LOWER, UPPER))
    expected = [("on_split_done", LOW, 6, None), ("on_serve", LOWER, 6, None), ("on_serve", UPPER, 6, None)]
    assert bench.hooks() == expected


def test_a_parent_that_cannot_stop_writes_is_not_split():
    bench = splitting()
    bench.hooks()
    bench.finish("a client writes for ever")
    assert bench.hooks() == [("on_own", LOW, 5, None)]
    assert bench.reactions.holdings.keys() == {LOW}
    bench.finish()
    assert bench.one_written() == (State.ASSIGNED, Action.RESUME, None, "a")
    bench.seen(LOW, "Assigned", to="a")
    assert bench.hooks() == [("on_serve", LOW, 5, None)]


def test_a_split_that_fails_after_the_parent_stopped_gives_it_back_its_writes():
    bench = splitting()
    bench.hooks()
    bench.finish()
    bench.hooks()
    bench.finish("disk full")
    assert bench.hooks() == [("on_release", LOWER, 6, None), ("on_release", UPPER, 6, None), ("on_own", LOW, 5, None)]
    bench.finish()
    assert bench.written()[0]["reason"] == "disk full"
    bench.seen(LOW, "Assigned", to="a")
    assert bench.hooks() == [("on_serve", LOW, 5, None)]


def prepared() -> Bench:
    """Both children are prepared, and the record that commits the split is on its way."""
    bench = splitting()
    bench.hooks()
    bench.finish()
    bench.hooks()
    for which in bench.context.hook_ids[:]:
        bench.reactions.hook_finished(HookFinished(which))
    assert bench.one_written()[:2] == (State.DELETED, Action.SPLIT)
    return bench


def test_a_rejoin_in_the_middle_of_a_split_leaves_its_children_prepared():
    bench = splitting()
    bench.hooks()
    bench.finish()
    bench.hooks()
    hook_ids = bench.context.hook_ids[:]
    bench.reactions.view_replaced(bench.log.view)
    assert bench.hooks() == []
    for which in hook_ids:
        bench.reactions.hook_finished(HookFinished(which))
    assert bench.one_written()[:2] == (State.DELETED, Action.SPLIT)
    bench.seen(LOW, "Deleted", from_="a", children=QUARTERS)
    expected = [("on_split_done", LOW, 6, None), ("on_serve", LOWER, 6, None), ("on_serve", UPPER, 6, None)]
    assert bench.hooks() == expected


def test_a_split_that_fails_in_the_middle_of_a_rejoin_is_given_up_after_it():
    bench = splitting()
    bench.hooks()
    bench.finish()
    bench.hooks()
    rejoins(bench, lambda: bench.finish("disk full"))
    assert bench.hooks() == [("on_release", LOWER, 6, None), ("on_release", UPPER, 6, None), ("on_own", LOW, 5, None)]
    bench.finish()
    (record,) = bench.written()
    assert (record["state"], record["reason"]) == (State.ASSIGNED, "disk full")


def test_a_parent_that_cannot_be_prepared_again_in_the_middle_of_a_rejoin_is_not_split_anew():
    bench = splitting()
    bench.hooks()
    bench.finish("a client writes for ever")
    assert bench.hooks() == [("on_own", LOW, 5, None)]
    rejoins(bench, lambda: bench.finish("fenced by 6"))
    assert bench.hooks() == [("on_release", LOW, 3, None)]
    (record,) = bench.written()
    assert (record["state"], record["reason"]) == (State.ASSIGNED, "a client writes for ever; then fenced by 6")
    bench.seen(LOW, "Assigned", to="a")
    assert bench.hooks() == [("on_own", LOW, 6, None)]


def test_a_parent_that_is_being_resumed_is_not_split():
    """As after a cold start on an assert, which does not say which process serves."""
    bench = Bench(split_hooks=True)
    bench.serving()
    bench.log.key(LOW).server = None
    bench.reactions.view_replaced(bench.log.view)
    assert bench.hooks() == [("on_own", LOW, 4, None)]
    bench.seen(LOW, "Splitting", from_="a", children=QUARTERS)
    assert bench.hooks() == [("on_own", LOW, 5, None)]
    bench.finish()
    assert bench.one_written() == (State.ASSIGNED, Action.RESUME, None, "a")


def rejoins(bench: Bench, meanwhile: Callable[[], None]) -> None:
    """A join of the partition, and what happens in its middle has no effect before its end."""
    bench.context.not_judged = {0}
    meanwhile()
    bench.later(1)
    assert (bench.hooks(), bench.written()) == ([], [])
    bench.context.not_judged = set()
    bench.reactions.view_replaced(bench.log.view)
    bench.later(1)


def test_a_split_that_was_committed_during_a_rejoin_is_done_in_the_same_order():
    bench = prepared()
    bench.log.move(LOW, "Deleted", from_="a", children=QUARTERS)
    bench.reactions.view_replaced(bench.log.view)
    expected = [("on_split_done", LOW, 6, None), ("on_serve", LOWER, 6, None), ("on_serve", UPPER, 6, None)]
    assert bench.hooks() == expected
    assert bench.reactions.tasks == {}


def test_a_split_that_another_ended_during_a_rejoin_releases_parent_and_children():
    bench = prepared()
    bench.log.move(LOW, "Assigning", to="b", writer="c", forced=True)
    bench.reactions.view_replaced(bench.log.view)
    expected = {("on_release", LOW, 3, "b"), ("on_release", LOWER, 6, None), ("on_release", UPPER, 6, None)}
    assert set(bench.hooks()) == expected
    assert bench.reactions.holdings == {}


def test_a_parent_that_was_released_when_the_lease_expired_is_not_dropped():
    """The record that commits the split was on its way; it is read while the lease is out."""
    bench = prepared()
    bench.context.lease_ran_out = True
    bench.reactions.release_all()
    expected = [("on_release", LOW, 3, None), ("on_release", LOWER, 6, None), ("on_release", UPPER, 6, None)]
    assert bench.hooks() == expected
    bench.seen(LOW, "Deleted", from_="a", children=QUARTERS)
    assert bench.hooks() == []
    bench.context.lease_ran_out = False
    bench.reactions.view_replaced(bench.log.view)
    assert bench.hooks() == [("on_own", LOWER, 7, None), ("on_own", UPPER, 7, None)]


def test_a_commit_that_is_read_after_the_lease_was_taken_up_again_does_not_drop_the_parent():
    """By then the split is being given up: the parent is prepared again, its children copy what it has."""
    bench = prepared()
    bench.context.lease_ran_out = True
    bench.reactions.release_all()
    bench.context.lease_ran_out = False
    bench.hooks()
    bench.reactions.view_replaced(bench.log.view)
    assert bench.hooks() == [("on_own", LOW, 5, None)]
    bench.seen(LOW, "Deleted", from_="a", children=QUARTERS)
    assert bench.hooks() == [("on_release", LOW, 5, None), ("on_own", LOWER, 7, None), ("on_own", UPPER, 7, None)]
    assert bench.reactions.holdings.keys() == {LOWER, UPPER}


def test_a_parent_is_not_dropped_while_one_of_its_children_is_not_prepared():
    bench = prepared()
    del bench.reactions.holdings[UPPER]
    bench.seen(LOW, "Deleted", from_="a", children=QUARTERS)
    assert bench.hooks() == [("on_release", LOW, 3, None), ("on_serve", LOWER, 6, None), ("on_own", UPPER, 7, None)]


def test_the_first_cause_of_a_split_that_is_given_up_is_named_beside_what_follows_from_it():
    bench = splitting()
    bench.hooks()
    bench.finish()
    bench.hooks()
    bench.finish("on_own raised OSError: disk full")
    bench.hooks()
    bench.finish("on_own raised RuntimeError: fenced by 6")
    (record,) = bench.written()
    assert record["reason"] == "on_own raised OSError: disk full; then on_own raised RuntimeError: fenced by 6"


def test_only_what_is_served_grows_for_a_topic_since_a_split_that_is_given_up_does_not_use_up_what_it_proposed():
    bench = splitting()
    calls = bench.hooks()
    bench.finish()
    calls += bench.hooks()
    bench.finish("disk full")
    calls += bench.hooks()
    bench.finish()
    bench.seen(LOW, "Assigned", to="a")
    calls += bench.hooks()
    bench.seen(LOW, "Assigned", to="a", writer="b")  # another process under this id
    calls += bench.hooks()
    assert [(hook, generation) for hook, _, generation, _ in calls] == [
        ("on_split", 6), ("on_own", 6), ("on_own", 6), ("on_release", 6), ("on_release", 6),
        ("on_own", 5), ("on_serve", 5), ("on_release", 5), ("on_own", 7),
    ]  # fmt: skip
