"""Hand-off: how long a bundle has no serving owner in a transfer, against two appends that are read back.

There are two floors. One reader: a lone client appends and reads back on a topic that nobody else reads. All readers:
the same client, while as many bare clients as there are other brokers read the topic, too. A channel cannot have fewer
readers than brokers, and each of them costs Kafka and the cores a fetch a record. The aim is held against the first.
"""

import sys
import time
from collections.abc import Sequence

from confluent_kafka import Consumer, Producer, TopicPartition

from statechannel.kafka.client_settings import ClientSettings
from statechannel.protocol.bundle import bundle_key, namespace_bounds
from tests.bench.bare_reader import bare_readers
from tests.bench.cluster import BrokerProcess, brokers
from tests.bench.lane import kafka, make_channel
from tests.bench.measure import Figure, Load, percentile

CHANNEL, FLOOR_CHANNEL, SHARED_CHANNEL = "bench-handoff", "bench-floor", "bench-shared"
NAMESPACE = "tenant/handoff"
HOPS = 2
PULSAR_CALL_MS = {"p50": "43-52 in Pulsar", "p99": "89-217 in Pulsar"}


class Hops:
    """The floor: one process, one record on its way, the library's own client settings."""

    def __init__(self, settings: ClientSettings, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(settings.producer_config())
        self._consumer = Consumer(settings.consumer_config("bench-floor"))
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self._sent = 0

    def hop(self, value: bytes) -> None:
        """Append one record and read it back."""
        self._sent += 1
        key = str(self._sent).encode()
        self._producer.produce(self._topic, value, key, 0)
        while True:
            message = self._consumer.poll(10)
            if message is None:
                raise RuntimeError("no record was read back within 10 s")
            if message.error() is None and message.key() == key:
                break
        self._producer.poll(0)

    def measure(self, value: bytes) -> float:
        """Milliseconds of the hops of one transfer."""
        began_ns = time.monotonic_ns()
        for _ in range(HOPS):
            self.hop(value)
        return (time.monotonic_ns() - began_ns) / 1e6

    def close(self) -> None:
        self._consumer.close()


def run(transfers: int = 500, members: int = 3) -> Sequence[Figure]:
    """Transfers one at a time, round the brokers, each followed by its floors."""
    names = [f"b{number}" for number in range(1, members + 1)]
    with kafka() as bootstrap:
        settings, topics = make_channel(bootstrap, FLOOR_CHANNEL)
        _, shared_topics = make_channel(bootstrap, SHARED_CHANNEL)
        hops, shared = Hops(settings, topics.channel), Hops(settings, shared_topics.channel)
        with bare_readers(members - 1, bootstrap, shared_topics.channel), brokers(bootstrap, CHANNEL, names) as running:
            measured = _measure(running, hops, shared, transfers)
        hops.close()
        shared.close()
    return measured


def _measure(running: dict[str, BrokerProcess], hops: Hops, shared: Hops, transfers: int) -> list[Figure]:
    names = list(running)
    first = running[names[0]]
    if first.ask("create", NAMESPACE, 4) != "Done":
        raise RuntimeError("the namespace was not created")
    bounds = namespace_bounds(4)
    bundle = bundle_key(NAMESPACE, bounds[0], bounds[1])
    source, _ = first.ask("owner", bundle)
    value = b"x" * 420
    for _ in range(20):
        hops.measure(value)
        shared.measure(value)
    load = Load()
    gaps, calls, floors, shared_floors, parts = [], [], [], [], []
    for number in range(-5, transfers):
        others = [name for name in names if name != source]
        destination = others[number % len(others)]
        caller = running[names[number % len(names)]]
        facts = caller.ask("transfer", bundle, destination)
        if not facts["done"]:
            raise RuntimeError(f"transfer {number}: {facts['outcome']}")
        served_ns = _stamp(running[destination], "serve", bundle)
        owned_ns = _stamp(running[destination], "own", bundle)
        released_ns = _stamp(running[source], "release", bundle)
        floor_ms = hops.measure(value)
        shared_ms = shared.measure(value)
        source = destination
        if number >= 0:
            gaps.append((served_ns - released_ns) / 1e6)
            parts.append((owned_ns - released_ns) / 1e6)
            calls.append(facts["ms"])
            floors.append(floor_ms)
            shared_floors.append(shared_ms)
        time.sleep(0.005)
    print(f"handoff: release to on_own p50 {percentile(parts, 0.5):.2f} ms", file=sys.stderr)
    return _figures(f"handoff.{len(names)}-brokers", gaps, calls, (floors, shared_floors), str(load))


def _stamp(process: BrokerProcess, hook: str, bundle: str) -> int:
    """When a hook was called; notifications may come a moment after the transfer's end."""
    until_s = time.monotonic() + 10
    while time.monotonic() < until_s:
        answer = process.ask("stamp", hook, bundle)
        if answer is not None:
            return int(answer)
        time.sleep(0.001)
    raise RuntimeError(f"{process.broker} was never told {hook} of {bundle}")


def _figures(
    label: str, gaps: list[float], calls: list[float], floors: tuple[list[float], list[float]], load: str
) -> list[Figure]:
    figures = []
    for name, share, aim in (("p50", 0.5, "<= 1.5"), ("p99", 0.99, "comparison"), ("max", 1.0, "")):
        gap, call = percentile(gaps, share), percentile(calls, share)
        floor, shared = (percentile(floor_ms, share) for floor_ms in floors)
        notes = {"transfers": len(gaps)}
        figures += [
            Figure(f"{label}.floor.{name}", floor, "ms", load=load, notes=notes),
            Figure(f"{label}.floor-all-readers.{name}", shared, "ms", load=load, notes=notes),
            Figure(f"{label}.gap.{name}", gap, "ms", ratio=gap / floor, aim=aim, load=load, notes=notes),
            Figure(
                f"{label}.gap-to-all-readers.{name}",
                gap,
                "ms",
                ratio=gap / shared,
                aim="comparison",
                load=load,
                notes=notes,
            ),
            Figure(f"{label}.call.{name}", call, "ms", aim=PULSAR_CALL_MS.get(name, ""), load=load, notes=notes),
        ]
    return figures
