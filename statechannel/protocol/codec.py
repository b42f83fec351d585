"""Codec of channel records, with strict decoding (records.md).

Undecodable records are rejected by every reader, so every rule here is part of the protocol. Unknown fields
are kept and ignored, and so are known fields in records that do not have them.
"""

from __future__ import annotations

import re
from array import array
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeGuard

import orjson

from statechannel.protocol.bundle import DOTS, MAX_CHILDREN, numbers_of
from statechannel.protocol.record import FORMAT, NEWEST_FORMAT, Kind, Record
from statechannel.protocol.states import BUNDLE_STATES, NAMESPACE_STATES, State

_loads: Final = orjson.loads
MAX_VALUE_SIZE_BYTES: Final = 900_000
MAX_DEPTH: Final = 100
MAX_INT: Final = 2**53 - 1
HEARTBEAT_KEY: Final = b"!heartbeat"
COLD_START_KEY: Final = b"!cold-start"
HEAD_KEY: Final = b"!head"
IMPORT_KEY: Final = b"!import"
"""Of the mark that says which import a channel comes from, and whether it has ended; in every partition."""
CLOSING_PREFIX: Final = b"!closing/"

ID: Final = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII).fullmatch
_REFERENCE: Final = re.compile(r"[A-Za-z0-9-]{1,64}(?:/0x[0-9a-f]{8}_0x[0-9a-f]{8})?", re.ASCII).fullmatch
_BROKER: Final = re.compile(r"[A-Za-z0-9_.:\-]{1,128}", re.ASCII).fullmatch
_NEWER: Final = re.compile(
    rb'"(?:f|\\u0066)(?:o|\\u006[fF])(?:r|\\u0072)(?:m|\\u006[dD])(?:a|\\u0061)(?:t|\\u0074)"'
    rb"[ \t\n\r]*:[ \t\n\r]*(?:[2-9]|1[0-9])"
).search
"""The name `format`, in letters or escapes, and a number above 1: not a proof, but nothing newer is without it."""
_FIRST_FORMAT: Final = b'{"format":1,'
_STRINGS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL).sub
BRACE, SQUARE = b"{["
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
NAMES: Final[dict[str, str]] = {}
NAMES_MAX: Final = 10_000
BUNDLE_STATES_BY_NAME: Final = {state.value: state for state in BUNDLE_STATES}
_NAMESPACE_STATES: Final = {state.value: state for state in NAMESPACE_STATES}
_ACTIVE: Final = State.ACTIVE
_DELETED: Final = State.DELETED
_ABSENT: Final = {State.ABSENT.value: State.ABSENT}
_PROPOSAL: Final = Kind.PROPOSAL
_HEARTBEAT: Final = Kind.HEARTBEAT

_Form = tuple[Kind, dict[str, State], str]
BUNDLE_FORMS: Final[dict[str, _Form]] = {
    "proposal": (Kind.PROPOSAL, BUNDLE_STATES_BY_NAME, "base"),
    "assert": (Kind.ASSERT, BUNDLE_STATES_BY_NAME | _ABSENT, "asserts"),
}
NAMESPACE_FORMS: Final[dict[str, _Form]] = {
    "proposal": (Kind.PROPOSAL, _NAMESPACE_STATES, "base"),
    "assert": (Kind.ASSERT, _NAMESPACE_STATES | _ABSENT, "asserts"),
}
_HEARTBEAT_FORMS: Final[dict[str, _Form]] = {"heartbeat": (Kind.HEARTBEAT, {}, "")}
"""By the word in `kind`, for each class of keys: the states it may name, and the field that refers to another record."""


class NewerFormat(NamedTuple):
    """A JSON object whose `format` this version does not know: a reader stops here."""

    format: int


class Undecodable(NamedTuple):
    """Not a record; `why` is a sentence."""

    why: str


def is_broker_id(text: object) -> TypeGuard[str]:
    return isinstance(text, str) and _BROKER(text) is not None


def is_new_broker_id(text: object) -> TypeGuard[str]:
    """Whether a broker may be started with this id.

    The log may hold ids that begin with `-`, or are `.` or `..`, and they are judged. New ones are refused: in a command line
    they are options, or parts that clients drop from the path of a URL.
    """
    return is_broker_id(text) and not text.startswith("-") and text not in DOTS


def load_object(value: bytes, newest: int = NEWEST_FORMAT) -> dict[str, Any] | NewerFormat | Undecodable:
    """Parse the common part of a value: one JSON object of a known format.

    Args:
        newest: The newest format that this reader knows; it also knows the older ones.
    """
    try:
        loaded = _loads(value)
    except orjson.JSONDecodeError as error:
        return _refused(value, str(error), newest)
    if type(loaded) is not dict:
        return Undecodable("not a JSON object")
    number = loaded.get("format")
    if (number != FORMAT or type(number) is not int) and (type(number) is not int or not FORMAT <= number <= newest):
        return _unknown_format(number, newest)
    if len(value) > MAX_VALUE_SIZE_BYTES:
        return Undecodable(f"{len(value)} bytes, more than {MAX_VALUE_SIZE_BYTES}")
    # Where no bracket opens behind the first 100 bytes nothing can be deeper: no need to count.
    tail = value[MAX_DEPTH:]
    if (BRACE in tail or SQUARE in tail) and _is_deep(value):
        return Undecodable(f"nested more than {MAX_DEPTH} deep")
    return loaded


def newer_format(key: bytes | None, value: bytes | None, newest: int = NEWEST_FORMAT) -> int:
    """The newer format that stops a reader at this record; 0 for known formats."""
    if value is None or (key is not None and key[:1] == b"!"):
        return 0
    if value.startswith(_FIRST_FORMAT) and value.find(b'format"', len(_FIRST_FORMAT)) < 0 and b"\\" not in value:
        return 0  # as all brokers write: the name occurs once, and this is a third of the price of the pattern below
    if _NEWER(value) is None:
        return 0
    loaded = load_object(value, newest)
    return loaded.format if isinstance(loaded, NewerFormat) else 0


def _is_deep(value: bytes) -> bool:
    return value.count(b"{") + value.count(b"[") > MAX_DEPTH and _depth(value) > MAX_DEPTH


def _refused(value: bytes, why: str, newest: int) -> NewerFormat | Undecodable:
    # The parser refuses deep nesting; a newer format counts all the same.
    # Where nothing looks like a newer format there is none to be found, however long one looks: most of a second.
    if value.count(b"{") + value.count(b"[") > MAX_DEPTH and _NEWER(value) is not None:
        try:
            verdict = _unknown_format(top_level_format(value), newest)
        except NotJsonError as error:
            return Undecodable(f"not JSON: {error}")
        if isinstance(verdict, NewerFormat):
            return verdict
    return Undecodable(f"not JSON: {why}")


def _unknown_format(number: object, newest: int) -> NewerFormat | Undecodable:
    if type(number) is int and newest < number <= MAX_INT:
        return NewerFormat(number)
    return Undecodable("`format` is not 1" if newest == FORMAT else f"`format` is not {FORMAT} to {newest}")


def _depth(value: bytes) -> int:
    """Nesting of a valid JSON text, including members that a later one of the same name replaces."""
    steps = _STRINGS(b"", value).translate(_STEPS, _NO_BRACKETS)  # one up, one down: no line of Python for a bracket
    return max(accumulate(array("b", steps)), default=0)


def decode(value: bytes, *, namespace: bool, newest: int = NEWEST_FORMAT) -> Record | NewerFormat | Undecodable:
    """Decode the value of a namespace key (`namespace`) or of a bundle key."""
    return decode_form(value, NAMESPACE_FORMS if namespace else BUNDLE_FORMS, newest=newest)


def decode_heartbeat(value: bytes | None, newest: int = NEWEST_FORMAT) -> Record | None:
    record = None if value is None else decode_form(value, _HEARTBEAT_FORMS, newest=newest)
    if not isinstance(record, Record):
        return None
    clean_to = record.raw.get("clean_to")
    if type(clean_to) is not int or not -1 <= clean_to <= MAX_INT:
        return None
    record.clean_to = clean_to
    return record


def decode_import(value: bytes | None) -> dict[str, Any] | None:
    """Decode the value of `!import`; None if it names no import."""
    try:
        loaded = _loads(value or b"")
    except orjson.JSONDecodeError:
        return None
    operation = loaded.get("import") if isinstance(loaded, dict) else None
    return loaded if isinstance(operation, str) and ID(operation) is not None else None


def decode_form(  # noqa: C901, PLR0912
    value: bytes, forms: dict[str, _Form], known: str | None = None, newest: int = NEWEST_FORMAT
) -> Record | NewerFormat | Undecodable:
    """Decode a record of the given forms.

    The hot path of replay: fields are checked in place, and known names are not matched again.

    Args:
        known: A well-formed id: the accepted one, which is the base of most proposals.
        newest: The newest format that this reader knows.
    """
    loaded = load_object(value, newest)
    if type(loaded) is not dict:
        return loaded  # type: ignore[return-value]
    try:
        word = loaded["kind"]
        form = forms.get(word) if type(word) is str else None
        if form is None:
            return Undecodable(f"`kind` is not one of {' and '.join(forms)}")
        kind, states, reference = form
        record_id = loaded["id"]
        if type(record_id) is not str or ID(record_id) is None:
            return Undecodable("`id` is not 1-64 of A-Za-z0-9-")
        writer = loaded["by"]
        if type(writer) is not dict:
            return Undecodable("`by` is not an object")
        broker = writer["broker"]
        broker = NAMES.get(broker) or _name(broker) if type(broker) is str else None
        if broker is None:
            return Undecodable("`by.broker` is not a broker id")
        incarnation = writer["incarnation"]
        incarnation = NAMES.get(incarnation) or _name(incarnation) if type(incarnation) is str else None
        if incarnation is None:
            return Undecodable("`by.incarnation` is not an incarnation")
        covers = loaded["covers"]
        if type(covers) is not int or not -1 <= covers <= MAX_INT:
            return Undecodable("`covers` is not an integer from -1 to 2^53 - 1")
        if kind is _HEARTBEAT:
            return Record(kind, record_id, covers, broker, incarnation, loaded)
        forced: Any = False  # a compiler that is told `bool` would not let the next lines look at anything else
        if kind is _PROPOSAL and "forced" in loaded:
            forced = loaded["forced"]
            if forced is not False and forced is not True:
                return Undecodable("`forced` is not true or false")
        version = loaded["version"]
        if type(version) is not int or not 0 <= version <= MAX_INT:
            return Undecodable("`version` is not an integer from 0 to 2^53 - 1")
        base = loaded[reference]
        if base is not None and base != known and (type(base) is not str or _REFERENCE(base) is None):
            return Undecodable(f"`{reference}` is not an id or null")
        word = loaded["state"]
        state = states.get(word) if type(word) is str else None
        if state is None:
            return Undecodable("`state` is none of this key and kind")
        if forms is NAMESPACE_FORMS:
            record = Record(
                kind, record_id, covers, broker, incarnation, loaded, version, base, state, None, None, forced
            )
            return _with_children(record) if state is _ACTIVE else record
        from_ = loaded["from"]
        if from_ is not None:
            from_ = NAMES.get(from_) or _name(from_) if type(from_) is str else None
            if from_ is None:
                return Undecodable("`from` is not a broker id or null")
        to = loaded["to"]
        if to is not None:
            to = NAMES.get(to) or _name(to) if type(to) is str else None
            if to is None:
                return Undecodable("`to` is not a broker id or null")
        record = Record(kind, record_id, covers, broker, incarnation, loaded, version, base, state, from_, to, forced)
        return _with_children(record) if state is _DELETED else record
    except KeyError as missing:
        return Undecodable(f"`{missing.args[0]}` is missing")


def _name(text: str) -> str | None:
    """A valid broker id or incarnation, or None; valid ones are interned, up to a bound."""
    if _BROKER(text) is None:
        return None
    if len(NAMES) < NAMES_MAX:
        NAMES[text] = text
    return text


def _with_children(record: Record) -> Record | Undecodable:
    children = record.raw.get("children")
    if type(children) is not list or len(children) > MAX_CHILDREN:
        return Undecodable(f"`children` is not a list of at most {MAX_CHILDREN} ranges")
    numbers = numbers_of(children)
    if numbers is None:
        return Undecodable("`children` holds something that is not a range")
    record.children, record.numbers = children, numbers
    return record


def encode(fields: dict[str, Any]) -> bytes:
    """Bytes of a record; the caller is responsible for valid fields."""
    return orjson.dumps(fields)


_TOKEN = re.compile(r'[ \t\n\r]*(?:([\[\]{},:])|("(?:[^"\\]|\\.)*")|([-+0-9.eE]+|true|false|null))', re.DOTALL)
_TAIL: Final = re.compile(r"[ \t\n\r]*")

# What may follow, by what was read last: (inside an object?) -> state machine over token classes.
_VALUE, _FIRST_NAME, _NAME, _COLON, _AFTER, _FIRST_VALUE = range(6)


class NotJsonError(ValueError):
    """The text is not RFC 8259 JSON (or breaks the stricter rules of records.md section 2)."""


def top_level_format(value: bytes) -> Any:
    """The member `format` of a JSON object of any depth; None without one, or if the value is not an object.

    Raises:
        NotJsonError: The value is not JSON.
    """
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotJsonError("not UTF-8") from error
    return _scan(text)


def _scan(text: str) -> Any:
    stack: list[str] = []
    expected = _VALUE
    position = 0
    name: str | None = None
    value: Any = None
    while expected != _AFTER or stack:
        match = _TOKEN.match(text, position)
        if match is None:
            raise NotJsonError(f"unexpected text at character {position}")
        position = match.end()
        mark, string, scalar = match.groups()
        if expected in (_FIRST_NAME, _NAME) and string is not None:
            name = _load(string)
            expected = _COLON
        elif expected == _COLON and mark == ":":
            expected = _VALUE
        elif expected in (_VALUE, _FIRST_VALUE) and mark in ("{", "["):
            if len(stack) == 1 and stack[0] == "{" and name == "format":
                value = None
            stack.append(mark)
            expected = _FIRST_NAME if mark == "{" else _FIRST_VALUE
        elif expected in (_VALUE, _FIRST_VALUE) and mark is None:
            loaded = _load(string or scalar)
            if len(stack) == 1 and stack[0] == "{" and name == "format":
                value = loaded
            expected = _AFTER
        elif (mark == "}" and stack[-1:] == ["{"] and expected in (_FIRST_NAME, _AFTER)) or (
            mark == "]" and stack[-1:] == ["["] and expected in (_FIRST_VALUE, _AFTER)
        ):
            stack.pop()
            expected = _AFTER
        elif expected == _AFTER and mark == ",":
            expected = _NAME if stack[-1] == "{" else _VALUE
        else:
            raise NotJsonError(f"unexpected token before character {position}")
    if _TAIL.match(text, position).end() != len(text):  # type: ignore[union-attr]
        raise NotJsonError("text after the value")
    return value


def _load(token: str) -> Any:
    try:
        return orjson.loads(token)
    except orjson.JSONDecodeError as error:
        raise NotJsonError(str(error)) from error
