"""What the autopilot sees, remembers and decides, as plain values; and its memory as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from shedders.kafka_rebalance.execution.values import ExecutionRequest, Key, StopKind, named

if TYPE_CHECKING:
    from loaddata.samples.partitions import ClusterLayout
    from shedders.kafka_rebalance.planning.plan import ReassignmentPlan
    from shedders.kafka_rebalance.settings import WatchSettings

# --- observations -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterHealth:
    """Health of a cluster at one look.

    Attributes:
        alive: Brokers that are up.
        holders: Brokers that replica lists name.
        under_replicated: Partitions with a replica that is not in sync; replicas that a reassignment adds do not count.
        reassigning: Partitions with a reassignment under way.
    """

    cluster_id: str
    alive: frozenset[int]
    holders: frozenset[int]
    under_replicated: tuple[Key, ...] = ()
    reassigning: tuple[Key, ...] = ()


def health_of(layout: ClusterLayout) -> ClusterHealth:
    """Health, as a layout shows it."""
    holders: set[int] = set()
    under, moving = [], []
    for topic, partition in layout.partitions():
        holders |= set(partition.replicas)
        key = (topic.name, partition.partition)
        if set(partition.replicas) - set(partition.adding) - set(partition.isr) or partition.leader is None:
            under.append(key)
        if partition.in_motion:
            moving.append(key)
    return ClusterHealth(
        cluster_id=layout.cluster_id,
        alive=frozenset(broker.id for broker in layout.brokers if broker.alive),
        holders=frozenset(holders),
        under_replicated=tuple(under),
        reassigning=tuple(moving),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchProposal:
    """A plan, as far as its execution depends on it.

    Attributes:
        copied_bytes: Bytes that it copies, between brokers and between log directories.
        keys: Partitions that it moves.
        unknown_sizes: Moves of partitions whose size is unknown.
        unmet: Hard goals for which `apply` would refuse it.
        gain_share: Largest share that it removes of the excess of a goal.
        excess_left: Whether goals are further from their range than planned for.
        cut: Whether bounds of the request (bytes, replicas, time) left out moves.
    """

    plan_id: str
    copied_bytes: int
    keys: tuple[Key, ...]
    unknown_sizes: int = 0
    unmet: tuple[str, ...] = ()
    gain_share: float = 1.0
    excess_left: bool = False
    cut: bool = False


def proposal_of(plan: ReassignmentPlan) -> WatchProposal:
    """The figures of a plan."""
    gains, left = [0.0], False
    for goal in plan.goals:
        if goal.before is not None and goal.after is not None and goal.before.excess > 0:
            gains.append((goal.before.excess - goal.after.excess) / goal.before.excess)
            left = left or goal.after.excess > 0
    return WatchProposal(
        plan_id=plan.id,
        copied_bytes=plan.copied_bytes + plan.dir_bytes,
        keys=tuple(
            sorted({move.key for move in plan.moves} | {(move.topic, move.partition) for move in plan.dir_moves})
        ),
        unknown_sizes=sum(move.size_bytes is None and bool(move.added) for move in plan.moves),
        unmet=tuple(goal.name for goal in plan.infeasible),
        gain_share=max(gains),
        excess_left=left,
        cut=not plan.complete,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchObservation:
    """All that one step of the autopilot depends on.

    Attributes:
        health: None: the cluster could not be read.
        trouble: Why not, as a sentence.
        proposal: Plan made for the bounds that the last step asked for; None: none was asked for yet.
        moved_elsewhere: When plans of operators have moved partitions, as far as the topic of executions has them.
        foreign_executor: Executor of another plan, or of the autopilot's plan elsewhere, as text for people; empty: none.
        driving: Whether this process executes the autopilot's plan now.
        paused: Whether that execution is paused.
        ended: Kind of end of the autopilot's execution, by this process or as recorded; None: it has not ended.
        end_reason: Its reason, as a sentence.
        plan_lost: Whether the plan of the execution is found nowhere.
    """

    health: ClusterHealth | None
    trouble: str = ""
    proposal: WatchProposal | None = None
    moved_elsewhere: Mapping[Key, int] = field(default_factory=lambda: MappingProxyType({}))
    foreign_executor: str = ""
    driving: bool = False
    paused: bool = False
    ended: StopKind | None = None
    end_reason: str = ""
    plan_lost: bool = False


# --- memory -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """Bytes of one plan. `to_ms`: when its execution ended; None: it has not."""

    plan_id: str
    from_ms: int
    to_ms: int | None
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedExecution:
    """Execution that the autopilot has begun and not finished.

    Attributes:
        attempts: How often it has stopped.
        retry_at_ms: It is not continued before.
        paused: Whether the autopilot has paused it.
        giving_up: Whether it is to be cancelled.
    """

    plan_id: str
    began_at_ms: int
    keys: tuple[Key, ...]
    attempts: int = 0
    retry_at_ms: int = 0
    paused: bool = False
    giving_up: bool = False


class BlockKind(StrEnum):
    """Why the autopilot starts no new plan for a while."""

    CANCELLED = "cancelled"
    GAVE_UP = "gave-up"


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldNote:
    """Present reason to hold, since when, and whether it was an alert."""

    code: str
    message: str
    since_ms: int
    alerted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchState:
    """Memory of the autopilot, kept in its topic.

    Attributes:
        looked_at_ms: Time of the last look; 0: none.
        brokers: Last time at which a broker was alive.
        troubled_at_ms: Last time at which brokers were missing or partitions under-replicated; 0: never.
        imbalanced_since_ms: First look of those that have seen the present imbalance; 0: none has.
        imbalance_seen_ms: Last of them.
        spent: Plans that count for the budget.
        moved: When partitions were moved, as far as they still rest.
        execution: Execution under way.
        blocked: Why no new plan is started until `blocked_until_ms`.
        proposal_id: Plan that was proposed last; empty: none.
        proposed_at_ms: Time of it.
        hold: Why nothing is started now; None: nothing holds it.
    """

    looked_at_ms: int = 0
    brokers: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    troubled_at_ms: int = 0
    imbalanced_since_ms: int = 0
    imbalance_seen_ms: int = 0
    spent: tuple[Spending, ...] = ()
    moved: Mapping[Key, int] = field(default_factory=lambda: MappingProxyType({}))
    execution: WatchedExecution | None = None
    blocked: BlockKind | None = None
    blocked_until_ms: int = 0
    proposal_id: str = ""
    proposed_at_ms: int = 0
    hold: HoldNote | None = None

    def spent_bytes(self, now_ms: int, window_s: float) -> int:
        """Bytes of plans that were under way at any time of the window before now, also those under way now.

        A plan counts until a window after its end, so no window has more bytes than were allowed at its last start.
        """
        from_ms = now_ms - round(window_s * 1_000)
        return sum(spent.size_bytes for spent in self.spent if spent.to_ms is None or spent.to_ms > from_ms)

    def left_bytes(self, now_ms: int, settings: WatchSettings) -> int:
        """Bytes that a plan may copy now."""
        return max(0, settings.budget_bytes - self.spent_bytes(now_ms, settings.budget_window_s))

    def resting(self, now_ms: int, cooldown_s: float) -> frozenset[Key]:
        """Partitions that were moved less than the cool-down ago."""
        return _recent(self.moved, now_ms, cooldown_s)

    def missing(self, health: ClusterHealth, now_ms: int, forget_s: float) -> tuple[frozenset[int], int]:
        """Brokers that are missing, and the number of all known ones."""
        since_ms = now_ms - round(forget_s * 1_000)
        known = (
            {broker for broker, seen_ms in self.brokers.items() if seen_ms > since_ms} | health.alive | health.holders
        )
        return frozenset(known - health.alive), len(known)

    def to_json(self) -> dict[str, Any]:
        """For the topic; `moved` by topic."""
        moved: dict[str, dict[str, int]] = {}
        for (topic, number), at_ms in sorted(self.moved.items()):
            moved.setdefault(topic, {})[str(number)] = at_ms
        document = asdict(replace(self, moved={}, brokers={}))
        return document | {"moved": moved, "brokers": {str(broker): seen for broker, seen in self.brokers.items()}}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> WatchState:
        """The inverse; unknown fields, of a newer version, are ignored.

        Raises:
            KeyError, TypeError, ValueError: It is not a state.
        """
        values = {name: document[name] for name in cls.__dataclass_fields__ if name in document}
        execution, hold, blocked = values["execution"], values["hold"], values["blocked"]
        values["execution"] = None if execution is None else _execution(execution)
        values["hold"] = None if hold is None else HoldNote(**_known(HoldNote, hold))
        values["blocked"] = None if blocked is None else BlockKind(blocked)
        values["spent"] = tuple(Spending(**_known(Spending, each)) for each in values["spent"])
        values["brokers"] = {int(broker): int(seen) for broker, seen in values["brokers"].items()}
        values["moved"] = {
            (topic, int(number)): int(at_ms) for topic, of in values["moved"].items() for number, at_ms in of.items()
        }
        return cls(**values)


def _recent(moved: Mapping[Key, int], now_ms: int, cooldown_s: float) -> frozenset[Key]:
    since_ms = now_ms - round(cooldown_s * 1_000)
    return frozenset(key for key, at_ms in moved.items() if at_ms > since_ms)


def resting_now(state: WatchState, seen: WatchObservation, now_ms: int, cooldown_s: float) -> frozenset[Key]:
    """Partitions that were moved less than the cool-down ago, by the autopilot or by operators."""
    return state.resting(now_ms, cooldown_s) | _recent(seen.moved_elsewhere, now_ms, cooldown_s)


def _known(kind: Any, document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: document[name] for name in kind.__dataclass_fields__ if name in document}


def _execution(document: Mapping[str, Any]) -> WatchedExecution:
    values = _known(WatchedExecution, document)
    values["keys"] = tuple((str(topic), int(number)) for topic, number in values["keys"])
    return WatchedExecution(**values)


# --- effects ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LookForPlan:
    """Plan within these bounds, and step again with the proposal."""

    bytes_max: int
    moves_max: int
    resting: frozenset[Key]


@dataclass(frozen=True, slots=True, kw_only=True)
class Propose:
    """Publish the plan as a file."""

    plan_id: str
    copied_bytes: int
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPlan:
    """Execute a plan, continue it, or cancel it, once the new state is in the topic."""

    plan_id: str
    request: ExecutionRequest
    begins: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PausePlan:
    """Pause the execution under way, or let it go on."""

    plan_id: str
    request: ExecutionRequest
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldBack:
    """Start nothing, for a reason."""

    code: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishPlan:
    """An execution is over."""

    plan_id: str
    end: StopKind
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RaiseAlert:
    """An operator is needed."""

    code: str
    message: str
    hint: str


WatchEffect = LookForPlan | Propose | StartPlan | PausePlan | HoldBack | FinishPlan | RaiseAlert


def examples(keys: tuple[Key, ...], most: int = 3) -> str:
    """Names of the first partitions, for people."""
    more = f" and {len(keys) - most} more" if len(keys) > most else ""
    return f"{', '.join(named(key) for key in keys[:most])}{more}"
