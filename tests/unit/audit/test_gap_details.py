"""Gaps in service beside others, over deleted namespaces, clocks that go back; and what a sentence about one holds."""

from typing import Any

import pytest

from statechannel.audit.gaps import Gap, GapCause, GapEnd, Gaps, gap_fields, with_standstill
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.view import View
from statechannel.stories.processes import WritersHeard
from tests.support.report_logs import START_MS, LogMaker


def found(log: LogMaker) -> list[Gap]:
    gaps, view = Gaps(), View(0, 1)
    for record in log.records:
        gaps.observe(record, view.read(record.offset, record.key, record.value))
    return gaps.all()


def brief(gap: Gap) -> tuple[Any, ...]:
    start_ms = gap.start_ms - START_MS
    return gap.bundle, gap.cause.value, start_ms, gap.end.value, gap.length_ms, gap.before, gap.after


def test_a_deleted_namespace_ends_only_its_own_gaps_and_what_is_created_again_was_never_served() -> None:
    log = LogMaker()
    (bundle,) = log.namespace("t/n", 1)
    (other,) = log.namespace("t/nn", 1)
    for name in (bundle, other):
        log.assign(name, "b1")
        log.unload(name)
    log.move("t/n", "Deleted")
    log.namespace("t/n", 1)
    log.assign(bundle, "b2")
    log.transfer(bundle, "b1")
    assert [brief(gap) for gap in found(log)] == [
        (bundle, "unload", 25, "namespace-deleted", 5, "b1", None),
        (other, "unload", 45, "open", None, "b1", None),
        (bundle, "transfer", 75, "assigned", 12, "b2", "b1"),
    ]


def test_a_deletion_of_what_is_served_elsewhere_or_was_never_served_is_no_gap() -> None:
    log = LogMaker()
    log.namespace("t/n", 2)
    served = log.namespace("t/m", 1)[0]
    log.assign(served, "b1")
    log.move("t/n", "Deleted")
    log.transfer(served, "b2")
    assert [gap.bundle for gap in found(log)] == [served]


def test_the_children_of_a_split_have_the_owner_of_their_parent() -> None:
    log = LogMaker()
    bundle = log.namespace("t/n", 1)[0]
    log.assign(bundle, "b1")
    lower, upper = log.split(bundle)
    lost = {"broker": "b1", "incarnation": "b1-1", "last_heard_ms": 0}
    split_ms = log.now_ms
    log.move(lower, "Assigning", "b3", to="b2", forced=True, lost=lost)
    log.move(lower, "Assigned", "b2", to="b2")
    log.move(upper, "Assigning", "b3", to="b2", forced=True)
    assert [brief(gap) for gap in found(log)] == [
        (lower, "owner-lost", split_ms - START_MS, "assigned", 10, "b1", "b2"),
        (upper, "repair", split_ms + 15 - START_MS, "open", None, "b1", None),
    ]


def test_a_clock_that_goes_back_makes_no_time_negative() -> None:
    log = LogMaker()
    bundle = log.namespace("t/n", 1)[0]
    log.assign(bundle, "b1")
    log.unload(bundle)
    log.move(bundle, "Assigning", "b1", -50, to="b2")
    log.move(bundle, "Assigned", "b2", to="b2")
    (gap,) = found(log)
    assert (gap.length_ms, gap.on_request_ms, gap.unassigned_ms, gap.end_ms) == (0, 0, 0, gap.start_ms)


@pytest.mark.parametrize(("length", "named"), [(60, True), (61, False)])
def test_only_a_short_reason_is_in_the_brief_sentence(length: int, named: bool) -> None:
    log = LogMaker()
    bundle = log.namespace("t/n", 1)[0]
    log.assign(bundle, "b1")
    log.transfer(bundle, "b2", reason="r" * length)
    (gap,) = found(log)
    assert ("rrr" in gap.brief, "rrr" in gap.why) == (named, True)


@pytest.mark.parametrize(("release_ms", "named"), [(1_999, False), (2_000, True)])
def test_a_release_of_two_seconds_is_named(release_ms: int, named: bool) -> None:
    log = LogMaker()
    bundle = log.namespace("t/n", 1)[0]
    log.assign(bundle, "b1")
    log.move(bundle, "Releasing", "b1", **{"from": "b1"}, to="b2")
    log.move(bundle, "Assigning", "b1", release_ms, **{"from": "b1"}, to="b2")
    (gap,) = found(log)
    assert (" s " in gap.why) is named


def test_a_repair_of_an_open_gap_and_one_of_a_bundle_that_was_never_served() -> None:
    log = LogMaker()
    first, never = log.namespace("t/n", 2)
    log.assign(first, "b1")
    log.move(never, "Assigning", to="b2")
    log.move(never, "Assigning", "b3", to="b3", forced=True)
    log.move(never, "Assigned", "b3", to="b3")
    log.unload(first)
    log.move(first, "Assigning", "b3", 100, to="b2")
    log.move(first, "Unassigned", "b3", 20, **{"from": "b2"}, forced=True)
    log.move(first, "Assigning", "b3", 300, to="b3")
    log.move(first, "Assigned", "b3", to="b3")
    (gap,) = found(log)
    assert (gap.cause, gap.repaired, gap.on_request_ms, gap.unassigned_ms) == (GapCause.UNLOAD, True, 100, 400)
    assert (gap.length_ms, gap.end) == (330, GapEnd.ASSIGNED)


def test_since_when_a_bundle_has_not_been_served() -> None:
    log, gaps, view = LogMaker(), Gaps(), View(0, 1)
    bundle = log.namespace("t/n", 1)[0]
    log.assign(bundle, "b1")
    log.unload(bundle)
    for record in log.records:
        gaps.observe(record, view.read(record.offset, record.key, record.value))
    assert (gaps.open_since_ms(bundle), gaps.open_since_ms("t/x")) == (log.now_ms - 5, None)
    ended: list[Gap] = []
    log.assign(bundle, "b1")
    gaps, view = Gaps(ended.append), View(0, 1)
    for record in log.records:
        gaps.observe(record, view.read(record.offset, record.key, record.value))
    assert ([gap.bundle for gap in ended], gaps.closed, gaps.open()) == ([bundle], [], [])


@pytest.mark.parametrize(
    ("cause", "heard", "still_ms"),
    [(GapCause.OWNER_LOST, True, 9_000), (GapCause.OWNER_LOST, False, None), (GapCause.REPAIR, True, None)],
)
def test_a_lost_owner_may_have_stood_still(cause: GapCause, heard: bool, still_ms: int | None) -> None:
    writers = WritersHeard()
    for seq, at_ms in ((1, 1_000), (2, 10_000)):
        info = {"broker": "b1", "incarnation": "b1-1", "seq": seq, "sent_at_ms": at_ms}
        writers.observe(RecordRead(Topic.REGISTRY, 0, seq, at_ms, b"", b""), info)
    fields = gap_fields(Gap("t/n/x", cause, 0, 1, 1_000, "b1", "why"))
    row = with_standstill(fields, writers if heard else None)
    assert row["stood_still_ms"] == still_ms
    assert (row["why"] == "why") is (still_ms is None)
