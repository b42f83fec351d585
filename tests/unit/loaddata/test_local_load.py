"""Readings become a load: bundles that come and go, junk, samples by time."""

import math

import pytest

from loaddata.measure.local_load import LocalLoad
from loaddata.model.broker_load import HostUsage, ResourceUsage
from loaddata.model.bundle_load import UNSEEN, BundleStats, SampleClock
from loaddata.model.figures import LATEST_MS
from loaddata.source import MeasuredBundle

A, B = "t/n/0x00000000_0x80000000", "t/n/0x80000000_0xffffffff"
HALF = HostUsage(cpu=ResourceUsage(50, 100))


def bundle(rate: float, **more: object) -> MeasuredBundle:
    return MeasuredBundle(BundleStats(rate, rate, rate, rate, topics=1), **more)  # type: ignore[arg-type]


@pytest.fixture
def local() -> LocalLoad:
    return LocalLoad(clock=SampleClock(5.0, 10), bundles_max=3)


def test_a_reading(local: LocalLoad) -> None:
    load = local.measured(HALF, {A: bundle(1), B: bundle(2, non_persistent=True)}, now_s=0.0, now_ms=9)
    assert (load.msg_rate_in, load.bundles, load.topics, load.updated_at_ms) == (3, 2, 2, 9)
    assert load.weighted_max_ema == 0.5
    assert local.bundles[B].non_persistent
    assert local.bundles[A].timed.averages.short.msg_rate_in == 1
    assert (local.reading, local.measured_s) == (1, 0.0)
    assert not any(local.dropped.values())


def test_averages_advance_by_time(local: LocalLoad) -> None:
    for tick in range(41):
        local.measured(HALF, {A: bundle(1)}, now_s=tick * 0.5, now_ms=1)
    assert local.bundles[A].timed.averages.short.samples == 5
    full = HostUsage(cpu=ResourceUsage(100, 100))
    assert local.measured(full, {A: bundle(1)}, now_s=24.9, now_ms=1).weighted_max_ema == 0.5
    assert local.measured(full, {A: bundle(1)}, now_s=25.0, now_ms=1).weighted_max_ema == pytest.approx(0.55)


def test_a_bundle_that_leaves_is_forgotten_and_one_that_comes_begins_anew(local: LocalLoad) -> None:
    local.measured(HALF, {A: bundle(1)}, now_s=0.0, now_ms=1)
    local.measured(HALF, {B: bundle(2)}, now_s=5.0, now_ms=1)
    assert set(local.bundles) == {B}
    assert local.bundles[B].timed.averages.short.samples == 1


def test_junk_is_left_out_and_counted(local: LocalLoad) -> None:
    local.measured(HALF, {A: bundle(1)}, now_s=0.0, now_ms=1)
    readings = {A: bundle(math.nan), "nonsense": bundle(1), 7: bundle(1), B: None}
    usage = HostUsage(cpu=ResourceUsage(math.nan, 100), memory=ResourceUsage(-1, 1))
    load = local.measured(usage, readings, now_s=5.0, now_ms=-1)  # type: ignore[arg-type]
    expected = {"bundle-figures": 1, "bundle-name": 3, "host-figures": 2, "clock": 1}
    assert {why: count for why, count in local.dropped.items() if count} == expected
    assert (load.cpu, load.bundles, load.msg_rate_in, load.updated_at_ms) == (HALF.cpu, 1, 0, 1)
    assert local.bundles[A].timed.averages.short.msg_rate_in == 1, "its average waits"
    assert local.bundles[A].timed.averages.short.samples == 1


def test_no_more_bundles_than_there_is_room_for(local: LocalLoad) -> None:
    many = {f"t/n/0x{number:08x}_0x{number + 1:08x}": bundle(1) for number in (4, 3, 2, 1, 0)}
    assert local.measured(HALF, many, now_s=0.0, now_ms=1).bundles == 3
    assert sorted(local.bundles) == sorted(many)[:3]
    assert local.dropped["too-many-bundles"] == 2


def test_a_clock_behind_all_calendars(local: LocalLoad) -> None:
    assert local.measured(HALF, {}, now_s=0.0, now_ms=10**18).updated_at_ms == LATEST_MS
    assert local.dropped["clock"] == 1


def test_a_bundle_that_was_never_sound_has_upstreams_default(local: LocalLoad) -> None:
    local.measured(HALF, {A: bundle(-1.0)}, now_s=0.0, now_ms=1)
    assert local.bundles[A].timed.averages.long == UNSEEN
