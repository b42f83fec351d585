"""Plan of a rebalance: moves with sizes and reasons, goals and brokers before and after; and units of goals, for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from loaddata.samples.partitions import CPU_UNITS
from shedders.model.amounts import count, rate, size

FORMAT = "partition-plan/1"


class GoalStatus(StrEnum):
    """Status of a goal at the end of a plan."""

    MET = "met"
    IMPROVED = "improved"
    UNMET = "unmet"
    INFEASIBLE = "infeasible"
    NO_DATA = "no-data"
    NOT_REACHED = "not-reached"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalSpread:
    """Distribution of a goal's measure over its cells (brokers, or topics and brokers), before or after.

    Attributes:
        violations: Cells (brokers, topic and broker, partitions) outside of the goal's range.
        excess: Sum of their distances from the range, in the goal's unit; later goals never make it larger.
        low: Least value of a cell. high: largest. mean, std: over the cells.
        furthest: Largest distance of a cell from the range.
    """

    violations: int
    excess: int
    low: float
    high: float
    mean: float
    std: float
    furthest: int = 0

    def is_worse_than(self, other: GoalSpread) -> bool:
        """Whether cells are further from the range, in sum or at most."""
        return self.excess > other.excess or self.furthest > other.furthest


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalOutcome:
    """Result of one goal.

    Attributes:
        hard: Whether `apply` refuses a plan that does not meet it, unless it is accepted explicitly.
        unit: Of its measure: replicas, leaders, partitions, bytes, bytes/s, millionths of CPU.
        range_share: Requested threshold.
        before: At the beginning of the plan.
        after: At its end.
        moves: Steps of this goal in the search.
        witness: Where it is not met: broker or partition, with figures, and why no move helps.
        worsened_by: Names of the goals that made it worse than before, most first; empty: it is not worse.
    """

    name: str
    hard: bool
    unit: str
    range_share: float
    status: GoalStatus
    before: GoalSpread | None = None
    after: GoalSpread | None = None
    moves: int = 0
    took_s: float = field(default=0.0, compare=False)
    witness: str = ""
    worsened_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMove:
    """Change of one partition.

    Attributes:
        after: Planned replicas in order; the first becomes leader.
        leader_after: Planned leader.
        size_bytes: Size of one replica; None: unknown. Copied bytes are `size_bytes` times the new brokers.
        goals: Names of the goals that moved it.
    """

    topic: str
    partition: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    leader_before: int | None
    leader_after: int
    size_bytes: int | None
    goals: tuple[str, ...]

    @property
    def key(self) -> tuple[str, int]:
        return self.topic, self.partition

    @property
    def added(self) -> tuple[int, ...]:
        return tuple(broker for broker in self.after if broker not in self.before)

    @property
    def removed(self) -> tuple[int, ...]:
        return tuple(broker for broker in self.before if broker not in self.after)

    @property
    def copied_bytes(self) -> int:
        return (self.size_bytes or 0) * len(self.added)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirMove:
    """Move of a replica between log directories of its broker.

    Attributes:
        broker: Broker that holds the replica, or gets it by a move of the same plan.
        replicas: Planned replicas of the partition, in order.
        before: Directory that it is in; None: the plan brings it to the broker.
        after: Directory that it is to be in.
    """

    topic: str
    partition: int
    broker: int
    replicas: tuple[int, ...]
    before: str | None
    after: str
    size_bytes: int

    @property
    def key(self) -> tuple[str, int, int]:
        return self.topic, self.partition, self.broker

    @property
    def copied_bytes(self) -> int:
        """None are copied for a replica that comes from another broker."""
        return 0 if self.before is None else self.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFigures:
    """Load of one broker, before or after. Bytes in and out are those of its leaders (clients); None: unknown."""

    replicas: int
    leaders: int
    disk_bytes: int | None
    bytes_in_per_s: int | None
    bytes_out_per_s: int | None
    cpu: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerChange:
    """One broker before and after, with incoming and outgoing data."""

    id: int
    rack: str | None
    alive: bool
    before: BrokerFigures
    after: BrokerFigures
    replicas_in: int
    replicas_out: int
    bytes_in: int
    bytes_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignmentPlan:
    """The whole plan. Equal inputs give equal plans: `id` is a digest of the moves, times are not compared.

    Attributes:
        id: Digest of cluster, layout and moves, 16 hex digits.
        layout: Fingerprint of the assignment that it starts from.
        topic_ids: Ids of its topics, so that a topic that was created again is noticed.
        request: Request as JSON.
        moves: In order of topic and partition.
        dir_moves: Moves between log directories, in order of topic, partition and broker.
        complete: False: the time, move or byte budget ended the search; `remarks` has which.
    """

    id: str
    cluster_id: str
    layout: str
    topic_ids: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    made_at_ms: int = field(default=0, compare=False)
    request: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    goals: tuple[GoalOutcome, ...] = ()
    brokers: tuple[BrokerChange, ...] = ()
    moves: tuple[PartitionMove, ...] = ()
    dir_moves: tuple[LogDirMove, ...] = ()
    complete: bool = True
    remarks: tuple[str, ...] = ()
    took_s: float = field(default=0.0, compare=False)

    @property
    def copied_bytes(self) -> int:
        return sum(move.copied_bytes for move in self.moves)

    @property
    def dir_bytes(self) -> int:
        return sum(move.copied_bytes for move in self.dir_moves)

    @property
    def empty(self) -> bool:
        return not self.moves and not self.dir_moves

    @property
    def gain_share(self) -> float:
        """Largest share that it removes of the excess of one of its goals."""
        spreads = ((goal.before, goal.after) for goal in self.goals)
        return max(
            (1 - after.excess / before.excess for before, after in spreads if before and after and before.excess),
            default=0.0,
        )

    @property
    def infeasible(self) -> tuple[GoalOutcome, ...]:
        """Hard goals that are not met, so that `apply` refuses the plan.

        A mode with few allowed moves (add-brokers, demote) is not refused for violations that existed before and got no worse:
        these are unmet, or improved.
        """
        refused = {GoalStatus.INFEASIBLE, GoalStatus.NOT_REACHED}
        return tuple(goal for goal in self.goals if goal.hard and goal.status in refused)


def amount(value: float, unit: str) -> str:
    """A value without the name of its unit of count: `33.0 MB`, `12`, `31.4%`."""
    if unit == "bytes":
        return size(value)
    if unit == "bytes/s":
        return rate(value)
    if unit == "millionths of CPU":
        return f"{value / CPU_UNITS:.1%}"
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.2f}"


def compared(value: int, bound: int, unit: str) -> tuple[str, str]:
    """A value with its unit, and its bound: exact if both would read the same."""
    text, other = amount(value, unit), amount(bound, unit)
    if text == other:
        return f"{value} {unit}", str(bound)
    if unit == "millionths of CPU":
        return f"{text} of CPU", other
    return (count(value, unit.removesuffix("s")) if text == str(value) else text), other
