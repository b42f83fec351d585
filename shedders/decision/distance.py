"""Distance of a decision from the best: the largest use that it leaves, and what no other decision gets below. Pure.

The use of bundles is that of every dry run (`shedders.model.moved_cluster`): CPU and direct memory follow a bundle's share of its
broker's bytes, each bandwidth its share of the bytes of that direction. The load of a move is the bundle's bytes a second in both
directions.

Only brokers with usable reports count. Policies, grace periods and budgets are ignored, so a bound may be below what they allow;
only brokers that take no bundles at all, and bundles in flight, are known to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import isfinite
from typing import Final, NamedTuple

from loaddata.model.broker_load import BrokerLoad, ResourceWeights
from shedders.decision.dry_run import Decision
from shedders.decision.relaxed_bound import BrokerUse, BundleUse, RelaxedBound, level_of
from shedders.filters.rules import FilterSettings
from shedders.model.cluster import Bundle, Cluster
from shedders.model.moved_cluster import traffic_of
from shedders.model.plan import BundleMove
from shedders.model.readings import MOST, ReadingSettings, may_receive, why_unreadable
from shedders.model.strategy import StrategySettings

RESOURCES: Final = ("cpu", "direct_memory", "bandwidth_in", "bandwidth_out")
_NO_USE: Final[BundleUse] = ((0.0,) * len(RESOURCES), 0.0)
LEAST: Final = 1e-30  # bytes a second; less counts as no traffic


class DistanceToBest(NamedTuple):
    """Uses are parts of a broker's limit: 1 is a full broker.

    Attributes:
        largest_use: After the decision, of all brokers and resources.
        bound: No decision that moves at most this load gets below it.
        any_load_bound: No decision at all gets below it.
        load_moved: Bytes a second in both directions.
    """

    largest_use: float
    broker: str
    resource: str
    bound: float
    any_load_bound: float
    load_moved: float

    @property
    def gap_percent(self) -> float | None:
        """How far the largest use is above the bound, in percent of the bound; None without a bound."""
        if not self.bound > 0:
            return None
        gap = 100 * max(0.0, self.largest_use / self.bound - 1)
        return gap if isfinite(gap) else None


class DistanceReader:
    """Reads a cluster once, and compares decisions on it with the best.

    Args:
        cluster: With the moves in flight counted, as strategies see it.
    """

    def __init__(self, cluster: Cluster, max_age_s: float, ignored: Collection[str] = ()) -> None:
        self._cluster = cluster
        self._groups = cluster.bundles_of
        self._counts = [resource not in ignored for resource in RESOURCES]
        settings = ReadingSettings(max_age_s=max_age_s)
        self._loads: dict[str, BrokerLoad] = {}
        self._uses: dict[str, BrokerUse] = {}
        for name in cluster.broker_names:
            broker = cluster.brokers[name]
            if broker.load is not None and why_unreadable(broker, settings, None) is None:
                self._loads[name] = broker.load
                self._uses[name] = self._use_of(name, broker.load)
        self._names = list(self._uses)
        self._bound = RelaxedBound(list(self._uses.values()), self._movable)

    def of(self, moves: Iterable[BundleMove]) -> DistanceToBest | None:
        """The distance after these moves; None if the load of a broker that takes part in them is not known."""
        after: dict[str, list[float]] = {}
        arrivals: list[tuple[str, tuple[float, ...]]] = []
        load_moved = 0.0
        by_source: dict[str, list[BundleMove]] = {}
        for move in moves:
            by_source.setdefault(move.source, []).append(move)
        for source, mine in by_source.items():
            bundles = [bundle for move in mine if (bundle := self._cluster.bundles.get(move.bundle)) is not None]
            if source not in self._uses or len(bundles) < len(mine):
                return None
            source_use = after.setdefault(source, list(self._uses[source].use))
            for move, (use, load) in zip(mine, uses_of(bundles, self._loads[source]), strict=True):
                destination = move.destination or ""
                if destination not in self._uses:
                    return None
                load_moved += load
                arrivals.append((destination, use))
                for resource, own in enumerate(use):
                    source_use[resource] -= own
        # Bundles may claim more than their broker uses; it is left with nothing, and has no credit for what arrives.
        for use_left in after.values():
            use_left[:] = [max(0.0, own) for own in use_left]
        for destination, use in arrivals:
            destination_use = after.setdefault(destination, list(self._uses[destination].use))
            for resource, own in enumerate(use):
                destination_use[resource] += own
        levels = dict(zip(self._names, self._bound.levels, strict=True))
        levels.update((name, level_of(use, self._uses[name].limits)) for name, use in after.items())
        broker = max(self._names, key=levels.__getitem__, default=None)
        if broker is None or not levels[broker] > 0:
            return None
        limits, end = self._uses[broker].limits, after.get(broker, self._uses[broker].use)
        parts = [own / limit if limit > 0 else 0.0 for own, limit in zip(end, limits, strict=True)]
        return DistanceToBest(
            levels[broker],
            broker,
            RESOURCES[parts.index(max(parts))],
            self._bound.within(load_moved),
            self._bound.any_load,
            load_moved,
        )

    def _use_of(self, name: str, load: BrokerLoad) -> BrokerUse:
        cpu, memory, incoming, outgoing = load.cpu, load.direct_memory, load.bandwidth_in, load.bandwidth_out
        counts_cpu, counts_memory, counts_in, counts_out = self._counts
        per_byte, per_byte_in, per_byte_out = _per_byte(load)
        return BrokerUse(
            (cpu.usage, memory.usage, incoming.usage, outgoing.usage),
            (
                cpu.limit if counts_cpu else 0.0,
                memory.limit if counts_memory else 0.0,
                incoming.limit if counts_in else 0.0,
                outgoing.limit if counts_out else 0.0,
            ),
            (
                cpu.usage * per_byte,
                memory.usage * per_byte,
                incoming.usage * per_byte_in,
                outgoing.usage * per_byte_out,
            ),
            self._groups.count(name),
            may_receive(self._cluster, name),
        )

    def _movable(self, place: int) -> list[BundleUse]:
        name = self._names[place]
        # In order, so that sums do not depend on that of the cluster.
        free = [bundle for bundle in self._groups.get(name, ()) if not bundle.in_flight]
        return uses_of(free, self._loads[name])


def uses_of(bundles: Iterable[Bundle], load: BrokerLoad) -> list[BundleUse]:
    """Parts of a broker's use by bundle; nothing for those without valid figures."""
    cpu, memory = load.cpu.usage, load.direct_memory.usage
    incoming, outgoing = load.bandwidth_in.usage, load.bandwidth_out.usage
    per_byte, per_byte_in, per_byte_out = _per_byte(load)
    uses: list[BundleUse] = []
    for bundle in bundles:  # for thousands of them
        traffic = bundle.stats or traffic_of(bundle)
        inwards, outwards = traffic.msg_throughput_in, traffic.msg_throughput_out
        if not (0.0 <= inwards <= MOST and 0.0 <= outwards <= MOST):
            uses.append(_NO_USE)
            continue
        both = inwards + outwards
        share, share_in, share_out = both * per_byte, inwards * per_byte_in, outwards * per_byte_out
        if share > 1.0 or share_in > 1.0 or share_out > 1.0:
            share, share_in, share_out = min(1.0, share), min(1.0, share_in), min(1.0, share_out)
        uses.append(((cpu * share, memory * share, incoming * share_in, outgoing * share_out), both))
    return uses


def _per_byte(load: BrokerLoad) -> tuple[float, float, float]:
    """Share of a broker's bytes that one byte a second is: of both directions, of those received, of those sent."""
    inwards, outwards = load.msg_throughput_in, load.msg_throughput_out
    both = inwards + outwards
    return (
        1 / both if both > LEAST else 0.0,
        1 / inwards if inwards > LEAST else 0.0,
        1 / outwards if outwards > LEAST else 0.0,
    )


def distances_of(decision: Decision, shedding: StrategySettings, filters: FilterSettings) -> DistanceReader:
    """What compares a decision with the best.

    Args:
        shedding: CPU and bandwidths that have no weight there are the business of others, and do not count. Direct memory has
            none unless operators give it one, which does not say that it is plentiful: it always counts.
    """
    weights = getattr(shedding, "weights", None)
    ignored = []
    if isinstance(weights, ResourceWeights):
        own = {"cpu": weights.cpu, "bandwidth_in": weights.bandwidth_in, "bandwidth_out": weights.bandwidth_out}
        ignored = [name for name, weight in own.items() if not weight > 0]
    return DistanceReader(decision.seen or decision.cluster, filters.taker_max_age_s, ignored)
