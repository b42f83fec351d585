"""Clusters and snapshots made by number, for tests and benches: the same seed gives the same cluster on every machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random

from loaddata.model.broker_load import BrokerLoad, ResourceUsage, ResourceWeights
from loaddata.model.bundle_load import BundleAverages, BundleStats, MessageAverage
from shedders.model.cluster import Broker, Bundle, Cluster, Policies, TopicLoad
from statechannel.protocol.bundle import FULL_UPPER, bundle_key

NOW_MS = 1_700_000_000_000
REPORTED = 10
"""Top bundles a broker names, as upstream's default."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a cluster is and how uneven.

    Attributes:
        skew: 0: all brokers and bundles are alike; 1: loads are spread by chance; above: a few have most of it.
        hot: Brokers that are made several times as loaded as the rest.
        idle: Brokers that serve nothing.
    """

    brokers: int = 5
    bundles_each: int = 10
    namespaces: int = 4
    topics_each: int = 0
    skew: float = 1.0
    hot: int = 1
    idle: int = 0
    domains: int = 0


def cluster(seed: int = 0, shape: Shape = Shape(), policies: Policies | None = None) -> Cluster:
    """A cluster whose brokers' loads add up from their bundles'."""
    random = Random(seed)
    width = len(str(shape.brokers))
    names = [f"b{number:0{width}}:8080" for number in range(shape.brokers)]
    serving = names[: shape.brokers - shape.idle] or names
    keys = _keys(len(names) * shape.bundles_each, shape.namespaces)
    random.shuffle(keys)
    bundles: dict[str, Bundle] = {}
    made_of: dict[str, list[Bundle]] = {}
    owned: dict[str, list[str]] = {name: [] for name in names}
    for number, key in enumerate(keys):
        owned[serving[number % len(serving)]].append(key)
    for number, name in enumerate(names):
        factor = 4.0 if number < shape.hot else 1.0
        owned_bundles = [_bundle(random, key, name, shape, factor) for key in owned[name]]
        owned_bundles.sort(key=lambda bundle: (bundle.stats.msg_throughput if bundle.stats else 0.0, bundle.name))
        unranked = len(owned_bundles) - REPORTED
        made_of[name] = [
            replace(bundle, rank=rank - unranked) if rank >= unranked else bundle
            for rank, bundle in enumerate(owned_bundles)
        ]
        bundles.update((bundle.name, bundle) for bundle in made_of[name])
    full = Full.of(bundles.values(), len(serving))
    domains = [f"zone-{number % shape.domains}" if shape.domains else None for number in range(len(names))]
    brokers = {
        name: Broker(name, load=load_of(made_of[name], full), load_age_s=1.0, version="4.2.4", domain=domain)
        for name, domain in zip(names, domains, strict=True)
    }
    return Cluster(brokers, bundles, policies or Policies(), now_ms=NOW_MS)


@dataclass(frozen=True, slots=True)
class Full:
    """What a broker can do a second: messages, bytes in, bytes out."""

    msg_rate: float
    bytes_in: float
    bytes_out: float

    @classmethod
    def of(cls, bundles: Iterable[Bundle], brokers: int) -> Full:
        """So much that the brokers' CPU is used to nearly half on average, and their network to a fifth."""
        stats = [bundle.stats for bundle in bundles if bundle.stats is not None]
        half, fifth = 0.45 * max(1, brokers), 0.2 * max(1, brokers)
        return cls(
            max(1.0, sum(stat.msg_rate for stat in stats)) / half,
            max(1.0, sum(stat.msg_throughput_in for stat in stats)) / fifth,
            max(1.0, sum(stat.msg_throughput_out for stat in stats)) / fifth,
        )


def load_of(bundles: Sequence[Bundle], full: Full) -> BrokerLoad:
    """A broker's load with these bundles: CPU by messages, bandwidth by bytes."""
    stats = [bundle.stats for bundle in bundles if bundle.stats is not None]
    rate_in, rate_out = sum(stat.msg_rate_in for stat in stats), sum(stat.msg_rate_out for stat in stats)
    bytes_in, bytes_out = sum(stat.msg_throughput_in for stat in stats), sum(stat.msg_throughput_out for stat in stats)
    load = BrokerLoad(
        cpu=ResourceUsage(min(780.0, 800.0 * (rate_in + rate_out) / full.msg_rate), 800.0),
        memory=ResourceUsage(2048.0, 8192.0),
        direct_memory=ResourceUsage(1024.0, 4096.0),
        bandwidth_in=ResourceUsage(bytes_in * 8 / 1000, full.bytes_in * 8 / 1000),
        bandwidth_out=ResourceUsage(bytes_out * 8 / 1000, full.bytes_out * 8 / 1000),
        msg_rate_in=rate_in,
        msg_rate_out=rate_out,
        msg_throughput_in=bytes_in,
        msg_throughput_out=bytes_out,
        bundles=len(bundles),
        topics=sum(stat.topics for stat in stats),
        msg_throughput_ema=bytes_in + bytes_out,
        updated_at_ms=NOW_MS - 1000,
        reported_at_ms=NOW_MS - 1000,
    )
    used = (load.cpu, load.direct_memory, load.bandwidth_in, load.bandwidth_out)
    return replace(
        load,
        max_resource_usage=max(stat.percent for stat in used) / 100,
        weighted_max_ema=load.weighted_max(ResourceWeights()),
    )


def _keys(count: int, namespaces: int) -> list[str]:
    """So many bundles, spread over the rings of the namespaces."""
    keys = []
    for number in range(namespaces):
        share = count // namespaces + (number < count % namespaces)
        bounds = [(FULL_UPPER + 1) * cut // share for cut in range(share)] if share else []
        for lower, upper in zip(bounds, [*bounds[1:], FULL_UPPER], strict=False):
            keys.append(bundle_key(f"tenant/ns-{number}", lower, upper))
    return keys


def _bundle(random: Random, key: str, owner: str, shape: Shape, factor: float) -> Bundle:
    weight = factor * (1.0 if shape.skew <= 0 else random.paretovariate(3.0 / shape.skew) / 1.5)
    rate, size = 500.0 * weight, 1024.0 * (1.0 if shape.skew <= 0 else random.uniform(0.2, 4.0))
    now = MessageAverage(rate, 2 * rate, rate * size, 2 * rate * size, samples=10)
    long = MessageAverage(0.9 * rate, 1.8 * rate, 0.9 * rate * size, 1.8 * rate * size, samples=1000)
    stats = BundleStats(
        now.msg_rate_in,
        now.msg_rate_out,
        now.msg_throughput_in,
        now.msg_throughput_out,
        topics=shape.topics_each or 4,
        consumers=random.randrange(20),
        producers=random.randrange(10),
        cache_size_bytes=random.randrange(1 << 20),
    )
    return Bundle(key, owner, stats=stats, averages=BundleAverages(now, long), topics=_topics(random, key, shape, now))


def _topics(random: Random, key: str, shape: Shape, whole: MessageAverage) -> tuple[TopicLoad, ...]:
    if not shape.topics_each:
        return ()
    namespace, _, bounds = key.rpartition("/")
    lower, upper = (int(text, 16) for text in bounds.split("_"))
    cuts = [random.random() for _ in range(shape.topics_each)]
    total = sum(cuts)
    return tuple(
        TopicLoad(
            f"persistent://{namespace}/topic-{lower:08x}-{number}",
            random.randrange(lower, upper),
            whole.msg_rate_in * cut / total,
            whole.msg_rate_out * cut / total,
            whole.msg_throughput_in * cut / total,
            whole.msg_throughput_out * cut / total,
        )
        for number, cut in enumerate(cuts)
    )
