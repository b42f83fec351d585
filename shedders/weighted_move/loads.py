"""Load model of `weighted-move`: each broker's use of each resource against its limits, and what it costs. Pure.

With `x_r` for a broker's use of a resource in parts of what it would have at perfect balance, its **level** is

    y = (sum of x_r^8)^(1/8)

over CPU, both directions of the network and, where it counts, direct memory: about its most used resource, and a little more
where several are as busy. Its **cost** is `capacity * y^4 / 12`: convex, so that the busiest broker counts most, and two brokers
that are busy by different resources gain by an exchange. Load moves in the resources' own units, so that a broker with other
limits is affected in proportion.

A bundle's part of its broker's use: of each direction of the network its share of the bytes; of CPU, without the idle use, its
share of the cost of messages and bytes; of direct memory `shedders.weighted_move.direct_memory`. What messages and bytes cost in
CPU is solved by least squares over the brokers:

    cpu_b / limit_b  ~  idle + a * messages_b / limit_b + c * bytes_b / limit_b

with a prior where they are too similar: half for messages, half for bytes, nothing for idling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum, sqrt
from typing import NamedTuple

from loaddata.model.broker_load import BrokerLoad, ResourceWeights
from loaddata.model.bundle_load import TrafficRates
from shedders.model.cluster import Bundle
from shedders.model.readings import LEAST_LIMIT, MOST, is_sound, share_of

MEMORY = 3  # place of direct memory
TINY = 1e-6  # a resource with less than this part of the largest weight does not count; less than this of a level is rounding
RESOURCES = ("CPU", "bandwidth in", "bandwidth out", "direct memory")
RIDGE = 0.005  # weight of the prior: as much as brokers that differ by the root of this (7 %)
ROUNDS = 200  # maximum number of rounds of a fit
SETTLED_S = 300.0  # after this time load that has moved shows in all figures
SAMPLES = 3  # with fewer samples this moment's figures count instead of the average
OTHERS = ""  # the tenants without a cost of their own
# CPU in percent of one core, both directions of the network in kbit/s, direct memory in MiB; or each in parts of a limit.
Use = tuple[float, float, float, float]


class BundleDemand(NamedTuple):
    """A movable bundle.

    Attributes:
        size: Its part of its broker, by its largest resource; 1 is the whole broker at perfect balance.
        use: In the resources' own units.
        traffic: Its bytes or its messages, whichever is more, in parts of an average broker's.
        throughput: Bytes a second.
        young: Its figures are uncertain: estimated, or an average of few samples.
    """

    size: float
    bundle: Bundle
    use: Use
    traffic: float
    throughput: float
    young: bool = False


@dataclass(slots=True, eq=False)
class BrokerLevel:
    """A broker that takes part, as the plan leaves it.

    Attributes:
        use: By resource, in its own unit.
        inverse: What turns that into parts of perfect balance; 0 for a resource that does not count.
        capacity: Its limit of the cluster's scarcest resource, 1 for the average broker.
        takes: It takes bundles at all.
        over, under: Its debt above or below has reached the price of a move.
        owes: Its debt above, in parts of the price of a move.
        aim: It gives bundles down to this level.
        gives, taken: The plan takes bundles from it, or gives it some.
        power: The sum of `x_r^8`.
    """

    name: str
    use: Use
    inverse: Use
    capacity: float = 1.0
    takes: bool = True
    over: bool = False
    under: bool = False
    owes: float = 0.0
    aim: float = 1.0
    gives: bool = False
    taken: bool = False
    power: float = field(init=False, default=0.0)
    level: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.add((0.0, 0.0, 0.0, 0.0), 1)

    def powers(self, uses: Iterable[Use], sign: int) -> list[float]:
        """`power` with each of these added (1) or taken away (-1)."""
        (cpu, inwards, outwards, memory), (by_cpu, by_inwards, by_outwards, by_memory) = self.use, self.inverse
        powers = []
        for use in uses:
            x = (cpu + sign * use[0]) * by_cpu
            x *= x
            x *= x
            y = (inwards + sign * use[1]) * by_inwards
            y *= y
            y *= y
            z = (outwards + sign * use[2]) * by_outwards
            z *= z
            z *= z
            power = x * x + y * y + z * z
            if by_memory:
                x = (memory + sign * use[3]) * by_memory
                x *= x
                x *= x
                power += x * x
            powers.append(power)
        return powers

    def cost_of(self, power: float) -> float:
        """Its cost with this `power`: `capacity * y^4 / 12`."""
        return self.capacity * sqrt(power) / 12

    def add(self, use: Use, sign: int) -> None:
        """Add (1) or remove (-1) a bundle."""
        self.use = plus(self.use, use, sign)
        self.power = self.powers(((0.0, 0.0, 0.0, 0.0),), 1)[0]
        self.level = level_of(self.power)

    def parts(self) -> list[float]:
        """Each resource in parts of perfect balance."""
        return [use * inverse for use, inverse in zip(self.use, self.inverse, strict=True)]

    @property
    def busiest(self) -> int:
        """Its most used resource."""
        parts = self.parts()
        return parts.index(max(parts))


def level_of(power: float) -> float:
    """The level of a broker with this sum of `x_r^8`."""
    return sqrt(sqrt(sqrt(power)))


def price(level: float) -> float:
    """What a little more load costs at a level, beyond what it costs at perfect balance; near 1 about the gap."""
    return (min(level, 100.0) ** 3 - 1) / 3


def plus(use: Use, more: Use, sign: int = 1) -> Use:
    """The sum (1) or difference (-1), no resource below 0."""
    return (
        max(0.0, use[0] + sign * more[0]),
        max(0.0, use[1] + sign * more[1]),
        max(0.0, use[2] + sign * more[2]),
        max(0.0, use[3] + sign * more[3]),
    )


def use_of(load: BrokerLoad) -> Use:
    return load.cpu.usage, load.bandwidth_in.usage, load.bandwidth_out.usage, load.direct_memory.usage


def inverse_of(load: BrokerLoad, weights: ResourceWeights) -> Use:
    """Weight of each resource over the broker's limit: half the weight is like twice the limit."""
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


def memory_share(load: BrokerLoad) -> float:
    """The part of its direct memory that a broker uses; 0 without a limit."""
    memory = load.direct_memory
    return memory.usage / memory.limit if memory.limit >= LEAST_LIMIT else 0.0


def times(use: Use, factor: float) -> Use:
    """CPU and network multiplied by a factor: direct memory does not depend on how much of its traffic a broker reports."""
    return use[0] * factor, use[1] * factor, use[2] * factor, use[3]


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
        level: What a broker uses of its limits at perfect balance; 0 if nothing is used.
        scarcest: The most used resource.
        limit: An average broker's limit of it.
        throughput, rate: An average broker's traffic.
        costs: What traffic costs in CPU; `memory`: in direct memory, where that counts.
    """

    level: float
    scarcest: int
    limit: float
    throughput: float
    rate: float
    costs: CpuCosts
    memory: MemoryCosts


def add_up(
    loads: Mapping[str, BrokerLoad], uses: Mapping[str, Use], inverses: Mapping[str, Use], memory: MemoryCosts
) -> ClusterTotals:
    """Add up the brokers.

    Args:
        uses: Their smoothed use; `inverses`: weights over their limits.
    """
    levels, means = [], []
    for resource in range(len(RESOURCES)):
        having = [name for name in loads if inverses[name][resource] > 0]
        limit = fsum(1 / inverses[name][resource] for name in having)
        levels.append(fsum(uses[name][resource] for name in having) / limit if limit > 0 else 0.0)
        means.append(limit / len(having) if having else 0.0)
    highest, count = max(levels), max(1, len(loads))
    level = highest * level_of(fsum((each / highest) ** 8 for each in levels)) if highest > 0 else 0.0
    scarcest = levels.index(highest)
    traffic = (fsum(load.msg_throughput for load in loads.values()), fsum(load.msg_rate for load in loads.values()))
    costs = cpu_costs(loads.values())
    return ClusterTotals(level, scarcest, means[scarcest], traffic[0] / count, traffic[1] / count, costs, memory)


def demands(
    load: BrokerLoad, side: BrokerLevel, use: Use, bundles: Sequence[Bundle], cluster: ClusterTotals
) -> list[BundleDemand]:
    """A broker's bundles with their parts of its use, the smallest first; those without traffic are left out.

    Args:
        use: Of the broker before anything moves.
        bundles: Their sum may exceed the broker's report, which is older.
    """
    known = [(bundle, traffic) for bundle in bundles if (traffic := traffic_of(bundle)) is not None]
    inwards = max(load.msg_throughput_in, fsum(traffic.msg_throughput_in for _, traffic in known))
    outwards = max(load.msg_throughput_out, fsum(traffic.msg_throughput_out for _, traffic in known))
    rate = max(load.msg_rate, fsum(traffic.msg_rate for _, traffic in known))
    costs, memory, inverse = cluster.costs, cluster.memory, side.inverse
    cost = costs.of(rate, inwards + outwards)
    busy = max(0.0, use[0] - costs.idle * load.cpu.limit)
    memory_cost = memory.whole(side.name) if inverse[MEMORY] > 0 else 0.0
    cached = max(0.0, use[MEMORY] - memory.idle * load.direct_memory.limit)
    result = []
    for bundle, traffic in known:
        throughput, messages = traffic.msg_throughput, traffic.msg_rate
        part = share_of(memory.of(bundle.namespace, throughput), memory_cost) if memory_cost > 0 else 0.0
        own = (
            busy * share_of(costs.of(messages, throughput), cost),
            use[1] * share_of(traffic.msg_throughput_in, inwards),
            use[2] * share_of(traffic.msg_throughput_out, outwards),
            cached * part,
        )
        size = parts_of(own, inverse)
        if size > 0:
            young = bundle.estimated or bundle.averages.short.samples < SAMPLES
            moved = max(per(throughput, cluster.throughput), per(messages, cluster.rate))
            result.append(BundleDemand(size, bundle, own, moved, throughput, young))
    result.sort(key=lambda demand: (demand.size, demand.bundle.name))
    return result


def traffic_of(bundle: Bundle) -> TrafficRates | None:
    """A bundle's traffic: its short-term average, or this moment's figures while that is young; None if unknown."""
    short, stats = bundle.averages.short, bundle.stats
    if short.samples >= SAMPLES and is_sound(short):
        return short
    if stats is not None and is_sound(stats):
        return stats
    return short if short.samples and is_sound(short) else None


def cpu_costs(loads: Iterable[BrokerLoad]) -> CpuCosts:
    """Estimate the costs from these reports."""
    rows = [
        (1.0, load.msg_rate / load.cpu.limit, load.msg_throughput / load.cpu.limit, load.cpu.usage / load.cpu.limit)
        for load in loads
        if load.cpu.limit >= LEAST_LIMIT
    ]
    products = [[fsum(row[i] * row[j] for row in rows) / len(rows) for j in range(4)] for i in range(4)] if rows else []
    if not rows or not products[0][3] > 0 or not products[0][1] + products[0][2] > 0:
        return CpuCosts()
    _, messages, size, used = products[0]
    having = (messages > 0) + (size > 0)
    prior = 0.0, (messages > 0) / having, (size > 0) / having
    parts: Sequence[float] = fit_parts(products, prior)
    if not parts[1] + parts[2] > 0:
        parts = prior
    return CpuCosts(parts[0] * used, per(parts[1] * used, messages), per(parts[2] * used, size))


def per(amount: float, of: float) -> float:
    """The amount per unit; bounded, as the number of units may be nearly zero and products must stay finite."""
    return min(MOST, amount / of) if of > 0 else 0.0


def fit_parts(products: Sequence[Sequence[float]], prior: Sequence[float]) -> list[float]:
    """Which part of the mean of a quantity each column explains: non-negative least squares with a ridge; the sum is 1.

    One part after the other, in turn, until none changes.

    Args:
        products: Means of the products of the columns: 1, the columns, the quantity; by rows.
        prior: The parts where the rows are too similar to tell, with a sum of 1.
    """
    last, means = len(prior), products[0]
    matrix = [[per(per(products[i][j], means[i]), means[j]) for j in range(last)] for i in range(last)]
    right = [per(per(products[i][last], means[i]), means[last]) for i in range(last)]
    parts = list(prior)
    for _ in range(ROUNDS):
        largest = 0.0
        for place, row in enumerate(matrix):
            others = fsum(value * part for value, part in zip(row, parts, strict=True)) - row[place] * parts[place]
            part = max(0.0, (right[place] - others + RIDGE * prior[place]) / (row[place] + RIDGE))
            largest = max(largest, abs(part - parts[place]))
            parts[place] = part
        if largest < TINY:
            break
    total = fsum(parts)
    return [part / total for part in parts] if total > 0 else list(prior)
