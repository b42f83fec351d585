"""The layout of a Kafka cluster at one moment: brokers, racks, log directories, topics, replicas in order, leaders.

Plain facts as they were read, also the awkward ones (no rack, no leader, offline replicas, a reassignment under way). Nothing
here is changed by goals: they work on `cluster.VirtualCluster`, which is made from this.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDir:
    """One log directory of a broker; sizes in bytes, None where the broker does not report them (Kafka < 3.3)."""

    path: str
    total_bytes: int | None = None
    usable_bytes: int | None = None
    offline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaBroker:
    """One broker. `alive` is False for one that only replica lists still name."""

    id: int
    host: str = ""
    port: int = 0
    rack: str | None = None
    alive: bool = True
    log_dirs: tuple[LogDir, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaPartition:
    """One partition, by broker ids.

    Attributes:
        partition: Its number.
        replicas: In order; the first is the preferred leader.
        leader: None where there is none.
        isr: Replicas that are in sync.
        offline: Replicas on brokers or log directories that are away.
        adding: Replicas that a reassignment under way adds.
        removing: Replicas that a reassignment under way removes.
    """

    partition: int
    replicas: tuple[int, ...]
    leader: int | None
    isr: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def in_motion(self) -> bool:
        """Whether a reassignment of it is under way."""
        return bool(self.adding or self.removing)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaTopic:
    """One topic; `partitions` by number, without holes. `topic_id` distinguishes a re-created one ("" where not known)."""

    name: str
    partitions: tuple[KafkaPartition, ...]
    topic_id: str = ""
    min_isr: int = 1
    internal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLayout:
    """All of it. Brokers by id, topics by name, both ascending, so that equal clusters are equal values.

    `remarks` are sentences about what could not be read; they are not part of what is compared.
    """

    cluster_id: str
    brokers: tuple[KafkaBroker, ...]
    topics: Mapping[str, KafkaTopic] = field(default_factory=lambda: MappingProxyType({}))
    read_at_ms: int = 0
    remarks: tuple[str, ...] = field(default=(), compare=False)

    def partitions(self) -> Iterator[tuple[KafkaTopic, KafkaPartition]]:
        """Each partition with its topic, in the order of names and numbers."""
        for topic in self.topics.values():
            for partition in topic.partitions:
                yield topic, partition

    def fingerprint(self) -> str:
        """Equal for equal assignments (topics, their ids, replicas in order): a plan names the one that it was made for."""
        digest = hashlib.sha256(self.cluster_id.encode())
        for topic, partition in self.partitions():
            digest.update(f"{topic.name} {topic.topic_id} {partition.partition} {partition.replicas}\n".encode())
        return digest.hexdigest()
