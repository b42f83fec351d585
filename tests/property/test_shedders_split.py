"""Splits: cuts lie strictly inside, ascending, each once; children are the parent; nothing goes on for ever."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from math import inf, isclose, nan

import pytest
from hypothesis import given
from hypothesis import settings as run
from hypothesis import strategies as st

from loaddata.model.bundle_load import BundleAverages, BundleStats, MessageAverage
from shedders.model.cluster import Broker, Bundle, Cluster, TopicLoad
from shedders.model.cuts import children, ends, part_of
from shedders.model.moved_cluster import offspring, with_children
from shedders.model.strategy import SplitAlgorithm
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
from shedders.split.triggers import SplitSettings, SplitWhen
from statechannel.protocol.bundle import FULL_UPPER, parse_key

UNHURRIED = run(deadline=None)

hashes = st.integers(0, FULL_UPPER) | st.integers(0, 40) | st.integers(FULL_UPPER - 40, FULL_UPPER)
amounts = st.sampled_from([0.0, 1.0, 40.0, 60.0, 300.0]) | st.floats(0, 1e9)
wild = amounts | st.sampled_from([nan, inf, -inf, -1.0])


@st.composite
def bundles(draw: st.DrawFn, *, sound: bool = False) -> Bundle:
    lower, upper = sorted(draw(st.lists(hashes, min_size=2, max_size=2, unique=True)))
    figure = amounts if sound else wild
    places = draw(st.lists(st.integers(lower, upper) | hashes, max_size=12))
    topics = tuple(
        TopicLoad(f"persistent://t/n/{number}", place, draw(figure), draw(figure), draw(figure), draw(figure))
        for number, place in enumerate(places)
    )
    traffic = [draw(figure) for _ in range(4)]
    counts = [draw(st.integers(0, 3000)) for _ in range(4)]
    average = MessageAverage(*(draw(figure) for _ in range(4)), samples=draw(st.integers(0, 10)))
    return Bundle(
        f"t/n/0x{lower:08x}_0x{upper:08x}",
        "b",
        stats=BundleStats(*traffic, *counts),
        averages=BundleAverages(average, average),
        topics=topics,
    )


ALGORITHMS: list[SplitAlgorithm] = [
    SplitRange(SplitRangeSettings()),
    SplitTopicCount(SplitTopicCountSettings()),
    SplitFlowOrQps(SplitFlowOrQpsSettings(max_msg_rate=100, max_bandwidth_mib=1)),
    SplitSpecified(SplitSpecifiedSettings(positions=(5, 20, 0x80000000, FULL_UPPER - 3, FULL_UPPER, 20), forced=True)),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda item: item.name)
@UNHURRIED
@given(bundle=bundles())
def test_cuts_lie_inside(algorithm: SplitAlgorithm, bundle: Bundle) -> None:
    cuts = list(algorithm.positions(bundle))
    lower, upper = ends(bundle)
    assert all(lower < cut < upper for cut in cuts)
    assert cuts == sorted(set(cuts))
    turned = Bundle(bundle.name, bundle.owner, stats=bundle.stats, topics=bundle.topics[::-1])
    assert list(algorithm.positions(turned)) == cuts


@UNHURRIED
@given(bundles())
def test_topic_count_parts_topics_as_evenly_as_hashes_allow(bundle: Bundle) -> None:
    lower, upper = ends(bundle)
    last = upper if upper == FULL_UPPER else upper - 1
    places = sorted(topic.position for topic in bundle.topics if lower <= topic.position <= last)
    cuts = SplitTopicCount(SplitTopicCountSettings()).positions(bundle)
    pairs = pairwise(sorted(set(places)))
    possible = [sum(place <= before for place in places) for before, _ in pairs if before < upper - 1]
    assert bool(cuts) == bool(possible)
    if cuts:
        left = sum(place < cuts[0] for place in places)
        assert abs(left - len(places) // 2) == min(abs(item - len(places) // 2) for item in possible)


@UNHURRIED
@given(bundles(sound=True))
def test_flow_leaves_no_part_over_the_limit_but_for_one_hash(bundle: Bundle) -> None:
    lower, upper = ends(bundle)
    if upper == FULL_UPPER:
        return
    cuts = SplitFlowOrQps(SplitFlowOrQpsSettings(max_msg_rate=100, max_bandwidth_mib=1)).positions(bundle)
    parts: list[dict[int, tuple[float, float]]] = [{} for _ in range(len(cuts) + 1)]
    for topic in bundle.topics:
        if lower <= topic.position < upper:
            rate, size = topic.msg_rate_in + topic.msg_rate_out, topic.msg_throughput_in + topic.msg_throughput_out
            before = parts[part_of(topic.position, cuts)].get(topic.position, (0.0, 0.0))
            if rate + size:
                parts[part_of(topic.position, cuts)][topic.position] = (before[0] + rate, before[1] + size)
    if cuts:
        for part in parts:
            assert part, "no part is empty"
            if len(part) > 1:
                assert sum(rate for rate, _ in part.values()) <= 100 * (1 + 1e-9)
                assert sum(size for _, size in part.values()) <= 1024 * 1024 * (1 + 1e-9)


@UNHURRIED
@given(bundles(sound=True), st.lists(hashes, min_size=1, max_size=5))
def test_children_are_the_parent(parent: Bundle, places: list[int]) -> None:
    lower, upper = ends(parent)
    cuts = sorted({place for place in places if lower < place < upper})
    if not cuts:
        return
    bundles = offspring(parent, cuts)
    bounds = [parse_key(bundle.name.encode()) for bundle in bundles]
    assert [bundle.name for bundle in bundles] == children(parent, cuts)
    assert (bounds[0].lower, bounds[-1].upper) == (lower, upper)  # type: ignore[union-attr]
    assert all(item.upper == other.lower for item, other in pairwise(bounds))  # type: ignore[union-attr]
    last = upper if upper == FULL_UPPER else upper - 1
    inside = [topic for topic in parent.topics if lower <= topic.position <= last]
    assert sorted(topic.name for bundle in bundles for topic in bundle.topics) == sorted(topic.name for topic in inside)
    stats = parent.stats
    assert stats is not None
    for field in ("topics", "consumers", "producers", "cache_size_bytes"):
        assert sum(getattr(bundle.stats, field) for bundle in bundles) == getattr(stats, field)
    for field in ("msg_rate_in", "msg_rate_out", "msg_throughput_in", "msg_throughput_out"):
        assert all(getattr(bundle.stats, field) >= 0 for bundle in bundles)
        assert isclose(
            sum(getattr(bundle.stats, field) for bundle in bundles), getattr(stats, field), rel_tol=1e-9, abs_tol=1e-9
        )
        if parent.averages.short.samples:
            whole = getattr(parent.averages.short, field)
            assert isclose(
                sum(getattr(bundle.averages.short, field) for bundle in bundles), whole, rel_tol=1e-9, abs_tol=1e-9
            )
    assert all(bundle.estimated and bundle.owner == "b" for bundle in bundles)


@UNHURRIED
@given(st.lists(bundles(), max_size=4), st.booleans(), st.sampled_from(ALGORITHMS))
def test_plans_are_sound_whatever_the_figures(bundles: list[Bundle], upstream: bool, algorithm: SplitAlgorithm) -> None:
    named = (replace(bundle, name=bundle.name.replace("t/n", f"t/n{number}")) for number, bundle in enumerate(bundles))
    bundles_ = {item.name: item for item in named}
    cluster = Cluster({"b": Broker("b")}, bundles_)
    turned = Cluster({"b": Broker("b")}, dict(reversed(bundles_.items())))
    when = SplitWhen(SplitSettings(hit_threshold=0, max_bundles=6, max_per_cycle=2, upstream=upstream), algorithm)
    splits = when.plan(cluster, {})
    assert splits == when.plan(turned, {})
    json.dumps(splits.memory, allow_nan=False)
    done = [plan for plan in splits.plans if plan.positions]
    assert len(done) <= 2
    assert len({plan.bundle for plan in splits.plans}) == len(splits.plans)
    after = with_children(cluster, splits.plans)
    assert len(after.bundles) == len(bundles) + sum(len(item.positions) for item in done)
    # Each came from a namespace of its own, and the limit is a namespace's.
    assert all(count <= 6 for count in Counter(bundle.namespace for bundle in after.bundles.values()).values())
    if not upstream:
        # Children are left alone until they were measured.
        again = when.plan(after, json.loads(json.dumps(splits.memory)))
        fresh = {name for name in after.bundles if name not in bundles_}
        assert not [plan for plan in again.plans if plan.positions and plan.bundle in fresh]


@UNHURRIED
@given(hashes, st.integers(2, 60), st.sampled_from(ALGORITHMS[:2]))
def test_one_hot_topic_is_not_split_for_ever(place: int, others: int, algorithm: SplitAlgorithm) -> None:
    """A topic with all traffic, with idle ones around it; only counts are reported."""
    cluster = Cluster({"b": Broker("b")}, {"t/n/0x00000000_0xffffffff": Bundle("t/n/0x00000000_0xffffffff", "b")})
    when, memory, count = SplitWhen(SplitSettings(hit_threshold=0), algorithm), {}, 0
    idle = [place * 7919 * number % (FULL_UPPER + 1) for number in range(1, others)]
    for _ in range(12):
        measured = {}
        for name, bundle in cluster.bundles.items():
            lower, upper = ends(bundle)
            mine = [spot for spot in (place, *idle) if lower <= spot < upper or spot == upper == FULL_UPPER]
            topics = tuple(TopicLoad(f"x{spot}", spot) for spot in mine) if algorithm.name.startswith("topic") else ()
            hot = lower <= place < upper or place == upper == FULL_UPPER
            stats = BundleStats(msg_rate_in=40_000.0 if hot else 0.0, topics=max(2, len(mine)))
            measured[name] = Bundle(name, "b", stats=stats, topics=topics)
        cluster = Cluster(cluster.brokers, measured)
        splits = when.plan(cluster, memory)
        memory = dict(splits.memory)
        count += sum(bool(plan.positions) for plan in splits.plans)
        cluster = with_children(cluster, splits.plans)
    assert count <= 3
