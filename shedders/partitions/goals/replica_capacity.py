"""Most replicas on a broker."""

from __future__ import annotations

import numpy as np

from loaddata.partitions.cluster import Measure
from shedders.partitions.goals.broker_goal import CapacityGoal


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
