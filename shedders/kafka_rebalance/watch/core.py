"""Decisions of the autopilot: `step(settings, now, observation, state)` gives new state and effects. Pure: no clock, no client.

A step without a proposal checks the cluster and asks for a plan (`LookForPlan`); the next one, with that plan, proposes it,
starts it, or says why not. Bytes of a plan are spent in the state before it starts, so a death loses none of them. A plan is
under way until it is done or cancelled: after a death, or when it has stopped, it is continued, and cancelled at last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from shedders.kafka_rebalance.execution.values import ExecutionRequest, StopKind
from shedders.kafka_rebalance.watch.holds import HoldCode, HoldReason, HoldStage, HoldView, first_hold
from shedders.kafka_rebalance.watch.values import (
    BlockKind,
    FinishPlan,
    HoldBack,
    HoldNote,
    LookForPlan,
    PausePlan,
    Propose,
    RaiseAlert,
    Spending,
    StartPlan,
    WatchedExecution,
    WatchEffect,
    WatchObservation,
    WatchState,
    resting_now,
)

if TYPE_CHECKING:
    from shedders.kafka_rebalance.settings import WatchSettings

EVALUATIONS_MISSED_MAX: Final = 3
"""After more intervals than these without an evaluation an imbalance counts as new."""
_TROUBLES: Final = frozenset({HoldCode.MASS_OUTAGE, HoldCode.BROKERS_MISSING, HoldCode.UNDER_REPLICATED})
_FINAL_ENDS: Final = frozenset({StopKind.CHANGED, StopKind.TOPIC_GONE, StopKind.REFUSED, StopKind.OTHER_CLUSTER})
"""Ends after which the same plan cannot succeed."""
_EXECUTOR_ENDS: Final = frozenset({StopKind.INTERRUPTED, StopKind.REPLACED})
"""Ends that only concern the executor, not the plan."""
PLAN_STOPPED: Final = "plan-stopped"
PLAN_GIVEN_UP: Final = "plan-given-up"
PLAN_LOST: Final = "plan-lost"
_CONTINUES_HINT: Final = "The autopilot continues it; `statechannel partitions status` shows it, `cancel` reverts it."
_CANCELS_HINT: Final = "The autopilot cancels it: what is in flight is reverted, what has arrived stays."
_THROTTLES_HINT: Final = "See `statechannel partitions status`: throttles may be left, which `cancel` removes."


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchStep:
    """New state, and effects in order. The state is to be in the topic before a plan starts."""

    state: WatchState
    effects: tuple[WatchEffect, ...] = ()


def step(settings: WatchSettings, now_ms: int, seen: WatchObservation, state: WatchState) -> WatchStep:
    """Compute the next state and the effects of one evaluation.

    Args:
        settings: Limits, times and mode.
        now_ms: Wall-clock time.
        seen: Observation.
        state: Memory.
    """
    state = _remember(settings, now_ms, seen, state)
    if state.execution is not None:
        return _with_execution(settings, now_ms, seen, state, state.execution)
    view = HoldView(now_ms=now_ms, settings=settings, state=state, seen=seen)
    held = first_hold(view, (HoldStage.HEALTH,))
    if held is not None:
        if held[0].code in _TROUBLES:
            state = replace(state, imbalanced_since_ms=0, imbalance_seen_ms=0)
        return _hold(settings, now_ms, state, held)
    if seen.proposal is None:
        effect = LookForPlan(
            bytes_max=state.left_bytes(now_ms, settings),
            moves_max=settings.moves_max,
            resting=resting_now(state, seen, now_ms, settings.cooldown_s),
        )
        return WatchStep(state=state, effects=(effect,))
    return _with_proposal(settings, now_ms, seen, state)


def _remember(settings: WatchSettings, now_ms: int, seen: WatchObservation, state: WatchState) -> WatchState:
    """State with what was seen, without what no longer counts."""
    window_ms, resting = now_ms - round(settings.budget_window_s * 1_000), state.resting(now_ms, settings.cooldown_s)
    state = replace(
        state,
        looked_at_ms=now_ms,
        spent=tuple(spent for spent in state.spent if spent.to_ms is None or spent.to_ms > window_ms),
        moved={key: at_ms for key, at_ms in state.moved.items() if key in resting},
        blocked=None if now_ms >= state.blocked_until_ms else state.blocked,
    )
    health = seen.health
    if health is None:
        return state
    forget_ms = now_ms - round(settings.forget_s * 1_000)
    brokers = {broker: at_ms for broker, at_ms in state.brokers.items() if at_ms > forget_ms}
    state = replace(state, brokers=brokers | dict.fromkeys(sorted(health.alive), now_ms))
    missing, _ = state.missing(health, now_ms, settings.forget_s)
    if len(missing) > settings.brokers_missing_max or health.under_replicated:
        state = replace(state, troubled_at_ms=now_ms)
    return state


def _with_proposal(settings: WatchSettings, now_ms: int, seen: WatchObservation, state: WatchState) -> WatchStep:
    view = HoldView(now_ms=now_ms, settings=settings, state=state, seen=seen)
    plan = view.proposal
    held = first_hold(view, (HoldStage.PLAN,))
    if held is not None:
        state = replace(state, imbalanced_since_ms=0, imbalance_seen_ms=0) if not plan.keys else state
        return _hold(settings, now_ms, state, held)
    gap_ms = round(EVALUATIONS_MISSED_MAX * settings.interval_s * 1_000)
    lasts = state.imbalanced_since_ms and now_ms - state.imbalance_seen_ms <= gap_ms
    state = replace(
        state,
        imbalanced_since_ms=state.imbalanced_since_ms if lasts else now_ms,
        imbalance_seen_ms=now_ms,
    )
    effects: tuple[WatchEffect, ...] = ()
    if plan.plan_id != state.proposal_id:
        state = replace(state, proposal_id=plan.plan_id, proposed_at_ms=now_ms)
        effects = (Propose(plan_id=plan.plan_id, copied_bytes=plan.copied_bytes, partitions=len(plan.keys)),)
    held = first_hold(replace(view, state=state), (HoldStage.ACT, HoldStage.TIME))
    if held is not None:
        result = _hold(settings, now_ms, state, held)
        return replace(result, effects=(*effects, *result.effects))
    spending = Spending(plan_id=plan.plan_id, from_ms=now_ms, to_ms=None, size_bytes=plan.copied_bytes)
    state = replace(
        state,
        execution=WatchedExecution(plan_id=plan.plan_id, began_at_ms=now_ms, keys=plan.keys),
        spent=(*state.spent, spending),
        moved={**state.moved, **dict.fromkeys(plan.keys, now_ms)},
        imbalanced_since_ms=0,
        imbalance_seen_ms=0,
        hold=None,
    )
    start = StartPlan(plan_id=plan.plan_id, request=ExecutionRequest.GO, begins=True)
    return WatchStep(state=state, effects=(*effects, start))


# --- a plan under way -------------------------------------------------------------------------------------------------


def _with_execution(
    settings: WatchSettings, now_ms: int, seen: WatchObservation, state: WatchState, execution: WatchedExecution
) -> WatchStep:
    if seen.ended is not None and not seen.driving:
        ended = _end(settings, now_ms, seen, state, execution, seen.ended)
        if ended is not None:
            return ended
    view = HoldView(now_ms=now_ms, settings=settings, state=state, seen=seen)
    if seen.driving:
        return _drive(view, execution)
    if seen.plan_lost:
        alert = RaiseAlert(code=PLAN_LOST, message=f"plan {execution.plan_id} is found nowhere", hint=_THROTTLES_HINT)
        return _over(now_ms, state, execution, StopKind.FAILED, alert.message, (alert,))
    stages = (HoldStage.HEALTH, HoldStage.CONTINUE, *(() if execution.giving_up else (HoldStage.TIME,)))
    held = first_hold(view, stages)
    if held is not None:
        return _hold(settings, now_ms, state, held)
    request = ExecutionRequest.CANCEL if execution.giving_up else ExecutionRequest.GO
    state = replace(state, execution=replace(execution, paused=False), hold=None)
    return WatchStep(state=state, effects=(StartPlan(plan_id=execution.plan_id, request=request, begins=False),))


def _drive(view: HoldView, execution: WatchedExecution) -> WatchStep:
    """Pause at the end of the allowed time, and go on at its next beginning. An operator's own pause stays."""
    held = None if execution.giving_up else first_hold(view, (HoldStage.TIME,))
    if held is not None and not execution.paused and not view.seen.paused:
        state = replace(view.state, execution=replace(execution, paused=True))
        pause = PausePlan(plan_id=execution.plan_id, request=ExecutionRequest.PAUSE, reason=held[1])
        result = _hold(view.settings, view.now_ms, state, held)
        return replace(result, effects=(pause, *result.effects))
    if held is not None and execution.paused:
        return _hold(view.settings, view.now_ms, view.state, held)
    if held is None and execution.paused:
        state = replace(view.state, execution=replace(execution, paused=False), hold=None)
        go_on = PausePlan(plan_id=execution.plan_id, request=ExecutionRequest.GO, reason="")
        return WatchStep(state=state, effects=(go_on,))
    return WatchStep(state=replace(view.state, hold=None))


def _end(
    settings: WatchSettings,
    now_ms: int,
    seen: WatchObservation,
    state: WatchState,
    execution: WatchedExecution,
    end: StopKind,
) -> WatchStep | None:
    """What follows an end; None: the plan is to be continued, as its executor alone has ended."""
    if end is StopKind.DONE and not execution.giving_up:
        return _over(now_ms, state, execution, end, "", ())
    if end in {StopKind.DONE, StopKind.CANCELLED}:
        block = BlockKind.GAVE_UP if execution.giving_up else BlockKind.CANCELLED
        state = replace(state, blocked=block, blocked_until_ms=now_ms + round(settings.after_cancel_s * 1_000))
        return _over(now_ms, state, execution, end, seen.end_reason, ())
    if end in _EXECUTOR_ENDS:
        return None
    attempts = execution.attempts + 1
    if execution.giving_up and attempts >= settings.attempts_max:
        state = replace(
            state, blocked=BlockKind.GAVE_UP, blocked_until_ms=now_ms + round(settings.after_cancel_s * 1_000)
        )
        message = f"plan {execution.plan_id} could not be cancelled ({end}): {seen.end_reason}"
        alert = RaiseAlert(code=PLAN_GIVEN_UP, message=message, hint=_THROTTLES_HINT)
        return _over(now_ms, state, execution, end, seen.end_reason, (alert,))
    gives_up = not execution.giving_up and (end in _FINAL_ENDS or attempts >= settings.attempts_max)
    message = f"plan {execution.plan_id} has stopped ({end}): {seen.end_reason}"
    alert = RaiseAlert(
        code=PLAN_GIVEN_UP if gives_up else PLAN_STOPPED,
        message=message,
        hint=_CANCELS_HINT if gives_up else _CONTINUES_HINT,
    )
    changed = replace(
        execution,
        attempts=0 if gives_up else attempts,
        giving_up=execution.giving_up or gives_up,
        paused=False,
        retry_at_ms=0 if gives_up else now_ms + round(settings.retry_s * 1_000),
    )
    return WatchStep(state=replace(state, execution=changed), effects=(alert,))


def _over(
    now_ms: int,
    state: WatchState,
    execution: WatchedExecution,
    end: StopKind,
    reason: str,
    alerts: tuple[RaiseAlert, ...],
) -> WatchStep:
    spent = tuple(
        replace(each, to_ms=now_ms) if each.plan_id == execution.plan_id and each.to_ms is None else each
        for each in state.spent
    )
    moved = {**state.moved, **dict.fromkeys(execution.keys, now_ms)}
    state = replace(state, execution=None, spent=spent, moved=moved, hold=None)
    return WatchStep(state=state, effects=(*alerts, FinishPlan(plan_id=execution.plan_id, end=end, reason=reason)))


def _hold(settings: WatchSettings, now_ms: int, state: WatchState, held: tuple[HoldReason, str]) -> WatchStep:
    reason, message = held
    before = state.hold
    since_ms = before.since_ms if before is not None and before.code == reason.code else now_ms
    alerted = before is not None and before.code == reason.code and before.alerted
    effects: tuple[WatchEffect, ...] = (HoldBack(code=reason.code, message=message, hint=reason.hint),)
    if reason.alerts and not alerted and now_ms - since_ms >= settings.alert_after_s * 1_000:
        alerted = True
        effects = (*effects, RaiseAlert(code=reason.code, message=message, hint=reason.hint))
    note = HoldNote(code=reason.code, message=message, since_ms=since_ms, alerted=alerted)
    return WatchStep(state=replace(state, hold=note), effects=effects)
