"""Placement of `weighted-move`: each broker's expected use of each resource, with the bundles in flight. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from math import fsum, inf

from loaddata.model.broker_load import ResourceWeights
from shedders.model.candidates import LEAST, MOST_UNSEEN, KnownBrokers, came_since
from shedders.model.cluster import Bundle, Cluster
from shedders.weighted_move.loads import Use, cpu_costs, inverse_of, per, plus, traffic_of, use_of

_NONE: Use = (0.0, 0.0, 0.0, 0.0)
_FREE = 0, "", _NONE


class Expected:
    """Expected use of the brokers of one cluster, in parts of their limits.

    Direct memory is left out: what a bundle will need of it is not known. A bundle counts by the cluster's cost of a byte and of
    a message, as its former broker may be gone; an unmeasured one counts like the average bundle (at most a twentieth of an
    average broker); none counts less than a thousandth.
    """

    def __init__(self, cluster: Cluster, known: KnownBrokers, weights: ResourceWeights) -> None:
        self._cluster = cluster
        loads = known.loads
        weights = weights._replace(direct_memory=0.0)
        self._use = {name: use_of(load) for name, load in loads.items()}
        self._inverse = {name: inverse_of(load, weights) for name, load in loads.items()}
        used, limits = _sum(self._use.values()), self._limits(loads)
        self._bytes_in = per(used[1], sum(load.msg_throughput_in for load in loads.values()))
        self._bytes_out = per(used[2], sum(load.msg_throughput_out for load in loads.values()))
        self._cpu = cpu_costs(loads.values())
        count = max(1, len(loads))
        self._least = [limit / count * LEAST for limit in limits]
        bundles = sum(map(cluster.bundles_of.count, loads))
        self._unseen = self._at_least(
            [min(limit / count * MOST_UNSEEN, use / bundles) for limit, use in zip(limits, used, strict=True)]
            if bundles
            else _NONE
        )
        self._costs: dict[str, Use] = {}
        self._came = came_since(cluster, self._use)
        for name, arrivals in self._came.items():
            self._use[name] = _sum([self._use[name], *map(self._cost_of, sorted(arrivals))])
        # By broker: number of bundles in flight that are counted, the last of them, and their total use.
        self._booked: dict[str, tuple[int, str, Use]] = {}
        self._levels = {name: self._level(name, _NONE, _NONE) for name in self._use}
        self._order = sorted((level, name) for name, level in self._levels.items())

    def levels(self, names: Sequence[str], booked: Mapping[str, Sequence[str]]) -> dict[str, float]:
        """The most used resource of each broker, with the bundles in flight."""
        for name in sorted(self._booked.keys() - booked.keys()):
            self._count(name, ())
        for name in booked:
            bundles = booked[name]
            count, last, _ = self._booked.get(name, (0, "", _NONE))
            if name in self._use and (count != len(bundles) or (count and bundles[-1] != last)):
                self._count(name, bundles)
        levels = self._levels
        return {name: levels[name] for name in names}

    def spread(self, names: Sequence[str]) -> float:
        """The most used resource of these brokers if everything that the cluster has were spread over them by their limits."""
        return max(map(per, _sum(self._use.values()), self._limits(names)))

    def _limits(self, names: Iterable[str]) -> list[float]:
        """The sum of these brokers' limits, over the weights; of direct memory none."""
        inverses = [self._inverse[name] for name in names if name in self._inverse]
        return [fsum(1 / by for by in column if by > 0) for column in zip(*inverses, strict=True)] or [*_NONE]

    def with_bundle(
        self, bundle: Bundle, names: Sequence[str], booked: Mapping[str, Sequence[str]]
    ) -> dict[str, float]:
        """The most used resource of each broker if it took this bundle, with those in flight."""
        self.levels(names, booked)
        cost = self._cost(bundle)
        return {name: self._level(name, cost, self._booked.get(name, _FREE)[2]) for name in names}

    def best(self, bundle: Bundle, among: Mapping[str, float]) -> tuple[float, list[str]]:
        """The lowest level with this bundle added, and the brokers that would have it.

        Args:
            among: The result of `levels`.
        """
        cost = self._cost(bundle)
        least, best = inf, list[str]()
        for level, name in self._order:
            if level > least:
                break  # with the bundle their level is still higher
            if name in among:
                after = self._level(name, cost, self._booked.get(name, _FREE)[2])
                if after < least:
                    least, best = after, [name]
                elif after == least:
                    best.append(name)
        return least, sorted(best)

    def _level(self, name: str, more: Use, booked: Use) -> float:
        # Written out: a storm of lookups computes it for each broker that is compared.
        use, inverse = self._use[name], self._inverse[name]
        return max(
            (use[0] + booked[0] + more[0]) * inverse[0],
            (use[1] + booked[1] + more[1]) * inverse[1],
            (use[2] + booked[2] + more[2]) * inverse[2],
        )

    def _count(self, name: str, bundles: Sequence[str]) -> None:
        """Count the bundles in flight to a broker; incrementally while the list only grows."""
        count, last, total = self._booked.pop(name, _FREE)
        if count > len(bundles) or (count and bundles[count - 1] != last):
            count, total = 0, _NONE
        if bundles:
            came = self._came.get(name, ())
            total = _sum([total, *(self._cost_of(bundle) for bundle in bundles[count:] if bundle not in came)])
            self._booked[name] = len(bundles), bundles[-1], total
        self._order.pop(bisect_left(self._order, (self._levels[name], name)))
        self._levels[name] = self._level(name, _NONE, total)
        insort(self._order, (self._levels[name], name))

    def _cost_of(self, name: str) -> Use:
        bundle = self._cluster.bundles.get(name)
        return self._unseen if bundle is None else self._cost(bundle)

    def _cost(self, bundle: Bundle) -> Use:
        cost = self._costs.get(bundle.name)
        if cost is None:
            cost = self._costs[bundle.name] = self._compute_cost(bundle)
        return cost

    def _compute_cost(self, bundle: Bundle) -> Use:
        traffic = traffic_of(bundle)
        if traffic is None:
            return self._unseen
        return self._at_least(
            (
                self._cpu.of(traffic.msg_rate, traffic.msg_throughput),
                self._bytes_in * traffic.msg_throughput_in,
                self._bytes_out * traffic.msg_throughput_out,
                0.0,
            )
        )

    def _at_least(self, use: Sequence[float]) -> Use:
        cpu, inwards, outwards, memory = map(max, use, self._least)
        return cpu, inwards, outwards, memory


def _sum(uses: Iterable[Use]) -> Use:
    return reduce(plus, uses, _NONE)
