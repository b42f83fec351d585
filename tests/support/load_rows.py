"""Records of load topics as Kafka's source gives them, and as the job's rows."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from loaddata.report.record import ReportKind, TopBundlesReport, encode_top_bundles
from spark.load.rows import SOURCE_COLUMNS, SourceRow, decoded, row_of
from statechannel.protocol.side_record import SideRecord
from tests.support.load_reports import header, top

TOPICS = {ReportKind.BROKER_LOAD: "c-broker-load", ReportKind.TOP_BUNDLES: "c-top-bundles"}
KINDS = {name: kind for kind, name in TOPICS.items()}
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SOURCE = pa.schema(
    [
        ("topic", pa.string()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
    ]
)


def source_row(record: SideRecord, kind: ReportKind = ReportKind.BROKER_LOAD) -> SourceRow:
    headers = [{"key": name, "value": value} for name, value in record.headers] or None
    return SourceRow(TOPICS[kind], record.offset, record.timestamp_ms, record.key, record.value, headers)


def rows(records: Iterable[SideRecord], kind: ReportKind = ReportKind.BROKER_LOAD) -> list[dict[str, Any]]:
    """As the fold gets them: every column of `ROW` is there."""
    batch = pa.RecordBatch.from_pylist([source_row(record, kind)._asdict() for record in records], schema=SOURCE)
    return [row for rows in decoded([batch], KINDS) for row in rows.to_pylist()]


def top_record(broker: str, offset: int, seq: int, bundles: int, timestamp_ms: int) -> SideRecord:
    bundles_told = tuple(top(f"t/n/0x{number:08x}_0x{number + 1:08x}", float(number)) for number in range(bundles))
    report = TopBundlesReport(header(broker, seq, written_at_ms=timestamp_ms), bundles_told)
    return SideRecord(broker.encode(), encode_top_bundles(report), (), offset, timestamp_ms)


assert set(SOURCE.names) == set(SOURCE_COLUMNS)
__all__ = ["KINDS", "SOURCE", "TOPICS", "row_of", "rows", "source_row", "top_record"]
