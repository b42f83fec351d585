"""The cluster as strategies see it: from the channel's picture, reports and policies; and what has moved lately."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaddata.model.bundle_load import BundleAverages, MessageAverage, TopBundle
from loaddata.report.record import ReportedLoad, ReportedTopBundles
from shedders.balancer.active_strategies import choose
from shedders.balancer.cluster_inputs import (
    REMEMBERED_MAX,
    BundleCache,
    ClusterInputs,
    RecentTrail,
    broker_now,
    cluster_now,
    under_way,
    why_left_alone,
)
from shedders.balancer.settings import BalancerSettings
from shedders.decision.dry_run import decide
from shedders.model.cluster import Policies, RecentMoves
from statechannel.broker.changes import Change
from statechannel.engine.cluster_view import BrokerSeen, BundleSeen, ClusterView
from statechannel.protocol.states import State
from tests.support.live_balancer import key, load, stats


def seen(name: str = "b1", **info: Any) -> BrokerSeen:
    return BrokerSeen(name, "i1", True, True, 0.1, info)


PICTURE = ClusterView("b1", True, 7, "normal", True, False, None, [1], [seen("b1"), seen("b2")], [])


def bundle(
    number: int, state: State = State.ASSIGNED, owner: str | None = "b1", destination: str | None = None
) -> BundleSeen:
    return BundleSeen(key(number), state, 3, owner, destination, 3, 0, number)


def top(*numbers: int, age_s: float = 1.0, rate: float = 100.0, lapsed: bool = False) -> ReportedTopBundles:
    averages = BundleAverages(*[MessageAverage(rate, rate, rate, rate, samples=10)] * 2)
    return ReportedTopBundles([TopBundle(key(number), stats(rate), averages) for number in numbers], age_s, lapsed)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, None),
        ({"current": False}, "this broker has not caught up with the channel"),
        ({"mode": "safe"}, "this broker is in safe mode"),
        ({"draining": True}, "this broker is leaving"),
        ({"repair_paused": "three vanished"}, "repair is paused: three vanished"),
    ],
)
def test_when_everybody_is_left_alone(change: dict[str, Any], why: str | None) -> None:
    assert why_left_alone(PICTURE._replace(**change)) == why
    assert cluster_now(PICTURE._replace(**change), ClusterInputs(), 5).safe == why


def test_more_may_say_that_it_is_to_be_left_alone() -> None:
    assert cluster_now(PICTURE, ClusterInputs(safe="upgrade"), 5).safe == "upgrade"


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({}, {"manager": "extensible", "version": None, "domain": None, "web_address": None, "persistent": True}),
        ({"software": "4.2.4", "persistent": False}, {"version": "4.2.4", "persistent": False}),
        ({"software": 4, "properties": "none", "listeners": "none"}, {"version": None, "web_address": None}),
        (
            {"properties": {"failure-domain": "rack-1", "load-manager": "modular"}},
            {"domain": "rack-1", "manager": "modular"},
        ),
        ({"properties": {"failure-domain": 7, "web-address": ""}}, {"domain": None, "web_address": None}),
        ({"listeners": {"http": "http://h1:8080"}}, {"web_address": "h1:8080"}),
        ({"listeners": {"http": "http://[half"}}, {"web_address": None}),
        ({"listeners": {"http": 8080, "https": "https://h2:8443"}}, {"web_address": "h2:8443"}),
        ({"listeners": {"web": "http://h4:8080"}}, {"web_address": "h4:8080"}),
        ({"listeners": {"a": "HTTPS://h5", "b": "http://h4", "http": "http://[half"}}, {"web_address": "h4"}),
        ({"listeners": {"a": "http://h4", "https": "https://h5"}}, {"web_address": "h5"}),
        ({"listeners": {"pulsar": "pulsar://h4:6650"}}, {"web_address": None}),
        ({"listeners": {"http": "http://h1"}, "properties": {"web-address": "w:1"}}, {"web_address": "w:1"}),
    ],
)
def test_nothing_that_a_broker_says_of_itself_is_taken_for_granted(info: Any, expected: dict[str, Any]) -> None:
    broker = broker_now(seen(**info), ClusterInputs())
    assert {name: getattr(broker, name) for name in expected} == expected
    assert broker.load is None


def test_operators_stand_over_a_brokers_own_domain() -> None:
    info = {"properties": {"failure-domain": "rack-1"}}
    assert broker_now(seen(**info), ClusterInputs(domains={"b1": "rack-9"})).domain == "rack-9"


def test_a_report_comes_with_its_age_and_whether_it_has_lapsed() -> None:
    broker = broker_now(seen(), ClusterInputs(loads={"b1": ReportedLoad(load(0.7), 12.5, lapsed=True)}))
    assert (broker.load, broker.load_age_s, broker.load_lapsed) == (load(0.7), 12.5, True)


@pytest.mark.parametrize(
    ("state", "owner", "in_flight", "arrived"),
    [
        (State.ASSIGNED, "b1", False, "b1"),
        (State.UNASSIGNED, None, False, None),
        (State.ASSIGNING, None, True, "b2"),
        (State.RELEASING, "b1", True, "b2"),
        (State.SPLITTING, "b1", True, "b1"),
    ],
)
def test_who_serves_a_bundle_by_its_state(state: State, owner: str | None, in_flight: bool, arrived: str | None):
    on_its_way = "b2" if state in (State.ASSIGNING, State.RELEASING) else None
    picture = PICTURE._replace(bundles=[bundle(0, state, owner, on_its_way)])
    subject = cluster_now(picture, ClusterInputs(), 5).bundles[key(0)]
    assert (subject.owner, subject.in_flight, subject.stats) == (owner, in_flight, None)
    later = cluster_now(picture, ClusterInputs(), 5, arrived=True).bundles[key(0)]
    assert (later.owner, later.in_flight) == (arrived, in_flight)


def test_figures_are_those_of_the_owners_report() -> None:
    picture = PICTURE._replace(bundles=[bundle(number) for number in range(2)])
    bundles = cluster_now(
        picture, ClusterInputs(tops={"b1": top(2, 0, age_s=9), "b2": top(0, age_s=1, rate=7)}), 5
    ).bundles
    assert (bundles[key(0)].stats, bundles[key(0)].rank, bundles[key(0)].secondhand) == (stats(), 1, False)
    assert (bundles[key(1)].stats, bundles[key(1)].rank, bundles[key(1)].secondhand) == (None, None, False)


@pytest.mark.parametrize(
    "tops",
    [
        pytest.param({"b2": top(0, rate=7)}, id="the-broker-that-had-it-before"),
        pytest.param({"b1": top(0, rate=7, lapsed=True)}, id="what-it-serves-has-changed-since"),
        pytest.param({"b1": top(0, rate=5, age_s=3, lapsed=True), "b2": top(0, rate=7, age_s=2)}, id="the-youngest"),
    ],
)
def test_figures_that_were_not_measured_where_it_is_serve_placements_alone(tops: dict[str, ReportedTopBundles]) -> None:
    subject = cluster_now(PICTURE._replace(bundles=[bundle(0)]), ClusterInputs(tops=tops), 5).bundles[key(0)]
    assert (subject.stats, subject.rank, subject.secondhand) == (None, None, True)
    assert subject.averages.short.msg_rate_in == 7


@pytest.mark.parametrize(
    ("state", "as_of", "lapsed", "own"),
    [
        pytest.param(State.ASSIGNED, {3: 7}, True, True, id="other-bundles-came-or-went"),
        pytest.param(State.ASSIGNED, {3: 6}, True, False, id="it-came-since"),
        pytest.param(State.ASSIGNED, {3: 6}, False, False, id="it-came-since-and-nobody-has-marked-the-report-yet"),
        pytest.param(State.ASSIGNED, {2: 99}, True, False, id="nothing-said-of-its-partition"),
        pytest.param(State.RELEASING, {3: 7}, True, True, id="released-before-the-report"),
        pytest.param(State.RELEASING, {3: 6}, True, False, id="released-since-nobody-knows-when-it-came"),
        pytest.param(State.RELEASING, {3: 6}, False, True, id="released-since-it-was-there"),
    ],
)
def test_a_report_is_judged_for_each_bundle(state: State, as_of: dict[int, int], lapsed: bool, own: bool) -> None:
    going = "b2" if state == State.RELEASING else None
    result = bundle(0, state, destination=going)._replace(partition=3, offset=7)
    known = ClusterInputs(tops={"b1": top(0, lapsed=lapsed)._replace(owned_as_of=as_of)})
    for kept in (None, BundleCache()):
        subject = cluster_now(PICTURE._replace(bundles=[result]), known, 5, kept=kept).bundles[key(0)]
        assert (subject.stats, subject.secondhand) == ((stats(), False) if own else (None, True))


def test_after_the_first_move_away_the_others_keep_their_figures() -> None:
    """Of what a drain has not moved yet it must go on to take the heaviest first."""
    kept, at = BundleCache(), {0: 5}
    held = [bundle(number)._replace(partition=0, offset=number) for number in range(3)]
    tops = {"b1": top(0, 1, 2)._replace(owned_as_of=at)}
    before = cluster_now(PICTURE._replace(bundles=held), ClusterInputs(tops=tops), 5, kept=kept)
    assert [bundle.stats for bundle in before.bundles.values()] == [stats()] * 3
    gone = held[2]._replace(owner="b2", version=6, offset=9)
    marked = {"b1": tops["b1"]._replace(lapsed=True)}
    after = cluster_now(PICTURE._replace(bundles=[*held[:2], gone]), ClusterInputs(tops=marked), 5, kept=kept).bundles
    assert [after[key(number)].stats for number in range(3)] == [stats(), stats(), None]
    assert [after[key(number)].secondhand for number in range(3)] == [False, False, True]


def test_nobody_who_is_not_registered_says_anything_of_a_bundle() -> None:
    picture = PICTURE._replace(bundles=[bundle(0), bundle(1)])
    known = ClusterInputs(tops={"b1": top(0, age_s=9), "nobody": top(0, 1, age_s=0, rate=7)})
    bundles = cluster_now(picture, known, 5).bundles
    assert (bundles[key(0)].stats, bundles[key(0)].rank) == (stats(), 0)
    assert (bundles[key(1)].stats, bundles[key(1)].averages) == (None, BundleAverages())


@pytest.mark.parametrize("shedding", ["transfer", "threshold", "overload", "uniform", "deviation", "avg"])
@pytest.mark.parametrize("tops", [{"b1": top(0, 1, 2, lapsed=True)}, {"b2": top(0, 1, 2)}], ids=["lapsed", "foreign"])
def test_nothing_is_shed_by_such_figures(shedding: str, tops: dict[str, ReportedTopBundles]) -> None:
    picture = PICTURE._replace(bundles=[bundle(number) for number in range(3)])
    loads = {}
    for name, usage, rate in (("b1", 0.95, 5_000.0), ("b2", 0.05, 10.0)):
        busy = replace(load(usage, rate), msg_throughput_in=rate * 1024, msg_throughput_ema=rate * 1024)
        loads[name] = ReportedLoad(busy, 1.0, lapsed=False)
    chosen = choose(BalancerSettings(shedding=shedding))
    memory = {"hits": 9} if shedding == "transfer" else {}
    for known, moves in (({"b1": top(0, 1, 2, rate=500)}, True), (tops, False)):
        cluster = cluster_now(picture, ClusterInputs(loads=loads, tops=known), 5)
        decision = decide(cluster, chosen.shedding, memory, chosen.pipeline)
        # These two wait for a condition that is met several times in a row.
        assert bool(decision.moves) is (moves and shedding not in ("uniform", "avg")), decision.plan


def test_what_is_on_its_way_between_two_brokers_is_booked_where_it_goes() -> None:
    going = [
        bundle(0, State.RELEASING, "b1", "b2"),
        bundle(1, State.ASSIGNING, None, "b2")._replace(source="b1"),
        bundle(2, State.ASSIGNING, None, "b2"),  # from nobody: it is placed, not moved
        bundle(3, State.ASSIGNING, None, "b2")._replace(source="gone"),
        bundle(4, State.RELEASING, "b1", None),
        bundle(5, State.RELEASING, "b1", "gone"),
        bundle(6),
    ]
    picture = PICTURE._replace(bundles=going)
    bookings = under_way(going, cluster_now(picture, ClusterInputs(), 5))
    expected = [(key(0), "b1", "b2"), (key(1), "b1", "b2")]
    assert [(booking.bundle, booking.source, booking.destination) for booking in bookings] == expected


def test_reports_beyond_their_time_are_not_used() -> None:
    picture = PICTURE._replace(bundles=[bundle(0)])
    for age_s in (31.0, -1.0):
        cluster = cluster_now(picture, ClusterInputs(tops={"b1": top(0, age_s=age_s)}, top_ttl_s=30), 5)
        assert cluster.bundles[key(0)].stats is None


def test_quotas_stand_over_what_was_measured_and_are_known_of_bundles_that_nobody_measured() -> None:
    quota = MessageAverage(1.0, 2.0, 3.0, 4.0, samples=1000)
    picture = PICTURE._replace(bundles=[bundle(0), bundle(1)])
    known = ClusterInputs(tops={"b1": top(0)}, quotas={key(0): quota, key(1): quota})
    bundles = cluster_now(picture, known, 5).bundles
    assert bundles[key(0)].averages == bundles[key(1)].averages == BundleAverages(quota, quota)
    assert (bundles[key(0)].stats, bundles[key(1)].stats) == (stats(), None)


PLACES: list[tuple[State, str | None, str | None]] = [
    (State.ASSIGNED, "b1", None),
    (State.ASSIGNED, "b2", None),
    (State.UNASSIGNED, None, None),
    (State.ASSIGNING, None, "b2"),
    (State.RELEASING, "b1", "b2"),
    (State.SPLITTING, "b1", None),
]


@settings(max_examples=60)
@given(st.data())
def test_what_is_kept_from_cluster_to_cluster_changes_nothing(data: st.DataObject) -> None:
    """Bundles come, go and change; figures and quotas come and go; pictures are kept, made anew, or reordered."""
    kept = BundleCache()
    held: dict[int, BundleSeen] = {}
    picture = PICTURE
    for _ in range(data.draw(st.integers(1, 5))):
        for number in data.draw(st.lists(st.integers(0, 7), max_size=4)):
            place = data.draw(st.sampled_from([None, *PLACES]))
            held.pop(number, None)
            if place is not None:
                held[number] = bundle(number, *place)
        if data.draw(st.booleans()):
            picture = PICTURE._replace(bundles=list(held.values()))
        as_of = data.draw(st.sampled_from([None, {0: 2}, {3: 2}, {0: 5, 3: 5}]))
        tops = {
            name: top(*numbers, age_s=age_s, lapsed=data.draw(st.booleans()))._replace(owned_as_of=as_of)
            for name, numbers, age_s in (
                ("b1", data.draw(st.lists(st.integers(0, 7), max_size=3)), 5.0),
                ("b2", data.draw(st.lists(st.integers(0, 7), max_size=3)), 3.0),
            )
        }
        quotas = {key(number): MessageAverage(1.0, samples=9) for number in data.draw(st.lists(st.integers(0, 7)))}
        known = ClusterInputs(tops=tops, quotas=quotas)
        for arrived in (False, True):
            cluster = cluster_now(picture, known, 5, arrived=arrived, kept=kept)
            assert cluster == cluster_now(picture, known, 5, arrived=arrived)
            assert list(cluster.bundles) == [bundle.bundle for bundle in picture.bundles]


def test_a_bundle_that_has_not_changed_is_the_same_object() -> None:
    kept, first, second = BundleCache(), bundle(0), bundle(1)
    cluster = cluster_now(PICTURE._replace(bundles=[first, second]), ClusterInputs(tops={"b1": top(1)}), 5, kept=kept)
    moved = second._replace(owner="b2", version=6)
    two = cluster_now(PICTURE._replace(bundles=[first, moved]), ClusterInputs(), 5, kept=kept)
    assert two.bundles[key(0)] is cluster.bundles[key(0)]
    assert (cluster.bundles[key(1)].owner, two.bundles[key(1)].owner) == ("b1", "b2")


def test_the_parts_of_a_pinned_bundle_are_pinned() -> None:
    parent = f"{key(0).rpartition('/')[0]}/0x00000000_0xffffffff"
    known = ClusterInputs(policies=Policies(pins={parent: "b2"}))
    cluster = cluster_now(PICTURE._replace(bundles=[bundle(0), bundle(1)]), known, 5)
    assert cluster.policies.pins == {parent: "b2", key(0): "b2", key(1): "b2"}


def test_policies_moves_and_time_are_handed_on() -> None:
    policies, recent = Policies(pins={"t/n": "b1"}), RecentMoves({key(0): 5.0}, {})
    cluster = cluster_now(PICTURE, ClusterInputs(policies=policies, recent=recent), 99)
    assert (cluster.policies, cluster.recent, cluster.now_ms) == (policies, recent, 99)


# --- what has moved lately ------------------------------------------------------------------------------------------


def change(number: int, from_: str | None, to: str | None, state: State = State.ASSIGNED) -> Change:
    return Change(0, number, 1, key(number), state, 3, from_, to, "b1", "i1")


def test_a_bundle_that_came_to_another_broker_is_remembered_for_a_while() -> None:
    keep_s = 30.0
    trail = RecentTrail(lambda: keep_s)
    trail.changed(change(0, "b1", "b2"), 10.0)
    trail.changed(change(1, "b2", "b3"), 20.0)
    assert trail.recent(25.0) == RecentMoves({key(0): 15.0, key(1): 5.0}, {"b1": 15.0, "b2": 5.0, "b3": 5.0})
    assert trail.recent(45.0) == RecentMoves({key(1): 25.0}, {"b2": 25.0, "b3": 25.0})
    keep_s = 10.0
    assert trail.recent(45.0) == RecentMoves({}, {})


@pytest.mark.parametrize(
    "change",
    [
        change(0, None, "b1"),
        change(0, "b1", "b1"),
        change(0, "b1", None),
        change(0, "b1", "b2", State.ASSIGNING),
        change(0, "b1", "b2", State.RELEASING),
    ],
)
def test_what_is_no_move(change: Change) -> None:
    trail = RecentTrail(lambda: 30.0)
    trail.changed(change, 10.0)
    assert trail.recent(10.0) == RecentMoves({}, {})


def test_the_trail_is_bounded_and_forgets_the_oldest() -> None:
    trail = RecentTrail(lambda: 1e9)
    result = change(0, "b1", "b2")
    for number in range(REMEMBERED_MAX + 5):
        trail.changed(replace(result, bundle=f"t/n/{number}"), float(number))
    moves = trail.recent(float(REMEMBERED_MAX + 5))
    assert len(moves.bundles) == REMEMBERED_MAX
    assert "t/n/4" not in moves.bundles
    assert "t/n/5" in moves.bundles
