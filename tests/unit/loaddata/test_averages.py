"""Averages over time: upstream's step computed by hand, and steps that come from the clock, not from whoever looks."""

import math

import pytest

from loaddata.model.bundle_load import (
    LONG_SAMPLES,
    SHORT_SAMPLES,
    UNSEEN,
    BundleAverages,
    BundleStats,
    MessageAverage,
    SampleClock,
    TimedAverages,
    continued,
    is_sound,
    pushed,
    pushed_both,
)


def stats(rate: float) -> BundleStats:
    return BundleStats(rate, 2 * rate, 3 * rate, 4 * rate)


def test_the_first_sample_replaces_the_default_whole() -> None:
    assert pushed(UNSEEN, stats(7), 10) == MessageAverage(7, 14, 21, 28, 1)


@pytest.mark.parametrize(
    ("window", "samples", "average"),
    [
        (10, [10, 20], 15),  # (1*10 + 20) / 2
        (10, [10, 20, 60], 30),  # (2*15 + 60) / 3
        (2, [10, 20, 60], 37.5),  # full at 2: (1*15 + 60) / 2
        (2, [10, 20, 60, 0], 18.75),  # (1*37.5 + 0) / 2
        (1, [10, 20], 20),  # a window of one is the last sample
    ],
)
def test_a_mean_until_the_window_is_full_and_a_moving_average_from_then_on(
    window: int, samples: list[float], average: float
) -> None:
    result = MessageAverage()
    for sample in samples:
        result = pushed(result, stats(sample), window)
    assert result == MessageAverage(average, 2 * average, 3 * average, 4 * average, min(window, len(samples)))


def test_both_windows_take_each_sample() -> None:
    averages = BundleAverages()
    for _ in range(1_005):
        averages = pushed_both(averages, stats(1))
    assert (averages.short.samples, averages.long.samples) == (SHORT_SAMPLES, LONG_SAMPLES) == (10, 1_000)


def test_an_average_goes_on_on_another_broker() -> None:
    kept = MessageAverage(100, 100, 100, 100, 8)
    fresh = MessageAverage(200, 200, 200, 200, 4)
    assert continued(kept, fresh, 10) == MessageAverage(140, 140, 140, 140, 10)  # (6*100 + 4*200) / 10
    assert continued(UNSEEN, fresh, 10) == fresh
    assert continued(kept, UNSEEN, 10) == kept
    full = MessageAverage(1, 1, 1, 1, 10)
    assert continued(kept, full, 10) == full


CLOCK = SampleClock(interval_s=5.0, catch_up_max=3)


@pytest.mark.parametrize(
    ("sampled_s", "now_s", "due"),
    [
        (None, 7.0, (1, 7.0)),
        (10.0, 14.9, (0, 10.0)),
        (10.0, 15.0, (1, 15.0)),
        (10.0, 15.0 - 1e-10, (1, 15.0)),
        (10.0, 22.0, (2, 20.0)),  # the remaining 2 s count towards the next
        (10.0, 1_000.0, (3, 1_000.0)),
        (10.0, 9.0, (0, 10.0)),
        (10.0, math.nan, (0, 10.0)),
        (10.0, math.inf, (0, 10.0)),
    ],
)
def test_samples_that_are_due(sampled_s: float | None, now_s: float, due: tuple[int, float]) -> None:
    assert CLOCK.due(sampled_s, now_s) == due


def test_looking_often_takes_no_more_samples_than_looking_seldom() -> None:
    often, seldom = TimedAverages(), TimedAverages()
    for tick in range(101):
        often = often.advanced(stats(1), tick * 0.5, CLOCK)
        if tick % 20 == 0:
            seldom = seldom.advanced(stats(1), tick * 0.5, CLOCK)
    assert often.averages.long.samples == seldom.averages.long.samples == 11


def test_an_unsound_reading_lets_time_pass_without_a_sample() -> None:
    good = TimedAverages().advanced(stats(5), 0.0, CLOCK)
    bad = good.advanced(stats(math.nan), 10.0, CLOCK)
    assert bad.averages == good.averages
    assert (bad.refused, bad.sampled_s) == (2, 10.0)
    assert bad.advanced(stats(5), 15.0, CLOCK).averages.short == MessageAverage(5, 10, 15, 20, 2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"msg_rate_in": math.nan},
        {"msg_rate_out": math.inf},
        {"msg_throughput_in": -1.0},
        {"msg_throughput_out": 1e300},
        {"topics": -1},
        {"topics": 10**400},
        {"consumers": True},
        {"producers": 1.5},
        {"cache_size_bytes": "7"},
        {"msg_rate_in": None},
    ],
)
def test_figures_that_are_none(wrong: dict[str, object]) -> None:
    assert is_sound(BundleStats())
    assert not is_sound(BundleStats(**wrong))  # type: ignore[arg-type]
