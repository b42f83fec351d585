"""Clusters that a strategy has to cope with: small ones, made by rule, each odd in one way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, nan
from zlib import crc32

from loaddata.model.broker_load import BrokerLoad
from loaddata.model.bundle_load import BundleAverages, BundleStats, MessageAverage
from loaddata.model.usage import ResourceUsage
from shedders.model.cluster import Broker, Bundle, Cluster, IsolationPolicy, Policies, RecentMoves, TopicLoad
from statechannel.protocol.bundle import FULL_UPPER, bundle_key

NOW_MS = 1_700_000_000_000
_NAMESPACES = ("acme/orders", "acme/audit", "beta/orders")


@dataclass(frozen=True, slots=True)
class ConformanceCase:
    """One cluster.

    Attributes:
        about: What is odd about it.
        blind: Brokers of which nothing sound is known: nothing may be moved from them or to them.
        still: Bundles that must stay.
        closed: Brokers that must not be named as a destination.
    """

    about: str
    cluster: Cluster
    blind: frozenset[str] = frozenset()
    still: frozenset[str] = frozenset()
    closed: frozenset[str] = frozenset()


def uneven(brokers: int = 5, bundles: int = 40) -> Cluster:
    """A cluster whose first broker has most of the load, and whose last has none."""
    names = [f"b{number:02}:8080" for number in range(brokers)]
    keys = [_key(number, bundles) for number in range(bundles)]
    serving = names[:-1] if brokers > 1 else names
    owned: dict[str, list[Bundle]] = {name: [] for name in names}
    for number, key in enumerate(keys):
        # Half of the bundles are the first broker's.
        owner = serving[0] if number % 2 else serving[number // 2 % len(serving)]
        owned[owner].append(_bundle(key, owner))
    ranked = {name: _ranked(found) for name, found in owned.items()}
    return Cluster(
        {name: Broker(name, load=_load(found), load_age_s=1.0, version="4.2.4") for name, found in ranked.items()},
        {one.name: one for found in ranked.values() for one in found},
        now_ms=NOW_MS,
    )


def cases() -> Iterator[ConformanceCase]:
    """All of them, sound ones first."""
    base = uneven()
    names, heavy, idle = base.broker_names, base.broker_names[0], base.broker_names[-1]
    first = base.bundles_of[heavy][0].name
    everybody, everything = frozenset(names), frozenset(base.bundles)
    yield ConformanceCase("one broker has most of the load", base)
    yield ConformanceCase("loads are even", _even())
    yield ConformanceCase("no broker at all", Cluster({}, {}), everybody)
    yield ConformanceCase("one broker", uneven(brokers=1))
    yield ConformanceCase("two brokers, one bundle each", uneven(brokers=2, bundles=2))
    yield ConformanceCase("the cluster is to be left alone", replace(base, safe="quorum lost"), still=everything)
    # Whoever looks at traffic alone needs no limits.
    yield ConformanceCase("the heaviest broker has limits of zero", _with(base, _without_limits(base.brokers[heavy])))
    yield ConformanceCase("the idle broker has limits of zero", _with(base, _without_limits(base.brokers[idle])))
    for about, broker in _blind(base.brokers[heavy]):
        yield ConformanceCase(f"the heaviest broker {about}", _with(base, broker), frozenset({heavy}))
    for about, broker in _blind(base.brokers[idle]):
        yield ConformanceCase(f"the idle broker {about}", _with(base, broker), frozenset({idle}))
    closed = replace(base.brokers[idle], accepting=False)
    yield ConformanceCase("the idle broker accepts nothing", _with(base, closed), closed=frozenset({idle}))
    cordoned = Policies(cordons={idle: "to be replaced"})
    yield ConformanceCase("the idle broker is cordoned", replace(base, policies=cordoned), closed=frozenset({idle}))
    pins = Policies(pins={name: one.owner for name, one in base.bundles.items() if one.owner is not None})
    yield ConformanceCase("every bundle is pinned to where it is", replace(base, policies=pins), still=everything)
    apart = Policies(excluded=frozenset(_NAMESPACES))
    yield ConformanceCase("every namespace is excluded", replace(base, policies=apart), still=everything)
    fenced = Policies(isolation=(IsolationPolicy("all", (".*",), (names[0].partition(":")[0],)),))
    yield ConformanceCase("isolation keeps everything on one broker", replace(base, policies=fenced))
    flying = {name: replace(one, in_flight=True) for name, one in base.bundles.items()}
    yield ConformanceCase("every bundle is on its way", replace(base, bundles=flying), still=everything)
    moved = RecentMoves(dict.fromkeys(base.bundles, 1.0), dict.fromkeys(names, 1.0))
    yield ConformanceCase("everything was moved a second ago", replace(base, recent=moved), still=everything)
    lost = {**base.bundles, first: replace(base.bundles[first], owner="lost:8080")}
    yield ConformanceCase(
        "a bundle is owned by a broker that is gone", replace(base, bundles=lost), still=frozenset({first})
    )
    for about, average in (
        ("nan", MessageAverage(nan, nan, nan, nan, 1)),
        ("negative", MessageAverage(-1, -1, -1, -1, 1)),
    ):
        odd = replace(base.bundles[first], averages=BundleAverages(average, average), stats=None)
        yield ConformanceCase(
            f"the averages of a bundle are {about}",
            replace(base, bundles={**base.bundles, first: odd}),
            still=frozenset({first}),
        )


MEMORIES: Sequence[Mapping[str, object]] = (
    {},
    {"hits": -1},
    {"hits": "many", "usage": [1, 2], "plan": 7, "history": {"b00:8080": "x"}},
    {"hits": {"b00:8080": {}}, "hits_low": {"b00:8080": -5}, "usage": {"b00:8080": None}, "plan": {"x": ["y"]}},
)
"""What a strategy may find in its memory after an update: nothing, or what another version left there."""


def topic_bundles() -> Iterator[tuple[str, Bundle]]:
    """Bundles that split algorithms have to cope with."""
    name = bundle_key("acme/orders", 0, 0x80000000)
    spread = [
        TopicLoad(f"persistent://acme/orders/{number}", 0x01000000 * number, *([10.0 * number] * 4))
        for number in range(9)
    ]
    yield "topics over the whole range", _with_topics(name, spread)
    yield "no topic is known", _with_topics(name, [])
    yield "one topic", _with_topics(name, spread[:1])
    yield "all topics on one hash", _with_topics(name, [replace(one, position=7) for one in spread])
    yield (
        "topics at both ends",
        _with_topics(name, [replace(spread[0], position=0), replace(spread[1], position=0x7FFFFFFF)]),
    )
    yield "topics outside the bundle", _with_topics(name, [replace(one, position=0xF0000000) for one in spread])
    yield "rates that are no numbers", _with_topics(name, [replace(one, msg_rate_in=nan) for one in spread])
    yield "endless rates", _with_topics(name, [replace(one, msg_throughput_out=inf) for one in spread])
    yield "negative rates", _with_topics(name, [replace(one, msg_rate_out=-1.0) for one in spread])
    yield (
        "the end of the ring",
        _with_topics(bundle_key("acme/orders", 0xFFFFFFF0, FULL_UPPER), [replace(spread[0], position=FULL_UPPER)] * 2),
    )
    yield (
        "the narrowest range",
        _with_topics(bundle_key("acme/orders", 5, 6), [replace(one, position=5) for one in spread]),
    )


def _blind(broker: Broker) -> Iterator[tuple[str, Broker]]:
    load = broker.load or BrokerLoad()
    yield "has no report", replace(broker, load=None)
    yield "has a report of NaN", replace(broker, load=_spoilt(load, nan))
    yield "has an infinite report", replace(broker, load=_spoilt(load, inf))
    yield "has a negative report", replace(broker, load=_spoilt(load, -1.0))
    yield "has a report of yesterday", replace(broker, load_age_s=86_400.0)
    yield "has a report older than what it owns", replace(broker, load_lapsed=True)


def _without_limits(broker: Broker) -> Broker:
    usage = ResourceUsage(5.0, 0.0)
    load = replace(
        broker.load or BrokerLoad(),
        cpu=usage,
        memory=usage,
        direct_memory=usage,
        bandwidth_in=usage,
        bandwidth_out=usage,
    )
    return replace(broker, load=load)


def _spoilt(load: BrokerLoad, value: float) -> BrokerLoad:
    return replace(
        load,
        cpu=ResourceUsage(value, 100.0),
        msg_rate_in=value,
        msg_throughput_in=value,
        weighted_max_ema=value,
        max_resource_usage=value,
        msg_throughput_ema=value,
    )


def _with(cluster: Cluster, broker: Broker) -> Cluster:
    return replace(cluster, brokers={**cluster.brokers, broker.name: broker})


def _even() -> Cluster:
    """Every broker has the same bundles over again."""
    names = [f"b{number:02}:8080" for number in range(4)]
    owned = {
        name: _ranked([_bundle(_key(4 * part + number, 16), name, weight=1.0) for part in range(4)])
        for number, name in enumerate(names)
    }
    return Cluster(
        {name: Broker(name, load=_load(found), load_age_s=1.0) for name, found in owned.items()},
        {one.name: one for found in owned.values() for one in found},
        now_ms=NOW_MS,
    )


def _key(number: int, count: int) -> str:
    width = (FULL_UPPER + 1) // count
    upper = FULL_UPPER if number == count - 1 else (number + 1) * width
    return bundle_key(_NAMESPACES[number % len(_NAMESPACES)], number * width, upper)


def _bundle(key: str, owner: str, weight: float | None = None) -> Bundle:
    # From 0.25 to 4.25, by the name.
    factor = 0.25 + crc32(key.encode()) % 4096 / 1024 if weight is None else weight
    rate, size = 2000.0 * factor, 1500.0
    stats = BundleStats(rate, 2 * rate, rate * size, 2 * rate * size, topics=3, consumers=4, producers=2)
    average = MessageAverage(rate, 2 * rate, rate * size, 2 * rate * size, samples=10)
    return Bundle(key, owner, stats=stats, averages=BundleAverages(average, replace(average, samples=1000)))


def _ranked(bundles: Sequence[Bundle]) -> list[Bundle]:
    ordered = sorted(bundles, key=lambda one: (one.stats.msg_throughput if one.stats else 0.0, one.name))
    return [replace(one, rank=rank) for rank, one in enumerate(ordered)]


def _load(bundles: Sequence[Bundle]) -> BrokerLoad:
    stats = [one.stats for one in bundles if one.stats is not None]
    rate_in, bytes_in = sum(one.msg_rate_in for one in stats), sum(one.msg_throughput_in for one in stats)
    share = min(0.95, rate_in / 80_000)
    return BrokerLoad(
        cpu=ResourceUsage(400 * share, 400.0),
        memory=ResourceUsage(1024.0, 4096.0),
        direct_memory=ResourceUsage(512.0, 4096.0),
        bandwidth_in=ResourceUsage(bytes_in * 8 / 1000, 10_000_000.0),
        bandwidth_out=ResourceUsage(2 * bytes_in * 8 / 1000, 10_000_000.0),
        msg_rate_in=rate_in,
        msg_rate_out=2 * rate_in,
        msg_throughput_in=bytes_in,
        msg_throughput_out=2 * bytes_in,
        bundles=len(bundles),
        topics=3 * len(bundles),
        max_resource_usage=share,
        weighted_max_ema=share,
        msg_throughput_ema=3 * bytes_in,
        updated_at_ms=NOW_MS - 1000,
        reported_at_ms=NOW_MS - 1000,
    )


def _with_topics(name: str, topics: Sequence[TopicLoad]) -> Bundle:
    stats = BundleStats(50_000.0, 50_000.0, 2e8, 2e8, topics=len(topics), consumers=2000, producers=100)
    return Bundle(name, "b00:8080", stats=stats, topics=tuple(topics))
