"""Bytes in of leaders per broker."""

from __future__ import annotations

from loaddata.partitions.cluster import Known, Measure
from shedders.partitions.goals.broker_goal import RangeGoal


class BytesIn(RangeGoal):
    """What clients write is spread evenly over the brokers that lead.

    Formula, for each broker:

        mean = bytes in of all partitions / brokers
        mean x (1 - range) <= bytes in of the partitions that it leads <= mean x (1 + range)

    Moves: leader switches, the largest first (no bytes); then the leader's replica is moved, first what copies the fewest
    bytes for the load that it takes along; then swaps.

    Example: 60 and 20 bytes/s on two brokers that both hold all replicas: partitions of 20 bytes/s switch.

    Source: Cruise Control's LeaderBytesInDistributionGoal.
    """

    name = "bytes-in"
    unit = "bytes/s"
    needs = (Known.BYTES_IN,)
    measure = Measure.LEADER_IN
    by_leader = True
    leading = True
