"""Where bundles are cut: tables worked out by hand, and both sides of each switch (decision record 43)."""

from collections.abc import Sequence
from math import inf, nan

import pytest
from pydantic import ValidationError

from loaddata.model.bundle_load import BundleStats
from shedders.model.cluster import Bundle, TopicLoad
from shedders.model.cuts import CannotSplitError, algorithm_name, children, ends, part_of
from shedders.split.algorithms import (
    SplitFlowOrQps,
    SplitFlowOrQpsSettings,
    SplitRange,
    SplitRangeSettings,
    SplitSpecified,
    SplitSpecifiedSettings,
    SplitTopicCount,
    SplitTopicCountSettings,
)

MIB = 1024 * 1024


def topic(position: int, rate: float = 0.0, throughput: float = 0.0) -> TopicLoad:
    return TopicLoad(f"persistent://t/n/{position:x}", position, rate, 0.0, throughput, 0.0)


def bundle(lower: int, upper: int, topics: Sequence[TopicLoad] = ()) -> Bundle:
    stats = BundleStats(topics=len(topics))
    return Bundle(f"t/n/0x{lower:08x}_0x{upper:08x}", "b", stats=stats, topics=tuple(topics))


# --- range --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lower", "upper", "ours", "theirs"),
    [
        (0x40000000, 0x80000000, [0x60000000], [0x60000000]),
        (0x00000000, 0xFFFFFFFF, [0x80000000], [0x7FFFFFFF]),
        (0xC0000000, 0xFFFFFFFF, [0xE0000000], [0xDFFFFFFF]),
        (0x00000005, 0x00000008, [0x00000006], [0x00000006]),
        (0x00000005, 0x00000006, [], []),
        (0xFFFFFFFE, 0xFFFFFFFF, [], []),
    ],
)
def test_range(lower: int, upper: int, ours: list[int], theirs: list[int]) -> None:
    assert SplitRange(SplitRangeSettings()).positions(bundle(lower, upper)) == ours
    assert SplitRange(SplitRangeSettings(upstream=True)).positions(bundle(lower, upper)) == theirs


# --- topic count --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("places", "ours", "theirs"),
    [
        ([0x10, 0x20, 0x30, 0x61, 0x70], [0x28], [0x28]),
        ([0x70, 0x10], [0x40], [0x40]),
        ([0x10, 0x13], [0x11], [0x11]),
        ([0x10, 0x11], [0x11], [0x10]),
        # Upstream cuts at the bundle's own lower end.
        ([0x00, 0x01], [0x01], [0x00]),
        # One hash in the middle: the nearest place where hashes differ.
        ([0x10, 0x20, 0x20, 0x20, 0x30], [0x18], [0x20]),
        ([0x10, 0x20, 0x20, 0x30, 0x40, 0x50], [0x28], [0x28]),
        ([0x20, 0x20], [], [0x20]),
        ([0x20], [], []),
        ([], [], []),
        # A hash that lies elsewhere is not its topic.
        ([0x10, 0x20, 0xF0, 0xF1, 0xF2], [0x18], [0x88]),
    ],
)
def test_topic_count(places: list[int], ours: list[int], theirs: list[int]) -> None:
    subject = bundle(0x00, 0x80, [topic(place) for place in places])
    assert SplitTopicCount(SplitTopicCountSettings()).positions(subject) == ours
    assert SplitTopicCount(SplitTopicCountSettings(upstream=True)).positions(subject) == theirs


def test_topics_of_the_last_hash_belong_to_the_last_bundle() -> None:
    subject = bundle(0xFFFFFF00, 0xFFFFFFFF, [topic(0xFFFFFF10), topic(0xFFFFFFFF)])
    assert SplitTopicCount(SplitTopicCountSettings()).positions(subject) == [0xFFFFFF87]


# --- specified ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("positions", "ours", "theirs"),
    [
        ([0x60, 0x20, 0x60, 0x80], [0x20, 0x60], [0x20, 0x60, 0x60]),
        (["0x20", "96", 33], [0x20, 33, 0x60], [0x20, 33, 0x60]),
        ([0x00, 0x80, 0xFFFFFFFF], [], []),
    ],
)
def test_specified(positions: list[int | str], ours: list[int], theirs: list[int]) -> None:
    subject = bundle(0x00, 0x80, [topic(1), topic(2)])
    for upstream, expected in ((False, ours), (True, theirs)):
        settings = SplitSpecifiedSettings.model_validate({"positions": positions, "upstream": upstream})
        assert SplitSpecified(settings).positions(subject) == expected


def test_specified_leaves_a_bundle_of_one_topic_unless_forced() -> None:
    subject = bundle(0x00, 0x80, [topic(1)])
    assert SplitSpecified(SplitSpecifiedSettings(positions=(0x40,))).positions(subject) == []
    assert SplitSpecified(SplitSpecifiedSettings(positions=(0x40,), forced=True)).positions(subject) == [0x40]


def test_specified_without_positions_refuses() -> None:
    with pytest.raises(CannotSplitError, match="has no positions"):
        SplitSpecified(SplitSpecifiedSettings()).positions(bundle(0x00, 0x80))


@pytest.mark.parametrize("wrong", [-1, 0x100000000, 1.5, "middle", True, None, nan])
def test_specified_positions_are_hashes(wrong: object) -> None:
    with pytest.raises(ValidationError):
        SplitSpecifiedSettings.model_validate({"positions": [wrong]})


# --- flow or qps --------------------------------------------------------------------------


def flow(*, upstream: bool = False, rate: int = 100, mib: int = 100, percent: float = 10.0) -> SplitFlowOrQps:
    settings = SplitFlowOrQpsSettings(
        max_msg_rate=rate, max_bandwidth_mib=mib, difference_percent=percent, upstream=upstream
    )
    return SplitFlowOrQps(settings)


@pytest.mark.parametrize(
    ("rates", "ours", "theirs"),
    [
        ({10: 30, 20: 30, 30: 30, 40: 30, 50: 30}, [36], [36]),
        ({10: 30, 20: 30, 30: 30, 40: 30}, [26], [36]),
        # 109 is below the limit and a tenth, 111 is not.
        ({10: 50, 20: 59}, [], []),
        ({10: 50, 20: 61}, [16], [16]),
        # Idle topics do not count.
        ({10: 50, 12: 0, 20: 61}, [16], [16]),
        ({10: 200, 20: 0}, [], []),
        # One topic over the limit stands alone.
        ({10: 10, 20: 300, 30: 10, 40: 10}, [16, 26], [16, 26]),
        # Neighbouring hashes: the cut is at the upper one.
        ({10: 60, 11: 60}, [11], [11]),
        ({10: 60, 12: 60}, [12], [12]),
        ({10: 60, 13: 60}, [12], [12]),
        # Three parts of 90 and a rest of 30 fill; 60 is the least with which four parts do.
        (dict.fromkeys(range(10, 110, 10), 30), [36, 66, 96], [36, 66, 96]),
        # Two limits of 100: 90, 10 | 50, 40 | 20, or with 90: 90 | 10, 50 | 40, 20.
        ({10: 90, 20: 10, 30: 50, 40: 40, 50: 20}, [16, 36], [26, 46]),
    ],
)
def test_flow_by_messages(rates: dict[int, float], ours: list[int], theirs: list[int]) -> None:
    subject = bundle(0, 128, [topic(place, rate) for place, rate in rates.items()])
    assert flow(upstream=True).positions(subject) == theirs
    assert flow().positions(subject) == ours


def test_flow_by_bytes_and_either_limit() -> None:
    subject = bundle(0, 128, [topic(10, 1, 60 * MIB), topic(20, 1, 60 * MIB)])
    assert flow().positions(subject) == [16]
    assert flow(mib=200).positions(subject) == []
    assert flow(mib=200, rate=1).positions(subject) == [16]
    # 64-bit: upstream does not overflow here.
    assert flow(upstream=True, mib=4096).positions(subject) == []


def test_flow_adds_up_topics_on_one_hash() -> None:
    """Upstream takes the last one's 10 for both: 10, 10 | 90 needs no cut before the third."""
    topics = [topic(10, 81), topic(10, 10), topic(20, 20)]
    subject = bundle(0, 128, topics)
    assert flow().positions(subject) == [16]
    assert flow(upstream=True).positions(subject) == []
    # And it may cut between the two, on their own hash plus one.
    two = bundle(0, 128, [topic(10, 80), topic(10, 80), topic(20, 10)])
    assert flow(upstream=True).positions(two) == [11]
    assert flow().positions(two) == [16]


@pytest.mark.parametrize("wrong", [nan, inf, -inf, -500.0])
def test_flow_leaves_out_what_is_no_amount(wrong: float) -> None:
    subject = bundle(0, 128, [topic(10, 60), topic(15, wrong), topic(20, 60)])
    assert flow().positions(subject) == [16]


def test_flow_at_the_end_of_the_ring() -> None:
    subject = bundle(0xFFFFFF00, 0xFFFFFFFF, [topic(0xFFFFFFFD, 60), topic(0xFFFFFFFF, 60)])
    assert flow().positions(subject) == [0xFFFFFFFE]
    assert flow(upstream=True).positions(subject) == [0xFFFFFFFF], "refused by whoever splits"


# --- names --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t/n", "nonsense", "t/n/0x80000000_0x00000000", "t/n/0x00000000_0x00000000", "ü/n/0"])
def test_what_is_no_bundle_is_refused(name: str) -> None:
    for algorithm in (SplitRange(SplitRangeSettings()), SplitTopicCount(SplitTopicCountSettings()), flow()):
        with pytest.raises(CannotSplitError, match="the name is not valid"):
            algorithm.positions(Bundle(name))


def test_children_and_parts() -> None:
    subject = bundle(0x00, 0x80)
    expected = ["t/n/0x00000000_0x00000020", "t/n/0x00000020_0x00000060", "t/n/0x00000060_0x00000080"]
    assert children(subject, [0x60, 0x20]) == expected
    assert ends(subject) == (0, 0x80)
    assert [part_of(place, [0x20, 0x60]) for place in (0, 0x1F, 0x20, 0x5F, 0x60)] == [0, 0, 1, 1, 2]
    for wrong in ([], [0], [0x80], [0x20, 0x20]):
        with pytest.raises(CannotSplitError):
            children(subject, wrong)


def test_upstream_s_names() -> None:
    assert algorithm_name("range_equally_divide") == SplitRange.name
    assert algorithm_name("topic_count_equally_divide") == SplitTopicCount.name
    assert algorithm_name("specified_positions_divide") == SplitSpecified.name
    assert algorithm_name("flow_or_qps_equally_divide") == SplitFlowOrQps.name
    assert algorithm_name("mine") == "mine"
