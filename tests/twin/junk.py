"""Every way in which a value can be odd, with what the formats page makes of it.

A `Way` says by hand, not by asking the twin, whether the value still decodes, so the table
tests the twin as well as the product.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

DECODES, UNDECODABLE, NEWER = "decodes", "undecodable", "newer"
MISSING = ""
MAX_INT = 2**53 - 1
RANGE = "0x00000000_0x7fffffff"


@dataclass(frozen=True)
class Way:
    """One odd value: its name, what must come of it, and its bytes."""

    name: str
    outcome: str
    value: bytes


# Per field: JSON literals (MISSING leaves the field out) that are right, and that are wrong.
INTEGERS_WRONG = (
    MISSING, "null", "1.0", "1e0", "1E2", "-1.0", '"1"', "true", "false", "[1]", "{}",
    "9007199254740992", "18446744073709551616", "0.5", "1e-400", "1" + "0" * 300,
)  # fmt: skip
NAMES_WRONG = (MISSING, "null", "5", "true", '""', '"a b"', '"a/b"', '"é"', '"abc\\n"', "[]")
BROKER_RIGHT = ('"b"', '"a.b_c:d-E9"', '"' + "b" * 128 + '"', '"\\u0062"')
BROKER_WRONG = ("5", '""', '"a b"', '"a/b"', '"a=b"', '"' + "b" * 129 + '"', '"b\\n"', "{}")
REFERENCE_RIGHT = ("null", '"zz"', f'"I-9/{RANGE}"', '"I/0xffffffff_0x00000000"')
REFERENCE_WRONG = (
    MISSING, "5", '""', '"/"', '"a/b"', '"I/0x0_0x1"', '"I/0x0000000A_0x000000ff"',
    f'"I/{RANGE}/{RANGE}"', f'"/{RANGE}"', '"I/"', f'"I/{RANGE}\\n"', '"a_b"', "false",
)  # fmt: skip
FIELDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "format": (("1",), (*INTEGERS_WRONG, "0", "-0", "-1", "-2", "2.0", '"2"', "2e0")),
    "kind": ((), (*NAMES_WRONG, '"Proposal"', '"proposal "', '"control"')),
    "id": (('"a"', '"Z-9"', '"' + "i" * 64 + '"'),
           (*NAMES_WRONG, '"' + "i" * 65 + '"', '"a_b"', '"a.b"', f'"I/{RANGE}"')),
    "covers": (("-1", "0", "-0", str(MAX_INT)), (*INTEGERS_WRONG, "-2", "-9007199254740993")),
    "by": (('{"broker":"b","incarnation":"i"}', '{"broker":"b","incarnation":"i","x":null}',
            '{"broker":5,"incarnation":"i","broker":"b"}'),
           (MISSING, "null", '"b"', "[]", "{}", '{"broker":"b"}', '{"incarnation":"i"}',
            '{"broker":null,"incarnation":"i"}', '{"broker":"b","incarnation":5}',
            '{"broker":"b","incarnation":""}', '{"broker":"a=b","incarnation":"i"}',
            '{"broker":"b","incarnation":"i","broker":5}')),
    "version": (("0", "-0", "7", str(MAX_INT)), (*INTEGERS_WRONG, "-1")),
    "base": (REFERENCE_RIGHT, REFERENCE_WRONG),
    "asserts": (REFERENCE_RIGHT, REFERENCE_WRONG),
    "state": ((), (MISSING, "null", "5", '""', '"assigned"', '"Free"', '"Owned"', "[]")),
    "from": (("null", *BROKER_RIGHT), (MISSING, *BROKER_WRONG)),
    "to": (("null", *BROKER_RIGHT), (MISSING, *BROKER_WRONG)),
    "children": (("[]", f'["{RANGE}"]', '["0xffffffff_0x00000000"]'),
                 (MISSING, "null", "5", '"x"', "{}", "[5]", "[null]", '["x"]', f'[["{RANGE}"]]',
                  '["0X00000000_0x7fffffff"]', '["0x00000000_0x7FFFFFFF"]', f'["{RANGE}\\n"]',
                  '["0x0000000_0x7fffffff"]', '["0x00000000-0x7fffffff"]', f'["{RANGE}",5]')),
    "forced": ((MISSING, "false"), ("null", "0", "1", '"true"', "[]", "0.0")),
    "clean_to": (("-1", "0", "-0", str(MAX_INT)), (*INTEGERS_WRONG, "-2")),
}  # fmt: skip
FREE = ("action", "flow", "operation", "reason", "written_at_ms", "lost", "x-later")
ANYTHING = (
    "null", "5", "-0.0", "true", '""', "[[]]",
    '{"a":{"b":[1e-400,1.7976931348623157e308]}}',
)  # fmt: skip


def column_names(record: dict[str, Any], kind: str, key_kind: str) -> set[str]:
    """Return the listed fields that are judged in such a record."""
    names = {"format", "kind", "id", "covers", "by"}
    if kind == "heartbeat":
        return names | {"clean_to"}
    names |= {"version", "state", "base" if kind == "proposal" else "asserts"}
    if kind == "proposal":
        names.add("forced")
    if key_kind == "bundle":
        names |= {"from", "to"}
    if (key_kind, record["state"]) in (("bundle", "Deleted"), ("namespace", "Active")):
        names.add("children")
    return names


def ways(record: dict[str, Any], key_kind: str) -> Iterator[Way]:
    """Yield every way for a sound record on a key of `key_kind` (namespace, bundle, control)."""
    literals = {name: json.dumps(value) for name, value in record.items()}
    yield from _field_ways(record, literals, key_kind)
    yield from _other_class(record, literals, key_kind)
    yield from _text_ways(_render(literals))
    yield from _format_ways(literals)
    yield from _size_ways(literals)


def _render(literals: dict[str, str]) -> str:
    pairs = [f'"{name}":{text}' for name, text in literals.items() if text != MISSING]
    return "{" + ",".join(pairs) + "}"


def _field_ways(record: dict[str, Any], literals: dict[str, str], key_kind: str) -> Iterator[Way]:
    judged = column_names(record, record["kind"], key_kind)
    for name, (right, wrong) in FIELDS.items():
        for index, text in enumerate(right):
            value = _render(literals | {name: text}).encode()
            yield Way(f"{name}-right-{index}", DECODES, value)
        for index, text in enumerate(wrong):
            outcome = UNDECODABLE if name in judged else DECODES
            value = _render(literals | {name: text}).encode()
            yield Way(f"{name}-wrong-{index}", outcome, value)
            doubled = _render({name: text or "null"} | {"\\u0000": "0"})[:-1] + ","
            if name in literals:
                sound = (doubled + _render(literals)[1:]).encode()
                yield Way(f"{name}-doubled-last-right-{index}", DECODES, sound)
    for name in FREE:
        for index, text in enumerate(ANYTHING):
            value = _render(literals | {name: text}).encode()
            yield Way(f"{name}-anything-{index}", DECODES, value)


def _other_class(record: dict[str, Any], literals: dict[str, str], key_kind: str) -> Iterator[Way]:
    """States and kinds that belong elsewhere."""
    if record["kind"] == "heartbeat":
        yield Way("proposal-on-heartbeat-key", UNDECODABLE,
                  _render(literals | {"kind": '"proposal"'}).encode())  # fmt: skip
        return
    heartbeat = literals | {"kind": '"heartbeat"', "clean_to": "0"}
    yield Way("heartbeat-elsewhere", UNDECODABLE, _render(heartbeat).encode())
    others = ["Active"] if key_kind == "bundle" else ["Unassigned", "Assigned", "Splitting"]
    if record["kind"] == "proposal":
        others.append("Absent")
    for state in others:
        value = _render(literals | {"state": json.dumps(state), "children": f'["{RANGE}"]'})
        yield Way(f"state-{state}", UNDECODABLE, value.encode())


def _text_ways(text: str) -> Iterator[Way]:
    """Ways to be JSON, or not quite."""
    data = text.encode()
    for name, value in {
        "spaces": b" \t\r\n" + data.replace(b'":', b'" :\n') + b"\n \t",
        "emoji-pair": data[:-1] + b',"x":"\\ud83d\\ude00\\\\ud800"}',
        "raw-emoji": data[:-1] + ',"é😀\u2028\x7f":"\ufeff\uffff"}'.encode(),
        "tiny-number": data[:-1] + b',"x":[1e-5000,-0,-0.0e+0,123456789012345678901234567890]}',
        "largest-double": data[:-1] + b',"x":1.7976931348623157e308}',
        "doubled-unknown": data[:-1] + b',"x":1,"x":[]}',
        "escaped-slash": data[:-1] + b',"x\\/\\b":"\\u0000"}',
    }.items():
        yield Way(name, DECODES, value)
    extra = {
        "nan": "NaN", "infinity": "Infinity", "minus-infinity": "-Infinity", "huge": "1e309",
        "huge-negative": "-1e999", "huge-int": "1" + "0" * 309, "long-int": "9" * 5000,
        "lone-high": '"\\ud800"', "lone-low": '"a\\uDFFFb"', "reversed": '"\\ude00\\ud83d"',
        "lone-deep": '[{"a":["\\ud800"]}]', "lone-name": '{"\\udc00":1}', "huge-deep": "[[1e400]]",
        "huge-then-sound": '1e400,"x":1', "lone-then-sound": '"\\ud800","x":1',
        "nan-then-sound": '[NaN],"x":1', "leading-zero": "01", "plus": "+1", "dot": "1.",
        "no-int": ".5", "hex": "0x10", "minus": "-", "exponent": "1e", "upper": "True",
        "single-quotes": "'a'", "trailing-comma": "[1,]", "no-comma": "[1 2]", "comment": "1/**/",
        "bad-escape": '"\\x41"', "short-escape": '"\\u12"', "control": '"\x01"', "tab": '"\t"',
        "open": "[", "crossed": "[{]}", "undefined": "undefined", "wide-digit": "\u0661",
        "sign-in-escape": '"\\u+123"', "under-score": "1_0", "newline-in-string": '"\n"',
    }  # fmt: skip
    for name, literal in extra.items():
        yield Way(name, UNDECODABLE, data[:-1] + f',"x":{literal}'.encode() + b"}")
    for name, value in {
        "empty": b"", "space": b" ", "junk": b"junk", "null": b"null", "array": b"[" + data + b"]",
        "string": json.dumps(text).encode(), "number": b"1", "true": b"true", "cut": data[:-1],
        "half": data[: len(data) // 2], "twice": data + data, "tail": data + b"x",
        "zero-byte": data + b"\0", "comma": data[:-1] + b",}", "bom": b"\xef\xbb\xbf" + data,
        "utf-16": text.encode("utf-16"), "utf-16-le": text.encode("utf-16-le"),
        "bad-utf8": data[:-1] + b',"x":"\xff"}', "overlong": data[:-1] + b',"x":"\xc0\xaf"}',
        "cesu": data[:-1] + b',"x":"\xed\xa0\x80"}', "cut-utf8": data[:-1] + b',"x":"\xf0\x9f"}',
        "beyond-unicode": data[:-1] + b',"x":"\xf4\x90\x80\x80"}', "form-feed": b"\x0c" + data,
        "no-break-space": data + "\u00a0".encode(), "bare-name": b"{format:1}",
        "empty-object": b"{}",
        "unquoted": data.replace(b'"', b"", 2), "null-object": b'{"format":null}',
    }.items():  # fmt: skip
        yield Way(name, UNDECODABLE, value)


def _format_ways(literals: dict[str, str]) -> Iterator[Way]:
    """The look at `format` that comes before everything else in the value."""
    for text in ("2", "3", "99", str(MAX_INT)):
        yield Way(f"format-{text}", NEWER, _render(literals | {"format": text}).encode())
    newer = _render(literals | {"format": "2"})
    yield Way("newer-bare", NEWER, b'{"format":2}')
    yield Way("newer-doubled", NEWER, ('{"format":1,' + newer[1:]).encode())
    yield Way("newer-escaped-name", NEWER, newer.replace("format", "\\u0066ormat").encode())
    yield Way("newer-other-shape", NEWER, b' {"kind":[],"format":7,"id":null} ')
    yield Way("newer-large", NEWER, (newer[:-1] + ',"x":"' + "x" * 900_001 + '"}').encode())
    for depth in (101, 5000):
        deep = newer[:-1] + ',"x":' + "[" * depth + "]" * depth + "}"
        yield Way(f"newer-deep-{depth}", NEWER, deep.encode())
        before = '{"x":' + '{"a":' * depth + "0" + "}" * depth + "," + newer[1:]
        yield Way(f"newer-after-deep-{depth}", NEWER, before.encode())
        hidden = '{"format":2,"x":' + '{"format":' * depth + "0" + "}" * depth + ',"format":0}'
        yield Way(f"newer-overruled-deep-{depth}", UNDECODABLE, hidden.encode())
        broken = newer[:-1] + ',"x":' + "[" * depth + "]" * (depth - 1) + "}"
        yield Way(f"newer-broken-deep-{depth}", UNDECODABLE, broken.encode())
    yield Way("newer-overruled", DECODES, ('{"format":2,' + _render(literals)[1:]).encode())
    yield Way("newer-inside", DECODES, (_render(literals)[:-1] + ',"x":{"format":2}}').encode())
    yield Way("newer-in-array", UNDECODABLE, b'[{"format":2}]')
    yield Way("newer-cut", UNDECODABLE, b'{"format":2')
    yield Way("newer-too-high", UNDECODABLE, b'{"format":9007199254740992}')
    for tail in ('"x":NaN', '"x":1e999', '"x":"\\ud800"', '"x":01'):
        value = (newer[:-1] + "," + tail + "}").encode()
        yield Way("newer-not-json-" + tail, UNDECODABLE, value)
    yield Way("newer-bom", UNDECODABLE, b'\xef\xbb\xbf{"format":2}')


def _size_ways(literals: dict[str, str]) -> Iterator[Way]:
    """Depth 100 and 101, 900,000 bytes and one more, 32,768 children and one more."""
    text = _render(literals)[:-1]
    for depth, outcome in ((99, DECODES), (100, UNDECODABLE), (5000, UNDECODABLE)):
        for name, opening, closing in (("lists", "[", "]"), ("objects", '{"a":', "}")):
            inner = "" if opening == "[" else "0"
            value = f'{text},"x":{opening * depth}{inner}{closing * depth}}}'
            yield Way(f"deep-{name}-{depth + 1}", outcome, value.encode())
    shallow = f'{text},"x":"' + "[" * 200 + '"}'
    yield Way("brackets-in-a-string", DECODES, shallow.encode())
    dropped = f'{text},"x":' + "[" * 100 + "]" * 100 + ',"x":0}'
    yield Way("deep-dropped", UNDECODABLE, dropped.encode())
    for size, outcome in ((900_000, DECODES), (900_001, UNDECODABLE)):
        padding = size - len(f'{text},"x":""}}'.encode())
        yield Way(f"size-{size}", outcome, f'{text},"x":"{"x" * padding}"}}'.encode())
    spaced = _render(literals).encode()
    yield Way("size-spaces", UNDECODABLE, spaced + b" " * (900_001 - len(spaced)))


def is_large(way: Way) -> bool:
    """Whether the value is so large that a generator should use it seldom."""
    return len(way.value) > 20_000


def children_of_number(count: int) -> list[str]:
    """Return `count` contiguous children that cover the ring."""
    cuts = [index * 0xFFFFFFFF // count for index in range(count + 1)]
    return [f"0x{low:08x}_0x{high:08x}" for low, high in pairwise(cuts)]


ODD_KEYS: tuple[bytes | None, ...] = (
    None, b"", b" ", b"/", b"a", b"a/", b"/b", b"a/b/", b"a/b/c", b"a//b",
    b"a/b/0x00000000_0xffffffff/",
    b"a/b/0x00000000_0xFFFFFFFF", b"a/b/0X00000000_0xffffffff", b"a/b/0x0_0xffffffff",
    b"a/b/00000000_ffffffff", b"a/b\n", b"a/b ", b"a /b", "é/b".encode(), b"a/\xff", b"\xff\xfe",
    b"a/b/0x00000000_0xffffffff\n", b"a" * 129 + b"/b", b"a/" + b"b" * 129, b"a/b#", b"a\0/b",
    b"a/b/0x00000000_0xffffffff/c", "a/b\u0661".encode(), b"*", b"a/b/0x000000000_0xffffffff",
)  # fmt: skip
CONTROL_KEYS = (
    b"!", b"!heartbeat2", b"!Heartbeat", b"!leader", b"!cold-start", b"!note/x", b"!\xff\xfe",
    b"!heartbeat ", b"!a/b/0x00000000_0xffffffff", b"!" + b"x" * 300,
)  # fmt: skip
