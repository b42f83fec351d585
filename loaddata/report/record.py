"""Codec of the two reports and their tombstones, strict JSON (design/load-data.md). Pure.

Unknown fields are ignored, so that a later version may add some. Every other deviation is refused with a reason. JSON has no NaN
and no infinity, and neither has a report.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

import orjson

from loaddata.model.broker_load import BrokerLoad, ResourceUsage
from loaddata.model.bundle_load import BundleAverages, BundleStats, MessageAverage, TopBundle
from loaddata.model.figures import FIGURE_MAX, LATEST_MS, is_count, is_figure
from statechannel.protocol.bundle import is_bundle
from statechannel.protocol.codec import is_broker_id
from statechannel.protocol.side_record import Headers, InvalidRecord, load_object

FORMAT: Final = 1
VALUE_MAX_BYTES: Final = 900_000
BUNDLES_MAX: Final = 1_000
"""Bundles in one report; if they are too large for a record, the heaviest that fit are reported."""
PARTITIONS_MAX: Final = 1_000
_HEADER_MAX_BYTES: Final = 1_000 + 25 * PARTITIONS_MAX
_PARTITION = re.compile(r"[0-9]{1,4}", re.ASCII).fullmatch

Part = TypeVar("Part")
AnyReport = TypeVar("AnyReport", "BrokerLoadReport", "TopBundlesReport")


class ReportKind(StrEnum):
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


class ReportedLoad(NamedTuple):
    """Newest report of a broker.

    Attributes:
        age_s: By the reader's monotonic clock; reports older than `ttl_s` are included, the caller decides.
        lapsed: Whether it is stale: the broker's bundles have changed since.
    """

    load: BrokerLoad
    age_s: float
    lapsed: bool


class ReportedTopBundles(NamedTuple):
    """Heaviest bundles of a broker, the lightest first; ages and marks as in `ReportedLoad`.

    Attributes:
        owned_as_of: As in `ReportHeader`; None: unknown.
    """

    bundles: Sequence[TopBundle]
    age_s: float
    lapsed: bool
    owned_as_of: Mapping[int, int] | None = None


class InvalidReportReason(StrEnum):
    TOO_LARGE = "too-large"
    NOT_JSON = "not-json"
    FORMAT = "format"
    KIND = "kind"
    KEY = "key"
    HEADER = "header"
    FIGURES = "figures"
    CLOCK = "clock"
    BUNDLES = "bundles"


class UnwritableReportError(ValueError):
    """A report that a reader would refuse: not finite, negative, or too large."""


class _BadFieldError(ValueError):
    def __init__(self, reason: InvalidReportReason, why: str) -> None:
        super().__init__(why)
        self.reason = reason


# --- writing --------------------------------------------------------------------------------------------------------


def encode_broker_load(report: BrokerLoadReport) -> bytes:
    """The record's value.

    Raises:
        UnwritableReportError: A figure is not finite or negative.
    """
    loaded = {**_header_json(report.header, ReportKind.BROKER_LOAD), "load": _plain(report.load)}
    return _checked(report, loaded, decode_broker_load)


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
    loaded = {**_header_json(report.header, ReportKind.TOP_BUNDLES), "bundles": entries}
    return _checked(report, loaded, decode_top_bundles)


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


def _checked(
    report: AnyReport, loaded: dict[str, Any], decode: Callable[[bytes, bytes], AnyReport | InvalidRecord]
) -> bytes:
    """The encoded value, checked with the reader's rules; orjson would silently turn NaN into null."""
    kind = loaded["kind"]
    try:
        value = orjson.dumps(loaded)
    except orjson.JSONEncodeError as error:
        raise UnwritableReportError(f"the {kind} report cannot be written: {error}") from error
    decoded = decode(report.header.broker.encode(), value)
    if isinstance(decoded, InvalidRecord):
        raise UnwritableReportError(f"the {kind} report cannot be written: {decoded.why}")
    return value


# --- reading --------------------------------------------------------------------------------------------------------


def decode_broker_load(key: bytes | None, value: bytes) -> BrokerLoadReport | InvalidRecord:
    return _decode(key, value, ReportKind.BROKER_LOAD, _broker_load_report)


def decode_top_bundles(key: bytes | None, value: bytes) -> TopBundlesReport | InvalidRecord:
    return _decode(key, value, ReportKind.TOP_BUNDLES, _top_bundles_report)


def _decode(
    key: bytes | None, value: bytes, kind: ReportKind, parse: Callable[[Mapping[str, Any]], AnyReport]
) -> AnyReport | InvalidRecord:
    loaded = load_object(value, InvalidReportReason, max_bytes=VALUE_MAX_BYTES, format_number=FORMAT)
    if isinstance(loaded, InvalidRecord):
        return loaded
    if loaded.get("kind") != kind:
        return InvalidRecord(InvalidReportReason.KIND, f"kind is not {kind}")
    try:
        report = parse(loaded)
    except _BadFieldError as error:
        return InvalidRecord(error.reason, str(error))
    if key is None or key != report.header.broker.encode():
        return InvalidRecord(InvalidReportReason.KEY, f"the key is not the broker {report.header.broker}")
    return report


def _broker_load_report(loaded: Mapping[str, Any]) -> BrokerLoadReport:
    header = _header(loaded)
    load = _parse_part(BrokerLoad, loaded.get("load"), "load")
    if max(load.updated_at_ms, load.reported_at_ms) > LATEST_MS:
        raise _BadFieldError(InvalidReportReason.CLOCK, "load: timestamp is after year 9999")
    return BrokerLoadReport(header, load)


def _top_bundles_report(loaded: Mapping[str, Any]) -> TopBundlesReport:
    return TopBundlesReport(_header(loaded), _top_bundles(loaded.get("bundles")))


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
_ADDED: Final = frozenset({"peak_usage", "peak_share"})
"""Fields that reports of earlier versions do not have: 0."""


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
        value: Any = loaded.get(name, 0.0 if name in _ADDED else None)
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


# --- tombstones -------------------------------------------------------------------------------------------------------

REASON: Final = "reason"
LAST_OFFSET: Final = "last-offset"
DEADLINE: Final = "deadline"

EXPIRED: Final = "expired"
LEAVING: Final = "leaving"

_NUMBER = re.compile(rb"[0-9]{1,18}").fullmatch
_REASON = re.compile(rb"[a-z0-9-]{1,64}").fullmatch
_HEADERS_MAX = 32


class Tombstone(NamedTuple):
    """A null value whose headers name the record that it deletes.

    The Spark job writes them, or the leader where that job is off, or a broker that leaves. Between reading a record and writing
    its tombstone a fresher record may have been written: a tombstone therefore counts only if it names a record at least as new
    as the one that the reader holds.

    Attributes:
        reason: A stable word of `a-z0-9-`: `expired`, `leaving`, or another one of its writer's.
        last_offset: Offset of the newest record of the key that its writer knew.
        deadline_ms: Wall time at which that record expired; for people.
    """

    reason: str
    last_offset: int
    deadline_ms: int

    def honoured_over(self, held_offset: int) -> bool:
        """Whether it deletes the record at this offset: it must name that one or a newer one."""
        return self.last_offset >= held_offset

    def headers(self) -> Headers:
        return (
            (REASON, self.reason.encode()),
            (LAST_OFFSET, b"%d" % self.last_offset),
            (DEADLINE, b"%d" % self.deadline_ms),
        )


def parse_tombstone(headers: Iterable[tuple[str, bytes | None]], offset: int) -> Tombstone | None:
    """The tombstone from headers; None if one is missing, duplicated or malformed: then it deletes nothing.

    Args:
        offset: Of the null itself: a tombstone cannot name a later record.
    """
    values: dict[str, bytes] = {}
    for name, value in islice(headers, _HEADERS_MAX):
        if name not in (REASON, LAST_OFFSET, DEADLINE):
            continue
        if name in values or value is None:
            return None
        values[name] = value
    good = len(values) == 3 and _REASON(values[REASON]) and _NUMBER(values[LAST_OFFSET]) and _NUMBER(values[DEADLINE])  # noqa: PLR2004 - the three
    if not good or int(values[LAST_OFFSET]) >= offset:
        return None
    return Tombstone(values[REASON].decode(), int(values[LAST_OFFSET]), int(values[DEADLINE]))
