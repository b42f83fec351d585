"""Storms and floods against a real broker: how long its loop is held, what its memory grows by, what callers are told.

Every flood comes three times in one process: in half of its size, and twice in full: memory is bounded where the last
adds nothing.
"""

import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from confluent_kafka import Consumer, Producer, TopicPartition

from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.topic_policy import ChannelTopics
from statechannel.operations import request_record
from statechannel.operations.request_record import Reply, Request
from statechannel.operations.table import RequestCommand
from statechannel.protocol.bundle import bundle_key, namespace_bounds
from statechannel.protocol.log import Topic
from tests.bench.cluster import BrokerProcess, brokers
from tests.bench.lane import kafka
from tests.bench.measure import Figure, Load

CHANNEL = "bench-floods"
AIM_MS = 100
LARGE_BYTES = 890_000
JUNK_KEYS = 100_000
REQUESTS_WITHIN_S = 300.0


@dataclass(slots=True)
class Ground:
    """Where the floods go: two brokers, of which `b1` leads and is measured."""

    bootstrap: str
    channel: str
    b1: BrokerProcess
    b2: BrokerProcess
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(time.time_ns()))

    @property
    def topics(self) -> ChannelTopics:
        return ChannelTopics(self.channel)

    def namespace(self, bundles: int) -> list[str]:
        """A new namespace's bundles."""
        name = f"flood/n{next(self.numbers)}"
        if self.b1.ask("create", name, bundles) != "Done":
            raise RuntimeError(f"{name} was not created")
        bounds = namespace_bounds(bundles)
        return [bundle_key(name, bounds[index], bounds[index + 1]) for index in range(bundles)]

    def write(self, topic: str, records: Iterator[tuple[bytes, bytes]]) -> None:
        """As fast as Kafka takes them."""
        producer = Producer({**ClientSettings(self.bootstrap).producer_config(), "linger.ms": 20})
        for key, value in records:
            while True:
                try:
                    producer.produce(topic, value, key, 0)
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
        if producer.flush(120):
            raise RuntimeError("Kafka did not take the flood")

    def drain(self, within_s: float = 900) -> float:
        """Wait until the broker has read all there is and is in no debt; seconds."""
        began_s = time.monotonic()
        end = self._end()
        while time.monotonic() - began_s < within_s:
            status = self.b1.ask("status")
            part = status["partitions"][0]
            if part["applied"] >= end - 1 and not part["debts"] and not status["in_flight"]:
                return time.monotonic() - began_s
            time.sleep(0.2)
        raise RuntimeError(f"b1 did not come to rest within {within_s:g} s: {status}")

    def _end(self) -> int:
        consumer = Consumer(ClientSettings(self.bootstrap).consumer_config("bench-floods-end"))
        try:
            _, high = consumer.get_watermark_offsets(TopicPartition(self.topics.channel, 0), timeout=10)
            return int(high)
        finally:
            consumer.close()


Flood = Callable[[Ground, int], dict[str, Any]]


def unknown_namespaces(ground: Ground, count: int) -> dict[str, Any]:
    return ground.b1.ask("look_up", "none/n{}/topic", count, 30)


def unknown_bundles(ground: Ground, count: int) -> dict[str, Any]:
    namespace = ground.namespace(4)[0].rpartition("/")[0]
    return ground.b1.ask("look_up", namespace + "/0x{:08x}_0xfffffffe", count, 30)


def in_one_turn(ground: Ground, count: int) -> dict[str, Any]:
    """A caller that begins all its calls in one turn of the loop that it shares with the channel."""
    return ground.b1.ask("look_up", "none/n{}/topic", count, 30, count + 1)


def through_the_topic(ground: Ground, count: int) -> dict[str, Any]:
    """Requests as the command line writes them, all at once; replies are counted by another reader."""
    topic = ground.topics.names[Topic.REQUESTS]
    consumer = Consumer(ClientSettings(ground.bootstrap).consumer_config("bench-floods"))
    place = TopicPartition(topic, 0)
    place.offset = consumer.get_watermark_offsets(place, timeout=10)[1]
    consumer.assign([place])
    mark = f"flood-{next(ground.numbers)}"
    outcomes: dict[str, int] = {}
    open_ids = {f"{mark}-{number}" for number in range(count)}
    ground.write(topic, ((broker.encode(), _lookup_request(broker)) for broker in list(open_ids)))
    until_s = time.monotonic() + REQUESTS_WITHIN_S
    while open_ids and time.monotonic() < until_s:
        for message in consumer.consume(500, 0.2):
            item = request_record.decode(message.value(), 0) if message.error() is None else None
            if isinstance(item, Reply) and item.id in open_ids:
                open_ids.discard(item.id)
                word = f"{item.outcome.get('outcome')} {item.outcome.get('reason', '')}".strip()
                outcomes[word] = outcomes.get(word, 0) + 1
    consumer.close()
    return outcomes | ({"no reply": len(open_ids)} if open_ids else {})


def _lookup_request(identifier: str) -> bytes:
    request = Request(identifier, RequestCommand.LOOKUP.value, 0, {"name": f"none/{identifier}/topic"}, "bench")
    return request_record.encode(request, timeout_s=REQUESTS_WITHIN_S)


def idle_subscriber(ground: Ground, count: int, limit: int = 10_000) -> dict[str, Any]:
    """Two accepted records a bundle, and a subscriber who takes none of the changes."""
    bundles = ground.namespace(count // 2)
    ground.b1.ask("subscribe", limit)
    answer = ground.b1.ask("look_up_all", bundles, 60)
    taken, why = ground.b1.ask("subscribed")
    return answer | {"changes kept": taken, "then": why or "(more may come)"}


def large_records(ground: Ground, count: int) -> dict[str, Any]:
    """Valid JSON of nearly a megabyte, half of it above the limit of a record, on a few keys."""
    bundles = ground.namespace(16)

    def records() -> Iterator[tuple[bytes, bytes]]:
        for number in range(count):
            size = LARGE_BYTES + (80_000 if number % 2 else 0)
            yield bundles[number % 16].encode(), b'{"format":1,"x":"' + b"x" * size + b'"}'

    ground.write(ground.topics.channel, records())
    return {"records": count, "MiB": count * LARGE_BYTES // 2**20}


def hostile_json(ground: Ground, count: int) -> dict[str, Any]:
    """JSON that is dear to look at: as many brackets as go in, and nested as deep as goes."""
    bundles = ground.namespace(16)
    wide = orjson.dumps({"format": 1, "x": [{} for _ in range(290_000)]})
    deep = b'{"format":1,"x":' + b"[" * 440_000 + b"]" * 440_000 + b"}"
    values = [wide, deep]
    ground.write(
        ground.topics.channel, ((bundles[number % 16].encode(), values[number % 2]) for number in range(count))
    )
    return {"records": count}


def large_namespaces(ground: Ground, count: int) -> dict[str, Any]:
    """Namespaces with the largest ring there is, created one after the other, and deleted."""
    ended = []
    for _ in range(count):
        bundles = ground.namespace(32_768)
        ended.append(ground.b1.ask("delete", bundles[0].rpartition("/")[0]))
    return {broker: ended.count(broker) for broker in set(ended)}


def junk(ground: Ground, count: int, keys_max: int = JUNK_KEYS) -> dict[str, Any]:
    """Records that nobody can decode, on 100,000 keys of namespaces that do not exist: each key is a debt."""
    keys = [f"junk/n{number}".encode() for number in range(keys_max)]
    began_s = time.monotonic()
    value = b'{"format":1,"kind":"proposal","id":"junk"}'
    ground.write(ground.topics.channel, ((keys[number % keys_max], value) for number in range(count)))
    written_s = time.monotonic() - began_s
    return {"written_s": round(written_s, 1), "read and paid, s more": round(ground.drain(), 1)}


def creations(ground: Ground, count: int) -> dict[str, Any]:
    return ground.b1.ask("create_many", f"many{next(ground.numbers)}/n{{}}", count, 4)


def assignments(ground: Ground, count: int) -> dict[str, Any]:
    return ground.b1.ask("look_up_all", ground.namespace(count), 60)


def moves(ground: Ground, count: int) -> dict[str, Any]:
    """Transfers and splits, half of each, on bundles that `b1` owns."""
    bundles = ground.namespace(2 * count)
    ground.b1.ask("look_up_all", bundles, 60)
    owners = ground.b1.ask("owners", bundles)["owners"]
    mine = [bundle for bundle, owner in zip(bundles, owners, strict=True) if owner == "b1"][:count]
    ground.b1.ask("begin")
    return ground.b1.ask("move_many", mine, "b2")


FLOODS: dict[str, tuple[Flood, Sequence[int]]] = {
    "unknown-namespaces": (unknown_namespaces, (50_000, 100_000, 100_000)),
    "unknown-bundles": (unknown_bundles, (50_000, 100_000, 100_000)),
    "one-turn": (in_one_turn, (10_000, 100_000, 100_000)),
    "requests": (through_the_topic, (10_000, 20_000, 20_000)),
    "subscriber": (idle_subscriber, (8_000, 16_000, 16_000)),
    "large-records": (large_records, (150, 300, 300)),
    "hostile-json": (hostile_json, (50, 100, 100)),
    "large-namespaces": (large_namespaces, (2, 4, 4)),
    "creations": (creations, (2_500, 5_000, 5_000)),
    "assignments": (assignments, (2_500, 5_000, 5_000)),
    "moves": (moves, (1_000, 5_000, 5_000)),
    "junk": (junk, (300_000, 600_000, 0)),
}
"""By name: the flood and its sizes; the full one of junk is an argument."""


def run(names: Sequence[str] = (), junk_records: int = 600_000) -> Sequence[Figure]:
    """The floods one after the other, each on a cluster of its own."""
    figures: list[Figure] = []
    with kafka() as bootstrap:
        for name in names or FLOODS:
            flood, sizes = FLOODS[name]
            with flooded(bootstrap, f"{CHANNEL}-{name}") as ground:
                figures += [_measure(ground, name, flood, size or junk_records) for size in sizes]
    return figures


@contextmanager
def flooded(bootstrap: str, channel: str) -> Iterator[Ground]:
    """Two brokers that have caught up; the first leads."""
    with brokers(bootstrap, channel, ("b1", "b2"), module="tests.bench.flood_process") as running:
        until_s = time.monotonic() + 60
        while not running["b1"].ask("leading") and time.monotonic() < until_s:
            time.sleep(0.2)
        yield Ground(bootstrap, channel, running["b1"], running["b2"])


def measured(ground: Ground, flood: Flood, size: int) -> tuple[dict[str, float], dict[str, Any]]:
    """What the first broker measured of itself from the flood's beginning until it was at rest again; what callers heard.

    Changes of mode are those of both brokers.
    """
    ground.drain()
    both = (ground.b1, ground.b2)
    for broker in both:
        broker.ask("begin")
    outcomes = flood(ground, size)
    ground.drain()
    seen, other = (broker.ask("measured") for broker in both)
    seen["mode_changes"] += other["mode_changes"]
    return {key: round(value, 1) for key, value in seen.items()}, outcomes


def _measure(ground: Ground, name: str, flood: Flood, size: int) -> Figure:
    load, began_s = Load(), time.monotonic()
    seen, outcomes = measured(ground, flood, size)
    seconds = time.monotonic() - began_s
    print(f"floods: {name} {size}: {seconds:.1f} s, {seen}, {outcomes}", file=sys.stderr)
    notes = {"size": size, "seconds": round(seconds, 1), **seen, "told": outcomes}
    return Figure(
        f"floods.{name}.{size}", seen["stall_max_ms"], "ms", aim=f"<= {AIM_MS} ms", load=str(load), notes=notes
    )


def page(figures: Sequence[Figure]) -> str:
    """The table of design/evidence/performance.md."""
    head = (
        "flood",
        "size",
        "s",
        "turn, CPU max",
        "loop held p50 / max",
        "mode changes",
        "RSS before / peak / after, MiB",
        "told",
    )
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for figure in figures:
        seen = figure.notes
        outcomes = ", ".join(f"{count} {word}" for word, count in seen["told"].items())
        rss = " / ".join(f"{seen[f'rss_{when}_mib']:.0f}" for when in ("before", "peak", "after"))
        held = f"{seen['stall_p50_ms']:.1f} / {seen['stall_max_ms']:.0f} ms"
        name = figure.name.split(".")[1]
        turn = f"{seen['burst_cpu_max_ms']:.0f} ms"
        changes = f"{seen['mode_changes']:.0f}"
        cells = (name, f"{seen['size']:,}", f"{seen['seconds']:.0f}", turn, held, changes, rss, outcomes[:120])
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
