"""Load model of `weighted-move`: each broker's use of each resource against its own limits, and a bundle's part of it. Pure.

A broker's level is its most used resource in parts of the cluster's: `max_r(usage_r / limit_r) / T` with
`T = max_r(sum of usage_r / sum of limit_r)` over all brokers that take part; 1 is what it would have if everything were spread by
capacity. A bundle's use moves with it in the resource's own unit, so that a broker with other limits is affected in proportion.

A bundle's part of its broker's use: of each direction of the network its share of the broker's bytes in that direction; of CPU,
without the idle use, its share of the cost of the broker's messages and bytes; of direct memory, where that counts,
`shedders.weighted_move.direct_memory`.

The CPU of a single bundle is not measured. But brokers differ in their traffic, and so in their usage:

    cpu_b / limit_b  ~  idle + a * messages_b / limit_b + c * bytes_b / limit_b

is solved by least squares over all brokers. If they are too similar, a prior decides: half for messages, half for bytes, nothing
for idling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import NamedTuple

from loaddata.model.broker_load import BrokerLoad, ResourceWeights
from loaddata.model.bundle_load import TrafficRates
from shedders.model.cluster import Bundle
from shedders.model.readings import LEAST_LIMIT, MOST, is_sound, share_of

MEMORY = 3  # place of direct memory
OVERLOADED = 0.85  # a broker above this part of a limit is overloaded, and limited by that (upstream's overload limit)
FULL_FROM, FULL_TO = (
    0.95,
    1.05,
)  # between these parts of a limit it serves a part of what it is asked; more is a wrong figure
OTHERS = ""  # the tenants without a cost of their own
LEAST_WEIGHT = 1e-6  # a resource with less than this part of the largest weight does not count
RESOURCES = ("CPU", "bandwidth in", "bandwidth out", "direct memory")
RIDGE = 0.005  # weight of the prior: as much as brokers that differ by the root of this (7 %)
_SINGULAR = 1e-12
SAMPLES = 3  # with fewer samples this moment's figures count instead of the average
# CPU in percent of one core, both directions of the network in kbit/s, direct memory in MiB; or each in parts of a limit.
Use = tuple[float, float, float, float]


class BundleDemand(NamedTuple):
    """A movable bundle.

    Attributes:
        size: Its part of its broker, by its largest resource; 1 is the whole broker.
        use: In the resources' own units.
        churn: Its traffic relative to an average broker's: its bytes or its messages, whichever is more.
        throughput: Bytes a second.
        young: Its figures are uncertain: estimated, or an average of few samples.
    """

    size: float
    bundle: Bundle
    use: Use
    churn: float
    throughput: float
    young: bool = False


@dataclass(slots=True, eq=False)
class BrokerLevel:
    """A broker that takes part, as the plan leaves it.

    Attributes:
        use: By resource, in its own unit.
        inverse: Weight of each resource over the broker's limit; 0 if it has none.
        scale: One over the cluster's level (`T`).
        capacity: Its limit of the cluster's scarcest resource, 1 for the average broker.
        takes: It takes bundles at all.
        memory_is_scarce: Its direct memory is more used than any resource that counts.
        over, under: It has deviated for long enough, above or below.
        urgent: It deviates so far that it does not wait for more hits.
        waits: It has too much load, but only recently: it gives nothing yet.
        aim: It gives bundles down to this level.
        probed: A part of its load is to go, to see whether its usage falls, and no more.
        relieved: It is overloaded, but only recently: the worst of it is to go, and no more.
        gives, taken: The plan takes bundles from it, or gives it some; `came`: their number.
    """

    name: str
    use: Use
    inverse: Use
    scale: float = 1.0
    capacity: float = 1.0
    takes: bool = True
    memory_is_scarce: bool = False
    over: bool = False
    under: bool = False
    urgent: bool = False
    waits: bool = False
    aim: float = 1.0
    relieved: bool = False
    probed: bool = False
    gives: bool = False
    taken: bool = False
    came: int = 0
    level: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.level = self.with_(0.0, 0.0, 0.0, 0.0)

    def with_(self, cpu: float, inwards: float, outwards: float, memory: float) -> float:
        """Its level with this added to (or taken from) each resource."""
        use, inverse = self.use, self.inverse
        level = (use[0] + cpu) * inverse[0]
        other = (use[1] + inwards) * inverse[1]
        if other > level:
            level = other
        other = (use[2] + outwards) * inverse[2]
        if other > level:
            level = other
        if inverse[3]:
            other = (use[3] + memory) * inverse[3]
            if other > level:
                level = other
        return level * self.scale

    def with_each(self, demands: Sequence[BundleDemand]) -> list[float]:
        """Its level with each of these bundles added; without a call of `with_` for each, as a decision compares many of them."""
        (cpu, inwards, outwards, memory), scale = self.use, self.scale
        by_cpu, by_inwards, by_outwards, by_memory = self.inverse
        levels = []
        for demand in demands:
            use = demand.use
            level = (cpu + use[0]) * by_cpu
            other = (inwards + use[1]) * by_inwards
            if other > level:
                level = other
            other = (outwards + use[2]) * by_outwards
            if other > level:
                level = other
            if by_memory:
                other = (memory + use[3]) * by_memory
                if other > level:
                    level = other
            levels.append(level * scale)
        return levels

    def add(self, use: Use, sign: int) -> None:
        """Add (1) or remove (-1) a bundle."""
        mine = self.use
        self.use = (
            max(0.0, mine[0] + sign * use[0]),
            max(0.0, mine[1] + sign * use[1]),
            max(0.0, mine[2] + sign * use[2]),
            max(0.0, mine[3] + sign * use[3]),
        )
        self.level = self.with_(0.0, 0.0, 0.0, 0.0)

    @property
    def busiest(self) -> int:
        """Its most used resource."""
        parts = [use * inverse for use, inverse in zip(self.use, self.inverse, strict=True)]
        return parts.index(max(parts))


def use_of(load: BrokerLoad) -> Use:
    return load.cpu.usage, load.bandwidth_in.usage, load.bandwidth_out.usage, load.direct_memory.usage


def inverse_of(load: BrokerLoad, weights: ResourceWeights) -> Use:
    """Weight of each resource over its limit: half the weight is like twice the limit."""
    return (
        _inverse(load.cpu.limit, weights.cpu),
        _inverse(load.bandwidth_in.limit, weights.bandwidth_in),
        _inverse(load.bandwidth_out.limit, weights.bandwidth_out),
        _inverse(load.direct_memory.limit, weights.direct_memory),
    )


def _inverse(limit: float, weight: float) -> float:
    return weight / limit if limit >= LEAST_LIMIT else 0.0


def parts_of(use: Use, inverse: Use) -> float:
    """The most used resource, in parts of its limit."""
    return max(use[0] * inverse[0], use[1] * inverse[1], use[2] * inverse[2], use[3] * inverse[3])


def without_memory(inverse: Use) -> Use:
    """The same resources without direct memory."""
    return inverse[0], inverse[1], inverse[2], 0.0


def memory_share(load: BrokerLoad) -> float:
    """The part of its direct memory that a broker uses; 0 without a limit."""
    memory = load.direct_memory
    return memory.usage / memory.limit if memory.limit >= LEAST_LIMIT else 0.0


def is_full(usage: float) -> bool:
    """Whether a broker whose most used resource has this usage, in parts of its limit, serves a part of what it is asked."""
    return FULL_FROM <= usage <= FULL_TO


def times(use: Use, factor: float) -> Use:
    """Each resource multiplied by a factor."""
    return use[0] * factor, use[1] * factor, use[2] * factor, use[3] * factor


def _no_traffic(_name: str) -> Mapping[str, float]:
    return {}


@dataclass(frozen=True, slots=True)
class MemoryCosts:
    """What traffic costs in direct memory.

    Attributes:
        idle: Part of a broker's limit that is used without traffic.
        tenants: MiB for a byte a second, by tenant.
        traffic: A broker's bytes a second by tenant, of all its bundles.
    """

    idle: float = 0.0
    tenants: Mapping[str, float] = field(default_factory=dict)
    traffic: Callable[[str], Mapping[str, float]] = _no_traffic

    def of(self, namespace: str, throughput: float) -> float:
        """Direct memory of this traffic, in MiB."""
        cost = self.tenants.get(namespace)
        return (self.tenants.get(OTHERS, 0.0) if cost is None else cost) * throughput

    def whole(self, name: str) -> float:
        """The cost of all bundles of a broker, in MiB."""
        return fsum(self.of(tenant, amount) for tenant, amount in self.traffic(name).items())


@dataclass(frozen=True, slots=True)
class ClusterTotals:
    """The cluster's sums.

    Attributes:
        level: Use over capacity of its scarcest resource (`T`); 0 if nothing is used.
        scarcest: Index of that resource.
        limit: An average broker's limit of it.
        throughput, rate: An average broker's traffic.
        costs: What traffic costs in CPU.
        memory: What it costs in direct memory, where that counts.
    """

    level: float
    scarcest: int
    limit: float
    throughput: float
    rate: float
    costs: CpuCosts
    memory: MemoryCosts


def whole(
    loads: Mapping[str, BrokerLoad], uses: Mapping[str, Use], inverses: Mapping[str, Use], memory: MemoryCosts
) -> ClusterTotals:
    """Add up the brokers whose figures count.

    Args:
        uses: Their smoothed use; `inverses`: one over their limits.
    """
    levels, means = [], []
    for resource in range(len(RESOURCES)):
        having = [name for name in loads if inverses[name][resource] > 0]
        limit = fsum(1 / inverses[name][resource] for name in having)
        levels.append(fsum(uses[name][resource] for name in having) / limit if limit > 0 else 0.0)
        means.append(limit / len(having) if having else 0.0)
    scarcest = levels.index(max(levels))
    count = max(1, len(loads))
    return ClusterTotals(
        levels[scarcest],
        scarcest,
        means[scarcest],
        fsum(load.msg_throughput for load in loads.values()) / count,
        fsum(load.msg_rate for load in loads.values()) / count,
        cpu_costs(loads.values()),
        memory,
    )


class Weights:
    """Parts of a broker's use by bundle.

    Args:
        name: Of the broker.
        use: Its smoothed use.
        known: Its bundles: their sum may exceed the broker's report, which is older.
    """

    def __init__(
        self, name: str, load: BrokerLoad, use: Use, inverse: Use, known: Sequence[Bundle], cluster: ClusterTotals
    ) -> None:
        traffic = [measured for bundle in known if (measured := traffic_of(bundle)) is not None]
        self._use, self._inverse, self._cluster = use, inverse, cluster
        self._in = max(load.msg_throughput_in, fsum(measured.msg_throughput_in for measured in traffic))
        self._out = max(load.msg_throughput_out, fsum(measured.msg_throughput_out for measured in traffic))
        rate = max(load.msg_rate, fsum(measured.msg_rate for measured in traffic))
        self._cost = cluster.costs.of(rate, self._in + self._out)
        self._busy = max(0.0, use[0] - cluster.costs.idle * load.cpu.limit) if inverse[0] > 0 else use[0]
        memory = cluster.memory
        self._memory_cost = memory.whole(name) if inverse[MEMORY] > 0 else 0.0
        self._cached = max(0.0, use[MEMORY] - memory.idle * load.direct_memory.limit)

    def cargo(self, bundle: Bundle) -> BundleDemand | None:
        """A bundle with its part of the use; None if it is unknown."""
        traffic = traffic_of(bundle)
        if traffic is None:
            return None
        use = self._of(bundle, traffic)
        size = parts_of(use, self._inverse)
        throughput, cluster = traffic.msg_throughput, self._cluster
        by_bytes, by_messages = per(throughput, cluster.throughput), per(traffic.msg_rate, cluster.rate)
        young = bundle.estimated or bundle.averages.short.samples < SAMPLES
        return BundleDemand(size, bundle, use, max(by_bytes, by_messages), throughput, young)

    def _of(self, bundle: Bundle, traffic: TrafficRates) -> Use:
        memory = 0.0
        if self._memory_cost > 0:
            cached = self._cluster.memory.of(bundle.namespace, traffic.msg_throughput)
            memory = self._cached * share_of(cached, self._memory_cost)
        cost = share_of(self._cluster.costs.of(traffic.msg_rate, traffic.msg_throughput), self._cost)
        use = self._use
        return (
            self._busy * cost,
            use[1] * share_of(traffic.msg_throughput_in, self._in),
            use[2] * share_of(traffic.msg_throughput_out, self._out),
            memory,
        )


def traffic_of(bundle: Bundle) -> TrafficRates | None:
    """A bundle's traffic: its short-term average, or this moment's figures while that is young; None if unknown."""
    short, stats = bundle.averages.short, bundle.stats
    if short.samples >= SAMPLES and is_sound(short):
        return short
    if stats is not None and is_sound(stats):
        return stats
    return short if short.samples and is_sound(short) else None


class CpuCosts(NamedTuple):
    """CPU costs.

    Attributes:
        idle: Part of a broker's limit that is used without traffic.
        message, size: Percent of one core for a message and for a byte a second.
    """

    idle: float = 0.0
    message: float = 0.0
    size: float = 0.0

    def of(self, rate: float, throughput: float) -> float:
        """CPU of this traffic, in percent of one core."""
        return self.message * rate + self.size * throughput


def cpu_costs(loads: Iterable[BrokerLoad]) -> CpuCosts:
    """Estimate the costs from these reports."""
    rows = [
        (load.cpu.usage / load.cpu.limit, load.msg_rate / load.cpu.limit, load.msg_throughput / load.cpu.limit)
        for load in loads
        if load.cpu.limit >= LEAST_LIMIT
    ]
    if not rows:
        return CpuCosts()
    count = len(rows)
    used, messages, sizes = (fsum(row[column] for row in rows) / count for column in range(3))
    if used <= 0 or (messages <= 0 and sizes <= 0):
        return CpuCosts()
    both = messages > 0 and sizes > 0
    prior = (0.0, 0.5, 0.5) if both else (0.0, float(messages > 0), float(sizes > 0))
    # In parts of the means, so that all three are alike.
    scaled = [
        (1.0, rate / messages if messages > 0 else 0.0, size / sizes if sizes > 0 else 0.0, use / used)
        for use, rate, size in rows
    ]
    parts = [max(0.0, part) for part in _solved(scaled, prior)]
    if not prior[1]:
        parts[1] = 0.0
    if not prior[2]:
        parts[2] = 0.0
    whole = fsum(parts)
    if not parts[1] + parts[2] > 0 or not whole > 0:
        parts, whole = list(prior), 1.0
    idle, message, size = (part / whole * used for part in parts)
    return CpuCosts(idle, per(message, messages), per(size, sizes))


def per(amount: float, of: float) -> float:
    """The amount per unit; bounded, as the number of units may be nearly zero and products must stay finite."""
    return min(MOST, amount / of) if of > 0 else 0.0


def _solved(rows: Sequence[tuple[float, float, float, float]], prior: tuple[float, float, float]) -> Sequence[float]:
    """Least squares with a ridge towards the prior."""
    count = len(rows)
    matrix = [
        [fsum(row[i] * row[j] for row in rows) / count + (RIDGE if i == j else 0.0) for j in range(3)] for i in range(3)
    ]
    right = [fsum(row[i] * row[3] for row in rows) / count + RIDGE * prior[i] for i in range(3)]
    whole = _determinant(matrix)
    if not abs(whole) > _SINGULAR:
        return prior
    solution = []
    for column in range(3):
        replaced = [[right[i] if j == column else matrix[i][j] for j in range(3)] for i in range(3)]
        solution.append(_determinant(replaced) / whole)
    return solution


def _determinant(m: Sequence[Sequence[float]]) -> float:
    return (
        m[0][0] * (m[1][1] * m[2][2] - m[1][2] * m[2][1])
        - m[0][1] * (m[1][0] * m[2][2] - m[1][2] * m[2][0])
        + m[0][2] * (m[1][0] * m[2][1] - m[1][1] * m[2][0])
    )
