"""What bundles usually do: bursts pass, growth stays."""

from dataclasses import replace
from random import Random

import pytest

from loaddata.model.bundle_load import BundleAverages, BundleStats, MessageAverage
from shedders.model.cluster import Bundle
from shedders.weighted_move.habits import MOST_BUNDLES, Habits, bytes_of
from tests.support.loads import bundle

UNIT = 100.0
STEP_S = 60.0


def make(number: int, traffic: float) -> Bundle:
    average = MessageAverage(0.0, 0.0, traffic, 0.0, samples=10)
    stats = BundleStats(0.0, 0.0, traffic, 0.0, topics=1)
    return replace(bundle(number, "a"), stats=stats, averages=BundleAverages(average, average))


def played(rows: list[list[float]], habits: Habits | None = None) -> Habits:
    """Habits after these minutes; each row has the traffic of every bundle."""
    habits = habits or Habits()
    for row in rows:
        items = [make(number, traffic) for number, traffic in enumerate(row)]
        habits = Habits.recall(habits.dumped(), STEP_S)
        habits.see([(bytes_of(item), item) for item in items], UNIT, STEP_S, {item.name: item for item in items})
    return habits


def test_what_is_new_counts_as_it_is():
    habits = played([[10.0, 5.0]] * 5)
    assert habits.expected(make(0, 20.0), 20.0) == 1.0
    assert habits.expected(make(7, 20.0), 20.0) == 1.0


def test_a_burst_that_has_passed_before_is_expected_to_pass():
    quiet, burst = [10.0, 5.0], [40.0, 5.0]
    habits = played([quiet] * 45 + [burst] * 8 + [quiet] * 17 + [burst] * 8 + [quiet] * 17 + [burst])
    assert habits.expected(make(0, 40.0), 40.0) < 0.6
    assert habits.expected(make(1, 5.0), 5.0) == pytest.approx(1.0, abs=0.05)


def test_the_first_burst_counts_in_full():
    habits = played([[10.0, 5.0]] * 60 + [[40.0, 5.0]])
    assert habits.expected(make(0, 40.0), 40.0) == pytest.approx(1.0, abs=0.05)


def test_load_that_stays_much_longer_than_the_others_did_is_believed():
    quiet, burst = [10.0, 5.0], [40.0, 5.0]
    begun = [quiet] * 45 + [burst] * 8 + [quiet] * 17 + [burst] * 8 + [quiet] * 17
    parts = [played(begun + [burst] * minutes).expected(make(0, 40.0), 40.0) for minutes in (2, 28)]
    assert parts[0] < 0.7 < parts[1]


def test_growth_is_no_burst():
    rows = [[10.0 * 1.004**minute, 5.0] for minute in range(300)]
    habits = played(rows)
    now = rows[-1][0]
    assert habits.expected(make(0, now), now) > 0.9


def test_children_inherit_the_habit_of_their_parent():
    parent = replace(make(0, 40.0), name="t/n/0x00000000_0x80000000")
    habits = Habits()
    for _ in range(60):
        habits.see([(40.0, parent)], UNIT, STEP_S, {parent.name: parent})
    children = [
        replace(make(0, traffic), name=name)
        for name, traffic in (("t/n/0x00000000_0x40000000", 30.0), ("t/n/0x40000000_0x80000000", 10.0))
    ]
    habits.see(
        [(bytes_of(child), child) for child in children], UNIT, STEP_S, {child.name: child for child in children}
    )
    assert {name: habit.mean for name, habit in habits.bundles.items()} == {
        children[0].name: pytest.approx(0.3),
        children[1].name: pytest.approx(0.1),
    }


def test_memory_is_bounded_and_keeps_the_largest():
    count = MOST_BUNDLES + 50
    items = [make(number, 1.0 + number) for number in range(count)]
    habits = Habits()
    habits.see([(bytes_of(item), item) for item in items], UNIT, STEP_S, {item.name: item for item in items})
    assert len(habits.bundles) == MOST_BUNDLES
    assert items[-1].name in habits.bundles
    assert items[0].name not in habits.bundles
    assert habits.least > 0


def test_memory_from_anybody():
    for junk in (None, 7, {"bundles": {"x": [1, 2]}, "passing": "?"}, {"bundles": 3}, {"passing": [float("nan")] * 7}):
        assert Habits.recall(junk, 1.0) == Habits()


def test_the_mean_beside_a_dumb_twin():
    """The mean of what was seen so far, until the window is full."""
    random = Random(7)
    rows = [[random.uniform(5.0, 15.0)] for _ in range(200)]
    habits = played(rows)
    (habit,) = habits.bundles.values()
    twin = sum(row[0] for row in rows[1:]) / (len(rows) - 1) / UNIT
    assert habit.mean == pytest.approx(twin, rel=0.03)
