"""The view of a load topic: the newest report of each broker, its age by the reader's clock, what takes it away."""

import random

import pytest

from loaddata.report.record import BrokerLoadReport, InvalidReportReason
from loaddata.view.ownership import OwnershipChange
from loaddata.view.table_view import Arrival, Dropped, Fate, TableView, ViewRules, age_on_arrival
from statechannel.protocol.side_record import SideRecord
from tests.support.load_reports import DECODE, NOW_MS, null, read, record

View = TableView[BrokerLoadReport]


@pytest.fixture
def view() -> View:
    return TableView(ViewRules(ttl_s=100.0, brokers_max=3))


def test_the_newest_report_of_each_broker_counts(view: View) -> None:
    assert [read(view, record("b2", 0)), read(view, record("b1", 1)), read(view, record("b1", 2, seq=2))] == [
        Fate.TAKEN
    ] * 3
    seen = view.seen(0.0)
    assert {name: entry.offset for name, entry in seen.items()} == {"b1": 2, "b2": 0}
    assert list(seen) == ["b1", "b2"]
    assert view.get("b3", 0.0) is None


def test_age_is_counted_by_the_readers_clock_from_the_arrival(view: View) -> None:
    read(view, record("b1", 0, timestamp_ms=NOW_MS - 80_000_000), now_s=50.0)
    for now_s, age_s, outdated in [(50.0, 0.0, False), (150.0, 100.0, False), (150.1, 100.1, True), (40.0, 0.0, False)]:
        seen = view.get("b1", now_s)
        assert (pytest.approx(seen.age_s), seen.outdated) == (age_s, outdated)


@pytest.mark.parametrize(
    ("timestamp_ms", "later_ms", "wall_ms", "age_s"),
    [
        (10_000, 10_000, None, 0.0),
        (10_000, 14_000, None, 4.0),  # something that lies behind it is four seconds younger
        (10_000, 4_000, None, 0.0),  # the log's clock was put back: that makes nothing older
        (10_000, 10_000, 70_000, 60.0),  # it lay there when the reader came
        (10_000, 10_000, 1_000, 0.0),
        (-1, 0, None, 0.001),
    ],
)
def test_age_on_arrival(timestamp_ms: int, later_ms: int, wall_ms: int | None, age_s: float) -> None:
    assert age_on_arrival(timestamp_ms, later_ms, wall_ms) == age_s


def test_what_lay_there_is_as_old_as_the_log_says(view: View) -> None:
    read(view, record("b1", 0, timestamp_ms=NOW_MS - 101_000), now_s=5.0, wall_ms=NOW_MS)
    seen = view.get("b1", 5.0)
    assert (seen.age_s, seen.outdated) == (101.0, True)


def test_a_report_that_was_overtaken_is_late(view: View) -> None:
    read(view, record("b1", 0, seq=5))
    assert read(view, record("b1", 1, seq=4)) is Fate.LATE
    assert read(view, record("b1", 2, seq=5)) is Fate.LATE
    assert read(view, record("b1", 3, seq=1, incarnation="b1-2")) is Fate.TAKEN
    assert view.fates == {Fate.TAKEN: 2, Fate.LATE: 2}


def test_an_outdated_report_makes_nothing_late(view: View) -> None:
    """A number that is absurdly high must not silence a broker for ever."""
    read(view, record("b1", 0, seq=2**53 - 1), now_s=0.0)
    assert read(view, record("b1", 1, seq=7), now_s=100.0) is Fate.LATE
    assert read(view, record("b1", 2, seq=8), now_s=100.5) is Fate.TAKEN


def test_a_tombstone_counts_only_if_it_names_the_held_record_or_a_newer_one(view: View) -> None:
    read(view, record("b1", 10))
    read(view, record("b2", 11))
    assert read(view, null("b1", 12, names=9)) is Fate.NOT_HONOURED
    assert set(view.seen(0.0)) == {"b1", "b2"}
    assert read(view, null("b1", 13, names=10)) is Fate.HONOURED
    assert set(view.seen(0.0)) == {"b2"}
    assert read(view, null("b1", 14, names=10)) is Fate.HONOURED, "once more is harmless"
    assert read(view, record("b1", 15, seq=1)) is Fate.TAKEN, "a broker that reports again is back"


def test_a_null_that_says_nothing_takes_nothing_away(view: View) -> None:
    read(view, record("b1", 10))
    assert read(view, null("b1", 11, names=None)) is Fate.DROPPED
    assert read(view, null("b1", 12, names=12)) is Fate.DROPPED
    assert read(view, null("b 1", 13, names=10)) is Fate.DROPPED
    assert view.dropped == {Dropped.BARE_NULL: 2, InvalidReportReason.KEY: 1}
    assert set(view.seen(0.0)) == {"b1"}


def test_junk_is_dropped_and_counted_by_reason(view: View) -> None:
    for junk in (b"", b"{}", b"\xff"):
        record = SideRecord(b"b1", junk, (), 0, NOW_MS)
        assert view.read(record, DECODE(record), Arrival(0.0)) is Fate.DROPPED
    assert view.dropped == {InvalidReportReason.NOT_JSON: 2, InvalidReportReason.FORMAT: 1}
    assert view.last_dropped.startswith("not JSON")


@pytest.mark.parametrize("differs_ms", [86_400_001, -86_400_001])
def test_a_writer_with_a_broken_clock_is_dropped(view: View, differs_ms: int) -> None:
    assert read(view, record("b1", 0, written_at_ms=NOW_MS + differs_ms)) is Fate.DROPPED
    assert view.dropped == {InvalidReportReason.CLOCK: 1}
    assert read(view, record("b1", 0, written_at_ms=NOW_MS + differs_ms // 2)) is Fate.TAKEN


def test_no_more_brokers_than_there_is_room_for(view: View) -> None:
    for number, name in enumerate(("b1", "b2", "b3")):
        read(view, record(name, number), now_s=float(number))
    assert read(view, record("b4", 3), now_s=50.0) is Fate.DROPPED
    assert view.dropped == {Dropped.TOO_MANY_BROKERS: 1}
    assert read(view, record("b1", 4, seq=2), now_s=50.0) is Fate.TAKEN, "those that are there go on"
    assert read(view, record("b4", 5), now_s=102.5) is Fate.TAKEN, "the outdated make room"
    assert set(view.seen(102.5)) == {"b1", "b4"}


def test_reports_of_strangers_do_not_count_and_are_few() -> None:
    view: View = TableView(ViewRules(brokers_max=50, strangers_max=3))
    read(view, record("b1", 0))
    assert set(view.seen(0.0)) == {"b1"}, "nobody has said who is registered"
    view.registered(["b1", "b2"], 0.0)
    for number in range(10):
        assert read(view, record(f"x{number}", number + 1)) is Fate.TAKEN
    assert view.strangers == ["x7", "x8", "x9"]
    assert set(view.seen(0.0)) == {"b1"}
    assert set(view.held(0.0)) == {"b1", "x7", "x8", "x9"}
    read(view, record("b2", 20))
    assert set(view.seen(0.0)) == {"b1", "b2"}
    read(view, record("x7", 21, seq=2))
    read(view, record("x0", 22))
    assert view.strangers == ["x9", "x7", "x0"], "the one that was silent for longest goes"


def test_who_is_registered_a_moment_after_its_report_counts_from_then_on() -> None:
    view: View = TableView(ViewRules(ttl_s=100.0))
    view.registered(["b1"], 0.0)
    read(view, record("b2", 0))
    assert view.seen(0.0) == {}
    view.registered(["b1", "b2"], 1.0)
    assert set(view.seen(1.0)) == {"b2"}
    assert view.strangers == []


def test_who_is_lost_counts_for_a_while() -> None:
    """Its bundles are placed by what it told last; a leader that begins to follow the topic then reads it still."""
    view: View = TableView(ViewRules(ttl_s=100.0, strangers_max=1))
    view.registered(["b1", "b2"], 0.0)
    view.registered(["b2"], 50.0)
    view.reopened()
    read(view, record("b1", 0), now_s=50.0)
    view.registered(["b2"], 100.0)
    assert set(view.seen(100.0)) == {"b1"}
    view.registered(["b2"], 100.1)
    assert view.seen(100.1) == {}
    assert view.strangers == ["b1"]


def test_strangers_make_room_for_those_that_are_registered_and_never_the_other_way_round() -> None:
    view: View = TableView(ViewRules(ttl_s=100.0, brokers_max=3))
    view.registered(["b1", "b2", "b3"], 0.0)
    read(view, record("x1", 0))
    read(view, record("x2", 1))
    assert [read(view, record(name, number)) for number, name in enumerate(("b1", "b2", "b3"), 2)] == [Fate.TAKEN] * 3
    assert view.strangers == []
    assert read(view, record("x1", 9), now_s=500.0) is Fate.DROPPED, "those of b1 to b3 are outdated, and stay"
    assert set(view.held(500.0)) == {"b1", "b2", "b3"}


def test_a_report_that_finds_no_room_is_refused() -> None:
    size_bytes = len(record("b1").value or b"")
    view: View = TableView(ViewRules(ttl_s=100.0, held_bytes=2 * size_bytes + 20))
    view.registered(["b1", "b2", "b3"], 0.0)
    read(view, record("b1", 0))
    read(view, record("x1", 1))
    read(view, record("b2", 2), now_s=50.0)
    assert (set(view.held(50.0)), view.held_bytes) == ({"b1", "b2"}, 2 * size_bytes)
    assert read(view, record("b3", 3), now_s=50.0) is Fate.DROPPED
    assert view.dropped == {Dropped.NO_ROOM: 1}
    wide = record("b2", 4, seq=2, owned_as_of=dict.fromkeys(range(100), 1))
    assert read(view, wide, now_s=50.0) is Fate.DROPPED
    assert view.seen(50.0)["b2"].offset == 2, "what it told before stays, and grows old"
    assert read(view, record("b2", 5, seq=2), now_s=50.0) is Fate.TAKEN, "another one of the same size takes its place"
    assert read(view, record("b3", 6), now_s=101.0) is Fate.TAKEN, "the outdated make room"
    assert set(view.held(101.0)) == {"b2", "b3"}
    read(view, null("b2", 7, names=5))
    assert view.held_bytes == size_bytes
    view.reopened()
    assert view.held_bytes == 0


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_written_the_bounds_hold(seed: int) -> None:
    rng = random.Random(seed)
    size_bytes = len(record("b1").value or b"")
    rules = ViewRules(ttl_s=20.0, brokers_max=8, strangers_max=3, held_bytes=7 * size_bytes)
    view: View = TableView(rules)
    mine = [f"b{number}" for number in range(6)]
    for offset in range(300):
        now_s = offset / 3
        if rng.random() < 0.2:
            view.registered(rng.sample(mine, rng.randrange(7)), now_s)
        name = rng.choice([*mine, *(f"x{number}" for number in range(20))])
        if rng.random() < 0.1:
            read(view, null(name, offset, rng.randrange(300)), now_s)
        else:
            more = {"owned_as_of": dict.fromkeys(range(rng.choice([0, 0, 200])), 1)}
            read(view, record(name, offset, seq=offset + 1, **more), now_s)
        held = view.held(now_s)
        assert len(held) <= rules.brokers_max
        assert view.held_bytes <= rules.held_bytes
        assert view.held_bytes == sum(entry.size_bytes for entry in view._entries.values())
        if view._known is not None:
            assert len(view.strangers) <= rules.strangers_max
            assert set(view.seen(now_s)) == set(held) - set(view.strangers)
            assert not set(view.strangers) & set(view._known)
    assert view.fates[Fate.TAKEN]


def test_a_report_is_marked_until_it_names_the_last_change(view: View) -> None:
    read(view, record("b1", 0, owned_as_of={0: 5, 1: 7}))
    read(view, record("b2", 1))
    assert not any(entry.lapsed for entry in view.seen(0.0).values())
    view.ownership_changed(OwnershipChange("b1", 0, 5))
    assert not view.seen(0.0)["b1"].lapsed
    view.ownership_changed(OwnershipChange("b1", 1, 9))
    view.ownership_changed(OwnershipChange("b1", 1, 8))
    assert {name: entry.lapsed for name, entry in view.seen(0.0).items()} == {"b1": True, "b2": False}
    read(view, record("b1", 2, seq=2, owned_as_of={0: 5, 1: 8}))
    assert view.seen(0.0)["b1"].lapsed
    read(view, record("b1", 3, seq=3, owned_as_of={0: 5, 1: 9}))
    assert not view.seen(0.0)["b1"].lapsed


def test_changes_of_brokers_without_a_report_are_bounded(view: View) -> None:
    for number in range(10):
        view.ownership_changed(OwnershipChange(f"b{number}", 0, number))
    assert sorted(view._changed) == ["b7", "b8", "b9"]


def test_opened_again_it_begins_anew_but_knows_the_changes(view: View) -> None:
    read(view, record("b1", 900))
    view.ownership_changed(OwnershipChange("b1", 0, 5))
    view.reopened()
    assert len(view) == 0
    read(view, record("b1", 0))
    assert view.seen(0.0)["b1"].lapsed


def test_it_knows_how_far_it_has_read_whatever_became_of_the_records(view: View) -> None:
    assert view.position == -1
    read(view, record("b1", 4))
    read(view, null("b2", 7, 3))
    assert view.position == 7
    view.read(
        SideRecord(b"b3", b"junk", (), 9, NOW_MS), DECODE(SideRecord(b"b3", b"junk", (), 9, NOW_MS)), Arrival(0.0)
    )
    assert view.position == 9
    view.reopened()
    assert view.position == -1
