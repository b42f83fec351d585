"""What two brokers exchange, the ways between them, and the spread. Figures are computed by hand."""

import math

import pytest

from shedders.model.cluster import Bundle
from shedders.shedding.transfer_pairs import (
    Bundles,
    ExchangeTarget,
    LoadSpread,
    TransferCandidate,
    TransferSettings,
    Way,
    exchange,
)
from tests.support.transfer_clusters import MB, cluster, decide, key, moves, words


def find_pair(mine, theirs, target, *, refused=(), enough=0.5, most_going=99, most=10, swap=True):
    """Loads that go and loads that come back."""
    bundles = Bundles(
        cluster({}),
        TransferSettings(),
        lambda bundle, _destination: "no room" if bundle.name in refused else None,
        None,
    )

    def cargo(who, loads):
        ordered = sorted(enumerate(loads), key=lambda item: (-item[1], item[0]))
        return [TransferCandidate(Bundle(f"acme/{who}/{place}"), load) for place, load in ordered]

    aim = ExchangeTarget(target=target, enough=enough, most_going=most_going, most=most, swap=swap)
    answer = exchange(
        cargo("mine", mine), lambda: cargo("theirs", theirs), aim, Way(bundles, "low", 9), Way(bundles, "top", 9)
    )
    return [item.load for item in answer.going], [entry.load for entry in answer.back], answer.net


@pytest.mark.parametrize(
    ("mine", "theirs", "target", "answer"),
    [
        ([], [], 5, ([], [], 0)),
        ([1, 2, 3], [], 5, ([3, 2], [], 5)),
        ([1, 2, 3], [], 4.5, ([3, 1], [], 4)),
        ([6, 7], [], 5, ([], [], 0)),
        # Half of the target is enough to look no further.
        ([2.5, 9], [7], 5, ([2.5], [], 2.5)),
        # 2 is too little: of the 3 that are left one heavier bundle brings from 1.5 to 3, if lighter ones come back.
        ([2, 9], [7], 5, ([2, 9], [7], 4)),
        ([9], [7, 6.5, 4.5], 5, ([9], [4.5], 4.5)),
        ([9], [1, 4], 5, ([9], [4], 5)),
        # 9 needs from 4 to 6.5 in return: 3 and 2 together, the heaviest first.
        ([9], [1, 2, 3], 5, ([9], [3, 2], 4)),
        ([9], [1, 1, 1], 5, ([], [], 0)),
        ([9], [7, 8], 5, ([], [], 0)),
        # The swap that brings most: 9 against 4 brings 5, 8 against 4 only 4.
        ([8, 9], [4], 5, ([9], [4], 5)),
    ],
)
def test_exchange(mine, theirs, target, answer):
    assert find_pair(mine, theirs, target) == answer


def test_limits_of_an_exchange():
    assert find_pair([1, 1, 1, 1], [], 9, most_going=3) == ([1, 1, 1], [], 3)
    assert find_pair([1, 1, 1, 1], [], 9, most=2) == ([1, 1], [], 2)
    assert find_pair([9], [4], 5, swap=False) == ([], [], 0)
    assert find_pair([9], [3, 2], 5, most=2) == ([], [], 0)
    assert find_pair([9], [4], 5, most_going=0) == ([], [], 0)
    assert find_pair([9], [4], 5, most=1) == ([], [], 0)
    assert find_pair([2, 9], [7], 5, enough=0.4) == ([2], [], 2)


def test_refused_bundles_neither_go_nor_come_back():
    assert find_pair([3, 2], [], 4, refused={"acme/mine/0"}) == ([2], [], 2)
    assert find_pair([9], [4, 5], 5, refused={"acme/theirs/0"}) == ([9], [5], 4)
    assert find_pair([9], [4], 5, refused={"acme/mine/0"}) == ([], [], 0)
    assert find_pair([9], [3, 2, 1, 2.5], 5, refused={"acme/theirs/0"}) == ([9], [2.5, 2], 4.5)


def test_rounding_does_not_keep_a_bundle_that_fits_exactly():
    third = 0.1 + 0.2
    assert find_pair([third], [], 0.3) == ([third], [], third)


# --- filters ---------------------------------------------------------------------------------

ROWS = {"low": (0.1, [0.5, 0.5]), "top": (0.9, [1, 2, 3, 3])}


def test_the_filters_reason_is_told():
    plan = decide(cluster(ROWS), can_take=lambda _bundle, broker: "topics: too many" if broker == "low" else None)
    assert not plan.moves
    assert words(plan)["top"] == "nothing-fits"
    left = next(left for left in plan.left if left.name == key("top", 2))
    assert (left.reason, left.why) == ("filtered", "low may not take it: topics: too many")


def test_a_filter_that_fails_says_no():
    def broken(_bundle, _broker):
        raise ZeroDivisionError("racks")

    plan = decide(cluster(ROWS), can_take=broken)
    assert not plan.moves
    left = next(left for left in plan.left if left.name == key("top", 2))
    assert left.reason == "filter-failed"
    assert "ZeroDivisionError('racks')" in left.why


def test_filters_are_asked_once_for_each_way_and_a_bounded_number_of_times():
    asked = []

    def nothing(bundle, broker):
        asked.append((bundle.name, broker))
        return "no"

    many = cluster({"low": (0.0, []), "top": (0.9, [1.0] * 300)})
    assert not decide(many, can_take=nothing, max_refusals_per_pair=7).moves
    assert len(asked) == len(set(asked)) == 7


def test_what_is_planned_is_booked_so_that_filters_count_it():
    at = {"low": 0, "top": 0}

    def one_at_most(_bundle, broker):
        return "full" if at[broker] else None

    def book(broker, _bundle):
        at[broker] += 1

    assert len(decide(cluster(ROWS), can_take=one_at_most).moves) == 2
    assert moves(decide(cluster(ROWS), can_take=one_at_most, book=book)) == [(key("top", 2), "top", "low")]
    assert at == {"low": 1, "top": 0}


def test_a_swap_that_is_open_alone_but_not_together_is_given_up():
    rows = {"low": (0.3, [1, 1]), "top": (0.9, [6, 6])}
    # 12 * 0.3 / 0.9 = 4: a bundle of 6 goes against both of 1, which brings 4.
    assert len(decide(cluster(rows)).moves) == 3
    booked = []

    def can_take(_bundle, broker):
        return "full" if (broker, sum(name == "top" for name, _ in booked)) == ("top", 1) else None

    plan = decide(cluster(rows), can_take=can_take, book=lambda broker, bundle: booked.append((broker, bundle)))
    assert not plan.moves


# --- spread ----------------------------------------------------------------------------------


def test_spread():
    spread = LoadSpread({"a": 0.2, "b": 0.4, "c": 0.9})
    assert spread.mean == pytest.approx(0.5)
    # Squares of 0.3, 0.1, 0.4: 0.26 / 3.
    assert spread.std == pytest.approx(math.sqrt(0.26 / 3))
    spread.shift("c", "a", 0.3)
    assert spread.std == pytest.approx(math.sqrt(0.02 / 3))
    spread.shift("a", "b", 9.0)
    assert spread.mean == pytest.approx(0.5)
    assert (LoadSpread({}).mean, LoadSpread({}).std) == (0, 0)


def test_moves_are_in_bytes_a_second():
    assert [move.load for move in decide(cluster(ROWS)).moves] == [3 * MB, MB]
