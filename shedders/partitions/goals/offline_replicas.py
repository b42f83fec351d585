"""Offline replicas are made anew elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shedders.partitions.goals.evacuation import Evacuation

if TYPE_CHECKING:
    from numpy.typing import NDArray


class OfflineReplicas(Evacuation):
    """No replica stays on a broker or log directory that is away.

    Formula, for each broker:

        offline replicas of the broker = 0

    Moves: offline replicas only, as those of brokers-leave. A partition without any leader has nothing to be copied from; it
    stays, and is named.

    Example: broker 2 is dead with 10 replicas: each gets a new place.

    Source: Cruise Control's fix_offline_replicas.
    """

    name = "offline-replicas"
    what = "are offline"

    def rows(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Replicas that are to leave: partitions, brokers."""
        cluster = self.cluster
        lost = self.scope.lost
        if lost is None:  # another mode
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
        found = np.zeros(lost.shape, dtype=bool)
        for place in range(lost.shape[1]):
            found |= (cluster.replicas == lost[:, place, None]) & (cluster.replicas >= 0)
        rows, places = np.nonzero(found)
        return rows, cluster.replicas[rows, places]
