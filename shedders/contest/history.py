"""Load reports of a real cluster over time, from its load topics (design/load-data.md) or files of them.

A file has one JSON object a line, as any tool can write it that reads the topics:

    {"at_ms": 1750000102600, "key": "b1", "value": {...}}      a report: the record's value as it stands in the topic
    {"at_ms": 1750000902600, "key": "b1", "value": null}       a tombstone: the broker has left, or its report has expired

Both topics may stand in one file, in any order. A tombstone may say `"kind": "top-bundles"`; only those of broker loads count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from loaddata.model.figures import LATEST_MS
from loaddata.report.record import (
    VALUE_MAX_BYTES,
    BrokerLoadReport,
    ReportKind,
    TopBundlesReport,
    decode_broker_load,
    decode_top_bundles,
)
from shedders.snapshots.faults import SHOWN_MAX
from statechannel.errors import ExitCode, StateChannelError
from statechannel.suggestions import shown

LINES_MAX: Final = 5_000_000
LINE_MAX_BYTES: Final = 2 * VALUE_MAX_BYTES
_FIELDS: Final = {"at_ms", "key", "value", "kind"}


class HistoryError(StateChannelError):
    """A history cannot be read or used."""

    def __init__(self, where: str, problem: str, *, hint: str = "") -> None:
        super().__init__(
            f"{where}: {problem}",
            hint=hint or "design/scenarios.md describes the lines of a history.",
            exit_code=ExitCode.BAD_EXPORT,
        )


class HistoryRecord(NamedTuple):
    """Record of a load topic.

    Attributes:
        at_ms: Log time of the record.
        key: Id of the broker.
        value: Value of the record; None: a tombstone.
    """

    at_ms: int
    key: bytes | None
    value: bytes | None
    kind: ReportKind


class HistoryEntry(NamedTuple):
    """Decoded record: a report, or its end (`report` None)."""

    at_ms: int
    broker: str
    report: BrokerLoadReport | TopBundlesReport | None


def read_history(path: Path) -> Iterator[HistoryRecord]:
    """Records of a file.

    Raises:
        HistoryError: The file cannot be read, or a line is invalid.
    """
    where = shown(str(path))
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LINE_MAX_BYTES + 1):
                number += 1
                if len(line) > LINE_MAX_BYTES:
                    raise HistoryError(where, f"line {number} has more than {LINE_MAX_BYTES:,} bytes")
                if number > LINES_MAX:
                    raise HistoryError(
                        where, f"it has more than {LINES_MAX:,} lines", hint="Split it into shorter spans."
                    )
                if line.strip():
                    yield _record(line, f"{where}, line {number}")
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        why = getattr(error, "strerror", None) or error
        raise HistoryError(where, f"it cannot be read: {why}", hint="Check the path.") from error


def history_lines(records: Iterable[HistoryRecord]) -> Iterator[bytes]:
    """Lines of a file, each with its line end; records whose values are not JSON are omitted."""
    for record in records:
        fields: dict[str, Any] = {
            "at_ms": record.at_ms,
            "key": (record.key or b"").decode(errors="replace"),
            "value": None,
        }
        if record.value is None:
            fields["kind"] = record.kind
        else:
            try:
                fields["value"] = orjson.loads(record.value)
            except orjson.JSONDecodeError:
                continue
        yield orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)


def _record(line: bytes, where: str) -> HistoryRecord:
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise HistoryError(where, f"not JSON: {error}") from error
    if not isinstance(fields, dict) or not {"at_ms", "key", "value"} <= fields.keys() <= _FIELDS:
        raise HistoryError(where, 'expected an object with "at_ms", "key", "value" and optionally "kind"')
    at_ms, key, value = fields["at_ms"], fields["key"], fields["value"]
    if type(at_ms) is not int or not 0 <= at_ms <= LATEST_MS:
        raise HistoryError(where, "at_ms: expected milliseconds since 1970")
    if not isinstance(key, str):
        raise HistoryError(where, "key: expected a broker id, as text")
    if value is not None and not isinstance(value, dict):
        raise HistoryError(where, "value: expected an object or null")
    return HistoryRecord(
        at_ms, key.encode(), None if value is None else orjson.dumps(value), _kind(fields, value, where)
    )


def _kind(fields: dict[str, Any], value: dict[str, Any] | None, where: str) -> ReportKind:
    kind = fields.get("kind", (value or {}).get("kind", ReportKind.BROKER_LOAD))
    try:
        return ReportKind(kind)
    except ValueError as error:
        raise HistoryError(where, f"kind: expected {' or '.join(ReportKind)}, got {shown(repr(kind))}") from error


class DecodedHistory(NamedTuple):
    """Decoded history by time, with problems of the omitted records."""

    entries: list[HistoryEntry]
    problems: list[str]


def decoded(records: Iterable[tuple[int, bytes | None, bytes | None, ReportKind]]) -> DecodedHistory:
    """Decode records; invalid ones are omitted, with the reasons.

    Args:
        records: `HistoryRecord`s, or plain tuples like them.
    """
    entries, wrong, dropped = list[HistoryEntry](), list[str](), 0
    for record in (HistoryRecord(*record) for record in records):
        if record.value is None:
            if record.kind is ReportKind.BROKER_LOAD and record.key is not None:
                entries.append(HistoryEntry(record.at_ms, record.key.decode(errors="replace"), None))
            continue
        decode = decode_broker_load if record.kind is ReportKind.BROKER_LOAD else decode_top_bundles
        report = decode(record.key, record.value)
        if isinstance(report, BrokerLoadReport | TopBundlesReport):
            entries.append(HistoryEntry(record.at_ms, report.header.broker, report))
        else:
            dropped += 1
            if len(wrong) < SHOWN_MAX:
                wrong.append(f"a {record.kind} of {shown(repr(record.key))} was left out: {report.why}")
    if dropped > len(wrong):
        wrong.append(f"... and {dropped - len(wrong)} more records")
    # Records of one moment stay in the order in which they came.
    entries.sort(key=lambda entry: entry.at_ms)
    return DecodedHistory(entries, wrong)
