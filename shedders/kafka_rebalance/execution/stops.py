"""Conditions under which an execution stops, with their messages; pure, with times passed in.

A condition must last, as a single observation may come from a broker with stale metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from shedders.kafka_rebalance.execution.moves import LOST, MoveState, dropped_text, is_taken_over, open_ones
from shedders.kafka_rebalance.execution.purpose import next_plan
from shedders.kafka_rebalance.execution.values import ExecutionStop, StopKind, named, replica_text
from shedders.kafka_rebalance.planning.request import PlanMode

if TYPE_CHECKING:
    from loaddata.samples.partitions import KafkaPartition
    from shedders.kafka_rebalance.execution.log_dir_moves import LogDirMoves
    from shedders.kafka_rebalance.execution.moves import MoveStatus
    from shedders.kafka_rebalance.execution.values import Key, Observation, ReplicaKey
    from shedders.kafka_rebalance.planning.plan import PartitionMove, ReassignmentPlan
    from shedders.kafka_rebalance.settings import PaceSettings

VANISHED_MIN: Final = 2
VANISHED_SHARE: Final = 3
"""Lost brokers that make a large outage, if they are at least a third of all: an outage of more than a broker (Cruise Control
healed during the outage of a data centre, its issue 1137)."""
AFTER_MENDING: Final = "When that is fixed: `statechannel partitions resume`, or `cancel`."
GO_ON: Final = "`statechannel partitions resume` continues, `cancel` reverts moves in flight."
NEW_PLAN: Final = "End it with `statechannel partitions cancel`, then make a new plan."
SHOWN: Final = 3
OUTPACED_S: Final = 60.0


class StopWatch:
    """Watch for conditions that stop an execution, and their durations.

    Attributes:
        extra_urps: Under-replicated partitions in addition to those at the start and those that the plan moves.
        dropped: Moves that can no longer be carried out, since their partition is gone or in other hands.
        outpaced: Partitions in flight whose leader has grown faster than the copy for a minute.
    """

    def __init__(self, plan: ReassignmentPlan, pace: PaceSettings) -> None:
        self._plan = plan
        self._pace = pace
        self._since: dict[object, float] = {}
        self._first_alive: frozenset[int] = frozenset()
        self._baseline: frozenset[Key] | None = None
        self.extra_urps: frozenset[Key] = frozenset()
        self._sizes: dict[Key, tuple[int, ...]] = {}
        self._progress: dict[Key | ReplicaKey, tuple[object, float]] = {}
        self._counts: dict[str, int] = {}
        self.dropped: dict[Key | ReplicaKey, MoveStatus] = {}
        self.remarks: list[str] = []
        self._races: dict[Key, tuple[float, int | None, int, int]] = {}
        self._remarked: set[Key] = set()
        self.outpaced: set[Key] = set()

    def check(
        self,
        now_s: float,
        seen: Observation,
        statuses: Mapping[Key, MoveStatus],
        moves: Mapping[Key, PartitionMove],
        dirs: LogDirMoves,
    ) -> ExecutionStop | None:
        """The most severe reason to stop, if any."""
        self._first_alive = self._first_alive or seen.alive
        self._learn(seen, statuses)
        return next(self._reasons(now_s, seen, statuses, moves, dirs), None)

    def held(self, now_s: float, why: Mapping[Key, str]) -> ExecutionStop | None:
        """Stop if no move is in flight and none may start, for these reasons."""
        if not self.lasts(now_s, "held", bool(why), max(self._pace.urp_grace_s, self._pace.broker_grace_s)):
            return None
        shown = "; ".join(f"{named(key)}: {reason}" for key, reason in sorted(why.items())[:SHOWN])
        return ExecutionStop(
            kind=StopKind.HELD, reason=f"{len(why)} partitions cannot be moved ({shown})", hint=AFTER_MENDING
        )

    def _learn(self, seen: Observation, statuses: Mapping[Key, MoveStatus]) -> None:
        for name, topic in seen.topics.items():
            count = self._counts.setdefault(name, len(topic.partitions))
            if len(topic.partitions) > count:
                self._counts[name] = len(topic.partitions)
                grown = f"topic {name} has grown from {count} to {len(topic.partitions)} partitions"
                self.remarks.append(f"{grown}; the plan does not move the new partitions")
        for key in seen.foreign:
            if ("foreign", key) not in self._since:
                self._since["foreign", key] = 0.0
                self.remarks.append(f"another tool moves {named(key)}, which is not in the plan")
        if seen.urps is None:
            return
        own = set[tuple[str, int]]()
        for key in statuses:
            partition = seen.partition(key)
            if partition is None or partition.in_motion or len(partition.isr) >= len(partition.replicas):
                own.add(key)
        extra = seen.urps - own - frozenset(seen.foreign)
        if self._baseline is None:
            self._baseline = extra
        self._baseline &= extra  # a partition that has recovered and falls behind again counts
        self.extra_urps = extra - self._baseline

    def _reasons(
        self,
        now_s: float,
        seen: Observation,
        statuses: Mapping[Key, MoveStatus],
        moves: Mapping[Key, PartitionMove],
        dirs: LogDirMoves,
    ) -> Iterator[ExecutionStop]:
        if seen.replaced_by:
            yield ExecutionStop(
                kind=StopKind.REPLACED,
                reason=f"executor {seen.replaced_by} has taken over",
                hint="`statechannel partitions status` shows its progress.",
            )
        if seen.cluster_id != self._plan.cluster_id:
            yield ExecutionStop(
                kind=StopKind.OTHER_CLUSTER,
                reason=f"this is cluster {seen.cluster_id}, the plan is for {self._plan.cluster_id}",
                hint="Check --bootstrap-servers.",
            )
        needed = {broker for key in open_ones(statuses, self.dropped) for broker in moves[key].after}
        needed |= {broker for _, _, broker in dirs.open}
        yield from self._brokers(now_s, seen, needed)
        yield from self._lost(now_s, [*statuses.items(), *dirs.statuses.items()])
        if self.lasts(now_s, "urps", bool(self.extra_urps), self._pace.urp_grace_s):
            shown = ", ".join(named(key) for key in sorted(self.extra_urps)[:SHOWN])
            repairs = self._plan.request.get("mode") == PlanMode.FIX_OFFLINE  # what has failed since needs a plan, too
            yield ExecutionStop(
                kind=StopKind.URPS,
                reason=(
                    f"{len(self.extra_urps)} partitions ({shown}) that are not moved by the plan have become under-replicated, "
                    f"for {self._pace.urp_grace_s:g} s"
                ),
                hint=f"End it with `statechannel partitions cancel`. {next_plan(self._plan)}"
                if repairs
                else AFTER_MENDING,
            )
        yield from self._stalled(now_s, seen, statuses, dirs)

    def _brokers(self, now_s: float, seen: Observation, needed: set[int]) -> Iterator[ExecutionStop]:
        away = self._first_alive - seen.alive
        many = len(away) >= VANISHED_MIN and len(away) * VANISHED_SHARE >= len(self._first_alive)
        if self.lasts(now_s, "vanished", many, self._pace.settle_s):
            yield ExecutionStop(
                kind=StopKind.BROKERS_VANISHED,
                reason=f"brokers {sorted(away)} of {len(self._first_alive)} are not alive",
                hint=AFTER_MENDING,
            )
        for broker in sorted(needed):
            if self.lasts(now_s, ("away", broker), broker not in seen.alive, self._pace.broker_grace_s):
                yield ExecutionStop(
                    kind=StopKind.BROKER_AWAY,
                    reason=f"broker {broker}, which the plan needs, is not alive for {self._pace.broker_grace_s:g} s",
                    hint=AFTER_MENDING,
                )

    def _lost(self, now_s: float, statuses: Iterable[tuple[Key | ReplicaKey, MoveStatus]]) -> Iterator[ExecutionStop]:
        """Drop moves that can no longer be carried out; the others go on, unless too many are in other hands."""
        new = {
            key: status
            for key, status in statuses
            if self.lasts(now_s, ("lost", key), status.state in LOST, self._pace.settle_s) and key not in self.dropped
        }
        self.dropped |= new
        if new:
            self.remarks.append(dropped_text(new.values()))
        if self.dropped and is_taken_over(self._plan, self.dropped):
            reason = (
                f"others have changed a third or more of what the plan moves ({dropped_text(self.dropped.values())})"
            )
            yield ExecutionStop(kind=StopKind.CHANGED, reason=reason, hint=NEW_PLAN)

    def _stalled(
        self, now_s: float, seen: Observation, statuses: Mapping[Key, MoveStatus], dirs: LogDirMoves
    ) -> Iterator[ExecutionStop]:
        moving: dict[Key | ReplicaKey, tuple[object, str, str]] = {}
        for key, status in statuses.items():
            if status.state is not MoveState.MOVING:
                continue
            partition = seen.at(key)
            if seen.copied is not None:
                self._sizes[key] = tuple(seen.copied.get((*key, broker), 0) for broker in partition.adding)
                self._race(now_s, key, partition, seen.copied)
            copied = self._sizes.get(key, ()), partition.isr, partition.adding
            moving[key] = copied, f"{named(key)} is in flight to {list(partition.adding)}", "these brokers"
        for replica, size in dirs.in_flight.items():
            text = f"{replica_text(replica)} is in flight to another log directory"
            moving[replica] = size, text, "the disks of the broker"
        for place, (progress, text, where) in moving.items():
            before, since_s = self._progress.get(place, (None, now_s))
            if before != progress:
                self._progress[place] = progress, now_s
            elif now_s - since_s >= self._pace.stalled_s:
                yield ExecutionStop(
                    kind=StopKind.STALLED,
                    reason=f"{text} without progress for {self._pace.stalled_s:g} s",
                    hint=f"Check {where} and the throttle (`resume --throttle`). {AFTER_MENDING}",
                )
        for place in set(self._progress) - set(moving):
            del self._progress[place]
        self._races = {key: race for key, race in self._races.items() if key in moving}
        self.outpaced &= set(self._races)
        new = self.outpaced - self._remarked
        if new:
            self._remarked |= new
            shown = ", ".join(named(key) for key in sorted(new)[:SHOWN]) + (", ..." if len(new) > SHOWN else "")
            self.remarks.append(
                f"{shown}: written faster than copied, so there is no end: raise the throttle with `resume --throttle`"
            )

    def _race(
        self, now_s: float, key: Key, partition: KafkaPartition, copied: Mapping[tuple[str, int, int], int]
    ) -> None:
        """Compare the growth of a leader with that of its slowest copy, over a minute."""
        leader, slowest = partition.leader, min(self._sizes[key], default=0)
        size = 0 if leader is None else copied.get((*key, leader), 0)
        since_s, of, size_then, slowest_then = self._races.setdefault(key, (now_s, leader, size, slowest))
        if of != leader or now_s - since_s >= OUTPACED_S:
            self._races[key] = (now_s, leader, size, slowest)
        if of == leader and now_s - since_s >= OUTPACED_S:
            ahead = size > size_then and size - size_then >= slowest - slowest_then
            self.outpaced = self.outpaced | {key} if ahead else self.outpaced - {key}

    def restart_races(self) -> None:
        """The throttle has changed: what was measured before no longer holds."""
        self._races.clear()
        self._remarked.clear()
        self.outpaced.clear()

    def lasts(self, now_s: float, condition: object, holds: bool, least_s: float) -> bool:
        """Whether a condition has held for so long."""
        if not holds:
            self._since.pop(condition, None)
            return False
        return now_s - self._since.setdefault(condition, now_s) >= least_s
