"""Forged records that reuse ids or names: an ended operation, a process that left, one that never was, one that disowns them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shedders.decisions.bundle_trail import Trail
from shedders.decisions.explanation import CommandOrigin, why
from shedders.decisions.history import DecisionBook
from statechannel.audit.acknowledgements import Acknowledgements
from statechannel.audit.engine import AuditQuestion, AuditResult, ExportSource, Wants
from statechannel.audit.forgeries import ForgeryCheck
from statechannel.audit.incident import Incident, IncidentKind, newest, without_listed
from statechannel.audit.local import answer, owner_then
from statechannel.audit.moments import AsOf
from statechannel.audit.origins import OperationCause, OperationsSeen, Origin, origins_document
from statechannel.audit.transfer.export_file import read_export
from statechannel.audit.writers import SLACK_MS, Disowned, WritersHeard, forged_of
from statechannel.cli.kit.progress import progress
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.states import State
from statechannel.protocol.view import View
from tests.support.report_logs import LogMaker, SignedLog

MINUTE_MS = 60_000


def ask(path: Path, **wanted: Any) -> AuditResult:
    return answer(AuditQuestion(ExportSource(path), wants=Wants(**wanted)), progress=progress)


def heard(*beats: tuple[int, str, dict[str, Any]], first: int = 0) -> WritersHeard:
    """The registry: (log time, broker, further fields) of each heartbeat."""
    writers = WritersHeard()
    for number, (at_ms, broker, more) in enumerate(beats):
        info = {"broker": broker, "incarnation": f"{broker}-1"} | more
        writers.observe(RecordRead(Topic.REGISTRY, 0, first + number, at_ms, b"", b""), info)
    return writers


def moved(log: LogMaker, bundle: str, to: str, operation: str, reason: str = "ticket 4716") -> int:
    """A transfer by its owner; returns the offset of its first record."""
    first, owner = len(log.records), log.view.get(bundle).owner
    step = {"from": owner, "to": to, "flow": "transfer", "operation": operation}
    log.move(bundle, "Releasing", owner, action="transfer", reason=reason, **step)
    log.move(bundle, "Assigning", owner, action="transfer", **step)
    log.move(bundle, "Assigned", to, action="return", **step)
    return first


def ended_reused() -> tuple[SignedLog, str, int]:
    """A requested transfer; nine minutes later its id begins another move, with an id of the owner's own series."""
    log = SignedLog()
    bundle = log.namespace("t/n", 1)[0]
    log.assign(bundle, "b1")
    moved(log, bundle, "b2", "op-asked")
    log.now_ms += 9 * MINUTE_MS
    return log, bundle, moved(log, bundle, "b1", "op-asked")


def forged_in(path: Path, **more: Any) -> list[tuple[int, str]]:
    found = ask(path, forged=True, **more).forged or {}
    assert found["records"] == len(found["newest"])
    return [(row["offset"], row["forged"]) for row in found["newest"]]


class AskedFor:
    """The requests topic: who asked for a transfer to b2."""

    name, since_ms = "requests", 0

    def asker(self, begun: Any) -> OperationCause | None:
        if begun["operation"] != "op-asked":
            return None
        states = frozenset({State.RELEASING})
        return OperationCause(
            Origin.REQUEST, "op-asked", "root@vm", 0, "transfer", begun["name"], states, destination="b2"
        )


def test_an_operation_that_begins_a_second_time_is_forged_and_nobodys(tmp_path: Path) -> None:
    log, bundle, second = ended_reused()
    path = log.export(tmp_path / "log.jsonl")
    assert forged_in(path) == [(second, "reused-operation")]
    result = ask(path, origins=True, history=bundle, gaps=True)
    document = origins_document(result.origins or {}, [AskedFor()])
    asked, forged = (row for row in document["operations"] if row["operation"] == "op-asked")
    assert (asked["origin"], asked["asked"]["by"], asked["records"], asked["doubts"]) == ("request", "root@vm", 3, [])
    assert (forged["origin"], forged["asked"], forged["offset"]) == ("none", None, second)
    assert forged["doubts"] == [
        f"1 of its records: it begins with the id of an operation that began at offset {second - 3} and ended at offset "
        f"{second - 1}",
        "request op-asked requested transfer to b2",
    ]
    assert [gap["forged"] for gap in result.gaps or ()] == [[], [second]]
    rows = {row["offset"]: row for row in result.history or ()}
    assert (rows[second]["forged"], rows[second]["began"]) == ("reused-operation", None)
    assert rows[second + 2]["began"]["offset"] == second
    assert rows[second + 2]["began"]["forged"] == "reused-operation"


def test_the_operation_of_that_id_stays_as_it_was(tmp_path: Path) -> None:
    log, bundle, second = ended_reused()
    seen, trail, view = OperationsSeen(), Trail(bundle), View(0, 1)
    for record in log.records:
        judgement = view.read(record.offset, record.key, record.value)
        seen.observe(record, judgement)
        trail.observe(record, judgement)
    operation, times = seen.known["op-asked"], seen.times["op-asked"]
    assert (operation.destination, operation.result, times.records) == ("b2", "transferred", 3)
    assert (times.forged, times.forged_start) == ([second], False)
    asked = {"op-asked": CommandOrigin("root@vm", "transfer")}
    *_, first, last = why(trail, DecisionBook(), asked).steps
    assert first.message == "moved from b1 to b2 within 10 ms"
    assert first.because == "requested by root@vm (transfer) (its reason: ticket 4716)"
    assert last.message.startswith("moved from b2 to b1")
    assert "requested by" not in (last.because or "")
    assert "but its requester did not request this" in (last.because or "")


def test_lookups_of_a_moment_do_not_name_who_requested_the_operation(tmp_path: Path) -> None:
    log, bundle, second = ended_reused()
    export = read_export(log.export(tmp_path / "log.jsonl"))
    then = owner_then(export, bundle, AsOf(offset=len(log.records) - 1))
    assert (then.changed or {})["began"]["offset"] == second
    assert (then.changed or {})["began"]["forged"] == "reused-operation"


def test_the_deletion_of_a_namespace_may_release_a_bundle_twice(tmp_path: Path) -> None:
    log = LogMaker()
    bundle = log.namespace("t/n", 1)[0]
    log.assign(bundle, "b1")
    delete = {"action": "unload", "flow": "namespace", "operation": "op-delete"}
    log.move(bundle, "Releasing", **{"from": "b1"}, **delete)
    log.move(bundle, "Assigned", to="b1", action="resume", flow="namespace", operation="op-delete")
    log.move(bundle, "Releasing", **{"from": "b1"}, **delete)
    log.move(bundle, "Unassigned", **{"from": "b1"}, **delete)
    assert forged_in(log.export(tmp_path / "log.jsonl")) == []


def left_log(late_ms: int) -> tuple[LogMaker, int, int]:
    """b2 has left; a record in its name comes so long after its goodbye."""
    log = LogMaker()
    bundle = log.namespace("t/n", 1)[0]
    log.assign(bundle, "b1")
    left_ms = log.now_ms
    log.now_ms += late_ms
    offset = len(log.records)
    log.move(bundle, "Releasing", "b2", **{"from": "b1"}, to="b3", action="transfer", flow="transfer", operation="op-x")
    return log, left_ms, offset


@pytest.mark.parametrize(("late_ms", "forged"), [(MINUTE_MS, True), (SLACK_MS - 1_000, False)])
def test_what_comes_after_the_goodbye_of_its_process_is_forged(tmp_path: Path, late_ms: int, forged: bool) -> None:
    log, left_ms, offset = left_log(late_ms)
    writers = heard((0, "b1", {}), (0, "b2", {}), (left_ms, "b2", {"leaving": True}))
    path = log.export(tmp_path / "log.jsonl")
    assert forged_in(path, writers=writers) == ([(offset, "after-goodbye")] if forged else [])
    assert forged_in(path) == []


def test_a_process_that_is_heard_after_its_goodbye_has_not_left(tmp_path: Path) -> None:
    log, left_ms, _ = left_log(MINUTE_MS)
    beats = ((0, "b1", {}), (left_ms, "b2", {"leaving": True}), (left_ms + 1, "b2", {}))
    assert forged_in(log.export(tmp_path / "log.jsonl"), writers=heard(*beats)) == []


def test_what_a_running_process_disowns_is_forged(tmp_path: Path) -> None:
    log, left_ms, offset = left_log(1_000)
    seen = {"records": 1, "topic": "channel", "partition": 0, "offset": offset}
    path = log.export(tmp_path / "log.jsonl")
    assert forged_in(path, writers=heard((0, "b1", {}), (left_ms, "b2", {"forged": seen}))) == [(offset, "disowned")]
    # Another process cannot disown it.
    assert forged_in(path, writers=heard((0, "b2", {}), (left_ms, "b1", {"forged": seen}))) == []


def test_a_process_without_any_heartbeat_is_not_one(tmp_path: Path) -> None:
    log, left_ms, offset = left_log(1_000)
    path, late_ms = log.export(tmp_path / "log.jsonl"), log.now_ms + 2 * SLACK_MS
    assert forged_in(path, writers=heard((0, "b1", {}), (late_ms, "b1", {}))) == [(offset, "unregistered")]
    # The registry was read before, or has forgotten the time of the record.
    assert forged_in(path, writers=heard((0, "b1", {}), (left_ms, "b1", {}))) == []
    assert forged_in(path, writers=heard((log.now_ms, "b1", {}), (late_ms, "b1", {}), first=50)) == []


def test_an_id_of_another_key_or_content_is_forged(tmp_path: Path) -> None:
    log = LogMaker()
    first, other = log.namespace("t/n", 2)
    log.assign(first, "b1")
    used = log.proposal(first, "Releasing", "b1", **{"from": "b1"}, to="b2", action="transfer")
    log.put(first, used)
    stale = used | {"version": 1}
    offsets = [len(log.records), len(log.records) + 1]
    log.put(other, used | {"base": "r0"})
    log.move(first, "Assigning", "b1", **{"from": "b1"}, to="b2", action="transfer")
    offsets[1] = len(log.records)
    log.put(first, stale)
    log.put(first, used)  # a late second copy, by a retry
    assert forged_in(log.export(tmp_path / "log.jsonl")) == [(offset, "used-id") for offset in offsets]


def test_a_broker_that_shuts_down_and_asks_where_to_hand_over_is_in_no_doubt(tmp_path: Path) -> None:
    class Placed:
        name, since_ms = "decisions", 0

        def __init__(self, to: str) -> None:
            self.to = to

        def asker(self, begun: Any) -> OperationCause:
            states = frozenset({State.ASSIGNING})
            return OperationCause(Origin.DECISION, "d1", "b1", 0, "place", begun["name"], states, self.to)

    class Stopped:
        name, since_ms = "registry", 0

        def asker(self, begun: Any) -> OperationCause:
            return OperationCause(Origin.SHUTDOWN, begun["incarnation"], begun["by"], 0, "shutdown")

    log = LogMaker()
    bundle = log.namespace("t/n", 1)[0]
    log.assign(bundle, "b1")
    log.transfer(bundle, "b2", reason="shutdown", operation="op-1")
    path = log.export(tmp_path / "log.jsonl")

    def doubts(to: str) -> Any:
        rows = origins_document(ask(path, origins=True).origins or {}, [Placed(to), Stopped()])["operations"]
        return [(row["origin"], row["doubts"]) for row in rows if row["operation"] == "op-1"]

    assert doubts("b2") == [("shutdown", [])]
    assert doubts("b3") == [("shutdown", ["decision d1 requested place, but it begins with Releasing"])]


NOBODY = Acknowledgements()


def test_a_report_of_a_broker_is_counted_once() -> None:
    fields = {"records": 1, "topic": "channel", "partition": 0, "offset": 7}
    forged = forged_of({"forged": fields})
    assert forged is not None
    said = Incident(5, IncidentKind.FORGED, "b2 has read ...", Disowned("b2", forged))
    listed = [{"partition": 0, "offset": 7, "by": "b2"}]
    assert without_listed([said], listed, NOBODY) == []
    assert without_listed([said], [listed[0] | {"by": "b3"}], NOBODY) == [said]
    more = Disowned("b2", forged._replace(records=2))
    assert newest(without_listed([said._replace(disowned=more)], listed, NOBODY), 8) == [said._replace(disowned=more)]


def test_a_check_that_several_share_looks_at_a_record_once() -> None:
    log, _, second = ended_reused()
    check, view, found = ForgeryCheck(), View(0, 1), []
    for record in log.records:
        judgement = view.read(record.offset, record.key, record.value)
        for _ in range(2):
            if check.sign(record, judgement) is not None:
                found.append(record.offset)
    assert found == [second, second]


def test_a_heartbeat_from_the_future_makes_no_owner_silent_and_no_writer_unknown() -> None:
    """Kafka's clock was two hours ahead while b3 ended; the heartbeats behind it have the right times."""
    writers = WritersHeard()
    for offset, (broker, at_ms) in enumerate(
        [("b1", 1_000), ("b3", 7_201_000), ("b1", 2_000), ("b2", 2_000), ("b1", 9_000)]
    ):
        info = {"broker": broker, "incarnation": f"{broker}-1", "seq": offset + 1, "since": 0, "expiry_s": 6.0}
        writers.observe(RecordRead(Topic.REGISTRY, 0, offset, at_ms, broker.encode(), b""), info)
    late = {item.broker: item.silent_ms for item in writers.unheard_now(["b1", "b2", "b3"])}
    assert late == {"b2": 7_000, "b3": 7_000}
    assert not writers.never_registered(("b9", "b9-1"), 60_000), "the registry was not read that far"
