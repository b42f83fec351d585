"""Keys and records as bytes: what the formats page says, one check after another."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import Any

from tests.twin import strictjson

NAME = r"[A-Za-z0-9_=:.\-]{1,128}"
RANGE = r"0x[0-9a-f]{8}_0x[0-9a-f]{8}"
BROKER = re.compile(r"[A-Za-z0-9_.:\-]{1,128}")
ID = re.compile(r"[A-Za-z0-9\-]{1,64}")
REFERENCE = re.compile(rf"[A-Za-z0-9\-]{{1,64}}(?:/{RANGE})?")
NAMESPACE_KEY = re.compile(f"({NAME}/{NAME})")
BUNDLE_KEY = re.compile(f"({NAME}/{NAME})/({RANGE})")
BUNDLE_STATES = ("Unassigned", "Assigning", "Assigned", "Releasing", "Splitting", "Deleted")
NAMESPACE_STATES = ("Active", "Deleted")
MAX_VALUE_BYTES = 900_000
MAX_DEPTH = 100
MAX_CHILDREN = 32_768
RING = (0, 0xFFFFFFFF)


@dataclass(frozen=True)
class Line:
    """One record of a log as it lies in Kafka."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True)
class Key:
    """What a key's letters say: `kind` is control, namespace, bundle or unknown."""

    kind: str
    text: str
    namespace: str
    range: str


@dataclass(frozen=True)
class Record:
    """A decoded record; only the fields that are judged."""

    kind: str
    id: str
    covers: int
    version: int = -1
    refers: str | None = None
    state: str = ""
    source: str | None = None
    to: str | None = None
    children: tuple[str, ...] | None = None
    forced: bool = False
    clean_to: int = -1


def read_key(key: bytes | None) -> Key:
    """Sort a key by its form."""
    if key is None:
        return Key("unknown", "", "", "")
    if key.startswith(b"!"):
        return Key("control", key.decode("latin-1"), "", "")
    text = key.decode("latin-1")
    if match := NAMESPACE_KEY.fullmatch(text):
        return Key("namespace", text, match[1], "")
    if match := BUNDLE_KEY.fullmatch(text):
        return Key("bundle", text, match[1], match[2])
    return Key("unknown", text, "", "")


def home(namespace: str, partitions: int) -> int:
    """Return the partition in which every key of `namespace` lies."""
    return zlib.crc32(namespace.encode("ascii")) % partitions


def bounds(range_text: str) -> tuple[int, int]:
    """Return lower and upper bound of `0xLLLLLLLL_0xUUUUUUUU`."""
    lower, upper = range_text.split("_")
    return int(lower, 16), int(upper, 16)


def covers_exactly(children: tuple[str, ...], whole: tuple[int, int]) -> bool:
    """Whether the children follow one another without hole from end to end of `whole`."""
    at = whole[0]
    for child in children:
        lower, upper = bounds(child)
        if lower != at or lower >= upper:
            return False
        at = upper
    return len(children) > 0 and at == whole[1]


def newer_format(value: bytes | None) -> int | None:
    """Return the format if the value is a JSON object of a later format, else None."""
    if value is None:
        return None
    try:
        found = strictjson.parse_object(value).get("format")
    except strictjson.NotJsonError:
        return None
    except strictjson.TooDeepError as deep:
        found = deep.top_format
    return found if strictjson.is_int(found, 2) else None


def decode(key: bytes | None, value: bytes | None) -> Record | None:
    """Return the record, or None if it is undecodable on this key."""
    form = read_key(key)
    if form.kind == "unknown" or value is None or len(value) > MAX_VALUE_BYTES:
        return None
    try:
        fields = strictjson.parse_object(value)
    except (strictjson.NotJsonError, strictjson.TooDeepError):
        return None
    if strictjson.depth_of(value) > MAX_DEPTH:
        return None
    return _typed(form, fields)


def _typed(form: Key, fields: dict[str, Any]) -> Record | None:
    if not strictjson.is_int(fields.get("format"), 1, 1):
        return None
    kind = fields.get("kind")
    if kind not in ("proposal", "assert", "heartbeat") or not isinstance(kind, str):
        return None
    if not _text(fields.get("id"), ID) or not strictjson.is_int(fields.get("covers"), -1):
        return None
    by = fields.get("by")
    if not isinstance(by, dict):
        return None
    if not _text(by.get("broker"), BROKER) or not _text(by.get("incarnation"), BROKER):
        return None
    if kind == "heartbeat":
        if form.text != "!heartbeat" or not strictjson.is_int(fields.get("clean_to"), -1):
            return None
        return Record(kind, fields["id"], fields["covers"], clean_to=fields["clean_to"])
    return _change(form, kind, fields)


def _change(form: Key, kind: str, fields: dict[str, Any]) -> Record | None:
    """A proposal or an assert, which stands on a namespace or a bundle."""
    if form.kind == "control" or not strictjson.is_int(fields.get("version"), 0):
        return None
    refers = "base" if kind == "proposal" else "asserts"
    if refers not in fields:
        return None
    if fields[refers] is not None and not _text(fields[refers], REFERENCE):
        return None
    states = list(BUNDLE_STATES if form.kind == "bundle" else NAMESPACE_STATES)
    if kind == "assert":
        states.append("Absent")
    state = fields.get("state")
    if not isinstance(state, str) or state not in states:
        return None
    source = to = None
    if form.kind == "bundle":
        if "from" not in fields or "to" not in fields:
            return None
        source, to = fields["from"], fields["to"]
        if not all(broker is None or _text(broker, BROKER) for broker in (source, to)):
            return None
    children = None
    if (form.kind, state) in (("bundle", "Deleted"), ("namespace", "Active")):
        children = _children(fields.get("children"))
        if children is None:
            return None
    forced = fields.get("forced", False) if kind == "proposal" else False
    if not isinstance(forced, bool):
        return None
    return Record(
        kind, fields["id"], fields["covers"], fields["version"], fields[refers], state,
        source, to, children, forced,
    )  # fmt: skip


def _children(value: Any) -> tuple[str, ...] | None:
    if not isinstance(value, list) or len(value) > MAX_CHILDREN:
        return None
    form = re.compile(RANGE)
    if not all(_text(child, form) for child in value):
        return None
    return tuple(value)


def _text(value: Any, form: re.Pattern[str]) -> bool:
    return isinstance(value, str) and form.fullmatch(value) is not None
