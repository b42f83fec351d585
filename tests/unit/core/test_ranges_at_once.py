"""All ranges of a ring at once are the same as one after the other; the nesting of a text likewise."""

from array import array
from itertools import pairwise

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statechannel.protocol import codec
from statechannel.protocol.bundle import bounds_of, children_of, numbers_of, parse_key, range_name

RANGE = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)).map(lambda pair: range_name(*pair))
BROKEN = st.sampled_from(
    ["", "0x", "0x00000000_0xFFFFFFFF", "0x0000000_0x000000001", "0x00000000-0x00000001", "x" * 21]
)


@given(st.lists(RANGE | BROKEN | RANGE.map(lambda text: text[:-1]), max_size=6))
def test_numbers_are_those_of_each_range(children: list[str]) -> None:
    parsed = [parse_key(f"t/n/{child}".encode()) for child in children]
    numbers = numbers_of(children)
    if None in parsed:
        assert numbers is None
    else:
        assert numbers is not None
        assert list(numbers) == [bound for pair in parsed if pair is not None for bound in pair[1:]]


def test_what_is_no_text_is_no_range() -> None:
    assert numbers_of([range_name(0, 1), 7]) is None  # type: ignore[list-item]
    assert bounds_of([]) is None


@given(st.lists(st.integers(0, 2**32 - 1), unique=True, max_size=8).map(sorted))
def test_children_of_bounds_and_back(bounds: list[int]) -> None:
    children = children_of(bounds)
    assert children == [range_name(*pair) for pair in pairwise(bounds)]
    if children:
        assert bounds_of(children) == array("I", bounds)
        assert bounds_of(children[::-1]) == (array("I", bounds) if len(children) == 1 else None)


@pytest.mark.parametrize("bounds", [(-1, 5), (0, 2**32)])
def test_bounds_beyond_the_ring_are_written_as_they_are(bounds: tuple[int, int]) -> None:
    assert children_of(bounds) == [range_name(*bounds)]


def naive_depth(text: bytes) -> int:
    depth = deepest = 0
    inside = escaped = False
    for byte in text:
        if inside:
            inside = escaped or byte != ord('"')
            escaped = not escaped and byte == ord("\\")
        elif byte == ord('"'):
            inside = True
        elif byte in b"{[":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    return deepest


@settings(max_examples=50, deadline=None)
@given(
    st.recursive(
        st.none() | st.text('"\\[]{}a'), lambda inner: st.lists(inner) | st.dictionaries(st.text('"\\{['), inner)
    )
)
def test_depth_is_that_of_a_plain_count(value: object) -> None:
    text = orjson.dumps(value)
    assert codec._depth(text) == naive_depth(text)


def test_deep_junk_is_looked_at_only_if_it_may_be_of_a_newer_format() -> None:
    deep = b"[" * 2_000 + b"]" * 2_000
    assert isinstance(codec.load_object(deep), codec.Undecodable)
    assert isinstance(codec.load_object(b'{"x":' + deep + b"}"), codec.Undecodable)
    assert codec.load_object(b'{"x":' + deep + b',"format":3}') == codec.NewerFormat(3)
    assert codec.load_object(b'{"x":' + deep + b',"\\u0066ormat":3}') == codec.NewerFormat(3)
