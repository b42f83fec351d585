"""The cluster after moves: owners change, loads move with the bundles, time passes.

The assumptions of a dry run of several cycles (design/snapshot.md):

* A bundle's traffic moves with it: its figures of this moment, else its short-term average if it was measured.
* Rates and counts of the two brokers change by that traffic. CPU and direct memory follow the bundle's share of the source's
  bytes in both directions, bandwidths its share in each; heap memory stays. Usage moves in its own unit, so that a broker with
  another limit is affected in proportion. The moving averages move by the same share at once, as TransferShedder assumes.
* The children of a split stay on the same broker.
* Then `every_s` passes: reports are renewed (their age at the next decision is the same), ages of recent moves grow, and figures
  that were estimated or second-hand are measured.
* Each broker that gave or got bundles reports new top bundles: as many as the broker that reported most, the lightest first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter

from loaddata.model.broker_load import BrokerLoad, ResourceUsage
from loaddata.model.bundle_load import UNSEEN, BundleAverages, BundleStats, MessageAverage, TrafficRates, order_of
from loaddata.model.bundle_load import is_sound as stats_sound
from shedders.model.cluster import Broker, Bundle, Cluster, RecentMoves, TopicLoad
from shedders.model.cuts import children, ends, part_of, topics_in
from shedders.model.plan import BundleMove, SplitPlan
from shedders.model.readings import is_amount, is_sound, share_of

EVERY_S = 60.0  # upstream's interval between two decisions (`loadBalancerSheddingIntervalMinutes`)
_NOTHING = BundleStats()


@dataclass(frozen=True, slots=True)
class MovedLoad(TrafficRates):
    """The load that goes with a bundle: its traffic a second, and its part of the source's usage in each resource's unit.

    Attributes:
        weighted_max: Part of the moving average of the weighted maximum, 1 for a full broker.
        throughput: Part of the moving average of the bytes a second.
    """

    topics: int = 0
    cpu: float = 0.0
    direct_memory: float = 0.0
    bandwidth_in: float = 0.0
    bandwidth_out: float = 0.0
    weighted_max: float = 0.0
    throughput: float = 0.0


def after_moves(cluster: Cluster, moves: Iterable[BundleMove], *, every_s: float = EVERY_S) -> Cluster:
    """The cluster before the next decision, if these moves are made now.

    Moves without a destination, of bundles that the source does not serve, or to unknown brokers change nothing.
    """
    brokers, bundles = dict(cluster.brokers), dict(cluster.bundles)
    moved: list[str] = []
    touched: set[str] = set()
    for move in moves:
        bundle = bundles.get(move.bundle)
        if bundle is None or bundle.owner != move.source or move.destination not in brokers:
            continue
        giver = brokers.get(move.source)
        shift(brokers, move.source, move.destination, cargo_of(bundle, None if giver is None else giver.load))
        bundles[move.bundle] = replace(bundle, owner=move.destination)
        moved.append(move.bundle)
        touched |= {move.source, move.destination}
    _update_ranks(bundles, touched)
    return _renewed(replace(cluster, brokers=brokers, bundles=bundles), moved, touched, every_s)


def after_splits(cluster: Cluster, splits: Iterable[SplitPlan], *, every_s: float = EVERY_S) -> Cluster:
    """The cluster before the next decision, if these splits are made now; children stay where their parent was."""
    cut = [split for split in splits if split.positions and split.bundle in cluster.bundles]
    split_up = with_children(cluster, cut)
    bundles = dict(split_up.bundles)
    _update_ranks(bundles, {owner for split in cut if (owner := cluster.bundles[split.bundle].owner) is not None})
    return _renewed(replace(split_up, bundles=bundles), (), (), every_s)


def _renewed(cluster: Cluster, moved: Iterable[str], touched: Iterable[str], every_s: float) -> Cluster:
    """Let time pass, and all brokers report."""
    measured = {
        name: replace(bundle, estimated=False, secondhand=False)
        for name, bundle in cluster.bundles.items()
        if (bundle.estimated and bundle.stats is not None) or bundle.secondhand
    }
    return replace(
        cluster,
        brokers={name: _later(broker, every_s) for name, broker in cluster.brokers.items()},
        bundles={**cluster.bundles, **measured} if measured else cluster.bundles,
        recent=_recent(cluster.recent, moved, touched, every_s),
        now_ms=cluster.now_ms + round(every_s * 1000),
    )


def traffic_of(bundle: Bundle) -> TrafficRates:
    """The traffic that moves with a bundle: this moment's figures, else its short-term average, else nothing."""
    if bundle.stats is not None:
        return bundle.stats
    return bundle.averages.short if bundle.averages.short.samples else _NOTHING


def cargo_of(bundle: Bundle, source: BrokerLoad | None) -> MovedLoad:
    """The load that moves with a bundle from a broker with this load; without a report its traffic alone."""
    traffic = traffic_of(bundle)
    topics = traffic.topics if isinstance(traffic, BundleStats) else 0
    rates = (traffic.msg_rate_in, traffic.msg_rate_out, traffic.msg_throughput_in, traffic.msg_throughput_out)
    if source is None:
        return MovedLoad(*rates, topics=topics)
    both = share_of(traffic.msg_throughput, source.msg_throughput)
    return MovedLoad(
        *rates,
        topics=topics,
        cpu=source.cpu.usage * both,
        direct_memory=source.direct_memory.usage * both,
        bandwidth_in=source.bandwidth_in.usage * share_of(traffic.msg_throughput_in, source.msg_throughput_in),
        bandwidth_out=source.bandwidth_out.usage * share_of(traffic.msg_throughput_out, source.msg_throughput_out),
        weighted_max=source.weighted_max_ema * both,
        throughput=source.msg_throughput_ema * both,
    )


def shift(brokers: dict[str, Broker], source: str | None, destination: str | None, cargo: MovedLoad) -> None:
    """Take a load from one broker and add it to another, as far as they are registered and have reported."""
    for name, sign in ((source, -1), (destination, 1)):
        broker = None if name is None else brokers.get(name)
        if broker is not None and broker.load is not None:
            brokers[broker.name] = replace(broker, load=_changed(broker.load, cargo, sign))


def _changed(load: BrokerLoad, cargo: MovedLoad, sign: int) -> BrokerLoad:
    changed = replace(
        load,
        msg_rate_in=_plus(load.msg_rate_in, sign * cargo.msg_rate_in),
        msg_rate_out=_plus(load.msg_rate_out, sign * cargo.msg_rate_out),
        msg_throughput_in=_plus(load.msg_throughput_in, sign * cargo.msg_throughput_in),
        msg_throughput_out=_plus(load.msg_throughput_out, sign * cargo.msg_throughput_out),
        bundles=max(0, load.bundles + sign),
        topics=max(0, load.topics + sign * cargo.topics),
        cpu=_use(load.cpu, sign * cargo.cpu),
        direct_memory=_use(load.direct_memory, sign * cargo.direct_memory),
        bandwidth_in=_use(load.bandwidth_in, sign * cargo.bandwidth_in),
        bandwidth_out=_use(load.bandwidth_out, sign * cargo.bandwidth_out),
        weighted_max_ema=_plus(load.weighted_max_ema, sign * cargo.weighted_max),
        msg_throughput_ema=_plus(load.msg_throughput_ema, sign * cargo.throughput),
    )
    used = (changed.cpu, changed.direct_memory, changed.bandwidth_in, changed.bandwidth_out)
    if any(resource.limit > 0 for resource in used):
        changed = replace(changed, max_resource_usage=max(resource.percent for resource in used) / 100)
    return changed


def _use(resource: ResourceUsage, change: float) -> ResourceUsage:
    return ResourceUsage(_plus(resource.usage, change), resource.limit)


def _plus(value: float, change: float) -> float:
    """A sum that a subtraction does not make negative; a negative value stays as it is."""
    return max(min(value, 0.0), value + change)


def _later(broker: Broker, every_s: float) -> Broker:
    load = broker.load
    if load is None:
        return broker
    passed_ms = round(every_s * 1000)
    return replace(
        broker,
        load=replace(
            load,
            updated_at_ms=load.updated_at_ms + passed_ms if load.updated_at_ms else 0,
            reported_at_ms=load.reported_at_ms + passed_ms if load.reported_at_ms else 0,
        ),
    )


def _recent(recent: RecentMoves, moved: Iterable[str], touched: Iterable[str], every_s: float) -> RecentMoves:
    def aged(ages: Mapping[str, float], now: Iterable[str]) -> dict[str, float]:
        older = {name: age_s + every_s for name, age_s in ages.items()}
        return older | dict.fromkeys(sorted(now), every_s)

    return RecentMoves(bundles=aged(recent.bundles, moved), brokers=aged(recent.brokers, touched))


def _update_ranks(bundles: dict[str, Bundle], touched: set[str]) -> None:
    named: dict[str, int] = {}
    for bundle in bundles.values():
        if bundle.rank is not None and bundle.owner is not None:
            named[bundle.owner] = named.get(bundle.owner, 0) + 1
    if not named or not touched:
        return
    limit = max(named.values())
    by_owner: dict[str, list[Bundle]] = {name: [] for name in touched}
    for bundle in bundles.values():
        if bundle.owner in by_owner:
            by_owner[bundle.owner].append(bundle)
    for owned in by_owner.values():
        measured = sorted((bundle for bundle in owned if bundle.stats is not None), key=_weight)[-limit:]
        ranks = {bundle.name: rank for rank, bundle in enumerate(measured)}
        for bundle in owned:
            if bundle.rank != ranks.get(bundle.name):
                bundles[bundle.name] = replace(bundle, rank=ranks.get(bundle.name))


def _weight(bundle: Bundle) -> tuple[int | str, ...]:
    """Upstream's order of `NamespaceBundleStats`, ties by name."""
    return (*order_of(bundle.stats or _NOTHING), bundle.name)


_RATES = ("msg_rate_in", "msg_rate_out", "msg_throughput_in", "msg_throughput_out")
Measured = Callable[[TopicLoad], float]


def offspring(parent: Bundle, positions: Sequence[int]) -> Sequence[Bundle]:
    """The children of a split.

    Figures of the parent that are not finite or negative are not passed on.

    Raises:
        CannotSplitError: The positions are not strictly inside it, or not distinct.
    """
    names, cuts = children(parent, positions), sorted(positions)
    topics: list[list[TopicLoad]] = [[] for _ in names]
    lower, upper = ends(parent)
    for topic in topics_in(parent, lower, upper):
        topics[part_of(topic.position, cuts)].append(topic)
    shares = _Shares([high - low for low, high in pairwise([lower, *cuts, upper])], topics)
    stats = _stats(parent, shares)
    short, long = (
        _average(average, shares, measured=average.samples > 0 or parent.estimated)
        for average in (parent.averages.short, parent.averages.long)
    )
    return [
        replace(
            parent,
            name=name,
            stats=stats[part],
            averages=BundleAverages(short[part], long[part]),
            topics=tuple(topics[part]),
            estimated=True,
        )
        for part, name in enumerate(names)
    ]


def with_children(cluster: Cluster, splits: Iterable[SplitPlan]) -> Cluster:
    """The cluster with the children of these splits in place of their parents; those that cut nothing change nothing."""
    bundles = dict(cluster.bundles)
    for split in splits:
        parent = bundles.get(split.bundle)
        if parent is not None and split.positions:
            del bundles[split.bundle]
            bundles.update((child.name, child) for child in offspring(parent, split.positions))
    return replace(cluster, bundles=bundles)


def with_estimates(cluster: Cluster, estimates: Mapping[str, Bundle]) -> Cluster:
    """The cluster with estimates for unmeasured bundles: a live balancer keeps the results of `offspring`.

    Owner, and whether it is in flight, stay as the channel has them.
    """
    estimated = {
        name: replace(estimate, owner=cluster.bundles[name].owner, in_flight=cluster.bundles[name].in_flight)
        for name, estimate in estimates.items()
        if name in cluster.bundles and cluster.bundles[name].stats is None
    }
    return replace(cluster, bundles={**cluster.bundles, **estimated}) if estimated else cluster


class _Shares:
    def __init__(self, widths: Sequence[int], topics: Sequence[Sequence[TopicLoad]]) -> None:
        self._widths = list(widths)
        self._topics = topics
        self.counts = [len(part) for part in topics]

    def of(self, measured: Measured) -> Sequence[float]:
        """Weights by the topics' traffic, else by the width of the range."""
        sums = [sum(value for value in map(measured, part) if is_amount(value)) for part in self._topics]
        return sums if is_amount(sum(sums)) and sum(sums) > 0 else self._widths

    def of_topics(self) -> Sequence[int]:
        """Weights by the number of topics, else by the width of the range."""
        return self.counts if any(self.counts) else self._widths


def _stats(parent: Bundle, shares: _Shares) -> Sequence[BundleStats | None]:
    stats = parent.stats
    if stats is None or not stats_sound(stats):
        return [None] * len(shares.counts)
    all_known = sum(shares.counts) == stats.topics
    topics = shares.counts if all_known else _whole(stats.topics, shares.of_topics())
    columns = zip(
        *_rate_columns(stats, shares),
        topics,
        _whole(stats.consumers, shares.of_topics()),
        _whole(stats.producers, shares.of_topics()),
        _whole(stats.cache_size_bytes, shares.of_topics()),
        strict=True,
    )
    return [BundleStats(*column) for column in columns]


def _average(average: MessageAverage, shares: _Shares, *, measured: bool) -> Sequence[MessageAverage]:
    if not is_sound(average):
        return [UNSEEN] * len(shares.counts)
    if not measured:
        # A default for unknown traffic holds for a part as well as for the whole.
        return [average] * len(shares.counts)
    columns = zip(*_rate_columns(average, shares), strict=True)
    return [MessageAverage(*column) for column in columns]


def _rate_columns(whole: TrafficRates, shares: _Shares) -> list[list[float]]:
    """Of each rate the parts, by the topics' figures of that rate."""
    return [_parted(getattr(whole, rate), shares.of(attrgetter(rate))) for rate in _RATES]


def _parted(total: float, weights: Sequence[float]) -> list[float]:
    """Parts by weight that add up: the largest takes the rounding error."""
    whole = sum(weights)
    parts = [total * (weight / whole) for weight in weights]
    largest = max(range(len(parts)), key=lambda index: (parts[index], -index))
    parts[largest] = max(0.0, total - sum(part for index, part in enumerate(parts) if index != largest))
    return parts


def _whole(total: int, weights: Sequence[int]) -> list[int]:
    """Whole parts by weight that add up: those with the largest remainders are rounded up, the first of equals."""
    whole = sum(weights)
    parts = [total * weight // whole for weight in weights]
    by_rest = sorted(range(len(parts)), key=lambda index: (-(total * weights[index] % whole), index))
    for index in by_rest[: total - sum(parts)]:
        parts[index] += 1
    return parts
