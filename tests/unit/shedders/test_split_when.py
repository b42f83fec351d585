"""When bundles are split: limits, hits, caps, hot topics; both sides of the switch (decision records 43, 44)."""

import json
from collections.abc import Mapping, Sequence
from math import inf, nan
from typing import Any, ClassVar

import pytest

from loaddata.model.bundle_load import BundleAverages, BundleStats, MessageAverage
from shedders.model.cluster import Broker, Bundle, Cluster, TopicLoad
from shedders.model.moved_cluster import with_children
from shedders.model.strategy import SplitAlgorithm, StrategySettings
from shedders.split.algorithms import (
    SplitFlowOrQps,
    SplitFlowOrQpsSettings,
    SplitRange,
    SplitRangeSettings,
    SplitTopicCount,
    SplitTopicCountSettings,
)
from shedders.split.triggers import Splits, SplitSettings, SplitWhen, fewer

MIB = 1024 * 1024
A, B = "t/n/0x00000000_0x80000000", "t/n/0x80000000_0xffffffff"
HOT = BundleStats(msg_rate_in=40_000, topics=5)
RANGE = SplitRange(SplitRangeSettings())


class Fixed:
    """Answers what it was told."""

    name: ClassVar[str] = "fixed"
    Settings: ClassVar[type[StrategySettings]] = StrategySettings

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def positions(self, bundle: Bundle) -> Sequence[int]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def cluster(*bundles: Bundle, safe: str | None = None) -> Cluster:
    return Cluster({"b": Broker("b"), "c": Broker("c")}, {bundle.name: bundle for bundle in bundles}, safe=safe)


def bundle(name: str = A, stats: BundleStats | None = HOT, **more: Any) -> Bundle:
    return Bundle(name, more.pop("owner", "b"), stats=stats, **more)


def look(
    cluster: Cluster,
    memory: Mapping[str, Any] | None = None,
    algorithm: SplitAlgorithm = RANGE,
    *,
    times: int = 1,
    broker: str | None = None,
    **settings: Any,
) -> Splits:
    when = SplitWhen(SplitSettings(**settings), algorithm)
    splits = Splits((), None, memory or {})
    for _ in range(times):
        splits = when.plan(cluster, json.loads(json.dumps(splits.memory)), broker)
    return splits


def words(splits: Splits) -> list[tuple[str, str, list[int]]]:
    return [(plan.bundle, plan.reason, list(plan.positions)) for plan in splits.plans]


def test_worked_example_of_the_docstring() -> None:
    base = cluster(bundle())
    for times in range(1, 9):
        assert words(look(base, times=times)) == [(A, "hits", [])]
    splits = look(base, times=9)
    assert words(splits) == [(A, "MsgRate", [0x40000000])]
    assert splits.plans[0].why == "40000 messages/s, at most 30000, 9 times in a row"
    assert splits.memory["hits"] == {}
    topics = (TopicLoad("persistent://t/n/hot", 1, 38_000.0), *(TopicLoad(f"x{n}", n, 500.0) for n in range(2, 6)))
    hot = look(cluster(bundle(topics=topics)), times=9)
    assert words(hot) == [(A, "hot-topic", [])]
    assert "topic persistent://t/n/hot alone has 38000 messages/s" in hot.plans[0].why


@pytest.mark.parametrize(
    ("stats", "reason"),
    [
        (BundleStats(topics=1000), None),
        (BundleStats(topics=1001), "Topics"),
        (BundleStats(topics=2, consumers=600, producers=400), None),
        (BundleStats(topics=2, consumers=600, producers=401), "Sessions"),
        (BundleStats(topics=2, msg_rate_in=20_000, msg_rate_out=10_000), None),
        (BundleStats(topics=2, msg_rate_in=20_000, msg_rate_out=10_000.5), "MsgRate"),
        (BundleStats(topics=2, msg_throughput_in=100.0 * MIB), None),
        (BundleStats(topics=2, msg_throughput_in=60.0 * MIB, msg_throughput_out=41.0 * MIB), "Bandwidth"),
        # The first that applies.
        (BundleStats(topics=1001, consumers=2000, msg_rate_in=1e6, msg_throughput_in=1e12), "Topics"),
        (BundleStats(topics=2, consumers=2000, msg_rate_in=1e6, msg_throughput_in=1e12), "Sessions"),
        (BundleStats(topics=2, msg_rate_in=1e6, msg_throughput_in=1e12), "MsgRate"),
    ],
)
@pytest.mark.parametrize("upstream", [False, True])
def test_limits_are_exceeded_not_reached(stats: BundleStats, reason: str | None, upstream: bool) -> None:
    splits = look(cluster(bundle(stats=stats)), hit_threshold=0, upstream=upstream)
    assert words(splits) == ([] if reason is None else [(A, reason, [0x40000000])])


def test_no_limit_of_sessions() -> None:
    crowd = cluster(bundle(stats=BundleStats(topics=2, consumers=10**6)))
    assert words(look(crowd, hit_threshold=0, max_sessions=0)) == []
    assert words(look(crowd, hit_threshold=0, max_sessions=-1)) == []


def test_averages_can_be_what_counts() -> None:
    long = BundleAverages(MessageAverage(), MessageAverage(31_000.0, samples=7))
    base = cluster(bundle(stats=BundleStats(topics=2), averages=long))
    assert words(look(base, hit_threshold=0)) == []
    assert words(look(base, hit_threshold=0, measure="short")) == []
    assert words(look(base, hit_threshold=0, measure="long")) == [(A, "MsgRate", [0x40000000])]


USUAL = BundleAverages(long=MessageAverage(msg_rate_in=20_000, samples=60))
BUSY = BundleAverages(long=MessageAverage(msg_rate_in=31_000, samples=60))
WIDE = BundleStats(msg_throughput_in=200 * MIB, topics=5)


def test_a_bundle_that_has_only_risen_is_given_time() -> None:
    base = cluster(bundle(averages=USUAL))
    plan = look(base, times=30).plans[0]
    assert (plan.reason, list(plan.positions)) == ("hits", [])
    assert "30 times in a row" in plan.why
    assert words(look(base, times=31)) == [(A, "MsgRate", [0x40000000])]
    assert words(look(base, times=4, hit_threshold=2, burst_hit_threshold=3)) == [(A, "MsgRate", [0x40000000])]
    assert words(look(base, times=3, hit_threshold=2, burst_hit_threshold=3)) == [(A, "hits", [])]
    assert words(look(base, times=9, burst_hit_threshold=0)) == [(A, "MsgRate", [0x40000000])]


@pytest.mark.parametrize(
    ("stats", "averages", "settings"),
    [
        (HOT, BUSY, {}),  # it usually is so
        (HOT, BundleAverages(long=MessageAverage(msg_rate_in=20_000, samples=0)), {}),  # what is usual is not known
        (BundleStats(topics=1_001), USUAL, {}),  # topics do not come in bursts
        (BundleStats(msg_rate_in=40_000, topics=1_001), USUAL, {}),
        (BundleStats(msg_rate_in=40_000, topics=5, consumers=1_001), USUAL, {}),
        (BundleStats(msg_rate_in=40_000, msg_throughput_in=200 * MIB, topics=5), BUSY, {}),
        (WIDE, BundleAverages(long=MessageAverage(msg_throughput_in=150 * MIB, samples=60)), {}),
        (HOT, USUAL, {"upstream": True}),
    ],
)
def test_other_bundles_over_a_limit_are_not(stats: BundleStats, averages: BundleAverages, settings: dict[str, Any]):
    base = cluster(bundle(stats=stats, averages=averages))
    assert [word for _, word, _ in words(look(base, times=8, **settings))] == ["hits"]
    assert [word for _, word, _ in words(look(base, times=9, **settings))] != ["hits"]


def test_each_limit_has_its_own_average() -> None:
    by_bytes = BundleAverages(long=MessageAverage(msg_rate_in=1.0, msg_throughput_in=50 * MIB, samples=60))
    assert words(look(cluster(bundle(stats=WIDE, averages=by_bytes)), times=9)) == [(A, "hits", [])]
    both = BundleStats(msg_rate_in=40_000, msg_throughput_in=200 * MIB, topics=5)
    assert words(look(cluster(bundle(stats=both, averages=by_bytes)), times=9)) == [(A, "hits", [])]
    one = BundleAverages(long=MessageAverage(msg_rate_in=20_000, msg_throughput_in=150 * MIB, samples=60))
    assert words(look(cluster(bundle(stats=both, averages=one)), times=9)) == [(A, "MsgRate", [0x40000000])]


def test_hits_count_in_a_row_only() -> None:
    memory = look(cluster(bundle()), times=3).memory
    assert memory["hits"] == {A: 3}
    calm = look(cluster(bundle(stats=BundleStats(topics=5))), memory)
    assert (words(calm), calm.memory["hits"]) == ([], {})
    unseen = look(cluster(bundle(stats=None)), memory)
    assert (words(unseen), unseen.memory["hits"]) == ([(A, "no-stats", [])], {})
    assert words(look(cluster(bundle(stats=None)))) == []
    assert look(cluster(bundle(B)), memory).memory["hits"] == {B: 1}


@pytest.mark.parametrize(
    "broken", [None, 3, [], {"hits": None}, {"hits": {A: "x", B: -1, "c": True}}, {"lineage": {A: 1}}]
)
def test_memory_that_cannot_be_read_is_forgotten(broken: Any) -> None:
    memory = broken if isinstance(broken, dict) else {"hits": broken, "lineage": broken}
    assert look(cluster(bundle()), memory).memory["hits"] == {A: 1}


@pytest.mark.parametrize(
    ("bundle", "word"),
    [
        (bundle(in_flight=True), "in-flight"),
        (bundle(estimated=True), "estimated"),
        (bundle(stats=BundleStats(topics=1, msg_rate_in=1e6)), "few-topics"),
        (bundle(stats=BundleStats(topics=0, msg_rate_in=1e6)), "few-topics"),
        (bundle("t/n/0x00000004_0x00000005"), "too-narrow"),
        (bundle("t/n/0xfffffffe_0xffffffff"), "too-narrow"),
        (bundle("t/n"), "bad-name"),
        (bundle(stats=BundleStats(topics=2, msg_rate_in=nan)), "bad-load"),
        (bundle(stats=BundleStats(topics=2, msg_throughput_out=inf)), "bad-load"),
        (bundle(stats=BundleStats(topics=2, msg_rate_in=-1e9, msg_rate_out=1e12)), "bad-load"),
        (bundle(stats=BundleStats(topics=-5, msg_rate_in=1e9)), "bad-load"),
    ],
)
def test_left_whole_with_a_word(bundle: Bundle, word: str) -> None:
    assert words(look(cluster(bundle), hit_threshold=0)) == [(bundle.name, word, [])]


def test_bad_averages_are_seen_where_they_count() -> None:
    bad = bundle(averages=BundleAverages(MessageAverage(nan), MessageAverage(nan)))
    assert words(look(cluster(bad), hit_threshold=0)) == [(A, "MsgRate", [0x40000000])]
    assert words(look(cluster(bad), hit_threshold=0, measure="long")) == [(A, "bad-load", [])]


def test_a_cluster_that_must_be_left_alone() -> None:
    splits = look(cluster(bundle(), safe="no quorum"), {"hits": {A: 9}})
    assert (words(splits), splits.why) == ([], "the cluster is left alone: no quorum")
    assert splits.memory["hits"] == {A: 9}


def test_a_broker_looks_at_its_own() -> None:
    base = cluster(bundle(A), bundle(B, owner="c"))
    assert words(look(base, hit_threshold=0, broker="c")) == [(B, "MsgRate", [0xC0000000])]
    assert words(look(cluster(bundle(owner=None)), hit_threshold=0)) == []


def test_the_hottest_first_and_caps() -> None:
    names = [f"t/n{number}/0x00000000_0x80000000" for number in range(4)]
    rates = [31_000, 90_000, 60_000, 90_000]
    base = cluster(
        *(bundle(name, BundleStats(msg_rate_in=rate, topics=2)) for name, rate in zip(names, rates, strict=True))
    )
    splits = look(base, hit_threshold=0, max_per_cycle=2)
    assert words(splits) == [
        (names[1], "MsgRate", [0x40000000]),
        (names[3], "MsgRate", [0x40000000]),
        (names[0], "cycle-full", []),
        (names[2], "cycle-full", []),
    ]
    assert splits.memory["hits"] == {names[0]: 1, names[2]: 1}, "they stay ready"
    assert len(look(base, hit_threshold=0, max_per_cycle=0).plans) == 4
    upstream = look(base, hit_threshold=0, max_per_cycle=2, upstream=True)
    assert words(upstream) == [(names[0], "MsgRate", [0x40000000]), (names[1], "MsgRate", [0x40000000])]


def test_a_namespace_has_so_many_bundles_planned_ones_counted() -> None:
    base = cluster(bundle(A), bundle(B, BundleStats(msg_rate_in=90_000, topics=2)))
    for upstream, first in ((False, B), (True, A)):
        splits = look(base, hit_threshold=0, max_bundles=3, upstream=upstream)
        assert [(plan.bundle, plan.reason) for plan in splits.plans if plan.positions] == [(first, "MsgRate")]
        assert [plan.reason for plan in splits.plans if not plan.positions] == ["namespace-full"]
        assert len(splits.memory["hits"]) == 1


def test_several_cuts_at_once_and_as_many_as_there_is_room_for() -> None:
    topics = tuple(TopicLoad(f"x{n}", n << 24, 29_000.0) for n in range(4))
    base = cluster(bundle(stats=BundleStats(msg_rate_in=116_000, topics=4), topics=topics))
    flow = SplitFlowOrQps(SplitFlowOrQpsSettings())
    cuts = [0x00800001, 0x01800001, 0x02800001]
    assert words(look(base, algorithm=flow, hit_threshold=0)) == [(A, "MsgRate", cuts)]
    assert words(look(base, algorithm=flow, hit_threshold=0, max_bundles=2)) == [(A, "MsgRate", [cuts[1]])]
    # Upstream issue 22254: several cuts are refused, the bundle stays hot for ever.
    old = SplitFlowOrQps(SplitFlowOrQpsSettings(upstream=True))
    assert words(look(base, algorithm=old, hit_threshold=0, upstream=True)) == [(A, "no-positions", [])]


@pytest.mark.parametrize(
    ("cuts", "most", "expected"),
    [([1, 2, 3], 3, [1, 2, 3]), ([1, 2, 3], 1, [2]), ([1, 2, 3, 4, 5], 2, [2, 4]), ([1, 2, 3, 4], 3, [1, 3, 4])],
)
def test_fewer_cuts_are_spread(cuts: list[int], most: int, expected: list[int]) -> None:
    assert fewer(cuts, most) == expected


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        ([], "no-positions"),
        ([0], "algorithm-failed"),
        ([0x80000000], "algorithm-failed"),
        ([5, 5], "algorithm-failed"),
        ([1.5], "algorithm-failed"),
        (None, "algorithm-failed"),
        ([nan], "algorithm-failed"),
        (["0x10"], "algorithm-failed"),
        (ValueError("oops"), "algorithm-failed"),
    ],
)
def test_a_bad_answer_costs_one_bundle(answer: Any, word: str) -> None:
    base = cluster(bundle(A))
    splits = look(base, algorithm=Fixed(answer), hit_threshold=0)
    assert words(splits) == [(A, word, [])]
    assert splits.memory["hits"] == {A: 1}


def test_upstream_loses_the_cycle_where_a_cut_is_not_inside() -> None:
    """Topics on hashes 0 and 1: upstream's topic count answers 0, the bundle's own end."""
    bad = tuple(TopicLoad(f"x{n}", n) for n in (0, 1))
    good = tuple(TopicLoad(f"x{n}", n) for n in (0x80000010, 0x80000020))
    first, second = "s/n/0x80000000_0xffffffff", A
    base = cluster(bundle(first, topics=good), bundle(second, topics=bad))
    old = SplitTopicCount(SplitTopicCountSettings(upstream=True))
    lost = look(base, algorithm=old, hit_threshold=0, upstream=True)
    assert words(lost) == [(A, "algorithm-failed", [])]
    assert lost.plans[0].why.endswith("upstream's cycle ends here, 1 splits are lost")
    ours = look(base, algorithm=SplitTopicCount(SplitTopicCountSettings()), hit_threshold=0)
    assert words(ours) == [(first, "MsgRate", [0x80000018]), (A, "MsgRate", [1])]


def test_upstream_s_limit_overflows() -> None:
    """2,048 MiB are -2^31 in 32 bits: every bundle of two topics exceeds it."""
    calm = cluster(bundle(stats=BundleStats(topics=2)))
    assert words(look(calm, hit_threshold=0, upstream=True, max_bandwidth_mib=2048)) == [(A, "Bandwidth", [0x40000000])]
    assert words(look(calm, hit_threshold=0, upstream=True, max_bandwidth_mib=2047)) == []
    assert words(look(calm, hit_threshold=0, max_bandwidth_mib=2048)) == []


def test_a_hot_topic_with_something_beside_it_is_parted() -> None:
    topics = (TopicLoad("hot", 0x10, 38_000.0), TopicLoad("rest", 0x70000000, 3_000.0))
    base = cluster(bundle(stats=BundleStats(msg_rate_in=41_000, topics=2), topics=topics))
    assert words(look(base, hit_threshold=0)) == [(A, "MsgRate", [0x40000000])]
    assert words(look(base, hit_threshold=0, worth_percent=11)) == [(A, "hot-topic", [])]


def test_one_hot_topic_of_which_nobody_knows_is_not_split_for_ever() -> None:
    """All traffic is at hash 0x5; figures by topic are missing. Three splits in vain, then it stays."""
    base, memory, done = cluster(bundle(stats=BundleStats(msg_rate_in=40_000, topics=100))), {}, []
    for _ in range(8):
        splits = look(base, memory, hit_threshold=0)
        memory = dict(splits.memory)
        done.append([(plan.reason, len(plan.positions)) for plan in splits.plans])
        base = with_children(base, splits.plans)
        measured = {}
        for name in base.bundles:
            lower = int(name.rpartition("/")[2][2:10], 16)
            rate = 40_000 if lower == 0 else 0
            measured[name] = Bundle(name, "b", stats=BundleStats(msg_rate_in=rate, topics=50))
        base = Cluster(base.brokers, measured)
    assert done == [*[[("MsgRate", 1)]] * 3, *[[("hot-spot", 0)]] * 5]
    assert len(base.bundles) == 4
    assert "3 splits in a row took less than 10% off" in splits.plans[0].why


def test_a_split_that_helped_starts_anew() -> None:
    hot = cluster(bundle(stats=BundleStats(msg_rate_in=80_000, topics=100)))
    memory = look(hot, hit_threshold=0, fruitless_max=1).memory
    child = "t/n/0x00000000_0x40000000"
    assert memory["lineage"][child] == {"parent": A, "reason": "MsgRate", "size": 80_000.0, "vain": 0}
    helped = look(
        cluster(bundle(child, BundleStats(msg_rate_in=72_000, topics=50))), memory, hit_threshold=0, fruitless_max=1
    )
    assert words(helped) == [(child, "MsgRate", [0x20000000])]
    vain = look(
        cluster(bundle(child, BundleStats(msg_rate_in=72_001, topics=50))), memory, hit_threshold=0, fruitless_max=1
    )
    assert words(vain) == [(child, "hot-spot", [])]


def test_ancestry_is_kept_as_long_as_it_is_of_use() -> None:
    memory = look(cluster(bundle()), hit_threshold=0).memory
    children = ["t/n/0x00000000_0x40000000", "t/n/0x40000000_0x80000000"]
    assert sorted(memory["lineage"]) == children
    split = look(cluster(bundle(children[0], BundleStats(topics=2))), memory)
    assert sorted(split.memory["lineage"]) == children[:1]
    assert look(cluster(bundle(B, None)), memory).memory["lineage"] == {}


def test_plans_are_plain() -> None:
    plan = look(cluster(bundle()), hit_threshold=0).plans[0]
    assert (plan.bundle, plan.positions, plan.reason) == (A, [0x40000000], "MsgRate")
