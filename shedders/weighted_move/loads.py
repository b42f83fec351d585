"""What `weighted-move` reckons in: each broker's use of each resource against its own limits, and what a bundle has of it. Pure.

A broker's level is its most used resource in parts of the cluster's: `max_r(usage_r / limit_r) / T` with
`T = max_r(sum of usage_r / sum of limit_r)` over all brokers that take part; 1 is what it would have if everything were spread by
capacity. A bundle's use goes along in the resource's own unit, so that a broker with other limits feels it in proportion.

What a bundle has of its broker's use: of each direction of the network its share of the broker's bytes in that direction; of CPU,
without what idling takes, its share of what the broker's messages and bytes cost (`shedders.weighted_move.cpu_cost`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import NamedTuple

from loaddata.model.broker_load import BrokerLoad, ResourceWeights
from loaddata.model.bundle_load import BundleStats, MessageAverage
from shedders.model.cluster import Bundle
from shedders.model.readings import LEAST_LIMIT, is_sound
from shedders.weighted_move.cpu_cost import CpuCosts, cpu_costs, per

LEAST_WEIGHT = 1e-6
"""A resource that counts less than this part of another one counts nothing."""

RESOURCES = ("CPU", "bandwidth in", "bandwidth out")

SAMPLES = 3
"""Fewer samples are no average yet: then this moment's figures count."""

Use = tuple[float, float, float]
"""CPU in percent of one core, both directions of the network in kbit/s; or each in parts of a limit."""


class BundleDemand(NamedTuple):
    """A bundle that may go.

    Attributes:
        size: Its part of its broker, by the resource it has most of; 1 is the whole broker.
        use: In the resources' own units.
        churn: Its traffic, 1 for what an average broker has: its bytes or its messages, whichever is more.
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
        inverse: What each resource counts over its limit of it; 0 where it has none.
        scale: One over the cluster's level (`T`).
        capacity: Its limit of the cluster's scarcest resource, 1 for the average broker.
        takes: It takes bundles at all.
        over, under: It has stood apart for long enough, above or below.
        urgent: So far that nothing else counts.
        waits: It has too much, and that is news: it gives nothing yet.
        aim: It is relieved until it stands no higher.
        given, taken: The plan takes from it, or gives to it; `came`: so many bundles.
    """

    name: str
    use: Use
    inverse: Use
    scale: float = 1.0
    capacity: float = 1.0
    takes: bool = True
    over: bool = False
    under: bool = False
    urgent: bool = False
    waits: bool = False
    aim: float = 1.0
    given: bool = False
    taken: bool = False
    came: int = 0
    level: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.level = self.with_(0.0, 0.0, 0.0)

    def with_(self, cpu: float, inwards: float, outwards: float) -> float:
        """Its level with so much more (or less) of each resource."""
        use, inverse = self.use, self.inverse
        level = (use[0] + cpu) * inverse[0]
        other = (use[1] + inwards) * inverse[1]
        if other > level:
            level = other
        other = (use[2] + outwards) * inverse[2]
        if other > level:
            level = other
        return level * self.scale

    def add(self, use: Use, sign: int) -> None:
        """A bundle comes (1) or goes (-1)."""
        mine = self.use
        self.use = (
            max(0.0, mine[0] + sign * use[0]),
            max(0.0, mine[1] + sign * use[1]),
            max(0.0, mine[2] + sign * use[2]),
        )
        self.level = self.with_(0.0, 0.0, 0.0)

    @property
    def busiest(self) -> int:
        """Its most used resource."""
        parts = [use * inverse for use, inverse in zip(self.use, self.inverse, strict=True)]
        return parts.index(max(parts))


def use_of(load: BrokerLoad) -> Use:
    """What a broker uses."""
    return load.cpu.usage, load.bandwidth_in.usage, load.bandwidth_out.usage


def inverse_of(load: BrokerLoad, weights: ResourceWeights) -> Use:
    """What each resource counts over its limit: one that counts half has twice the limit, so to say."""
    return (
        _inverse(load.cpu.limit, weights.cpu),
        _inverse(load.bandwidth_in.limit, weights.bandwidth_in),
        _inverse(load.bandwidth_out.limit, weights.bandwidth_out),
    )


def _inverse(limit: float, weight: float) -> float:
    return weight / limit if limit >= LEAST_LIMIT else 0.0


def parts_of(use: Use, inverse: Use) -> float:
    """The most used resource, in parts of its limit."""
    return max(use[0] * inverse[0], use[1] * inverse[1], use[2] * inverse[2])


def times(use: Use, factor: float) -> Use:
    """So many times each."""
    return use[0] * factor, use[1] * factor, use[2] * factor


@dataclass(frozen=True, slots=True)
class ClusterTotals:
    """The cluster's sums.

    Attributes:
        level: Use over capacity of its scarcest resource (`T`); 0 where nothing is used.
        scarcest: Which one that is.
        limit: An average broker's limit of it.
        throughput, rate: An average broker's traffic.
        costs: What traffic costs in CPU.
    """

    level: float
    scarcest: int
    limit: float
    throughput: float
    rate: float
    costs: CpuCosts


def whole(loads: Mapping[str, BrokerLoad], uses: Mapping[str, Use], inverses: Mapping[str, Use]) -> ClusterTotals:
    """Add up the brokers whose figures count.

    Args:
        uses: What they use, as smoothed; `inverses`: one over what they can.
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
    )


class Weights:
    """What the bundles of one broker have of its use.

    Args:
        use: Of the broker, as smoothed.
        known: Its bundles: they may report more than it does, whose report is older.
    """

    def __init__(
        self, load: BrokerLoad, use: Use, inverse: Use, known: Sequence[Bundle], cluster: ClusterTotals
    ) -> None:
        traffic = [found for one in known if (found := traffic_of(one)) is not None]
        self._use, self._inverse, self._cluster = use, inverse, cluster
        self._in = max(load.msg_throughput_in, fsum(one.msg_throughput_in for one in traffic))
        self._out = max(load.msg_throughput_out, fsum(one.msg_throughput_out for one in traffic))
        rate = max(load.msg_rate, fsum(one.msg_rate for one in traffic))
        self._cost = cluster.costs.of(rate, self._in + self._out)
        self._busy = max(0.0, use[0] - cluster.costs.idle * load.cpu.limit) if inverse[0] > 0 else use[0]

    def cargo(self, bundle: Bundle) -> BundleDemand | None:
        """A bundle with what it has; None where nobody knows."""
        traffic = traffic_of(bundle)
        if traffic is None:
            return None
        use = self._of(traffic)
        inverse = self._inverse
        size = max(use[0] * inverse[0], use[1] * inverse[1], use[2] * inverse[2])
        throughput, cluster = traffic.msg_throughput, self._cluster
        by_bytes, by_messages = per(throughput, cluster.throughput), per(traffic.msg_rate, cluster.rate)
        young = bundle.estimated or bundle.averages.short.samples < SAMPLES
        return BundleDemand(size, bundle, use, max(by_bytes, by_messages), throughput, young)

    def _of(self, traffic: BundleStats | MessageAverage) -> Use:
        cost = _share(self._cluster.costs.of(traffic.msg_rate, traffic.msg_throughput), self._cost)
        use = self._use
        return (
            self._busy * cost,
            use[1] * _share(traffic.msg_throughput_in, self._in),
            use[2] * _share(traffic.msg_throughput_out, self._out),
        )


def traffic_of(bundle: Bundle) -> BundleStats | MessageAverage | None:
    """What to reckon a bundle with: its short-term average, this moment's figures while that is young; None if unknown."""
    short, stats = bundle.averages.short, bundle.stats
    if short.samples >= SAMPLES and is_sound(short):
        return short
    if stats is not None and is_sound(stats):
        return stats
    return short if short.samples and is_sound(short) else None


def _share(part: float, of: float) -> float:
    return min(1.0, part / of) if part > 0 and of > 0 else 0.0
