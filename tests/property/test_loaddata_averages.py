"""Averages depend on what was measured and when, not on who looks; sums not on order."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaddata.model.broker_load import BrokerTraffic
from loaddata.model.bundle_load import (
    BundleStats,
    LocalBundle,
    MessageAverage,
    SampleClock,
    TimedAverages,
    TopRules,
    continued,
    pushed,
    top_bundles,
)
from loaddata.view.ownership import OwnChanges
from loaddata.view.table_view import Expiry, ExpiryRules

RATES = st.floats(0, 1e9)
STATS = st.builds(BundleStats, RATES, RATES, RATES, RATES, st.integers(0, 1_000))
CLOCK = SampleClock(5.0, 1_000)


@given(st.lists(RATES, min_size=1, max_size=30), st.integers(1, 12))
def test_an_average_lies_within_what_was_measured(rates: list[float], window: int) -> None:
    average = MessageAverage()
    for rate in rates:
        average = pushed(average, BundleStats(rate), window)
    assert min(rates) * (1 - 1e-9) <= average.msg_rate_in <= max(rates) * (1 + 1e-9)
    assert average.samples == min(window, len(rates))


@given(st.lists(st.floats(0.01, 30), max_size=60), STATS)
def test_looking_more_often_changes_nothing(steps: list[float], stats: BundleStats) -> None:
    often, now_s = TimedAverages().advanced(stats, 0.0, CLOCK), 0.0
    for step in steps:
        now_s += step
        often = often.advanced(stats, now_s, CLOCK)
    once = TimedAverages().advanced(stats, 0.0, CLOCK).advanced(stats, now_s, CLOCK)
    assert abs(often.averages.long.samples - once.averages.long.samples) <= 1  # one may hang on a rounding error
    assert often.averages.long.samples == pytest.approx(1 + now_s / 5, abs=1.01)


@given(st.lists(RATES, min_size=1, max_size=12), st.lists(RATES, min_size=1, max_size=12))
def test_going_on_elsewhere_is_as_if_it_had_stayed_while_the_window_is_not_full(
    before: list[float], after: list[float]
) -> None:
    kept, fresh, stayed = MessageAverage(), MessageAverage(), MessageAverage()
    for rate in before:
        kept, stayed = pushed(kept, BundleStats(rate), 100), pushed(stayed, BundleStats(rate), 100)
    for rate in after:
        fresh, stayed = pushed(fresh, BundleStats(rate), 100), pushed(stayed, BundleStats(rate), 100)
    average = continued(kept, fresh, 100)
    assert average.samples == stayed.samples
    assert average.msg_rate_in == pytest.approx(stayed.msg_rate_in, abs=1e-6)


@given(st.lists(STATS, max_size=20), st.randoms(use_true_random=False))
def test_sums_and_choices_do_not_depend_on_order(stats: list[BundleStats], shuffle: random.Random) -> None:
    bundles = {f"t/n/0x{number:08x}_0x{number + 1:08x}": LocalBundle(stat) for number, stat in enumerate(stats)}
    names = list(bundles)
    shuffle.shuffle(names)
    shuffled = {name: bundles[name] for name in names}
    assert BrokerTraffic.of(item.stats for item in shuffled.values()) == BrokerTraffic.of(stats)
    assert top_bundles(shuffled, TopRules(count_max=5)) == top_bundles(bundles, TopRules(count_max=5))


@given(st.lists(st.tuples(st.floats(0.1, 4), st.booleans()), min_size=1, max_size=60))
def test_every_own_change_is_reported_within_twice_the_time_and_never_too_early(
    steps: list[tuple[float, bool]],
) -> None:
    own = OwnChanges(settle_s=5.0)
    changed: dict[int, float] = {}
    now_s = 0.0
    own.ripen({0: -1}, 0.0)
    for offset, (step, mine) in enumerate(steps, start=1):
        now_s += step
        if mine:
            own.changed(0, offset)
            changed[offset] = now_s
        reported = own.ripen({0: offset}, now_s)
        settled = own.settled.get(0, -1)
        ripe = {item: at_s for item, at_s in changed.items() if item <= settled}
        assert reported == bool(ripe)
        for item, at_s in ripe.items():
            assert now_s - at_s >= 5.0 - 1e-9
            del changed[item]
        assert all(now_s - at_s < 5.0 + 5.0 + 2 * 4 for at_s in changed.values())


@given(st.lists(st.tuples(st.floats(0.1, 30), st.booleans()), max_size=60))
def test_nobody_is_buried_without_a_whole_grace_of_silence(steps: list[tuple[float, bool]]) -> None:
    expiry = Expiry(ExpiryRules(ttl_s=100.0, grace_s=10.0))
    now_s, born_s, offset = 0.0, 0.0, 0

    class Held:
        def __init__(self) -> None:
            self.offset, self.age_s = offset, now_s - born_s

    suspect_s = math.inf
    for step, reports in steps:
        now_s += step
        if reports:
            born_s, offset, suspect_s = now_s, offset + 1, math.inf
        due = expiry.step({"a": Held()}, now_s, 10**12)
        if now_s - born_s > 100.0:
            suspect_s = min(suspect_s, now_s)
        if due:
            assert due["a"].last_offset == offset
            assert now_s - suspect_s >= 10.0
