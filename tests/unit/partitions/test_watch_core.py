"""Decisions of the autopilot as tables: each reason to hold, each end of a plan, alerts, and what is remembered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shedders.kafka_rebalance.execution.values import ExecutionRequest, StopKind
from shedders.kafka_rebalance.settings import WatchSettings
from shedders.kafka_rebalance.watch.core import PLAN_GIVEN_UP, PLAN_LOST, PLAN_STOPPED, step
from shedders.kafka_rebalance.watch.holds import HOLDS, HoldCode
from shedders.kafka_rebalance.watch.values import (
    BlockKind,
    ClusterHealth,
    FinishPlan,
    HoldBack,
    LookForPlan,
    PausePlan,
    Propose,
    RaiseAlert,
    Spending,
    StartPlan,
    WatchedExecution,
    WatchObservation,
    WatchProposal,
    WatchState,
)

NOW_MS = 1_767_225_600_000  # Thursday, 2026-01-01 00:00 UTC
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
BRAKES = WatchSettings(mode="act", persist_s=3_600, budget_bytes=1_000, budget_window_s=86_400, interval_s=3_600)
WELL = ClusterHealth(cluster_id="c", alive=frozenset({1, 2, 3, 4, 5, 6}), holders=frozenset({1, 2, 3}))
PLAN = WatchProposal(plan_id="p1", copied_bytes=400, keys=(("t", 0), ("t", 1)))
OLD = WatchState(imbalanced_since_ms=NOW_MS - 2 * HOUR_MS, imbalance_seen_ms=NOW_MS - HOUR_MS)
SEEN = WatchObservation(health=WELL, proposal=PLAN)
RUN = WatchedExecution(plan_id="p1", began_at_ms=NOW_MS - HOUR_MS, keys=PLAN.keys)
UNDER_WAY = WatchState(
    execution=RUN, spent=(Spending(plan_id="p1", from_ms=NOW_MS - HOUR_MS, to_ms=None, size_bytes=400),)
)


def health(**changes: Any) -> ClusterHealth:
    return replace(WELL, **changes)


def seen(**changes: Any) -> WatchObservation:
    return replace(SEEN, **changes)


def brakes(**changes: Any) -> WatchSettings:
    return BRAKES.model_copy(update=changes)


def state(**changes: Any) -> WatchState:
    return replace(OLD, **changes)


SPENT = (Spending(plan_id="o", from_ms=NOW_MS - HOUR_MS, to_ms=NOW_MS - HOUR_MS, size_bytes=700),)
NOTHING = replace(PLAN, keys=(), copied_bytes=0)
TABLE = [
    (HoldCode.KAFKA_AWAY, BRAKES, seen(health=None, trouble="no answer"), OLD),
    (
        HoldCode.MASS_OUTAGE,
        BRAKES,
        seen(health=health(alive=frozenset({1, 2, 3, 4}))),
        state(brokers={5: NOW_MS, 6: NOW_MS}),
    ),
    (HoldCode.MASS_OUTAGE, brakes(brokers_missing_max=5), seen(health=health(alive=frozenset({4}))), OLD),
    (HoldCode.BROKERS_MISSING, BRAKES, seen(), state(brokers={7: NOW_MS - HOUR_MS})),
    (HoldCode.BROKERS_MISSING, BRAKES, seen(health=health(holders=frozenset({1, 9}))), OLD),
    (HoldCode.UNDER_REPLICATED, BRAKES, seen(health=health(under_replicated=(("t", 0),))), OLD),
    (HoldCode.EXECUTOR, BRAKES, seen(foreign_executor="executor e executes plan q"), OLD),
    (HoldCode.REASSIGNMENT, BRAKES, seen(health=health(reassigning=(("t", 0),))), OLD),
    (HoldCode.CALMING, BRAKES, seen(), state(troubled_at_ms=NOW_MS - 60_000)),
    (
        HoldCode.RESTING,
        BRAKES,
        seen(proposal=replace(NOTHING, excess_left=True)),
        state(moved={("t", 5): NOW_MS - HOUR_MS}),
    ),
    (HoldCode.BUDGET, BRAKES, seen(), state(spent=SPENT)),
    (HoldCode.BUDGET, BRAKES, seen(proposal=replace(NOTHING, excess_left=True, cut=True)), state(spent=SPENT)),
    (HoldCode.BALANCED, BRAKES, seen(proposal=NOTHING), OLD),
    (HoldCode.BALANCED, BRAKES, seen(proposal=replace(NOTHING, excess_left=True)), OLD),
    (HoldCode.HARD_GOALS, BRAKES, seen(proposal=replace(PLAN, unmet=("rack-awareness",))), OLD),
    (HoldCode.SIZES_UNKNOWN, BRAKES, seen(proposal=replace(PLAN, unknown_sizes=1)), OLD),
    (HoldCode.SMALL_GAIN, BRAKES, seen(proposal=replace(PLAN, gain_share=0.05)), OLD),
    (HoldCode.YOUNG, BRAKES, seen(), WatchState()),
    (HoldCode.YOUNG, BRAKES, seen(), state(imbalance_seen_ms=NOW_MS - 4 * HOUR_MS)),
    (HoldCode.PROPOSE_ONLY, brakes(mode="propose"), seen(), OLD),
    (HoldCode.BLOCKED, BRAKES, seen(), state(blocked=BlockKind.CANCELLED, blocked_until_ms=NOW_MS + 1)),
    (HoldCode.OPEN_PLAN, brakes(mode="propose"), seen(proposal=None), UNDER_WAY),
    (HoldCode.RETRY, BRAKES, seen(proposal=None), replace(UNDER_WAY, execution=replace(RUN, retry_at_ms=NOW_MS + 1))),
    (HoldCode.QUIET, brakes(quiet=["Thu 00:00-01:00"]), seen(), OLD),
    (HoldCode.QUIET, brakes(quiet=["2026-01-01"], hours=["00:00-24:00"]), seen(), OLD),
    (HoldCode.HOURS, brakes(hours=["Fri 00:00-24:00"]), seen(), OLD),
]


@pytest.mark.parametrize(
    ("code", "settings", "observation", "before"), TABLE, ids=[f"{n}-{row[0]}" for n, row in enumerate(TABLE)]
)
def test_each_reason_to_hold(
    code: HoldCode, settings: WatchSettings, observation: WatchObservation, before: WatchState
) -> None:
    result = step(settings, NOW_MS, observation, before)
    (held,) = [effect for effect in result.effects if isinstance(effect, HoldBack)]
    assert held.code == code, held
    assert held.message
    assert held.hint == next(rule.hint for rule in HOLDS if rule.code is code)
    assert result.state.hold is not None
    assert (result.state.hold.code, result.state.hold.since_ms) == (code, NOW_MS)
    assert not any(isinstance(effect, StartPlan) for effect in result.effects)


def test_the_table_has_each_reason() -> None:
    assert {row[0] for row in TABLE} == set(HoldCode)
    assert [rule.code for rule in HOLDS] != sorted(HoldCode), "the order is that of the checks"
    assert len({rule.code for rule in HOLDS}) == len(HOLDS) == len(HoldCode)
    assert all(rule.about and (rule.hint or not rule.alerts) for rule in HOLDS)


def test_a_plan_is_looked_for_within_what_is_left() -> None:
    before = state(spent=SPENT, moved={("t", 5): NOW_MS - HOUR_MS, ("t", 6): NOW_MS - 2 * DAY_MS})
    by_operators = {("t", 7): NOW_MS - HOUR_MS, ("t", 8): NOW_MS - 2 * DAY_MS}
    (look,) = step(BRAKES, NOW_MS, seen(proposal=None, moved_elsewhere=by_operators), before).effects
    assert look == LookForPlan(bytes_max=300, moves_max=500, resting=frozenset({("t", 5), ("t", 7)}))


def test_a_plan_is_proposed_and_started_and_its_bytes_are_spent() -> None:
    result = step(BRAKES, NOW_MS, SEEN, OLD)
    assert result.effects == (
        Propose(plan_id="p1", copied_bytes=400, partitions=2),
        StartPlan(plan_id="p1", request=ExecutionRequest.GO, begins=True),
    )
    assert result.state.execution == replace(RUN, began_at_ms=NOW_MS)
    assert result.state.left_bytes(NOW_MS + 100 * DAY_MS, BRAKES) == 600, "it counts until it ends"
    assert result.state.resting(NOW_MS, BRAKES.cooldown_s) == set(PLAN.keys)


def test_a_proposal_is_told_once() -> None:
    settings = brakes(mode="propose")
    first = step(settings, NOW_MS, SEEN, OLD)
    assert any(isinstance(effect, Propose) for effect in first.effects)
    second = step(settings, NOW_MS + HOUR_MS, SEEN, first.state)
    assert not any(isinstance(effect, Propose) for effect in second.effects)
    other = step(settings, NOW_MS + HOUR_MS, seen(proposal=replace(PLAN, plan_id="p2")), second.state)
    assert any(isinstance(effect, Propose) for effect in other.effects)


def test_an_imbalance_has_to_last() -> None:
    first = step(BRAKES, NOW_MS, SEEN, WatchState())
    assert first.state.imbalanced_since_ms == NOW_MS
    gone = step(BRAKES, NOW_MS + HOUR_MS // 2, seen(proposal=NOTHING), first.state)
    assert gone.state.imbalanced_since_ms == 0
    ill = step(BRAKES, NOW_MS + HOUR_MS // 2, seen(health=health(under_replicated=(("t", 0),))), first.state)
    assert ill.state.imbalanced_since_ms == 0
    assert isinstance(step(BRAKES, NOW_MS + HOUR_MS, SEEN, first.state).effects[-1], StartPlan)


def test_an_alert_once_for_each_time_that_a_reason_lasts() -> None:
    ill, alerts, now_ms, memory = seen(health=health(under_replicated=(("t", 0),))), [], NOW_MS, WatchState()
    for minute in range(0, 240, 30):
        result = step(BRAKES, NOW_MS + minute * 60_000, ill, memory)
        memory = result.state
        alerts += [minute for effect in result.effects if isinstance(effect, RaiseAlert)]
    assert alerts == [60]
    now_ms += 220 * 60_000
    memory = step(BRAKES, now_ms, SEEN, memory).state
    assert memory.hold is not None
    assert memory.hold.code == HoldCode.CALMING
    again = step(BRAKES, now_ms + 60_000, ill, memory)
    assert not any(isinstance(effect, RaiseAlert) for effect in again.effects), "a new one begins"


def test_a_broker_that_is_gone_without_replicas_is_forgotten() -> None:
    gone = state(brokers={7: NOW_MS - 2 * DAY_MS})
    assert isinstance(step(BRAKES, NOW_MS, SEEN, gone).effects[-1], StartPlan)


# --- a plan under way -------------------------------------------------------------------------------------------------

ENDS = [
    # end, before -> execution goes on, gives up, blocked, alert
    (StopKind.DONE, RUN, False, False, None, None),
    (StopKind.CANCELLED, RUN, False, False, BlockKind.CANCELLED, None),
    (StopKind.CANCELLED, replace(RUN, giving_up=True), False, False, BlockKind.GAVE_UP, None),
    (StopKind.BROKER_AWAY, RUN, True, False, None, PLAN_STOPPED),
    (StopKind.URPS, replace(RUN, attempts=1), True, False, None, PLAN_STOPPED),
    (StopKind.STALLED, replace(RUN, attempts=2), True, True, None, PLAN_GIVEN_UP),
    (StopKind.CHANGED, RUN, True, True, None, PLAN_GIVEN_UP),
    (StopKind.TOPIC_GONE, RUN, True, True, None, PLAN_GIVEN_UP),
    (StopKind.FAILED, replace(RUN, giving_up=True, attempts=2), False, False, BlockKind.GAVE_UP, PLAN_GIVEN_UP),
]


@pytest.mark.parametrize(
    ("end", "execution", "goes_on", "gives_up", "blocked", "alert"),
    ENDS,
    ids=[f"{n}-{row[0]}" for n, row in enumerate(ENDS)],
)
def test_each_end_of_a_plan(
    end: StopKind,
    execution: WatchedExecution,
    *,
    goes_on: bool,
    gives_up: bool,
    blocked: BlockKind | None,
    alert: str | None,
) -> None:
    result = step(
        BRAKES, NOW_MS, seen(proposal=None, ended=end, end_reason="why"), replace(UNDER_WAY, execution=execution)
    )
    after = result.state.execution
    assert (after is not None) == goes_on
    assert (after is not None and after.giving_up) == gives_up
    assert result.state.blocked is blocked
    assert [effect.code for effect in result.effects if isinstance(effect, RaiseAlert)] == ([alert] if alert else [])
    if after is None:
        assert result.effects[-1] == FinishPlan(plan_id="p1", end=end, reason="" if end is StopKind.DONE else "why")
        assert result.state.left_bytes(NOW_MS + DAY_MS - 1, BRAKES) == 600, "its bytes count for a window after its end"
        assert result.state.left_bytes(NOW_MS + DAY_MS, BRAKES) == 1_000
        assert result.state.resting(NOW_MS + HOUR_MS, BRAKES.cooldown_s) == set(PLAN.keys)
    else:
        waits = after.retry_at_ms > NOW_MS
        assert waits != gives_up, "a plan that is given up is cancelled at once"


def test_a_plan_without_an_executor_is_continued() -> None:
    for ended in (None, StopKind.INTERRUPTED, StopKind.REPLACED):
        result = step(BRAKES, NOW_MS, seen(proposal=None, ended=ended), UNDER_WAY)
        assert result.effects == (StartPlan(plan_id="p1", request=ExecutionRequest.GO, begins=False),)
    given_up = replace(UNDER_WAY, execution=replace(RUN, giving_up=True))
    quiet = brakes(quiet=["00:00-24:00"])
    (start,) = step(quiet, NOW_MS, seen(proposal=None), given_up).effects
    assert start == StartPlan(plan_id="p1", request=ExecutionRequest.CANCEL, begins=False)
    (held, _) = (*step(quiet, NOW_MS, seen(proposal=None), UNDER_WAY).effects, None)
    assert isinstance(held, HoldBack)
    assert held.code == HoldCode.QUIET


@pytest.mark.parametrize("giving_up", [False, True])
def test_the_mode_propose_neither_continues_nor_cancels_a_plan_of_the_mode_act(*, giving_up: bool) -> None:
    """An operator ends it, or a watcher with the mode `act`; it is an alert that it waits, and its bytes stay spent."""
    memory, alerts = replace(UNDER_WAY, execution=replace(RUN, giving_up=giving_up)), []
    for hour in range(3):
        result = step(brakes(mode="propose"), NOW_MS + hour * HOUR_MS, seen(proposal=None), memory)
        memory = result.state
        assert not any(isinstance(effect, StartPlan | PausePlan | FinishPlan) for effect in result.effects)
        alerts += [effect.code for effect in result.effects if isinstance(effect, RaiseAlert)]
    assert alerts == [HoldCode.OPEN_PLAN]
    assert memory.left_bytes(NOW_MS + 30 * DAY_MS, BRAKES) == 600
    acts = step(BRAKES, NOW_MS + 3 * HOUR_MS, seen(proposal=None), memory)
    request = ExecutionRequest.CANCEL if giving_up else ExecutionRequest.GO
    assert acts.effects == (StartPlan(plan_id="p1", request=request, begins=False),)
    over = step(brakes(mode="propose"), NOW_MS + 3 * HOUR_MS, seen(proposal=None, ended=StopKind.DONE), memory)
    assert over.state.execution is None, "an operator has finished it"


def test_its_own_reassignments_do_not_hold_it() -> None:
    moving = seen(proposal=None, health=health(reassigning=PLAN.keys))
    assert isinstance(step(BRAKES, NOW_MS, moving, UNDER_WAY).effects[0], StartPlan)


def test_a_plan_that_is_found_nowhere_is_left() -> None:
    result = step(BRAKES, NOW_MS, seen(proposal=None, plan_lost=True), UNDER_WAY)
    assert result.state.execution is None
    assert [effect.code for effect in result.effects if isinstance(effect, RaiseAlert)] == [PLAN_LOST]


def test_a_plan_under_way_is_paused_at_the_end_of_its_hours() -> None:
    driving = WatchObservation(health=None, driving=True)
    night = brakes(hours=["22:00-02:00"])
    assert step(night, NOW_MS, driving, UNDER_WAY).effects == ()
    late_ms = NOW_MS + 2 * HOUR_MS
    paused = step(night, late_ms, driving, UNDER_WAY)
    assert isinstance(paused.effects[0], PausePlan)
    assert paused.effects[0].request is ExecutionRequest.PAUSE
    waits = step(night, late_ms + HOUR_MS, replace(driving, paused=True), paused.state)
    assert not any(isinstance(effect, PausePlan) for effect in waits.effects)
    goes_on = step(night, NOW_MS + 22 * HOUR_MS, replace(driving, paused=True), waits.state)
    assert [effect.request for effect in goes_on.effects if isinstance(effect, PausePlan)] == [ExecutionRequest.GO]


def test_a_pause_of_an_operator_stays() -> None:
    driving = WatchObservation(health=None, driving=True, paused=True)
    night = brakes(hours=["22:00-02:00"])
    late = step(night, NOW_MS + 3 * HOUR_MS, driving, UNDER_WAY)
    assert step(night, NOW_MS + 23 * HOUR_MS, driving, late.state).effects == ()
    assert late.effects == ()
