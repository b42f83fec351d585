"""What the machine of an execution is given, and what it asks for: plain values."""

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
"""What has configuration: ("broker", id) or ("topic", name)."""
Configs = Mapping[Resource, Mapping[str, str | None]]


def named(key: Key) -> str:
    """A partition, for people."""
    return f"{key[0]}-{key[1]}"


class ExecutionRequest(StrEnum):
    """What an operator wants of an execution."""

    GO = "go"
    PAUSE = "pause"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRequests:
    """The operators' newest wishes.

    Attributes:
        wish: Go on, pause or cancel.
        throttle_changed: Whether the throttle was changed since the execution began.
        throttle_bytes_per_s: Then the new one; None: no throttle any more.
        by: Who wants it.
    """

    wish: ExecutionRequest = ExecutionRequest.GO
    throttle_changed: bool = False
    throttle_bytes_per_s: int | None = None
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The cluster at one look. Looks may be a little stale or contradict each other: bad news count when they last.

    Attributes:
        cluster_id: Of the Kafka that answered.
        alive: Brokers that are up.
        topics: The plan's topics that exist, with their partitions as they are now (`adding`, `removing` of reassignments).
        foreign: Reassignments under way of partitions that the plan does not move, with the brokers they add and remove.
        urps: All under-replicated partitions of the cluster; None: not looked at this time.
        copied: Bytes that replicas being added hold already, by topic, partition and broker; None: not looked at this time.
        configs: Throttle settings of the brokers and topics of the plan; None: not looked at this time.
        asked: What operators want.
        replaced_by: Another executor that has taken the plan over; empty: none.
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
    """How a call ended."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    UNKNOWN = "unknown"


# --- effects ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalWrite:
    """Write an event to the journal, before anything that comes behind it is done."""

    event: str
    facts: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class SetConfigs:
    """Set configuration (None: delete it); brokers and topics each for themselves."""

    changes: Configs


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Ask Kafka for new replica lists. `batch` numbers them; 0: only the order changes."""

    batch: int
    targets: Mapping[Key, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Elect:
    """Have the preferred leaders lead."""

    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdraw:
    """Cancel reassignments that are under way."""

    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionEnd:
    """It is over; no step follows."""

    stop: ExecutionStop
    throttles_left: tuple[Resource, ...] = ()


Effect = JournalWrite | SetConfigs | Submit | Elect | Withdraw | ExecutionEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAnswer:
    """How an effect ended; `refused` has the reasons by partition, or by resource."""

    outcome: CallOutcome
    refused: Mapping[Key | Resource, str] = field(default_factory=lambda: MappingProxyType({}))
    reason: str = ""


class StopKind(StrEnum):
    """Why an execution ended."""

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
    """Why it ended, and what to do next; sentences for people."""

    kind: StopKind
    reason: str = ""
    hint: str = ""

    @property
    def good(self) -> bool:
        """Whether it did what was wanted."""
        return self.kind in {StopKind.DONE, StopKind.CANCELLED}
