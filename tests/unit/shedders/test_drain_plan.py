"""The plan of a drain: rate, order, receivers, filters, and when it is over."""

from dataclasses import replace

import pytest

from shedders.balancer.drain_plan import FAILED, DrainReceivers, TokenBucket, holdings
from shedders.decision.placing import Pipeline
from shedders.model.cluster import Bundle, Cluster, IsolationPolicy, Policies
from shedders.model.plan import Placed, Reason
from shedders.weighted_move.strategy import WeightedMove
from statechannel.engine.cluster_view import BundleSeen, ClusterView
from tests.support import loads
from tests.support.drains import OPERATION, Twin, holding, make_cluster, pipeline, plan

NAMES = [f"t/n/0x{n:08x}_0x{n + 1:08x}" for n in range(32)]


# --- rate -----------------------------------------------------------------------------------------------------------


def test_bucket_lets_so_many_through_and_no_more() -> None:
    bucket = TokenBucket(10.0, burst=2.5)
    assert bucket.available(0.0) == 2
    bucket.take(2)
    assert bucket.available(0.0) == 0
    assert bucket.wait_s() == pytest.approx(0.05)
    assert bucket.available(0.04) == 0
    assert bucket.available(0.05) == 1
    bucket.take(1)
    assert bucket.available(1_000.0) == 2, "what is saved up is bounded"


def test_bucket_below_one_a_second() -> None:
    bucket = TokenBucket(0.1, burst=0.025)
    assert bucket.available(5.0) == 1
    bucket.take(1)
    assert bucket.available(14.9) == 0
    assert bucket.available(15.0) == 1


def test_bucket_of_a_clock_that_goes_back() -> None:
    bucket = TokenBucket(1.0)
    bucket.available(10.0)
    bucket.take(1)
    assert bucket.available(5.0) == 0
    assert bucket.available(10.5) == 0, "time that was counted is not counted again"
    assert bucket.available(11.0) == 1


@pytest.mark.parametrize("rate_per_s", [0.0, -1.0, float("nan")])
def test_no_rate(rate_per_s: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        TokenBucket(rate_per_s)


@pytest.mark.parametrize(("rate_per_s", "least_s"), [(5.0, 5.5), (10.0, 2.6), (50.0, 0.3)])
def test_a_drain_keeps_to_its_rate(rate_per_s: float, least_s: float) -> None:
    twin = Twin(
        make_cluster({"b1": 30, "b2": 0, "b3": 0}), plan(rate_per_s=rate_per_s, moves_at_once=1_000), report_s=0.0
    )
    assert twin.run().left == ()
    times = [at_s for at_s, _ in twin.begun]
    assert times[-1] - times[0] >= least_s
    for index, at_s in enumerate(times):
        within = sum(at_s <= other <= at_s + 1.0 for other in times[index:])
        assert within <= rate_per_s * 1.25 + 1


# --- receivers ------------------------------------------------------------------------------------------------------


def test_a_receiver_gets_so_many_and_then_none_until_it_reports() -> None:
    planned = plan(ahead_max=2, moves_at_once=100)
    cluster = make_cluster({"b1": 6, "b2": 0, "b3": 0})
    first = planned.step(cluster, holding(cluster, "b1"), pipeline(), 0.0)
    assert sorted(move.destination or "" for move in first.moves) == ["b2", "b2", "b3", "b3"]
    for move in first.moves:
        planned.ended(move.bundle, 1.0, done=True, why="")
    bundles = {
        name: replace(bundle, owner=next((m.destination for m in first.moves if m.bundle == name), bundle.owner))
        for name, bundle in cluster.bundles.items()
    }
    lapsed = {name: replace(broker, load_lapsed=name != "b1") for name, broker in cluster.brokers.items()}
    waiting = replace(cluster, bundles=bundles, brokers=lapsed)
    second = planned.step(waiting, holding(waiting, "b1"), pipeline(), 2.0)
    assert second.moves == []
    assert second.paused == "waiting for reports of b2, b3"
    assert not second.ended

    reported = replace(waiting, brokers={**lapsed, "b3": replace(lapsed["b3"], load_lapsed=False)})
    third = planned.step(reported, holding(reported, "b1"), pipeline(), 3.0)
    assert [move.destination for move in third.moves] == ["b3", "b3"]


def test_a_report_that_never_comes_is_not_waited_for_for_ever() -> None:
    receivers = DrainReceivers(1, report_wait_s=30.0)
    brokers = {"b2": replace(loads.broker("b2", 0.1), load=None)}
    receivers.begun("b2", NAMES[0])
    receivers.look(brokers, 0.0)
    receivers.look(brokers, 1_000.0)
    assert receivers.room("b2") == 0, "it is on its way still"
    receivers.ended("b2", NAMES[0], 1_000.0, arrived=True)
    receivers.look(brokers, 1_029.0)
    assert (receivers.room("b2"), receivers.in_vain) == (0, 0)
    receivers.look(brokers, 1_030.0)
    assert (receivers.room("b2"), receivers.in_vain) == (1, 1)


def test_a_move_that_failed_and_a_receiver_that_is_gone_hold_nothing_back() -> None:
    receivers = DrainReceivers(1, report_wait_s=30.0)
    receivers.begun("b2", NAMES[0])
    receivers.ended("b2", NAMES[0], 0.0, arrived=False)
    assert receivers.room("b2") == 1
    receivers.begun("b2", NAMES[1])
    receivers.ended("b2", NAMES[1], 0.0, arrived=True)
    receivers.look({}, 0.1)
    assert (receivers.room("b2"), receivers.in_vain) == (1, 0)


def test_a_report_has_what_came_before_it_although_more_came_since() -> None:
    receivers = DrainReceivers(100, report_wait_s=30.0)
    for name in NAMES[:3]:
        receivers.begun("b2", name)
    receivers.ended("b2", NAMES[0], 10.0, arrived=True)
    receivers.ended("b2", NAMES[1], 14.0, arrived=True)
    lapsed = {"b2": replace(loads.broker("b2", 0.1), load_lapsed=True, load_age_s=2.0)}
    receivers.look(lapsed, 15.0)
    assert receivers.ahead(lapsed, 15.0) == {"b2": NAMES[1:3]}, "the report of 13.0 has the first"
    silent = {"b2": replace(lapsed["b2"], load=None)}
    assert receivers.ahead(silent, 15.0) == {"b2": NAMES[:3]}


def test_a_bundle_that_a_stale_report_has_counts_once() -> None:
    """Of two equal receivers, the one whose report has what came is not fuller for that it has become stale since."""
    planned = plan(ahead_max=10, moves_at_once=100)
    cluster = make_cluster({"b1": 1, "b2": 0, "b3": 0}, weights=lambda _: 5e6)
    came = [loads.bundle(number, "b2", bytes_per_s=5e6) for number in range(10, 14)]
    for bundle in came:
        planned.receivers.begun("b2", bundle.name)
        planned.receivers.ended("b2", bundle.name, 10.0, arrived=True)
    brokers = {
        **cluster.brokers,
        "b2": replace(loads.broker("b2", 0.30, bytes_per_s=30e6), load_lapsed=True, load_age_s=2.0),
        "b3": replace(loads.broker("b3", 0.35, bytes_per_s=35e6), load_age_s=2.0),
    }
    seen = replace(cluster, brokers=brokers, bundles={**cluster.bundles, **{bundle.name: bundle for bundle in came}})
    step = planned.step(seen, holding(cluster, "b1"), Pipeline(WeightedMove(WeightedMove.Settings())), 15.0)
    assert [move.destination for move in step.moves] == ["b2"]


# --- which, and where -----------------------------------------------------------------------------------------------


def test_the_heaviest_first_and_equals_by_name() -> None:
    weights = [1e6, 5e6, 5e6, 3e6]
    cluster = make_cluster({"b1": 4, "b2": 0}, weights=lambda n: weights[n])
    step = plan().step(cluster, holding(cluster, "b1"), pipeline(), 0.0)
    assert [move.bundle for move in step.moves] == [NAMES[1], NAMES[2], NAMES[3], NAMES[0]]
    by_name = plan(order="name").step(cluster, holding(cluster, "b1"), pipeline(), 0.0)
    assert [move.bundle for move in by_name.moves] == NAMES[:4]
    assert {move.reason for move in step.moves} == {Reason.ADMIN}
    assert step.moves[0].why.startswith(f"drain {OPERATION} of b1: ")
    assert step.moves[0].load == 5e6


def test_the_drained_broker_is_no_destination_even_where_no_policy_says_so() -> None:
    cluster = make_cluster({"b1": 8, "b2": 0})
    step = plan().step(cluster, holding(cluster, "b1"), pipeline(), 0.0)
    assert {move.destination for move in step.moves} == {"b2"}


def test_two_drains_at_once_do_not_fill_each_other() -> None:
    cluster = make_cluster({"b1": 4, "b2": 4, "b3": 0}, policies=Policies(cordons={"b1": "drain", "b2": "drain"}))
    receivers = DrainReceivers(5, 30.0)
    first, second = plan("b1"), plan("b2")
    first.receivers = second.receivers = receivers
    moves = [
        *first.step(cluster, holding(cluster, "b1"), pipeline(), 0.0).moves,
        *second.step(cluster, holding(cluster, "b2"), pipeline(), 0.0).moves,
    ]
    assert [move.destination for move in moves] == ["b3"] * 5, "together they keep to what a receiver gets ahead"


def test_where_nobody_reports_the_fewest_bundles_decide() -> None:
    cluster = make_cluster({"b1": 4, "b2": 3, "b3": 1})
    silent = replace(cluster, brokers={name: replace(broker, load=None) for name, broker in cluster.brokers.items()})
    step = plan().step(silent, holding(silent, "b1"), pipeline(), 0.0)
    assert [move.destination for move in step.moves].count("b3") == 3
    assert "fewest bundles: 1" in step.moves[0].why


class Undecided:
    """A placement that has nothing to go by."""

    name = "undecided"

    def place(self, _cluster: Cluster, bundle: Bundle, *_: object) -> Placed:
        return Placed(bundle.name, None, "no load data")


def test_where_the_strategy_has_nothing_to_go_by_the_fewest_bundles_decide() -> None:
    cluster = make_cluster({"b1": 4, "b2": 3, "b3": 1})
    step = plan().step(cluster, holding(cluster, "b1"), Pipeline(Undecided()), 0.0)  # type: ignore[arg-type]
    assert [move.destination for move in step.moves].count("b3") == 3
    assert "b3 has the fewest bundles (no load data)" in step.moves[0].why


# --- what stays -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policies", "word", "said"),
    [
        (Policies(pins={"t/n": "b1"}), "pin", "it is pinned to b1"),
        (Policies(cordons={"b2": "disk", "b3": "disk"}), "cordon", "it is cordoned: disk"),
        (Policies(isolation=[IsolationPolicy("gold", ["t/n"], ["b1"])]), "isolation", "gold"),
    ],
)
def test_what_nobody_may_take_stays_and_says_why(policies: Policies, word: str, said: str) -> None:
    twin = Twin(make_cluster({"b1": 3, "b2": 0, "b3": 0}, policies=policies), plan())
    begun_s = twin.now_s
    step = twin.run()
    assert [bundle.name for bundle in step.left] == NAMES[2::-1]
    assert {bundle.reason for bundle in step.left} == {word}
    assert said in step.left[0].why
    assert step.left[0].why.startswith("no other broker may take it: ")
    assert twin.begun == []
    assert 5.0 <= twin.now_s - begun_s < 7.0, "a receiver may be about to come back"


def test_the_only_broker() -> None:
    step = Twin(make_cluster({"b1": 2}), plan()).run()
    assert [bundle.reason for bundle in step.left] == ["no-other-broker"] * 2


def test_what_can_go_goes_though_some_cannot() -> None:
    twin = Twin(make_cluster({"b1": 6, "b2": 0}, policies=Policies(pins={NAMES[2]: "b1", NAMES[4]: "b1"})), plan())
    step = twin.run()
    assert [bundle.name for bundle in step.left] == [NAMES[4], NAMES[2]]
    assert twin.drain.moved == 4


def test_force_goes_past_policies_but_not_past_cordons() -> None:
    policies = Policies(
        pins={NAMES[0]: "b1"}, isolation=[IsolationPolicy("gold", ["t/n"], ["b1"])], cordons={"b2": "disk"}
    )
    twin = Twin(make_cluster({"b1": 3, "b2": 0, "b3": 0}, policies=policies), plan(force=True))
    assert twin.run().left == ()
    assert {move.destination for _, move in twin.begun} == {"b3"}
    assert all("forced, although no broker may take it: " in move.why for _, move in twin.begun)

    nowhere = Policies(cordons={"b2": "disk", "b3": "disk"})
    assert len(Twin(make_cluster({"b1": 3, "b2": 0, "b3": 0}, policies=nowhere), plan(force=True)).run().left) == 3


def test_a_receiver_that_comes_back_in_time_is_used() -> None:
    twin = Twin(make_cluster({"b1": 2, "b2": 0}), plan())
    away = replace(twin.cluster.brokers["b2"], accepting=False)
    twin.cluster = replace(twin.cluster, brokers={**twin.cluster.brokers, "b2": away})
    step = twin.drain.step(twin.cluster, holding(twin.cluster, "b1"), pipeline(), twin.now_s)
    assert [bundle.reason for bundle in step.left] == ["accepting", "accepting"]
    assert not step.ended
    twin.now_s += 4.0
    twin.cluster = replace(twin.cluster, brokers={**twin.cluster.brokers, "b2": replace(away, accepting=True)})
    assert twin.run().left == ()


# --- trouble --------------------------------------------------------------------------------------------------------


def test_a_bundle_whose_moves_fail_is_tried_again_later_each_time_and_then_left() -> None:
    twin = Twin(make_cluster({"b1": 1, "b2": 0}), plan(attempts_max=3), fails=lambda _: True)
    step = twin.run()
    assert [bundle.reason for bundle in step.left] == [FAILED]
    times = [at_s for at_s, _ in twin.begun]
    assert len(times) == 3
    assert times[1] - times[0] >= 1.0 + twin.move_s
    assert times[2] - times[1] >= 2.0 + twin.move_s


def test_one_failure_does_not_hold_the_others_back() -> None:
    twin = Twin(make_cluster({"b1": 10, "b2": 0, "b3": 0}), plan(), fails=lambda number: number == 0)
    assert twin.run().left == ()
    assert twin.drain.moved == 10
    assert len(twin.begun) == 11


def test_nothing_is_begun_in_safe_mode_and_nothing_is_taken_for_the_end() -> None:
    planned, cluster = plan(patience_s=0.0, quiet_s=0.0), make_cluster({"b1": 2, "b2": 0})
    safe = replace(cluster, safe="this broker is in safe mode")
    for held in (holding(safe, "b1"), {}):
        step = planned.step(safe, held, pipeline(), 0.0)
        assert (step.moves, step.ended, step.paused) == ((), False, "this broker is in safe mode")
    assert len(planned.step(cluster, holding(cluster, "b1"), pipeline(), 1.0).moves) == 2


def test_a_broker_that_dies_in_the_middle_is_left_to_the_repair() -> None:
    planned, cluster = plan(), make_cluster({"b1": 2, "b2": 0})
    dead = replace(cluster, brokers={"b2": cluster.brokers["b2"]})
    step = planned.step(dead, holding(dead, "b1"), pipeline(), 0.0)
    assert (step.moves, step.remaining, step.ended) == ((), 2, False)
    assert step.paused == "b1 has failed; the leader repairs its bundles"
    assert planned.step(dead, {}, pipeline(), 10.0).ended is False
    assert planned.step(dead, {}, pipeline(), 11.5).ended is True


def test_it_has_to_be_empty_for_a_while() -> None:
    planned, cluster = plan(quiet_s=1.5), make_cluster({"b1": 1, "b2": 0})
    assert not planned.step(cluster, {}, pipeline(), 0.0).ended
    late = planned.step(cluster, holding(cluster, "b1"), pipeline(), 1.4)
    assert len(late.moves) == 1, "somebody placed one there meanwhile"
    planned.ended(late.moves[0].bundle, 1.5, done=True, why="")
    assert not planned.step(cluster, {}, pipeline(), 1.6).ended
    assert planned.step(cluster, {}, pipeline(), 3.1).ended


def test_what_is_on_its_way_is_waited_for() -> None:
    planned, cluster = plan(patience_s=0.0), make_cluster({"b1": 1, "b2": 0})
    step = planned.step(cluster, {NAMES[0]: True}, pipeline(), 0.0)
    assert (step.moves, step.remaining, step.ended) == ([], 1, False)


# --- what a broker has ----------------------------------------------------------------------------------------------


def test_holdings() -> None:
    def seen(number: int, state: str, owner: str | None, destination: str | None) -> BundleSeen:
        return BundleSeen(NAMES[number], state, 1, owner, destination, 1, 0, 0)

    bundles = [
        seen(0, "Assigned", "b1", None),
        seen(1, "Releasing", "b1", "b2"),
        seen(2, "Releasing", "b1", None),
        seen(3, "Splitting", "b1", None),
        seen(4, "Assigning", None, "b1"),
        seen(5, "Assigning", None, "b2"),
        seen(6, "Releasing", "b2", "b1"),
        seen(7, "Assigned", "b2", None),
        seen(8, "Unassigned", None, None),
    ]
    picture = ClusterView("b1", True, 1, "normal", True, False, None, [0], [], bundles)
    expected = {NAMES[0]: False, NAMES[1]: True, NAMES[2]: True, NAMES[3]: True, NAMES[4]: True, NAMES[6]: True}
    assert holdings(picture, "b1") == expected
