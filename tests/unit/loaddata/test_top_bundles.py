"""Which bundles are told, in which order (upstream `TopKBundles`)."""

import math

import pytest

from loaddata.model.bundle_load import (
    RECENT_SAMPLES,
    BundleAverages,
    BundleStats,
    LocalBundle,
    MessageAverage,
    TimedAverages,
    TopRules,
    heaviest_first,
    order_of,
    top_bundles,
)


def local(throughput_in: float = 0.0, **more: float) -> LocalBundle:
    return LocalBundle(BundleStats(msg_throughput_in=throughput_in, **more))  # type: ignore[arg-type]


def name(number: int, namespace: str = "t/n") -> str:
    return f"{namespace}/0x{number:08x}_0x{number + 1:08x}"


@pytest.mark.parametrize(
    ("stats", "key"),
    [
        (BundleStats(), (0, 0, 0, 0, 0)),
        (BundleStats(msg_throughput_in=49_999), (0, 0, 0, 0, 0)),
        (BundleStats(msg_throughput_in=50_000), (1, 0, 0, 0, 0)),  # Math.round goes up at the half
        (BundleStats(msg_throughput_in=150_000, msg_throughput_out=149_999), (2, 1, 0, 0, 0)),
        (BundleStats(msg_rate_in=30, msg_rate_out=20), (0, 0, 1, 0, 0)),
        (BundleStats(topics=200, consumers=200, producers=99), (0, 0, 0, 0, 0)),
        (BundleStats(topics=200, consumers=200, producers=100), (0, 0, 0, 1, 0)),  # whole numbers are cut
        (BundleStats(cache_size_bytes=199_999), (0, 0, 0, 0, 1)),
    ],
)
def test_order_by_buckets(stats: BundleStats, key: tuple[int, ...]) -> None:
    assert order_of(stats) == key


def test_the_heaviest_are_told_the_lightest_of_them_first() -> None:
    bundles = {name(number): local(number * 1e6) for number in range(1, 16)}
    result = top_bundles(bundles, TopRules(count_max=3))
    assert [item.name for item in result] == [name(13), name(14), name(15)]
    assert [bundle.name for bundle in heaviest_first(result)] == [name(15), name(14), name(13)]
    assert len(top_bundles(bundles, TopRules(count_max=0))) == 15


def test_the_heaviest_by_each_resource_are_reported_as_well() -> None:
    bundles = {name(number): local(number * 1e6) for number in range(1, 6)}
    bundles |= {
        name(6): local(1.0, msg_rate_in=9_000.0),
        name(7): local(2.0, msg_rate_in=5_000.0),
        name(8): local(3.0, msg_throughput_out=9e6),
        name(9): local(4.0, msg_throughput_out=5e6),
    }
    chosen = top_bundles(bundles, TopRules(count_max=2, by_resource_max=1))
    assert [item.name for item in chosen] == [name(6), name(8), name(4), name(5)]
    assert len(top_bundles(bundles, TopRules(count_max=2, by_resource_max=2))) == 6
    assert len(top_bundles(bundles, TopRules(count_max=2))) == 2


def test_newcomers_are_reported_as_well_the_heaviest_of_them() -> None:
    def served(amount: float, samples: int) -> LocalBundle:
        average = MessageAverage(samples=samples)
        return LocalBundle(BundleStats(msg_throughput_in=amount), TimedAverages(BundleAverages(average, average)))

    bundles = {name(number): served(number * 1e6, 1_000) for number in range(1, 6)}
    bundles |= {name(6): served(2e5, RECENT_SAMPLES - 1), name(7): served(1e5, 3), name(8): served(3e5, RECENT_SAMPLES)}
    chosen = top_bundles(bundles, TopRules(count_max=2, recent_max=1))
    assert [item.name for item in chosen] == [name(6), name(4), name(5)]
    assert len(top_bundles(bundles, TopRules(count_max=2, recent_max=5))) == 4


def test_equals_are_told_apart_by_name_whatever_the_order_of_the_dictionary() -> None:
    bundles = {name(number): local(1e6) for number in (3, 1, 2)}
    backwards = dict(reversed(bundles.items()))
    result = top_bundles(bundles, TopRules(count_max=2))
    assert result == top_bundles(backwards, TopRules(count_max=2))
    assert [item.name for item in result] == [name(2), name(3)]


def test_what_is_left_out() -> None:
    bundles = {
        name(1): local(1e6),
        name(2): local(0.0, msg_rate_in=5.0),  # without throughput
        name(3): local(math.nan),
        name(4, "pulsar/any"): local(1e6),
        name(5, "t/excluded"): local(1e6),
        name(6, "t/isolated"): local(1e6),
    }
    rules = TopRules(excluded=frozenset({"t/excluded"}))

    def has_policy(namespace: str) -> bool:
        return namespace == "t/isolated"

    assert {bundle.name for bundle in top_bundles(bundles, rules, has_policy)} == {name(1)}
    wide = TopRules(with_policies=True, idle=True)
    expected = {name(1), name(2), name(5, "t/excluded"), name(6, "t/isolated")}
    assert {bundle.name for bundle in top_bundles(bundles, wide, has_policy)} == expected
