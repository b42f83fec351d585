"""One record of a load topic as a row of the history, decoded by the brokers' own functions. Pure.

Every record becomes a row, whatever it holds. What is not a report keeps its bytes and a `reason`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa

from loaddata.model.broker_load import BrokerLoad, ResourceUsage
from loaddata.model.bundle_load import BundleStats, MessageAverage
from loaddata.model.figures import wall_ms
from loaddata.report.record import (
    BrokerLoadReport,
    InvalidReportReason,
    ReportKind,
    TopBundlesReport,
    decode_broker_load,
    decode_top_bundles,
    parse_tombstone,
)
from statechannel.protocol.codec import is_broker_id
from statechannel.protocol.side_record import InvalidRecord

DECODE: Mapping[ReportKind, Callable[[bytes | None, bytes], BrokerLoadReport | TopBundlesReport | InvalidRecord]] = {
    ReportKind.BROKER_LOAD: decode_broker_load,
    ReportKind.TOP_BUNDLES: decode_top_bundles,
}
WHY_MAX_CHARS: Final = 300

_ARROW = {"int": pa.int64(), "float": pa.float64()}
_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
_NAMES = {
    kind: tuple(field.name for field in fields(kind))
    for kind in (ResourceUsage, BrokerLoad, BundleStats, MessageAverage)
}


def _struct(kind: type[Any]) -> pa.DataType:
    """The columns of a flat dataclass of figures; annotations are text in those modules."""
    columns = [(field.name, str(field.type)) for field in fields(kind)]
    return pa.struct([pa.field(n, _struct(ResourceUsage) if t == "ResourceUsage" else _ARROW[t]) for n, t in columns])


LOAD: Final = _struct(BrokerLoad)
BUNDLES: Final = pa.list_(
    pa.struct(
        [
            pa.field("bundle", pa.string()),
            pa.field("stats", _struct(BundleStats)),
            pa.field("short", _struct(MessageAverage)),
            pa.field("long", _struct(MessageAverage)),
            pa.field("non_persistent", pa.bool_()),
        ]
    )
)

PLACE = pa.schema([("kind", pa.string()), ("topic", pa.string()), ("offset", pa.int64())])
REPORT = pa.schema(
    [
        ("broker", pa.string()),
        ("incarnation", pa.string()),
        ("seq", pa.int64()),
        ("written_at_ms", pa.int64()),
        ("owned_as_of", pa.map_(pa.int32(), pa.int64())),
        ("size_bytes", pa.int64()),
        ("load", LOAD),
        ("bundles", BUNDLES),
    ]
)
TIME = pa.schema([("log_time", pa.timestamp("us", tz="UTC")), ("log_time_ms", pa.int64())])
REST = pa.schema(
    [
        ("key", pa.binary()),
        ("tombstone", pa.bool_()),
        ("headers", _HEADERS),
        ("reason", pa.string()),
        ("why", pa.string()),
        ("raw", pa.binary()),
        ("dt", pa.string()),
    ]
)
ROW: Final = pa.schema([*PLACE, *TIME, *REPORT, *REST])
"""A decoded record.

`kind` is that of its topic. `broker` is who reports, or whom a tombstone names. `tombstone` marks nulls. `reason` is empty
for a report and for a null, else why the record is neither. `raw` holds the value of what could not be decoded. `dt` is the
UTC date of `log_time`.
"""


class SourceRow(NamedTuple):
    """What Kafka's source gives of a record."""

    topic: str
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Mapping[str, Any]] | None


SOURCE_COLUMNS: Final = SourceRow._fields


def plain_headers(headers: Sequence[Mapping[str, Any]] | None) -> tuple[tuple[str, bytes | None], ...]:
    """Headers as `loaddata.report.record` takes them."""
    return tuple((header["key"], header["value"]) for header in headers or ())


def row_of(record: SourceRow, kind: ReportKind) -> dict[str, Any]:
    """The row of one record, by the names of `ROW`; columns that do not apply are left out."""
    log_time_ms = wall_ms(record.timestamp_ms)
    at = datetime.fromtimestamp(log_time_ms / 1_000, UTC)
    row: dict[str, Any] = {
        "kind": str(kind),
        "topic": record.topic,
        "offset": record.offset,
        "log_time": log_time_ms * 1_000,
        "log_time_ms": log_time_ms,
        "key": record.key,
        "tombstone": record.value is None,
        "headers": record.headers,
        "size_bytes": len(record.value or b""),
        "reason": "",
        "dt": f"{at:%Y-%m-%d}",
    }
    if record.value is None:
        if parse_tombstone(plain_headers(record.headers), record.offset) is not None:
            name = (record.key or b"").decode("ascii", errors="replace")
            # A key may be as long as a record: what cannot be a broker is sorted out before it reaches the driver.
            row |= (
                {"broker": name}
                if is_broker_id(name)
                else {"reason": str(InvalidReportReason.KEY), "why": "the key is not a broker id"}
            )
        return row
    report = DECODE[kind](record.key, record.value)
    if isinstance(report, InvalidRecord):
        return row | {"reason": str(report.reason), "why": report.why[:WHY_MAX_CHARS], "raw": record.value}
    header = report.header
    row |= {
        "broker": header.broker,
        "incarnation": header.incarnation,
        "seq": header.seq,
        "written_at_ms": header.written_at_ms,
        "owned_as_of": sorted(header.owned_as_of.items()),
    }
    if isinstance(report, BrokerLoadReport):
        row["load"] = _figures(report.load)
    else:
        row["bundles"] = [
            {
                "bundle": bundle.name,
                "stats": _figures(bundle.stats),
                "short": _figures(bundle.averages.short),
                "long": _figures(bundle.averages.long),
                "non_persistent": bundle.non_persistent,
            }
            for bundle in report.bundles
        ]
    return row


def _figures(value: Any) -> dict[str, Any]:
    figures = {name: getattr(value, name) for name in _NAMES[type(value)]}
    return {name: _figures(figure) if type(figure) is ResourceUsage else figure for name, figure in figures.items()}


def decoded(
    batches: Iterable[pa.RecordBatch], kinds: Mapping[str, ReportKind], rows_max: int = 500
) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: batches of `SOURCE_COLUMNS` to batches of `ROW`.

    Args:
        rows_max: Of one batch given back: a report may have a thousand bundles.
    """
    for batch in batches:
        columns = [batch.column(name) for name in SOURCE_COLUMNS]
        for start in range(0, batch.num_rows, rows_max):
            lists = [column.slice(start, rows_max).to_pylist() for column in columns]
            records = (SourceRow(*cells) for cells in zip(*lists, strict=True))
            yield pa.RecordBatch.from_pylist([row_of(record, kinds[record.topic]) for record in records], schema=ROW)
