"""Brokers whose figures were wrong from the beginning: found out by what arrives there and what leaves them."""

from dataclasses import replace

import pytest

from loaddata.model.bundle_load import BundleAverages, BundleStats, MessageAverage
from shedders.model.cluster import Bundle
from shedders.weighted_move.arrivals import Arrivals, Witness, agreed
from shedders.weighted_move.doubt import UNMOVED, Doubts
from shedders.weighted_move.slow_broker import RETRY_MAX_S, RETRY_S, STEP_S, TRIED, TRY_S, SlowBroker
from tests.support.loads import bundle

NAMES = dict.fromkeys("abcdefgh")


def measured(number: int, owner: str, traffic: float, *, namespace: int = 0) -> Bundle:
    average = MessageAverage(0.0, 0.0, traffic, 0.0, samples=10)
    stats = BundleStats(0.0, 0.0, traffic, 0.0, topics=1)
    plain = bundle(number, owner)
    name = plain.name.replace("/", f"{namespace}/", 1)
    return replace(plain, name=name, stats=stats, averages=BundleAverages(average, average))


def move(arrivals: Arrivals, count: int, source: str, destination: str, ratio: float, *, spaces: int = 2) -> None:
    """So many bundles go from one broker to another, and have this part of their traffic there."""
    bundles = {}
    for place in range(count):
        before = measured(len(arrivals.departures) + place * 100 + ord(source), source, 10.0, namespace=place % spaces)
        arrivals.left(before, source, destination)
        after = replace(before, owner=destination)
        bundles[before.name] = measured_as(after, 10.0 * ratio)
    arrivals.look(bundles, 0.0, namespaces=spaces)


def measured_as(item: Bundle, traffic: float) -> Bundle:
    average = MessageAverage(0.0, 0.0, traffic, 0.0, samples=10)
    return replace(item, stats=BundleStats(0.0, 0.0, traffic, 0.0, topics=1), averages=BundleAverages(average, average))


@pytest.mark.parametrize(
    ("rows", "namespaces", "factor"),
    [
        ([(0.4, 1, 1), (0.41, 2, 2), (0.42, 3, 1)], 2, 0.41),
        ([(0.4, 1, 1), (0.41, 2, 2)], 2, None),  # too few
        ([(0.4, 1, 1), (0.41, 1, 2), (0.42, 1, 1)], 2, None),  # of one other broker: which of the two?
        ([(0.4, 1, 1), (0.41, 2, 1), (0.42, 3, 1)], 2, None),  # of one namespace: its burst may be over
        ([(0.4, 1, 1), (0.41, 2, 1), (0.42, 3, 1)], 1, 0.41),
        ([(0.4, 1, 1), (1.0, 2, 2), (0.7, 3, 1)], 2, None),  # they contradict each other
        ([(1.0, 1, 1), (1.02, 2, 2), (0.98, 3, 1)], 2, 1.0),
    ],
)
def test_what_witnesses_agree_on(rows: list[tuple[float, int, int]], namespaces: int, factor: float | None):
    assert agreed([Witness(*row) for row in rows], namespaces) == factor


def test_a_broker_that_tells_two_fifths_is_found_out_by_what_arrives():
    arrivals = Arrivals()
    move(arrivals, 2, "b", "a", 0.4)
    assert not arrivals.factors
    move(arrivals, 2, "c", "a", 0.4)
    assert arrivals.factors == {"a": pytest.approx(0.4)}
    assert not arrivals.departures


def test_and_by_what_leaves_it():
    arrivals = Arrivals()
    for other in "bcd":
        move(arrivals, 2, "a", other, 2.0)
    assert arrivals.factors == {"a": pytest.approx(0.5)}


def test_what_is_known_of_one_broker_is_not_blamed_on_another():
    arrivals = Arrivals(factors={"a": 0.5})
    for other in "abc":
        move(arrivals, 2, other, "h", 2.0 if other == "a" else 1.0)
    assert arrivals.factors == {"a": 0.5}


@pytest.mark.parametrize("others", ["bc", "bcd", "bcdef"])
def test_two_brokers_with_wrong_figures_do_not_hide_each_other(others: str):
    """a says 0.5 of what it does, z 1.6 times as much: what goes from one to the other contradicts all else about both."""
    arrivals = Arrivals()
    move(arrivals, 2, "z", "a", 0.5 / 1.6)
    for other in others:
        move(arrivals, 2, other, "a", 0.5)
        move(arrivals, 2, "z", other, 1 / 1.6)
    assert arrivals.factors == {"a": pytest.approx(0.5), "z": pytest.approx(1.6)}


def test_a_broker_whose_factor_is_known_is_evidence_about_another():
    """All that came to a was of z, which was found out later: what seemed to be of a and z is of a now."""
    arrivals = Arrivals()
    move(arrivals, 4, "z", "a", 0.5 / 1.6)
    for other in "bcd":
        move(arrivals, 2, "z", other, 1 / 1.6)
    assert arrivals.factors == {"a": pytest.approx(0.5), "z": pytest.approx(1.6)}


def test_what_was_seen_before_a_broker_was_wrong_is_no_evidence_about_another():
    arrivals = Arrivals()
    move(arrivals, 4, "z", "a", 1.0)
    for other in "bcd":
        move(arrivals, 2, "z", other, 1 / 1.6)
    assert "a" not in arrivals.factors


def test_a_contradiction_that_no_other_fault_explains_stays_one():
    """Of z nothing else is known: its load may have changed by itself."""
    arrivals = Arrivals()
    for other, ratio in (("z", 1.1), ("b", 0.5), ("c", 0.52)):
        move(arrivals, 2, other, "a", ratio)
    assert not arrivals.factors


def test_what_seemed_to_be_of_a_broker_and_was_of_two_slow_ones_is_taken_back():
    """Bundles that came to a from two saturated brokers grew there: a seemed to report too much."""
    arrivals = Arrivals()
    for other in "yz":
        move(arrivals, 2, other, "a", 1.3)
    move(arrivals, 2, "b", "h", 0.5)
    move(arrivals, 2, "c", "h", 0.5)
    assert arrivals.factors == {"a": pytest.approx(1.3), "h": pytest.approx(0.5)}
    arrivals.forget("z")
    assert arrivals.factors == {"h": pytest.approx(0.5)}, "two brokers have to agree, and one is left"
    assert "z" not in arrivals.witnesses
    arrivals.forget("y")
    assert "a" not in arrivals.witnesses


def test_other_witnesses_clear_a_broker():
    arrivals = Arrivals(factors={"a": 0.4})
    for other in "bcdefg":
        move(arrivals, 2, other, "a", 1.0)
    assert not arrivals.factors


def test_growth_of_all_load_is_no_evidence():
    arrivals = Arrivals(pulse=1.0)
    moved = {}
    for place, source in enumerate("bcdefg"):
        item = measured(place, source, 10.0, namespace=place % 2)
        arrivals.left(item, source, "a")
        moved[item.name] = replace(measured_as(item, 15.0), owner="a")
    arrivals.look(moved, 1.5, namespaces=2)
    assert not arrivals.factors


def test_bundles_of_slow_brokers_are_no_evidence():
    arrivals = Arrivals()
    items = [measured(place, "bcdefg"[place], 10.0, namespace=place % 2) for place in range(6)]
    for item in items:
        arrivals.left(item, str(item.owner), "a")
    arrivals.look(
        {item.name: replace(measured_as(item, 4.0), owner="a") for item in items}, 0.0, namespaces=2, slow={"a"}
    )
    assert not arrivals.factors


def test_arrivals_go_through_memory():
    arrivals = Arrivals(factors={"a": 0.4, "z": 0.5})
    move(arrivals, 1, "b", "a", 0.4)
    arrivals.left(measured(7, "c", 10.0), "c", "a")
    kept = arrivals.dumped()
    again = Arrivals.recall(kept, 60.0, NAMES)
    assert again.factors == {"a": 0.4}
    assert again.witnesses == arrivals.witnesses
    assert [row.age_s for row in again.departures.values()] == [60.0]
    assert not Arrivals.recall(kept, 601.0, NAMES).departures
    for junk in (None, [], {"departures": {"x": [1, 2]}}, {"witnesses": {"a": [[0.0, 1, 1]]}}, {"factors": {"a": -1}}):
        assert Arrivals.recall(junk, 1.0, NAMES) == Arrivals()


# --- slow brokers -------------------------------------------------------------------------------------------------------


def test_a_slow_broker_is_tried_again_in_steps_and_never_forgotten():
    slow = SlowBroker(0.4, waited_s=RETRY_S)
    slow.watch(0.2)
    assert slow.trying
    assert slow.assumed(0.5) == pytest.approx(TRIED * 0.4 / 0.5)  # so that at the cluster's level it has 0.48
    slow.waited_s = TRY_S
    slow.watch(0.4)  # its usage did not follow
    assert (slow.trying, slow.capacity, slow.retry_s) == (False, 0.4, 2 * RETRY_S)
    assert slow.served == pytest.approx(1 / TRIED)
    slow.waited_s, slow.retry_s = 2 * RETRY_MAX_S, RETRY_MAX_S
    slow.watch(0.2)
    slow.waited_s = TRY_S
    slow.watch(0.4)
    assert (slow.capacity, slow.retry_s) == (0.4, RETRY_MAX_S)


def test_a_broker_that_has_recovered_gets_more_with_each_step():
    slow = SlowBroker(0.4, trying=True)
    slow.watch(0.48)
    assert (slow.trying, slow.capacity, slow.retry_s) == (False, 0.48, STEP_S)
    assert not slow.has_recovered(0.5)
    slow.watch(0.55)
    assert not slow.has_recovered(0.5)  # it would be nearly full
    slow.watch(0.6)
    assert slow.has_recovered(0.5)
    assert not SlowBroker(0.6).has_recovered(0.5)  # that is what it could do when it was found, and no more


def test_a_slow_broker_that_stays_at_its_capacity_is_limited_whatever_its_pulse():
    """With load that has been too much for long, less is usual."""
    doubts = Doubts(slow={"a": SlowBroker(0.4)}, sent={"a": (0.39, 0.1, 2.0)}, calm=dict.fromkeys(NAMES, 1.0))
    doubts.judge(dict.fromkeys(NAMES, 1.0), use(0.385))
    assert doubts.slow["a"].capacity == 0.385
    assert doubts.slow["a"].served == pytest.approx(0.385 / 0.49)


@pytest.mark.parametrize("retry_s", [STEP_S, RETRY_S, 2 * RETRY_S])
def test_a_try_without_load_shows_nothing(retry_s: float):
    slow = SlowBroker(0.4, trying=True, waited_s=TRY_S, retry_s=retry_s)
    slow.watch(0.3)
    assert (slow.trying, slow.waited_s, slow.retry_s) == (False, 0.0, max(RETRY_S, retry_s))
    assert slow.served == 1.0


@pytest.mark.parametrize(
    ("full", "crowded", "traffic", "ratio"),
    [
        (True, set(), 20.0, 1.0),  # it grows: its former broker served a part of it
        (True, set(), 5.0, 0.5),  # it shrinks, though: the former broker reports too much
        (False, {"b"}, 5.0, 1.0),  # it shrinks: its new broker is full
        (False, {"b"}, 20.0, 2.0),  # it grows, though: the new broker reports too much
        (False, {"a"}, 20.0, 2.0),  # its former broker is full now, and was not
    ],
)
def test_a_full_broker_explains_only_what_it_makes_less(full: bool, crowded: set[str], traffic: float, ratio: float):
    arrivals = Arrivals()
    arrivals.left(measured(1, "a", 10.0), "a", "b", full=full)
    arrivals = Arrivals.recall(arrivals.dumped(), 60.0, NAMES)
    moved = measured(1, "b", traffic)
    arrivals.look({moved.name: moved}, 0.0, namespaces=2, full=crowded)
    assert [each.ratio for each in arrivals.witnesses["b"]] == [ratio]


def test_departures_of_a_former_version_are_read():
    arrivals = Arrivals()
    arrivals.left(measured(1, "a", 10.0), "a", "b")
    memory = arrivals.dumped()
    former = {**memory, "departures": {name: row[:4] for name, row in memory["departures"].items()}}
    assert Arrivals.recall(former, 60.0, NAMES).departures == Arrivals.recall(memory, 60.0, NAMES).departures


def use(level: float) -> dict[str, tuple[float, float, float, float]]:
    return {"a": (level, level / 3, 0.0, 0.0)}


@pytest.mark.parametrize(("shown", "slow"), [(0.4, True), (0.45, False)])
def test_load_that_came_and_does_not_show_at_a_broker_whose_bundles_shrank(shown: float, slow: bool):
    """It was sent 0.1 and says 0.6 of what it does: 0.06 should show if it were a liar."""
    doubts = Doubts(arrivals=Arrivals(factors={"a": 0.6}), sent={"a": (0.4, 0.1, 3.0)})
    doubts.judge({}, use(shown))
    assert ("a" in doubts.slow) == slow
    assert ("a" in doubts.arrivals.factors) != slow


def test_many_small_moves_are_added_up():
    doubts = Doubts()
    for number in range(3):
        assert doubts.of("a") is None, number
        doubts.sent["a"] = 0.4, 0.025, 2.0
        doubts.judge({}, use(0.4))
    doubts.sent["a"] = 0.4, 0.025, 2.0
    doubts.judge({}, use(0.4))
    assert doubts.of("a") == UNMOVED
    assert doubts.to_try("a")  # a part is moved away, which shows whether it is saturated


def test_a_burst_that_is_over_is_no_saturation():
    """The broker was busier an hour ago: it is not at its end now."""
    doubts = Doubts(peaks={"a": 0.8})
    for _ in range(6):
        doubts.sent["a"] = 0.4, 0.05, 2.0
        doubts.judge({}, use(0.4))
    assert doubts.of("a") is None


@pytest.mark.parametrize(
    ("network", "capacity", "resource"),
    [
        (0.33, 0.33, 1),  # nothing of it shows: the network is its limit, not the CPU
        (0.42, 0.39, 0),  # all of it shows
    ],
)
def test_what_a_slow_broker_can_do_is_known_by_what_comes_to_it(network: float, capacity: float, resource: int):
    """A broker whose CPU was the busiest when it was found, at 0.39; since, 0.09 was moved to it, in two plans."""
    doubts = Doubts(slow={"a": SlowBroker(0.39, 0)})
    for before, added, level in ((0.33, 0.04, 0.33 + (network - 0.33) / 2), (0.33, 0.05, network)):
        doubts.sent["a"] = before, added, 1.0
        doubts.judge({}, {"a": (0.3, level, 0.1, 0.0)})
    slow = doubts.slow["a"]
    assert slow.capacity == pytest.approx(capacity)
    assert slow.resource == resource
    assert slow.beyond == ([0.39, 0.0, 0.0, 0.0] if resource else [0.0, 0.42, 0.0, 0.0])
    # Of the resource that nothing is known of it can use as much as of the one that limits it.
    assert [slow.assumed(0.5, place) for place in (0, 1, 2)] == pytest.approx([0.39, network, capacity])
    assert SlowBroker.recall(slow.dumped(), 0.0) == replace(slow, served=round(slow.served, 4))
    assert slow.served == pytest.approx(0.33 / 0.42 if resource else 1.0)
    assert slow.trying is False


@pytest.mark.parametrize(("pulse", "capacity"), [(1.0, 0.9), (0.8, 0.9), (0.5, 0.3)])
def test_load_that_went_by_itself_is_not_what_a_slow_broker_can_do(pulse: float, capacity: float):
    """It was at 0.5 and has got 0.1, and is at 0.3 now. If that were its limit, it would serve half of what it is asked."""
    doubts = Doubts(slow={"a": SlowBroker(0.9)}, sent={"a": (0.5, 0.1, 2.0)}, calm=dict.fromkeys(NAMES, 1.0))
    doubts.judge({**dict.fromkeys(NAMES, 1.0), "a": pulse}, use(0.3))
    assert doubts.slow["a"].capacity == capacity
