"""Driver of the state machine: observes the cluster, records events ahead of effects, and performs the effects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shedders.kafka_rebalance.execution.machine import RESTORE_S, ExecutionMachine
from shedders.kafka_rebalance.execution.stops import AFTER_MENDING, GO_ON
from shedders.kafka_rebalance.execution.values import (
    CallAnswer,
    CallOutcome,
    Effect,
    Elect,
    ExecutionEnd,
    ExecutionEvent,
    ExecutionStop,
    JournalWrite,
    MoveDirs,
    Observation,
    SetConfigs,
    StopKind,
    Submit,
    Withdraw,
)
from statechannel.errors import StateChannelError

if TYPE_CHECKING:
    from shedders.kafka_rebalance.execution.cluster_port import ClusterPort
    from shedders.kafka_rebalance.execution.journal import ExecutionLedger
    from shedders.kafka_rebalance.settings import PaceSettings

FAST_POLL_S = 0.1
_DONE = CallAnswer(outcome=CallOutcome.ACCEPTED)


class Runner:
    """Driver of one execution."""

    def __init__(
        self,
        machine: ExecutionMachine,
        port: ClusterPort,
        ledger: ExecutionLedger,
        pace: PaceSettings,
        *,
        now_s: Callable[[], float],
        wait: Callable[[float], None],
        shown: Callable[[ExecutionMachine, Observation], None] = lambda _machine, _seen: None,
    ) -> None:
        self._machine, self._port, self._ledger, self._pace = machine, port, ledger, pace
        self._now_s, self._wait, self._shown = now_s, wait, shown
        self._full_at_s: float | None = None
        self._away_since_s: float | None = None
        self._interrupted = ""
        self._failed = False

    def interrupt(self, by: str) -> None:
        """End soon, after the throttles of what is not in flight are restored. For signal handlers."""
        self._interrupted = self._interrupted or by

    def run(self) -> ExecutionEnd:
        """Run to the end.

        Raises:
            Exception: Any failure other than Kafka's, raised after throttles were restored as far as possible.
        """
        try:
            return self._run()
        except Exception as error:
            self._failed = True
            reason = str(error) if isinstance(error, StateChannelError) else f"{type(error).__name__}: {error}"
            self._machine.stop(ExecutionStop(kind=StopKind.FAILED, reason=reason, hint=AFTER_MENDING))
            self._run()
            raise

    def _run(self) -> ExecutionEnd:
        machine = self._machine
        while machine.ended is None:
            if self._interrupted:
                machine.stop(ExecutionStop(kind=StopKind.INTERRUPTED, reason=self._interrupted, hint=GO_ON))
            try:
                seen = self._observe()
            except StateChannelError as error:
                ended = self._without_kafka(error)
                if ended is not None:
                    return ended
                self._wait(self._pace.poll_s)
                continue
            self._away_since_s = None
            for effect in machine.step(self._now_s(), seen):
                answer = self._perform(effect)
                machine.take_result(effect, answer, self._now_s())
                # Later effects depend on it: no move starts without its throttle.
                if answer.outcome is not CallOutcome.ACCEPTED or (isinstance(effect, SetConfigs) and answer.refused):
                    break
            self._shown(machine, seen)
            if machine.ended is None:
                self._wait(min(self._pace.poll_s, FAST_POLL_S) if machine.polls_fast else self._pace.poll_s)
        return machine.ended

    def _observe(self) -> Observation:
        now_s = self._now_s()
        full = self._full_at_s is None or now_s - self._full_at_s >= self._pace.full_look_s
        machine = self._machine
        seen = self._port.observe(full=full, configs=machine.configs_to_read(full=full), layout=machine.wants_layout)
        if full:
            self._full_at_s = now_s
        asked, replaced_by = self._ledger.read_requests()
        return replace(seen, asked=asked, replaced_by=replaced_by)

    def _perform(self, effect: Effect) -> CallAnswer:
        match effect:
            case JournalWrite():
                self._write(effect.event, effect.facts)
                return _DONE
            case SetConfigs():
                return self._port.set_configs(effect.changes)
            case Submit():
                return self._port.submit(effect.targets)
            case Elect():
                return self._port.elect(effect.keys)
            case Withdraw():
                return self._port.withdraw(effect.keys)
            case MoveDirs():
                return self._port.move_dirs(effect.targets)
            case ExecutionEnd():
                return _DONE

    def _without_kafka(self, error: StateChannelError) -> ExecutionEnd | None:
        """Tolerate an outage of Kafka as long as that of a broker; then end without restoring anything."""
        now_s = self._now_s()
        if self._away_since_s is None:
            self._away_since_s = now_s
        stopping = self._machine.polls_fast
        if now_s - self._away_since_s < (RESTORE_S if stopping else self._pace.broker_grace_s):
            return None
        ended = self._machine.give_up(ExecutionStop(kind=StopKind.KAFKA_AWAY, reason=str(error), hint=AFTER_MENDING))
        facts = {"kind": str(ended.stop.kind), "reason": ended.stop.reason, "hint": ended.stop.hint}
        self._write(ExecutionEvent.ENDED, facts)
        return ended

    def _write(self, event: str, facts: Mapping[str, Any]) -> None:
        try:
            self._ledger.write(event, facts)
        except StateChannelError:
            # A full disk must not keep throttles from being restored; the error is raised at the end.
            if not self._failed:
                raise
