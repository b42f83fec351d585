"""The bytes: what the core makes of keys and values, against the twin and against a table made by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from statechannel.protocol import codec
from statechannel.protocol.bundle import parse_key
from statechannel.protocol.record import Record
from tests.twin import junk, wire

BY = {"broker": "b", "incarnation": "i"}
HEAD = {"format": 1, "id": "I", "covers": 3, "by": BY}
CHANGE = HEAD | {"version": 2, "from": None, "to": "b"}
HALVES = ["0x00000000_0x7fffffff", "0x7fffffff_0xffffffff"]
BUNDLE, NAMESPACE, HEARTBEAT = b"a/b/0x00000000_0xffffffff", b"a/b", b"!heartbeat"
SOUND: tuple[tuple[bytes, dict[str, Any]], ...] = (
    (BUNDLE, CHANGE | {"kind": "proposal", "base": "J", "state": "Assigning"}),
    (BUNDLE, CHANGE | {"kind": "proposal", "base": "J", "state": "Unassigned", "forced": True, "lost": [5]}),
    (BUNDLE, CHANGE | {"kind": "proposal", "base": f"J/{HALVES[0]}", "state": "Deleted", "children": HALVES}),
    (BUNDLE, CHANGE | {"kind": "proposal", "base": "J", "state": "Splitting", "children": HALVES}),
    (BUNDLE, CHANGE | {"kind": "assert", "asserts": "J", "state": "Assigned"}),
    (BUNDLE, CHANGE | {"kind": "assert", "asserts": "J", "state": "Deleted", "children": HALVES}),
    (BUNDLE, CHANGE | {"kind": "assert", "asserts": None, "state": "Absent", "version": 0}),
    (NAMESPACE, HEAD | {"kind": "proposal", "version": 2, "base": None, "state": "Active", "children": HALVES}),
    (NAMESPACE, HEAD | {"kind": "proposal", "version": 2, "base": "J", "state": "Deleted"}),
    (NAMESPACE, HEAD | {"kind": "assert", "version": 2, "asserts": "J", "state": "Active", "children": HALVES}),
    (NAMESPACE, HEAD | {"kind": "assert", "version": 2, "asserts": "J", "state": "Deleted"}),
    (NAMESPACE, HEAD | {"kind": "assert", "version": 0, "asserts": None, "state": "Absent"}),
    (HEARTBEAT, HEAD | {"kind": "heartbeat", "clean_to": 2}),
)  # fmt: skip
FORMS = {BUNDLE: "bundle", NAMESPACE: "namespace", HEARTBEAT: "control"}


def fields_of(record: Record) -> wire.Record:
    """The judged fields, as the twin words them."""
    children = None if record.children is None else tuple(record.children)
    return wire.Record(
        str(record.kind), record.id, record.covers, record.version, record.base,
        "" if record.kind == "heartbeat" else str(record.state),
        record.from_, record.to, children, record.forced, record.clean_to,
    )  # fmt: skip


def core_reads(key: bytes, value: bytes) -> wire.Record | int | None:
    """The record, a newer format's number, or None for what cannot be decoded."""
    if key == HEARTBEAT:
        heartbeat = codec.decode_heartbeat(value)
        return None if heartbeat is None else fields_of(heartbeat)
    record = codec.decode(value, namespace=key == NAMESPACE)
    if isinstance(record, codec.NewerFormat):
        return record.format
    return fields_of(record) if isinstance(record, Record) else None


def twin_reads(key: bytes, value: bytes) -> wire.Record | int | None:
    newer = None if key == HEARTBEAT else wire.newer_format(value)
    return newer if newer is not None else wire.decode(key, value)


def check(key: bytes, value: bytes) -> wire.Record | int | None:
    record = core_reads(key, value)
    assert record == twin_reads(key, value), (key, value[:2000])
    loaded = codec.load_object(value)
    newer = loaded.format if isinstance(loaded, codec.NewerFormat) else None
    assert newer == wire.newer_format(value), value[:2000]
    return record


@pytest.mark.parametrize("index", range(len(SOUND)))
def test_sound_records_decode_to_what_they_say(index: int) -> None:
    key, record = SOUND[index]
    entry = check(key, codec.encode(record))
    assert isinstance(entry, wire.Record)
    assert (entry.kind, entry.id, entry.covers) == (record["kind"], "I", 3)
    assert entry.refers == record.get("base", record.get("asserts"))
    assert entry.source is None
    assert entry.to == record.get("to")
    assert entry.children == (tuple(HALVES) if record.get("children") and entry.state != "Splitting" else None)
    assert entry.forced is record.get("forced", False)


@pytest.mark.parametrize("index", range(len(SOUND)))
def test_every_odd_value_comes_out_as_the_table_says(index: int) -> None:
    """The outcome is written down by hand in the table; `check` asks the twin as well."""
    key, record = SOUND[index]
    wrong = []
    number = 0
    for way in junk.ways(record, FORMS[key]):
        entry = check(key, way.value)
        outcome = junk.NEWER if isinstance(entry, int) else junk.UNDECODABLE if entry is None else junk.DECODES
        if key == HEARTBEAT and way.outcome == junk.NEWER:
            outcome = junk.NEWER if outcome == junk.UNDECODABLE else outcome
        if outcome != way.outcome:
            wrong.append((way.name, outcome))
        number += 1
    assert wrong == []
    assert number > 300


@pytest.mark.parametrize("key", [*junk.ODD_KEYS, *junk.CONTROL_KEYS])
def test_odd_keys_have_no_known_form(key: bytes | None) -> None:
    assert wire.read_key(key).kind in ("unknown", "control")
    assert key is None or parse_key(key) is None


@pytest.mark.parametrize("value", [None, b"", b"null", b"[]", b'{"kind":"heartbeat"}', b'{"format":2}'])
def test_what_is_no_heartbeat(value: bytes | None) -> None:
    assert codec.decode_heartbeat(value) is None


NAMES = st.text("aZ9_=:.-", min_size=1, max_size=3)
HEXES = st.text("0123456789abcdefAF", min_size=7, max_size=9)
KEYS = st.one_of(
    st.binary(max_size=12),
    st.text("aZ9_=:.-/!0x \n\u0661", max_size=12).map(str.encode),
    st.builds("{}/{}".format, NAMES, NAMES).map(str.encode),
    st.builds("{}/{}/0x{}_0x{}".format, NAMES, NAMES, HEXES, HEXES).map(str.encode),
)


@given(KEYS)
@example(b"a" * 128 + b"/" + b"b" * 128 + b"/0xffffffff_0x00000000")
@example(b"a/b/0x00000000_0xffffffff\n")
@settings(deadline=None)
def test_keys_are_taken_apart_as_by_the_twin(key: bytes) -> None:
    form = wire.read_key(key)
    parts = parse_key(key)
    if form.kind in ("unknown", "control"):
        assert parts is None
        return
    assert parts is not None
    assert parts.namespace == form.namespace
    assert parts.is_namespace == (form.kind == "namespace")
    assert (parts.lower, parts.upper) == ((-1, -1) if parts.is_namespace else wire.bounds(form.range))


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5),
    st.sampled_from(["proposal", "assert", "heartbeat", "Assigned", "Absent", "b", "I", HALVES[0], 1, 2, -1, 0]),
)  # fmt: skip
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
)
FIELD_NAMES = sorted({name for _, record in SOUND for name in record} | {"clean_to", "reason", "x"})


@st.composite
def bent_records(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A sound record with fields replaced, dropped, added or doubled, now and then on another key."""
    key, sound = draw(st.sampled_from(SOUND))
    if draw(st.integers(0, 5)) == 0:
        key = draw(st.sampled_from(list(FORMS)))
    pairs = list(sound.items())
    for _ in range(draw(st.integers(0, 3))):
        way = draw(st.integers(0, 3))
        if way == 0 and pairs:
            pairs.pop(draw(st.integers(0, len(pairs) - 1)))
        elif way == 1 and pairs:
            at = draw(st.integers(0, len(pairs) - 1))
            pairs[at] = (pairs[at][0], draw(JSON))
        elif way == 2:
            pairs.insert(draw(st.integers(0, len(pairs))), (draw(st.sampled_from(FIELD_NAMES)), draw(JSON)))
        else:
            pairs = draw(st.permutations(pairs))
    ascii_only = draw(st.booleans())
    body = ",".join(f"{json.dumps(n)}:{json.dumps(v, ensure_ascii=ascii_only)}" for n, v in pairs)
    return key, ("{" + body + "}").encode("utf-8", "surrogatepass")


@given(bent_records())
@settings(max_examples=400, deadline=None)
def test_bent_records_decode_as_in_the_twin(bent: tuple[bytes, bytes]) -> None:
    check(*bent)


@given(
    st.sampled_from(SOUND), st.data(),
    st.lists(st.sampled_from([b"", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b"0", b"e9", b"-", b".", b"\xff",
                              b"\\u00", b"\\ud800", b" ", b"\n", b"\x00", b"null", b'"format":2,']), max_size=4),
)  # fmt: skip
@settings(max_examples=400, deadline=None)
def test_bent_bytes_decode_as_in_the_twin(
    sound: tuple[bytes, dict[str, Any]], data: st.DataObject, pieces: list[bytes]
) -> None:
    key, record = sound
    value = json.dumps(record).encode()
    for piece in pieces:
        start = data.draw(st.integers(0, len(value)))
        value = value[:start] + piece + value[start + data.draw(st.integers(0, 3)) :]
    check(key, value)


@given(st.sampled_from(list(FORMS)), st.one_of(st.binary(max_size=60), JSON.map(lambda v: json.dumps(v).encode())))
@settings(max_examples=300, deadline=None)
def test_any_bytes_decode_as_in_the_twin(key: bytes, value: bytes) -> None:
    check(key, value)


SCALARS = ("0", "1", "2", "-0", "1.5", "1e400", "true", "null", '"a"', '"\\"[["', '"\\\\"', '"\\ud800"', "NaN", "01")


@st.composite
def deep_values(draw: st.DrawFn) -> bytes:
    """Objects around and far beyond the greatest depth, sound or broken, with `format` at every level."""
    depth = draw(st.sampled_from([1, 97, 98, 99, 100, 101, 102, 1023, 1024, 1025, 1500, 3000]))
    opening, closing = draw(st.sampled_from([("[", "]"), ('{"format":', "}"), ('[{"a":[', "]}]"), ('["\\"[",', "]")]))
    inside = draw(st.sampled_from(SCALARS))
    deep = opening * depth + inside + closing * (depth - draw(st.sampled_from([0, 0, 0, 0, 1, -1])))
    members = [f'"x":{deep}']
    for _ in range(draw(st.integers(0, 3))):
        name = draw(st.sampled_from(["format", "\\u0066ormat", "x", "forma"]))
        members.insert(draw(st.integers(0, len(members))), f'"{name}":{draw(st.sampled_from(SCALARS))}')
    if draw(st.booleans()):
        sound = json.dumps(SOUND[0][1])[1:-1]
        members.insert(draw(st.integers(0, len(members))), sound)
    tail = draw(st.sampled_from(["", "", "", " \n", "x", "}", ","]))
    return ("{" + draw(st.sampled_from([",", " , \r\n\t"])).join(members) + "}" + tail).encode()


@given(deep_values())
@settings(max_examples=250, deadline=None)
def test_deep_values_decode_as_in_the_twin(value: bytes) -> None:
    check(BUNDLE, value)
