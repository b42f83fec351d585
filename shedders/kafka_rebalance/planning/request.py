"""What a plan is asked for: the document's inputs, and the modes and bounds beyond it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from shedders.kafka_rebalance.planning.capacity import Capacities


class PlanMode(StrEnum):
    """Why replicas may move at all, and between which brokers."""

    REBALANCE = "rebalance"
    ADD_BROKERS = "add-brokers"
    REMOVE_BROKERS = "remove-brokers"
    DEMOTE = "demote"
    FIX_OFFLINE = "fix-offline"
    REPLICATION_FACTOR = "replication-factor"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalChoice:
    """One goal with its range. `range_share` 0.1: each broker between 90 % and 110 % of the mean; None: the goal's own.

    For limits (hard goals of capacity) it is the part of the capacity that may be used.
    """

    name: str
    range_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """All inputs of a plan beside cluster and loads; the same inputs give the same plan.

    Attributes:
        mode: What is asked for.
        goals: In order; empty: the mode's own.
        brokers: Ids among which replicas may be placed (the broker range); empty: all that are alive.
        subjects: The brokers that the mode is about: new ones, those that go, those to be demoted.
        offline_brokers: Brokers that are going offline: nothing is placed there and what is there leaves, in any mode.
        excluded_topics: Patterns (RE2, whole name) of topics whose replicas stay (the blacklist).
        topics: Patterns of the topics that may be moved; empty: all that are not excluded.
        replication_factor: The wanted one, for the mode of that name.
        replicas_max: Limit of replicas on a broker, for `replica-capacity`.
        capacities: What brokers can carry.
        moves_max: Most replica moves of the plan; None: no bound.
        bytes_max: Most bytes to be copied; None: no bound.
        time_budget_s: Longest search; then the best plan so far is given, and says so.
        completeness_min: Loads of partitions with less of the window measured are taken for unknown.
    """

    mode: PlanMode = PlanMode.REBALANCE
    goals: tuple[GoalChoice, ...] = ()
    brokers: tuple[int, ...] = ()
    subjects: tuple[int, ...] = ()
    offline_brokers: tuple[int, ...] = ()
    excluded_topics: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    replication_factor: int | None = None
    replicas_max: int | None = None
    capacities: Capacities = field(default_factory=Capacities)
    moves_max: int | None = None
    bytes_max: int | None = None
    time_budget_s: float | None = None
    completeness_min: float = 0.0
