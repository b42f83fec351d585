"""Goals of sums: what each broker carries is to lie in a range around the mean, or below a limit."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from shedders.kafka_rebalance.goals.broker_sums import BrokerGoal
from shedders.kafka_rebalance.goals.goal import exact, whole_range
from shedders.kafka_rebalance.planning.leveling import level
from shedders.kafka_rebalance.planning.limits import FAR
from shedders.kafka_rebalance.planning.tally import broker_blocked
from shedders.kafka_rebalance.planning.units import compared
from shedders.kafka_rebalance.planning.virtual_cluster import LoadColumn, Measure

if TYPE_CHECKING:
    from shedders.kafka_rebalance.planning.search import Search


WORDS = {0: "size", 1: "bytes in", 2: "bytes out", 3: "CPU"}


class LeveledGoal(BrokerGoal):
    """A goal of sums that is reached by leveling."""

    def _missing(self) -> str | None:
        """Why there is nothing to go by."""
        known = self.cluster.known
        for one in self.needs:
            without = int(np.count_nonzero(~known[:, one]))
            if without == len(known):
                return f"{WORDS[one]} is known of no partition"
            if without:
                self.remarks.append(
                    f"{self.name}: {WORDS[one]} of {without} of {len(known)} partitions is not known and counts as nothing"
                )
        return None

    def improve(self, search: Search) -> int:
        """Make moves until none is found."""
        return level(search, self)

    def witness(self, search: Search) -> str:
        """Where it is not met, and why."""
        beyond = np.where(self.cells, self.distance(self.values), 0)
        worst = int(beyond.argmax())
        value = int(self.values[worst])
        above = value > self.high[worst]
        bound = int(self.high[worst] if above else self.low[worst])
        has, limit = compared(value, bound, self.unit)
        text = f"broker {self.cluster.broker_ids[worst]} has {has}, {'more' if above else 'less'} than {limit}"
        return f"{text}; {broker_blocked(search, self, worst, above=above)}"


class RangeGoal(LeveledGoal):
    """A soft goal of sums: each broker within a share of the mean."""

    share_of = "of the mean, up and down"
    default_share = 0.1
    leading: ClassVar[bool] = False

    def prepare(self) -> str | None:
        """Work out the ranges."""
        reason = self._missing()
        if reason is not None:
            return reason
        scope = self.scope
        self.cells = scope.leaders if self.leading else scope.homes
        total = scope.total(self.measure)
        count = len(self.cells)
        self.low = np.full(count, -FAR, dtype=np.int64)
        self.high = np.full(count, FAR, dtype=np.int64)
        for broker, part in self._parts().items():
            self.low[broker], self.high[broker] = whole_range(total, part, self.share)
        return None

    def _parts(self) -> dict[int, Fraction]:
        """What of the total is each broker's: equal parts."""
        cells = np.nonzero(self.cells)[0].tolist()
        return {one: Fraction(1, len(cells)) for one in cells}


class CapacityGoal(LeveledGoal):
    """A hard goal of sums: no broker above a share of what it can carry."""

    hard = True
    share_of = "of the capacity that may be used"
    default_share = 0.8

    def capacities(self) -> dict[int, int]:
        """What brokers can carry, by place, where that is known."""
        raise NotImplementedError

    def prepare(self) -> str | None:
        """Work out the ranges."""
        scope = self.scope
        self.cells = scope.homes
        count = len(self.cells)
        self.low = np.full(count, -FAR, dtype=np.int64)
        self.high = np.full(count, FAR, dtype=np.int64)
        known = {one: value for one, value in self.capacities().items() if self.cells[one]}
        if not known:
            return "no capacity is known"
        reason = self._missing()
        if reason is not None:
            return reason
        for broker, capacity in known.items():
            self.high[broker] = int(capacity * exact(self.share) // 1)
        without = int(np.count_nonzero(self.cells)) - len(known)
        if without:
            self.remarks.append(f"{self.name}: the capacity of {without} brokers is not known; they are not limited")
        return None

    def impossible(self) -> str:
        """Why no placement meets it."""
        bounds = self.high[self.cells]
        total = self.scope.total(self.measure)
        if (bounds < FAR).all() and total > int(bounds.sum()):
            carried, limit = compared(total, int(bounds.sum()), self.unit)
            return f"all brokers together carry {carried}, more than the {limit} that they may"
        return ""

    def witness(self, search: Search) -> str:
        """Where it is not met, and why."""
        return self.impossible() or super().witness(search)


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
    needs = (LoadColumn.BYTES_IN,)
    measure = Measure.LEADER_IN
    by_leader = True
    leading = True


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
    needs = (LoadColumn.BYTES_OUT,)
    measure = Measure.LEADER_OUT
    by_leader = True
    leading = True


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
    needs = (LoadColumn.CPU,)
    measure = Measure.CPU
    by_leader = True


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
