"""Pure state machine of a plan's execution: observations in, effects out; no clock, no I/O, no threads.

Each step reads the state of each partition from the cluster (`moves`), stops if something went wrong (`stops`), and else
starts as many moves as the pace allows (`moves`), throttled (`throttle`). It remembers only requests that are
not visible yet. A new machine continues from the journal where the last one crashed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shedders.kafka_rebalance.execution.log_dir_moves import LogDirMoves
from shedders.kafka_rebalance.execution.moves import (
    InFlight,
    MoveState,
    MoveStatus,
    PartitionStep,
    choose,
    dropped_text,
    in_order,
    open_ones,
    statuses_of,
    step_of,
    unsafe,
)
from shedders.kafka_rebalance.execution.progress import ProgressRecorder
from shedders.kafka_rebalance.execution.purpose import cordon_hint, has_purpose, next_plan, unmet
from shedders.kafka_rebalance.execution.stops import AFTER_MENDING, SHOWN, StopWatch
from shedders.kafka_rebalance.execution.throttle import BROKER, TOPIC, Copy, Throttling, copies_in_flight, removed_text
from shedders.kafka_rebalance.execution.values import (
    CallAnswer,
    CallOutcome,
    Effect,
    Elect,
    ExecutionEnd,
    ExecutionEvent,
    ExecutionRequest,
    ExecutionStop,
    JournalWrite,
    MoveDirs,
    SetConfigs,
    StopKind,
    Submit,
    Withdraw,
    named,
    replica_text,
    resource_text,
)

if TYPE_CHECKING:
    from shedders.kafka_rebalance.execution.log_dir_moves import LogDirProgress
    from shedders.kafka_rebalance.execution.progress import ProgressTimes
    from shedders.kafka_rebalance.execution.values import ExecutionHistory, Key, Observation, ReplicaKey, Resource
    from shedders.kafka_rebalance.planning.plan import ReassignmentPlan
    from shedders.kafka_rebalance.settings import PaceSettings

RESTORE_S = 20.0
"""How long an execution that ends tries to restore throttles."""
_SETS_OUT = frozenset({MoveState.WAITING, MoveState.PARTLY})


@dataclass(frozen=True, slots=True)
class _Asked:
    """Requests that were sent and are not visible yet."""

    at_s: float
    target: frozenset[int]


class ExecutionMachine:
    """State machine of one execution.

    Args:
        recorded: State folded from the journal; empty for a new plan. Written events are added to it.

    Attributes:
        request: Newest request that it follows.
        statuses: State of each partition at the last step.
        ended: The last effect, once it was returned.
        remarks: All of the plan so far; `remarks_before` are of earlier executors.
        wants_layout: Whether the next observation must have the layout of the whole cluster.
    """

    def __init__(self, plan: ReassignmentPlan, pace: PaceSettings, recorded: ExecutionHistory) -> None:
        self._plan = plan
        self._pace = pace
        self._moves = {move.key: move for move in plan.moves}
        self._number = {key: number for number, key in enumerate(self._moves)}
        self._throttling = Throttling(plan, pace, recorded)
        self._watch = StopWatch(plan, pace)
        self._progress = ProgressRecorder(plan)
        self._dirs = LogDirMoves(plan, pace, recorded, self._watch.dropped)
        self._recorded = recorded
        self.request = ExecutionRequest.GO
        self._asked: dict[Key, _Asked] = {}
        self._elected_s: dict[Key, float] = {}
        self._withdrawn_s: dict[Key, float] = {}
        self._withdrawals = 0
        self._attempts: dict[Key, int] = {}
        self._refused: dict[Key, str] = {}
        self._throttle_taken: tuple[bool, int | None] = (False, None)
        self._stop: ExecutionStop | None = None
        self._stopping_since_s: float | None = None
        self.statuses: dict[Key, MoveStatus] = {}
        self.ended: ExecutionEnd | None = None
        self.wants_layout = False
        self.remarks: Sequence[str] = recorded.remarks
        self.remarks_before = len(recorded.remarks)

    def configs_to_read(self, *, full: bool) -> tuple[Resource, ...]:
        """Resources whose throttle settings the next observation must have."""
        return self._throttling.to_read(full=full)

    def times(self, now_s: float) -> ProgressTimes:
        driven = self.request is ExecutionRequest.GO and self._stop is None
        pace = self._pace.model_copy(update={"throttle_bytes_per_s": self._throttling.rate})
        return replace(self._progress.times(now_s, pace, driven=driven), outpaced=frozenset(self._watch.outpaced))

    @property
    def dirs(self) -> LogDirProgress:
        return self._dirs.progress

    @property
    def _open(self) -> set[Key]:
        """Partitions that are neither done nor dropped."""
        return open_ones(self.statuses, self._watch.dropped)

    @property
    def polls_fast(self) -> bool:
        """Whether the next observation should follow at once."""
        return self._stop is not None and self.ended is None

    def stop(self, stop: ExecutionStop) -> None:
        """Stop the execution from outside: an interrupt, an error. The first reason counts."""
        self._stop = self._stop or stop

    def give_up(self, stop: ExecutionStop) -> ExecutionEnd:
        """End at once without restoring anything, as the cluster does not answer."""
        self.ended = ExecutionEnd(stop=self._stop or stop, throttles_left=self._throttling.left)
        return self.ended

    def step(self, now_s: float, seen: Observation) -> tuple[Effect, ...]:
        """Effects to perform now, in order; after an effect that was not accepted the rest must be skipped."""
        if self.ended is not None:
            return ()
        self._throttling.learn(seen.configs or {})
        effects: list[Effect] = list(self._take_observation(now_s, seen))
        if self._stop is not None:
            effects += self._finish(now_s, seen, self._stop)
        else:
            effects += self._take_requests(seen)
            effects += self._continue(now_s, seen)
        return tuple(effects)

    def take_result(self, effect: Effect, answer: CallAnswer, now_s: float) -> None:
        """Take in the result of an effect. One of unknown result is observed before it is retried."""
        if isinstance(effect, JournalWrite):
            self._recorded.take({"event": effect.event, **effect.facts})
        elif isinstance(effect, SetConfigs):
            self._throttling.take_result(effect, answer, now_s)
            if self._throttling.refusals >= self._pace.attempts_max and self._stop is None:
                reason = f"the throttle cannot be set: {self._throttling.reason}"
                self.stop(ExecutionStop(kind=StopKind.FAILED, reason=reason, hint=AFTER_MENDING))
        elif isinstance(effect, Submit):
            for key, target in effect.targets.items():
                self._asked[key] = _Asked(now_s, frozenset(target))
                reason = answer.refused.get(key, answer.reason if answer.outcome is CallOutcome.REJECTED else "")
                if reason:
                    self._attempts[key] = self._attempts.get(key, 0) + 1
                    if self._attempts[key] >= self._pace.attempts_max:
                        self._refused[key] = reason
        elif isinstance(effect, Elect):
            self._elected_s.update(dict.fromkeys(effect.keys, now_s))
        elif isinstance(effect, Withdraw):
            self._withdrawn_s.update(dict.fromkeys(effect.keys, now_s))
        elif isinstance(effect, MoveDirs):
            self._dirs.take_result(effect, answer, now_s)

    # --- observing ------------------------------------------------------------------------------------------------------

    def _take_observation(self, now_s: float, seen: Observation) -> Iterable[Effect]:
        for key, status in statuses_of(self._plan, seen.topics, self._recorded.moved).items():
            was = self.statuses.get(key)
            if key in self._watch.dropped:
                continue
            # Later changes by others to a finished partition are left alone; but its leader may have moved from a lost broker.
            if was is not None and was.state is MoveState.DONE and status.state is not MoveState.ELECT:
                continue
            self.statuses[key] = status
            partition, asked = seen.partition(key), self._asked.get(key)
            if asked is not None and partition is not None:
                arrived = frozenset(partition.replicas) == asked.target and was is not None and was.state in _SETS_OUT
                if partition.in_motion or arrived or status.state is not (was or status).state:
                    del self._asked[key]
        done = [
            key
            for key, status in self.statuses.items()
            if status.state is MoveState.DONE and key not in self._recorded.moved
        ]
        if done:
            yield JournalWrite(event=ExecutionEvent.MOVED, facts={"partitions": [list(key) for key in done]})
        yield from self._dirs.take_observation(seen, self.statuses)
        mark = self._progress.due(now_s, self.statuses, seen.topics, seen.copied, self._dirs.progress)
        if mark is not None:
            yield JournalWrite(event=ExecutionEvent.PROGRESS, facts=mark)
        stop = self._watch.check(now_s, seen, self.statuses, self._moves, self._dirs)
        if self._watch.outpaced != self._recorded.outpaced:
            keys = [list(key) for key in sorted(self._watch.outpaced)]
            yield JournalWrite(event=ExecutionEvent.OUTPACED, facts={"partitions": keys})
        known = set(self.remarks[: self.remarks_before])  # what is still so is not repeated by each executor
        for text in (*(each for each in self._watch.remarks if each not in known), *self._throttling.remarks):
            yield JournalWrite(event=ExecutionEvent.REMARK, facts={"text": text})
        self._watch.remarks.clear()
        self._throttling.remarks.clear()
        cancelling = self.request is ExecutionRequest.CANCEL or seen.asked.request is ExecutionRequest.CANCEL
        if stop is not None and not (cancelling and stop.kind not in {StopKind.REPLACED, StopKind.OTHER_CLUSTER}):
            self.stop(stop)

    def _take_requests(self, seen: Observation) -> Iterable[Effect]:
        asked = seen.asked
        if asked.throttle_changed and self._throttle_taken != (True, asked.throttle_bytes_per_s):
            self._throttle_taken = (True, asked.throttle_bytes_per_s)
            self._throttling.change(asked.throttle_bytes_per_s)
            self._watch.restart_races()
            self._progress.restart()
            yield JournalWrite(
                event=ExecutionEvent.PACE, facts={"pace": {"throttle_bytes_per_s": asked.throttle_bytes_per_s}}
            )
        if asked.request is self.request or self.request is ExecutionRequest.CANCEL:
            return
        self.request = asked.request
        self._progress.restart()
        name = {
            ExecutionRequest.GO: ExecutionEvent.RESUMED,
            ExecutionRequest.PAUSE: ExecutionEvent.PAUSED,
            ExecutionRequest.CANCEL: ExecutionEvent.CANCELLING,
        }[asked.request]
        yield JournalWrite(event=name, facts={"by": asked.by})

    # --- continuing -----------------------------------------------------------------------------------------------------

    def _continue(self, now_s: float, seen: Observation) -> Iterable[Effect]:
        if self.request is ExecutionRequest.CANCEL:
            yield from self._cancel(now_s, seen)
            return
        moving = [key for key, status in self.statuses.items() if status.state is MoveState.MOVING]
        if self.request is ExecutionRequest.PAUSE:
            if moving or self._dirs.moving:
                yield from self._throttle(now_s, seen, moving, [], {}) or ()
            else:
                yield from self._throttling.restore(self._throttling.left)
            return
        if not self._open and self._dirs.over:
            self._stop_if_met(now_s, seen)
            return
        yield from self._elections(now_s, seen)
        chosen, held = self._choose(now_s, seen, moving)
        dirs = {} if self._watch.extra_urps else self._dirs.choose(now_s, seen)
        if self._throttling.removed_again is not None:
            chosen, dirs = [], {}
        throttle = self._throttle(now_s, seen, moving, chosen, dirs)
        if throttle is None:
            unread = ", ".join(" ".join(resource) for resource in self._throttling.unknown[:SHOWN])
            why = f"the throttle settings of {unread} cannot be read"
            held |= dict.fromkeys(self._open, why)
            chosen, dirs = [], {}
        yield from throttle or ()
        yield from self._dirs.place(chosen, seen)
        if chosen:
            targets = {step.key: step.target for step in chosen}
            yield from self._batch(targets, size_bytes=sum(step.size_bytes for step in chosen))
        yield from self._dirs.start(dirs, self._recorded.batches + (2 if chosen else 1))
        yield from self._finished_topics()
        self._stop_if_blocked(now_s, moving, [*chosen, *dirs], held)

    def _elections(self, now_s: float, seen: Observation) -> Iterable[Effect]:
        keys = []
        for key, status in self.statuses.items():
            partition = seen.partition(key)
            leader = self._moves[key].leader_after
            if status.state is not MoveState.ELECT or partition is None or leader not in partition.isr:
                continue
            if leader in seen.alive and not self._recent(self._elected_s, key, now_s):
                keys.append(key)
        if keys:
            yield Elect(keys=tuple(keys[: self._pace.leaders_at_once]))

    def _choose(self, now_s: float, seen: Observation, moving: list[Key]) -> tuple[list[PartitionStep], dict[Key, str]]:
        """Partitions to move now, and the reasons that hold others back."""
        flight = self._in_flight(seen, moving)
        steps: list[PartitionStep] = []
        orders: list[PartitionStep] = []
        held: dict[Key, str] = {}
        for key, status in self.statuses.items():
            if status.state not in _SETS_OUT and status.state is not MoveState.REORDER:
                continue
            if key in self._refused:
                continue
            if self._just_asked(key, now_s):
                if status.state in _SETS_OUT:
                    step, _ = self._step_of(key, seen)
                    flight.take(step.brokers, step.size_bytes)
                continue
            step, why = self._step_of(key, seen)
            if status.state is MoveState.REORDER:
                orders.append(step)
            elif why:
                held[key] = why
            else:
                steps.append(step)
        if self._watch.extra_urps:
            return [], held
        chosen = choose(in_order(steps, self._pace.order), flight, self._pace)
        return [*chosen, *orders[: self._pace.leaders_at_once]], held

    def _step_of(self, key: Key, seen: Observation) -> tuple[PartitionStep, str]:
        partition = seen.at(key)
        step = step_of(self._moves[key], partition, one_replica=self._pace.one_replica, number=self._number[key])
        why = unsafe(partition, step.target, seen.topics[key[0]].min_isr)
        away = [broker for broker in step.target if broker not in partition.replicas and broker not in seen.alive]
        if away:
            why = f"broker {away[0]} is not alive"
        return step, why

    def _in_flight(self, seen: Observation, moving: list[Key]) -> InFlight:
        flight = InFlight()
        for key in moving:
            partition = seen.at(key)
            source = () if partition.leader is None or not partition.adding else (partition.leader,)
            size = (self._moves[key].size_bytes or 0) * len(partition.adding)
            flight.take({*partition.adding, *partition.removing, *source}, size)
        for brokers in seen.foreign.values():
            flight.take(brokers, 0)
        return flight

    def _throttle(
        self,
        now_s: float,
        seen: Observation,
        moving: list[Key],
        chosen: list[PartitionStep],
        dirs: Iterable[ReplicaKey],
    ) -> list[Effect] | None:
        """Effects that throttle the moves; None: not known yet, so no move may start."""
        copies = copies_in_flight(seen, moving)
        for step in chosen:
            now = frozenset(seen.at(step.key).replicas)
            if adding := frozenset(step.target) - now:
                copies.append(Copy(step.key, now, adding))
        return self._throttling.needed(now_s, copies, seen.alive, {key[2] for key in (*self._dirs.moving, *dirs)})

    def _batch(self, targets: Mapping[Key, tuple[int, ...]], *, size_bytes: int) -> Iterable[Effect]:
        batch = self._recorded.batches + 1
        partitions = [[*key, list(target)] for key, target in targets.items()]
        facts = {"batch": batch, "partitions": partitions, "size_bytes": size_bytes}
        yield JournalWrite(event=ExecutionEvent.BATCH, facts=facts)
        yield Submit(targets=targets)

    def _finished_topics(self) -> Iterable[Effect]:
        going = {key[0] for key in self._open}
        over = [resource for resource in self._throttling.left if resource[0] == TOPIC and resource[1] not in going]
        if self._throttling.rate is None:
            over = list(self._throttling.left)
        yield from self._throttling.restore(over)

    def _stop_if_blocked(self, now_s: float, moving: list[Key], chosen: list[object], held: dict[Key, str]) -> None:
        """End if no move is in flight and none may start."""
        open_ones = self._open
        if open_ones <= set(self._refused) and self._dirs.settled:
            refused = {named(key): why for key, why in sorted(self._refused.items())}
            refused |= {replica_text(key): why for key, why in sorted(self._dirs.refused.items())}
            shown = "; ".join(f"{name}: {why}" for name, why in list(refused.items())[:SHOWN])
            self.stop(
                ExecutionStop(
                    kind=StopKind.REFUSED,
                    reason=f"Kafka refused {len(refused)} partitions ({shown}); all others are moved",
                    hint=AFTER_MENDING,
                )
            )
            return
        elections = {
            key: f"broker {self._moves[key].leader_after}, the new leader, does not lead yet"
            for key, status in self.statuses.items()
            if status.state is MoveState.ELECT
        }
        idle = not moving and not chosen and not self._dirs.moving and not self._dirs.pending(now_s)
        idle = idle and not any(self._just_asked(key, now_s) for key in open_ones)
        if idle and self._throttling.removed_again is not None:
            reason = f"{removed_text(self._throttling.removed_again)}, so nothing more is started"
            hint = f"Stop that tool, or let it keep these settings. {AFTER_MENDING}"
            self.stop(ExecutionStop(kind=StopKind.THROTTLE_REMOVED, reason=reason, hint=hint))
        known = held | elections | self._dirs.held(now_s)
        waiting = known if idle and open_ones - set(self._refused) <= set(held) | set(elections) else {}
        stop = self._watch.held(now_s, waiting)
        if stop is not None:
            self.stop(stop)

    def _stop_if_met(self, now_s: float, seen: Observation) -> None:
        """All is moved: the end, once the cluster was looked at for the purpose of the plan."""
        dropped = dropped_text(self._watch.dropped.values())
        self.wants_layout = has_purpose(self._plan)
        if self.wants_layout and seen.layout is None:
            return
        left = () if seen.layout is None else tuple(unmet(self._plan, seen.layout))
        if seen.layout is None or not left:
            self.stop(ExecutionStop(kind=StopKind.DONE, reason=dropped))
        elif self._watch.lasts(now_s, "unmet", True, self._pace.settle_s):  # a look may be stale
            cordon = cordon_hint(self._plan, seen.layout)
            hint = f"{cordon and f'First cordon: {cordon}. '}{next_plan(self._plan)}"
            reason = "; ".join(
                ["all is moved, but not all of the purpose is met", *left, *([dropped] if dropped else [])]
            )
            self.stop(ExecutionStop(kind=StopKind.UNMET, reason=reason, hint=hint))

    # --- ending -------------------------------------------------------------------------------------------------------

    def _cancel(self, now_s: float, seen: Observation) -> Iterable[Effect]:
        """Revert moves in flight, and then restore the old order of replicas, which Kafka does not."""
        moving = [key for key, status in self.statuses.items() if status.state is MoveState.MOVING]
        again = [key for key in moving if not self._recent(self._withdrawn_s, key, now_s)]
        if again and self._withdrawals < self._pace.attempts_max:
            self._withdrawals += 1
            yield Withdraw(keys=tuple(again))
        elif again:
            reason = f"Kafka does not cancel {len(again)} reassignments, such as {named(again[0])}"
            self.stop(ExecutionStop(kind=StopKind.FAILED, reason=reason, hint="See the log of Kafka's controller."))
        yield from self._dirs.withdraw(now_s)
        if (
            moving
            or self._dirs.moving
            or self._dirs.pending(now_s)
            or any(self._just_asked(key, now_s) for key in self._asked)
        ):
            return
        targets = {}
        for key, status in self.statuses.items():
            partition = seen.partition(key)
            if status.state is MoveState.WAITING and partition is not None and key in self._withdrawn_s:
                if partition.replicas != self._moves[key].before and key not in self._refused:
                    targets[key] = self._moves[key].before
        if targets:
            yield from self._batch(targets, size_bytes=0)
            return
        self.stop(ExecutionStop(kind=StopKind.CANCELLED))

    def _finish(self, now_s: float, seen: Observation, stop: ExecutionStop) -> Iterable[Effect]:
        if self._stopping_since_s is None:
            self._stopping_since_s = now_s
            facts = {"kind": str(stop.kind), "reason": stop.reason}
            yield JournalWrite(event=ExecutionEvent.STOPPING, facts=facts)
        ours = stop.kind is not StopKind.REPLACED  # otherwise they belong to the other executor now
        kept = frozenset[tuple[str, str]]() if stop.good or self._pace.unthrottle else self._in_use(now_s, seen)
        over = (
            [] if stop.kind is StopKind.OTHER_CLUSTER else [item for item in self._throttling.left if item not in kept]
        )
        if ours and over and now_s - self._stopping_since_s < RESTORE_S:
            yield from self._throttling.restore(over)
            if not kept.issuperset(self._throttling.left):
                return
        facts = {"kind": str(stop.kind), "reason": stop.reason, "hint": stop.hint}
        left = self._throttling.left if ours else ()
        yield JournalWrite(
            event=ExecutionEvent.ENDED, facts=facts | {"throttles_left": [resource_text(item) for item in left]}
        )
        self.ended = ExecutionEnd(stop=stop, throttles_left=left)
        yield self.ended

    def _in_use(self, now_s: float, seen: Observation) -> frozenset[Resource]:
        """Brokers and topics of what is in flight: what an operator has bounded must not compete at full speed after a stop."""
        brokers = set(self._dirs.busy(now_s))
        topics = set[str]()
        for key in self._moves:
            partition, asked = seen.partition(key), self._just_asked(key, now_s)
            if partition is not None and (partition.in_motion or asked):
                topics.add(key[0])
                brokers.update(partition.replicas, self._asked[key].target if asked else ())
        return frozenset({(TOPIC, topic) for topic in topics} | {(BROKER, str(broker)) for broker in brokers})

    def _just_asked(self, key: Key, now_s: float) -> bool:
        return key in self._asked and now_s - self._asked[key].at_s < self._pace.settle_s

    def _recent(self, asked_s: Mapping[Key, float], key: Key, now_s: float) -> bool:
        return key in asked_s and now_s - asked_s[key] < self._pace.settle_s
