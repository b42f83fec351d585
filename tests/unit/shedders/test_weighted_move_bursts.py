"""What weighted-move learns of levels that rise: whether they pass by themselves, and when."""

import json

import pytest

from shedders.weighted_move.bursts import LASTS_S, Bursts, RelievedBurst
from shedders.weighted_move.memory import CAME_MAX, SOURCES_MAX, SOURCES_MIN, Memory


def learned(*lasted_s: float, stayed: float = 0.0) -> Bursts:
    bursts = Bursts(stayed=stayed)
    for each in lasted_s:
        bursts.ended(each)
    return bursts


@pytest.mark.parametrize(
    ("lasted_s", "age_s", "passes"),
    [
        ((), 0.0, False),
        ((240.0, 240.0), 120.0, False),  # two are chance
        ((300.0, 290.0, 280.0), 60.0, False),  # they take longer
        ((240.0, 230.0, 220.0), 60.0, True),
        ((240.0, 240.0, 240.0), 180.0, True),
        ((240.0, 240.0, 240.0), 240.0, False),  # these were over by now
        ((240.2, 240.1, 240.1), 60.1, True),  # live decisions are not exactly a minute apart
        ((240.2, 240.1, 240.1), 240.1, False),
        ((240.0,) * 3 + (900.0,) * 4, 180.0, False),  # most lasted longer
        ((60.0,) * 9 + (900.0,) * 3, 180.0, False),  # what was over by now does not count
        ((900.0,) * 3, 800.0, True),
        ((5_000.0,) * 3, 0.0, False),
    ],
)
def test_a_level_passes_soon_if_most_did_that_had_lasted_for_as_long(
    lasted_s: tuple[float, ...], age_s: float, passes: bool
) -> None:
    assert learned(*lasted_s).passes_soon(age_s, 60.0) == passes


@pytest.mark.parametrize("interval_s", [30.0, 45.0, 60.0, 90.0, 120.0])
def test_a_level_passes_soon_until_the_last_decision_before_those_passed(interval_s: float) -> None:
    for count in range(1, 20):
        lasted_s = count * interval_s
        if lasted_s <= LASTS_S:
            bursts = learned(lasted_s, lasted_s, lasted_s)
            assert bursts.passes_soon(lasted_s - interval_s, interval_s)
            assert not bursts.passes_soon(3 * lasted_s, interval_s)


def test_levels_that_stayed_count_against_it() -> None:
    assert learned(240.0, 240.0, 240.0, stayed=3.0).passes_soon(180.0, 60.0)
    assert not learned(240.0, 240.0, 240.0, stayed=3.1).passes_soon(180.0, 60.0)
    assert learned(7_200.0, 7_200.0).stayed == 2.0  # longer than the last class


@pytest.mark.parametrize(
    ("lasted_s", "stayed", "persistent"),
    [
        ((), 0.0, False),
        ((600.0, 600.0), 0.0, False),  # two are chance
        ((600.0, 600.0, 600.0), 0.0, True),
        ((), 3.0, True),
        ((60.0,) * 9 + (600.0,) * 3, 0.0, True),  # what passes at once is not waited for
        ((180.0,) * 3 + (600.0,) * 3, 0.0, False),  # no more than what passes within minutes
        ((180.0,) * 3 + (600.0,) * 3, 1.0, True),
        ((240.0,) * 9, 0.0, False),
        ((240.2,) * 9, 0.0, False),  # live decisions are not exactly a minute apart
        ((300.0,) * 9, 0.0, True),
    ],
)
def test_a_rise_lasts_if_most_stayed_for_longer_than_minutes(
    lasted_s: tuple[float, ...], stayed: float, persistent: bool
) -> None:
    assert learned(*lasted_s, stayed=stayed).rises_last == persistent


def test_a_relieved_level_that_falls_by_more_than_was_moved_has_passed() -> None:
    bursts = Bursts()
    bursts.relieve("a", 120.0, 2.0, 1.2)
    # Half of its 1.2 had come: if half of that goes, it has passed.
    assert bursts.relieved == {"a": RelievedBurst(120.0, pytest.approx(0.9))}
    bursts = Bursts.recall(bursts.dumped(), 60.0, {"a": None})
    bursts.look({"a": 1.15})
    assert bursts.relieved
    bursts = Bursts.recall(bursts.dumped(), 60.0, {"a": None})
    bursts.look({"a": 0.85})
    assert not bursts.relieved
    assert bursts.passed[3] == 1.0  # 240 s
    assert bursts.stayed == 0.0


def test_bundles_that_come_meanwhile_raise_the_level_at_which_it_has_passed() -> None:
    bursts = Bursts()
    bursts.relieve("a", 120.0, 2.0, 1.2)
    bursts.adjust("a", 1.0, 1.2)
    bursts.adjust("b", 1.0, 1.2)
    assert bursts.relieved == {"a": RelievedBurst(120.0, pytest.approx(1.1))}
    bursts.look({"a": 1.05, "b": 0.1})
    assert sum(bursts.passed) == 1.0


def test_what_goes_in_two_plans_counts_as_in_one() -> None:
    once, twice = Bursts(), Bursts()
    once.relieve("a", 120.0, 5.0, 1.0)
    twice.relieve("a", 120.0, 5.0, 2.5)
    twice.adjust("a", 2.5, 1.0)
    assert once.relieved["a"].passed_level == pytest.approx(twice.relieved["a"].passed_level)


def test_a_second_rise_counts_in_place_of_the_first() -> None:
    bursts = Bursts()
    bursts.relieve("a", 60.0, 2.0, 1.02)
    bursts = Bursts.recall(bursts.dumped(), 1_740.0, {"a": None})
    bursts.relieve("a", 60.0, 1.5, 1.02)
    bursts = Bursts.recall(bursts.dumped(), 180.0, {"a": None})
    bursts.look({"a": 0.6})
    assert (bursts.passed[3], sum(bursts.passed), bursts.stayed) == (1.0, 1.0, 0.0)  # 240 s


def test_a_relieved_level_that_does_not_fall_further_has_stayed() -> None:
    bursts = Bursts()
    bursts.relieve("a", 120.0, 1.8, 1.4)
    bursts = Bursts.recall(bursts.dumped(), 1_800.0, {"a": None})
    bursts.look({"a": 1.4})
    assert not bursts.relieved
    assert bursts.stayed == 1.0


def test_a_broker_that_left_shows_nothing() -> None:
    bursts = Bursts()
    bursts.relieve("a", 120.0, 1.8, 1.4)
    assert not Bursts.recall(bursts.dumped(), 60.0, {"b": None}).relieved
    bursts.look({})
    assert (bursts.relieved, bursts.stayed, sum(bursts.passed)) == ({}, 0.0, 0.0)


def test_memory_goes_through_json_and_fades() -> None:
    bursts = learned(100.0, 100.0, 700.0, stayed=1.0)
    bursts.relieve("a", 120.0, 1.6, 1.28)
    again = Bursts.recall(json.loads(json.dumps(bursts.dumped())), 0.0, {"a": None})
    assert again == bursts
    assert Bursts().dumped() == {}
    later = bursts
    for _ in range(360):  # as each decision of six hours does
        later = Bursts.recall(later.dumped(), 60.0, {"a": None})
    assert sum(later.passed) == pytest.approx(3 / 2.718, rel=0.01)
    assert later.stayed == pytest.approx(1 / 2.718, rel=0.01)


def test_of_a_level_of_several_times_the_mean_most_of_the_rest_has_come() -> None:
    bursts = Bursts()
    bursts.relieve("a", 60.0, 5.0, 2.0)
    assert Bursts.recall(bursts.dumped(), 60.0, {"a": None}).relieved == {"a": RelievedBurst(60.0, 1.2, 60.0)}


@pytest.mark.parametrize(
    "junk", [None, 5, [], {"counts": [1.0]}, {"counts": "x", "relieved": {"a": [1.0]}}, {"relieved": [["a", 1.0]]}]
)
def test_junk_is_no_memory(junk: object) -> None:
    assert Bursts.recall(junk, 0.0, {"a": None}) == Bursts()


def test_of_few_moved_bundles_more_former_brokers_are_remembered() -> None:
    """Where load goes round for a day, going back costs more only at brokers that are remembered."""
    for bundles, kept in ((10, SOURCES_MAX), (500, 8), (CAME_MAX, SOURCES_MIN), (CAME_MAX + 5, SOURCES_MIN)):
        came = {f"t/n/{number:04}": [[f"b{each}", float(20 - each)] for each in range(20)] for number in range(bundles)}
        memory = Memory.recall({"came": came}, 0, 1_800.0, {}, 86_400.0)
        assert len(memory.came) == min(bundles, CAME_MAX)
        assert {len(row) for row in memory.came.values()} == {kept}
        assert memory.came["t/n/0000"][-1] == ("b19", 1.0)
