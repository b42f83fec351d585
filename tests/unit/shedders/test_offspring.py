"""Children of a split: what they get of their parent, marked, and in its place at once."""

from math import nan

import pytest

from loaddata.model.bundle_load import UNSEEN, BundleAverages, BundleStats, MessageAverage
from shedders.model.cluster import Broker, Bundle, Cluster, TopicLoad
from shedders.model.cuts import CannotSplitError
from shedders.model.moved_cluster import offspring, with_children, with_estimates
from shedders.model.plan import SplitPlan

NAME = "t/n/0x00000000_0x00000080"


def topic(position: int, rate: float, throughput: float = 0.0) -> TopicLoad:
    return TopicLoad(f"persistent://t/n/{position}", position, rate, 0.0, throughput, 0.0)


def averages(rate: float, throughput: float = 0.0) -> BundleAverages:
    average = MessageAverage(rate, 0.0, throughput, 0.0, 10)
    return BundleAverages(average, MessageAverage(rate * 2, 0.0, throughput * 2, 0.0, 1000))


def test_worked_example_of_the_docstring() -> None:
    stats = BundleStats(msg_rate_in=100.0, topics=3, consumers=10)
    topics = (topic(0x10, 30), topic(0x20, 10), topic(0x70, 60))
    parent = Bundle(NAME, "b", stats=stats, averages=averages(200.0), topics=topics, rank=3)
    first, second = offspring(parent, [0x40])
    assert (first.name, second.name) == ("t/n/0x00000000_0x00000040", "t/n/0x00000040_0x00000080")
    assert first.stats == BundleStats(msg_rate_in=40.0, topics=2, consumers=7)
    assert second.stats == BundleStats(msg_rate_in=60.0, topics=1, consumers=3)
    assert [item.averages.short.msg_rate_in for item in (first, second)] == [80.0, 120.0]
    assert [item.averages.long.msg_rate_in for item in (first, second)] == [160.0, 240.0]
    assert [item.averages.short.samples for item in (first, second)] == [0, 0]
    assert (first.topics, second.topics) == (topics[:2], topics[2:])
    assert [(item.owner, item.estimated, item.in_flight, item.rank) for item in (first, second)] == [
        ("b", True, False, 3)
    ] * 2


def test_each_measure_has_its_own_shares() -> None:
    """All messages at 0x10, all bytes at 0x70; sent: nothing known, so by halves."""
    stats = BundleStats(msg_rate_in=100.0, msg_throughput_in=1000.0, msg_rate_out=8.0, topics=2)
    parent = Bundle(NAME, "b", stats=stats, topics=(topic(0x10, 5, 0), topic(0x70, 0, 7)))
    first, second = (bundle.stats for bundle in offspring(parent, [0x40]))
    assert (first.msg_rate_in, second.msg_rate_in) == (100.0, 0.0)
    assert (first.msg_throughput_in, second.msg_throughput_in) == (0.0, 1000.0)
    assert (first.msg_rate_out, second.msg_rate_out) == (4.0, 4.0)


def test_without_topics_by_the_width_of_the_range() -> None:
    stats = BundleStats(msg_rate_in=80.0, topics=5, producers=2)
    parent = Bundle(NAME, "b", stats=stats, averages=averages(40.0))
    halves = offspring(parent, [0x40])
    assert [half.stats.msg_rate_in for half in halves if half.stats] == [40.0, 40.0]
    assert [half.stats.topics for half in halves if half.stats] == [3, 2]
    parts = offspring(parent, [0x20, 0x40])
    assert [part.stats.msg_rate_in for part in parts if part.stats] == [20.0, 20.0, 40.0]
    assert [part.averages.short.msg_rate_in for part in parts] == [10.0, 10.0, 20.0]


def test_topics_known_in_part_share_what_is_known() -> None:
    parent = Bundle(NAME, "b", stats=BundleStats(msg_rate_in=90.0, topics=6), topics=(topic(1, 20), topic(0x70, 10)))
    first, second = (bundle.stats for bundle in offspring(parent, [0x40]))
    assert (first.msg_rate_in, second.msg_rate_in) == (60.0, 30.0)
    assert (first.topics, second.topics) == (3, 3)


def test_what_nobody_measured_or_cannot_be_is_not_handed_on() -> None:
    unseen = offspring(Bundle(NAME, "b"), [0x40])
    assert [broker.stats for broker in unseen] == [None, None]
    assert [broker.averages.short for broker in unseen] == [UNSEEN, UNSEEN]
    bad = Bundle(
        NAME, "b", stats=BundleStats(msg_rate_in=nan, topics=2), averages=BundleAverages(MessageAverage(nan, samples=3))
    )
    assert [(bundle.stats, bundle.averages.short) for bundle in offspring(bad, [0x40])] == [(None, UNSEEN)] * 2
    odd = Bundle(NAME, "b", stats=BundleStats(msg_rate_in=4.0, topics=2), topics=(topic(1, nan), topic(0x70, 3)))
    assert [bundle.stats.msg_rate_in for bundle in offspring(odd, [0x40]) if bundle.stats] == [0.0, 4.0]


@pytest.mark.parametrize("positions", [[], [0], [0x80], [0x40, 0x40], [0x1000]])
def test_positions_are_checked(positions: list[int]) -> None:
    with pytest.raises(CannotSplitError):
        offspring(Bundle(NAME, "b"), positions)


def test_children_take_their_parent_s_place() -> None:
    other = Bundle("t/n/0x00000080_0x00000100", "b")
    cluster = Cluster({"b": Broker("b")}, {item.name: item for item in (Bundle(NAME, "b"), other)})
    plans = [
        SplitPlan(NAME, (0x40,), "MsgRate", ""),
        SplitPlan(other.name, (), "hits", ""),
        SplitPlan("gone", (5,), "", ""),
    ]
    after = with_children(cluster, plans)
    assert sorted(after.bundles) == ["t/n/0x00000000_0x00000040", "t/n/0x00000040_0x00000080", other.name]
    assert [item.name for item in after.bundles_of["b"]] == sorted(after.bundles)
    assert NAME in cluster.bundles, "the cluster before is as it was"


def test_estimates_stand_in_until_somebody_measures() -> None:
    parent = Bundle(NAME, "b", stats=BundleStats(msg_rate_in=80.0, topics=4), averages=averages(40.0))
    estimates = {subject.name: subject for subject in offspring(parent, [0x40])}
    first, second = sorted(estimates)
    measured = Bundle(second, "c", stats=BundleStats(msg_rate_in=1.0))
    channel = {first: Bundle(first, "c", in_flight=True), second: measured}
    cluster = with_estimates(Cluster({"b": Broker("b")}, channel), {**estimates, "gone": parent})
    assert cluster.bundles[second] is measured
    bundle = cluster.bundles[first]
    assert (bundle.owner, bundle.in_flight, bundle.estimated) == ("c", True, True)
    assert bundle.stats == BundleStats(msg_rate_in=40.0, topics=2)
    assert sorted(cluster.bundles) == [first, second]
    unchanged = Cluster({}, {second: measured})
    assert with_estimates(unchanged, estimates) is unchanged
