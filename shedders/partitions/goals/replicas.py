"""Replicas per broker."""

from __future__ import annotations

from loaddata.partitions.cluster import Measure
from shedders.partitions.goals.broker_goal import RangeGoal


class Replicas(RangeGoal):
    """Brokers hold about equally many replicas, of all topics together.

    Formula, for each broker:

        mean = replicas / brokers
        mean x (1 - range) <= replicas of the broker <= mean x (1 + range)

    Moves: the smallest replicas first. It needs no sizes.

    Example: 12, 6 and 0 replicas with range 0.1 (6 each): 6 move from the first to the third.

    Source: Cruise Control's ReplicaDistributionGoal.
    """

    name = "replicas"
    unit = "replicas"
    measure = Measure.REPLICAS
