"""Gaps, histories and lost races, told from short logs whose every record is spelled out."""

from collections.abc import Callable

import pytest

from statechannel.audit.gaps import Gap, GapCause, GapEnd, Gaps, gap_fields
from statechannel.audit.origins import OperationsSeen
from statechannel.protocol.log import RecordRead
from statechannel.protocol.view import Judgement
from statechannel.replay.auditor import audit_part
from tests.support.decision_records import ChannelLog

NAMESPACE = "t/n"
BUNDLE = "t/n/0x00000000_0xffffffff"
LOWER, UPPER = "0x00000000_0x80000000", "0x80000000_0xffffffff"


class Log(ChannelLog):
    """With times from 0 on."""

    def __init__(self) -> None:
        super().__init__(at_ms=0)

    def assigned(self, bundle: str = BUNDLE, to: str = "b1", by: str = "b1") -> None:
        self.write(NAMESPACE, "Active", children=["0x00000000_0xffffffff"])
        self.write(bundle, "Assigning", to=to, by=by)
        self.write(bundle, "Assigned", to=to, by=to)

    def observe(self, *observers: Callable[[RecordRead, Judgement], None]) -> None:
        def tell(record: RecordRead, judgement: Judgement) -> None:
            for observer in observers:
                observer(record, judgement)

        audit_part(0, 1, self.records, observe=tell)

    def gaps(self) -> list[Gap]:
        gaps = Gaps()
        self.observe(gaps.observe)
        return gaps.all()


@pytest.fixture
def log() -> Log:
    return Log()


def test_the_first_assignment_is_no_gap(log: Log) -> None:
    log.assigned()
    assert log.gaps() == []


def test_a_transfer_is_a_gap_from_releasing_to_assigned(log: Log) -> None:
    log.assigned()
    log.write(BUNDLE, "Releasing", **{"from": "b1"}, to="b2", operation="op", reason="load")
    log.write(BUNDLE, "Assigning", **{"from": "b1"}, to="b2", after_ms=20)
    log.write(BUNDLE, "Assigned", **{"from": "b1"}, to="b2", by="b2", after_ms=5)
    (gap,) = log.gaps()
    assert gap == Gap(
        bundle=BUNDLE,
        cause=GapCause.TRANSFER,
        partition=0,
        start_offset=3,
        start_ms=4_000,
        before="b1",
        why="transfer from b1 to b2 (load)",
        operation="op",
        end=GapEnd.ASSIGNED,
        end_offset=5,
        end_ms=4_025,
        after="b2",
    )
    assert gap_fields(gap)["length_ms"] == 25


def test_time_unassigned_on_request_is_told_apart(log: Log) -> None:
    log.assigned()
    log.write(BUNDLE, "Releasing", **{"from": "b1"})
    log.write(BUNDLE, "Unassigned", **{"from": "b1"}, after_ms=10)
    log.write(BUNDLE, "Assigning", to="b1", after_ms=60_000)
    log.write(BUNDLE, "Assigned", to="b1", after_ms=7)
    (gap,) = log.gaps()
    assert (gap.cause, gap.end, gap.on_request_ms, gap.length_ms) == (GapCause.UNLOAD, GapEnd.ASSIGNED, 60_000, 17)


STARTED_LATER = "01JKXWM60094EHP2TRVJP4X39J"
"""An incarnation of 2025: later than the times of these logs."""


def test_a_hand_over_that_is_declined_while_all_brokers_stop_has_that_cause(log: Log) -> None:
    log.assigned()
    log.write(BUNDLE, "Releasing", **{"from": "b1"}, to="b2", reason="shutdown")
    log.write(BUNDLE, "Assigning", **{"from": "b1"}, to="b2", after_ms=20)
    log.write(BUNDLE, "Unassigned", **{"from": "b2"}, by="b2", action="decline", after_ms=30)
    later = {"broker": "b3", "incarnation": STARTED_LATER}
    log.write(BUNDLE, "Assigning", to="b3", after_ms=660_000, by_process=later)
    log.write(BUNDLE, "Assigned", to="b3", by="b3", after_ms=5)
    (gap,) = log.gaps()
    assert (gap.cause, gap.length_ms, gap.unassigned_ms, gap.on_request_ms) == (GapCause.DECLINED, 660_055, 660_000, 0)
    assert gap.why == ("transfer from b1 to b2 (shutdown); b2 declined it; b3, which started after that, assigned it")


@pytest.mark.parametrize(
    ("released", "declined", "cause"),
    [
        ({"reason": "shutdown"}, {"reason": "shutdown"}, GapCause.SHUTDOWN),
        ({"reason": "shutdown"}, {"reason": "on_own raised OSError"}, GapCause.DECLINED),
        ({"reason": "shutdown", "by": "b3"}, {"reason": "shutdown"}, GapCause.DECLINED),
        ({}, {"reason": "shutdown"}, GapCause.DECLINED),
    ],
)
def test_a_stop_of_all_brokers_is_no_decline(
    log: Log, released: dict[str, str], declined: dict[str, str], cause: GapCause
) -> None:
    log.assigned()
    log.write(BUNDLE, "Releasing", **{"from": "b1"}, to="b2", **released)
    log.write(BUNDLE, "Assigning", **{"from": "b1"}, to="b2", after_ms=20)
    log.write(BUNDLE, "Unassigned", **{"from": "b2"}, by="b2", action="decline", after_ms=30, **declined)
    (gap,) = log.gaps()
    assert gap.cause is cause


def test_a_bundle_that_the_last_broker_leaves_is_not_unassigned_on_request(log: Log) -> None:
    log.assigned()
    log.write(BUNDLE, "Releasing", **{"from": "b1"}, reason="shutdown", flow="unload", action="unload")
    log.write(BUNDLE, "Unassigned", **{"from": "b1"}, after_ms=10)
    log.write(BUNDLE, "Assigning", to="b1", by="b2", after_ms=60_000)
    log.write(BUNDLE, "Assigned", to="b1", after_ms=7)
    (gap,) = log.gaps()
    assert (gap.cause, gap.length_ms, gap.unassigned_ms, gap.on_request_ms) == (GapCause.SHUTDOWN, 60_017, 60_000, 0)
    assert gap.why == "b1 shut down, and no other broker could take it; b2 assigned it"


def test_an_unload_of_another_broker_with_that_reason_is_no_shutdown(log: Log) -> None:
    log.assigned()
    log.write(BUNDLE, "Releasing", **{"from": "b1"}, by="b2", reason="shutdown")
    (gap,) = log.gaps()
    assert (gap.cause, gap.why) == (GapCause.UNLOAD, "unload from b1 (shutdown)")


def test_a_broker_that_gives_its_bundle_up_declines_it(log: Log) -> None:
    log.assigned()
    log.write(BUNDLE, "Releasing", **{"from": "b1"}, action="decline", flow="unload")
    log.write(BUNDLE, "Unassigned", **{"from": "b1"}, after_ms=10)
    log.write(BUNDLE, "Assigning", to="b2", after_ms=500)
    (gap,) = log.gaps()
    assert (gap.cause, gap.end, gap.unassigned_ms, gap.on_request_ms) == (GapCause.DECLINED, GapEnd.OPEN, 500, 0)
    assert gap.why == "b1 gave it up; b1 assigned it"


def test_declines_are_counted_not_listed(log: Log) -> None:
    log.assigned()
    log.write(BUNDLE, "Releasing", **{"from": "b1"})
    log.write(BUNDLE, "Unassigned", **{"from": "b1"})
    for broker in ("b2", "b3", "b2"):
        log.write(BUNDLE, "Assigning", to=broker)
        log.write(BUNDLE, "Unassigned", **{"from": broker}, by=broker, reason=f"hook of {broker}", action="decline")
    (gap,) = log.gaps()
    assert (gap.cause, gap.on_request_ms, gap.unassigned_ms) == (GapCause.DECLINED, 1_000, 3_000)
    assert gap.why == "unload from b1; b2 declined it (hook of b2), the last of 3 times"


def test_a_lost_owner_stays_the_cause_when_its_successor_declines(log: Log) -> None:
    log.assigned()
    lost = {"broker": "b1", "incarnation": "b1-i", "last_heard_ms": 3_500}
    log.write(BUNDLE, "Assigning", by="b2", to="b3", forced=True, lost=lost, after_ms=6_000)
    log.write(BUNDLE, "Unassigned", **{"from": "b3"}, by="b3", action="decline")
    (gap,) = log.gaps()
    assert (gap.cause, gap.why) == (GapCause.OWNER_LOST, "b1 was gone, repaired by b2; b3 declined it")


def test_taken_back(log: Log) -> None:
    log.assigned()
    log.write(BUNDLE, "Releasing", **{"from": "b1"}, to="b2")
    log.write(BUNDLE, "Assigned", to="b1", after_ms=30)
    (gap,) = log.gaps()
    assert (gap.end, gap.after, gap.length_ms) == (GapEnd.TAKEN_BACK, "b1", 30)


def test_a_lost_owner_is_missing_since_it_was_last_heard(log: Log) -> None:
    log.assigned()
    lost = {"broker": "b1", "incarnation": "b1-i", "last_heard_ms": 3_500}
    log.write(BUNDLE, "Assigning", by="b2", to="b3", forced=True, lost=lost, after_ms=6_000)
    log.write(BUNDLE, "Assigned", to="b3", by="b3", after_ms=4)
    (gap,) = log.gaps()
    assert (gap.cause, gap.start_ms, gap.end_ms, gap.before) == (GapCause.OWNER_LOST, 3_500, 9_004, "b1")
    assert gap.after == "b3"
    assert gap.repaired
    assert gap.why == "b1 was gone, repaired by b2"


def test_a_lost_owner_is_not_missing_before_its_own_assigned(log: Log) -> None:
    log.assigned()
    lost = {"broker": "b1", "incarnation": "b1-i", "last_heard_ms": 0}
    log.write(BUNDLE, "Assigning", by="b2", to="b3", forced=True, lost=lost, after_ms=6_000)
    (gap,) = log.gaps()
    assert (gap.cause, gap.start_ms) == (GapCause.OWNER_LOST, 3_000)


@pytest.mark.parametrize(
    "lost", [None, 7, {}, {"broker": 1, "last_heard_ms": 1}, {"broker": "b1", "last_heard_ms": "x"}]
)
def test_a_repair_that_does_not_say_who_was_lost_begins_with_its_record(log: Log, lost: object) -> None:
    log.assigned()
    log.write(BUNDLE, "Assigning", by="b2", to="b3", forced=True, lost=lost)
    log.write(BUNDLE, "Assigned", to="b3", by="b3", after_ms=4)
    (gap,) = log.gaps()
    assert (gap.cause, gap.start_ms, gap.length_ms) == (GapCause.REPAIR, 4_000, 4)


def test_a_repair_on_the_way_prolongs_the_gap_that_is_open(log: Log) -> None:
    log.assigned()
    log.write(BUNDLE, "Releasing", **{"from": "b1"}, to="b2")
    lost = {"broker": "b2", "incarnation": "x", "last_heard_ms": 1}
    log.write(BUNDLE, "Assigning", by="b3", to="b3", forced=True, lost=lost)
    log.write(BUNDLE, "Assigned", to="b3", by="b3")
    (gap,) = log.gaps()
    assert (gap.cause, gap.start_ms, gap.length_ms, gap.repaired) == (GapCause.TRANSFER, 4_000, 2_000, True)
    assert "b2 was gone" in gap.why


def test_a_split_is_no_gap_and_its_children_are_served(log: Log) -> None:
    log.assigned()
    log.write(BUNDLE, "Splitting", **{"from": "b1"})
    log.write(BUNDLE, "Deleted", **{"from": "b1"}, children=[LOWER, UPPER])
    assert log.gaps() == []
    log.write(f"{NAMESPACE}/{LOWER}", "Releasing", **{"from": "b1"}, to="b2")
    (gap,) = log.gaps()
    assert (gap.bundle, gap.end, gap.end_ms, gap.length_ms) == (f"{NAMESPACE}/{LOWER}", GapEnd.OPEN, None, None)


def test_the_gaps_of_a_deletion_have_it_as_their_cause_and_wait_for_no_lookup(log: Log) -> None:
    log.assigned()
    log.write(BUNDLE, "Releasing", **{"from": "b1"}, action="unload", operation="delete")
    log.write(BUNDLE, "Unassigned", **{"from": "b1"}, action="unload", operation="delete")
    log.write(NAMESPACE, "Deleted", version=6, operation="delete")
    (gap,) = log.gaps()
    assert (gap.cause, gap.end) == (GapCause.NAMESPACE_DELETED, GapEnd.NAMESPACE_DELETED)
    assert (gap.why, gap.on_request_ms) == ("namespace deleted, unload from b1", 0)
    assert gap.length_ms == 2_000


def test_operations_are_followed_to_their_end(log: Log) -> None:
    log.assigned()
    log.write(BUNDLE, "Releasing", **{"from": "b1"}, to="b2", operation="op-1", flow="transfer")
    log.write(BUNDLE, "Assigning", **{"from": "b1"}, to="b2", operation="op-1", flow="transfer")
    seen = OperationsSeen()
    log.observe(seen.observe)
    assert (seen.known["op-1"].status, seen.times["op-1"].records) == ("running", 2)
    log.write(BUNDLE, "Assigned", **{"from": "b1"}, to="b2", by="b2", operation="op-1", flow="transfer")
    seen = OperationsSeen()
    log.observe(seen.observe)
    operation, times = seen.known["op-1"], seen.times["op-1"]
    assert (operation.status, operation.result, operation.destination) == ("ended", "transferred", "b2")
    assert (times.began_ms, times.changed_ms, times.by) == (4_000, 6_000, "b1")


def test_operations_are_followed_in_every_partition(log: Log) -> None:
    log.assigned()
    log.write(BUNDLE, "Releasing", **{"from": "b1"}, to="b2", operation="op-1", flow="transfer")
    seen = OperationsSeen()
    log.observe(lambda record, judgement: seen.observe(record._replace(partition=2), judgement))
    assert (seen.known["op-1"].partition, seen.known["op-1"].status) == (2, "running")


def test_a_process_that_resumes_tells_since_when_the_one_before_was_gone(log: Log) -> None:
    log.assigned()
    lost = {"broker": "b1", "incarnation": "b1-i", "last_heard_ms": 5_000}
    log.write(BUNDLE, "Assigned", to="b1", action="resume", lost=lost, after_ms=6_000)
    (gap,) = log.gaps()
    assert (gap.cause, gap.end, gap.repaired) == (GapCause.OWNER_LOST, GapEnd.ASSIGNED, False)
    assert (gap.start_ms, gap.end_ms, gap.before, gap.after) == (5_000, 9_000, "b1", "b1")


def test_a_process_that_goes_on_after_its_own_pause_has_no_gap(log: Log) -> None:
    log.assigned()
    log.write(BUNDLE, "Assigned", to="b1", action="resume", after_ms=6_000)
    assert log.gaps() == []
