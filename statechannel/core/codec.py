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
_KINDS = {kind.value: kind for kind in Kind}
_BUNDLE_STATES = {state.value: state for state in BUNDLE_STATES}
_NAMESPACE_STATES = {state.value: state for state in NAMESPACE_STATES}
_ABSENT = {State.ABSENT.value: State.ABSENT}
_BUNDLE_ASSERT_STATES = _BUNDLE_STATES | _ABSENT
_NAMESPACE_ASSERT_STATES = _NAMESPACE_STATES | _ABSENT


class NewerFormat(NamedTuple):
    """A JSON object whose `format` this version does not know: a reader stops here."""

    format: int


class Undecodable(NamedTuple):
    """Not a record; `why` is for people."""

    why: str


class _Bad(Exception):  # noqa: N818 - never leaves this module
    """A field is not what it must be."""


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
    if value.count(b"{") + value.count(b"[") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        return Undecodable(f"nested more than {MAX_DEPTH} deep")
    return loaded


def _refused(value: bytes, why: str) -> NewerFormat | Undecodable:
    # The parser refuses deep nesting; a newer format counts all the same.
    if value.count(b"{") + value.count(b"[") > MAX_DEPTH:
        try:
            verdict = _unknown_format(deep_json.top_level_format(value))
        except deep_json.NotJson as error:
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


def decode(value: bytes, *, namespace: bool) -> Record | NewerFormat | Undecodable:
    """Decode the value of a namespace key (`namespace`) or of a bundle key."""
    loaded = load_object(value)
    if type(loaded) is not dict:
        return loaded  # type: ignore[return-value]
    try:
        return _keyed(loaded, namespace=namespace)
    except _Bad as error:
        return Undecodable(str(error))


def decode_heartbeat(value: bytes | None) -> Record | None:
    """Decode the value of `!heartbeat`; None for whatever does not count as one."""
    loaded = None if value is None else load_object(value)
    if type(loaded) is not dict or loaded.get("kind") != Kind.HEARTBEAT:
        return None
    try:
        record = _common(loaded, Kind.HEARTBEAT)
        record.clean_to = _integer(loaded, "clean_to", -1)
    except _Bad:
        return None
    return record


def _keyed(loaded: dict[str, Any], *, namespace: bool) -> Record:
    kind = loaded.get("kind")
    if kind == "proposal":
        record = _common(loaded, Kind.PROPOSAL)
        states = _NAMESPACE_STATES if namespace else _BUNDLE_STATES
        reference = "base"
        forced = loaded.get("forced", False)
        if forced is not False:
            if forced is not True:
                raise _Bad("`forced` is not true or false")
            record.forced = True
    elif kind == "assert":
        record = _common(loaded, Kind.ASSERT)
        states = _NAMESPACE_ASSERT_STATES if namespace else _BUNDLE_ASSERT_STATES
        reference = "asserts"
    else:
        raise _Bad("`kind` is not one of proposal and assert")
    record.version = _integer(loaded, "version", 0)
    base = loaded.get(reference, _MISSING)
    if base is not None and (type(base) is not str or _REFERENCE(base) is None):
        raise _Bad(f"`{reference}` is not an id or null")
    record.base = base
    name = loaded.get("state")
    state = states.get(name) if type(name) is str else None
    if state is None:
        raise _Bad("`state` is none of this key and kind")
    record.state = state
    if not namespace:
        record.from_ = _broker_or_null(loaded, "from")
        record.to = _broker_or_null(loaded, "to")
    if state is State.ACTIVE or (state is State.DELETED and not namespace):
        record.children = _children(loaded)
    return record


def _common(loaded: dict[str, Any], kind: Kind) -> Record:
    record_id = loaded.get("id")
    if type(record_id) is not str or _ID(record_id) is None:
        raise _Bad("`id` is not 1-64 of A-Za-z0-9-")
    writer = loaded.get("by")
    if type(writer) is not dict:
        raise _Bad("`by` is not an object")
    broker = writer.get("broker")
    incarnation = writer.get("incarnation")
    if type(broker) is not str or _BROKER(broker) is None:
        raise _Bad("`by.broker` is not a broker id")
    if type(incarnation) is not str or _BROKER(incarnation) is None:
        raise _Bad("`by.incarnation` is not an incarnation")
    return Record(kind, record_id, _integer(loaded, "covers", -1), broker, incarnation, loaded)


def _integer(loaded: dict[str, Any], name: str, least: int) -> int:
    value = loaded.get(name)
    if type(value) is not int or not least <= value <= MAX_INT:
        raise _Bad(f"`{name}` is not an integer from {least} to 2^53 - 1")
    return value


def _broker_or_null(loaded: dict[str, Any], name: str) -> str | None:
    value = loaded.get(name, _MISSING)
    if value is None:
        return None
    if type(value) is not str or _BROKER(value) is None:
        raise _Bad(f"`{name}` is not a broker id or null")
    return value


def _children(loaded: dict[str, Any]) -> list[str]:
    children = loaded.get("children")
    if type(children) is not list or len(children) > MAX_CHILDREN:
        raise _Bad(f"`children` is not a list of at most {MAX_CHILDREN} ranges")
    for child in children:
        if type(child) is not str or parse_range(child) is None:
            raise _Bad("`children` holds something that is not a range")
    return children


def encode(fields: dict[str, Any]) -> bytes:
    """Bytes of a record; the writer of the fields answers for their form."""
    return orjson.dumps(fields)
