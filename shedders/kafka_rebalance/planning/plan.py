"""A plan: what moves from where to where, why, how much it is, and how far each goal is met before and after."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = "partition-plan/1"


class GoalStatus(StrEnum):
    """How a goal stands at the end of a plan."""

    MET = "met"
    IMPROVED = "improved"
    UNMET = "unmet"
    INFEASIBLE = "infeasible"
    NO_DATA = "no-data"
    NOT_REACHED = "not-reached"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalSpread:
    """One goal's measure over the brokers that count (or topics and brokers): before or after.

    Attributes:
        violations: Cells (brokers, topic and broker, partitions) outside of the goal's range.
        excess: Sum of their distances from the range, in the goal's unit; later goals never make it larger.
        low: Least value of a cell. high: largest. mean, std: over the cells.
    """

    violations: int
    excess: int
    low: float
    high: float
    mean: float
    std: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalOutcome:
    """One goal's result.

    Attributes:
        name: Of the goal.
        hard: Whether a plan that does not meet it is refused by `apply` unless that is asked for.
        unit: Of its measure: replicas, leaders, partitions, bytes, bytes/s, millionths of CPU.
        range_share: The threshold that it was asked with.
        status: See `GoalStatus`.
        before: At the beginning of the plan.
        after: At its end.
        moves: Steps that this goal made in the search.
        took_s: Time of the search; not part of what is compared between equal plans.
        witness: Where it is not met: which broker or partition, with figures, and why nothing helps.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMove:
    """What becomes of one partition.

    Attributes:
        topic: Name.
        partition: Number.
        before: Replicas in order, as they are.
        after: Replicas in order, as they are to be; the first is to lead.
        leader_before: Who leads now; None: nobody.
        leader_after: Who is to lead.
        size_bytes: Of one replica; None: not known. Copied are `size_bytes` times the brokers that are new.
        goals: Names of the goals that made it move.
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
    def added(self) -> tuple[int, ...]:
        """Brokers that get a replica."""
        return tuple(broker for broker in self.after if broker not in self.before)

    @property
    def removed(self) -> tuple[int, ...]:
        """Brokers that lose one."""
        return tuple(broker for broker in self.before if broker not in self.after)

    @property
    def copied_bytes(self) -> int:
        """Bytes that are copied, as far as known."""
        return (self.size_bytes or 0) * len(self.added)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFigures:
    """One broker, before or after. Bytes in and out are its leaders' (clients); None where no load of it is known."""

    replicas: int
    leaders: int
    disk_bytes: int | None
    bytes_in_per_s: int | None
    bytes_out_per_s: int | None
    cpu: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerChange:
    """One broker before and after, and what goes in and out."""

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
    """The whole plan. Equal inputs give equal plans: `id` is a digest of what it does, times are not compared.

    Attributes:
        id: Digest of cluster, layout and moves, 16 hex digits.
        cluster_id: Of the Kafka that it is for.
        layout: Fingerprint of the assignment that it starts from.
        topic_ids: Of each topic that it moves, so that one that was made anew is noticed.
        made_at_ms: Wall clock.
        request: What was asked for, as JSON.
        goals: Outcome of each, in order.
        brokers: Each broker before and after.
        moves: In order of topic and partition.
        complete: False: the time, move or byte budget ended the search, `remarks` says which.
        remarks: What was left out or guessed, as sentences.
        took_s: Of the search.
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
    complete: bool = True
    remarks: tuple[str, ...] = ()
    took_s: float = field(default=0.0, compare=False)

    @property
    def copied_bytes(self) -> int:
        """Bytes that carrying it out copies."""
        return sum(move.copied_bytes for move in self.moves)

    @property
    def infeasible(self) -> tuple[GoalOutcome, ...]:
        """Hard goals that the plan was to meet and does not: `apply` refuses it.

        A mode that may move little (add-brokers, demote) does not answer for what was out of range before and got no worse:
        that is unmet, or improved.
        """
        refused = {GoalStatus.INFEASIBLE, GoalStatus.NOT_REACHED}
        return tuple(one for one in self.goals if one.hard and one.status in refused)
