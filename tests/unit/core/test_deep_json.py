"""The scan of JSON of any depth, against the parser of the standard library where that one goes so deep."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statechannel.protocol.codec import NotJsonError, top_level_format

LEAVES = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False, allow_infinity=False) | st.text()
NAMES = st.sampled_from(["format", "x", "", 'a"b', "\\"]) | st.text(max_size=3)
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4))


def naive(value: bytes) -> Any:
    """The same answer from a parser that builds the whole value; an error where it is not JSON."""
    loaded = orjson.loads(value)
    result = loaded.get("format") if isinstance(loaded, dict) else None
    return None if isinstance(result, dict | list) else result


@given(JSON, st.sampled_from([None, 1]), st.booleans())
@settings(max_examples=300, deadline=None)
def test_it_reads_what_a_parser_reads(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    assert top_level_format(text) == naive(text)


@given(st.lists(st.sampled_from(['{"format":', "{", "}", "[", "]", ",", ":", '"format"', '"a"', "1", "-", "01", "1e5",
                                 "null", "true", "nul", " ", "\n", "\x0b", '"\\', '"\\u12"', '"', "NaN", "é"])))  # fmt: skip
@settings(max_examples=1500, deadline=None)
def test_it_refuses_what_a_parser_refuses(tokens: list[str]) -> None:
    text = "".join(tokens).encode()
    try:
        expected = naive(text)
    except orjson.JSONDecodeError:
        with pytest.raises(NotJsonError):
            top_level_format(text)
    else:
        assert top_level_format(text) == expected


CASES = """
{"format": 2}                            | 2
{"format": 2, "format": 3}               | 3
{"format": 2, "format": [3]}             | null
{"format": [2], "format": 3}             | 3
{"x": {"format": 2}}                     | null
{"x": {"format": 2}, "format": "y"}      | "y"
[{"format": 2}]                          | null
"format"                                 | null
{}                                       | null
{"\\u0066ormat": 4}                      | 4
"""


@pytest.mark.parametrize("row", CASES.strip().splitlines())
def test_the_last_top_level_member_counts(row: str) -> None:
    text, expected = row.split("|")
    assert top_level_format(text.strip().encode()) == json.loads(expected)


@pytest.mark.parametrize("depth", [1, 100, 1024, 100_000])
def test_depth_does_not_matter(depth: int) -> None:
    for opening, closing in (("[", "]"), ('{"format":', "}")):
        deep = opening * depth + "0" + closing * depth
        assert top_level_format(f'{{"x":{deep},"format":7}}'.encode()) == 7
        assert top_level_format(f'{{"format":7,"x":{deep}}}'.encode()) == 7
        assert top_level_format(f'{{"format":7,"format":{deep}}}'.encode()) is None
        for broken in (f'{{"x":{deep[:-1]},"format":7}}', f'{{"format":7,"x":{deep}}}]', f'{{"format":7,"x":{deep}'):
            with pytest.raises(NotJsonError):
                top_level_format(broken.encode())


@pytest.mark.parametrize(
    "value", [b'{"format":2,"x":"\xff"}', b"\xef\xbb\xbf{}", b'{"x":"\\ud800"}', b'{"x":1e999}', b""]
)
def test_the_stricter_rules_hold(value: bytes) -> None:
    with pytest.raises(NotJsonError):
        top_level_format(value)
