"""TransferShedder as it is by default: when it acts, who takes part, what it answers. Figures are computed by hand."""

import json
import math
from dataclasses import replace

import pytest

from loaddata.model.broker_load import ResourceUsage
from shedders.model.cluster import Cluster, IsolationPolicy, Policies, RecentMoves
from shedders.model.plan import Label, Reason
from shedders.model.strategy import Shedding
from shedders.shedding.transfer import TransferShedder
from shedders.shedding.transfer_pairs import TransferSettings
from tests.support.transfer_clusters import (
    MB,
    cluster,
    decide,
    key,
    moves,
    with_broker,
    with_bundle,
    with_report,
    words,
)

FIVE = {"b1": (0.02, [0.1]), "b2": (0.04, [0.2]), "b3": (0.06, [0.3]), "b4": (0.8, [2, 6]), "b5": (0.9, [2, 7])}
TWO = {"low": (0.1, [0.5, 0.5]), "top": (0.9, [1, 2, 3, 3])}
EVEN = {"b1": (0.5, [1, 1]), "b2": (0.55, [1, 1]), "b3": (0.6, [1, 1])}


def test_the_worked_example_of_the_class():
    plan = decide(cluster(FIVE), {"hits": 3}, hit_threshold=3)
    assert moves(plan) == [(key("b4", 0), "b4", "b2"), (key("b5", 0), "b5", "b1")]
    assert (plan.label, plan.reason) == (Label.SUCCESS, Reason.OVERLOADED)
    assert plan.stats["avg"] == pytest.approx(0.364)
    assert plan.stats["std"] == pytest.approx(math.sqrt(0.29112 - 0.132496))
    # 0.22, 0.24, 0.06, 0.60, 0.70: squares 0.0484 + 0.0576 + 0.0036 + 0.36 + 0.49 = 0.9596, a fifth is 0.19192.
    assert plan.stats["std_after"] == pytest.approx(math.sqrt(0.19192 - 0.132496))
    assert plan.memory == {"hits": 0}
    assert plan.stats["hits"] == 4
    assert {move.load for move in plan.moves} == {2 * MB}
    assert "b5 has load 0.900, b1 0.020: 2.0 of the 4.4 MB/s" in plan.moves[0].why


def test_half_of_the_difference_goes_heaviest_first_as_far_as_it_fits():
    # 9 MB/s * 0.4 / 0.9 = 4 MB/s: a bundle of 3 and the one of 1; the one of 2 and the other of 3 do not fit any more.
    plan = decide(cluster(TWO))
    assert moves(plan) == [(key("top", 0), "top", "low"), (key("top", 2), "top", "low")]
    assert plan.stats["std_after"] == pytest.approx(0.0)
    assert words(plan) == {key("top", 1): "enough", key("top", 3): "enough"}


def test_without_transfer_the_destination_is_left_open_and_nothing_comes_back():
    plan = decide(cluster(TWO), transfer=False)
    assert moves(plan) == [(key("top", 0), "top", None), (key("top", 2), "top", None)]
    heavy = cluster({"low": (0.3, [2, 2]), "top": (0.9, [6, 6])})
    assert not decide(heavy, transfer=False).moves
    assert decide(heavy).moves


# --- when it acts ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loads", "reason"),
    [
        # std of 0.35 and 0.85 is 0.25: not above the target; 0.851 makes it so.
        ((0.35, 0.85), None),
        ((0.35, 0.851), Reason.OVERLOADED),
        # m = 0.125; avg 0.32, of which an eighth is 0.04: the lightest has to be below.
        ((0.04, 0.38, 0.38, 0.48), None),
        ((0.039, 0.38, 0.38, 0.481), Reason.UNDERLOADED),
        # One of ten stands out: avg 0.51, std 0.15. Above 0.85 it counts, at 0.85 it does not.
        ((*[0.47] * 9, 0.87), Reason.OVERLOADED),
        ((*[0.47] * 9, 0.85), None),
        # 0.87 is above 0.85, but not above the average by 0.25.
        ((*[0.65] * 9, 0.87), None),
    ],
)
def test_condition(loads, reason):
    base = cluster({f"b{place:02}": (load, [0.01] * 100) for place, load in enumerate(loads)})
    plan = decide(base, hit_threshold=1)
    assert (plan.reason, plan.moves) == (Reason.HIT_COUNT, ())
    assert plan.memory == {"hits": 0 if reason is None else 1}
    plan = decide(base)
    assert (plan.reason if plan.moves else None) is reason


def test_traffic_of_an_idle_broker_is_a_reason_by_itself():
    base = cluster({"b1": (0.4, [1, 1]), "b2": (0.5, [5, 1, 1, 1, 0.5, 0.5])})
    assert decide(base).reason is Reason.HIT_COUNT
    idle = with_report(base, "b1", msg_throughput_ema=0.9 * MB)
    plan = decide(idle)
    assert plan.reason is Reason.UNDERLOADED
    # 9 MB/s * 0.05 / 0.5 = 0.9 MB/s: the first of the bundles of 0.5.
    assert moves(plan) == [(key("b2", 4), "b2", "b1")]


def test_it_acts_only_when_the_condition_was_met_often_enough_in_a_row():
    base, memory, seen = cluster(TWO), {}, []
    for _ in range(6):
        plan = decide(base, memory, hit_threshold=3)
        memory = json.loads(json.dumps(dict(plan.memory)))
        seen.append((plan.reason, len(plan.moves), memory["hits"]))
    assert seen == [
        (Reason.HIT_COUNT, 0, 1),
        (Reason.HIT_COUNT, 0, 2),
        (Reason.HIT_COUNT, 0, 3),
        (Reason.OVERLOADED, 2, 0),
        (Reason.HIT_COUNT, 0, 1),
        (Reason.HIT_COUNT, 0, 2),
    ]


def test_the_row_is_broken_by_an_even_cluster_and_by_one_that_cannot_be_judged():
    assert decide(cluster(EVEN), {"hits": 3}).memory == {"hits": 0}
    assert decide(with_broker(cluster(TWO), "top", load=None), {"hits": 3}).memory == {"hits": 0}


@pytest.mark.parametrize("hits", [-1, 2.5, "3", None, True, [3]])
def test_a_memory_that_is_not_a_count_is_forgotten(hits):
    assert decide(cluster(TWO), {"hits": hits}, hit_threshold=3).memory == {"hits": 1}


def test_pairs_are_made_until_the_spread_is_small_enough_and_not_more_than_allowed():
    rows = {
        **{f"low{place}": (0.2, [1, 1]) for place in range(4)},
        **{f"top{place}": (0.8, [1] * 8) for place in range(4)},
    }
    # A pair of 0.2 and 0.8 becomes 0.5 and 0.5: with one of four std is 0.3 * sqrt(3/4) = 0.26, with two 0.21.
    for most, pairs in ((0, 0), (1, 1), (2, 2), (9, 2)):
        plan = decide(cluster(rows), max_pairs_per_cycle=most)
        assert len({move.source for move in plan.moves}) == pairs
        assert len(plan.moves) == 3 * pairs


def test_no_broker_is_in_two_pairs():
    rows = {"low": (0.1, [0.1, 0.1]), "mid": (0.5, [1] * 5), "top": (0.9, [1] * 9), "xtop": (0.9, [1] * 9)}
    plan = decide(cluster(rows), max_pairs_per_cycle=9)
    pairs = {(move.source, move.destination) for move in plan.moves}
    brokers = [name for pair in pairs for name in pair]
    assert len(brokers) == len(set(brokers))


# --- who takes part --------------------------------------------------------------------------

THREE = {"b1": (0.0, [0.1, 0.1]), "b2": (0.3, [1, 1, 1]), "b3": (0.9, [1] * 9)}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda cluster: with_broker(cluster, "b1", accepting=False), "not-accepting"),
        (lambda cluster: with_broker(cluster, "b1", load=None), "no-load-data"),
        (lambda cluster: with_report(cluster, "b1", updated_at_ms=0), "no-load-data"),
        (lambda cluster: with_broker(cluster, "b1", load_age_s=1800.5), "outdated"),
        (lambda cluster: with_broker(cluster, "b1", load_age_s=math.nan), "outdated"),
        (lambda cluster: with_broker(cluster, "b1", load_lapsed=True), "lapsed"),
        (lambda cluster: with_report(cluster, "b1", weighted_max_ema=math.nan), "bad-load"),
        (lambda cluster: with_report(cluster, "b1", weighted_max_ema=-0.1), "bad-load"),
        (lambda cluster: with_report(cluster, "b1", weighted_max_ema=2e6), "bad-load"),
        (lambda cluster: with_report(cluster, "b1", msg_throughput_in=math.inf), "bad-load"),
        (lambda cluster: with_report(cluster, "b1", msg_throughput_ema=1e19), "bad-load"),
        (lambda cluster: with_report(cluster, "b1", cpu=ResourceUsage(0.0, 0.0)), "no-limits"),
        (lambda cluster: replace(cluster, policies=Policies(cordons={"b1": "disk"})), "cordoned"),
        (lambda cluster: replace(cluster, recent=RecentMoves(brokers={"b1": 180.0})), "cooling"),
        (lambda cluster: replace(cluster, recent=RecentMoves(brokers={"b1": math.nan})), "cooling"),
    ],
)
def test_a_broker_that_takes_no_part_gets_nothing_and_says_why(change, word):
    verdict = change(cluster(THREE))
    plan = decide(verdict)
    assert words(plan)["b1"] == word
    # b2 is the lightest of the rest: 9 MB/s * 0.3 / 0.9 = 3 MB/s go there.
    assert {(move.source, move.destination) for move in plan.moves} == {("b3", "b2")}
    assert len(plan.moves) == 3
    assert plan.stats["brokers"] == 2


def test_a_cordoned_broker_above_the_others_may_give():
    changed = replace(cluster(THREE), policies=Policies(cordons={"b3": "disk"}))
    assert {(move.source, move.destination) for move in decide(changed).moves} == {("b3", "b1")}


def test_nothing_comes_back_to_a_cordoned_broker():
    swapping = cluster({"low": (0.3, [2, 2]), "top": (0.9, [6, 6])})
    assert {move.destination for move in decide(swapping).moves} == {"low", "top"}
    assert not decide(replace(swapping, policies=Policies(cordons={"top": "disk"}))).moves


@pytest.mark.parametrize(
    ("base", "reason"),
    [
        (Cluster({}, {}), Reason.NO_BROKERS),
        (cluster({"b1": (0.9, [1, 1])}), Reason.NO_BROKERS),
        (with_broker(cluster(TWO), "low", load=None), Reason.NO_LOAD_DATA),
        (with_broker(cluster(TWO), "low", load_age_s=9999.0), Reason.OUTDATED_DATA),
        (with_broker(cluster(TWO), "low", load_lapsed=True), Reason.NO_LOAD_DATA),
        (with_report(cluster(TWO), "low", weighted_max_ema=math.inf), Reason.NO_LOAD_DATA),
        (with_broker(cluster(TWO), "low", accepting=False), Reason.NO_BROKERS),
        (replace(cluster(TWO), recent=RecentMoves(brokers={"low": 5.0})), Reason.COOL_DOWN),
    ],
)
def test_too_few_brokers_to_decide_on(base, reason):
    plan = decide(base, {"hits": 9})
    assert (plan.label, plan.reason, plan.moves, plan.memory) == (Label.SKIP, reason, (), {"hits": 0})
    assert "two are needed" in plan.why


def test_all_brokers_cordoned():
    changed = replace(cluster(TWO), policies=Policies(cordons={"low": "x", "top": "y"}))
    assert not decide(changed).moves


def test_with_too_few_reports_nothing_moves():
    rows = {f"b{place}": (0.1 * place, [1, 1, 1]) for place in range(1, 9)}
    base = cluster(rows)
    for name in ("b3", "b4", "b5", "b6"):
        base = with_broker(base, name, load=None)
    assert decide(base).moves
    base = with_broker(base, "b2", load_age_s=5000.0)
    plan = decide(base)
    assert not plan.moves
    assert plan.reason is Reason.OUTDATED_DATA
    assert plan.why == "only 3 of 8 brokers have a usable report"
    assert decide(base, min_reporting_share=0.375).moves


@pytest.mark.parametrize("upstream", [False, True])
def test_a_cluster_in_safe_mode_is_left_alone(upstream):
    plan = decide(replace(cluster(TWO), safe="Kafka is away"), {"hits": 7}, upstream=upstream)
    assert (plan.label, plan.reason, plan.moves) == (Label.SKIP, Reason.UNKNOWN, ())
    assert plan.why == "the cluster is left alone: Kafka is away"
    assert plan.memory == {"hits": 7 if upstream else 0}


# --- what may move ---------------------------------------------------------------------------

ONE_FITS = {"low": (0.1, [0.5, 0.5]), "top": (0.9, [3, 6])}
FITS = key("top", 0)
NAMESPACE = "acme/top"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda cluster: with_bundle(cluster, FITS, in_flight=True), "in-flight"),
        (lambda cluster: with_bundle(cluster, FITS, stats=None), "no-stats"),
        (lambda cluster: replace(cluster, recent=RecentMoves(bundles={FITS: 1800.0})), "recently-moved"),
        (lambda cluster: replace(cluster, recent=RecentMoves(bundles={FITS: math.nan})), "recently-moved"),
        (lambda cluster: replace(cluster, policies=Policies(excluded=frozenset({NAMESPACE}))), "excluded"),
        (lambda cluster: replace(cluster, policies=Policies(anti_affinity={NAMESPACE: "racks"})), "policies"),
        (
            lambda cluster: replace(cluster, policies=Policies([IsolationPolicy("gold", ["acme/t.*"], ["top"])])),
            "policies",
        ),
        (
            lambda cluster: replace(cluster, policies=Policies([IsolationPolicy("bad", ["acme/("], ["top"])])),
            "policies",
        ),
        (lambda cluster: replace(cluster, policies=Policies(pins={FITS: "top"})), "pinned"),
        (lambda cluster: replace(cluster, policies=Policies(pins={NAMESPACE: "elsewhere"})), "pinned"),
    ],
)
def test_a_bundle_that_stays_says_why(change, word):
    verdict = change(cluster(ONE_FITS))
    plan = decide(verdict, max_bundles_per_pair=1)
    assert not plan.moves
    assert words(plan)[FITS] == word
    assert plan.reason is Reason.NO_BUNDLES


@pytest.mark.parametrize("traffic", [math.nan, math.inf, -1.0, 1e19])
def test_a_bundle_with_impossible_traffic_stays(traffic):
    base = cluster(ONE_FITS)
    stats = base.bundles[FITS].stats
    base = with_bundle(base, FITS, stats=replace(stats, msg_throughput_out=traffic))
    plan = decide(base, max_bundles_per_pair=1)
    assert not plan.moves
    assert words(plan)[FITS] == "bad-load"


def test_a_bundle_without_traffic_stays():
    plan = decide(cluster({"low": (0.1, [0.5, 0.5]), "top": (0.9, [0.0, 9])}))
    assert not plan.moves
    assert words(plan) == {key("top", 0): "no-traffic", key("top", 1): "too-heavy", "top": "nothing-fits"}


def test_bundles_with_policies_move_where_that_is_allowed():
    changed = replace(cluster(ONE_FITS), policies=Policies(anti_affinity={NAMESPACE: "racks"}))
    assert moves(decide(changed, shed_with_policies=True)) == [(FITS, "top", "low")]


def test_a_pin_to_the_destination_lets_it_go_there():
    changed = replace(cluster(ONE_FITS), policies=Policies(pins={FITS: "low"}))
    assert moves(decide(changed)) == [(FITS, "top", "low")]


@pytest.mark.parametrize(
    ("row", "word"), [((0.9, [9]), "sole-bundle"), ((0.9, []), "no-traffic"), ((0.9, [5, 4.9]), "nothing-fits")]
)
def test_a_source_that_cannot_be_relieved_says_why(row, word):
    plan = decide(cluster({"low": (0.1, []), "top": row}))
    assert not plan.moves
    assert words(plan)["top"] == word
    assert plan.reason is Reason.NO_BUNDLES


def test_a_source_whose_bundles_are_not_reported_says_so():
    base = cluster(TWO)
    for place in range(4):
        base = with_bundle(base, key("top", place), stats=None)
    assert words(decide(base))["top"] == "no-bundles"


def test_a_pair_that_is_nearly_even_is_not_worth_a_move():
    # std is 0.26, but nobody else is left between the two pairs; the second one is 0.2 apart.
    rows = {"b1": (0.0, []), "b2": (0.4, [1, 1]), "b3": (0.6, [1, 1, 1]), "b4": (0.9, [9])}
    plan = decide(cluster(rows))
    assert words(plan)["b4"] == "sole-bundle"
    assert {(move.source, move.destination) for move in plan.moves} <= {("b3", "b1")}


def test_tries_are_bounded():
    # What a broker would have to give is less than 50 MB/s everywhere, and both bundles have that.
    rows = {"low": (0.1, []), **{f"top{place}": (0.9 - place / 100, [50, 50]) for place in range(9)}}
    plan = decide(cluster(rows), target_std=0.1, max_destinations_per_source=1, max_tries_per_cycle=4)
    results = {left.name: left.reason for left in plan.left if left.name in rows}
    assert results == {**{f"top{place}": "nothing-fits" for place in range(4)}, "top4": "tries-used-up"}


def test_a_long_list_of_bundles_is_not_named_whole():
    base = cluster({"low": (0.0, []), "top": (0.9, [1.0] * 200)})
    base = replace(base, policies=Policies(excluded=frozenset({NAMESPACE})))
    plan = decide(base)
    assert words(plan)["top"] == "no-bundles"
    assert len(plan.left) == 50 + 1


def test_the_port_and_the_settings():
    assert isinstance(TransferShedder(TransferSettings()), Shedding)
    assert (TransferShedder.name, TransferShedder.Settings) == ("transfer", TransferSettings)
    assert [TransferSettings(target_std=std).underloaded_share for std in (0.0, 0.25, 0.8, 2.0)] == [0, 0.125, 0.4, 0.5]
    for name, field in TransferSettings.model_fields.items():
        assert field.description, name


# --- what people read ------------------------------------------------------------------------


@pytest.mark.parametrize("upstream", [False, True])
@pytest.mark.parametrize("hits", [10**400, 2**63])
def test_a_count_that_no_counter_could_come_to_is_more_than_enough(hits, upstream):
    plan = decide(cluster(TWO), {"hits": hits}, hit_threshold=3, upstream=upstream)
    assert plan.moves
    assert json.loads(json.dumps(dict(plan.memory)))["hits"] == 0


def test_a_count_is_no_more_than_what_is_waited_for():
    assert decide(cluster(TWO), {"hits": 10**9}, hit_threshold=3).stats["hits"] == 4
