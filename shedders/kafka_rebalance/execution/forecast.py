"""Forecast of an execution's end: the rest of the plan played through, at a rate of each broker and direction. Pure.

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

FORECAST_MAX: Final = 400
"""Most open partitions that are played through, which takes their number squared; with more, a mean rate is nearly as good."""
_OVER: Final = frozenset({MoveState.DONE, MoveState.ELECT, MoveState.REORDER, *LOST})


@dataclass(slots=True)
class _Flow:
    """Copy of one replica."""

    key: Key
    source: int | None
    broker: int
    left_bytes: float
    of_s: float = 0.0


class _Rest:
    """What is left of a plan, with a clock of its own."""

    def __init__(self, moves: Mapping[Key, PartitionMove], pace: PaceSettings, rate: float) -> None:
        self._moves, self._pace, self._rate = moves, pace, rate
        self._flight = InFlight()
        self._flows: list[_Flow] = []
        self._partitions: dict[Key, KafkaPartition] = {}
        self._taken: dict[Key, PartitionStep] = {}
        self._waiting: list[PartitionStep] = []
        self._sorted = False
        self._numbers = {key: number for number, key in enumerate(moves)}

    def wait_for(self, key: Key, partition: KafkaPartition) -> None:
        """A partition that is not in flight."""
        self._partitions[key] = partition
        one_replica = self._pace.one_replica
        step = step_of(self._moves[key], partition, one_replica=one_replica, number=self._numbers[key])
        self._waiting.append(step)
        self._sorted = False

    def fly(self, key: Key, partition: KafkaPartition, copied: Mapping[tuple[str, int, int], int]) -> None:
        """A partition in flight."""
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

    def length_s(self) -> float:
        """Time until all of it is done."""
        now_s = 0.0
        self._choose()
        while self._flows:
            self._share()
            now_s += self._pass(min(flow.of_s for flow in self._flows))
            if self._waiting:
                # The executor sees what has arrived with its next look.
                behind_s = self._pace.poll_s - now_s % self._pace.poll_s
                self._share()
                now_s += self._pass(behind_s) if self._flows else behind_s
                self._choose()
        return now_s

    def _choose(self) -> None:
        if not self._sorted:
            self._waiting, self._sorted = in_order(self._waiting, self._pace.order), True
        chosen = choose(self._waiting, self._flight, self._pace)
        gone = {step.key for step in chosen}
        self._waiting = [step for step in self._waiting if step.key not in gone]
        for step in chosen:
            before = self._partitions[step.key].replicas
            size = self._moves[step.key].size_bytes or 0
            self._start(step, {broker: size for broker in step.target if broker not in before})

    def _start(self, step: PartitionStep, sizes: Mapping[int, int]) -> None:
        self._taken[step.key] = step
        source = self._partitions[step.key].leader
        # A move without data takes no time, but a turn.
        flows = [_Flow(step.key, source, broker, float(size)) for broker, size in sizes.items()]
        self._flows += flows or [_Flow(step.key, None, -1, 0.0)]

    def _share(self) -> None:
        into = Counter(flow.broker for flow in self._flows)
        out = Counter(flow.source for flow in self._flows)
        for flow in self._flows:
            sharing = max(into[flow.broker], 1 if flow.source is None else out[flow.source])
            flow.of_s = flow.left_bytes * sharing / self._rate

    def _pass(self, length_s: float) -> float:
        """Let time pass at the present shares, to the end of copies at most; return it."""
        gone: list[_Flow] = []
        for flow in self._flows:
            if flow.of_s <= length_s:
                gone.append(flow)
            else:
                flow.left_bytes *= 1 - length_s / flow.of_s
        if gone:
            self._flows = [flow for flow in self._flows if flow.of_s > length_s]
            left = {flow.key for flow in self._flows}
            for key in {flow.key for flow in gone} - left:
                self._arrive(key)
        return length_s

    def _arrive(self, key: Key) -> None:
        step, partition = self._taken.pop(key), self._partitions[key]
        self._flight.partitions -= 1
        self._flight.size_bytes -= step.size_bytes
        self._flight.of_broker.subtract(step.brokers)
        if frozenset(step.target) == frozenset(self._moves[key].after):
            return
        leader = partition.leader if partition.leader in step.target else step.target[0]
        self.wait_for(
            key, replace(partition, replicas=step.target, isr=step.target, leader=leader, adding=(), removing=())
        )


def forecast_s(
    plan: ReassignmentPlan,
    stands: Mapping[Key, MoveStatus],
    topics: Mapping[str, KafkaTopic],
    copied: Mapping[tuple[str, int, int], int],
    pace: PaceSettings,
    rate_bytes_per_s: float,
) -> float | None:
    """Time until the plan is done, if it goes on as now; None: too many partitions are open.

    Args:
        stands: State of each planned partition.
        topics: Present topics.
        copied: Known bytes of replicas in flight and of their leaders.
        pace: Bounds and order of the execution.
        rate_bytes_per_s: Rate of a broker in each direction.
    """
    moves = {move.key: move for move in plan.moves}
    open_keys = [key for key, stand in stands.items() if stand.state not in _OVER]
    if len(open_keys) > FORECAST_MAX:
        return None
    rest = _Rest(moves, pace, rate_bytes_per_s)
    for key in open_keys:
        partition = topics[key[0]].partitions[key[1]]
        if stands[key].state is MoveState.MOVING:
            rest.fly(key, partition, copied)
        else:
            rest.wait_for(key, partition)
    return rest.length_s()
