"""Strict bytes of channel records: decode and encode (formats page, "Kafka record").

What cannot be decoded is rejected the same way by everyone, so every rule here is part of the protocol. Unknown fields
are kept and ignored, and so are known fields in records that do not have them.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import orjson

from statechannel.core import deep_json
from statechannel.core.bundle import MAX_CHILDREN, parse_range
from statechannel.core.record import FORMAT, Kind, Record
from statechannel.core.states import BUNDLE_STATES, NAMESPACE_STATES, State

MAX_VALUE_SIZE_BYTES = 900_000
MAX_DEPTH = 100
MAX_INT = 2**53 - 1
HEARTBEAT_KEY = b"!heartbeat"
COLD_START_KEY = b"!cold-start"
CLOSING_PREFIX = b"!closing/"

_ID = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII).fullmatch
_REFERENCE = re.compile(r"[A-Za-z0-9-]{1,64}(?:/0x[0-9a-f]{8}_0x[0-9a-f]{8})?", re.ASCII).fullmatch
_BROKER = re.compile(r"[A-Za-z0-9_.:\-]{1,128}", re.ASCII).fullmatch
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL).sub
_BRACKET = re.compile(rb"[\[\]{}]").findall
_MISSING = object()
_SEEN: set[str] = set()
_SEEN_MAX = 10_000
_KINDS = {kind.value: kind for kind in Kind}
_BUNDLE_STATES = {state.value: state for state in BUNDLE_STATES}
_NAMESPACE_STATES = {state.value: state for state in NAMESPACE_STATES}
_ACTIVE = State.ACTIVE
_DELETED = State.DELETED
_ABSENT = {State.ABSENT.value: State.ABSENT}
_BUNDLE_ASSERT_STATES = _BUNDLE_STATES | _ABSENT
_NAMESPACE_ASSERT_STATES = _NAMESPACE_STATES | _ABSENT


class NewerFormat(NamedTuple):
    """A JSON object whose `format` this version does not know: a reader stops here."""

    format: int


class Undecodable(NamedTuple):
    """Not a record; `why` is for people."""

    why: str


def is_broker_id(text: object) -> bool:
    """Whether this may stand as a broker id or an incarnation."""
    return isinstance(text, str) and _BROKER(text) is not None


def load_object(value: bytes) -> dict[str, Any] | NewerFormat | Undecodable:
    """Parse a value as far as every record goes: one JSON object of a known format."""
    try:
        loaded = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        return _refused(value, str(error))
    if type(loaded) is not dict:
        return Undecodable("not a JSON object")
    number = loaded.get("format")
    if number != FORMAT or type(number) is not int:
        return _unknown_format(number)
    if len(value) > MAX_VALUE_SIZE_BYTES:
        return Undecodable(f"{len(value)} bytes, more than {MAX_VALUE_SIZE_BYTES}")
    if len(value) > MAX_DEPTH and value.count(b"{") + value.count(b"[") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        return Undecodable(f"nested more than {MAX_DEPTH} deep")
    return loaded


def _refused(value: bytes, why: str) -> NewerFormat | Undecodable:
    # The parser refuses deep nesting; a newer format counts all the same.
    if value.count(b"{") + value.count(b"[") > MAX_DEPTH:
        try:
            verdict = _unknown_format(deep_json.top_level_format(value))
        except deep_json.NotJsonError as error:
            return Undecodable(f"not JSON: {error}")
        if isinstance(verdict, NewerFormat):
            return verdict
    return Undecodable(f"not JSON: {why}")


def _unknown_format(number: object) -> NewerFormat | Undecodable:
    if type(number) is int and FORMAT < number <= MAX_INT:
        return NewerFormat(number)
    return Undecodable("`format` is not 1")


def _depth(value: bytes) -> int:
    """Nesting of a valid JSON text; of the text, so that a member which a later one of its name replaces counts too."""
    depth = deepest = 0
    for bracket in _BRACKET(_STRINGS(b"", value)):
        if bracket in b"{[":
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth -= 1
    return deepest


def decode(value: bytes, *, namespace: bool) -> Record | NewerFormat | Undecodable:  # noqa: C901
    """Decode the value of a namespace key (`namespace`) or of a bundle key.

    The hot path of replay: fields are checked in place, and names that were seen before are not matched again.
    """
    loaded = load_object(value)
    if type(loaded) is not dict:
        return loaded  # type: ignore[return-value]
    get = loaded.get
    kind = get("kind")
    forced = False
    if kind == "proposal":
        states = _NAMESPACE_STATES if namespace else _BUNDLE_STATES
        reference = "base"
        forced = get("forced", False)
        if forced is not False and forced is not True:
            return Undecodable("`forced` is not true or false")
    elif kind == "assert":
        states = _NAMESPACE_ASSERT_STATES if namespace else _BUNDLE_ASSERT_STATES
        reference = "asserts"
    else:
        return Undecodable("`kind` is not one of proposal and assert")
    record = _common(loaded, _KINDS[kind])
    if record.__class__ is not Record:
        return record
    version = get("version")
    if type(version) is not int or not 0 <= version <= MAX_INT:
        return Undecodable("`version` is not an integer from 0 to 2^53 - 1")
    base = get(reference, _MISSING)
    if base is not None and (type(base) is not str or _REFERENCE(base) is None):
        return Undecodable(f"`{reference}` is not an id or null")
    name = get("state")
    state = states.get(name) if type(name) is str else None
    if state is None:
        return Undecodable("`state` is none of this key and kind")
    record.version = version
    record.base = base
    record.state = state
    record.forced = forced
    if not namespace:
        record.from_ = from_ = get("from", _MISSING)
        if from_ is not None and (type(from_) is not str or (from_ not in _SEEN and not _is_name(from_))):
            return Undecodable("`from` is not a broker id or null")
        record.to = to = get("to", _MISSING)
        if to is not None and (type(to) is not str or (to not in _SEEN and not _is_name(to))):
            return Undecodable("`to` is not a broker id or null")
        if state is not _DELETED:
            return record
    elif state is not _ACTIVE:
        return record
    return _with_children(record)


def decode_heartbeat(value: bytes | None) -> Record | None:
    """Decode the value of `!heartbeat`; None for whatever does not count as one."""
    loaded = None if value is None else load_object(value)
    if type(loaded) is not dict or loaded.get("kind") != Kind.HEARTBEAT:
        return None
    record = _common(loaded, Kind.HEARTBEAT)
    clean_to = loaded.get("clean_to")
    if not isinstance(record, Record) or type(clean_to) is not int or not -1 <= clean_to <= MAX_INT:
        return None
    record.clean_to = clean_to
    return record


def _common(loaded: dict[str, Any], kind: Kind) -> Record | Undecodable:
    record_id = loaded.get("id")
    if type(record_id) is not str or _ID(record_id) is None:
        return Undecodable("`id` is not 1-64 of A-Za-z0-9-")
    writer = loaded.get("by")
    if type(writer) is not dict:
        return Undecodable("`by` is not an object")
    broker = writer.get("broker")
    incarnation = writer.get("incarnation")
    if type(broker) is not str or (broker not in _SEEN and not _is_name(broker)):
        return Undecodable("`by.broker` is not a broker id")
    if type(incarnation) is not str or (incarnation not in _SEEN and not _is_name(incarnation)):
        return Undecodable("`by.incarnation` is not an incarnation")
    covers = loaded.get("covers")
    if type(covers) is not int or not -1 <= covers <= MAX_INT:
        return Undecodable("`covers` is not an integer from -1 to 2^53 - 1")
    return Record(kind, record_id, covers, broker, incarnation, loaded)


def _is_name(text: str) -> bool:
    """Whether this may stand as a broker id or an incarnation; what may is remembered, up to a bound."""
    if _BROKER(text) is None:
        return False
    if len(_SEEN) < _SEEN_MAX:
        _SEEN.add(text)
    return True


def _with_children(record: Record) -> Record | Undecodable:
    children = record.raw.get("children")
    if type(children) is not list or len(children) > MAX_CHILDREN:
        return Undecodable(f"`children` is not a list of at most {MAX_CHILDREN} ranges")
    for child in children:
        if type(child) is not str or parse_range(child) is None:
            return Undecodable("`children` holds something that is not a range")
    record.children = children
    return record


def encode(fields: dict[str, Any]) -> bytes:
    """Bytes of a record; the writer of the fields answers for their form."""
    return orjson.dumps(fields)
