"""Observer of a member: gauges, durations, alarms and traces; the member's behaviour does not depend on it."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

from statechannel.broker.observe.handovers import HandoverTimings
from statechannel.engine.commands import Lookup
from statechannel.engine.effects import Hook
from statechannel.engine.freshness import lag_s
from statechannel.engine.inputs import AppendFailed
from statechannel.operations import outcomes
from statechannel.protocol.bounded import remember
from statechannel.protocol.states import IN_FLIGHT

if TYPE_CHECKING:
    from collections.abc import Callable

    from statechannel.broker.hook_runner import HookCounts
    from statechannel.broker.observe.metrics import Metrics
    from statechannel.broker.observe.traces import Traces
    from statechannel.engine.commands import Command, Outcome
    from statechannel.engine.effects import CallHook
    from statechannel.engine.engine import Engine
    from statechannel.engine.inputs import Appended
    from statechannel.protocol.log import RecordRead
    from statechannel.protocol.record import Record

_APPENDS_MAX = 200_000
_NO_ANSWER = "no-answer"
_HINTS = {
    Hook.ON_OWN: "The bundle is not served here: another broker is asked, or it stays as it was. Fix the cause.",
    Hook.ON_SERVE: "The bundle is assigned to this broker, and nothing calls the hook again: fix the cause, then unload the "
    "bundle (`unload`, `statechannel unload`).",
    Hook.ON_RELEASE: "The bundle moves on all the same: its storage must fence by generation.",
    Hook.ON_MOVED: "Nothing waits for it: clients that look up find the owner.",
    Hook.ON_SPLIT: "The split is given up, and the parent served on: fix the cause, then split again.",
    Hook.ON_SPLIT_DONE: "The split is done: what is left of the parent's data is dropped by no other call.",
}
"""What the failure of a hook means for its bundle, and what to do."""


class Observer:
    """Metrics, alarms and traces of one member. In the loop's thread.

    Args:
        debt_alarm_s: An open debt that is older raises the alarm.

    Attributes:
        cached_lookups: Lookups that the cache has answered, by thread: each has a counter of its own, so none is lost.
    """

    def __init__(
        self,
        engine: Engine,
        metrics: Metrics,
        traces: Traces | None = None,
        *,
        debt_alarm_s: float = 900.0,
        mono_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mono_s = mono_s
        self.flights = HandoverTimings()
        self._engine = engine
        self._metrics = metrics
        self._traces = traces
        self._debt_alarm_s = debt_alarm_s
        self._alarmed = False
        self._appending: dict[int, float] = {}
        self.cached_lookups: defaultdict[int, int] = defaultdict(int)
        engine.context.tells_all = metrics.log.tells_all
        identity = engine.identity
        metrics.set("info", 1, identity.incarnation, identity.software)

    # --- what happened ----------------------------------------------------------------------------------------------

    def accepted(self, record: Record, read: RecordRead) -> None:
        """Observe an accepted record: its writer reports the duration of the ended phase, so that each counts once."""
        landing = self.flights.accepted(record, read, self._mono_s())
        if record.incarnation != self._engine.identity.incarnation:
            return
        if landing is not None:
            self._metrics.landed(landing)
        if self._traces is not None:
            self._traces.accepted(record, read, landing)

    def answered(self, command: Command, outcome: Outcome, asked_s: float) -> None:
        took_s = self._mono_s() - asked_s
        self._metrics.answered(type(command).__name__, outcomes.name_of(outcome), took_s)
        if self._traces is not None and not isinstance(command, Lookup):
            self._traces.answered(command, outcome, took_s)

    def hook_ended(self, effect: CallHook, took_s: float, error: str | None, raised: BaseException | None) -> None:
        """Observe a hook that returned, raised, or timed out; a failure is logged here, and nowhere else."""
        self._metrics.timed("hook_seconds", took_s, effect.hook)
        if error is not None:
            self._metrics.log.emit(
                "hook.failed",
                exc_info=raised,
                hook=effect.hook,
                bundle=effect.bundle,
                generation=effect.generation,
                error=error,
                hint=_HINTS[effect.hook],
                **self._engine.reactions.about(effect.hook_id),
            )
        if self._traces is not None:
            key = self._engine.key(effect.bundle)
            self._traces.hook(effect, None if key is None else key.operation, took_s, error)

    def appending(self, token: int) -> None:
        remember(self._appending, token, self._mono_s(), _APPENDS_MAX)

    def appended(self, report: Appended | AppendFailed) -> None:
        began_s = self._appending.pop(report.token, None)
        if isinstance(report, AppendFailed):
            self._metrics.counted("append_failures", report.code)
        elif began_s is not None:
            self._metrics.timed("append_seconds", self._mono_s() - began_s)

    def burst(self, held_s: float) -> None:
        self._metrics.timed("loop_burst_seconds", held_s)

    def turn(self, late_s: float) -> None:
        self._metrics.timed("loop_lag_seconds", max(0.0, late_s))

    # --- how things are ---------------------------------------------------------------------------------------------

    def look(self, *, inbox: int, commands: int, requests: int, hooks: HookCounts, unanswered: int) -> None:
        """Set the gauges; called about once a second.

        Args:
            unanswered: Records without a delivery report.
        """
        engine, put = self._engine, self._metrics.set
        self._metrics.stuck(stuck=False)
        self._metrics.verdicts({str(verdict): count for verdict, count in engine.counts.items()})
        self._metrics.cached_lookups(sum(list(self.cached_lookups.values())))
        self._metrics.mode(str(engine.mode))
        self._debts()
        put("is_leader", engine.leading)
        put("leader_term", engine.context.term if engine.leading else -1)
        put("caught_up", engine.caught_up)
        put("draining", engine.draining)
        put("repair_paused", engine.context.repair_paused is not None)
        put("replicas_differ", len(engine.findings.fields() or ()))
        put("log_silence_seconds", engine.presence.silence_s)
        put("bundles_serving", engine.reactions.serving_count)
        put("oldest_in_flight_seconds", self.flights.oldest_s(self._mono_s()))
        put("forged_records", engine.provenance.forged)
        put("pending_records", len(engine.proposals))
        put("lookups_waiting", engine.lookups.waiting)
        put("commands_waiting", commands)
        put("requests_open", requests)
        put("hooks_running", hooks.running)
        put("hooks_late", hooks.late)
        put("writer_queue_records", unanswered)
        put("inbox_records", inbox)
        put("loop_last_progress_timestamp_seconds", time.time())
        for replica in engine.replicas:
            put("lag_records", max(0, replica.end_offset - replica.position), str(replica.partition))
            put("view_lag_seconds", lag_s(engine.now, replica), str(replica.partition))
        for state in IN_FLIGHT:
            count = sum(key.state is state for replica in engine.replicas for key in replica.view.in_flight)
            put("bundles_in_flight", count, state)
        self._members()
        self._metrics.flush()

    def _members(self) -> None:
        counts = self._engine.presence.members.counts
        for what in ("alive", "caught_up", "accepting", "leading", "draining"):
            self._metrics.set("members", counts[what], what.replace("_", "-"))

    def _debts(self) -> None:
        engine, log = self._engine, self._metrics.log
        count = sum(len(replica.view.ledger.open) for replica in engine.replicas)
        oldest_s = engine.duties.oldest_debt_s()
        self._metrics.set("open_debts", count)
        self._metrics.set("oldest_debt_seconds", oldest_s)
        if oldest_s > self._debt_alarm_s and not self._alarmed:
            self._alarmed = True
            log.emit("debt.alarm", oldest_debt_s=round(oldest_s, 1), limit_s=self._debt_alarm_s, debts=count)
        elif oldest_s <= self._debt_alarm_s and self._alarmed:
            self._alarmed = False
            log.emit("debt.alarm-over", oldest_debt_s=round(oldest_s, 1))

    def close(self) -> None:
        self._metrics.flush()
        if self._traces is not None:
            self._traces.close()


class Availability:
    """Availability of Kafka, as seen by the client's reader; called in that thread.

    While the event loop of this process is blocked, its own threads may be what Kafka has no answer from: an outage that
    begins then counts if it lasts until the loop goes on.

    Args:
        look: What Kafka's addresses do now, a word for `reason`; called in a thread of its own, as it takes seconds. Without it
            an outage is reported at once, as `no-answer`.

    Attributes:
        loop_blocked: Whether the event loop is blocked now; called in any thread.
    """

    def __init__(self, metrics: Metrics, look: Callable[[], str] | None = None) -> None:
        self._look = look
        self._unsaid: object | None = None
        self.loop_blocked: Callable[[], bool] = lambda: False
        self._metrics = metrics
        self._lock = threading.Lock()
        self._away_since_s: float | None = None
        self._held_back = False

    def changed(self, available: bool) -> None:
        with self._lock:
            held_back, self._held_back = self._held_back, not available and self.loop_blocked()
            if not self._held_back and not (available and held_back):
                self._note(available)

    def review(self) -> None:
        """Note an outage that began while the loop was blocked; called in the loop, again and again while it goes on."""
        if not self._lock.acquire(blocking=False):
            return  # a thread that holds the lock may hang in writing its line; the next call looks again
        try:
            if self._held_back and not self.loop_blocked():
                self._held_back = False
                self._note(available=False)
        finally:
            self._lock.release()

    def _note(self, available: bool) -> None:
        self._metrics.set("kafka_available", available)
        if not available:
            self._away_since_s = time.monotonic()
            self._metrics.counted("kafka_outages")
            if self._look is None:
                self._say(_NO_ANSWER)
            else:
                self._unsaid = outage = object()
                looking = partial(self._look_and_say, self._look, outage)
                threading.Thread(target=looking, name="statechannel-kafka-away", daemon=True).start()
        elif self._away_since_s is not None:
            if self._unsaid is not None:  # it is over before the look is
                self._say(_NO_ANSWER)
            self._metrics.log.emit("kafka.back", away_s=round(time.monotonic() - self._away_since_s, 1))
            self._away_since_s = None

    def _look_and_say(self, look: Callable[[], str], outage: object) -> None:
        reason = look()
        with self._lock:
            if self._unsaid is outage:
                self._say(reason)

    def _say(self, reason: str) -> None:
        self._unsaid = None
        self._metrics.log.emit("kafka.away", reason=reason)
