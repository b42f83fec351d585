"""Small clusters written down by hand: brokers by their usage and traffic, bundles by their traffic."""

from collections.abc import Mapping, Sequence
from typing import Any

from loaddata.model.broker_load import BrokerLoad, ResourceUsage
from loaddata.model.bundle_load import BundleAverages, BundleStats, MessageAverage
from shedders.model.cluster import Broker, Bundle, Cluster, Policies, RecentMoves
from shedders.model.plan import Plan

MIB = 1024.0 * 1024.0
NOW_MS = 1_000_000


def bundle(
    number: int,
    owner: str | None,
    *,
    bytes_per_s: float = 0.0,
    msg_per_s: float = 0.0,
    long_msg_per_s: float | None = None,
    namespace: str = "t/n",
    **more: Any,
) -> Bundle:
    """A bundle; its traffic is all inbound. Its name ends in its number."""
    short = MessageAverage(msg_per_s, 0.0, bytes_per_s, 0.0, samples=10)
    long_rate = msg_per_s if long_msg_per_s is None else long_msg_per_s
    long = MessageAverage(long_rate, 0.0, bytes_per_s, 0.0, samples=1000)
    stats = BundleStats(msg_per_s, 0.0, bytes_per_s, 0.0, topics=1)
    name = f"{namespace}/0x{number:08x}_0x{number + 1:08x}"
    return Bundle(name, owner, stats=stats, averages=BundleAverages(short, long), **more)


def broker(
    name: str, usage: float, *, bytes_per_s: float = 0.0, msg_per_s: float = 0.0, at_ms: int = NOW_MS, **more: Any
) -> Broker:
    """A broker with so much CPU in use, 1.0 for all of it. Usages that single precision holds to 1e-7 only are meant so."""
    load = BrokerLoad(
        cpu=ResourceUsage(usage * 100, 100.0),
        msg_rate_in=msg_per_s,
        msg_throughput_in=bytes_per_s,
        weighted_max_ema=usage,
        updated_at_ms=at_ms,
        reported_at_ms=at_ms,
    )
    return Broker(name, load=load, load_age_s=1.0, **more)


def cluster(
    brokers: Sequence[Broker],
    bundles: Sequence[Bundle],
    *,
    policies: Policies | None = None,
    recent: RecentMoves | None = None,
    now_ms: int = NOW_MS,
    safe: str | None = None,
) -> Cluster:
    """All of it."""
    return Cluster(
        {broker.name: broker for broker in brokers},
        {bundle.name: bundle for bundle in bundles},
        policies or Policies(),
        recent or RecentMoves(),
        now_ms,
        safe,
    )


def by_bytes(usages: Mapping[str, float], bundles: Mapping[str, Sequence[float]], unit: float = 1.0) -> Cluster:
    """Brokers with these usages, serving bundles of so many bytes a second; reports add up what bundles have."""
    return _build_cluster(usages, bundles, unit, "bytes_per_s")


def by_messages(usages: Mapping[str, float], bundles: Mapping[str, Sequence[float]]) -> Cluster:
    """The same with messages a second."""
    return _build_cluster(usages, bundles, 1.0, "msg_per_s")


def _build_cluster(
    usages: Mapping[str, float], bundles: Mapping[str, Sequence[float]], unit: float, measure: str
) -> Cluster:
    served: list[Bundle] = []
    for name in sorted(bundles):
        for traffic in bundles[name]:
            served.append(bundle(len(served), name, **{measure: traffic * unit}))
    brokers = [broker(name, usage, **{measure: sum(bundles.get(name, ())) * unit}) for name, usage in usages.items()]
    return cluster(brokers, served)


def moved(plan: Plan, unit: float = 1.0) -> list[tuple[str, str | None, float]]:
    """(source, destination, traffic) of each move, in order."""
    return [(move.source, move.destination, move.load / unit) for move in plan.moves]


def left(plan: Plan) -> dict[str, str]:
    """Who was left alone, by name, with the word for it."""
    return {bundle.name: bundle.reason for bundle in plan.left}
