"""The load service without Kafka: what an embedder's source does wrong stays with it."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from loaddata.live import service as module
from loaddata.live.service import LoadService
from loaddata.live.topics import LoadConnection
from loaddata.model.broker_load import BrokerLoad, HostUsage, ResourceUsage, ResourceWeights
from loaddata.model.bundle_load import BundleStats
from loaddata.report.record import ReportKind, decode_broker_load, decode_top_bundles
from loaddata.report.reporter import ReportWrite
from loaddata.settings import LoadSettings
from loaddata.source import MeasuredBundle, TopicRates
from loaddata.view.ownership import OwnChanges, OwnershipChange
from statechannel.engine.config import Identity
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.topic_policy import LoadTopics
from tests.support.load_channel import FakeChannel
from tests.support.waits import until

BUNDLE = "t/n/0x00000000_0xffffffff"
QUICK = LoadSettings(
    measure_interval_s=0.05, tick_s=0.02, sample_interval_s=0.05, top_interval_s=0.05, stale_s=0.5, close_timeout_s=0
)


class Source:
    """The embedder's, which raises as long as the test wants it to."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.asked = 0

    def bundles(self) -> Mapping[str, MeasuredBundle]:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return {BUNDLE: MeasuredBundle(BundleStats(100.0, 100.0, 1e5, 1e5))}

    def topics(self, bundle: str) -> Sequence[TopicRates]:
        return ()


class Host:
    def read(self, now_s: float) -> HostUsage:
        return HostUsage(ResourceUsage(50, 100), ResourceUsage(1, 2), ResourceUsage(1, 2), ResourceUsage(1, 2))


class KafkaSide:
    """Takes what is written; nothing is read back."""

    leading = False
    topics = LoadTopics("c")

    def __init__(self, *_: object) -> None:
        self.written: list[ReportWrite] = []
        self.changes: list[OwnershipChange] = []

    async def open(self) -> None:
        pass

    def registered(self, brokers: Iterable[str]) -> None:
        self.known = list(brokers)

    async def close(self) -> None:
        pass

    def ownership_changed(self, change: OwnershipChange) -> None:
        self.changes.append(change)

    def write(self, records: Sequence[ReportWrite]) -> None:
        self.written += records

    def status(self) -> dict[str, Any]:
        return {}

    def of(self, kind: ReportKind) -> list[Any]:
        decode: Callable[..., Any] = decode_broker_load if kind is ReportKind.BROKER_LOAD else decode_top_bundles
        return [
            decode(proposal.key, proposal.value)
            for proposal in self.written
            if proposal.kind is kind and proposal.value is not None
        ]


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def service(source: Source, monkeypatch: pytest.MonkeyPatch) -> LoadService:
    monkeypatch.setattr(module, "KafkaSide", KafkaSide)
    return make_service(source)


def make_service(source: Source, settings: LoadSettings = QUICK, channel: FakeChannel | None = None) -> LoadService:
    connection = LoadConnection(ClientSettings("127.0.0.1:1"), "c")
    member = (channel or FakeChannel()).of("b1")
    return LoadService(settings, connection, Identity("b1", "b1-i", bytes(10), 1), source, member, host=Host())


async def test_a_source_that_raises_is_asked_again_and_silences_its_broker_alone(service: LoadService, source: Source):
    kafka: Any = service._topics
    source.error = ZeroDivisionError("theirs")
    await service.start()
    try:
        await until(lambda: source.asked >= 5)
        assert service.status()["failing"] == {"measuring": "ZeroDivisionError('theirs')"}
        assert service.status()["failures"]["measuring"] >= 4
        assert kafka.written == []  # nothing is told that nobody has measured
        source.error = None
        await until(lambda: bool(kafka.of(ReportKind.TOP_BUNDLES)))
        assert kafka.of(ReportKind.BROKER_LOAD)[-1].load.msg_rate_in > 0
        assert [bundle.name for bundle in kafka.of(ReportKind.TOP_BUNDLES)[-1].bundles] == [BUNDLE]
        assert service.status()["failing"] == {}

        source.error = OSError("again")
        await until(
            lambda: service.status()["not_reported"].get("stale", 0) > 0
        )  # figures that are too old are not told
        result = len(kafka.written)
        service.report_now()
        await asyncio.sleep(0.1)
        assert len(kafka.written) == result
        assert service.local_load().msg_rate_in > 0
    finally:
        await service.close()


async def test_what_a_rejoin_hid_is_seen_when_the_changes_can_be_followed_again(source: Source, monkeypatch):
    monkeypatch.setattr(module, "KafkaSide", KafkaSide)
    channel = FakeChannel()
    service = make_service(source, channel=channel)
    kafka: Any = service._topics
    changed: list[tuple[int, int]] = []
    monkeypatch.setattr(OwnChanges, "changed", lambda _, *place: changed.append(place))
    await service.start()
    try:
        await until(lambda: len(channel.watches) == 1)
        channel.joining = True
        channel.interrupt()
        await until(lambda: channel.watches[0].closed)
        channel.watches.clear()
        hidden = channel.moves(BUNDLE, "b2", "b3")
        await asyncio.sleep(5 * QUICK.tick_s)
        assert (kafka.changes, changed, channel.watches) == ([], [], []), "from the middle of a join nothing is taken"
        channel.joining = False
        await until(lambda: len(channel.watches) == 1)
        assert kafka.changes == [OwnershipChange("b3", 0, hidden)]
        assert changed == [(0, hidden)]
        assert service.status()["failures"].get("watching", 0) == 0
    finally:
        await service.close()


@pytest.mark.parametrize("compares", ["maximum", "weighted"])
def test_weights_that_are_laid_down_count_in_what_is_compared_too(compares: Any, source: Source, monkeypatch):
    monkeypatch.setattr(module, "KafkaSide", KafkaSide)
    service = make_service(source, LoadSettings(report_compares=compares, cpu_weight=3))
    assert service._reporter.weights == ResourceWeights(cpu=3.0)
    service.weigh(ResourceWeights(cpu=0.5))
    assert service._local.rules.weights == ResourceWeights(cpu=0.5)
    assert service._reporter.weights == ResourceWeights(cpu=0.5)
    service.weigh(None)
    assert service._reporter.weights == ResourceWeights(cpu=3.0)
    assert service.local_load() == BrokerLoad()
