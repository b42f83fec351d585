"""Inputs and effects of the execution's state machine, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from loaddata.samples.layout import KafkaPartition, KafkaTopic

Key = tuple[str, int]
"""Topic and partition."""
Resource = tuple[str, str]
"""Resource with configuration: ("broker", id) or ("topic", name)."""
Configs = Mapping[Resource, Mapping[str, str | None]]


def named(key: Key) -> str:
    """Name of a partition, for people."""
    return f"{key[0]}-{key[1]}"


class ExecutionRequest(StrEnum):
    """Request of an operator to an execution."""

    GO = "go"
    PAUSE = "pause"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRequests:
    """Newest requests of operators.

    Attributes:
        wish: Go on, pause or cancel.
        throttle_changed: Whether the throttle was changed since the execution began.
        throttle_bytes_per_s: New throttle in that case; None: no throttle.
        by: Name of the operator.
    """

    wish: ExecutionRequest = ExecutionRequest.GO
    throttle_changed: bool = False
    throttle_bytes_per_s: int | None = None
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Observation of the cluster. Observations may be stale or contradict each other, so problems must last to count.

    Attributes:
        cluster_id: Of the Kafka that answered.
        alive: Brokers that are up.
        topics: The plan's topics that exist, with their partitions as they are now (`adding`, `removing` of reassignments).
        foreign: Reassignments of partitions that the plan does not move, with the brokers that they add and remove.
        urps: All under-replicated partitions of the cluster; None: not read this time.
        copied: Bytes of replicas that are being added, by topic, partition and broker; None: not read this time.
        configs: Throttle settings of the brokers and topics of the plan; None: not read this time.
        asked: Requests of operators.
        replaced_by: Other executor that has taken over the plan; empty: none.
    """

    cluster_id: str
    alive: frozenset[int]
    topics: Mapping[str, KafkaTopic]
    foreign: Mapping[Key, frozenset[int]] = field(default_factory=lambda: MappingProxyType({}))
    urps: frozenset[Key] | None = None
    copied: Mapping[tuple[str, int, int], int] | None = None
    configs: Configs | None = None
    asked: OperatorRequests = field(default_factory=OperatorRequests)
    replaced_by: str = ""

    def partition(self, key: Key) -> KafkaPartition | None:
        """One partition; None where it does not exist."""
        topic = self.topics.get(key[0])
        if topic is None or key[1] >= len(topic.partitions):
            return None
        return topic.partitions[key[1]]

    def at(self, key: Key) -> KafkaPartition:
        """One partition that is known to exist."""
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
    """Request new replica lists from Kafka. `batch`: number of the batch; 0: only the order changes."""

    batch: int
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
class ExecutionEnd:
    """End of the execution; no step follows."""

    stop: ExecutionStop
    throttles_left: tuple[Resource, ...] = ()


Effect = JournalWrite | SetConfigs | Submit | Elect | Withdraw | ExecutionEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAnswer:
    """Result of an effect; `refused`: reasons by partition, or by resource."""

    outcome: CallOutcome
    refused: Mapping[Key | Resource, str] = field(default_factory=lambda: MappingProxyType({}))
    reason: str = ""


class StopKind(StrEnum):
    """Kind of an execution's end."""

    DONE = "done"
    CANCELLED = "cancelled"
    BROKER_AWAY = "broker-away"
    BROKERS_VANISHED = "brokers-vanished"
    TOPIC_GONE = "topic-gone"
    CHANGED = "changed"
    URPS = "under-replicated"
    STALLED = "stalled"
    REFUSED = "refused"
    HELD = "held"
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
        """Whether the execution did what was requested."""
        return self.kind in {StopKind.DONE, StopKind.CANCELLED}
