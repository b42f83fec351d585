"""One measurement of one partition: the unit that sources make, that travels on the sample topic, and that is averaged.

The fields: cluster, address, broker, topic, partition, bytes in, bytes
out, disk, CPU, time. Only leaders are sampled; what their followers carry is derived (`formulas`).
"""

from __future__ import annotations

from dataclasses import dataclass

FORMAT = "partition-sample/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSample:
    """What one partition's leader carried in one minute; None: that was not measured.

    Attributes:
        cluster: Kafka's cluster id.
        broker: Id of the broker that led the partition then.
        host: Its address.
        topic: Name of the topic.
        partition: Number of the partition.
        taken_at_ms: Wall clock, start of the minute, milliseconds since the epoch.
        disk_bytes: Size of the leader's log (`kafka.log:type=Log,name=Size`).
        bytes_in_per_s: What clients wrote to the leader.
        bytes_out_per_s: What clients read from the leader.
        cpu_share: Part of all of the broker's CPU that this partition takes, 0 to 1.
        source: Name of the source that measured it.
    """

    cluster: str
    broker: int
    host: str
    topic: str
    partition: int
    taken_at_ms: int
    disk_bytes: int | None = None
    bytes_in_per_s: float | None = None
    bytes_out_per_s: float | None = None
    cpu_share: float | None = None
    source: str = ""
