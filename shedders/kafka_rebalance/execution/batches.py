"""Selection of the next partitions to move: bounds per broker, per cluster and in bytes; under-replicated ones first.

The document's parallelism: of a partition that goes from [10, 11] to [10, 11, 15], broker 10 counts one (its leader is read from)
and broker 15 counts one. Here each broker that a partition adds to, removes from or is copied from counts it once.
Bounds as of Cruise Control's executor (`num.concurrent.partition.movements.per.broker`, `max.num.cluster.partition.movements`),
and bytes beyond that: many small partitions and few large ones need different bounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shedders.kafka_rebalance.execution.values import Key
    from shedders.kafka_rebalance.settings import PaceSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStep:
    """One partition that may be moved next, or is in flight.

    Attributes:
        key: Topic and partition.
        target: Replicas to request.
        brokers: Brokers whose parallelism it counts for.
        size_bytes: Known bytes to copy.
        under_replicated: It goes first.
        number: Position in the plan.
    """

    key: Key
    target: tuple[int, ...]
    brokers: frozenset[int]
    size_bytes: int
    under_replicated: bool = False
    number: int = 0


@dataclass(slots=True)
class InFlight:
    """Moves in flight."""

    partitions: int = 0
    size_bytes: int = 0
    of_broker: Counter[int] = field(default_factory=Counter)

    def take(self, brokers: Iterable[int], size_bytes: int) -> None:
        """Add a move."""
        self.partitions += 1
        self.size_bytes += size_bytes
        self.of_broker.update(brokers)


def concerned(leader: int | None, now: Sequence[int], target: Sequence[int]) -> frozenset[int]:
    """Brokers whose parallelism a partition counts for: destinations, sources, and the leader that is copied from."""
    added = frozenset(target) - frozenset(now)
    removed = frozenset(now) - frozenset(target)
    source = frozenset(() if leader is None or not added else (leader,))
    return added | removed | source


def in_order(steps: Iterable[PartitionStep], order: str) -> list[PartitionStep]:
    """Under-replicated partitions first, then by `order`: by size, or as in the plan."""
    sign = {"small-first": 1, "large-first": -1}.get(order, 0)
    return sorted(steps, key=lambda step: (not step.under_replicated, sign * step.size_bytes, step.number))


def choose(steps: Sequence[PartitionStep], flight: InFlight, pace: PaceSettings) -> list[PartitionStep]:
    """Partitions to move now, in order; one that does not fit does not block later ones. They are added to `flight`.

    A partition that is larger than the bound of bytes is moved when no other copy is in flight.
    """
    chosen: list[PartitionStep] = []
    for step in steps:
        if flight.partitions >= pace.moves_max:
            break
        if any(flight.of_broker[broker] >= pace.moves_per_broker for broker in step.brokers):
            continue
        if flight.size_bytes and flight.size_bytes + step.size_bytes > pace.bytes_in_flight:
            continue
        flight.take(step.brokers, step.size_bytes)
        chosen.append(step)
    return chosen
