"""Splits through rejoins, expired leases and failing hooks, in any order: a store that trusts its hooks loses nothing."""

from __future__ import annotations

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from statechannel.engine.inputs import HookFinished
from statechannel.engine.reactions import Reactions
from statechannel.protocol.states import State
from statechannel.sim.trace import OpenedBundles, Violation, check_opened, opened_by
from tests.mutants import planted
from tests.support.stub_context import LOW, CallHook, ReactionsBench

QUARTERS = ["0x00000000_0x40000000", "0x40000000_0x80000000"]
LEASE, REJOIN, JOIN, UNSEEN, RETURNS, RAISES, WRITES, FORCED, LATER = (
    "lease expires or is back", "rejoin", "a join begins or ends", "writes unseen", "hook returns", "hook raises", "writes",
    "another moves it", "later",
)  # fmt: skip
ACT = st.tuples(
    st.sampled_from(
        (LEASE, LEASE, REJOIN, JOIN, JOIN, UNSEEN, RETURNS, RETURNS, RAISES, WRITES, WRITES, FORCED, LATER)
    ),
    st.integers(0, 3),
)
HOOKS_OF_A_SPLIT = 3
ACTS = st.builds(
    lambda returned, acts: [(RETURNS, 0)] * returned + acts,
    st.integers(0, HOOKS_OF_A_SPLIT),
    st.lists(ACT, max_size=12),
)
"""Some hooks of the split return, and then anything happens."""


class SplitPlay:
    """Process `a-1` serves a bundle that is to be split, and what it may rely on is checked after each act.

    Attributes:
        opened: Bundles that are prepared or served, by the calls of hooks.
        calls: Names of the hooks that were called.
    """

    def __init__(self) -> None:
        self.bench = ReactionsBench(split_hooks=True, lease_s=5.0)
        self.opened: OpenedBundles = ()
        self.calls: set[str] = set()
        self._waiting: list[int] = []
        self._wanted: list[dict] = []
        bench = self.bench
        bench.seen(LOW, "Assigning", to="a")
        self.check()
        self.act(RETURNS, 0)
        self.act(WRITES, 0)
        bench.seen(LOW, "Splitting", from_="a", children=QUARTERS)
        self.check()

    def act(self, what: str, which: int) -> None:
        bench, context = self.bench, self.bench.context
        if what == LEASE:
            context.lease_ran_out = not context.lease_ran_out
            if context.lease_ran_out:
                bench.reactions.release_all()
            else:
                self._replaced()
        elif what == REJOIN:
            self._replaced()
        elif what == JOIN:
            context.not_judged = set() if context.not_judged else {0}
            self._replaced()
        elif what in (RETURNS, RAISES) and self._waiting:
            hook_id = self._waiting.pop(which % len(self._waiting))
            bench.reactions.hook_finished(HookFinished(hook_id, "disk full" if what == RAISES else None))
        elif what in (WRITES, UNSEEN) and self._wanted:
            self._write(self._wanted.pop(which % len(self._wanted)), seen=what == WRITES)
        elif what == FORCED:
            live = [key.name for key in bench.log.view.live()]
            name = live[which % len(live)]
            bench.log.move(name, "Unassigned", writer="c", forced=True)
            self._changed(name)
        elif what == LATER:
            bench.later(bench.context.config.hook_deadline_s / 2)
        self.check()

    def _write(self, wanted: dict, *, seen: bool) -> None:
        """The record lands, if it still fits what is accepted; a process that joins at this moment does not see it by itself."""
        bench, base = self.bench, wanted["base"]
        held = bench.log.key(wanted["key"])
        if held.accepted_id != base:
            return
        children = wanted.get("children")
        more = {} if children is None else {"children": list(children)}
        bench.log.move(held.name, str(wanted["state"]), wanted.get("from_"), wanted.get("to"), **more)
        if seen:
            self._changed(held.name)
        else:
            self._replaced()

    def _changed(self, name: str) -> None:
        if not self.bench.context.not_judged:
            self.bench.changed(name)

    def _replaced(self) -> None:
        if not self.bench.context.not_judged:
            self.bench.reactions.view_replaced(self.bench.log.view)

    def check(self) -> None:
        context = self.bench.context
        for call in [effect for effect in context.effects if isinstance(effect, CallHook)]:
            self.opened = opened_by(self.opened, call)
            self.calls.add(str(call.hook))
            if call.hook_id:
                self._waiting.append(call.hook_id)
        context.effects.clear()
        for wanted in self.bench.written():
            self._wanted.append(wanted | {"base": self.bench.log.key(wanted["key"]).accepted_id})
        check_opened(self.opened, self.bench.reactions.holdings)


def played(acts: list[tuple[str, int]]) -> SplitPlay:
    play = SplitPlay()
    for what, which in acts:
        play.act(what, which)
    return play


@settings(max_examples=300, deadline=None)
@given(ACTS)
def test_a_parent_is_dropped_only_where_all_its_parts_are_prepared(acts: list[tuple[str, int]]) -> None:
    played(acts)


def goes_wrong(acts: list[tuple[str, int]]) -> bool:
    try:
        played(acts)
    except Violation:
        return True
    return False


def test_a_parent_that_is_dropped_whatever_became_of_its_parts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the lease expired between the parts' preparation and the commit."""
    monkeypatch.setattr(Reactions, "_replaced_by_children", lambda *_: True)
    find(ACTS, goes_wrong, settings=settings(max_examples=5_000, deadline=None, database=None, derandomize=True))


def test_parts_that_are_let_go_in_a_rejoin_are_found() -> None:
    with planted("parts-let-go-in-a-split"):
        find(ACTS, goes_wrong, settings=settings(max_examples=5_000, deadline=None, database=None, derandomize=True))


@pytest.mark.parametrize("hook", ["on_split_done", "on_release", "on_serve"])
def test_the_plays_reach_every_end_of_a_split(hook: str) -> None:
    def reached(acts: list[tuple[str, int]]) -> bool:
        play = played(acts)
        return hook in play.calls and play.bench.log.key(LOW).state is State.DELETED

    find(ACTS, reached, settings=settings(max_examples=5_000, deadline=None, database=None, derandomize=True))
