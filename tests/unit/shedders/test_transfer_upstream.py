"""The `upstream` switch of TransferShedder: both sides of each decision record, and upstream's arithmetic by hand.

That it is upstream's class bit for bit was seen by running Pulsar 4.2.4's own beside it; these are the cases that differ.
"""

import math
from dataclasses import replace

import pytest

from shedders.model.cluster import Cluster, Policies, RecentMoves
from shedders.model.plan import Label, Reason
from shedders.shedding.transfer_upstream import UpstreamSpread, ascending, divide
from tests.support.transfer_clusters import (
    MB,
    NOW_MS,
    cluster,
    decide,
    key,
    moves,
    with_broker,
    with_bundle,
    with_report,
    words,
)


def both(base, **settings):
    """Moves of ours and of upstream's."""
    return moves(decide(base, **settings)), moves(decide(base, upstream=True, **settings))


# --- 0031: what a swap brings back counts ----------------------------------------------------

SWAP = {"low": (0.3, [2, 2]), "top": (0.9, [6, 6])}


def test_0031_what_a_swap_gives_back_is_counted():
    # 12 * 0.3 / 0.9 = 4 should go; 6 go and 2 come back: both brokers end at 0.6.
    same = [(key("low", 0), "low", "top"), (key("top", 0), "top", "low")]
    assert both(cluster(SWAP)) == (same, same)
    assert decide(cluster(SWAP)).stats["std_after"] == pytest.approx(0.0)
    # Upstream books 6 * 0.9 / 12 = 0.45 instead of 0.3: 0.45 and 0.75, unless debug logs are on.
    assert decide(cluster(SWAP), upstream=True).stats["std_after"] == pytest.approx(0.15)
    debug = decide(cluster(SWAP), upstream=True, upstream_debug=True)
    assert debug.stats["std_after"] == pytest.approx(0.0, abs=1e-7)
    assert debug.moves == decide(cluster(SWAP), upstream=True).moves


# --- 0032: who cannot be judged takes no part ------------------------------------------------

THREE = {"b1": (0.0, [0.1, 0.1]), "b2": (0.3, [1, 1, 1]), "b3": (0.9, [1] * 9)}


def test_0032_a_broker_with_an_outdated_report_gets_nothing():
    base = with_broker(with_report(cluster(THREE), "b1", updated_at_ms=NOW_MS - 1_800_001), "b1", load_age_s=1800.001)
    ours, upstream = both(base)
    assert {move[2] for move in ours} == {"b2"}
    assert {move[2] for move in upstream} == {"b1"}
    assert words(decide(base, upstream=True))["b1"] == "outdated"
    # One millisecond earlier it counts on both sides.
    fresh = with_broker(with_report(base, "b1", updated_at_ms=NOW_MS - 1_800_000), "b1", load_age_s=1800.0)
    assert not words(decide(fresh, upstream=True)).keys() & {"b1"}


def test_0032_a_draining_broker_gets_nothing():
    ours, upstream = both(with_broker(cluster(THREE), "b1", accepting=False))
    assert {move[2] for move in ours} == {"b2"}
    assert {move[2] for move in upstream} == {"b1"}


# --- 0033: what comes back is looked at like what goes ---------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda cluster: with_bundle(cluster, key("low", 0), in_flight=True),
        lambda cluster: replace(cluster, recent=RecentMoves(bundles={key("low", 0): 60.0})),
    ],
)
def test_0033_a_bundle_that_may_not_move_does_not_come_back(change):
    ours, upstream = both(change(cluster(SWAP)))
    assert ours == [(key("low", 1), "low", "top"), (key("top", 0), "top", "low")]
    assert upstream == [(key("low", 0), "low", "top"), (key("top", 0), "top", "low")]


def test_0033_a_bundle_of_an_excluded_namespace_does_not_come_back():
    ours, upstream = both(replace(cluster(SWAP), policies=Policies(excluded=frozenset({"acme/low"}))))
    assert ours == []
    assert (key("low", 0), "low", "top") in upstream


# --- 0034: the search goes on ----------------------------------------------------------------


def test_0034_a_heavier_bundle_that_fits_is_not_hidden_by_a_lighter_one():
    # 9 * 0.4 / 0.9 = 4 should go. Smallest first, 2 and then nothing; heaviest first, 4.
    base = cluster({"low": (0.1, []), "top": (0.9, [2, 3, 4])})
    assert both(base) == ([(key("top", 2), "top", "low")], [(key("top", 0), "top", "low")])
    assert decide(base).stats["std_after"] < decide(base, upstream=True).stats["std_after"]


def test_0034_a_bundle_that_is_too_heavy_at_the_head_of_the_list_hides_nothing():
    # The order of the list is by what comes in, so the first is not always the lightest.
    base = cluster({"low": (0.1, []), "top": (0.9, [5, 4])})
    assert both(base) == ([(key("top", 1), "top", "low")], [])


def test_0034_a_swap_is_looked_for_among_all_bundles_of_the_other_broker():
    # 20 * 0.3 / 0.9 = 6.67 should go, and both bundles are heavier. For 9 upstream collects 1 and 1.5 and 5, which is
    # 1.5 in all; it has used its list up then. 9 against 5 brings 4.
    base = cluster({"low": (0.3, [1, 1.5, 5]), "top": (0.9, [9, 11])})
    ours, upstream = both(base)
    assert upstream == []
    assert ours == [(key("low", 2), "low", "top"), (key("top", 1), "top", "low")]


def test_0034_bundles_that_are_not_among_the_top_ones_may_go_if_their_traffic_is_known():
    base = with_bundle(cluster({"low": (0.1, []), "top": (0.9, [3, 6])}), key("top", 0), rank=None)
    assert both(base) == ([(key("top", 0), "top", "low")], [])
    assert words(decide(base, upstream=True))["top"] == "sole-bundle"


# --- 0035: cool-down is each broker's own, and both ends have one ----------------------------


def test_0035_one_cooling_broker_stops_only_itself():
    changed = replace(cluster(THREE), recent=RecentMoves(brokers={"b1": 60.0}))
    ours, upstream = both(changed)
    assert {move[2] for move in ours} == {"b2"}
    assert upstream == []
    assert decide(changed, upstream=True).reason is Reason.COOL_DOWN
    # Both end when a report was made 180 s after the move, by their own clocks.
    early = replace(changed, recent=RecentMoves(brokers={"b1": 180.9}))
    assert words(decide(early))["b1"] == "cooling"
    assert decide(early, upstream=True).reason is Reason.COOL_DOWN
    late = replace(changed, recent=RecentMoves(brokers={"b1": 181.0}))
    assert {move[2] for move in moves(decide(late))} == {"b1"}
    assert decide(late, upstream=True).moves


def test_0035_a_destination_cools_down_too():
    first = decide(cluster(THREE), upstream=True)
    assert {(move.source, move.destination) for move in first.moves} == {("b3", "b1")}
    assert first.memory == {"hits": 0, "receivers": ["b1"]}
    # Upstream keeps only sources in mind: here both are recent, and it goes on where only the destination is.
    got = replace(cluster(THREE), recent=RecentMoves(brokers={"b1": 60.0}))
    assert decide(got, first.memory, upstream=True).moves
    assert words(decide(got))["b1"] == "cooling"
    gave = replace(cluster(THREE), recent=RecentMoves(brokers={"b1": 60.0, "b3": 60.0}))
    assert decide(gave, first.memory, upstream=True).reason is Reason.COOL_DOWN


def test_0035_receivers_are_forgotten_with_their_moves_and_when_they_give():
    changed = replace(cluster(THREE), recent=RecentMoves(brokers={"b3": 600.0}))
    plan = decide(changed, {"hits": 5, "receivers": ["b3", "b2", 7]}, upstream=True)
    assert plan.memory == {"hits": 0, "receivers": ["b1"]}
    assert decide(changed, {"receivers": "b3"}, upstream=True).memory["receivers"] == ["b1"]


def test_0035_after_a_cycle_without_a_result_the_row_begins_anew():
    heavy = cluster({"low": (0.1, []), "top": (0.9, [5, 5])})
    assert decide(heavy, {"hits": 3}, hit_threshold=3).memory == {"hits": 0}
    assert decide(heavy, {"hits": 3}, hit_threshold=3, upstream=True).memory["hits"] == 4
    # A cycle that could not be judged breaks the row here, and there it does not.
    blind = with_broker(heavy, "low", load=None)
    assert decide(blind, {"hits": 3}).memory == {"hits": 0}
    assert decide(blind, {"hits": 3}, upstream=True).memory["hits"] == 3


# --- 0036: one missing report, one wrong clock -----------------------------------------------


def test_0036_one_missing_report_does_not_stop_the_others():
    base = with_broker(cluster(THREE), "b1", load=None)
    ours, upstream = both(base)
    assert {move[2] for move in ours} == {"b2"}
    assert upstream == []
    plan = decide(base, upstream=True)
    assert (plan.label, plan.reason) == (Label.SKIP, Reason.NO_LOAD_DATA)
    assert plan.why == "no load data of b1 (1 brokers)"


@pytest.mark.parametrize(("wrong_ms", "word"), [(-7_200_000, "outdated"), (7_200_000, None)])
def test_0036_the_age_of_a_report_is_by_the_readers_clock(wrong_ms, word):
    base = with_report(cluster(THREE), "b1", updated_at_ms=NOW_MS + wrong_ms)
    assert {move[2] for move in moves(decide(base))} == {"b1"}
    assert words(decide(base, upstream=True)).get("b1") == word
    old = with_broker(base, "b1", load_age_s=7200.0)
    assert {move[2] for move in moves(decide(old))} == {"b2"}


# --- 0037: numbers ---------------------------------------------------------------------------


def test_0037_equal_loads_have_no_spread():
    # 3 * 0.1 is a little more than 0.3, so the mean square is a little less than the square of the mean.
    base = cluster({name: (0.1, [1, 1]) for name in ("b1", "b2", "b3")})
    ours, upstream = decide(base), decide(base, upstream=True)
    assert ours.stats["std"] == pytest.approx(0.0, abs=1e-15)
    assert "std" not in upstream.stats
    assert math.isnan(UpstreamSpread([0.1, 0.1, 0.1]).std)
    assert (ours.reason, upstream.reason) == (Reason.HIT_COUNT, Reason.HIT_COUNT)


def test_0037_a_source_without_load_gives_nothing():
    # Upstream's target is 0 / 0, no comparison with it is true, and all bundles but one go.
    base = cluster({"b1": (0.0, [0.1]), "b2": (0.0, [1, 2, 3])})
    assert both(base) == ([], [(key("b2", 0), "b2", "b1"), (key("b2", 1), "b2", "b1")])
    assert words(decide(base))["b2"] == "no-traffic"


@pytest.mark.parametrize("load", [math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_0037_upstream_takes_numbers_as_they_are_and_never_fails(load):
    base = with_report(cluster(THREE), "b2", weighted_max_ema=load)
    plan = decide(base, upstream=True)
    assert all(math.isfinite(value) for value in (*plan.stats.values(), *plan.scores.values()))
    assert words(decide(base))["b2"] == "bad-load"


def test_upstreams_arithmetic():
    assert divide(1.0, 0.0) == math.inf
    assert divide(-1.0, 0.0) == -math.inf
    assert divide(1.0, -0.0) == -math.inf
    assert math.isnan(divide(0.0, 0.0))
    assert math.isnan(divide(math.nan, 0.0))
    assert divide(3.0, 2.0) == 1.5
    assert sorted([math.nan, 1.0, 0.0, -0.0, -math.inf], key=ascending)[:3] == [-math.inf, -0.0, 0.0]
    assert math.copysign(1.0, min([0.0, -0.0], key=ascending)) == -1.0
    assert math.isnan(sorted([math.nan, math.inf], key=ascending)[1])
    spread = UpstreamSpread([0.2, 0.8])
    assert (spread.mean, spread.std) == (0.5, pytest.approx(0.3))
    spread.shift(0.8, 0.2, 0.3)
    assert spread.std == pytest.approx(0.0, abs=1e-7)
    assert (UpstreamSpread([]).mean, UpstreamSpread([]).std) == (0.0, 0.0)


# --- 0038: another destination ---------------------------------------------------------------


def test_0038_where_the_lightest_may_not_take_it_the_next_one_is_asked():
    def not_b1(_bundle, broker):
        return "version" if broker == "b1" else None

    base = cluster(THREE)
    # 9 * 0.3 / 0.9 = 3 MB/s to b2.
    assert len(decide(base, can_take=not_b1).moves) == 3
    assert {move[2] for move in moves(decide(base, can_take=not_b1))} == {"b2"}
    assert not decide(base, can_take=not_b1, upstream=True).moves
    assert not decide(base, can_take=not_b1, max_destinations_per_source=1).moves


def test_0038_an_idle_broker_is_not_mended_by_filling_another_one():
    rows = {"b1": (0.05, [0.1]), "b2": (0.45, [1] * 4), "b3": (0.5, [1] * 5), "b4": (0.5, [1] * 5)}
    base = cluster(rows)
    assert {move[2] for move in moves(decide(base))} == {"b1"}
    refused = decide(base, can_take=lambda _bundle, broker: "racks" if broker == "b1" else None)
    assert refused.reason is Reason.NO_BUNDLES
    assert not refused.moves


# --- the rest of upstream's cycle ------------------------------------------------------------


def test_upstream_without_brokers_or_reports():
    assert decide(Cluster({}, {}), {"hits": 2}, upstream=True).reason is Reason.NO_BROKERS
    alone = with_report(cluster({"b1": (0.9, [1, 1])}), "b1", updated_at_ms=0)
    assert decide(alone, upstream=True).reason is Reason.OUTDATED_DATA


def test_upstream_counts_what_it_could_not_do():
    empty = cluster({"low": (0.1, []), "top": (0.9, [])})
    assert decide(empty, upstream=True).reason is Reason.NO_LOAD_DATA
    sole = cluster({"low": (0.1, []), "top": (0.9, [9])})
    assert decide(sole, upstream=True).reason is Reason.NO_BUNDLES
    assert decide(cluster(SWAP), upstream=True, max_pairs_per_cycle=0).reason is Reason.HIT_COUNT


def test_upstream_leaves_the_last_reported_bundle():
    base = cluster({"low": (0.1, []), "top": (0.9, [0.1, 0.1])})
    base = with_report(base, "top", msg_throughput_in=9 * MB)
    plan = decide(base, upstream=True)
    assert moves(plan) == [(key("top", 0), "top", "low")]
    assert words(plan)[key("top", 1)] == "last-one"


def test_upstream_asks_policies_and_filters_and_takes_a_failure_for_a_no():
    def broken(_bundle, _broker):
        raise OSError

    base = cluster(THREE)
    assert not decide(base, upstream=True, can_take=broken).moves
    grouped = replace(base, policies=Policies(anti_affinity={"acme/b2": "racks", "acme/b3": "racks"}))
    assert not decide(grouped, upstream=True).moves
    assert words(decide(grouped, upstream=True))[key("b3", 0)] == "filtered"
    assert decide(grouped, upstream=True, shed_with_policies=True).moves


def test_upstream_without_transfer():
    plan = decide(cluster(THREE), upstream=True, transfer=False)
    assert {(move.source, move.destination) for move in plan.moves} == {("b3", None)}
    assert plan.memory["receivers"] == []
    assert not decide(cluster(SWAP), upstream=True, transfer=False).moves
