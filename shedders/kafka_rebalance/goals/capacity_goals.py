"""What brokers can carry, by their places in the virtual cluster; those that are not known are left out."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from loaddata.samples.loads import CPU_UNITS
from shedders.kafka_rebalance.goals.broker_goals import CapacityGoal, RangeGoal
from shedders.kafka_rebalance.planning.virtual_cluster import LoadColumn, Measure

if TYPE_CHECKING:
    from loaddata.samples.layout import ClusterLayout
    from shedders.kafka_rebalance.planning.capacity import Capacities
    from shedders.kafka_rebalance.planning.virtual_cluster import VirtualCluster


def capacities(cluster: VirtualCluster, asked: Capacities, field: str) -> dict[int, int]:
    """One field of the capacities asked for: of the broker, else the default."""
    found: dict[int, int] = {}
    for place, broker in enumerate(cluster.broker_ids):
        value = getattr(asked.of.get(broker, asked.default), field)
        value = getattr(asked.default, field) if value is None else value
        if value is not None:
            found[place] = value
    return found


def disk_capacities(cluster: VirtualCluster, layout: ClusterLayout, asked: Capacities) -> dict[int, int]:
    """Bytes: as asked for, else the sum of the log directories that are online, where all of them tell; 0 is not known."""
    found: dict[int, int] = {}
    for broker in layout.brokers:
        online = [one.total_bytes for one in broker.log_dirs if not one.offline]
        told = [one for one in online if one is not None]
        if sum(told) and len(told) == len(online):
            found[cluster.index[broker.id]] = sum(told)
    return found | capacities(cluster, asked, "disk_bytes")


def cpu_capacities(cluster: VirtualCluster, asked: Capacities) -> dict[int, int]:
    """Millionths of a broker's CPU."""
    found: dict[int, int] = {}
    for place, broker in enumerate(cluster.broker_ids):
        value = asked.of.get(broker, asked.default).cpu
        value = asked.default.cpu if value is None else value
        if value is not None:
            found[place] = round(value * CPU_UNITS)
    return found


class Disk(RangeGoal):
    """Brokers' disks are equally full.

    Formula, for each broker; where the disks of all brokers are known, its part is by capacity, else all parts are equal:

        mean = bytes of all replicas x disk of the broker / disks of all brokers
        mean x (1 - range) <= bytes of its replicas <= mean x (1 + range)

    Moves: off a broker above its range go the pieces that together are little more than what is too much; a broker below is
    filled up to its lower bound only, from the fullest. Swaps of a large replica for a small one where counts forbid moves.

    Example: 100, 100 and 40 bytes with range 0.1 (72 to 88): 16 of each of the first two go to the third.

    Source: Cruise Control's DiskUsageDistributionGoal.
    """

    name = "disk"
    unit = "bytes"
    needs = (LoadColumn.DISK,)
    measure = Measure.DISK

    def _parts(self) -> dict[int, Fraction]:
        known = disk_capacities(self.cluster, self.scope.layout, self.request.capacities)
        cells = np.nonzero(self.cells)[0].tolist()
        if not all(one in known for one in cells):
            return super()._parts()
        whole = sum(known[one] for one in cells)
        return {one: Fraction(known[one], whole) for one in cells}


class CpuCapacity(CapacityGoal):
    """No broker's partitions take more CPU than a share of it; a follower takes a third of its leader's.

    Formula, for each broker, in millionths of a broker's CPU:

        CPU of its replicas <= capacity x share

    Moves: leader switches first (no bytes), then replicas, then swaps.

    Example: 900,000 and 100,000 of 1,000,000 each, share 0.7: 200,000 or more leave the first.

    Source: Cruise Control's CpuCapacityGoal (cpu.capacity.threshold 0.7).
    """

    name = "cpu-capacity"
    unit = "millionths of CPU"
    default_share = 0.7
    needs = (LoadColumn.CPU,)
    measure = Measure.CPU
    by_leader = True

    def capacities(self) -> dict[int, int]:
        """What brokers can carry, by place."""
        return cpu_capacities(self.cluster, self.request.capacities)


class DiskCapacity(CapacityGoal):
    """No broker's disks are fuller than a share of them.

    Formula, for each broker whose disks are known (as asked for, else all of its log directories that are online):

        bytes of its replicas <= disks x share

    Moves: as those of disk, off brokers that have too much.

    Example: disks of 100 bytes with share 0.8, 95 and 20 in use: 15 leave the first.

    Source: Cruise Control's DiskCapacityGoal (disk.capacity.threshold 0.8).
    """

    name = "disk-capacity"
    unit = "bytes"
    needs = (LoadColumn.DISK,)
    measure = Measure.DISK

    def capacities(self) -> dict[int, int]:
        """What brokers can carry, by place."""
        return disk_capacities(self.cluster, self.scope.layout, self.request.capacities)


class NetworkInCapacity(CapacityGoal):
    """No broker takes in more than a share of what its network can.

    Formula, for each broker whose capacity is known; followers fetch all that their leaders take in:

        bytes in of the partitions that it leads or follows <= capacity x share

    Moves: replicas off brokers above, first what copies the fewest bytes for the load that it takes along; then swaps.

    Example: capacity 100 with share 0.8, 90 and 10 bytes/s: a replica of 10 bytes/s or more leaves the first.

    Source: Cruise Control's NetworkInboundCapacityGoal (network.inbound.capacity.threshold 0.8).
    """

    name = "network-in-capacity"
    unit = "bytes/s"
    needs = (LoadColumn.BYTES_IN,)
    measure = Measure.NET_IN

    def capacities(self) -> dict[int, int]:
        """What brokers can carry, by place."""
        return capacities(self.cluster, self.request.capacities, "bytes_in_per_s")


class NetworkOutCapacity(CapacityGoal):
    """No broker gives out more than a share of what its network can.

    Formula, for each broker whose capacity is known; each follower fetches all that its leader takes in:

        sum over partitions that it leads of (bytes out + bytes in x followers) <= capacity x share

    Moves: leader switches first (no bytes), then leaders' replicas, then swaps.

    Example: capacity 100 with share 0.8, 90 and 10 bytes/s: a partition of 10 bytes/s or more is led by the second instead.

    Source: Cruise Control's NetworkOutboundCapacityGoal (network.outbound.capacity.threshold 0.8).
    """

    name = "network-out-capacity"
    unit = "bytes/s"
    needs = (LoadColumn.BYTES_OUT, LoadColumn.BYTES_IN)
    measure = Measure.NET_OUT
    by_leader = True

    def capacities(self) -> dict[int, int]:
        """What brokers can carry, by place."""
        return capacities(self.cluster, self.request.capacities, "bytes_out_per_s")


class ReplicaCapacity(CapacityGoal):
    """No broker holds more replicas than the limit that was asked for.

    Formula, for each broker:

        replicas of the broker <= limit x share

    Moves: the smallest replicas off a broker that has too many, to the broker with the most room.

    Example: limit 4 with 6, 2 and 1 replicas: two leave the first.

    Source: Cruise Control's ReplicaCapacityGoal.
    """

    name = "replica-capacity"
    unit = "replicas"
    default_share = 1.0
    measure = Measure.REPLICAS

    def capacities(self) -> dict[int, int]:
        """What brokers can carry, by place."""
        most = self.request.replicas_max
        return {} if most is None else dict.fromkeys(np.nonzero(self.cells)[0].tolist(), most)
