"""Most bytes out of a broker."""

from __future__ import annotations

from loaddata.partitions.cluster import Known, Measure
from shedders.partitions.capacities import capacities
from shedders.partitions.goals.broker_goal import CapacityGoal


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
    needs = (Known.BYTES_OUT, Known.BYTES_IN)
    measure = Measure.NET_OUT
    by_leader = True

    def capacities(self) -> dict[int, int]:
        """What brokers can carry, by place."""
        return capacities(self.cluster, self.request.capacities, "bytes_out_per_s")
