"""Codec of the two reports, strict JSON (design/load-data.md). Pure.

Unknown fields are ignored, so that a later version may add some. Every other deviation is refused with a reason. JSON has no NaN
and no infinity, and neither has a report.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar

import orjson

from loaddata.model.broker_load import BrokerLoad, ResourceUsage
from loaddata.model.bundle_load import BundleAverages, BundleStats, MessageAverage, TopBundle
from loaddata.model.figures import FIGURE_MAX, LATEST_MS, is_count, is_figure
from statechannel.protocol.bundle import is_bundle
from statechannel.protocol.codec import is_broker_id

FORMAT: Final = 1
VALUE_MAX_BYTES: Final = 900_000
BUNDLES_MAX: Final = 1_000
"""Bundles in one report; if they are too large for a record, the heaviest that fit are reported."""
PARTITIONS_MAX: Final = 1_000
_HEADER_MAX_BYTES: Final = 1_000 + 25 * PARTITIONS_MAX
_PARTITION = re.compile(r"[0-9]{1,4}", re.ASCII).fullmatch

Part = TypeVar("Part")


class ReportKind(StrEnum):
    """The two reports."""

    BROKER_LOAD = "broker-load"
    TOP_BUNDLES = "top-bundles"


@dataclass(frozen=True, slots=True)
class ReportHeader:
    """The header of both reports.

    Attributes:
        seq: 1, 2, 3, ... of this process and this kind of report.
        written_at_ms: The writer's wall clock; for people.
        owned_as_of: Offset of the newest change of its own bundles that the figures count, by partition.
    """

    broker: str
    incarnation: str
    seq: int
    written_at_ms: int
    owned_as_of: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BrokerLoadReport:
    """A record of `NAME-broker-load`."""

    header: ReportHeader
    load: BrokerLoad


@dataclass(frozen=True, slots=True)
class TopBundlesReport:
    """A record of `NAME-top-bundles`; the lightest bundle first."""

    header: ReportHeader
    bundles: Sequence[TopBundle]


class InvalidReportReason(StrEnum):
    """Why a record is dropped: stable words, counted."""

    TOO_LARGE = "too-large"
    NOT_JSON = "not-json"
    FORMAT = "format"
    KIND = "kind"
    KEY = "key"
    HEADER = "header"
    FIGURES = "figures"
    CLOCK = "clock"
    BUNDLES = "bundles"


class UndecodableReport(NamedTuple):
    """A report that this version cannot use; `why` is for people."""

    reason: InvalidReportReason
    why: str


class UnwritableReportError(ValueError):
    """A report that a reader would refuse: not finite, negative, or too large."""


class _BadFieldError(ValueError):
    """A field is missing or invalid."""

    def __init__(self, reason: InvalidReportReason, why: str) -> None:
        super().__init__(why)
        self.reason = reason


# --- writing --------------------------------------------------------------------------------------------------------


def encode_broker_load(report: BrokerLoadReport) -> bytes:
    """The record's value.

    Raises:
        UnwritableReportError: A figure is not finite or negative.
    """
    return _checked(
        {**_header_json(report.header, ReportKind.BROKER_LOAD), "load": _plain(report.load)}, ReportKind.BROKER_LOAD
    )


def encode_top_bundles(report: TopBundlesReport) -> bytes:
    """The record's value; if it is too large the lightest bundles, which come first, are left out.

    Raises:
        UnwritableReportError: A figure is not finite or negative.
    """
    room = VALUE_MAX_BYTES - _HEADER_MAX_BYTES
    entries: list[Any] = []
    for bundle in reversed(report.bundles[-BUNDLES_MAX:]):
        entry = _top_bundle_json(bundle)
        room -= len(orjson.dumps(entry)) + 1
        if room < 0:
            break
        entries.append(entry)
    entries.reverse()
    return _checked({**_header_json(report.header, ReportKind.TOP_BUNDLES), "bundles": entries}, ReportKind.TOP_BUNDLES)


def _top_bundle_json(bundle: TopBundle) -> dict[str, Any]:
    return {
        "bundle": bundle.name,
        "stats": _plain(bundle.stats),
        "short": _plain(bundle.averages.short),
        "long": _plain(bundle.averages.long),
        "non_persistent": bundle.non_persistent,
    }


def _header_json(header: ReportHeader, kind: ReportKind) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "kind": str(kind),
        "broker": header.broker,
        "incarnation": header.incarnation,
        "seq": header.seq,
        "written_at_ms": header.written_at_ms,
        "owned_as_of": {str(partition): header.owned_as_of[partition] for partition in sorted(header.owned_as_of)},
    }


def _plain(value: Any) -> Any:
    known = _FIELDS.get(type(value))
    return value if known is None else {name: _plain(getattr(value, name)) for name, _ in known}


def _checked(loaded: dict[str, Any], kind: ReportKind) -> bytes:
    """The encoded value, checked with the reader's rules; orjson would silently turn NaN into null."""
    try:
        value = orjson.dumps(loaded)
    except orjson.JSONEncodeError as error:
        raise UnwritableReportError(f"the {kind} report cannot be written: {error}") from error
    if len(value) > VALUE_MAX_BYTES:
        raise UnwritableReportError(f"the {kind} report has {len(value)} bytes, more than {VALUE_MAX_BYTES}")
    try:
        _report(orjson.loads(value), kind)
    except _BadFieldError as error:
        raise UnwritableReportError(f"the {kind} report cannot be written: {error}") from error
    return value


# --- reading --------------------------------------------------------------------------------------------------------


def decode_broker_load(key: bytes | None, value: bytes) -> BrokerLoadReport | UndecodableReport:
    """The report that a record of `NAME-broker-load` holds."""
    report = _decode(key, value, ReportKind.BROKER_LOAD)
    return (
        report
        if isinstance(report, BrokerLoadReport | UndecodableReport)
        else UndecodableReport(InvalidReportReason.KIND, "another kind of report")
    )


def decode_top_bundles(key: bytes | None, value: bytes) -> TopBundlesReport | UndecodableReport:
    """The report that a record of `NAME-top-bundles` holds."""
    report = _decode(key, value, ReportKind.TOP_BUNDLES)
    return (
        report
        if isinstance(report, TopBundlesReport | UndecodableReport)
        else UndecodableReport(InvalidReportReason.KIND, "another kind of report")
    )


def _decode(
    key: bytes | None, value: bytes, kind: ReportKind
) -> BrokerLoadReport | TopBundlesReport | UndecodableReport:
    if len(value) > VALUE_MAX_BYTES:
        return UndecodableReport(InvalidReportReason.TOO_LARGE, f"{len(value)} bytes, more than {VALUE_MAX_BYTES}")
    try:
        report = _report(orjson.loads(value), kind)
    except orjson.JSONDecodeError as error:
        return UndecodableReport(InvalidReportReason.NOT_JSON, f"not JSON: {error}")
    except _BadFieldError as error:
        return UndecodableReport(error.reason, str(error))
    if key is None or key != report.header.broker.encode():
        return UndecodableReport(InvalidReportReason.KEY, f"the key is not the broker {report.header.broker}")
    return report


def _report(loaded: Any, kind: ReportKind) -> BrokerLoadReport | TopBundlesReport:
    if not isinstance(loaded, dict):
        raise _BadFieldError(InvalidReportReason.NOT_JSON, "not a JSON object")
    if type(loaded.get("format")) is not int or loaded["format"] != FORMAT:
        raise _BadFieldError(InvalidReportReason.FORMAT, f"format is not {FORMAT}")
    if loaded.get("kind") != kind:
        raise _BadFieldError(InvalidReportReason.KIND, f"kind is not {kind}")
    header = _header(loaded)
    if kind is ReportKind.BROKER_LOAD:
        load = _parse_part(BrokerLoad, loaded.get("load"), "load")
        if max(load.updated_at_ms, load.reported_at_ms) > LATEST_MS:
            raise _BadFieldError(InvalidReportReason.CLOCK, "load: timestamp is after year 9999")
        return BrokerLoadReport(header, load)
    return TopBundlesReport(header, _top_bundles(loaded.get("bundles")))


def _header(loaded: Mapping[str, Any]) -> ReportHeader:
    for name in ("broker", "incarnation"):
        if not is_broker_id(loaded.get(name)):
            raise _BadFieldError(InvalidReportReason.HEADER, f"{name} is not a broker id")
    positions = loaded.get("owned_as_of")
    if not isinstance(positions, dict) or len(positions) > PARTITIONS_MAX or not all(map(_PARTITION, positions)):
        raise _BadFieldError(InvalidReportReason.HEADER, "owned_as_of is not an object of offsets by partition")
    written_at_ms = _whole(loaded, "written_at_ms", InvalidReportReason.HEADER)
    if written_at_ms > LATEST_MS:
        raise _BadFieldError(InvalidReportReason.CLOCK, "written_at_ms is after year 9999")
    return ReportHeader(
        broker=loaded["broker"],
        incarnation=loaded["incarnation"],
        seq=_whole(loaded, "seq", InvalidReportReason.HEADER, least=1),
        written_at_ms=written_at_ms,
        owned_as_of={int(part): _whole(positions, part, InvalidReportReason.HEADER, least=-1) for part in positions},
    )


def _top_bundles(loaded: Any) -> tuple[TopBundle, ...]:
    if not isinstance(loaded, list) or len(loaded) > BUNDLES_MAX:
        raise _BadFieldError(InvalidReportReason.BUNDLES, f"bundles is not a list of at most {BUNDLES_MAX}")
    bundles = tuple(_top_bundle(entry, f"bundles[{index}]") for index, entry in enumerate(loaded))
    if len({bundle.name for bundle in bundles}) != len(bundles):
        raise _BadFieldError(InvalidReportReason.BUNDLES, "bundles has a duplicate")
    return bundles


def _top_bundle(loaded: Any, where: str) -> TopBundle:
    if not isinstance(loaded, dict):
        raise _BadFieldError(InvalidReportReason.BUNDLES, f"{where} is not an object")
    name = loaded.get("bundle")
    if not isinstance(name, str) or not is_bundle(name):
        raise _BadFieldError(InvalidReportReason.BUNDLES, f"{where}.bundle is not a bundle")
    non_persistent = loaded.get("non_persistent", False)
    if type(non_persistent) is not bool:
        raise _BadFieldError(InvalidReportReason.BUNDLES, f"{where}.non_persistent is neither true nor false")
    averages = BundleAverages(
        short=_parse_part(MessageAverage, loaded.get("short"), f"{where}.short"),
        long=_parse_part(MessageAverage, loaded.get("long"), f"{where}.long"),
    )
    return TopBundle(name, _parse_part(BundleStats, loaded.get("stats"), f"{where}.stats"), averages, non_persistent)


_FIELDS: Mapping[type[Any], tuple[tuple[str, str], ...]] = {
    kind: tuple((member.name, str(member.type)) for member in fields(kind))
    for kind in (BrokerLoad, ResourceUsage, BundleStats, MessageAverage)
}
"""Name and kind (`int`, `float`, `ResourceUsage`) of each field; annotations are text in those modules."""


def _parse_part(kind: type[Part], loaded: Any, where: str) -> Part:
    """A flat dataclass of numbers (and resource usages) from an object that has all of its fields."""
    if not isinstance(loaded, dict):
        raise _BadFieldError(InvalidReportReason.FIGURES, f"{where} is not an object")
    values: dict[str, Any] = {}
    for name, annotation in _FIELDS[kind]:
        if annotation == "ResourceUsage":
            values[name] = usage = _parse_part(ResourceUsage, loaded.get(name), f"{where}.{name}")
            if not is_figure(usage.percent):
                raise _BadFieldError(InvalidReportReason.FIGURES, f"{where}.{name} is absurdly far beyond its limit")
            continue
        value: Any = loaded.get(name)
        if not (is_count(value) if annotation == "int" else is_figure(value)):
            raise _BadFieldError(
                InvalidReportReason.FIGURES, f"{where}.{name} is not a {_WORD[annotation]} from 0 to {FIGURE_MAX}"
            )
        values[name] = value if annotation == "int" else float(value)
    return kind(**values)


_WORD = {"int": "whole number", "float": "finite number"}


def _whole(loaded: Mapping[str, Any], name: str, reason: InvalidReportReason, *, least: int = 0) -> int:
    value = loaded.get(name)
    if type(value) is not int or not least <= value <= FIGURE_MAX:
        raise _BadFieldError(reason, f"{name} is not a whole number of at least {least}")
    return value
