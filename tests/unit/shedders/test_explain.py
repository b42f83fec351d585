"""`why` and `why-not`: channel logs and decisions spelled out, and the sentences that come of them."""

from dataclasses import replace
from typing import Any

import pytest

from shedders.decision.dry_run import CheckedMove, SplitDecision
from shedders.decisions.builder import (
    Executed,
    RecordBounds,
    outcome_record,
    place_record,
    skipped_record,
    split_record,
)
from shedders.decisions.explanation import NOT_MADE, Because, CommandOrigin, Explanation, WhyNot, why, why_not
from shedders.decisions.history import DecisionBook
from shedders.decisions.record import DistancePart, InvalidDecisionReason, Subject
from shedders.model.plan import Label, Left, Placed, Reason, SplitPlan
from statechannel.protocol.side_record import InvalidRecord
from statechannel.replay.auditor import audit_part
from statechannel.stories.bundle import BundleStory, What
from tests.support.decision_records import (
    AT_MS,
    IDS,
    LOWER,
    NAMESPACE,
    UPPER,
    WHOLE,
    ChannelLog,
    decision,
    move,
    occasion,
    record,
)

ONE, TWO = f"{NAMESPACE}/{LOWER}", f"{NAMESPACE}/{UPPER}"
NOW_MS = AT_MS + 600_000


def read_trail(log: ChannelLog, name: str) -> BundleStory:
    trail = BundleStory(name)
    judged: list[str] = []

    def observe(record: Any, judgement: Any) -> None:
        judged.append(judgement.verdict.value)
        trail.observe(record, judgement)

    audit_part(0, 1, log.records, observe=observe)
    assert set(judged) == {"accepted"}, judged
    return trail


def book(*records: Any) -> DecisionBook:
    book = DecisionBook()
    for line in records:
        book.add(line)
    return book


def ended(number: int, bundle: str, result: str, said: str = "said", operation: str | None = None) -> Any:
    return outcome_record(
        IDS[number], bundle, result, said, operation=operation, at_ms=AT_MS, term=7, leader="b1", took_ms=300.0
    )


def lines(answer: Explanation) -> list[tuple[str, str]]:
    return [(step.what, step.message) for step in answer.steps]


# --- the trail ------------------------------------------------------------------------------------------------------


def test_a_bundles_way_through_a_split_is_told_from_its_beginning() -> None:
    log = ChannelLog()
    log.created()
    log.assigned(to="b1")
    log.moved(WHOLE, "b1", "b2", operation="op-1")
    log.split(WHOLE, "b2", LOWER, UPPER, operation="op-2")
    log.moved(ONE, "b2", "b3", operation="op-3")
    log.moved(TWO, "b2", "b1", operation="op-4")
    trail = read_trail(log, ONE)
    assert (trail.bundle, trail.owner) == (ONE, "b3")
    assert [(change.bundle, change.what, change.source, change.destination) for change in trail.changes] == [
        (NAMESPACE, What.CREATED, None, None),
        (WHOLE, What.ASSIGNED, None, "b1"),
        (WHOLE, What.MOVED, "b1", "b2"),
        (WHOLE, What.SPLIT, "b2", "b2"),
        (ONE, What.MOVED, "b2", "b3"),
    ]
    assert [change.ended_ms - change.began_ms for change in trail.changes] == [0, 1_000, 2_000, 1_000, 2_000]
    assert trail.names == [WHOLE, ONE]
    parent = read_trail(log, WHOLE)
    assert parent.bundle is None
    assert [change.bundle for change in parent.changes][-2:] == [ONE, TWO]
    assert parent.changes[3].children == [ONE, TWO]


def test_of_a_topic_only_the_bundles_that_held_it() -> None:
    log = ChannelLog()
    log.created()
    log.assigned(to="b1")
    log.split(WHOLE, "b1", LOWER, UPPER, operation="op-2")
    log.moved(ONE, "b1", "b2", operation="op-3")
    log.moved(TWO, "b1", "b3", operation="op-4")
    bundles = {read_trail(log, f"persistent://{NAMESPACE}/topic-{number}").bundle for number in range(16)}
    assert bundles == {ONE, TWO}
    for number in range(4):
        trail = read_trail(log, f"{NAMESPACE}/topic-{number}")
        assert trail.owner == {ONE: "b2", TWO: "b3"}[trail.bundle]
        assert [change.bundle for change in trail.changes][-1] == trail.bundle


def test_changes_that_go_wrong() -> None:
    log = ChannelLog()
    log.created()
    flow = {"flow": "assignment"}
    log.write(WHOLE, "Assigning", to="b1", action="own", **flow)
    log.write(
        WHOLE, "Unassigned", by="b1", action="decline", **{"from": "b1"}, **flow, reason="on_own raised OSError: full"
    )
    log.assigned(to="b2")
    log.write(WHOLE, "Assigned", by="b2", to="b2", action="resume")
    log.write(WHOLE, "Releasing", action="transfer", **{"from": "b2"}, to="b3", flow="transfer", operation="op-1")
    log.write(WHOLE, "Assigned", by="b2", to="b2", action="resume", flow="transfer", operation="op-1")
    log.unloaded(WHOLE, "b2", operation="op-2", reason="by hand")
    log.assigned(to="b3")
    lost = {"broker": "b3", "incarnation": "i", "last_heard_ms": 5}
    log.write(WHOLE, "Assigning", forced=True, **{"from": "b3"}, to="b1", action="repair", flow="repair", lost=lost)
    log.write(WHOLE, "Assigned", by="b1", **{"from": "b3"}, to="b1", action="return", flow="repair")
    log.write(WHOLE, "Releasing", action="transfer", **{"from": "b1"}, to="b2", flow="transfer", operation="op-3")
    trail = read_trail(log, WHOLE)
    assert [(change.what, change.source, change.destination, change.wanted) for change in trail.changes[1:]] == [
        (What.DECLINED, None, None, "b1"),
        (What.ASSIGNED, None, "b2", "b2"),
        (What.RESUMED, "b2", "b2", None),
        (What.TAKEN_BACK, "b2", "b2", "b3"),
        (What.UNLOADED, "b2", None, None),
        (What.ASSIGNED, None, "b3", "b3"),
        (What.MOVED, "b3", "b1", "b1"),
        (What.UNDER_WAY, "b1", None, "b2"),
    ]
    assert trail.changes[7].lost == "b3"
    steps = why(trail, DecisionBook()).steps
    assert steps[1].message.endswith(": on_own raised OSError: full")
    assert steps[5].because.endswith("(its reason: by hand)")


def test_a_deleted_namespace_and_a_silent_channel() -> None:
    log = ChannelLog()
    log.created()
    log.assigned(to="b1")
    log.unloaded(WHOLE, "b1", flow="namespace", operation="d")
    log.write(NAMESPACE, "Deleted", version=6, flow="namespace", operation="d")
    gone = why(read_trail(log, WHOLE), DecisionBook())
    assert (gone.bundle, gone.now) == (None, "its namespace was deleted")
    assert gone.steps[-1].message == "its namespace t/n was deleted, by b1"
    silent = why(BundleStory("t/other/0x00000000_0xffffffff"), DecisionBook())
    assert (silent.now, silent.steps) == ("the channel has no record of it", [])


def test_what_is_neither_a_bundle_nor_a_topic_is_refused() -> None:
    for name in ("t/n", "x", ""):
        with pytest.raises(ValueError, match="neither a bundle nor a topic"):
            BundleStory(name)


# --- why ------------------------------------------------------------------------------------------------------------


def test_each_move_is_told_with_its_decision_and_the_numbers() -> None:
    log = ChannelLog()
    log.created()
    log.assigned(to="b1")
    log.moved(WHOLE, "b1", "b2", operation="op-1")
    log.split(WHOLE, "b2", LOWER, UPPER, operation="op-2")
    log.moved(ONE, "b2", "b3", operation="op-3")
    looked = SplitDecision(decision().cluster, [SplitPlan(WHOLE, (1 << 31,), "MsgRate", "40000 messages/s")], None, {})
    known = book(
        record(1, moves=[move()], executed={WHOLE: Executed("op-1")}),
        ended(1, WHOLE, "transferred"),
        split_record(occasion(2), looked, executed={WHOLE: Executed("op-2")}),
        record(3, moves=[move(ONE, "b2", "b3", load=77.0)], executed={ONE: Executed("op-3")}),
        InvalidRecord(InvalidDecisionReason.FORMAT, "format is not 1"),
    )
    answer = why(read_trail(log, ONE), known)
    assert answer.now == f"{ONE} is assigned to b3"
    assert [what for what, _ in lines(answer)] == ["created", "assigned", "moved", "split", "moved"]
    first, split, last = answer.steps[2:]
    assert first.because == (f"decision {IDS[1]} of b1 (term 7, cycle 1, transfer), Overloaded: b1 has 80 %, b2 20 %")
    assert (first.decision, first.leader, first.term, first.cycle, first.result) == (IDS[1], "b1", 7, 1, "transferred")
    assert split.decision == IDS[2]
    assert split.because == f"decision {IDS[2]} of b1 (term 7, cycle 2, transfer), MsgRate: 40000 messages/s"
    assert (last.load, last.result, last.took_ms) == (77.0, "started", 2_000)
    assert known.junk == {"format": 1}
    shorter = why(read_trail(log, ONE), known, steps_max=2)
    assert (len(shorter.steps), shorter.left_out, shorter.steps[-1]) == (2, 3, last)
    assert shorter.to_json()["steps"][-1]["decision"] == IDS[3]


def test_a_placement_by_the_leader_is_told_with_those_it_was_free_to_choose_among() -> None:
    log = ChannelLog()
    log.created()
    log.write(WHOLE, "Assigning", to="b2", action="own", flow="assignment", operation="op-p")
    log.write(WHOLE, "Assigned", by="b2", to="b2", action="return", flow="assignment", operation="op-p")
    placed = [Placed(WHOLE, "b2", "the least used", best=["b2", "b3"])]
    known = book(place_record(occasion(1), decision().cluster, placed, executed={WHOLE: Executed("op-p")}))
    because = why(read_trail(log, WHOLE), known).steps[-1].because
    assert because.endswith("Success: the least used; 2 brokers were equally good")


def test_a_placement_is_found_by_who_made_it_and_when() -> None:
    """Its record is written in batches, and names no operation."""
    log = ChannelLog()
    log.created()
    begun_ms = log.at_ms
    log.write(WHOLE, "Assigning", by="b3", to="b2", action="own", flow="assignment", operation="op-p")
    log.write(WHOLE, "Assigned", by="b2", to="b2", action="return", flow="assignment", operation="op-p")

    def because(*, leader: str = "b3", broker: str = "b2", after_ms: int = 700) -> str | None:
        result = occasion(1, leader=leader, at_ms=begun_ms + after_ms)
        known = book(place_record(result, decision().cluster, [Placed(WHOLE, broker, "the least used")]))
        return why(read_trail(log, WHOLE), known).steps[-1].because

    assert f"decision {IDS[1]} of b3 (term 7, cycle 1, transfer)" in because()
    nobody = (
        "no broker served it and a client looked it up; b3 chose the destination; no decision record mentions its operation: "
        "brokers without the balancer write none, and old ones expire"
    )
    assert because(leader="b1") == nobody
    assert because(broker="b1") == nobody
    assert because(after_ms=60_000) == nobody


def test_who_asked_for_it_by_command_and_who_was_stopped() -> None:
    log = ChannelLog()
    log.created()
    log.assigned(to="b1")
    log.moved(WHOLE, "b1", "b2", operation="op-1", reason="new disks")
    log.write(
        WHOLE, "Releasing", by="b2", action="transfer", reason="shutdown", **{"from": "b2"}, to="b3", flow="transfer"
    )
    log.write(WHOLE, "Assigning", by="b2", action="transfer", **{"from": "b2"}, to="b3", flow="transfer")
    log.write(WHOLE, "Assigned", by="b3", action="return", **{"from": "b2"}, to="b3", flow="transfer")
    answer = why(read_trail(log, WHOLE), book(), {"op-1": CommandOrigin("ann@desk", "transfer")})
    asked_for, stopped = (step.because for step in answer.steps[2:])
    assert "ann@desk (transfer) (its reason: new disks)" in asked_for
    assert "b2 was stopped" in stopped


def test_a_move_that_never_reached_the_channel_is_told_too() -> None:
    log = ChannelLog()
    log.created()
    log.assigned(to="b1")
    refused = CheckedMove(replace(move(), destination=None), "b3", "pin: it is pinned")
    known = book(
        record(1, moves=[move()], executed={WHOLE: Executed("op-1")}),
        ended(1, WHOLE, "rejected", "b2 is draining", "op-1"),
        record(2, moves=[refused]),
    )
    answer = why(read_trail(log, WHOLE), known)
    assert [step.what for step in answer.steps] == ["created", "assigned", NOT_MADE]
    assert answer.steps[-1].message.endswith("(rejected: b2 is draining)")


def test_the_book_forgets_the_oldest_and_holds_no_outcome_of_what_was_not_decided() -> None:
    book = DecisionBook(2)
    for number in (1, 2, 3):
        book.add(record(number, moves=[move()], executed={WHOLE: Executed(f"op-{number}")}))
    book.add(ended(1, WHOLE, "transferred"))
    assert [decided.id for decided in book.decisions] == [IDS[2], IDS[3]]
    book.add(ended(3, "t/stranger/0x00000000_0xffffffff", "transferred"))
    assert (book.by_operation("op-1"), book.decision(IDS[1]), book._outcomes) == (None, None, {})
    decision = book.by_operation("op-3")
    assert (decision.decision.id, decision.ended) == (IDS[3], None)
    assert [read.id for read in book.newest(Subject.SHED)] == [IDS[3], IDS[2]]


# --- why not --------------------------------------------------------------------------------------------------------


def asked(*records: Any, bundle: str = ONE, owner: str | None = "b1") -> WhyNot:
    return why_not(bundle, owner, book(*records), now_ms=NOW_MS)


def test_a_bundle_without_an_owner_is_explained_by_the_placement_that_found_no_broker() -> None:
    forbidden = Placed(ONE, None, "no broker may take it: `isolation` removed b1 (policy `gold`)")
    first = asked(place_record(occasion(1), decision().cluster, [forbidden]), record(), owner=None).messages[0]
    assert first.startswith("no broker serves it: decision ")
    assert first.endswith(forbidden.why)
    placed = place_record(occasion(1), decision().cluster, [Placed(ONE, "b2", "best")])
    for answer in (asked(placed, owner=None), asked(record(), owner=None)):
        assert answer.messages[0].endswith("it is in flight, or no client has looked it up yet")


SCORES = {"b1": 0.5, "b2": 0.4, "b3": 0.3}


@pytest.mark.parametrize(
    ("recorded", "word", "reason"),
    [
        (record(why="0.1 apart", reason=Reason.HIT_COUNT, scores=SCORES), Because.NO_MOVES, "HitCount"),
        (record(left=[Left(ONE, "recently-moved", "moved 5 s ago")]), Because.LEFT, "recently-moved"),
        (record(left=[Left("b1", "outdated", "1900 s old")]), Because.BROKER_LEFT, "outdated"),
        (
            record(moves=[CheckedMove(replace(move(ONE), destination=None), "b2", "pin: it is pinned to b1")]),
            Because.REFUSED,
            "pin",
        ),
        (record(moves=[move(ONE)], executed={ONE: Executed("op")}), Because.MOVED, None),
        (record(moves=[move(TWO)], scores={"b1": 0.5}), Because.OTHERS, None),
        (record(moves=[move(TWO, "b3")], scores={"b3": 0.5}, why="1 from b3"), Because.NOT_OVER, "Overloaded"),
        (skipped_record(occasion(1), "shedding-off", "`shedding` is off"), Because.SKIPPED, "shedding-off"),
    ],
    ids=lambda value: value if isinstance(value, Because) else "",
)
def test_why_a_bundle_stays(recorded: Any, word: Because, reason: str | None) -> None:
    answer = asked(recorded)
    assert (answer.verdicts[0].word, answer.verdicts[0].reason) == (word, reason)
    assert answer.messages[0].endswith(answer.verdicts[0].message)


def test_numbers_are_the_strategys_where_it_has_its_own() -> None:
    numbers = asked(record(scores=SCORES, stats={"mean": 9.0, "threshold": 0.25})).verdicts[0].numbers
    assert numbers["mean"] == 9.0
    assert numbers["threshold"] == 0.25
    assert (numbers["score"], numbers["highest"], numbers["lowest"]) == (0.5, 0.5, 0.3)
    assert numbers["std"] == pytest.approx(0.0816, abs=1e-4)


def test_the_distance_to_the_best_of_the_newest_decision_is_among_the_reasons() -> None:
    distance = DistancePart(
        largest_use=0.7, broker="b1", resource="cpu", bound=0.7, gap_percent=0.0, any_load_bound=0.5, load_moved=0.0
    )
    newest = record(2, why="even", scores=SCORES).model_copy(update={"distance": distance})
    said = asked(record(1, why="even", scores=SCORES), newest).messages
    assert "the newest decision: largest use 0.70 (CPU of b1); no decision gets below 0.50" in said


def test_several_decisions_that_say_the_same_are_told_once() -> None:
    quiet = [record(number, why="even", scores=SCORES) for number in (2, 3, 4)]
    answer = asked(skipped_record(occasion(1), "safe-mode", "Kafka was away"), *quiet)
    assert answer.same == 3
    assert answer.messages[1] == "the last 3 decisions, of the last 8 min, give the same reason"
    changed = asked(*quiet[:1], record(5, left=[Left(ONE, "cooling", "5 s")]))
    assert changed.same == 1
    assert changed.messages[1].startswith(f"before that (decision {IDS[2]}): no broker gave bundles away")
    few = why_not(ONE, "b1", book(*quiet), now_ms=NOW_MS, decisions_max=2)
    assert (few.same, len(few.verdicts)) == (2, 2)


def test_of_a_decision_before_it_came_there_only_its_own_words_count() -> None:
    early = record(1, left=[Left("b1", "outdated", "x")])
    own = record(1, left=[Left(ONE, "cooling", "5 s")])
    for item, word in ((early, Because.ELSEWHERE), (own, Because.LEFT)):
        answer = why_not(ONE, "b1", book(item), now_ms=NOW_MS, since_ms=item.at_ms + 1)
        assert answer.verdicts[0].word == word
    assert why_not(ONE, "b1", book(early), now_ms=NOW_MS, since_ms=early.at_ms).verdicts[0].word == Because.BROKER_LEFT
    log = ChannelLog()
    log.created()
    log.assigned(to="b1")
    log.moved(WHOLE, "b1", "b2", operation="op-1")
    since_ms = log.at_ms
    log.split(WHOLE, "b2", LOWER, UPPER, operation="op-2")
    trail = read_trail(log, ONE)
    assert trail.there_since_ms == since_ms
    trail.settled(ONE, "b9")
    assert trail.there_since_ms is None


def test_what_was_cut_is_owned_up_to() -> None:
    small = RecordBounds(16_384, 100)
    many = [Left(f"t/n/{number}", "cooling", "x" * 90) for number in range(1_000)]
    answer = asked(record(left=many, bounds=small))
    assert "the record had no room for" in answer.messages[-1]
    assert "of `left`" in answer.messages[-1]


def test_splits_nobody_and_nothing() -> None:
    looked = SplitDecision(decision().cluster, [SplitPlan(ONE, (), "hits", "2 times in a row")], None, {})
    answer = asked(record(1), split_record(occasion(2), looked))
    assert "8 min ago: it was not split (`hits`)" in answer.messages[-1]
    other = asked(record(1), split_record(occasion(2, leader="b2"), looked))
    assert [verdict.subject for verdict in other.verdicts] == ["shed"]
    assert [verdict.subject for verdict in answer.verdicts] == ["shed", "split"]
    assert len(asked(owner="b1").messages) == 1
    unserved = asked(record(1), owner=None)
    assert unserved.verdicts[0].word == Because.UNSERVED
    assert unserved.messages[0].startswith(f"no broker serves {ONE} now")
    assert unserved.to_json()["same"] == 1


def test_the_labels_of_upstream_stand_in_the_record() -> None:
    entry = record(label=Label.FAILURE, reason=Reason.UNKNOWN)
    assert (entry.label, entry.reason) == ("Failure", "Unknown")
