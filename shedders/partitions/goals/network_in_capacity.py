"""Most bytes in of a broker."""

from __future__ import annotations

from loaddata.partitions.cluster import Known, Measure
from shedders.partitions.capacities import capacities
from shedders.partitions.goals.broker_goal import CapacityGoal


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
    needs = (Known.BYTES_IN,)
    measure = Measure.NET_IN

    def capacities(self) -> dict[int, int]:
        """What brokers can carry, by place."""
        return capacities(self.cluster, self.request.capacities, "bytes_in_per_s")
