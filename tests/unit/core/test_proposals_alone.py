"""Ends of own records alone: what is known when, at each bound of offset, token, version and time (protocol.md section 7)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from statechannel.engine.inputs import Appended, AppendFailed
from statechannel.engine.proposals import ProposalResult, Proposals, ProposalStatus
from statechannel.protocol.codec import MAX_INT
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.states import Action, Flow, State
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement
from tests.support.stub_context import LOW, FoldLog, StubContext, StubProvenance

QUARTERS = ["0x00000000_0x40000000", "0x40000000_0x80000000"]


class Bench:
    """The proposals of `a-1` on a log of one partition that is caught up."""

    def __init__(self, **config: Any) -> None:
        self.log = FoldLog()
        self.context = StubContext(**config)
        self.replica = SimpleNamespace(applied=self.log.view.applied, view=self.log.view, caught_up=True)
        self.context.replicas = [self.replica]  # type: ignore[attr-defined]
        self.context.views = [self.log.view]
        self.echoed: list[tuple[int, str, float]] = []
        self.woken: list[object] = []
        self.silent = False
        context: Any = self.context
        self.provenance = StubProvenance(self.context)
        stubs: Any = (
            SimpleNamespace(writes_format=1),
            self.provenance,
            SimpleNamespace(written=lambda *said: self.echoed.append(said)),
            SimpleNamespace(is_silent=lambda _: self.silent),
            lambda: self.woken.append("a heartbeat is wanted"),
        )
        self.proposals = Proposals(context, *stubs)
        self.ends: list[ProposalResult] = []

    def propose(self, **more: Any) -> str | None:
        fields = {"action": Action.OWN, "flow": Flow.ASSIGNMENT, "operation": "op1", "to": "b"} | more
        return self.proposals.propose(self.log.key(LOW), State.ASSIGNING, self.ends.append, **fields)

    def sent(self, **more: Any) -> tuple[int, str]:
        """Token and id of a proposal on its way."""
        record_id = self.propose(**more)
        assert record_id is not None
        (append,) = self.context.appends()
        self.value = append.value
        return append.token, record_id

    def appended(self, token: int, offset: int, session: int = 1) -> None:
        self.proposals.appended(Appended(token, offset, session))

    def failed(self, token: int, session: int = 1, *, never_written: bool = False) -> None:
        self.proposals.append_failed(AppendFailed(token, "an error", session, never_written))

    def read_back(self, offset: int, verdict: Verdict, name: str = LOW, record_id: str | None = None) -> None:
        record = SimpleNamespace(id=record_id or self.record_id)
        key = self.log.key(name)
        read = RecordRead(Topic.CHANNEL, 0, offset, 0, key.key, b"")
        self.proposals.read_back(read, Judgement(verdict, record, key))  # type: ignore[arg-type]

    def later(self, seconds: float = 0.0) -> None:
        self.context.now.mono_s += seconds
        self.proposals.tick()

    def read_to(self, offset: int) -> None:
        self.replica.applied = offset

    @property
    def statuses(self) -> list[ProposalStatus]:
        return [end.status for end in self.ends]


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def token(bench: Bench) -> int:
    result, bench.record_id = bench.sent()  # type: ignore[attr-defined]
    return result


# --- what is written ----------------------------------------------------------------------------------------------------


def test_a_proposal_builds_on_the_accepted_state(bench):
    _, record_id = bench.sent(reason="because", lost=None, carried={"colour": "red"})
    assert orjson.loads(bench.value) == {
        "format": 1, "kind": "proposal", "id": record_id, "covers": 0, "by": {"broker": "a", "incarnation": "a-1"},
        "version": 2, "base": "ns/0x00000000_0x80000000", "state": "Assigning", "action": "own", "from": None, "to": "b",
        "reason": "because", "flow": "assignment", "operation": "op1", "colour": "red", "written_at_ms": 100_000,
    }  # fmt: skip


def test_what_is_nothing_is_left_out_and_a_version_may_be_given(bench):
    bench.sent(flow=None, operation=None, version=9)
    document = orjson.loads(bench.value)
    assert not {"flow", "operation"} & set(document)
    assert document["version"] == 9


def test_a_namespace_has_no_brokers(bench):
    key = bench.log.key("t/n")
    bench.proposals.propose(
        key, State.DELETED, bench.ends.append, action=Action.DELETE, flow=Flow.NAMESPACE, operation=None
    )
    (append,) = bench.context.appends()
    assert not {"from", "to"} & set(orjson.loads(append.value))
    assert append.key == b"t/n"


def test_an_assert_says_all_of_the_state(bench):
    bench.log.own(LOW, "b")
    bench.log.move(LOW, "Splitting", "b", writer="b", children=QUARTERS, colour="red")
    bench.log.move(LOW, "Deleted", "b", writer="b", children=QUARTERS, colour="red")
    key = bench.log.key(LOW)
    record_id = bench.proposals.restate(key, bench.ends.append)
    (append,) = bench.context.appends()
    document = orjson.loads(append.value)
    assert (document["id"], document["kind"], document["version"], document["asserts"], document["state"]) == (
        record_id, "assert", 5, key.record_id, "Deleted",
    )  # fmt: skip
    assert (document["from"], document["to"], document["children"], document["colour"]) == ("b", None, QUARTERS, "red")
    assert document["server"] == {"broker": "b", "incarnation": "b-1"}, (
        "who joins by this assert knows who serves the children"
    )
    child = bench.log.key(f"t/n/{QUARTERS[0]}")
    bench.proposals.restate(child, bench.ends.append)
    document = orjson.loads(bench.context.appends()[0].value)
    assert document["server"] == {"broker": "b", "incarnation": "b-1"}
    assert document["asserts"] == f"{key.record_id}/{QUARTERS[0]}"


def test_an_assert_of_what_does_not_exist(bench):
    key = bench.log.key(LOW)
    key.forget()
    key.version = 7  # whatever is left of it
    bench.proposals.restate(key, bench.ends.append)
    document = orjson.loads(bench.context.appends()[0].value)
    assert (document["version"], document["asserts"], document["state"], document["from"], document["to"]) == (
        0,
        None,
        "Absent",
        None,
        None,
    )


def test_there_is_room_for_so_many():
    bench = Bench(pending_max=2)
    assert bench.proposals.room == 2
    bench.sent()
    assert (bench.proposals.room, len(bench.proposals)) == (1, 1)
    bench.sent()
    assert bench.proposals.room == 0
    assert bench.propose() is None
    assert bench.context.appends() == []


@pytest.mark.parametrize(("version", "written"), [(MAX_INT, True), (MAX_INT + 1, False)])
def test_no_version_is_above_the_highest(bench, version, written):
    assert (bench.propose(version=version) is not None) is written


def test_ids_differ_and_rise(bench):
    ids = [bench.proposals.new_id() for _ in range(50)]
    assert ids == sorted(set(ids))
    other = Bench()
    other.context.now.wall_ms += 1
    assert other.proposals.new_id() > ids[-1]


# --- reports and what is read back --------------------------------------------------------------------------------------


@pytest.mark.parametrize("verdict", [Verdict.ACCEPTED, Verdict.ASSERT_EQUAL])
@pytest.mark.parametrize("reported", [False, True])
def test_accepted_is_the_end_with_the_report_or_without(bench, token, verdict, reported):
    if reported:
        bench.appended(token, 5)
    bench.read_back(5, verdict)
    assert bench.ends == [ProposalResult(ProposalStatus.ACCEPTED, verdict, 5)]
    assert len(bench.proposals) == 0
    bench.read_back(6, verdict)
    assert len(bench.ends) == 1


def test_rejected_is_the_end_at_the_offset_of_the_report(bench, token):
    bench.appended(token, 5)
    bench.read_back(4, Verdict.STALE_VERSION)  # a copy of it by somebody else
    assert bench.ends == []
    bench.read_back(5, Verdict.WRONG_BASE)
    assert bench.ends == [ProposalResult(ProposalStatus.REJECTED, Verdict.WRONG_BASE, 5, "ns/0x00000000_0x80000000")]


def test_rejected_before_the_report_waits_for_it(bench, token):
    bench.read_back(4, Verdict.STALE_VERSION)
    bench.read_back(5, Verdict.WRONG_BASE)
    assert bench.ends == []
    bench.appended(token, 5)
    assert [(end.status, end.verdict) for end in bench.ends] == [(ProposalStatus.REJECTED, Verdict.WRONG_BASE)]


def test_another_key_or_another_id_is_not_ours(bench, token):
    bench.appended(token, 5)
    bench.read_back(5, Verdict.STALE_VERSION, name="t/n/0x80000000_0xffffffff")
    bench.read_back(5, Verdict.STALE_VERSION, record_id="another")
    bench.proposals.read_back(RecordRead(Topic.CHANNEL, 0, 5, 0, b"x", b""), Judgement(Verdict.UNDECODABLE))
    assert bench.ends == []


def test_after_an_error_the_first_copy_read_is_the_end(bench, token):
    bench.failed(token)
    bench.read_back(5, Verdict.STALE_VERSION)
    assert bench.statuses == [ProposalStatus.REJECTED]


def test_an_error_behind_a_copy_that_was_rejected_ends_it(bench, token):
    bench.read_back(5, Verdict.STALE_VERSION)
    bench.failed(token)
    assert [(end.status, end.offset) for end in bench.ends] == [(ProposalStatus.REJECTED, 5)]


def test_never_written_is_known_at_once(bench, token):
    bench.failed(token, never_written=True)
    assert bench.statuses == [ProposalStatus.NOT_WRITTEN]
    bench.failed(token)
    assert len(bench.ends) == 1


@pytest.mark.parametrize(("applied", "ended"), [(4, False), (5, True), (6, True)])
def test_what_was_read_over_without_its_name_is_undecodable(bench, token, applied, ended):
    bench.appended(token, 5)
    bench.read_to(applied)
    bench.later()
    assert bench.ends == ([ProposalResult(ProposalStatus.REJECTED, Verdict.UNDECODABLE, 5)] if ended else [])


def test_a_name_without_a_key_is_not_ours(bench, token):
    record = SimpleNamespace(id=bench.record_id)
    read = RecordRead(Topic.CHANNEL, 0, 5, 0, b"x", b"")
    bench.proposals.read_back(read, Judgement(Verdict.STALE_VERSION, record))
    bench.failed(token)
    assert bench.ends == []


def test_an_offset_of_nought_is_an_offset(bench, token):
    bench.appended(token, 0)
    bench.later()
    assert bench.statuses == [ProposalStatus.REJECTED]


def test_what_has_no_report_yet_is_not_at_an_end(bench, token):
    bench.read_to(99)
    bench.later()
    assert bench.ends == []


def test_nothing_is_judged_while_the_partition_is_not(bench, token):
    bench.appended(token, 5)
    bench.read_to(9)
    bench.context.not_judged = {0}
    bench.later()
    assert bench.ends == []


# --- errors whose end is open -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("which", "session", "offset", "applied", "judged", "ended"),
    [
        ("later", 1, 8, 8, True, True),
        ("later", 1, 8, 9, True, True),
        ("later", 1, 8, 7, True, False),
        ("later", 1, 8, 8, False, False),
        ("later", 2, 8, 8, True, False),
        ("earlier", 1, 8, 8, True, False),
        ("later", 1, 0, 0, True, True),
    ],
)
def test_a_later_one_of_the_same_session_that_was_read_proves_that_it_was_never_written(
    which, session, offset, applied, judged, ended
):
    bench = Bench()
    first, _ = bench.sent()
    second, _ = bench.sent()
    failed, other = (first, second) if which == "later" else (second, first)
    bench.failed(failed)
    bench.proposals._others[other] = bench.proposals._others.get(other) or SimpleNamespace(partition=0, failed=None)
    del bench.proposals._pending[other]
    bench.appended(other, offset, session)
    bench.read_to(applied)
    bench.context.not_judged = set() if judged else {0}
    bench.later()
    assert bench.statuses == ([ProposalStatus.NOT_WRITTEN] if ended else [])


def test_a_later_proposal_is_as_good_a_proof_as_any_other_record(bench, token):
    second, _ = bench.sent()
    bench.failed(token)
    bench.appended(second, 8)
    bench.read_to(8)
    bench.later()
    assert bench.statuses == [ProposalStatus.REJECTED, ProposalStatus.NOT_WRITTEN], "the second one was read over"


@pytest.mark.parametrize(("after_s", "ended"), [(60.0, False), (60.1, True)])
def test_after_the_limit_nobody_waits_any_more(bench, token, after_s, ended):
    bench.failed(token)
    bench.later(after_s)
    assert bench.statuses == ([ProposalStatus.UNKNOWN] if ended else [])


def test_the_limit_is_for_what_failed_only(bench, token):
    bench.later(1_000)
    assert bench.ends == []


def test_another_record_with_its_version_is_its_end(bench, token):
    bench.failed(token)
    bench.later()
    assert bench.ends == []
    bench.log.move(LOW, "Assigning", to="z", writer="z")
    bench.later()
    assert bench.ends == [ProposalResult(ProposalStatus.REJECTED, Verdict.STALE_VERSION)]


def test_its_own_record_is_not_another(bench, token):
    bench.failed(token)
    bench.log.move(LOW, "Assigning", to="z", writer="z", id=bench.record_id)
    bench.later()
    assert bench.ends == []


def test_an_assert_is_superseded_by_nothing(bench):
    bench.proposals.restate(bench.log.key(LOW), bench.ends.append)
    (append,) = bench.context.appends()
    bench.failed(append.token)
    bench.log.move(LOW, "Assigning", to="z", writer="z")
    bench.later()
    assert bench.ends == []


def test_a_view_that_is_not_judged_supersedes_nothing(bench, token):
    bench.failed(token)
    bench.log.move(LOW, "Assigning", to="z", writer="z")
    bench.context.not_judged = {0}
    bench.later()
    assert bench.ends == []


def test_in_a_doubted_view_nothing_is_said_of_what_failed(bench, token):
    """Its record may be accepted in it, and was not looked at: what is judged there is read again once the doubt ends."""
    second, _ = bench.sent()
    bench.failed(token)
    bench.context.not_judged = {0}
    bench.appended(second, 8)
    bench.log.move(LOW, "Assigning", to="b", id=bench.record_id)
    bench.log.move(LOW, "Assigned", to="b", writer="b")
    bench.read_to(9)
    bench.later()
    assert bench.ends == []


# --- a join in between --------------------------------------------------------------------------------------------------


def test_after_a_join_what_is_the_accepted_record_was_accepted(bench, token):
    bench.log.move(LOW, "Assigning", to="z", writer="z", id=bench.record_id)
    bench.proposals.view_replaced(0)
    assert bench.ends == [ProposalResult(ProposalStatus.ACCEPTED, Verdict.ACCEPTED, 1)]


@pytest.mark.parametrize("why", ["another's", "derived", "a copy", "assumed", "no key"])
def test_after_a_join_nothing_else_says_that_it_was(bench, token, why):
    record_id = "another" if why == "another's" else bench.record_id
    key = bench.log.move(LOW, "Assigning", to="z", writer="z", id=record_id)
    if why == "derived":
        key.derived = True
    elif why == "a copy":
        bench.provenance.copied.add(record_id)
    elif why == "no key":
        del bench.log.view.keys[key.key]
    bench.proposals.view_replaced(0, assumed=why == "assumed")
    assert bench.ends == []
    bench.failed(token)
    bench.later()
    assert bench.statuses == [ProposalStatus.UNKNOWN]


@pytest.mark.parametrize(("offset", "ended"), [(0, True), (3, True), (4, False)])
def test_what_lay_in_the_part_that_was_joined_is_unknown(bench, token, offset, ended):
    bench.log.view.applied = 3
    bench.appended(token, offset)
    bench.proposals.view_replaced(0)
    assert bench.statuses == ([ProposalStatus.UNKNOWN] if ended else [])


@pytest.mark.parametrize(("offset", "ended"), [(3, True), (4, False)])
def test_so_is_what_is_reported_later(bench, token, offset, ended):
    bench.log.view.applied = 3
    bench.proposals.view_replaced(0)
    assert bench.ends == []
    bench.appended(token, offset)
    assert bench.statuses == ([ProposalStatus.UNKNOWN] if ended else [])


@pytest.mark.parametrize("before", [True, False])
def test_an_error_around_a_join_is_unknown(bench, token, before):
    if before:
        bench.failed(token)
    bench.proposals.view_replaced(0)
    if not before:
        assert bench.ends == []
        bench.failed(token)
        bench.later()
    assert bench.statuses == [ProposalStatus.UNKNOWN]


def test_a_copy_that_is_rejected_behind_a_join_and_an_error_says_nothing(bench, token):
    bench.proposals.view_replaced(0)
    bench.failed(token)
    bench.read_back(9, Verdict.STALE_VERSION)
    assert bench.ends == [ProposalResult(ProposalStatus.UNKNOWN)]


def test_what_is_rejected_behind_a_join_before_its_report_is_rejected(bench, token):
    bench.proposals.view_replaced(0)
    bench.read_back(9, Verdict.STALE_VERSION)
    bench.appended(token, 9)
    assert bench.statuses == [ProposalStatus.REJECTED]


def test_another_partition_is_not_concerned(bench, token):
    bench.failed(token)
    bench.proposals._held.append([])
    bench.proposals._context.replicas.append(SimpleNamespace(applied=0, view=FoldLog().view, caught_up=True))
    bench.proposals.view_replaced(1)
    assert bench.ends == []


# --- records that are not judged ----------------------------------------------------------------------------------------


def test_a_control_record_tells_only_of_its_error(bench):
    results = []
    bench.proposals.control(0, b"!x", {"a": 1}, failed=lambda: results.append(1))
    (first,) = bench.context.appends()
    assert (first.key, orjson.loads(first.value), first.partition) == (b"!x", {"a": 1}, 0)
    bench.appended(first.token, 5)
    bench.failed(first.token)
    assert results == []
    bench.proposals.control(0, b"!x", {}, failed=lambda: results.append(2))
    bench.failed(bench.context.appends()[0].token)
    bench.proposals.control(0, b"!x", {})
    bench.failed(bench.context.appends()[0].token)
    bench.proposals.purge(0, b"t/x")
    (null,) = bench.context.appends()
    assert (null.key, null.value) == (b"t/x", None)
    assert results == [2]
    assert (len(bench.proposals), bench.ends) == (0, [])


# --- what waits for a heartbeat -----------------------------------------------------------------------------------------


def test_only_of_what_is_judged_and_goes_out_is_it_noted_when(bench):
    _, record_id = bench.sent()
    bench.proposals.purge(0, b"t/x")
    bench.silent = True
    bench.propose()
    assert bench.echoed == [(0, record_id, 100.0)]


def test_after_a_silence_a_heartbeat_is_wanted_and_goes_out_at_once(bench):
    bench.silent = True
    bench.propose()
    assert bench.woken == ["a heartbeat is wanted"]
    assert bench.context.appends() == []
    assert bench.proposals.holds_back(0)
    bench.proposals.control(0, b"!heartbeat", {})
    assert [append.key for append in bench.context.appends()] == [b"!heartbeat"]


def test_what_comes_later_does_not_go_before_what_waits(bench):
    bench.silent = True
    first = bench.propose()
    bench.silent = False
    bench.proposals.purge(0, b"t/x")
    second = bench.propose()
    assert bench.context.appends() == []
    bench.proposals.release(0)
    written = bench.context.appends()
    assert [append.key for append in written] == [LOW.encode(), b"t/x", LOW.encode()]
    assert [orjson.loads(written[place].value or b"")["id"] for place in (0, 2)] == [first, second]
    assert [append.token for append in written] == sorted({append.token for append in written})
    assert not bench.proposals.holds_back(0)
    bench.failed(written[0].token, never_written=True)
    assert bench.statuses == [ProposalStatus.NOT_WRITTEN]


def test_who_asked_for_a_control_record_that_waited_is_told_of_its_error(bench):
    results: list[int] = []
    bench.silent = True
    bench.proposals.control(0, b"!x", {}, failed=lambda: results.append(1))
    bench.silent = False
    bench.proposals.release(0)
    (append,) = bench.context.appends()
    bench.failed(append.token)
    assert results == [1]


def test_what_has_found_its_end_meanwhile_does_not_go_out(bench):
    bench.silent = True
    bench.record_id = bench.propose()
    bench.read_back(5, Verdict.ACCEPTED)  # a copy of it by somebody else
    bench.proposals.purge(0, b"t/x")
    bench.silent = False
    bench.proposals.release(0)
    assert [append.key for append in bench.context.appends()] == [b"t/x"]


def test_so_many_may_wait():
    bench = Bench(pending_max=2)
    bench.silent = True
    for number in range(6):
        bench.proposals.purge(0, b"t/x%d" % number)
    bench.silent = False
    bench.proposals.release(0)
    assert [append.key for append in bench.context.appends()] == [b"t/x%d" % number for number in range(4)]


def test_nothing_goes_out_where_nothing_is_judged(bench):
    bench.silent = True
    bench.propose()
    bench.silent = False
    bench.context.not_judged = {0}
    bench.proposals.release(0)
    assert bench.context.appends() == []
    assert bench.proposals.holds_back(0)
