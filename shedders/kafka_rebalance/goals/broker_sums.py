"""A goal of sums: what it measures on each broker, and what a move is worth to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from shedders.kafka_rebalance.goals.goal import Goal
from shedders.kafka_rebalance.planning.limits import FAR

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shedders.kafka_rebalance.planning.limits import GoalLimits
    from shedders.kafka_rebalance.planning.virtual_cluster import Measure


class BrokerGoal(Goal):
    """A goal whose cells are brokers, and whose measure is a row of the cluster's sums.

    Attributes:
        by_leader: Whether a leader switch changes it.
        low: B. high: B. cells: brokers that count, B.
    """

    measure: ClassVar[Measure]
    by_leader: ClassVar[bool] = False

    low: NDArray[np.int64]
    high: NDArray[np.int64]
    cells: NDArray[np.bool_]

    @property
    def values(self) -> NDArray[np.int64]:
        """What brokers carry now. B."""
        values: NDArray[np.int64] = self.cluster.sums[self.measure]
        return values

    def weight(self, partitions: Any, leads: Any) -> NDArray[np.int64]:
        """What replicas weigh. n."""
        return self.cluster.weight(partitions, leads, self.measure)

    def distance(self, values: Any, brokers: Any = slice(None)) -> NDArray[np.int64]:
        """How far values of brokers are from their ranges."""
        above: NDArray[np.int64] = np.maximum(values - self.high[brokers], 0)
        below: NDArray[np.int64] = np.maximum(self.low[brokers] - values, 0)
        return above + below

    def gain(self, weight: Any, sources: Any, to: Any) -> NDArray[np.int64]:
        """What the excess loses when so much goes from brokers to others; n each."""
        values = self.values
        before = self.distance(values[sources], sources) + self.distance(values[to], to)
        return before - self.distance(values[sources] - weight, sources) - self.distance(values[to] + weight, to)

    def worth(self, weight: Any, sources: Any, to: Any) -> NDArray[np.int64]:
        """As `gain` for what has to be copied: 0 where less than half of what moves lessens the excess.

        The rest would push the taker as far out of its range as it helps the giver. It never breaks a limit.
        """
        gain = self.gain(weight, sources, to)
        good = 2 * gain >= weight
        if self.hard:
            good = good & (self.values[to] + weight <= self.high[to])
        worth: NDArray[np.int64] = np.where(good, np.maximum(gain, 0), 0)
        return worth

    def spare(self) -> NDArray[np.int64]:
        """What brokers can give without falling below their range; all that they have, where a broker does not count. B."""
        return np.where(self.cells, self.values - self.low, np.where(self.scope.sources, self.values, 0))

    def relative(self) -> NDArray[np.float64]:
        """Load of brokers in parts of their upper bounds: the one with the most room takes. B."""
        bound = np.where((self.high > 0) & (self.high < FAR), self.high, 1).astype(np.float64)
        return self.values / bound

    def measured(self) -> tuple[Any, Any]:
        """Values of the cells and their distances from the range."""
        return self.values[self.cells], self.distance(self.values)[self.cells]

    def limit(self, limits: GoalLimits) -> None:
        """Set its ranges for later goals."""
        limits.narrow(self.measure, self.low, self.high)
