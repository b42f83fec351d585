"""Strict JSON of the two reports (design/load-data.md). Pure.

Unknown fields are ignored, so that a later version may add some. Everything else is refused with a reason: a report that
cannot be trusted is no report. JSON has no NaN and no infinity, and neither has a report.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar

import orjson

from loaddata.broker_load import BrokerLoad
from loaddata.bundle_load import BundleAverages, BundleStats, MessageAverage
from loaddata.top_bundles import TopBundle
from loaddata.usage import ResourceUsage
from statechannel.core.bundle import is_bundle
from statechannel.core.codec import is_broker_id

FORMAT: Final = 1
VALUE_MAX_BYTES: Final = 900_000
_INT_MAX: Final = 2**53 - 1

Part = TypeVar("Part")


class Kind(StrEnum):
    """The two reports."""

    BROKER_LOAD = "broker-load"
    TOP_BUNDLES = "top-bundles"


@dataclass(frozen=True, slots=True)
class Header:
    """What both reports say of themselves.

    Attributes:
        seq: 1, 2, 3, ... of this process and this kind of report.
        written_at_ms: The writer's wall clock; for people.
        owned_as_of: Offset of the newest change of its own bundles that the figures take in, by partition.
    """

    broker: str
    incarnation: str
    seq: int
    written_at_ms: int
    owned_as_of: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BrokerLoadReport:
    """A record of `NAME-broker-load`."""

    header: Header
    load: BrokerLoad


@dataclass(frozen=True, slots=True)
class TopBundlesReport:
    """A record of `NAME-top-bundles`; the lightest bundle first."""

    header: Header
    bundles: Sequence[TopBundle]


class Undecodable(NamedTuple):
    """Not a report that this version can use; `why` is for people."""

    why: str


class UnwritableReportError(ValueError):
    """A report that would not be read back: not finite, negative, or too large."""


class _BadFieldError(ValueError):
    """A field is missing or not what it must be."""


# --- writing --------------------------------------------------------------------------------------------------------


def encode_broker_load(report: BrokerLoadReport) -> bytes:
    """The record's value.

    Raises:
        UnwritableReportError: A figure is not finite or negative.
    """
    return _checked({**_header_json(report.header, Kind.BROKER_LOAD), "load": _plain(report.load)}, Kind.BROKER_LOAD)


def encode_top_bundles(report: TopBundlesReport) -> bytes:
    """The record's value.

    Raises:
        UnwritableReportError: A figure is not finite or negative, or there are more bundles than fit into a record.
    """
    told = [
        {
            "bundle": one.name,
            "stats": _plain(one.stats),
            "short": _plain(one.averages.short),
            "long": _plain(one.averages.long),
            "non_persistent": one.non_persistent,
        }
        for one in report.bundles
    ]
    return _checked({**_header_json(report.header, Kind.TOP_BUNDLES), "bundles": told}, Kind.TOP_BUNDLES)


def _header_json(header: Header, kind: Kind) -> dict[str, Any]:
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
    if not isinstance(value, BrokerLoad | BundleStats | MessageAverage | ResourceUsage):
        return value
    return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}


def _checked(loaded: dict[str, Any], kind: Kind) -> bytes:
    """What the reader would refuse is not written; orjson would turn NaN into null without a word."""
    value = orjson.dumps(loaded)
    if len(value) > VALUE_MAX_BYTES:
        raise UnwritableReportError(f"the {kind} report has {len(value)} bytes, more than {VALUE_MAX_BYTES}")
    try:
        _report(orjson.loads(value), kind)
    except _BadFieldError as error:
        raise UnwritableReportError(f"the {kind} report cannot be written: {error}") from error
    return value


# --- reading --------------------------------------------------------------------------------------------------------


def decode_broker_load(key: bytes | None, value: bytes) -> BrokerLoadReport | Undecodable:
    """The report that a record of `NAME-broker-load` holds."""
    found = _decode(key, value, Kind.BROKER_LOAD)
    return found if isinstance(found, BrokerLoadReport | Undecodable) else Undecodable("another kind of report")


def decode_top_bundles(key: bytes | None, value: bytes) -> TopBundlesReport | Undecodable:
    """The report that a record of `NAME-top-bundles` holds."""
    found = _decode(key, value, Kind.TOP_BUNDLES)
    return found if isinstance(found, TopBundlesReport | Undecodable) else Undecodable("another kind of report")


def _decode(key: bytes | None, value: bytes, kind: Kind) -> BrokerLoadReport | TopBundlesReport | Undecodable:
    if len(value) > VALUE_MAX_BYTES:
        return Undecodable(f"{len(value)} bytes are too many")
    try:
        report = _report(orjson.loads(value), kind)
    except orjson.JSONDecodeError as error:
        return Undecodable(f"not JSON: {error}")
    except _BadFieldError as error:
        return Undecodable(str(error))
    if key is None or key != report.header.broker.encode():
        return Undecodable(f"the key is not the broker {report.header.broker}")
    return report


def _report(loaded: Any, kind: Kind) -> BrokerLoadReport | TopBundlesReport:
    if not isinstance(loaded, dict):
        raise _BadFieldError("not a JSON object")
    if type(loaded.get("format")) is not int or loaded["format"] != FORMAT:
        raise _BadFieldError(f"format {loaded.get('format')!r}, not {FORMAT}")
    if loaded.get("kind") != kind:
        raise _BadFieldError(f"kind {loaded.get('kind')!r}, not {kind}")
    header = _header(loaded)
    if kind is Kind.BROKER_LOAD:
        return BrokerLoadReport(header, _load(loaded.get("load")))
    bundles = loaded.get("bundles")
    if not isinstance(bundles, list):
        raise _BadFieldError("bundles is no list")
    told = [_top_bundle(one, f"bundles[{index}]") for index, one in enumerate(bundles)]
    if len({one.name for one in told}) != len(told):
        raise _BadFieldError("bundles names one twice")
    return TopBundlesReport(header, tuple(told))


def _header(loaded: Mapping[str, Any]) -> Header:
    for name in ("broker", "incarnation"):
        if not is_broker_id(loaded.get(name)):
            raise _BadFieldError(f"{name} is no broker id")
    positions = loaded.get("owned_as_of")
    if not isinstance(positions, dict) or not all(part.isascii() and part.isdecimal() for part in positions):
        raise _BadFieldError("owned_as_of is no object of offsets by partition")
    return Header(
        broker=loaded["broker"],
        incarnation=loaded["incarnation"],
        seq=_whole(loaded, "seq", least=1),
        written_at_ms=_whole(loaded, "written_at_ms"),
        owned_as_of={int(part): _whole(positions, part, least=-1) for part in positions},
    )


def _load(loaded: Any) -> BrokerLoad:
    if not isinstance(loaded, dict):
        raise _BadFieldError("load is no object")
    return _made(BrokerLoad, loaded, "load")


def _top_bundle(loaded: Any, where: str) -> TopBundle:
    if not isinstance(loaded, dict):
        raise _BadFieldError(f"{where} is no object")
    name = loaded.get("bundle")
    if not isinstance(name, str) or not is_bundle(name):
        raise _BadFieldError(f"{where}.bundle is no bundle")
    non_persistent = loaded.get("non_persistent", False)
    if type(non_persistent) is not bool:
        raise _BadFieldError(f"{where}.non_persistent is neither true nor false")
    averages = BundleAverages(
        short=_made(MessageAverage, loaded.get("short"), f"{where}.short"),
        long=_made(MessageAverage, loaded.get("long"), f"{where}.long"),
    )
    return TopBundle(name, _made(BundleStats, loaded.get("stats"), f"{where}.stats"), averages, non_persistent)


def _made(kind: type[Part], loaded: Any, where: str) -> Part:
    """A flat dataclass of numbers (and resource usages) out of an object that has all of its fields."""
    if not isinstance(loaded, dict):
        raise _BadFieldError(f"{where} is no object")
    made: dict[str, Any] = {}
    for one in fields(kind):  # type: ignore[arg-type]  # only ever called with dataclasses
        if one.type == "int":
            made[one.name] = _whole(loaded, one.name, where=where)
        elif one.type == "float":
            made[one.name] = _number(loaded, one.name, where)
        else:
            made[one.name] = _made(ResourceUsage, loaded.get(one.name), f"{where}.{one.name}")
    return kind(**made)


def _whole(loaded: Mapping[str, Any], name: str, *, least: int = 0, where: str = "") -> int:
    value = loaded.get(name)
    if type(value) is not int or not least <= value <= _INT_MAX:
        raise _BadFieldError(f"{where}{'.' if where else ''}{name} is no whole number of at least {least}")
    return value


def _number(loaded: Mapping[str, Any], name: str, where: str) -> float:
    value = loaded.get(name)
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:  # type: ignore[arg-type, operator]
        raise _BadFieldError(f"{where}.{name} is no finite number of at least 0")
    return float(value)  # type: ignore[arg-type]
