"""Kafka's partitions as plain values: the layout of a cluster at one moment, the load of each partition, and one sample of it.

The layout has the facts as they were read, also the awkward ones (no rack, no leader, offline replicas, a reassignment under
way). Goals do not change it: they work on the planner's `VirtualCluster`, which is made from it. Only leaders are sampled; what
their followers carry is derived (`formulas`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDir:
    """One log directory of a broker; sizes in bytes, None where the broker does not report them (Kafka < 3.3).

    Attributes:
        path: Its absolute path on the broker.
        total_bytes: Size of its volume. usable_bytes: what is free of it.
        offline: Whether it has failed.
        cordoned: Whether it gets no new replicas (KIP-1066); None: the broker does not report it (Kafka < 4.3).
        replicas: Topic, partition and bytes of its replicas, in order; read only of brokers with several directories.
    """

    path: str
    total_bytes: int | None = None
    usable_bytes: int | None = None
    offline: bool = False
    cordoned: bool | None = None
    replicas: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaBroker:
    """One broker. `alive` is False for one that only replica lists still name."""

    id: int
    host: str = ""
    port: int = 0
    rack: str | None = None
    alive: bool = True
    log_dirs: tuple[LogDir, ...] = ()

    @property
    def cordoned(self) -> bool:
        """Whether all of its log directories are cordoned, so that Kafka places no new replica on it."""
        online = [directory for directory in self.log_dirs if not directory.offline]
        return bool(online) and all(directory.cordoned for directory in online)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaPartition:
    """One partition, by broker ids.

    Attributes:
        replicas: In order; the first is the preferred leader.
        leader: None where there is none.
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


CPU_UNITS = 1_000_000
"""A whole broker's CPU. Loads are whole numbers, so that a move and its inverse leave sums exactly as they were."""


class PartitionResource(StrEnum):
    """What a partition takes of a broker."""

    DISK = "disk"
    BYTES_IN = "bytes-in"
    BYTES_OUT = "bytes-out"
    CPU = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLoad:
    """Load of a partition's leader; None: not known. See `formulas` for what a follower carries.

    Attributes:
        disk_bytes: Size of one replica.
        bytes_in_per_s: From clients to the leader.
        bytes_out_per_s: From the leader to clients.
        cpu_units: Millionths of a broker's CPU.
        completeness: Part of the window's minutes that have a sample, 0 to 1, the least over the resources that are known.
    """

    disk_bytes: int | None = None
    bytes_in_per_s: int | None = None
    bytes_out_per_s: int | None = None
    cpu_units: int | None = None
    completeness: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLoads:
    """All partitions' loads.

    Attributes:
        of: By topic and partition. Partitions that are not in it have no known load.
        from_ms: Start of the window (wall clock); 0: no window, sizes as they are now.
        source: Where they are from, for people.
        remarks: What of them is doubtful, as sentences for the plan.
    """

    of: Mapping[tuple[str, int], PartitionLoad] = field(default_factory=lambda: MappingProxyType({}))
    from_ms: int = 0
    to_ms: int = 0
    source: str = ""
    remarks: tuple[str, ...] = ()


SAMPLE_FORMAT = "partition-sample/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSample:
    """What one partition's leader carried in one minute; None: that was not measured.

    Attributes:
        broker: Id of the broker that led the partition then.
        taken_at_ms: Wall clock, start of the minute, milliseconds since the epoch.
        disk_bytes: Size of the leader's log (`kafka.log:type=Log,name=Size`).
        bytes_in_per_s: What clients wrote to the leader.
        bytes_out_per_s: What clients read from the leader.
        cpu_share: Part of all of the broker's CPU that this partition takes, 0 to 1.
    """

    cluster: str
    broker: int
    host: str = ""
    topic: str
    partition: int
    taken_at_ms: int
    disk_bytes: int | None = None
    bytes_in_per_s: float | None = None
    bytes_out_per_s: float | None = None
    cpu_share: float | None = None
    source: str = ""
