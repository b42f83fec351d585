"""Most CPU of a broker."""

from __future__ import annotations

from loaddata.partitions.cluster import Known, Measure
from shedders.partitions.capacities import cpu_capacities
from shedders.partitions.goals.broker_goal import CapacityGoal


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
    needs = (Known.CPU,)
    measure = Measure.CPU
    by_leader = True

    def capacities(self) -> dict[int, int]:
        """What brokers can carry, by place."""
        return cpu_capacities(self.cluster, self.request.capacities)
