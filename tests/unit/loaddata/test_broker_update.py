"""A broker's load from readings, computed by hand from upstream's formulas."""

import math

import pytest

from loaddata.model.broker_load import (
    BrokerLoad,
    BrokerTraffic,
    HostUsage,
    PeakWindow,
    ResourceUsage,
    ResourceWeights,
    UpdateRules,
    max_resource_usage,
    updated,
)
from loaddata.model.bundle_load import BundleStats

RULES = UpdateRules()
USAGE = HostUsage(
    cpu=ResourceUsage(80, 400),  # 20 %
    memory=ResourceUsage(900, 1_000),  # 90 %
    direct_memory=ResourceUsage(50, 100),  # 50 %
    bandwidth_in=ResourceUsage(300, 1_000),  # 30 %
    bandwidth_out=ResourceUsage(400, 1_000),  # 40 %
)
TRAFFIC = BrokerTraffic(10, 20, 1_000, 3_000, bundles=2, topics=7)


def test_the_first_update_takes_the_figures_as_they_are() -> None:
    load = updated(BrokerLoad(), USAGE, TRAFFIC, samples=3, now_ms=5, rules=RULES)
    assert load.max_resource_usage == pytest.approx(0.5)  # direct memory; memory is left out
    assert load.weighted_max_ema == load.weighted_max(RULES.weights) == pytest.approx(0.4)  # bandwidth out
    assert load.msg_throughput_ema == 4_000
    assert (load.msg_rate, load.msg_throughput, load.bundles, load.topics) == (30, 4_000, 2, 7)
    assert (load.updated_at_ms, load.reported_at_ms) == (5, 0)


@pytest.mark.parametrize(
    ("samples", "weighted", "throughput"),
    [
        (0, 0.4, 4_000),
        (1, 0.9 * 0.4 + 0.1 * 0.8, 0.9 * 4_000 + 0.1 * 8_000),
        (2, 0.9 * 0.44 + 0.1 * 0.8, 0.9 * 4_400 + 0.1 * 8_000),
    ],
)
def test_moving_averages_take_one_step_for_each_sample(samples: int, weighted: float, throughput: float) -> None:
    first = updated(BrokerLoad(), USAGE, TRAFFIC, samples=1, now_ms=1, rules=RULES)
    doubled = USAGE._replace(bandwidth_out=ResourceUsage(800, 1_000))
    second = updated(first, doubled, BrokerTraffic(0, 0, 4_000, 4_000), samples=samples, now_ms=2, rules=RULES)
    assert second.weighted_max_ema == pytest.approx(weighted)
    assert second.msg_throughput_ema == pytest.approx(throughput)
    assert second.max_resource_usage == pytest.approx(0.8)


def test_weights() -> None:
    load = updated(BrokerLoad(), USAGE, TRAFFIC, samples=1, now_ms=1, rules=RULES)
    assert load.weighted_max(ResourceWeights(1, 1, 1, 1, 1)) == pytest.approx(0.9)
    assert load.weighted_max(ResourceWeights(3, 0, 0, 0, 0)) == pytest.approx(0.6)


def test_percentages_are_in_single_precision_as_upstreams() -> None:
    assert ResourceUsage(1, 3).percent == 33.333335876464844  # (1f / 3f) * 100 in Java; 33.333333333333336 in doubles
    assert max_resource_usage(BrokerLoad(cpu=ResourceUsage(1, 3))) == 0.33333335876464843
    assert ResourceUsage(5, 0).percent == 0
    assert ResourceUsage(150, 100).percent == 150
    assert ResourceUsage(1, 1e-300).percent == math.inf
    assert ResourceUsage(0, 1e-300).percent == 0


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0])
def test_a_resource_that_is_not_sound_keeps_its_last_reading(wrong: float) -> None:
    first = updated(BrokerLoad(), USAGE, TRAFFIC, samples=1, now_ms=1, rules=RULES)
    broken = HostUsage(
        cpu=ResourceUsage(wrong, 400),
        memory=ResourceUsage(1, wrong),
        direct_memory=ResourceUsage(wrong, wrong),
        bandwidth_in=ResourceUsage(100, 1_000),
        bandwidth_out=ResourceUsage(1, 1e-300),
    )
    second = updated(first, broken, TRAFFIC, samples=1, now_ms=2, rules=RULES)
    assert (second.cpu, second.memory, second.direct_memory) == (first.cpu, first.memory, first.direct_memory)
    assert second.bandwidth_in.usage == 100
    assert second.bandwidth_out == first.bandwidth_out
    assert math.isfinite(second.weighted_max_ema)


def test_a_fresh_load_is_full() -> None:
    assert (BrokerLoad().max_resource_usage, BrokerLoad().weighted_max_ema) == (1.0, 1.0)


def test_sums_leave_out_what_is_not_sound_and_count_it() -> None:
    bundles = [BundleStats(1, 2, 3, 4, 5), BundleStats(math.nan), BundleStats(10, 20, 30, 40, 50)]
    assert BrokerTraffic.of(bundles) == BrokerTraffic(11, 22, 33, 44, bundles=3, topics=55, unsound=1)
    assert BrokerTraffic.of(reversed(bundles)) == BrokerTraffic.of(bundles)


def _peaks(usages: list[float], samples: int = 1) -> tuple[float, float]:
    window, load = PeakWindow(), BrokerLoad()
    for usage in usages:
        load = window.added(BrokerLoad(cpu=ResourceUsage(usage, 1.0), direct_memory=ResourceUsage(9.0, 10.0)), samples)
    return load.peak_usage, load.peak_share


def test_a_peak_needs_five_minutes_and_lasts_ten() -> None:
    assert _peaks([0.5] * 59) == (0.0, 0.0)
    assert _peaks([0.5] * 60) == (0.5, 1.0)
    assert _peaks([0.5] * 15, samples=4) == (0.5, 1.0)  # a reading counts for the time that has passed
    assert _peaks([0.8] + [0.4] * 119) == (pytest.approx(0.8), pytest.approx(1 / 120))
    assert _peaks([0.8] + [0.4] * 120) == (pytest.approx(0.4), 1.0)


def test_samples_near_the_highest_are_at_the_peak() -> None:
    assert _peaks([0.45, 0.449, 0.44] * 40)[1] == pytest.approx(2 / 3)


def test_without_a_usage_there_is_no_peak() -> None:
    assert _peaks([0.0] * 200) == (0.0, 0.0)
    assert _peaks([1e300] * 200) == (0.0, 0.0)
