"""Bytes out of leaders per broker."""

from __future__ import annotations

from loaddata.partitions.cluster import Known, Measure
from shedders.partitions.goals.broker_goal import RangeGoal


class BytesOut(RangeGoal):
    """What clients read is spread evenly over the brokers that lead.

    Formula, for each broker:

        mean = bytes out of all partitions / brokers
        mean x (1 - range) <= bytes out of the partitions that it leads <= mean x (1 + range)

    Moves: as those of bytes-in.

    Example: 60 and 20 bytes/s on two brokers that both hold all replicas: partitions of 20 bytes/s switch.

    Source: Cruise Control's NetworkOutboundUsageDistributionGoal.
    """

    name = "bytes-out"
    unit = "bytes/s"
    needs = (Known.BYTES_OUT,)
    measure = Measure.LEADER_OUT
    by_leader = True
    leading = True
