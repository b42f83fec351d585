"""Joining a log that the cleaner has been at: time and bytes against the number of records that are left of it."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from statechannel.kafka.client_settings import ClientSettings
from tests.bench.lane import kafka, make_channel
from tests.bench.measure import Figure, Load, median, worker
from tests.bench.records import LogMaker
from tests.bench.replay import fill

LOGS = ((10_000, 200_000), (65_000, 260_000), (65_000, 1_000_000))
BUNDLES_OF_A_NAMESPACE = 5_000
EAGER = {"min.compaction.lag.ms": "1000", "segment.ms": "1000", "min.cleanable.dirty.ratio": "0.01"}
"""For the preparation alone: what is measured has the settings that the protocol asks for."""
CLEANED_S = 120.0
QUIET_S = 6.0
HEARTBEAT_S = 1.0


class Left(NamedTuple):
    """What the cleaner left of a log."""

    records: int
    size_bytes: int
    end: int


def run(rounds: int = 3) -> Sequence[Figure]:
    """A topic for each log."""
    figures: list[Figure] = []
    with kafka() as bootstrap:
        for bundles, records in LOGS:
            figures += _join(bootstrap, bundles, records, rounds)
    return figures


def _join(bootstrap: str, bundles: int, records: int, rounds: int) -> list[Figure]:
    channel = f"bench-join-{bundles}-{records}"
    settings, topics = make_channel(bootstrap, channel)
    maker = LogMaker(records, namespaces=bundles // BUNDLES_OF_A_NAMESPACE, bundles=BUNDLES_OF_A_NAMESPACE)
    with _eager(settings, channel):
        fill(bootstrap, channel, maker.make())
        producer = Producer(settings.producer_config())
        for key, value in maker.settle():
            producer.produce(channel, value, key, 0)
        producer.flush(30)
        left = _clean(settings, topics.channel, producer, maker)
    load, taken_s = Load(), []
    with _beating(producer, channel, maker):
        for _ in range(rounds):
            facts = worker("tests.bench.replay_worker", "engine", bootstrap, channel, left.end)
            if facts["bundles"] != bundles:
                raise RuntimeError(f"the member holds {facts['bundles']} bundles, not {bundles}")
            taken_s.append(facts["wall_s"])
    name = f"join.{bundles}-bundles.{records}-records"
    notes = {"records_left": left.records, "heartbeat_s": HEARTBEAT_S}
    return [
        Figure(f"{name}.left", left.records / records, "of the records", load=str(load), notes=notes),
        Figure(f"{name}.read", left.size_bytes / 2**20, "MiB", load=str(load), notes=notes),
        Figure(f"{name}.time", median(taken_s), "s", aim="half the lag at most", rounds=taken_s, load=str(load)),
    ]


@contextmanager
def _eager(settings: ClientSettings, topic: str) -> Iterator[None]:
    """The cleaner comes at once, and cleans all but the last segment."""
    admin = AdminClient(settings.admin_config())

    def alter(how: AlterConfigOpType) -> None:
        entries = [ConfigEntry(name, value, incremental_operation=how) for name, value in wanted.items()]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(30)

    resource = ConfigResource(ResourceType.TOPIC, topic)
    (config,) = (future.result(30) for future in admin.describe_configs([resource]).values())
    before = {name: config[name].value for name in EAGER}
    wanted = EAGER
    alter(AlterConfigOpType.SET)
    try:
        yield
    finally:
        wanted = before
        alter(AlterConfigOpType.SET)


def _clean(settings: ClientSettings, topic: str, producer: Producer, maker: LogMaker) -> Left:
    """Beat until the cleaner takes nothing more away."""
    until_s, quiet_s = time.monotonic() + CLEANED_S, time.monotonic()
    left = _count(settings, topic)
    while time.monotonic() < until_s:
        for key, value in maker.settle():
            producer.produce(topic, value, key, 0)
        producer.flush(10)
        time.sleep(HEARTBEAT_S)
        now = _count(settings, topic)
        if now.records < left.records:
            quiet_s = time.monotonic()
        left = now
        if left.records < left.end / 2 and time.monotonic() - quiet_s > QUIET_S:
            return left
    raise RuntimeError(f"the cleaner left {left.records} of {left.end} records after {CLEANED_S:g} s")


def _count(settings: ClientSettings, topic: str) -> Left:
    """Consume all that is left."""
    consumer = Consumer(settings.consumer_config("bench-count") | {"enable.partition.eof": True})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        records = size_bytes = 0
        while True:
            for message in consumer.consume(5_000, 1.0):
                if message.error() is None:
                    records += 1
                    size_bytes += len(message.key() or b"") + len(message.value() or b"")
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    return Left(records, size_bytes, message.offset() or 0)
    finally:
        consumer.close()


@contextmanager
def _beating(producer: Producer, topic: str, maker: LogMaker) -> Iterator[None]:
    """Heartbeats as a leader writes them: a joining member waits for the next."""
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(HEARTBEAT_S):
            for key, value in maker.settle():
                producer.produce(topic, value, key, 0)
            producer.flush(10)

    beating = threading.Thread(target=beat, daemon=True)
    beating.start()
    try:
        yield
    finally:
        stop.set()
        beating.join(15)


if __name__ == "__main__":
    print(run(1))
