"""Small clusters for TransferShedder, written as tables: a load from 0 to 1 and the bundles' MB/s of each broker."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from loaddata.model.broker_load import BrokerLoad, ResourceUsage
from loaddata.model.bundle_load import BundleStats
from shedders.model.cluster import Broker, Bundle, Cluster
from shedders.model.plan import Plan
from shedders.model.strategy import CanTake
from shedders.shedding.transfer import TransferShedder
from shedders.shedding.transfer_pairs import Book, TransferSettings

MB = 1_000_000.0
NOW_MS = 1_700_000_000_000

Row = tuple[float, Sequence[float]]


def key(broker: str, place: int) -> str:
    """Name of a broker's bundle, by its place in the table."""
    return f"acme/{broker}/0x{place:08x}_0x{place + 1:08x}"


def report(load: float, traffic: float, **changes: Any) -> BrokerLoad:
    """A report of this moment."""
    plain = BrokerLoad(
        cpu=ResourceUsage(load * 100, 100),
        msg_throughput_in=traffic,
        weighted_max_ema=load,
        msg_throughput_ema=traffic,
        updated_at_ms=NOW_MS - 1000,
        reported_at_ms=NOW_MS - 1000,
    )
    return replace(plain, **changes)


def cluster(rows: Mapping[str, Row], **changes: Any) -> Cluster:
    """A cluster in which every broker serves its bundles and reports all of them, in the order given."""
    brokers, bundles = {}, {}
    for name, (load, shares) in rows.items():
        brokers[name] = Broker(name, report(load, sum(shares) * MB), load_age_s=1.0)
        for place, share in enumerate(shares):
            stats = BundleStats(msg_throughput_in=share * MB)
            bundles[key(name, place)] = Bundle(key(name, place), owner=name, stats=stats, rank=place)
    return replace(Cluster(brokers, bundles, now_ms=NOW_MS), **changes)


def with_broker(cluster: Cluster, name: str, **changes: Any) -> Cluster:
    """The same with one broker changed."""
    return replace(cluster, brokers={**cluster.brokers, name: replace(cluster.brokers[name], **changes)})


def with_report(cluster: Cluster, name: str, **changes: Any) -> Cluster:
    """The same with one broker's report changed."""
    load = cluster.brokers[name].load
    return with_broker(cluster, name, load=replace(load, **changes))


def with_bundle(cluster: Cluster, name: str, **changes: Any) -> Cluster:
    """The same with one bundle changed."""
    return replace(cluster, bundles={**cluster.bundles, name: replace(cluster.bundles[name], **changes)})


def decide(
    cluster: Cluster,
    memory: Mapping[str, Any] | None = None,
    *,
    can_take: CanTake | None = None,
    book: Book | None = None,
    **settings: Any,
) -> Plan:
    """One decision; it acts at once unless told otherwise."""
    configured = TransferSettings(**{"hit_threshold": 0, **settings})
    return TransferShedder(configured, can_take, book).plan(cluster, memory or {})


def moves(plan: Plan) -> list[tuple[str, str, str | None]]:
    """What goes from where to where, sorted."""
    return sorted((move.bundle, move.source, move.destination) for move in plan.moves)


def words(plan: Plan) -> dict[str, str]:
    """Why each was left alone."""
    return {left.name: left.reason for left in plan.left}
