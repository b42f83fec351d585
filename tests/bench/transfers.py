"""Transfers in the shape of Pulsar's figures: three brokers, one topic with a client, lookups at every broker meanwhile."""

import time
from collections.abc import Sequence

from statechannel.kafka.client_settings import ClientSettings
from statechannel.protocol.bundle import bundle_key, namespace_bounds
from tests.bench.cluster import BrokerProcess, brokers
from tests.bench.floors import append_and_read_back
from tests.bench.lane import kafka, make_channel
from tests.bench.measure import Figure, Load, median, percentile
from tests.bench.writing_client import WritingClient

CHANNEL, FLOOR_CHANNEL = "bench-transfers", "bench-transfers-floor"
NAMESPACE = "client/transfers"
AT_ONCE = 64
ROUNDS = 7
SETTLE_S = 0.05
MISSING_MS = 0.0


def run(transfers: int = 200) -> Sequence[Figure]:
    """One at a time with everybody looking on, then many at once against a floor of as many records."""
    with kafka() as bootstrap:
        settings, topics = make_channel(bootstrap, FLOOR_CHANNEL)
        with brokers(bootstrap, CHANNEL) as running:
            return [*_one_by_one(running, transfers), *_at_once(running, settings, topics.channel)]


def _one_by_one(running: dict[str, BrokerProcess], transfers: int) -> list[Figure]:
    names = list(running)
    if running["b1"].ask("create", NAMESPACE, 1) != "Done":
        raise RuntimeError("the namespace was not created")
    bundle, topic = f"{NAMESPACE}/0x00000000_0xffffffff", f"{NAMESPACE}/a-topic"
    source, _ = running["b1"].ask("owner", bundle)
    load = Load()
    calls, waits, answered, slowest, gaps, stale = [], [], [], [], [], []
    with WritingClient(topic, [process.url for process in running.values()]) as client:
        for number in range(-10, transfers):
            destination = [name for name in names if name != source][number % 2]
            for process in running.values():
                process.ask("watch", topic)
            time.sleep(SETTLE_S)
            client.longest_ms()
            facts = running[names[number % 3]].ask("transfer", bundle, destination)
            time.sleep(SETTLE_S)
            seen = [process.ask("watched") for process in running.values()]
            if not facts["done"] or any(entry["unanswered"] for entry in seen):
                raise RuntimeError(f"transfer {number}: {facts['outcome']}, {seen}")
            if number >= 0:
                firsts = [entry["first_ns"][destination] for entry in seen]
                lasts = [entry["last_ns"][source] for entry in seen]
                calls.append(facts["ms"])
                waits.append(max(entry["longest_ms"] for entry in seen))
                answered.append((min(firsts) - max(last for last in lasts if last <= min(firsts))) / 1e6)
                slowest.append((max(firsts) - min(firsts)) / 1e6)
                stale.append(max(MISSING_MS, (max(lasts) - min(firsts)) / 1e6))
                gaps.append(client.longest_ms())
            source = destination
    label, notes = str(load), {"transfers": transfers}
    late = sum(ms > 0 for ms in stale)
    return [
        *_spread("transfers.call", calls, ("<= 15; 43-52 in Pulsar", "89-217", "138-338"), label, notes),
        *_spread("transfers.source-to-destination", answered, ("1.5 in Pulsar", "4-6", ""), label, notes),
        *_spread("transfers.slowest-broker-after-first", slowest, ("24 in Pulsar", "37-76", ""), label, notes),
        *_spread("transfers.lookup-wait", waits, ("<= 10; 22 in Pulsar", "", "59-357"), label, notes),
        *_spread("transfers.client-gap", gaps, ("<= 20; 76-96 in Pulsar", "250-584", "228-453"), label, notes),
        Figure("transfers.named-source-late", late, "of all", aim="3-11 of 200 in Pulsar", load=label, notes=notes),
        Figure("transfers.named-source-late.max", max(stale), "ms", aim="143 in Pulsar", load=label, notes=notes),
    ]


def _spread(
    name: str, values: Sequence[float], aims: tuple[str, str, str], load: str, notes: dict[str, int]
) -> list[Figure]:
    shares = (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    return [
        Figure(f"{name}.{word}", percentile(values, share), "ms", aim=aim, load=load, notes=notes)
        for (word, share), aim in zip(shares, aims, strict=True)
    ]


def _at_once(running: dict[str, BrokerProcess], settings: ClientSettings, floor_topic: str) -> list[Figure]:
    """All bundles of one broker to the next, at once; the floor: as many records appended and read back, twice."""
    namespace = "tenant/at-once"
    running["b1"].ask("create", namespace, AT_ONCE)
    bounds = namespace_bounds(AT_ONCE)
    bundles = [bundle_key(namespace, bounds[index], bounds[index + 1]) for index in range(AT_ONCE)]
    running["b1"].ask("owners", bundles)
    names = list(running)
    moved = running["b1"].ask("transfers", _moves(running, bundles, "b1"))
    if not moved["done"]:
        raise RuntimeError("the bundles could not be brought together")
    load = Load()
    totals, middles, floors = [], [], []
    for number in range(ROUNDS):
        to = names[(number + 1) % 3]
        facts = running[names[number % 3]].ask("transfers", [(bundle, to) for bundle in bundles])
        if not facts["done"]:
            raise RuntimeError(f"round {number}: not all were transferred")
        totals.append(max(facts["ms"]))
        middles.append(median(facts["ms"]))
        floors.append(append_and_read_back(settings, floor_topic, AT_ONCE, hops=3))
    ratio = median(total / floor for total, floor in zip(totals, floors, strict=True))
    notes = {"bundles": AT_ONCE, "hops": 3}
    return [
        Figure("transfers.64-at-once.floor", median(floors), "ms", rounds=floors, load=str(load), notes=notes),
        Figure("transfers.64-at-once.total", median(totals), "ms", ratio, "comparison", totals, str(load), notes),
        Figure("transfers.64-at-once.p50", median(middles), "ms", rounds=middles, load=str(load), notes=notes),
    ]


def _moves(running: dict[str, BrokerProcess], bundles: Sequence[str], to: str) -> list[tuple[str, str]]:
    owners = running["b1"].ask("owners", bundles)["owners"]
    return [(bundle, to) for bundle, owner in zip(bundles, owners, strict=True) if owner != to]
