"""Brokers that go hold nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shedders.partitions.goals.evacuation import Evacuation

if TYPE_CHECKING:
    from numpy.typing import NDArray


class BrokersLeave(Evacuation):
    """No replica is left on brokers that are going: those to be removed, and those that are going offline.

    Formula, for each broker that is going:

        replicas of the broker = 0

    Moves: the largest replicas first, each to the emptiest broker that the hard goals allow.

    Example: broker 4 is removed with 10 replicas: each is copied once, nothing else is.

    Source: Cruise Control's remove_broker.
    """

    name = "brokers-leave"
    what = "are on brokers that are going"

    def rows(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Replicas that are to leave: partitions, brokers."""
        cluster = self.cluster
        found = np.append(self.scope.leaving, False)[cluster.replicas]
        rows, places = np.nonzero(found)
        return rows, cluster.replicas[rows, places]
