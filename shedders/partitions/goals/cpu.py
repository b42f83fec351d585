"""CPU per broker."""

from __future__ import annotations

from loaddata.partitions.cluster import Known, Measure
from shedders.partitions.goals.broker_goal import RangeGoal


class Cpu(RangeGoal):
    """CPU that partitions take is spread evenly; a follower takes a third of its leader's.

    Formula, for each broker, in millionths of a broker's CPU:

        mean = CPU of all replicas / brokers
        mean x (1 - range) <= CPU of its replicas <= mean x (1 + range)

    Moves: leader switches first (they move two thirds), then replicas, then swaps.

    Example: 900,000 for leading on one of two brokers: switching half of the leaderships brings 600,000 to each.

    Source: Cruise Control's CpuUsageDistributionGoal.
    """

    name = "cpu"
    unit = "millionths of CPU"
    needs = (Known.CPU,)
    measure = Measure.CPU
    by_leader = True
