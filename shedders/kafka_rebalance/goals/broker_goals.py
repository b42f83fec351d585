"""Goals of sums: what each broker carries should lie in a range around the mean, or below a share of its capacity."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from loaddata.samples.partitions import CPU_UNITS
from shedders.kafka_rebalance.goals.goal import BrokerGoal, exact, out_of_reach, range_near, whole_range
from shedders.kafka_rebalance.planning.leveling import level
from shedders.kafka_rebalance.planning.limits import FAR
from shedders.kafka_rebalance.planning.plan import compared
from shedders.kafka_rebalance.planning.reachable import nearest_means
from shedders.kafka_rebalance.planning.request import PlanMode
from shedders.kafka_rebalance.planning.virtual_cluster import LoadColumn, Measure

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from loaddata.samples.partitions import ClusterLayout
    from shedders.kafka_rebalance.planning.request import Capacities, PlanRequest
    from shedders.kafka_rebalance.planning.scope import Scope
    from shedders.kafka_rebalance.planning.search import Search
    from shedders.kafka_rebalance.planning.virtual_cluster import VirtualCluster


LEVELLED: Final = 0.1
"""Range around the mean of brokers that cannot keep a limit, up."""
WITNESS_BROKERS_MAX: Final = 5
WORDS = {0: "size", 1: "bytes in", 2: "bytes out", 3: "CPU"}


class LeveledGoal(BrokerGoal):
    """A goal of sums that is reached by leveling."""

    def _without_limits(self) -> None:
        self.low = np.full(len(self.cells), -FAR, dtype=np.int64)
        self.high = np.full(len(self.cells), FAR, dtype=np.int64)

    def _missing(self) -> str | None:
        """Which figure is known of no partition; one that is missing for some partitions is a remark."""
        known = self.cluster.known
        for column in self.needs:
            without = int(np.count_nonzero(~known[:, column]))
            if without == len(known):
                return f"{WORDS[column]} is known of no partition"
            if without:
                self.remarks.append(
                    f"{self.name}: {WORDS[column]} of {without} of {len(known)} partitions is not known "
                    "and counts as nothing"
                )
        return None

    def improve(self, search: Search) -> None:
        level(search, self)

    def witness(self, search: Search) -> str:
        beyond = np.where(self.cells, self.distance(self.values), 0)
        worst = int(beyond.argmax())
        value = int(self.values[worst])
        above = value > self.high[worst]
        bound = int(self.high[worst] if above else self.low[worst])
        has, limit = compared(value, bound, self.unit)
        text = f"broker {self.cluster.broker_ids[worst]} has {has}, {'more' if above else 'less'} than {limit}"
        return f"{text}; {self.blocked(search, worst, above=above)}"


class RangeGoal(LeveledGoal):
    """A soft goal of sums: each broker within a share of the mean."""

    share_of = "of the mean, up and down"
    default_share = 0.1
    leading: ClassVar[bool] = False

    def prepare(self) -> str | None:
        reason = self._missing()
        if reason is not None:
            return reason
        self.cells = self.scope.leaders if self.leading else self.scope.homes
        self._without_limits()
        total, parts = self.scope.total(self.measure), self._parts()
        means = {broker: total * part for broker, part in parts.items()}
        if self.cells is self.scope.homes or self.scope.all_lead:
            means = nearest_means(self.scope, self.measure, parts)
        strayed: dict[int, Fraction] = {}
        for broker, part in parts.items():
            common = whole_range(total, part, self.share)
            self.low[broker], self.high[broker] = near = range_near(common, means[broker], self.share)
            if near != common:
                strayed[broker] = means[broker] / (total * part)
        if strayed:
            self.remarks.append(f"{self.name}: {out_of_reach(self.cluster, strayed)}")
        return None

    def _parts(self) -> dict[int, Fraction]:
        """Share of the total that each broker should carry: equal parts."""
        cells = np.nonzero(self.cells)[0].tolist()
        return {broker: Fraction(1, len(cells)) for broker in cells}


class CapacityGoal(LeveledGoal):
    """A hard goal of sums: no broker above a share of what it can carry.

    Attributes:
        capacity: Field of `BrokerCapacity` that limits it.
        bounds: What each broker may carry. B.
        forced: Brokers that have to carry more than that, whatever moves, with their nearest means.
        overloaded: Those of them that are levelled: their `high` is around that mean.
    """

    hard = True
    share_of = "of the capacity that may be used"
    default_share = 0.8
    capacity: ClassVar[str]

    bounds: NDArray[np.int64]

    def __init__(self, cluster: VirtualCluster, scope: Scope, share: float | None, request: PlanRequest) -> None:
        super().__init__(cluster, scope, share, request)
        self.overloaded: list[int] = []
        self.forced: dict[int, Fraction] = {}

    def capacities(self) -> dict[int, int]:
        """What brokers can carry, by place, where that is known."""
        return requested_capacities(self.cluster, self.request.capacities, self.capacity)

    def prepare(self) -> str | None:
        self.cells = self.scope.homes
        self._without_limits()
        known = {broker: value for broker, value in self.capacities().items() if self.cells[broker]}
        if not known:
            return "no capacity is known"
        reason = self._missing()
        if reason is not None:
            return reason
        for broker, capacity in known.items():
            self.high[broker] = int(capacity * exact(self.share) // 1)
        self.bounds = self.high.copy()
        without = int(np.count_nonzero(self.cells)) - len(known)
        if without:
            self.remarks.append(f"{self.name}: the capacity of {without} brokers is not known; they are not limited")
        else:
            self._heed_sums()
        return None

    def _heed_sums(self) -> None:
        """Where brokers have to carry more than they may, level them instead of filling some up to their limits."""
        bounds = {broker: int(self.bounds[broker]) for broker in np.nonzero(self.cells)[0].tolist()}
        whole = sum(bounds.values())
        if not whole:
            return
        parts = {broker: Fraction(bound, whole) for broker, bound in bounds.items()}
        means = nearest_means(self.scope, self.measure, parts)
        self.forced = {broker: mean for broker, mean in means.items() if mean > bounds[broker]}
        if self.scope.mode is PlanMode.REBALANCE and not self.scope.emptied.any():
            # Nothing has to come to these brokers, so that limits may only be exceeded where they are exceeded already.
            for broker, mean in self.forced.items():
                self.overloaded.append(broker)
                self.high[broker] = max(bounds[broker], whole_range(mean, Fraction(1), LEVELLED)[1])

    def shortage(self) -> str:
        """Which brokers have to get more than they may, as part of a sentence; empty: none."""
        short = {broker: mean for broker, mean in self.forced.items() if mean > self.values[broker]}
        if not short:
            return ""
        carried, limit = compared(round(sum(short.values())), int(self.bounds[list(short)].sum()), self.unit)
        return f"{self._named(list(short))} would carry {carried}, more than the {limit} that may be"

    def _named(self, brokers: list[int]) -> str:
        ids = [str(self.cluster.broker_ids[broker]) for broker in brokers[:WITNESS_BROKERS_MAX]]
        more = ", ..." if len(ids) < len(brokers) else ""
        return f"{'broker' if len(brokers) == 1 else 'brokers'} {', '.join(ids)}{more}"

    def measured(self) -> tuple[Any, Any]:
        return self.values[self.cells], np.maximum(self.values - self.bounds, 0)[self.cells]

    def witness(self, search: Search) -> str:
        bounds, total = self.bounds[self.cells], self.scope.total(self.measure)
        instead = "; they are levelled around their mean instead" if self.overloaded else ""
        if (bounds < FAR).all() and total > int(bounds.sum()):
            carried, limit = compared(total, int(bounds.sum()), self.unit)
            return f"all brokers together carry {carried}, more than the {limit} that they may{instead}"
        if not self.overloaded:
            return super().witness(search)
        few = self.overloaded
        carried, limit = compared(int(self.values[few].sum()), int(self.bounds[few].sum()), self.unit)
        who = f"{self._named(few)}, which no other rack can relieve,"
        return f"{who} carry {carried}, more than the {limit} that they may{instead}"


def requested_capacities(cluster: VirtualCluster, requested: Capacities, field: str) -> dict[int, Any]:
    """One field of the requested capacities, by place: of the broker, else the default; unknown ones are left out."""
    default = getattr(requested.default, field)
    values = {
        place: getattr(requested.of.get(broker, requested.default), field)
        for place, broker in enumerate(cluster.broker_ids)
    }
    by_place = {place: default if value is None else value for place, value in values.items()}
    return {place: value for place, value in by_place.items() if value is not None}


def disk_capacities(cluster: VirtualCluster, layout: ClusterLayout, requested: Capacities) -> dict[int, int]:
    """Bytes: as requested, else the sum of the online log directories, where all of them report theirs; 0 is not known."""
    sizes: dict[int, int] = {}
    for broker in layout.brokers:
        online = [directory.total_bytes for directory in broker.log_dirs if not directory.offline]
        reported = [size for size in online if size is not None]
        if sum(reported) and len(reported) == len(online):
            sizes[cluster.index[broker.id]] = sum(reported)
    return sizes | requested_capacities(cluster, requested, "disk_bytes")


class BytesIn(RangeGoal):
    """What clients write is spread evenly over the brokers that lead.

    Formula, for each broker:

        mean = bytes in of all partitions / brokers
        mean x (1 - range) <= bytes in of the partitions that it leads <= mean x (1 + range)

    Moves: leader switches, the largest first, and leaderships exchanged or passed on (no bytes); then the leader's replica is
    moved, first what copies the fewest bytes for the load that it takes along; then swaps.

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


class Disk(RangeGoal):
    """Brokers' disks are equally full.

    Formula, for each broker; where the disks of all brokers are known, its part is by capacity, else all parts are equal:

        mean = bytes of all replicas x disk of the broker / disks of all brokers
        mean x (1 - range) <= bytes of its replicas <= mean x (1 + range)

    Where racks cannot hold that, the mean is the nearest that they can; above the range, brokers are levelled to a tenth of it.

    Moves: off a broker above its range go the pieces that together are little more than what is too much; a broker below is
    filled up to its lower bound only, from the fullest. Swaps of a large replica for a small one where counts forbid moves.

    Example: 100, 100 and 40 bytes with range 0.1 (72 to 88): 16 of each of the first two go to the third.

    Source: Cruise Control's DiskUsageDistributionGoal.
    """

    name = "disk"
    unit = "bytes"
    needs = (LoadColumn.DISK,)
    measure = Measure.DISK

    def _parts(self) -> dict[int, Fraction]:
        known = disk_capacities(self.cluster, self.scope.layout, self.request.capacities)
        cells = np.nonzero(self.cells)[0].tolist()
        if not all(broker in known for broker in cells):
            return super()._parts()
        whole = sum(known[broker] for broker in cells)
        return {broker: Fraction(known[broker], whole) for broker in cells}


class CpuCapacity(CapacityGoal):
    """No broker's partitions take more CPU than a share of it; a follower takes a third of its leader's.

    Formula, for each broker, in millionths of a broker's CPU:

        CPU of its replicas <= capacity x share

    Moves: leader switches first (no bytes), then replicas, then swaps.

    Example: 900,000 and 100,000 of 1,000,000 each, share 0.7: 200,000 or more leave the first.

    Source: Cruise Control's CpuCapacityGoal (cpu.capacity.threshold 0.7).
    """

    name = "cpu-capacity"
    unit = "millionths of CPU"
    default_share = 0.7
    needs = (LoadColumn.CPU,)
    measure = Measure.CPU
    by_leader = True

    def capacities(self) -> dict[int, int]:
        shares = requested_capacities(self.cluster, self.request.capacities, "cpu")
        return {place: round(share * CPU_UNITS) for place, share in shares.items()}


class DiskCapacity(CapacityGoal):
    """No broker's disks are fuller than a share of them.

    Formula, for each broker whose disks are known (as asked for, else all of its log directories that are online):

        bytes of its replicas <= disks x share

    Moves: as those of disk, off brokers that have too much.

    Example: disks of 100 bytes with share 0.8, 95 and 20 in use: 15 leave the first.

    Source: Cruise Control's DiskCapacityGoal (disk.capacity.threshold 0.8).
    """

    name = "disk-capacity"
    unit = "bytes"
    needs = (LoadColumn.DISK,)
    measure = Measure.DISK

    def capacities(self) -> dict[int, int]:
        return disk_capacities(self.cluster, self.scope.layout, self.request.capacities)


class NetworkInCapacity(CapacityGoal):
    """No broker takes in more than a share of what its network can.

    Formula, for each broker whose capacity is known; followers fetch all that their leaders take in:

        bytes in of the partitions that it leads or follows <= capacity x share

    Moves: replicas off brokers above, first what copies the fewest bytes for the load that it takes along; then swaps.

    Example: capacity 100 with share 0.8, 90 and 10 bytes/s: a replica of 10 bytes/s or more leaves the first.

    Source: Cruise Control's NetworkInboundCapacityGoal (network.inbound.capacity.threshold 0.8).
    """

    name = "network-in-capacity"
    unit = "bytes/s"
    needs = (LoadColumn.BYTES_IN,)
    measure = Measure.NET_IN
    capacity = "bytes_in_per_s"


class NetworkOutCapacity(CapacityGoal):
    """No broker gives out more than a share of what its network can.

    Formula, for each broker whose capacity is known; each follower fetches all that its leader takes in:

        sum over partitions that it leads of (bytes out + bytes in x followers) <= capacity x share

    Moves: leader switches first (no bytes), then leaders' replicas, then swaps.

    Example: capacity 100 with share 0.8, 90 and 10 bytes/s: a partition of 10 bytes/s or more is led by the second instead.

    Source: Cruise Control's NetworkOutboundCapacityGoal (network.outbound.capacity.threshold 0.8).
    """

    name = "network-out-capacity"
    unit = "bytes/s"
    needs = (LoadColumn.BYTES_OUT, LoadColumn.BYTES_IN)
    measure = Measure.NET_OUT
    by_leader = True
    capacity = "bytes_out_per_s"


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
        most = self.request.replicas_max
        return {} if most is None else dict.fromkeys(np.nonzero(self.cells)[0].tolist(), most)
