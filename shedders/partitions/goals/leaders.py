"""Leaders per broker."""

from __future__ import annotations

from loaddata.partitions.cluster import Measure
from shedders.partitions.goals.broker_goal import RangeGoal


class Leaders(RangeGoal):
    """Brokers lead about equally many partitions, of all topics together.

    Formula, for each broker:

        mean = leaders / brokers
        mean x (1 - range) <= leaders of the broker <= mean x (1 + range)

    Moves: leader switches first (no bytes), then the leader's replica, the smallest first.

    Example: 8, 1 and 0 leaders of partitions that all brokers hold: 3 each after five switches.

    Source: Cruise Control's LeaderReplicaDistributionGoal.
    """

    name = "leaders"
    unit = "leaders"
    measure = Measure.LEADERS
    by_leader = True
    leading = True
