"""Reports and records of load topics, as tests write them."""

from loaddata.model.broker_load import BrokerLoad
from loaddata.model.bundle_load import BundleAverages, BundleStats, MessageAverage, TopBundle
from loaddata.report.record import BrokerLoadReport, ReportHeader, Tombstone, decode_broker_load, encode_broker_load
from loaddata.view.table_view import Arrival, Fate, TableView, decoder
from statechannel.protocol.side_record import SideRecord

NOW_MS = 1_750_000_000_000
DECODE = decoder(decode_broker_load)


def header(broker: str = "b1", seq: int = 1, incarnation: str | None = None, **more: object) -> ReportHeader:
    return ReportHeader(broker, incarnation or f"{broker}-1", seq, **{"written_at_ms": NOW_MS, **more})  # type: ignore[arg-type]


def report(broker: str = "b1", seq: int = 1, load: BrokerLoad | None = None, **more: object) -> BrokerLoadReport:
    return BrokerLoadReport(header(broker, seq, **more), load or BrokerLoad())  # type: ignore[arg-type]


def record(broker: str = "b1", offset: int = 0, seq: int = 1, timestamp_ms: int = NOW_MS, **more: object) -> SideRecord:
    return SideRecord(broker.encode(), encode_broker_load(report(broker, seq, **more)), (), offset, timestamp_ms)


def null(broker: str, offset: int, names: int | None, reason: str = "expired") -> SideRecord:
    headers = () if names is None else Tombstone(reason, names, NOW_MS).headers()
    return SideRecord(broker.encode(), None, headers, offset, NOW_MS)


def read(
    view: TableView[BrokerLoadReport], side_record: SideRecord, now_s: float = 0.0, wall_ms: int | None = None
) -> Fate:
    return view.read(side_record, DECODE(side_record), Arrival(now_s, side_record.timestamp_ms, wall_ms))


def top(name: str, rate: float) -> TopBundle:
    """A bundle with so many messages a second, of a thousand bytes each."""
    average = MessageAverage(rate, 0.0, rate * 1_000, 0.0, 10)
    stats = BundleStats(rate, 0.0, rate * 1_000, 0.0, topics=4, consumers=3, producers=2)
    return TopBundle(name, stats, BundleAverages(average, average))
