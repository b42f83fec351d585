"""Driver of the autopilot: holds the topic, observes by ports, lets the core decide, and performs its effects in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

from shedders.kafka_rebalance.execution.values import ExecutionRequest, StopKind
from shedders.kafka_rebalance.watch.core import WatchStep, step
from shedders.kafka_rebalance.watch.topic import WatcherIdentity, WatchHolder, claim_record, state_record
from shedders.kafka_rebalance.watch.values import (
    ClusterHealth,
    FinishPlan,
    HoldBack,
    LookForPlan,
    PausePlan,
    Propose,
    RaiseAlert,
    StartPlan,
    WatchObservation,
    WatchState,
    proposal_of,
)
from shedders.model.amounts import count, size
from statechannel.errors import StateChannelError

if TYPE_CHECKING:
    from shedders.kafka_rebalance.execution.values import Key
    from shedders.kafka_rebalance.planning.plan import ReassignmentPlan
    from shedders.kafka_rebalance.settings import WatchSettings
    from shedders.kafka_rebalance.watch.topic import WatchBook, WatchLog
    from shedders.kafka_rebalance.watch.values import WatchEffect

BEATS: Final = 4
"""States that a holder writes at least within `away_s`."""
BEATS_AHEAD_MAX: Final = 2
"""How far, in beats, the clock may be ahead of the newest record of this process; beyond, the time of the log counts."""


class WatchedCluster(Protocol):
    """Port to the Kafka cluster and the planner."""

    def look(self) -> ClusterHealth:
        """Read the layout.

        Raises:
            StateChannelError: Kafka did not answer.
        """

    def plan(self, bounds: LookForPlan) -> ReassignmentPlan:
        """Plan for the layout that was read last.

        Raises:
            StateChannelError: The loads could not be read, or the request is refused.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPlan:
    """What journal and topic of executions say.

    Attributes:
        known: Whether they have the plan.
        end: `done` or `cancelled`, if that was its last end.
        foreign: Another live executor of the cluster, as text for people; empty: none.
        moved: When plans have moved partitions; only where no plan was asked for.
    """

    known: bool = False
    end: StopKind | None = None
    foreign: str = ""
    moved: Mapping[Key, int] = field(default_factory=lambda: MappingProxyType({}))


class PlanDriver(Protocol):
    """Port to the execution of plans, one at a time, in the background."""

    @property
    def running(self) -> bool:
        """Whether this process executes a plan."""

    @property
    def paused(self) -> bool:
        """Whether that execution is paused."""

    @property
    def end(self) -> tuple[StopKind, str] | None:
        """How the last execution has ended, with the reason; until the next one starts."""

    def recorded(self, plan_id: str) -> RecordedPlan:
        """Look up a plan; empty id: whether another executor is alive, and what was moved."""

    def publish(self, plan: ReassignmentPlan) -> str:
        """Write a proposal where operators find it; its path."""

    def share(self, plan_id: str) -> None:
        """Write a published plan to the topic of executions, so that any host can execute it."""

    def start(self, plan_id: str, request: ExecutionRequest) -> None:
        """Begin, continue or cancel a plan."""

    def ask(self, plan_id: str, request: ExecutionRequest) -> None:
        """Pause the execution, or let it go on."""

    def interrupt(self, reason: str) -> None:
        """End the execution soon; the plan stays open."""


class WatchEventKind(StrEnum):
    """Kind of an event of a watcher."""

    ACTING = "acting"
    STANDBY = "standby"
    PROPOSED = "proposed"
    STARTED = "started"
    CONTINUED = "continued"
    CANCELLING = "cancelling"
    PAUSED = "paused"
    RESUMED = "resumed"
    HELD = "held"
    FINISHED = "finished"
    ALERT = "alert"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEvent:
    """One line of a watcher's output.

    Attributes:
        kind: What happened.
        message: Sentence for people.
        code: Reason to hold, code of an alert, or end of a plan; empty: none.
        hint: Next step; empty: none.
        plan_id: Plan that it is about; empty: none.
        path: File of a proposal; empty: none.
    """

    kind: WatchEventKind
    message: str
    code: str = ""
    hint: str = ""
    plan_id: str = ""
    path: str = ""


class PartitionWatcher:
    """One watcher. Call `tick` at least `BEATS` times within `away_s`.

    Args:
        identity: This process.
        settings: Limits, times and mode.
        report: Called with each event; reasons to hold only when they change.
    """

    def __init__(
        self,
        identity: WatcherIdentity,
        settings: WatchSettings,
        log: WatchLog,
        cluster: WatchedCluster,
        plans: PlanDriver,
        report: Callable[[WatchEvent], None],
    ) -> None:
        self._identity, self._settings = identity, settings
        self._log, self._cluster, self._plans, self._report = log, cluster, plans, report
        self._next_look_ms = 0
        self._next_beat_ms = 0
        self._written_at_ms = 0
        self._beat_ms = round(settings.away_s * 1_000 / BEATS)
        self._generation = 0
        self._last_reported = ""
        self._ended = False
        self._started = ""
        self._written: tuple[bytes, bytes] | None = None
        self._writing = threading.Lock()
        self._silent: tuple[int, int] = (-1, 0)
        self._next_claim_ms = 0

    @property
    def driving(self) -> bool:
        """Whether a plan is being executed."""
        return self._plans.running

    @property
    def executing(self) -> bool:
        """Whether a plan is being executed, or its end is still to be recorded."""
        return self._plans.running or bool(self._started)

    def tick(self, now_ms: int) -> None:
        """Claim the autopilot if it is free; as its holder, write a sign of life, or evaluate the cluster if that is due.

        Raises:
            StateChannelError: The topic could not be read or written, or a newer version has written to it; call it again.
        """
        book = self._log.read()
        if book.newer is not None:
            self._stop_acting("a newer version of the autopilot has written to its topic")
        book.require_known()
        if not self._holds(book, now_ms):
            self._started = ""
            return
        log_ms = self._log_time_ms(book, now_ms)
        if log_ms is None:
            return
        if not book.mended:
            self._next_beat_ms = 0
        driving = self._plans.running
        state = book.state or WatchState()
        own = state.execution is not None and state.execution.plan_id == self._started
        ended = own and not driving and self._plans.end is not None
        if not driving and not ended and now_ms < self._next_look_ms:
            self._beat(now_ms, state)
            return
        result, plan = self._decide(log_ms, state, driving=driving, ended=ended)
        self._perform(now_ms, state, result, plan, driving=driving, ended=ended)

    def preview(self, now_ms: int, book: WatchBook | None) -> WatchState:
        """Look and report what would be done; nothing is written or claimed.

        Args:
            now_ms: Present time by the clock of the log, as `live.present_ms`.

        Returns:
            The state that would follow.
        """
        if book is not None:
            book.require_known()
        if book is not None and (other := book.alive(max(book.newest_ms, now_ms))) is not None:
            self._report_standby(other)
        state = (book.state if book is not None else None) or WatchState()
        result, _ = self._decide(now_ms, state, driving=False, ended=False)
        for effect in result.effects:
            self._show(effect)
        return result.state

    def leave(self) -> None:
        """Let another watcher take over at once. Call it when no plan is being executed.

        Raises:
            StateChannelError: The topic could not be written; others notice the silence.
        """
        book = self._log.read()
        holds = book.holder is not None and book.holder.watcher == self._identity and not book.holder.left
        if holds and book.holder is not None and book.newer is None:
            state = book.state or WatchState()
            with self._writing:
                self._written = None
                self._log.append(state_record(self._identity, book.holder.generation, state, left=True))

    def beat(self) -> None:
        """Write the last state again, as a sign of life while `tick` takes long. May be called from another thread.

        Raises:
            StateChannelError: The topic could not be written.
        """
        with self._writing:
            if self._written is not None:
                self._log.append(self._written)

    # --- holding ------------------------------------------------------------------------------------------------------

    def _holds(self, book: WatchBook, now_ms: int) -> bool:
        """Whether this watcher holds the autopilot; one that is free is claimed."""
        holder = book.holder
        if holder is not None and holder.watcher == self._identity and not holder.left:
            self._generation = holder.generation
            return True
        self._stop_acting("another watcher has taken over")
        if holder is not None and not self._may_claim(book, holder, now_ms):
            self._report_standby(holder)
            return False
        self._next_claim_ms = now_ms + round(self._settings.away_s * 1_000 / 2)
        self._written_at_ms = now_ms
        self._log.append(claim_record(self._identity, holder))
        holder = self._log.read().holder
        if holder is None or holder.watcher != self._identity:
            if holder is not None:
                self._report_standby(holder)
            return False
        self._generation, self._next_beat_ms, self._next_look_ms, self._last_reported, self._started = (
            holder.generation,
            0,
            0,
            "",
            "",
        )
        self._report(
            WatchEvent(
                kind=WatchEventKind.ACTING, message=f"acts as {self._identity.name}, generation {holder.generation}"
            )
        )
        return True

    def _log_time_ms(self, book: WatchBook, now_ms: int) -> int | None:
        """Present time: not before the newest record, at most `BEATS_AHEAD_MAX` beats after this holder's; None: it was replaced.

        A clock that is far ahead would let spent bytes and moved partitions leave their windows too early, and one that is
        behind would act in quiet times. After a pause the state is written once more first, as the newest record may be old.
        """
        if abs(now_ms - self._written_at_ms) > BEATS_AHEAD_MAX * self._beat_ms:
            self._next_look_ms = min(self._next_look_ms, now_ms + round(self._settings.interval_s * 1_000))
            self._write(now_ms, book.state or WatchState())
            book = self._log.read()
        holder = book.holder
        if book.newer is not None or holder is None or holder.watcher != self._identity:
            return None
        return max(book.newest_ms, min(now_ms, holder.seen_at_ms + BEATS_AHEAD_MAX * self._beat_ms))

    def _stop_acting(self, reason: str) -> None:
        with self._writing:
            self._written = None
        if self._plans.running:
            self._plans.interrupt(reason)

    def _may_claim(self, book: WatchBook, holder: WatchHolder, now_ms: int) -> bool:
        """Whether a holder seems to be gone: by its time in the log, or as nothing came while this watcher waited.

        Clocks may differ, so the log has the last word on a claim; one that failed is not repeated at once.
        """
        if holder.offset != self._silent[0]:
            self._silent = (holder.offset, now_ms)
        alive = book.alive(max(book.newest_ms, now_ms))
        if alive is None or alive.watcher.is_dead():
            return now_ms >= self._next_claim_ms or holder.left
        return now_ms - self._silent[1] > self._settings.away_s * 1_000 and now_ms >= self._next_claim_ms

    def _report_standby(self, holder: WatchHolder) -> None:
        if self._last_reported != holder.watcher.name:
            self._last_reported = holder.watcher.name
            message = f"{holder.watcher.name} acts (generation {holder.generation}); this watcher stands by"
            self._report(WatchEvent(kind=WatchEventKind.STANDBY, message=message))

    def _beat(self, now_ms: int, state: WatchState) -> None:
        if now_ms >= self._next_beat_ms:
            self._write(now_ms, state)

    def _write(self, now_ms: int, state: WatchState) -> None:
        record = state_record(self._identity, self._generation, state)
        with self._writing:
            self._written = None  # if the outcome is unknown, the next look reads what there is
            self._log.append(record)
            self._written = record
        self._written_at_ms = now_ms
        self._next_beat_ms = now_ms + self._beat_ms

    # --- deciding -----------------------------------------------------------------------------------------------------

    def _decide(
        self, now_ms: int, state: WatchState, *, driving: bool, ended: bool
    ) -> tuple[WatchStep, ReassignmentPlan | None]:
        if driving:
            seen = WatchObservation(health=None, driving=True, paused=self._plans.paused)
            return step(self._settings, now_ms, seen, state), None
        seen = self._observe(state, ended=ended)
        result = step(self._settings, now_ms, seen, state)
        bounds = next((effect for effect in result.effects if isinstance(effect, LookForPlan)), None)
        if bounds is None:
            return result, None
        try:
            plan = self._cluster.plan(bounds)
        except StateChannelError as error:
            return step(self._settings, now_ms, replace(seen, health=None, trouble=str(error)), state), None
        return step(self._settings, now_ms, replace(seen, proposal=proposal_of(plan)), state), plan

    def _observe(self, state: WatchState, *, ended: bool) -> WatchObservation:
        plan_id = "" if state.execution is None else state.execution.plan_id
        own = self._plans.end if ended else None
        kind, reason = own or (None, "")
        try:
            recorded = self._plans.recorded(plan_id)
            return WatchObservation(
                health=self._cluster.look(),
                moved_elsewhere=recorded.moved,
                foreign_executor=recorded.foreign,
                ended=kind or (recorded.end if plan_id else None),
                end_reason=reason,
                plan_lost=bool(plan_id) and not recorded.known,
            )
        except StateChannelError as error:
            return WatchObservation(health=None, trouble=str(error), ended=kind, end_reason=reason)

    # --- performing ---------------------------------------------------------------------------------------------------

    def _perform(
        self,
        now_ms: int,
        before: WatchState,
        result: WatchStep,
        plan: ReassignmentPlan | None,
        *,
        driving: bool,
        ended: bool,
    ) -> None:
        """Write the state, and then start what it has: a death in between loses no bytes of the budget."""
        start = next((effect for effect in result.effects if isinstance(effect, StartPlan)), None)
        path = ""
        if plan is not None and any(isinstance(effect, Propose | StartPlan) for effect in result.effects):
            path = self._plans.publish(plan)  # also a plan that was proposed on another machine
            if start is not None:
                self._plans.share(start.plan_id)
        if result.state != replace(before, looked_at_ms=result.state.looked_at_ms) or now_ms >= self._next_beat_ms:
            self._write(now_ms, result.state)
        if ended:
            self._started = ""
        if not driving:
            self._next_look_ms = now_ms + round(self._look_again_s(result.state) * 1_000)
        if start is not None:
            book = self._log.read()
            if book.newer is not None or book.holder is None or book.holder.watcher != self._identity:
                return  # another watcher has taken over, and continues the plan
            self._started = start.plan_id
            self._plans.start(start.plan_id, start.request)
        for effect in result.effects:
            if isinstance(effect, PausePlan):
                self._plans.ask(effect.plan_id, effect.request)
            self._show(effect, path)

    def _look_again_s(self, state: WatchState) -> float:
        """A plan that waits for its executor is looked at more often, as no planning is needed."""
        interval_s = self._settings.interval_s
        return interval_s if state.execution is None else min(interval_s, self._settings.away_s)

    def _show(self, effect: WatchEffect, path: str = "") -> None:
        event = _event_of(effect, path)
        if event is None:
            return
        if event.kind is WatchEventKind.HELD:
            if self._last_reported == event.code:
                return
            self._last_reported = event.code
        elif event.kind is not WatchEventKind.ALERT:
            self._last_reported = ""
        self._report(event)


_STARTS: Final = {
    (ExecutionRequest.GO, True): (WatchEventKind.STARTED, "starts plan {}"),
    (ExecutionRequest.GO, False): (WatchEventKind.CONTINUED, "continues plan {}"),
    (ExecutionRequest.CANCEL, False): (WatchEventKind.CANCELLING, "cancels plan {}"),
}


def _event_of(effect: WatchEffect, path: str) -> WatchEvent | None:
    match effect:
        case Propose():
            what = f"{count(effect.partitions, 'partition')}, {size(effect.copied_bytes)} to copy"
            where = f": {path}" if path else ""
            return WatchEvent(
                kind=WatchEventKind.PROPOSED,
                message=f"proposes plan {effect.plan_id} ({what}){where}",
                plan_id=effect.plan_id,
                path=path,
            )
        case StartPlan():
            kind, text = _STARTS[effect.request, effect.begins]
            return WatchEvent(kind=kind, message=text.format(effect.plan_id), plan_id=effect.plan_id)
        case PausePlan():
            pauses = effect.request is ExecutionRequest.PAUSE
            text = f"pauses plan {effect.plan_id}: {effect.reason}" if pauses else f"lets plan {effect.plan_id} go on"
            kind = WatchEventKind.PAUSED if pauses else WatchEventKind.RESUMED
            return WatchEvent(kind=kind, message=text, plan_id=effect.plan_id)
        case HoldBack():
            return WatchEvent(
                kind=WatchEventKind.HELD, message=f"holds: {effect.message}", code=effect.code, hint=effect.hint
            )
        case FinishPlan():
            reason = f": {effect.reason}" if effect.reason else ""
            return WatchEvent(
                kind=WatchEventKind.FINISHED,
                message=f"plan {effect.plan_id} is over ({effect.end}){reason}",
                code=effect.end,
                plan_id=effect.plan_id,
            )
        case RaiseAlert():
            return WatchEvent(
                kind=WatchEventKind.ALERT, message=f"alert: {effect.message}", code=effect.code, hint=effect.hint
            )
        case LookForPlan():
            return None
