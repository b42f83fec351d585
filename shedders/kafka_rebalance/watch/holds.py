"""Reasons for which the autopilot holds back, as an ordered table: the first that applies counts. Pure.

Codes are stable, for programs; messages are for people.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from shedders.kafka_rebalance.watch.calendar import first_span_at, time_text
from shedders.kafka_rebalance.watch.values import (
    BlockKind,
    ClusterHealth,
    WatchObservation,
    WatchProposal,
    WatchState,
    examples,
    resting_now,
)
from shedders.model.amounts import are, count, size, were

if TYPE_CHECKING:
    from shedders.kafka_rebalance.settings import WatchSettings

MASS_MIN: Final = 2
MASS_SHARE: Final = 3
"""A mass outage: at least two brokers, and a third of all, as for executions."""


class HoldCode(StrEnum):
    """Stable code of a reason to hold."""

    KAFKA_AWAY = "kafka-away"
    MASS_OUTAGE = "mass-outage"
    BROKERS_MISSING = "brokers-missing"
    UNDER_REPLICATED = "under-replicated"
    EXECUTOR = "executor"
    REASSIGNMENT = "reassignment"
    CALMING = "calming"
    BALANCED = "balanced"
    RESTING = "resting"
    BUDGET = "budget"
    HARD_GOALS = "hard-goals"
    SIZES_UNKNOWN = "sizes-unknown"
    SMALL_GAIN = "small-gain"
    YOUNG = "young"
    PROPOSE_ONLY = "propose-only"
    OPEN_PLAN = "open-plan"
    BLOCKED = "blocked"
    RETRY = "retry"
    QUIET = "quiet"
    HOURS = "hours"


class HoldStage(StrEnum):
    """When a reason is checked.

    `health`: before a plan is made, continued or cancelled; `plan`: against the plan; `act`: before it is started;
    `continue`: before it is continued or cancelled; `time`: before it is started or continued, and while it is executed.
    """

    HEALTH = "health"
    PLAN = "plan"
    ACT = "act"
    CONTINUE = "continue"
    TIME = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldView:
    """Inputs of a check: observation, state and settings at a time."""

    now_ms: int
    settings: WatchSettings
    state: WatchState
    seen: WatchObservation

    @property
    def health(self) -> ClusterHealth:
        """Health of the cluster, which could be read, as `kafka-away` is checked first."""
        assert self.seen.health is not None  # noqa: S101
        return self.seen.health

    @property
    def proposal(self) -> WatchProposal:
        """The plan, at stages that have one."""
        assert self.seen.proposal is not None  # noqa: S101
        return self.seen.proposal

    @property
    def left_bytes(self) -> int:
        return self.state.left_bytes(self.now_ms, self.settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldReason:
    """One reason.

    Attributes:
        code: Its code.
        stage: When it is checked.
        alerts: Whether it becomes an alert when it lasts for `alert_after_s`.
        about: When it applies, for the documentation.
        hint: Next step of an operator; empty: none.
        check: The message, if it applies; else None.
    """

    code: HoldCode
    stage: HoldStage
    alerts: bool
    about: str
    hint: str
    check: Callable[[HoldView], str | None]


def first_hold(view: HoldView, stages: Iterable[HoldStage]) -> tuple[HoldReason, str] | None:
    """The first reason of these stages that applies, with its message."""
    wanted = set(stages)
    for reason in HOLDS:
        if reason.stage in wanted and (message := reason.check(view)) is not None:
            return reason, message
    return None


def _kafka_away(view: HoldView) -> str | None:
    return f"the cluster could not be read: {view.seen.trouble}" if view.seen.health is None else None


def _missing(view: HoldView) -> tuple[list[int], int]:
    missing, known = view.state.missing(view.health, view.now_ms, view.settings.forget_s)
    return sorted(missing), known


def _mass_outage(view: HoldView) -> str | None:
    missing, known = _missing(view)
    if len(missing) < MASS_MIN or MASS_SHARE * len(missing) < known:
        return None
    return f"{len(missing)} of {known} brokers are missing: {', '.join(map(str, missing))}"


def _brokers_missing(view: HoldView) -> str | None:
    missing, known = _missing(view)
    if len(missing) <= view.settings.brokers_missing_max:
        return None
    allowed = view.settings.brokers_missing_max
    return f"{', '.join(map(str, missing))} of {count(known, 'broker')} {are(len(missing))} missing; {allowed} may be"


def _under_replicated(view: HoldView) -> str | None:
    keys = view.health.under_replicated
    return f"{count(len(keys), 'partition')} {are(len(keys))} under-replicated: {examples(keys)}" if keys else None


def _executor(view: HoldView) -> str | None:
    return view.seen.foreign_executor or None


def _reassignment(view: HoldView) -> str | None:
    execution = view.state.execution
    ours = set() if execution is None else set(execution.keys)
    keys = tuple(key for key in view.health.reassigning if key not in ours)
    return f"another reassignment is in progress: {examples(keys)}" if keys else None


def _calming(view: HoldView) -> str | None:
    if not view.state.troubled_at_ms:
        return None
    since_s = (view.now_ms - view.state.troubled_at_ms) / 1_000
    if since_s >= view.settings.calm_s:
        return None
    return f"the cluster has been well for {since_s:.0f} s; the autopilot waits for {view.settings.calm_s:.0f} s"


def _resting(view: HoldView) -> str | None:
    plan, resting = view.proposal, resting_now(view.state, view.seen, view.now_ms, view.settings.cooldown_s)
    if plan.keys or plan.cut or not resting:
        return None
    moved = count(len(resting), "partition")
    return f"no move helps while {moved}, which {were(len(resting))} moved recently, {are(len(resting))} left in place"


def _budget(view: HoldView) -> str | None:
    plan = view.proposal
    if plan.keys and plan.copied_bytes <= view.left_bytes:
        return None
    if plan.keys:
        return f"the plan copies {size(plan.copied_bytes)}, {size(view.left_bytes)} are left of the budget"
    if plan.cut and plan.excess_left:
        return f"{size(view.left_bytes)} are left of the budget, and no move fits into it"
    return None


def _balanced(view: HoldView) -> str | None:
    plan = view.proposal
    if plan.keys:
        return None
    return "no move helps goals that are not met" if plan.excess_left else "all goals are within their ranges"


def _hard_goals(view: HoldView) -> str | None:
    unmet = view.proposal.unmet
    return f"the plan leaves hard goals unmet: {', '.join(unmet)}" if unmet else None


def _sizes_unknown(view: HoldView) -> str | None:
    number = view.proposal.unknown_sizes
    return f"the sizes of {count(number, 'partition')} are unknown, so the plan has no known cost" if number else None


def _small_gain(view: HoldView) -> str | None:
    gain = view.proposal.gain_share
    if gain >= view.settings.gain_min_share:
        return None
    return f"the plan removes {gain:.1%} of a goal's excess; {view.settings.gain_min_share:.1%} are asked for"


def _young(view: HoldView) -> str | None:
    since_s = (view.now_ms - view.state.imbalanced_since_ms) / 1_000
    if since_s >= view.settings.persist_s:
        return None
    return f"the imbalance has lasted {since_s:.0f} s; the autopilot waits for {view.settings.persist_s:.0f} s"


def _propose_only(view: HoldView) -> str | None:
    return "the mode is `propose`: plans are proposed, not executed" if view.settings.mode == "propose" else None


def _open_plan(view: HoldView) -> str | None:
    execution = view.state.execution
    if execution is None or view.settings.mode != "propose":
        return None
    return f"plan {execution.plan_id} of the mode `act` is not over, and this watcher has the mode `propose`"


_BLOCKS: Final = {
    BlockKind.CANCELLED: "an operator cancelled a plan of the autopilot",
    BlockKind.GAVE_UP: "a plan stopped too often and was given up",
}


def _blocked(view: HoldView) -> str | None:
    state = view.state
    if state.blocked is None or view.now_ms >= state.blocked_until_ms:
        return None
    left_s = (state.blocked_until_ms - view.now_ms) / 1_000
    return f"{_BLOCKS[state.blocked]}; it starts none for another {left_s:.0f} s"


def _retry(view: HoldView) -> str | None:
    execution = view.state.execution
    if execution is None or view.now_ms >= execution.retry_at_ms:
        return None
    left_s = (execution.retry_at_ms - view.now_ms) / 1_000
    return f"plan {execution.plan_id} has stopped and is continued in {left_s:.0f} s"


def _quiet(view: HoldView) -> str | None:
    settings = view.settings
    span = first_span_at(settings.quiet, view.now_ms, settings.time_zone)
    return None if span is None else f"{time_text(view.now_ms, settings.time_zone)} is a quiet time: {span}"


def _hours(view: HoldView) -> str | None:
    settings = view.settings
    if not settings.hours or first_span_at(settings.hours, view.now_ms, settings.time_zone) is not None:
        return None
    return f"{time_text(view.now_ms, settings.time_zone)} is outside of {', '.join(settings.hours)}"


_PREFIX: Final = "extensions.partitions.watch"

HOLDS: Final[tuple[HoldReason, ...]] = (
    HoldReason(
        code=HoldCode.KAFKA_AWAY,
        stage=HoldStage.HEALTH,
        alerts=True,
        about="Kafka did not answer, or refused to",
        hint="Check the cluster: `statechannel kafka status`.",
        check=_kafka_away,
    ),
    HoldReason(
        code=HoldCode.MASS_OUTAGE,
        stage=HoldStage.HEALTH,
        alerts=True,
        about="two or more brokers, and a third of all, are missing",
        hint="Bring the brokers back; the autopilot plans nothing until then.",
        check=_mass_outage,
    ),
    HoldReason(
        code=HoldCode.BROKERS_MISSING,
        stage=HoldStage.HEALTH,
        alerts=True,
        about="more brokers than `brokers_missing_max` are missing",
        hint="Bring them back, or move their replicas: `statechannel partitions plan --fix-offline`.",
        check=_brokers_missing,
    ),
    HoldReason(
        code=HoldCode.UNDER_REPLICATED,
        stage=HoldStage.HEALTH,
        alerts=True,
        about="a partition has a replica that is not in sync, or no leader",
        hint="Wait until replicas have caught up; of a dead broker: `statechannel partitions plan --fix-offline`.",
        check=_under_replicated,
    ),
    HoldReason(
        code=HoldCode.EXECUTOR,
        stage=HoldStage.HEALTH,
        alerts=False,
        about="another executor carries out a plan",
        hint="`statechannel partitions status` shows its progress.",
        check=_executor,
    ),
    HoldReason(
        code=HoldCode.REASSIGNMENT,
        stage=HoldStage.HEALTH,
        alerts=True,
        about="Kafka reassigns partitions that another tool has asked it to",
        hint="Wait for its end, or cancel it with the tool that started it.",
        check=_reassignment,
    ),
    HoldReason(
        code=HoldCode.CALMING,
        stage=HoldStage.HEALTH,
        alerts=False,
        about="brokers were missing, or partitions under-replicated, less than `calm_s` ago",
        hint="",
        check=_calming,
    ),
    HoldReason(
        code=HoldCode.RESTING,
        stage=HoldStage.PLAN,
        alerts=False,
        about="the plan has no moves, and leaves in place what was moved less than `cooldown_s` ago",
        hint="",
        check=_resting,
    ),
    HoldReason(
        code=HoldCode.BUDGET,
        stage=HoldStage.PLAN,
        alerts=True,
        about="no move fits into what is left of `budget_bytes`",
        hint=f"Wait until earlier plans leave the window, or raise {_PREFIX}.budget_bytes.",
        check=_budget,
    ),
    HoldReason(
        code=HoldCode.BALANCED,
        stage=HoldStage.PLAN,
        alerts=False,
        about="the plan has no moves",
        hint="",
        check=_balanced,
    ),
    HoldReason(
        code=HoldCode.HARD_GOALS,
        stage=HoldStage.PLAN,
        alerts=True,
        about="the plan leaves hard goals unmet",
        hint="Look at it with `statechannel partitions show`; execute it yourself, or leave the goal out.",
        check=_hard_goals,
    ),
    HoldReason(
        code=HoldCode.SIZES_UNKNOWN,
        stage=HoldStage.PLAN,
        alerts=True,
        about="the size of a partition that would move is unknown",
        hint="A broker did not tell its log directories: `statechannel partitions plan` names it.",
        check=_sizes_unknown,
    ),
    HoldReason(
        code=HoldCode.SMALL_GAIN,
        stage=HoldStage.PLAN,
        alerts=False,
        about="the plan removes less than `gain_min_share` of every goal's excess",
        hint="",
        check=_small_gain,
    ),
    HoldReason(
        code=HoldCode.YOUNG,
        stage=HoldStage.ACT,
        alerts=False,
        about="looks have seen an imbalance for less than `persist_s`",
        hint="",
        check=_young,
    ),
    HoldReason(
        code=HoldCode.PROPOSE_ONLY,
        stage=HoldStage.ACT,
        alerts=False,
        about="the mode is `propose`",
        hint="Execute the proposal with `statechannel partitions apply FILE --execute`, or use --act.",
        check=_propose_only,
    ),
    HoldReason(
        code=HoldCode.BLOCKED,
        stage=HoldStage.ACT,
        alerts=False,
        about="a plan was cancelled by an operator, or given up, less than `after_cancel_s` ago",
        hint="",
        check=_blocked,
    ),
    HoldReason(
        code=HoldCode.OPEN_PLAN,
        stage=HoldStage.CONTINUE,
        alerts=True,
        about="the mode is `propose`, and a plan that the autopilot started with `act` is not over",
        hint="Continue it with `statechannel partitions resume`, revert it with `cancel`, or use --act.",
        check=_open_plan,
    ),
    HoldReason(
        code=HoldCode.RETRY,
        stage=HoldStage.TIME,
        alerts=False,
        about="its plan stopped less than `retry_s` ago",
        hint="`statechannel partitions status` shows why; `cancel` reverts it.",
        check=_retry,
    ),
    HoldReason(
        code=HoldCode.QUIET,
        stage=HoldStage.TIME,
        alerts=False,
        about="it is a time of `quiet`; a plan under way is paused",
        hint="",
        check=_quiet,
    ),
    HoldReason(
        code=HoldCode.HOURS,
        stage=HoldStage.TIME,
        alerts=False,
        about="it is not a time of `hours`; a plan under way is paused",
        hint="",
        check=_hours,
    ),
)
