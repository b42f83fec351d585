"""Disk use per broker."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from loaddata.partitions.cluster import Known, Measure
from shedders.partitions.capacities import disk_capacities
from shedders.partitions.goals.broker_goal import RangeGoal


class Disk(RangeGoal):
    """Brokers' disks are equally full.

    Formula, for each broker; where the disks of all brokers are known, its part is by capacity, else all parts are equal:

        mean = bytes of all replicas x disk of the broker / disks of all brokers
        mean x (1 - range) <= bytes of its replicas <= mean x (1 + range)

    Moves: off a broker above its range go the pieces that together are little more than what is too much; a broker below is
    filled up to its lower bound only, from the fullest. Swaps of a large replica for a small one where counts forbid moves.

    Example: 100, 100 and 40 bytes with range 0.1 (72 to 88): 16 of each of the first two go to the third.

    Source: Cruise Control's DiskUsageDistributionGoal.
    """

    name = "disk"
    unit = "bytes"
    needs = (Known.DISK,)
    measure = Measure.DISK

    def _parts(self) -> dict[int, Fraction]:
        known = disk_capacities(self.cluster, self.scope.layout, self.request.capacities)
        cells = np.nonzero(self.cells)[0].tolist()
        if not all(one in known for one in cells):
            return super()._parts()
        whole = sum(known[one] for one in cells)
        return {one: Fraction(known[one], whole) for one in cells}
