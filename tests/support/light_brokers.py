"""The load data of brokers over a real Kafka, without the rest of the brokers; and the topics as anybody reads them."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from loaddata.live.service import LoadService
from loaddata.live.topics import LoadConnection
from loaddata.measure.synthetic import SimulatedHost
from loaddata.model.bundle_load import BundleStats
from loaddata.report.record import Tombstone
from loaddata.settings import LoadSettings
from loaddata.source import MeasuredBundle, TopicRates
from statechannel.engine.config import Identity
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.light_topic import LightBatch, LightReader, LightTuning, LightWriter
from statechannel.protocol.side_record import SideRecord
from tests.support import waits
from tests.support.kafka_lanes import Kafka
from tests.support.load_channel import FakeChannel
from tests.support.waits import WAIT_S

BUNDLES = ["t/n/0x00000000_0x40000000", "t/n/0x40000000_0x80000000", "t/n/0x80000000_0xc0000000"]
FAST = {
    "measure_interval_s": 0.2,
    "tick_s": 0.05,
    "sample_interval_s": 0.2,
    "settle_s": 0.2,
    "top_interval_s": 0.2,
    "repeat_s": 0.2,
    "confirm_s": 5.0,
    "close_timeout_s": 15.0,
}


@dataclass
class Source:
    """Rates that the test sets."""

    stats: dict[str, BundleStats] = field(default_factory=dict)

    def bundles(self) -> dict[str, MeasuredBundle]:
        return {name: MeasuredBundle(stats) for name, stats in self.stats.items()}

    def topics(self, bundle: str) -> list[TopicRates]:
        return []


def stats(rate: float) -> BundleStats:
    return BundleStats(rate, rate, rate * 1_000, rate * 1_000, topics=1)


@asynccontextmanager
async def broker(
    kafka: Kafka, prefix: str, name: str, channel: FakeChannel, source: Source | None = None, **settings: object
) -> AsyncIterator[LoadService]:
    """One broker's load data: clients, threads and views of its own, as in a process of its own."""
    source = source or Source({BUNDLES[0]: stats(100.0)})
    service = LoadService(
        LoadSettings(**{**FAST, **settings}),
        LoadConnection(ClientSettings(kafka.bootstrap_servers), prefix, replication_factor=1, timeout_s=WAIT_S),
        Identity(name, f"{name}-{time.monotonic_ns()}", b"0123456789", 1),
        source,
        channel.of(name),
        host=SimulatedHost(source),
    )
    await service.start()
    try:
        yield service
    finally:
        await service.close()


async def until(true: Callable[[], object], what: str = "", *services: LoadService, wait_s: float = WAIT_S) -> None:
    await waits.until(true, lambda: f"{what}; {[service.status() for service in services]}", wait_s=wait_s)


class Log:
    """The topic itself, as any reader would find it, and a hand that writes into it."""

    def __init__(self, kafka: Kafka, topic: str) -> None:
        self.topic = topic
        self.records: list[SideRecord] = []
        self._settings = ClientSettings(kafka.bootstrap_servers)
        self._writer = LightWriter(self._settings, tuning=LightTuning(linger_ms=0))
        self._reader = LightReader(self._settings, topic, self._sink, group_id=f"{topic}-test")
        self._reader.start()
        assert self._reader.wait_caught_up(WAIT_S)

    def _sink(self, batch: LightBatch) -> None:
        self.records.extend(batch.records)

    def of(self, name: str) -> list[SideRecord]:
        return [record for record in self.records if record.key == name.encode()]

    def write(self, key: str, value: bytes | None, tombstone: Tombstone | None = None) -> None:
        headers = () if tombstone is None else tombstone.headers()
        assert self._writer.write(self.topic, key.encode(), value, headers)
        assert self._writer.flush(WAIT_S)
        assert self._writer.counts.failed == 0, self._writer.counts

    def close(self) -> None:
        self._writer.close()
        self._reader.close()
