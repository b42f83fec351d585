"""Names and ring arithmetic against upstream's boundaries and a naive count."""

import zlib
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statechannel.protocol import bundle
from statechannel.protocol.keys import KeyState, Ring
from tests.unit.core.against_twin import check_tiling

FULL = 0xFFFFFFFF


def test_four_bundles_have_upstreams_boundaries() -> None:
    expected = ["0x00000000_0x40000000", "0x40000000_0x80000000", "0x80000000_0xc0000000", "0xc0000000_0xffffffff"]
    assert bundle.children_of(bundle.namespace_bounds(4)) == expected
    assert bundle.children_of(bundle.namespace_bounds(1)) == ["0x00000000_0xffffffff"]
    assert bundle.children_of(bundle.namespace_bounds(3))[1] == "0x55555555_0xaaaaaaaa"


@given(st.one_of(st.integers(1, 40), st.sampled_from([4096, 32_767, 32_768])))
@settings(deadline=None)
def test_bundles_of_a_new_namespace_tile_the_ring(count: int) -> None:
    bounds = bundle.namespace_bounds(count)
    assert len(bounds) == count + 1
    check_tiling(pairwise(bounds))
    assert bounds[:-1] == [2**32 // count * index for index in range(count)]
    assert list(bundle.bounds_of(bundle.children_of(bounds)) or ()) == bounds


@given(st.integers(0, FULL), st.integers(0, FULL), st.integers(1, 50))
@settings(deadline=None)
def test_even_parts_of_a_range(size: int, other: int, count: int) -> None:
    lower, upper = min(size, other), max(size, other)
    if upper - lower < count:
        with pytest.raises(ValueError, match="too small"):
            bundle.even_bounds(count, lower, upper)
        return
    bounds = bundle.even_bounds(count, lower, upper)
    sizes = [right - left for left, right in pairwise(bounds)]
    assert (bounds[0], bounds[-1], len(sizes)) == (lower, upper, count)
    assert set(sizes[:-1]) <= {(upper - lower) // count}
    assert 0 <= sizes[-1] - (upper - lower) // count < count


@pytest.mark.parametrize("count", [-1, 0, 32_769])
def test_numbers_of_bundles_out_of_bounds(count: int) -> None:
    with pytest.raises(ValueError, match="32768"):
        bundle.namespace_bounds(count)
    with pytest.raises(ValueError, match="32768"):
        bundle.even_bounds(count, 0, FULL)


@pytest.mark.parametrize("count", [1, 32_768])
def test_the_fewest_and_the_most_parts(count: int) -> None:
    assert len(bundle.namespace_bounds(count)) == len(bundle.even_bounds(count, 0, FULL)) == count + 1


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("t/ns/0x0_0x1", None),  # a range, nearly
        ("t/ns/0x00000000_0xFFFFFFFF", None),
        ("persistent://t/ns/0x0_0x1", ("t/ns", "persistent://t/ns/0x0_0x1")),
        ("t/ns/0x00000000_0xffffffff", ("t/ns", "persistent://t/ns/0x00000000_0xffffffff")),
        ("t/ns/topic", ("t/ns", "persistent://t/ns/topic")),
    ],
)
def test_a_name_that_somebody_typed(typed: str, expected: tuple[str, str] | None) -> None:
    assert bundle.split_typed_topic(typed) == expected


MISTYPED = """
0x0_0x1 0x00000000_0xFFFFFFFF 0X70000000_0X80000000 0x7000000_0x80000000 0x70000000_0x800000000 0x70000000 0X70000000
70000000 7FFFFFFF 0x70000000_ _0x80000000 0x_0x80000000 0x70000000_0x 0x70000000_80000000 70000000_0x80000000
70000000_80000000 0x70000000-0x80000000 0x70000000:0x80000000 0x70000000..0x80000000 0x70000000/0x80000000
0x70000000,0x80000000 0x70000000__0x80000000 0x700000000x80000000 7000000080000000 x70000000_x80000000 x70000000
0x7000000o_0x8000000O Ox70000000_Ox80000000 0x7000000g_0x80000000 [0x70000000_0x80000000] 0x70000000_0x80000000/ 0x
0x70000000\u20130x80000000 0x7
"""
TOPICS_ALL_THE_SAME = """
topic x ox box fax 0 7 10 orders-0x topic-0x70000000 deadbeef-topic 0xygen decade face cafe-babe added 2024-01-01 12345
550e8400-e29b-41d4-a716-446655440000 persistent foil my_0x_topic partition-0
"""


@pytest.mark.parametrize("local", MISTYPED.encode().decode("unicode-escape").split())
def test_a_short_name_that_looks_like_bounds_is_no_topic_for_somebody_who_changes_something(local: str) -> None:
    assert bundle.looks_like_bounds(f"t/ns/{local}")
    for domain in ("persistent", "non-persistent"):
        assert not bundle.looks_like_bounds(f"{domain}://t/ns/{local}"), "with its domain it is the name of a topic"
        assert bundle.split_topic(f"{domain}://t/ns/{local}") is not None


@pytest.mark.parametrize("local", [*TOPICS_ALL_THE_SAME.split(), "0x00000000_0xffffffff", "0" * 100_000])
def test_bundles_and_other_topics_do_not(local: str) -> None:
    assert not bundle.looks_like_bounds(f"t/ns/{local}")


def test_halves_of_upstreams_bundle() -> None:
    assert bundle.even_bounds(2, 0xC0000000, FULL) == [0xC0000000, 0xDFFFFFFF, FULL]


@given(st.integers(0, 20), st.integers(0, 20), st.lists(st.integers(0, 20), max_size=4))
@settings(deadline=None)
def test_cuts_at_positions(size: int, other: int, positions: list[int]) -> None:
    lower, upper = min(size, other), max(size, other)
    inside = all(lower < position < upper for position in positions)
    if positions and inside and len(set(positions)) == len(positions):
        bounds = bundle.bounds_at(lower, upper, positions)
        assert bounds == [lower, *sorted(positions), upper]
    else:
        with pytest.raises(ValueError, match="position"):
            bundle.bounds_at(lower, upper, positions)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=5))
@settings(deadline=None)
def test_contiguous_children_have_bounds(ranges: list[tuple[int, int]]) -> None:
    bounds = bundle.bounds_of([bundle.range_name(*pair) for pair in ranges])
    fit = bool(ranges) and all(low < high for low, high in ranges)
    fit = fit and all(left[1] == right[0] for left, right in pairwise(ranges))
    assert (None if bounds is None else list(bounds)) == (
        [ranges[0][0], *(high for _, high in ranges)] if fit else None
    )


@pytest.mark.parametrize("odd", ["x", "0x0_0x1", "0x00000000_0xFFFFFFFF", "0x00000000_0xffffffff\n", ""])
def test_what_is_no_range(odd: str) -> None:
    assert bundle.numbers_of([odd]) is None
    assert bundle.bounds_of([odd]) is None


@given(st.integers(0, FULL), st.integers(0, FULL))
@settings(deadline=None)
def test_names_of_ranges_and_back(lower: int, upper: int) -> None:
    assert bundle.numbers_of([bundle.range_name(lower, upper)]).tolist() == [lower, upper]
    key = bundle.bundle_key("t/n", lower, upper)
    assert bundle.parse_key(key.encode()) == ("t/n", lower, upper)
    assert bundle.is_bundle(key)
    assert not bundle.is_namespace(key)
    assert bundle.is_namespace("t/n")
    assert not bundle.is_bundle("t/n")


@pytest.mark.parametrize("name", ["a/..", "./.", "../v1", "a/."])
def test_parts_that_clients_drop_from_urls_are_read_but_not_created(name: str) -> None:
    assert bundle.is_namespace(name)
    assert bundle.parse_key(name.encode()) is not None
    assert not bundle.is_new_namespace(name)
    assert bundle.is_new_namespace(name.replace(".", "...") + "x")


TOPICS = """
persistent://t/ns/topic      | t/ns | persistent://t/ns/topic
non-persistent://t/ns/topic  | t/ns | non-persistent://t/ns/topic
t/ns/topic                   | t/ns | persistent://t/ns/topic
t/ns/a/b c/é                 | t/ns | persistent://t/ns/a/b c/é
t/ns                         | -    | -
t/../a...b/...               | t/.. | persistent://t/../a...b/...
t/ns/..                      | -    | -
persistent://t/ns/a/./b      | -    | -
t/ns/                        | -    | -
topic                        | -    | -
http://t/ns/topic            | -    | -
persistent://t/ns            | -    | -
t t/ns/topic                 | -    | -
"""


@pytest.mark.parametrize("row", TOPICS.strip().splitlines())
def test_topics(row: str) -> None:
    topic, namespace, full_name = (part.strip() for part in row.split("|"))
    assert bundle.split_topic(topic) == (None if namespace == "-" else (namespace, full_name))


@given(st.text(max_size=40))
@settings(deadline=None)
def test_the_hash_of_a_topic_is_the_crc32_of_its_full_name(name: str) -> None:
    assert bundle.topic_hash(name) == zlib.crc32(name.encode("utf-8"))


def test_a_known_hash() -> None:
    assert bundle.topic_hash("123456789") == 0xCBF43926  # the check value of CRC-32


@given(st.text("ab/", min_size=1), st.integers(1, 100))
@settings(deadline=None)
def test_partition_of_a_namespace(namespace: str, partitions: int) -> None:
    assert bundle.partition_of(namespace, partitions) == zlib.crc32(namespace.encode()) % partitions


@given(st.sets(st.integers(1, FULL - 1), max_size=20), st.lists(st.integers(0, FULL), max_size=20))
@settings(deadline=None)
def test_the_bundle_that_a_hash_falls_into(cuts: set[int], places: list[int]) -> None:
    ring = Ring("t/n", 1)
    bounds = [0, *sorted(cuts), FULL]
    for lower, upper in pairwise(bounds):
        ring.live[lower] = KeyState("t/n", lower, upper)
    for place in [*places, *bounds, *(bound - 1 for bound in bounds[1:])]:
        naive = [key for key in ring.live.values() if key.lower <= place and (place < key.upper or key.upper == FULL)]
        assert [ring.at(place)] == naive


@given(st.integers(1, 40), st.text(alphabet="abcxyz0189-._~", min_size=1, max_size=12))
def test_each_topic_is_in_exactly_one_bundle_of_its_namespace(count: int, local: str) -> None:
    keys = [f"t/n/{child}" for child in bundle.children_of(bundle.namespace_bounds(count))]
    ranges = [bundle.BundleRange.parse(key) for key in keys]
    assert [one.key for one in ranges] == keys
    (home,) = [one for one in ranges if one.contains(f"t/n/{local}")]
    assert home.contains(f"persistent://t/n/{local}")
    assert home.lower <= bundle.named_topic_hash(f"t/n/{local}") <= home.upper
    assert not any(one.contains(f"t/other/{local}") for one in ranges)


def test_the_end_of_the_ring_is_in_its_last_bundle() -> None:
    first, last = (bundle.BundleRange.parse(f"t/n/{child}") for child in bundle.children_of(bundle.namespace_bounds(2)))
    assert [first.contains_hash(place) for place in (0, 0x7FFFFFFF, 0x80000000, FULL)] == [True, True, False, False]
    assert [last.contains_hash(place) for place in (0x7FFFFFFF, 0x80000000, FULL)] == [False, True, True]


def test_a_parent_covers_its_children_and_no_others() -> None:
    parent = bundle.BundleRange.parse("t/n/0x40000000_0x80000000")
    children = [
        bundle.BundleRange("t/n", *bounds) for bounds in pairwise(bundle.even_bounds(3, parent.lower, parent.upper))
    ]
    assert all(parent.covers(child) for child in children)
    assert not any(child.covers(parent) for child in children)
    assert not parent.covers(bundle.BundleRange("t/other", parent.lower, parent.upper))


@pytest.mark.parametrize(
    "key", ["", "t/n", "t/n/topic", "t/n/0x0_0x1", "t/n/0x80000000_0x00000000", "a/t/n/0x00000000_0xffffffff"]
)
def test_what_is_no_bundle_is_refused_with_the_form_that_is_wanted(key: str) -> None:
    with pytest.raises(ValueError, match="wanted: tenant/namespace/0x"):
        bundle.BundleRange.parse(key)


@pytest.mark.parametrize("name", ["", "t/n", "orders", "t/n/0x0_0x1"])
def test_what_is_no_topic_has_no_hash(name: str) -> None:
    with pytest.raises(ValueError, match="wanted: tenant/namespace/topic"):
        bundle.named_topic_hash(name)
    with pytest.raises(ValueError, match="wanted: tenant/namespace/topic"):
        bundle.BundleRange.parse("t/n/0x00000000_0xffffffff").contains(name)
