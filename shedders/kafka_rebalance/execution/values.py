"""Inputs, effects and events of the execution's state machine, and the state that the events fold to, as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from loaddata.samples.partitions import ClusterLayout, KafkaPartition, KafkaTopic

Key = tuple[str, int]
"""Topic and partition."""
ReplicaKey = tuple[str, int, int]
"""Topic, partition and broker."""
Resource = tuple[str, str]
"""Resource with configuration: ("broker", id) or ("topic", name)."""
Configs = Mapping[Resource, Mapping[str, str | None]]


def named(key: Key) -> str:
    return f"{key[0]}-{key[1]}"


def replica_text(key: ReplicaKey) -> str:
    return f"{named(key[:2])} on broker {key[2]}"


class ExecutionRequest(StrEnum):
    """Request of an operator to an execution."""

    GO = "go"
    PAUSE = "pause"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRequests:
    """Newest requests of operators.

    Attributes:
        throttle_changed: Whether the throttle was changed since the execution began.
        throttle_bytes_per_s: New throttle in that case; None: no throttle.
    """

    request: ExecutionRequest = ExecutionRequest.GO
    throttle_changed: bool = False
    throttle_bytes_per_s: int | None = None
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaDir:
    """Log directory of a replica; empty: the broker does not have it. `future_path`: where it is being copied to."""

    path: str = ""
    size_bytes: int = 0
    future_path: str = ""
    future_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Observation of the cluster. Observations may be stale or contradict each other, so problems must last to count.

    Attributes:
        topics: The plan's topics that exist, with their partitions as they are now (`adding`, `removing` of reassignments).
        foreign: Reassignments of partitions that the plan does not move, with the brokers that they add and remove.
        urps: All under-replicated partitions of the cluster; None: not read this time.
        copied: Bytes of replicas that are being added, and of their leaders, by topic, partition and broker; None: not read
            this time.
        configs: Throttle settings of the brokers and topics of the plan; None: not read this time.
        dirs: Log directories of the plan's replicas that change them, of brokers that answer; None: not read this time.
        layout: The whole cluster; None: not read this time.
        replaced_by: Other executor that has taken over the plan; empty: none.
    """

    cluster_id: str
    alive: frozenset[int]
    topics: Mapping[str, KafkaTopic]
    foreign: Mapping[Key, frozenset[int]] = field(default_factory=lambda: MappingProxyType({}))
    urps: frozenset[Key] | None = None
    copied: Mapping[tuple[str, int, int], int] | None = None
    configs: Configs | None = None
    dirs: Mapping[ReplicaKey, ReplicaDir] | None = None
    layout: ClusterLayout | None = None
    asked: OperatorRequests = field(default_factory=OperatorRequests)
    replaced_by: str = ""

    def partition(self, key: Key) -> KafkaPartition | None:
        topic = self.topics.get(key[0])
        if topic is None or key[1] >= len(topic.partitions):
            return None
        return topic.partitions[key[1]]

    def at(self, key: Key) -> KafkaPartition:
        return self.topics[key[0]].partitions[key[1]]


class CallOutcome(StrEnum):
    """Result of a call."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    UNKNOWN = "unknown"


# --- effects ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalWrite:
    """Write an event to the journal before later effects are performed."""

    event: str
    facts: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class SetConfigs:
    """Set configuration (None: delete it) of brokers and topics."""

    changes: Configs


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Request new replica lists from Kafka."""

    targets: Mapping[Key, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Elect:
    """Elect preferred leaders."""

    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdraw:
    """Cancel reassignments in flight."""

    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveDirs:
    """Request log directories of replicas from their brokers; `arriving`: of replicas that they will get."""

    targets: Mapping[ReplicaKey, str]
    arriving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionEnd:
    """End of the execution; no step follows."""

    stop: ExecutionStop
    throttles_left: tuple[Resource, ...] = ()


Effect = JournalWrite | SetConfigs | Submit | Elect | Withdraw | MoveDirs | ExecutionEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAnswer:
    """Result of an effect; `refused`: reasons by partition, by replica, or by resource."""

    outcome: CallOutcome
    refused: Mapping[Key | ReplicaKey | Resource, str] = field(default_factory=lambda: MappingProxyType({}))
    reason: str = ""


class StopKind(StrEnum):
    """Kind of an execution's end."""

    DONE = "done"
    UNMET = "unmet"
    CANCELLED = "cancelled"
    BROKER_AWAY = "broker-away"
    BROKERS_VANISHED = "brokers-vanished"
    CHANGED = "changed"
    URPS = "under-replicated"
    STALLED = "stalled"
    REFUSED = "refused"
    HELD = "held"
    THROTTLE_REMOVED = "throttle-removed"
    OTHER_CLUSTER = "other-cluster"
    REPLACED = "replaced"
    KAFKA_AWAY = "kafka-away"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionStop:
    """Reason of an execution's end, and the next step, as sentences for people."""

    kind: StopKind
    reason: str = ""
    hint: str = ""

    @property
    def good(self) -> bool:
        return self.kind in {StopKind.DONE, StopKind.CANCELLED}


class ExecutionEvent(StrEnum):
    """Name of an event of the journal."""

    BEGUN = "begun"
    BATCH = "batch"
    MOVED = "moved"
    REFUSED = "refused"
    THROTTLE = "throttle"
    UNTHROTTLED = "unthrottled"
    PAUSED = "paused"
    RESUMED = "resumed"
    CANCELLING = "cancelling"
    PACE = "pace"
    PROGRESS = "progress"
    OUTPACED = "outpaced"
    REMARK = "remark"
    STOPPING = "stopping"
    ENDED = "ended"


def resource_text(resource: Resource) -> str:
    """A broker or topic as one word of JSON."""
    return f"{resource[0]}/{resource[1]}"


def resource_of(text: str) -> Resource:
    """The inverse."""
    kind, _, name = text.partition("/")
    return kind, name


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressMark:
    """Bytes that were copied at a time.

    Attributes:
        busy_s: Sum of the time in which copies had a whole broker's rate each; two copies into one broker share one.
    """

    at_ms: int
    bytes_done: int
    busy_s: float = 0.0


@dataclass(slots=True)
class ExecutionHistory:
    """State folded from events: all that the cluster itself does not show.

    Events of an unknown name, from a newer version, are ignored.

    Attributes:
        begun: How often an executor has started or continued.
        began_at_ms: Time of the first start. A plan that was done and is executed again, after a rollback, begins again.
        done_at_ms: Time at which it was done; a later executor that finds nothing to move does not change it.
        dirs_moved: Replicas that are in their planned directories.
        throttle_before: Throttle settings of brokers and topics before the execution, until they are restored.
        rate: Rate in force; None: no throttle.
        throttle_asked: Whether the newest executor was asked for its rate, so that it replaces those that others have set.
        pace: Newest requested value of each setting of the pace.
        paused: Whether the plan is paused.
        state: Newest of begun, paused, cancelling, stopping, ended.
        stop: Kind, reason and hint of the end, if it has ended.
        marks: Marks of the progress since the executor, the throttle or a pause has last changed.
        first_mark: First mark since `began_at_ms`.
        outpaced: Partitions that are written faster than they are copied.
    """

    begun: int = 0
    executor: str = ""
    began_at_ms: int = 0
    done_at_ms: int = 0
    batches: int = 0
    moved: set[Key] = field(default_factory=set)
    dirs_moved: set[ReplicaKey] = field(default_factory=set)
    refused: dict[Key, str] = field(default_factory=dict)
    throttle_before: dict[Resource, dict[str, str | None]] = field(default_factory=dict)
    rates: set[str] = field(default_factory=set)
    rate: int | None = None
    throttle_asked: bool = False
    pace: dict[str, Any] = field(default_factory=dict)
    state: str = ""
    stop: Mapping[str, str] | None = None
    ended_at_ms: int = 0
    newest_at_ms: int = 0
    marks: list[ProgressMark] = field(default_factory=list)
    first_mark: ProgressMark | None = None
    remarks: list[str] = field(default_factory=list)
    outpaced: set[Key] = field(default_factory=set)
    _started_at_ms: int = 0

    def take(self, event: Mapping[str, Any]) -> None:  # noqa: C901, PLR0912, PLR0915 - one case per event
        at_ms = int(event.get("at_ms", 0))
        self.newest_at_ms = max(self.newest_at_ms, at_ms)
        match event.get("event"):
            case ExecutionEvent.BEGUN:
                self.begun += 1
                self.executor = str(event.get("executor", ""))
                self.began_at_ms = self.began_at_ms or at_ms
                self._started_at_ms = at_ms
                self.state, self.stop, self.ended_at_ms = ExecutionEvent.BEGUN, None, 0
                self.refused.clear()
                self.marks.clear()
                self.outpaced.clear()
                self.pace.update(event.get("pace") or {})
                self.throttle_asked = bool(event.get("throttle_asked"))
            case ExecutionEvent.BATCH:
                self.batches = max(self.batches, int(event["batch"]))
                if self.done_at_ms:
                    self.began_at_ms, self.done_at_ms = self._started_at_ms, 0
                    self.first_mark = self.marks[0] if self.marks else None
                    self.moved.clear()
                    self.dirs_moved.clear()
            case ExecutionEvent.MOVED:
                self.moved.update((str(topic), int(partition)) for topic, partition in event["partitions"])
                dirs = event.get("dirs", ())
                self.dirs_moved.update((str(topic), int(number), int(broker)) for topic, number, broker in dirs)
            case ExecutionEvent.REFUSED:
                self.refused[str(event["topic"]), int(event["partition"])] = str(event["reason"])
            case ExecutionEvent.THROTTLE:
                for text, settings in event["before"].items():
                    # The first are the settings of others; later ones may be those of an executor that crashed.
                    self.throttle_before[resource_of(text)] = settings | self.throttle_before.get(resource_of(text), {})
                self.rate = event["rate"]
                self.rates.add(str(event["rate"]))
            case ExecutionEvent.UNTHROTTLED:
                for text in event["resources"]:
                    self.throttle_before.pop(resource_of(text), None)
                if not self.throttle_before:
                    self.rate = None
            case ExecutionEvent.RESUMED:
                self.state = ExecutionEvent.BEGUN
                self.marks.clear()
            case ExecutionEvent.PAUSED | ExecutionEvent.CANCELLING | ExecutionEvent.STOPPING:
                self.state = str(event["event"])
            case ExecutionEvent.PACE:
                self.pace.update(event["pace"])
                self.marks.clear()
                self.outpaced.clear()
            case ExecutionEvent.OUTPACED:
                self.outpaced = {(str(topic), int(partition)) for topic, partition in event["partitions"]}
            case ExecutionEvent.PROGRESS:
                mark = ProgressMark(
                    at_ms=int(event.get("at_ms", 0)), bytes_done=int(event["bytes_done"]), busy_s=float(event["busy_s"])
                )
                self.marks.append(mark)
                self.first_mark = self.first_mark or mark
            case ExecutionEvent.REMARK:
                self.remarks.append(str(event["text"]))
            case ExecutionEvent.ENDED:
                self.state = ExecutionEvent.ENDED
                self.stop = {name: str(event.get(name, "")) for name in ("kind", "reason", "hint")}
                self.ended_at_ms = at_ms
                if self.stop["kind"] == StopKind.DONE:
                    self.done_at_ms = self.done_at_ms or at_ms


def recorded(events: Iterable[Mapping[str, Any]]) -> ExecutionHistory:
    history = ExecutionHistory()
    for event in events:
        history.take(event)
    return history
