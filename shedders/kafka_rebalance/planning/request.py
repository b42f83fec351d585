"""Request of a plan: mode, goals, brokers, topics and bounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from shedders.kafka_rebalance.planning.capacity import Capacities


class PlanMode(StrEnum):
    """Purpose of a plan, which restricts the moves and brokers."""

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
    """All inputs of a plan other than layout and loads; the same inputs give the same plan.

    Attributes:
        mode: Purpose of the plan.
        goals: Goals in order; empty: those of the mode.
        brokers: Ids of brokers that may get replicas (the broker range); empty: all live brokers.
        subjects: Brokers of the mode: to be added, removed or demoted.
        offline_brokers: Brokers going offline: they get no replicas and lose theirs, in any mode.
        excluded_topics: Patterns (RE2, whole name) of topics whose replicas stay (the blacklist).
        topics: Patterns of topics that may move; empty: all that are not excluded.
        replication_factor: New replication factor, for the mode of that name.
        replicas_max: Limit of replicas on a broker, for `replica-capacity`.
        capacities: Capacities of brokers.
        moves_max: Most replica moves of the plan; None: no bound.
        bytes_max: Most bytes to copy; None: no bound.
        time_budget_s: Time limit of the search; then the best plan so far is returned, marked incomplete.
        completeness_min: Least measured share of the window; other loads are treated as unknown.
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
