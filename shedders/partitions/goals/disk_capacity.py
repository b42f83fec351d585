"""Most bytes on a broker's disks."""

from __future__ import annotations

from loaddata.partitions.cluster import Known, Measure
from shedders.partitions.capacities import disk_capacities
from shedders.partitions.goals.broker_goal import CapacityGoal


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
    needs = (Known.DISK,)
    measure = Measure.DISK

    def capacities(self) -> dict[int, int]:
        """What brokers can carry, by place."""
        return disk_capacities(self.cluster, self.scope.layout, self.request.capacities)
