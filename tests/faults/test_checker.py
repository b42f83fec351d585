"""Each rule of the checker sees what it is there for, and is silent where all is well."""

import asyncio
from dataclasses import replace
from typing import Any

import orjson
import pytest

from statechannel.protocol.bundle import partition_of
from statechannel.protocol.log import RecordRead, Topic
from tests.faults.checker import RULES, YOUNG, Evidence, check
from tests.faults.history import Asked, Beside, FaultSpan, History, LeftInDebt, Lookup, Outage, Recovery, Serving, Write
from tests.faults.judged import judge, live_bundles, unpaid
from tests.faults.log_copy import LogCopy
from tests.faults.registers import Call, CallKind, Noted, Outcome
from tests.faults.service import Service
from tests.mutants import planted

SECOND = 1_000_000_000
NAMESPACE, BUNDLE = "t/n", "t/n/0x00000000_0xffffffff"
A, B = 11, 22
"""Process ids of the brokers `a` and `b`."""


class Log:
    """Writes a small honest log; record times are seconds."""

    def __init__(self) -> None:
        self.records: list[RecordRead] = []

    def add(self, at_s: float, key: str, by: str, version: int, base: str | None, state: str, **more: Any) -> str:
        identifier = f"r{len(self.records)}"
        value = {
            "format": 1,
            "kind": "proposal",
            "id": identifier,
            "covers": len(self.records) - 1,
            "by": {"broker": by, "incarnation": f"{by}-1"},
            "version": version,
            "base": base,
            "state": state,
        }
        names = {"from_": "from"}
        value |= {names.get(name, name): item for name, item in more.items()}
        offset, at_ms = len(self.records), int(at_s * 1_000)
        self.records.append(RecordRead(Topic.CHANNEL, 0, offset, at_ms, key.encode(), orjson.dumps(value)))
        return identifier


def good() -> Evidence:
    """Broker a serves from second 2, and is transferred to b, which serves from second 5."""
    log = Log()
    namespace = log.add(1, NAMESPACE, "a", 1, None, "Active", children=["0x00000000_0xffffffff"], operation="create1")
    assigning = log.add(1, BUNDLE, "a", 2, f"{namespace}/0x00000000_0xffffffff", "Assigning", from_=None, to="a")
    owned = log.add(2, BUNDLE, "a", 3, assigning, "Assigned", from_=None, to="a")
    moving = {"from_": "a", "to": "b", "operation": "move1"}
    releasing = log.add(4, BUNDLE, "a", 4, owned, "Releasing", **moving)
    named = log.add(4.5, BUNDLE, "a", 5, releasing, "Assigning", **moving)
    log.add(5, BUNDLE, "b", 6, named, "Assigned", **moving)
    history = History(
        writes=[write(2.5, "a", A, 3), write(3.9, "a", A, 3), write(5.5, "b", B, 6)],
        lookups=[lookup(2.4, "a", 3), lookup(5.4, "b", 6)],
        outages=[Outage("t/n/x", 4 * SECOND, 5 * SECOND)],
        asked=[
            Asked("create", {"namespace": NAMESPACE}, SECOND, SECOND, "create1", "done", {}, {"offset": 0}),
            Asked("transfer", {"name": BUNDLE, "destination": "b"}, 4 * SECOND, 5 * SECOND, "move1", "done"),
        ],
        serving=[serve(2.1, "a", A, 3), serve(5.1, "b", B, 6)],
        recoveries=[Recovery(["kill"], 0, 1.0, 1.0)],
    )
    return Evidence(
        history=history,
        judged=judge(log.records),
        copy=log.records,
        final=log.records,
        digests={"a": "x", "b": "x"},
        ends=[("a#1", 0, frozenset({"stop"})), ("b#1", -9, frozenset({"kill"}))],
        complaints=[],
        wall_ns=0,
        lease_s=None,
        after_s=3.0,
        expiry_s=6.0,
        final_ms=9_000,
    )


def write(at_s: float, broker: str, pid: int, generation: int, late_s: float = 0.0) -> Write:
    at_ns = int(at_s * SECOND)
    return Write("t/n/x", broker, pid, BUNDLE, generation, at_ns - 1, at_ns, at_ns + int(late_s * SECOND))


def lookup(at_s: float, owner: str, generation: int, stale_age_s: float | None = None) -> Lookup:
    at_ns = int(at_s * SECOND)
    return Lookup("t/n/x", "c", owner, BUNDLE, generation, stale_age_s, at_ns, at_ns)


def serve(at_s: float, broker: str, pid: int, generation: int) -> Serving:
    return Serving(broker, pid, f"{broker}-1", "serve", BUNDLE, generation, int(at_s * SECOND))


def broken(evidence: Evidence) -> set[str]:
    return set(check(evidence))


def test_an_honest_run_breaks_no_rule():
    assert check(good()) == {}
    assert check(replace(good(), lease_s=4.5)) == {}


def test_two_processes_at_one_generation():
    evidence = good()
    evidence.history.writes.append(write(5.6, "a", A, 6))
    assert "one-server-a-generation" in broken(evidence)


def test_serving_without_a_record_by_another_processs_or_too_early():
    for wrong in (
        serve(5.2, "b", B, 9),
        Serving("b", 33, "b-2", "serve", BUNDLE, 6, 6 * SECOND),
        serve(4.9, "b", B, 6),
    ):
        evidence = good()
        evidence.history.serving[-1] = wrong
        assert "served-by-its-record" in broken(evidence), wrong


@pytest.mark.parametrize("after_s", [5.3, 5.6, 9.0])
def test_an_old_owner_that_takes_writes_is_an_overlap_under_the_lease(after_s):
    evidence = replace(good(), lease_s=4.5)
    evidence.history.writes.append(write(after_s, "a", A, 3))
    assert broken(evidence) == {"lease-no-overlap"}


def test_an_answer_that_is_late_is_no_overlap_where_the_check_was_in_time():
    evidence = replace(good(), lease_s=4.5)
    evidence.history.writes.append(write(3.95, "a", A, 3, late_s=20))
    assert broken(evidence) == set()


def test_without_the_lease_an_overlap_needs_a_fault_that_touched_the_owner():
    for touched, at_s, wanted in (
        (("a",), 3.0, set()),
        (("*",), 3.0, set()),
        (("c",), 3.0, {"overlap-has-a-fault"}),
        (("a",), -99.0, {"overlap-has-a-fault"}),
    ):
        evidence = good()
        evidence.history.writes.append(write(5.6, "a", A, 3))
        healed_ns = int((at_s + 1) * SECOND)
        evidence.history.faults.append(FaultSpan("pause", touched, int(at_s * SECOND), healed_ns, healed_ns))
        assert broken(evidence) == wanted, touched


def test_answers_that_the_log_does_not_know_or_not_yet():
    for wrong in (lookup(5.5, "b", 3), lookup(5.5, "c", 6), lookup(4.9, "b", 6)):
        evidence = good()
        evidence.history.lookups.append(wrong)
        assert broken(evidence) == {"answers-are-true"}, wrong


def test_an_answer_long_out_of_date_has_to_say_so():
    evidence = good()
    evidence.history.lookups.append(lookup(7.9, "a", 3))
    evidence.history.lookups.append(lookup(20, "a", 3, stale_age_s=9.0))
    assert broken(evidence) == set()
    evidence.history.lookups.append(lookup(8.1, "a", 3))
    assert broken(evidence) == {"stale-answers-say-so"}
    over, _ = evidence.judged.ended[evidence.history.lookups[-1].bundle, 3]
    evidence.seen_ns = {(0, over): int(8.0 * SECOND)}  # the high watermark stood still until then
    assert broken(evidence) == set()
    evidence.history.lookups.append(lookup(14.1, "a", 3))
    assert broken(evidence) == {"stale-answers-say-so"}


def test_what_was_acknowledged_has_to_be_there_and_what_was_refused_must_not():
    transfer = {"name": BUNDLE, "destination": "b"}
    for wrong in (
        Asked("transfer", transfer, 0, 0, "never-written", "done"),
        Asked("transfer", {"name": BUNDLE, "destination": "c"}, 0, 0, "move1", "done"),
        Asked("transfer", transfer, 0, 0, "move1", "unknown", {}, {"offset": 1}),
        Asked("transfer", transfer, 0, 0, "move1", "rejected", {"reason": "wrong-base"}),
    ):
        evidence = good()
        evidence.history.asked.append(wrong)
        assert broken(evidence) == {"acknowledged-is-in-the-log"}, wrong


def test_a_log_that_forgot_or_changed_a_record():
    evidence = good()
    assert broken(replace(evidence, final=evidence.final[:-1])) == {"the-log-keeps-what-it-showed"}
    changed = [*evidence.final[:-1], evidence.final[-1]._replace(value=b"{}")]
    assert broken(replace(evidence, final=changed)) == {"the-log-keeps-what-it-showed"}


def test_the_cleaner_may_take_what_is_old_and_superseded_and_nothing_else():
    evidence = good()
    first, *rest = evidence.final
    # The bundle's own records hide each other, all but the last; the namespace's only record is hidden by none.
    assert broken(replace(evidence, final=[first, rest[-1]], lag_ms=4_000)) == set()
    assert broken(replace(evidence, final=[first, rest[-1]], lag_ms=8_500)) == {"the-log-keeps-what-it-showed"}
    assert broken(replace(evidence, final=rest, lag_ms=400)) == {"the-log-keeps-what-it-showed"}


def test_the_cleaner_may_take_an_uncommitted_record_once_it_is_old():
    evidence = good()
    note = RecordRead(Topic.CHANNEL, 0, len(evidence.final), 6_000, b"!note", b"t1")
    evidence = replace(evidence, copy=[*evidence.final, note], lag_ms=3_000)
    assert broken(replace(evidence, uncommitted={b"t1"})) == set()
    assert broken(replace(evidence, uncommitted={b"t1"}, lag_ms=3_001)) == {"the-log-keeps-what-it-showed"}
    assert broken(replace(evidence, uncommitted={b"t2"})) == {"the-log-keeps-what-it-showed"}


def test_what_a_fault_deleted_may_be_gone_and_nothing_behind_it():
    evidence = good()
    kept = evidence.final[2:]
    assert broken(replace(evidence, final=kept, deleted_below={0: kept[0].offset})) == set()
    assert broken(replace(evidence, final=kept, deleted_below={0: 1})) == {"the-log-keeps-what-it-showed"}
    assert broken(replace(evidence, final=kept, deleted_below={1: 99})) == {"the-log-keeps-what-it-showed"}


def test_gaps_that_are_open_and_outages_that_nothing_explains():
    evidence = good()
    records = evidence.copy[:-1]
    evidence = replace(evidence, judged=judge(records))
    assert "every-gap-has-a-cause" in broken(evidence)
    evidence = good()
    evidence.history.outages.append(Outage("t/n/x", 20 * SECOND, 21 * SECOND))
    assert broken(evidence) == {"every-gap-has-a-cause"}


def test_digests_debts_ends_and_what_was_found_on_the_way():
    assert broken(replace(good(), digests={"a": "x", "b": "y"})) == {"one-digest"}
    assert broken(replace(good(), digests={"a": "x", "b": None})) == {"one-digest"}
    assert broken(replace(good(), complaints=["a#1: Traceback"])) == {"ends-are-explained"}
    assert broken(replace(good(), ends=[("a#1", -15, frozenset({"stop"}))])) == {"ends-are-explained"}
    assert broken(replace(good(), ends=[("a#1", -15, frozenset({"stop", YOUNG}))])) == set()
    for code in (1, 17, 70, -11, -9):
        assert broken(replace(good(), ends=[("a#1", code, frozenset())])) == {"ends-are-explained"}, code
    evidence = good()
    evidence.history.recoveries.append(Recovery(["kill"], 0, problems=["not served"]))
    assert broken(evidence) == {"recovered-in-time"}
    evidence = good()
    evidence.history.beside.append(Beside("member-sick b1", 0, problems=["not led"]))
    assert broken(evidence) == {"served-beside-the-sick"}
    log = Log()
    log.add(1, NAMESPACE, "a", 1, None, "Active", children=["0x00000000_0xffffffff"])
    log.add(1, BUNDLE, "a", 9, None, "Assigned", from_=None, to="a")
    evidence = replace(good(), judged=judge(log.records), copy=[], history=History())
    assert broken(evidence) == {"nothing-is-left-over"}
    of_another = [record._replace(partition=1 - partition_of(NAMESPACE, 2)) for record in log.records[:1]]
    evidence = replace(good(), judged=judge(of_another, 2), copy=[], history=History())
    assert broken(evidence) == {"nothing-is-left-over"}


def test_an_outage_that_changed_bundles_or_left_no_debt():
    def outages(changed: list[list[str]], unpaid: list[int]) -> set[str]:
        evidence = replace(good(), unpaid=unpaid)
        evidence.history.changed += changed
        return broken(evidence)

    assert outages([[], []], [2, 1]) == set()
    assert outages([[], [BUNDLE]], [2, 1]) == {"outages-change-nothing"}
    assert outages([[], []], [2, 0]) == {"outages-change-nothing"}


def test_what_counts_as_unpaid_is_what_stood_unanswered_at_the_kill():
    log = Log()
    log.add(1, NAMESPACE, "a", 1, None, "Active", children=["0x00000000_0xffffffff"])
    log.add(2, NAMESPACE, "x", 9, "zz", "Deleted")
    assert unpaid(log.records, LeftInDebt((1,), 2_000)) == 1
    assert unpaid(log.records, LeftInDebt((1,), 1_999)) == 0, "the junk came after the kill"
    assert unpaid(log.records, LeftInDebt((0,), 2_000)) == 0, "not a record of the junk"
    log.add(2.5, BUNDLE, "a", 2, "r0/0x00000000_0xffffffff", "Assigning", from_=None, to="a")
    assert live_bundles(log.records) == {BUNDLE: ["Assigning", None, None]}
    pay = {"format": 1, "kind": "assert", "id": "p1", "covers": 2, "by": {"broker": "a", "incarnation": "a-1"}}
    pay |= {"version": 1, "asserts": "r0", "state": "Active", "children": ["0x00000000_0xffffffff"]}
    log.records.append(RecordRead(Topic.CHANNEL, 0, 3, 3_000, NAMESPACE.encode(), orjson.dumps(pay)))
    assert unpaid(log.records, LeftInDebt((1,), 2_900)) == 1, "it was answered after the kill"
    assert unpaid(log.records, LeftInDebt((1,), 3_000)) == 0, "it was answered before"


def call(kind: CallKind, value: int | None, at_s: float, broker: str = "a", outcome: Outcome = Outcome.OK) -> Call:
    at_ns = int(at_s * SECOND)
    generation, pid = {"a": (3, A), "b": (6, B)}[broker]
    return Call(kind, "t/n/x", value, outcome, at_ns, at_ns + 1, broker, pid, generation, at_ns)


def with_registers(lease_s: float | None = None, *more: Call) -> Evidence:
    """a writes 1 at second 2.5, b writes 2 at 5.5; both are read."""

    def noted(broker: str, generation: int, value: int | None = None, previous: int | None = None) -> Noted:
        topic = None if value is None else "t/n/x"
        return Noted(True, BUNDLE, generation, broker, {"a": A, "b": B}[broker], topic, value, previous)

    evidence = replace(good(), lease_s=lease_s)
    evidence.journal = [noted("a", 3), noted("a", 3, 1), noted("b", 6), noted("b", 6, 2, 1)]
    write, read = CallKind.WRITE, CallKind.READ
    evidence.history.calls += [
        call(write, 1, 2.5),
        call(read, 1, 3),
        call(write, 2, 5.5, "b"),
        call(read, 2, 6, "b"),
        *more,
    ]
    return evidence


def test_registers_that_forgot_took_an_older_generation_or_answered_an_old_value():
    assert broken(with_registers()) == set()
    assert broken(with_registers(4.5)) == set()
    evidence = with_registers()
    evidence.journal = [*evidence.journal[:3], replace(evidence.journal[3], generation=2)]
    assert broken(evidence) == {"storage-is-fenced"}
    evidence = with_registers()
    evidence.journal = evidence.journal[:3]
    assert broken(evidence) >= {"writes-are-kept-once"}
    old = call(CallKind.CONFIRMED_READ, 1, 7)
    assert broken(with_registers(None, old)) == {"registers-are-linearizable"}


def test_an_old_value_from_memory_is_a_violation_with_the_lease_and_needs_a_fault_without_it():
    old = call(CallKind.READ, 1, 7)
    assert broken(with_registers(4.5, old)) == {"registers-are-linearizable"}
    assert broken(with_registers(None, old)) == {"old-reads-have-a-fault"}
    evidence = with_registers(None, old)
    evidence.history.faults.append(FaultSpan("pause", ("a",), 4 * SECOND, 8 * SECOND, 8 * SECOND))
    assert broken(evidence) == set()
    evidence = with_registers(None, replace(old, outcome=Outcome.FENCED))
    assert broken(evidence) == set()


def test_with_the_lease_intervals_of_service_do_not_overlap():
    for b_from_s, lease_s, wanted in ((3.5, 4.5, {"lease-no-overlap"}), (3.5, None, set()), (4.1, 4.5, set())):
        evidence = replace(good(), lease_s=lease_s)
        for broker, pid, generation, begin_s, end_s in (("a", A, 3, 2, 4), ("b", B, 6, b_from_s, 9)):
            span = int(begin_s * SECOND), int(end_s * SECOND)
            evidence.history.services.append(Service(broker, pid, BUNDLE, generation, *span))
        assert broken(evidence) == wanted


def test_a_rule_of_the_product_that_is_bent_is_seen():
    evidence = good()
    log = Log()
    log.records = [*evidence.copy]
    log.add(6, BUNDLE, "a", 7, "another", "Releasing", from_="b", to="a")
    evidence.copy = log.records
    assert "both-implementations-agree" not in broken(evidence)
    with planted("base-unchecked"):
        assert "both-implementations-agree" in broken(evidence)


def test_what_was_truncated_counts_as_given_and_what_follows_has_to_be_above_it():
    evidence = good()
    log = Log()
    log.records = [*evidence.copy[:3]]
    evidence.copy = evidence.final = log.records
    evidence.history.outages.clear()
    truncated = replace(evidence, branches=[evidence.judged], judged=judge(log.records))
    assert broken(truncated) == set()
    assert "served-by-its-record" in broken(replace(truncated, branches=[]))
    owned = orjson.loads(log.records[-1].value)["id"]
    log.add(7, BUNDLE, "a", 4, owned, "Assigned", from_=None, to="a")
    assert "generations-outlive-truncation" in broken(replace(truncated, judged=judge(log.records)))


def test_a_branch_keeps_when_its_records_were_seen_so_that_their_times_can_be_put_right():
    copy = LogCopy("127.0.0.1:1", "channel")
    copy.partitions[0], copy.seen_ns[0] = good().copy[:3], [11, 12, 13]
    end = copy.partitions[0][-1].offset + 1
    asyncio.run(copy.branch(0, end))
    assert copy.branches == [copy.seen()]


def test_a_broken_topic_ends_a_broker_only_where_one_was_truncated():
    evidence = good()
    evidence.ends.append(("c#1", 17, frozenset()))
    assert broken(evidence) == {"ends-are-explained"}
    assert broken(replace(evidence, branches=[evidence.judged])) == set()


def test_a_lookup_may_name_the_owner_that_a_cold_start_has_restated():
    evidence = good()
    log = Log()
    log.records = [*evidence.copy]
    log.add(6, BUNDLE, "c", 99, "r5", "Assigned", from_=None, to="b", kind="assert", asserts="r5")
    evidence.history.lookups.append(lookup(7, "b", 99))
    assert broken(evidence) == {"answers-are-true"}
    assert "answers-are-true" not in broken(replace(evidence, judged=judge(log.records)))


def test_every_rule_is_broken_by_a_test_here():
    text = __import__("pathlib").Path(__file__).read_text()
    assert [name for name in RULES if f'"{name}"' not in text] == []
