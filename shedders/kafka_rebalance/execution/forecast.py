"""Forecast of an execution's end: the remaining of the plan played through, at a rate of each broker and direction. Pure.

A mean rate misses the end where few large partitions are left, or where one broker has much more to copy than others. Played
through are the executor's own selection (order, bounds of the pace), and copies that share what their brokers can carry:

    rate of a copy = rate / the larger number of copies into its destination, or out of its leader
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from shedders.kafka_rebalance.execution.moves import (
    LOST,
    InFlight,
    MoveState,
    PartitionStep,
    choose,
    concerned,
    in_order,
    step_of,
    target_of,
)

if TYPE_CHECKING:
    from loaddata.samples.partitions import KafkaPartition, KafkaTopic
    from shedders.kafka_rebalance.execution.moves import MoveStatus
    from shedders.kafka_rebalance.execution.values import Key
    from shedders.kafka_rebalance.planning.plan import PartitionMove, ReassignmentPlan
    from shedders.kafka_rebalance.settings import PaceSettings

FORECAST_PARTITIONS_MAX: Final = 400
"""Most open partitions that are simulated, as the time grows with their square; with more, a mean rate is nearly as good."""
_OVER: Final = frozenset({MoveState.DONE, MoveState.ELECT, MoveState.REORDER, *LOST})


@dataclass(slots=True)
class _ReplicaCopy:
    key: Key
    source: int | None
    broker: int
    remaining_bytes: float
    remaining_s: float = 0.0


class _RemainingPlan:
    """The part of a plan that is not done, and its simulation."""

    def __init__(self, moves: Mapping[Key, PartitionMove], pace: PaceSettings, rate: float) -> None:
        self._moves, self._pace, self._rate = moves, pace, rate
        self._flight = InFlight()
        self._copies: list[_ReplicaCopy] = []
        self._partitions: dict[Key, KafkaPartition] = {}
        self._started: dict[Key, PartitionStep] = {}
        self._waiting: list[PartitionStep] = []
        self._sorted = False
        self._numbers = {key: number for number, key in enumerate(moves)}

    def add_waiting(self, key: Key, partition: KafkaPartition) -> None:
        self._partitions[key] = partition
        one_replica = self._pace.one_replica
        step = step_of(self._moves[key], partition, one_replica=one_replica, number=self._numbers[key])
        self._waiting.append(step)
        self._sorted = False

    def add_in_flight(self, key: Key, partition: KafkaPartition, copied: Mapping[tuple[str, int, int], int]) -> None:
        target, leader = target_of(partition), partition.leader
        now = tuple(broker for broker in partition.replicas if broker not in partition.adding)
        planned = self._moves[key].size_bytes or 0
        size = planned if leader is None else copied.get((*key, leader), planned)
        step = PartitionStep(
            key=key,
            target=target,
            brokers=concerned(leader, now, target),
            size_bytes=size * len(partition.adding),
            number=self._numbers[key],
        )
        self._flight.take(step.brokers, step.size_bytes)
        self._partitions[key] = partition
        self._start(step, {broker: max(0, size - copied.get((*key, broker), 0)) for broker in partition.adding})

    def simulate_s(self) -> float:
        """Simulate until all is done, and return the time that this takes."""
        now_s = 0.0
        self._choose()
        while self._copies:
            self._share_rates()
            now_s += self._advance(min(copy.remaining_s for copy in self._copies))
            if self._waiting:
                # The executor starts further moves only at its next observation.
                behind_s = self._pace.poll_s - now_s % self._pace.poll_s
                self._share_rates()
                now_s += self._advance(behind_s) if self._copies else behind_s
                self._choose()
        return now_s

    def _choose(self) -> None:
        if not self._sorted:
            self._waiting, self._sorted = in_order(self._waiting, self._pace.order), True
        chosen = choose(self._waiting, self._flight, self._pace)
        starting = {step.key for step in chosen}
        self._waiting = [step for step in self._waiting if step.key not in starting]
        for step in chosen:
            before = self._partitions[step.key].replicas
            size = self._moves[step.key].size_bytes or 0
            self._start(step, {broker: size for broker in step.target if broker not in before})

    def _start(self, step: PartitionStep, sizes: Mapping[int, int]) -> None:
        self._started[step.key] = step
        source = self._partitions[step.key].leader
        # A move without data takes no time, but occupies a place until the next selection.
        copies = [_ReplicaCopy(step.key, source, broker, float(size)) for broker, size in sizes.items()]
        self._copies += copies or [_ReplicaCopy(step.key, None, -1, 0.0)]

    def _share_rates(self) -> None:
        into = Counter(copy.broker for copy in self._copies)
        out = Counter(copy.source for copy in self._copies)
        for copy in self._copies:
            sharing = max(into[copy.broker], 1 if copy.source is None else out[copy.source])
            copy.remaining_s = copy.remaining_bytes * sharing / self._rate

    def _advance(self, duration_s: float) -> float:
        """Let this much time pass at the present rates, and return it; copies that end in it are completed."""
        done: list[_ReplicaCopy] = []
        for copy in self._copies:
            if copy.remaining_s <= duration_s:
                done.append(copy)
            else:
                copy.remaining_bytes *= 1 - duration_s / copy.remaining_s
        if done:
            self._copies = [copy for copy in self._copies if copy.remaining_s > duration_s]
            left = {copy.key for copy in self._copies}
            for key in {copy.key for copy in done} - left:
                self._complete(key)
        return duration_s

    def _complete(self, key: Key) -> None:
        step, partition = self._started.pop(key), self._partitions[key]
        self._flight.partitions -= 1
        self._flight.size_bytes -= step.size_bytes
        self._flight.of_broker.subtract(step.brokers)
        if frozenset(step.target) == frozenset(self._moves[key].after):
            return
        leader = partition.leader if partition.leader in step.target else step.target[0]
        self.add_waiting(
            key, replace(partition, replicas=step.target, isr=step.target, leader=leader, adding=(), removing=())
        )


def forecast_s(
    plan: ReassignmentPlan,
    statuses: Mapping[Key, MoveStatus],
    topics: Mapping[str, KafkaTopic],
    copied: Mapping[tuple[str, int, int], int],
    pace: PaceSettings,
    rate_bytes_per_s: float,
) -> float | None:
    """Time until the plan is done, at the present pace; None: too many partitions are open."""
    moves = {move.key: move for move in plan.moves}
    open_keys = [key for key, status in statuses.items() if status.state not in _OVER]
    if len(open_keys) > FORECAST_PARTITIONS_MAX:
        return None
    remaining = _RemainingPlan(moves, pace, rate_bytes_per_s)
    for key in open_keys:
        partition = topics[key[0]].partitions[key[1]]
        if statuses[key].state is MoveState.MOVING:
            remaining.add_in_flight(key, partition, copied)
        else:
            remaining.add_waiting(key, partition)
    return remaining.simulate_s()
