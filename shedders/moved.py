"""The cluster as it is after moves: owners change, loads go with the bundles, time passes.

What a dry run of several cycles assumes (design/snapshot.md):

* A bundle takes its traffic along: its figures of this moment, else its short-term average if anybody measured it.
* Rates and counts of the two brokers change by that traffic. CPU and direct memory follow the bundle's share of the source's
  bytes in both directions, bandwidths its share in each; heap memory stays. Usage moves in its own unit, so that a broker with
  another limit feels it in proportion. The moving averages move by the same share at once, as TransferShedder reckons.
* Then `every_s` passes: reports are renewed (their age at the next decision is the same), ages of recent moves grow.
* Each broker that gave or got names its top bundles anew: as many as the broker that named most of them, the lightest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import floor

from loaddata.broker_load import BrokerLoad
from loaddata.bundle_load import BundleStats, MessageAverage
from loaddata.usage import ResourceUsage
from shedders.cluster import Broker, Bundle, Cluster, RecentMoves
from shedders.plan import Move

EVERY_S = 60.0
"""Upstream's interval between two decisions (`loadBalancerSheddingIntervalMinutes`)."""

Traffic = BundleStats | MessageAverage
_NOTHING = BundleStats()


def after_moves(cluster: Cluster, moves: Iterable[Move], *, every_s: float = EVERY_S) -> Cluster:
    """The cluster before the next decision, if these moves are made now.

    Moves without a destination, of bundles that the source does not serve, or to brokers that are not there change nothing.
    """
    brokers, bundles = dict(cluster.brokers), dict(cluster.bundles)
    moved: list[str] = []
    touched: set[str] = set()
    for move in moves:
        bundle = bundles.get(move.bundle)
        if bundle is None or bundle.owner != move.source or move.destination not in brokers:
            continue
        giver = brokers.get(move.source)
        shift(brokers, move.source, move.destination, traffic_of(bundle), None if giver is None else giver.load)
        bundles[move.bundle] = replace(bundle, owner=move.destination)
        moved.append(move.bundle)
        touched |= {move.source, move.destination}
    _rank_anew(bundles, touched)
    return replace(
        cluster,
        brokers={name: _later(one, every_s) for name, one in brokers.items()},
        bundles=bundles,
        recent=_recent(cluster.recent, moved, touched, every_s),
        now_ms=cluster.now_ms + round(every_s * 1000),
    )


def traffic_of(bundle: Bundle) -> Traffic:
    """What a bundle takes along: this moment's figures, else its short-term average, else nothing."""
    if bundle.stats is not None:
        return bundle.stats
    return bundle.averages.short if bundle.averages.short.samples else _NOTHING


def shift(
    brokers: dict[str, Broker],
    source: str,
    destination: str | None,
    traffic: Traffic,
    before: BrokerLoad | None,
) -> None:
    """Take a bundle's load from its source and put it onto its destination, as far as both are there and have reported.

    Args:
        before: The source's load while it served the bundle; by its figures the bundle's share of the usage is reckoned.
    """
    shares = _Shares(before, traffic)
    giver = brokers.get(source)
    if giver is not None and giver.load is not None and before is not None:
        brokers[source] = replace(giver, load=_changed(giver.load, before, shares, traffic, -1))
    taker = None if destination is None else brokers.get(destination)
    if taker is not None and taker.load is not None:
        brokers[taker.name] = replace(taker, load=_changed(taker.load, before, shares, traffic, 1))


class _Shares:
    """The bundle's part of its source's bytes, 0 to 1, in all and in each direction."""

    def __init__(self, load: BrokerLoad | None, traffic: Traffic) -> None:
        self.both = self.inward = self.outward = 0.0
        if load is not None:
            self.both = _share(traffic.msg_throughput, load.msg_throughput)
            self.inward = _share(traffic.msg_throughput_in, load.msg_throughput_in)
            self.outward = _share(traffic.msg_throughput_out, load.msg_throughput_out)


def _share(part: float, whole: float) -> float:
    return min(1.0, part / whole) if part > 0 and whole > 0 else 0.0


def _changed(load: BrokerLoad, giver: BrokerLoad | None, shares: _Shares, traffic: Traffic, sign: int) -> BrokerLoad:
    topics = traffic.topics if isinstance(traffic, BundleStats) else 0
    found = replace(
        load,
        msg_rate_in=_plus(load.msg_rate_in, sign * traffic.msg_rate_in),
        msg_rate_out=_plus(load.msg_rate_out, sign * traffic.msg_rate_out),
        msg_throughput_in=_plus(load.msg_throughput_in, sign * traffic.msg_throughput_in),
        msg_throughput_out=_plus(load.msg_throughput_out, sign * traffic.msg_throughput_out),
        bundles=max(0, load.bundles + sign),
        topics=max(0, load.topics + sign * topics),
    )
    if giver is None or not (shares.both or shares.inward or shares.outward):
        return found
    found = replace(
        found,
        cpu=_use(load.cpu, sign * giver.cpu.usage * shares.both),
        direct_memory=_use(load.direct_memory, sign * giver.direct_memory.usage * shares.both),
        bandwidth_in=_use(load.bandwidth_in, sign * giver.bandwidth_in.usage * shares.inward),
        bandwidth_out=_use(load.bandwidth_out, sign * giver.bandwidth_out.usage * shares.outward),
        weighted_max_ema=_plus(load.weighted_max_ema, sign * giver.weighted_max_ema * shares.both),
        msg_throughput_ema=_plus(load.msg_throughput_ema, sign * giver.msg_throughput_ema * shares.both),
    )
    used = (found.cpu, found.direct_memory, found.bandwidth_in, found.bandwidth_out)
    if any(one.limit > 0 for one in used):
        found = replace(found, max_resource_usage=max(one.percent for one in used) / 100)
    return found


def _use(resource: ResourceUsage, change: float) -> ResourceUsage:
    return ResourceUsage(_plus(resource.usage, change), resource.limit)


def _plus(value: float, change: float) -> float:
    """A sum that does not fall below zero by taking away; what was negative stays as it is."""
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


def _recent(recent: RecentMoves, moved: Sequence[str], touched: set[str], every_s: float) -> RecentMoves:
    def aged(ages: Mapping[str, float], now: Iterable[str]) -> dict[str, float]:
        found = {name: age_s + every_s for name, age_s in ages.items()}
        return found | dict.fromkeys(sorted(now), every_s)

    return RecentMoves(bundles=aged(recent.bundles, moved), brokers=aged(recent.brokers, touched))


def _rank_anew(bundles: dict[str, Bundle], touched: set[str]) -> None:
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
        measured = sorted((one for one in owned if one.stats is not None), key=_weight)[-limit:]
        ranks = {one.name: rank for rank, one in enumerate(measured)}
        for one in owned:
            if one.rank != ranks.get(one.name):
                bundles[one.name] = replace(one, rank=ranks.get(one.name))


def _weight(bundle: Bundle) -> tuple[float | str, ...]:
    """Upstream's order of `NamespaceBundleStats`, by buckets, ties by name."""
    stats = bundle.stats or _NOTHING
    return (
        floor(stats.msg_throughput_in / 1e5 + 0.5),
        floor(stats.msg_throughput_out / 1e5 + 0.5),
        floor(stats.msg_rate / 100 + 0.5),
        (stats.topics + stats.sessions) // 500,
        stats.cache_size_bytes // 100_000,
        bundle.name,
    )
