"""Booked moves: what counts from when to when, and what the budget lets set out."""

from dataclasses import replace

import pytest

from loaddata.model.broker_load import BrokerLoad, ResourceUsage
from loaddata.model.bundle_load import BundleStats
from shedders.decision.booked_moves import BookedMoves, Budget, BudgetSettings, adjusted, admit, on_the_way
from shedders.model.cluster import Broker, Bundle, Cluster, RecentMoves
from shedders.model.moved_cluster import after_moves
from shedders.model.plan import BundleMove, Reason

KEYS = ("t/n/0x00000000_0x40000000", "t/n/0x40000000_0x80000000", "t/n/0x80000000_0xffffffff")
A, B, C = KEYS


def small() -> Cluster:
    """x serves A (100 bytes/s) and B (300), with 80 % CPU; y serves C (100) with 20 %; z nothing."""
    stats = {A: 100.0, B: 300.0, C: 100.0}
    owner = {A: "x", B: "x", C: "y"}
    bundles = {
        key: Bundle(key, owner[key], stats=BundleStats(1.0, 1.0, bytes_in, 0.0, topics=2))
        for key, bytes_in in stats.items()
    }
    brokers = {
        name: Broker(name, load=load(cpu, *(stats[key] for key in KEYS if owner[key] == name)), load_age_s=1.0)
        for name, cpu in (("x", 80.0), ("y", 20.0), ("z", 0.0))
    }
    return Cluster(brokers, bundles, now_ms=1_000_000)


def load(cpu: float, *bytes_in: float) -> BrokerLoad:
    return BrokerLoad(
        cpu=ResourceUsage(cpu, 100.0),
        msg_throughput_in=sum(bytes_in),
        msg_rate_in=1.0 * len(bytes_in),
        msg_rate_out=1.0 * len(bytes_in),
        bundles=len(bytes_in),
        topics=2 * len(bytes_in),
        max_resource_usage=cpu / 100,
        weighted_max_ema=cpu / 100,
        msg_throughput_ema=sum(bytes_in),
    )


def move(bundle: str, source: str, destination: str | None, *, swap: bool = False) -> BundleMove:
    return BundleMove(bundle, source, destination, Reason.OVERLOADED, 1.0, "for a test", swap)


def owned(cluster: Cluster, bundle: str, owner: str) -> Cluster:
    return replace(cluster, bundles={**cluster.bundles, bundle: replace(cluster.bundles[bundle], owner=owner)})


def reported(cluster: Cluster, broker: str, **fields: object) -> Cluster:
    return replace(cluster, brokers={**cluster.brokers, broker: replace(cluster.brokers[broker], **fields)})


def booked(now_s: float = 100.0) -> BookedMoves:
    moves = BookedMoves(expire_s=60.0, keep_s=600.0)
    assert len(moves.book(small(), [move(B, "x", "z")], now_s)) == 1
    return moves


def cpu(cluster: Cluster, broker: str) -> float:
    load = cluster.brokers[broker].load
    return load.cpu.usage


def test_a_move_counts_from_the_moment_it_is_booked() -> None:
    """B has 300 of the 400 bytes of x, so 60 of its 80 % CPU go along."""
    cluster = adjusted(small(), booked().moves)
    assert (cpu(cluster, "x"), cpu(cluster, "y"), cpu(cluster, "z")) == (20.0, 20.0, 60.0)
    loads = {name: broker.load for name, broker in cluster.brokers.items() if broker.load is not None}
    assert [loads[name].weighted_max_ema for name in "xyz"] == pytest.approx([0.2, 0.2, 0.6])
    assert [loads[name].bundles for name in "xyz"] == [1, 1, 1]
    assert cluster.bundles[B].in_flight
    assert cluster.recent == RecentMoves({B: 0.0}, {"x": 0.0, "z": 0.0})
    assert on_the_way(booked().moves) == {"z": [B]}


def test_what_cannot_be_booked() -> None:
    moves = booked()
    cluster = small()
    wrong = [move(B, "x", "y"), move(A, "y", "z"), move("t/n/0x00000000_0x00000001", "x", "y")]
    assert moves.book(cluster, wrong, 101.0) == []
    assert len(moves) == 1


def test_a_move_is_counted_once_both_reports_show_it() -> None:
    moves = booked()
    there = owned(small(), B, "z")
    lapsed = reported(reported(there, "x", load_lapsed=True), "z", load_lapsed=True)
    assert moves.acknowledge(lapsed, 105.0) == []
    assert on_the_way(moves.moves) == {"z": [B]}
    assert cpu(adjusted(lapsed, moves.moves), "x") == 20.0

    source = reported(there, "x", load=load(20.0, 100.0), load_age_s=0.5)
    source = reported(source, "z", load_age_s=11.0)  # measured before it arrived
    assert moves.acknowledge(source, 115.0) == []
    seen = adjusted(source, moves.moves)
    assert (cpu(seen, "x"), cpu(seen, "z")) == (20.0, 60.0)

    both = reported(source, "z", load=load(60.0, 300.0), load_age_s=0.5)
    assert [(booking.bundle, booking.how) for booking in moves.acknowledge(both, 120.0)] == [(B, "counted")]
    assert len(moves) == 0
    assert on_the_way(moves.moves) == {}
    assert adjusted(both, moves.moves) is both
    assert moves.recent(120.0) == RecentMoves({B: 15.0}, {"x": 15.0, "z": 15.0})


def test_a_move_has_arrived_when_the_channel_says_so_not_when_it_is_looked_at() -> None:
    """Looks are an interval apart: reports that were made between arrival and look show the move, and end its cooling down."""
    cluster = small()
    moves = BookedMoves(expire_s=60.0, keep_s=600.0)
    moves.book(cluster, [move(B, "x", "z")], 100.0)
    there = replace(owned(cluster, B, "z"), recent=RecentMoves({B: 50.0}, {"x": 50.0, "z": 50.0}))
    for broker in ("x", "z"):
        there = reported(there, broker, load_age_s=40.0)
    assert [booking.how for booking in moves.acknowledge(there, 155.0)] == ["counted"]
    assert moves.recent(155.0) == RecentMoves({B: 50.0}, {"x": 50.0, "z": 50.0})
    moves.book(cluster, [move(B, "x", "z")], 200.0)
    moves.acknowledge(there, 210.0)
    assert moves.recent(210.0).bundles == {B: 10.0}, "what is told of a move before it was booked is of another one"
    moves.book(small(), [move(A, "x", "z")], 200.0)
    older = replace(owned(there, A, "z"), recent=RecentMoves({A: 9.0}, {"x": 5.0, "z": 5.0}))
    moves.acknowledge(older, 212.0)
    assert moves.recent(212.0).brokers == {"x": 9.0, "z": 9.0}


def test_a_bundle_in_flight_has_not_arrived() -> None:
    moves = booked()
    flying = owned(small(), B, "z")
    flying = replace(flying, bundles={**flying.bundles, B: replace(flying.bundles[B], in_flight=True)})
    assert moves.acknowledge(flying, 101.0) == []
    assert not moves.moves[0].arrived


def test_a_move_that_does_not_come_off_expires_and_leaves_no_trace() -> None:
    moves = booked()
    assert moves.acknowledge(small(), 159.9) == []
    assert [booking.how for booking in moves.acknowledge(small(), 160.0)] == ["expired"]
    assert adjusted(small(), moves.moves) == small()


def test_reports_are_not_awaited_for_ever() -> None:
    moves = booked()
    there = reported(owned(small(), B, "z"), "z", load_lapsed=True)
    assert moves.acknowledge(there, 150.0) == []
    assert moves.acknowledge(there, 209.0) == []
    assert [booking.how for booking in moves.acknowledge(there, 210.0)] == ["counted"]


@pytest.mark.parametrize(
    ("cluster", "how"),
    [
        (owned(small(), B, "y"), "elsewhere"),
        (replace(small(), bundles={A: small().bundles[A]}), "gone"),
        (replace(small(), brokers={name: broker for name, broker in small().brokers.items() if name != "z"}), "gone"),
    ],
)
def test_what_went_another_way_counts_no_more(cluster: Cluster, how: str) -> None:
    moves = booked()
    assert [booking.how for booking in moves.acknowledge(cluster, 110.0)] == [how]
    assert len(moves) == 0


def test_a_move_that_failed_is_taken_back() -> None:
    moves = booked()
    ended = moves.cancel(B, "refused")
    assert (ended.how, ended.why) == ("cancelled", "refused")
    assert moves.cancel(B, "refused") is None
    assert adjusted(small(), moves.moves) == small()


def test_a_plain_unload_goes_where_the_channel_says() -> None:
    moves = BookedMoves(expire_s=60.0, keep_s=600.0)
    moves.book(small(), [move(B, "x", None)], 0.0)
    cluster = adjusted(small(), moves.moves)
    assert (cpu(cluster, "x"), cpu(cluster, "y"), cpu(cluster, "z")) == (20.0, 20.0, 0.0)
    there = owned(small(), B, "y")
    moves.acknowledge(there, 2.0)
    assert on_the_way(moves.moves) == {"y": [B]}
    assert cpu(adjusted(there, moves.moves), "y") == 80.0


def test_booking_foresees_what_the_moves_lead_to() -> None:
    """Adjusted loads are those of the dry run's next cycle."""
    plan = [move(A, "x", "y"), move(C, "y", "z")]
    moves = BookedMoves(expire_s=60.0, keep_s=600.0)
    moves.book(small(), plan, 0.0)
    seen, after = adjusted(small(), moves.moves), after_moves(small(), plan)
    # The second share is of the load that y had at the booking, not of what A will add to it.
    assert {name: cpu(seen, name) for name in "xz"} == {"x": 60.0, "z": 20.0}
    assert {name: broker.load.bundles for name, broker in seen.brokers.items() if broker.load} == {
        name: broker.load.bundles for name, broker in after.brokers.items() if broker.load
    }


# --- budget -----------------------------------------------------------------------------------------------------------


def test_the_budget_by_number() -> None:
    moves = [move(A, "x", "z"), move(B, "x", "z"), move(C, "y", "z")]
    admission = admit(small(), moves, [], BudgetSettings(moves=2, load_percent=100))
    assert [move.bundle for move in admission.moves] == [A, B]
    assert [(bundle.name, bundle.reason) for bundle in admission.left] == [(C, "budget")]
    assert admission.budget.moves == 0
    assert admission.budget.load_percent == pytest.approx(100 - 100 / 3 - 60)


def test_the_budget_by_load_passes_over_what_is_too_much() -> None:
    """By bytes A and C are 20 % each and B is 60 %; by messages each is a third."""
    moves = [move(A, "x", "z"), move(B, "x", "z"), move(C, "y", "z")]
    admission = admit(small(), moves, [], BudgetSettings(load_percent=67))
    assert [move.bundle for move in admission.moves] == [A, C]
    assert admission.left[0].why == "it has 60.0 % of the load; 499 moves and 33.7 % of the load may still start"
    assert admission.budget == Budget(498, pytest.approx(67 - 200 / 3))


def test_the_budget_is_of_what_brokers_do_where_few_bundles_are_known() -> None:
    """x says 1,000 bytes/s and 12 messages/s, y 100 and 2: A has 100 of 1,100 bytes and 2 of 14 messages, more by those."""
    x = load(80.0, 1_000.0)
    busy = reported(small(), "x", load=replace(x, msg_rate_in=6.0, msg_rate_out=6.0))
    admission = admit(busy, [move(A, "x", "z")], [], BudgetSettings(load_percent=67))
    assert admission.budget.load_percent == pytest.approx(67 - 100 * 2 / 14)


def test_a_bundle_that_is_larger_than_the_budget_goes_alone() -> None:
    settings = BudgetSettings(load_percent=10)
    admission = admit(small(), [move(B, "x", "z"), move(A, "x", "z")], [], settings)
    assert [move.bundle for move in admission.moves] == [B]
    assert admission.budget.load_percent == 0
    assert admit(small(), [move(A, "x", "y")], booked().moves, settings).moves == []


def test_an_exchange_goes_as_a_whole_or_not_at_all() -> None:
    moves = [move(C, "y", "x", swap=True), move(A, "x", "z"), move(B, "x", "y")]
    admission = admit(small(), moves, [], BudgetSettings(moves=2))
    assert [move.bundle for move in admission.moves] == [C, B]
    assert [move.bundle for move in admit(small(), moves, [], BudgetSettings(moves=1)).moves] == [A]
