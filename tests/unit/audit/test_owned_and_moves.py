"""Who owns what and since when, and changes of owner, told from short logs; and how engines are found."""

from importlib import metadata
from typing import Any

import pytest

from statechannel.audit.engine import AuditQuestion, ExportSource, ReadMode, check_question, load_engine
from statechannel.audit.errors import AuditQuestionError
from statechannel.audit.ownership import HOUR_MS, Moves, Owners, move_fields
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.view import View
from statechannel.replay.auditor import audit_part
from statechannel.replay.survey import STRICT, ReadFacts
from tests.support.lone_engine import mark
from tests.support.report_logs import LogMaker
from tests.unit.audit.test_observers import SERVED, asserted, move
from tests.unit.audit.test_story import BUNDLE, LOWER, NAMESPACE, UPPER, Log


@pytest.fixture
def log() -> Log:
    return Log()


def owned(log: Log, facts: ReadFacts = STRICT, cleaned: tuple[int, ...] = ()) -> list[tuple[Any, ...]]:
    owners = Owners()
    records = [record for record in log.records if record.offset not in cleaned]
    part = audit_part(0, 1, records, facts, owners.observe, owners)
    names = ("bundle", "owner", "generation", "state", "since_offset", "since_ms")
    return [tuple(item[name] for name in names) for item in owners.owned_in(part)]


def moves(log: Log, facts: ReadFacts = STRICT) -> list[tuple[int, str, int]]:
    moves = Moves()
    audit_part(0, 1, log.records, facts, moves.observe)
    return [(field["hour_ms"], field["cause"], field["count"]) for field in move_fields(moves.counts.items())]


def transferred(log: Log, source: str, to: str, *, after_ms: int = 1_000) -> None:
    log.write(BUNDLE, "Releasing", **{"from": source}, to=to, after_ms=after_ms)
    log.write(BUNDLE, "Assigning", **{"from": source}, to=to)
    log.write(BUNDLE, "Assigned", **{"from": source}, to=to, by=to)


def test_children_are_owned_since_the_split(log: Log) -> None:
    log.assigned()
    log.write(BUNDLE, "Splitting", **{"from": "b1"})
    log.write(BUNDLE, "Deleted", **{"from": "b1"}, children=[LOWER, UPPER])
    bundles = [f"{NAMESPACE}/{LOWER}", f"{NAMESPACE}/{UPPER}"]
    assert owned(log) == [(bundle, "b1", 6, "Assigned", 4, 5_000) for bundle in bundles]
    assert moves(log) == [(0, "assignment", 1)]


def test_moves_are_counted_by_hour_and_cause(log: Log) -> None:
    log.assigned()
    transferred(log, "b1", "b2")
    transferred(log, "b2", "b3", after_ms=2 * HOUR_MS)
    transferred(log, "b3", "b1")
    assert moves(log) == [(0, "assignment", 1), (0, "transfer", 1), (2 * HOUR_MS, "transfer", 2)]


def test_who_serves_on_has_not_moved(log: Log) -> None:
    log.assigned()
    log.write(BUNDLE, "Assigned", to="b1")
    log.write(BUNDLE, "Releasing", **{"from": "b1"}, to="b2")
    log.write(BUNDLE, "Assigned", to="b1")
    log.write(BUNDLE, "Releasing", **{"from": "b1"})
    log.write(BUNDLE, "Unassigned", **{"from": "b1"})
    log.write(BUNDLE, "Assigning", to="b1")
    log.write(BUNDLE, "Assigned", to="b1")
    assert moves(log) == [(0, "assignment", 1)]


@pytest.mark.parametrize(
    ("fields", "cause"),
    [({"lost": {"broker": "b1", "incarnation": "i", "last_heard_ms": 7}}, "owner-lost"), ({}, "repair")],
)
def test_a_repair_is_a_cause_of_its_own(log: Log, fields: dict[str, Any], cause: str) -> None:
    log.assigned()
    log.write(BUNDLE, "Assigning", to="b2", forced=True, by="b3", **fields)
    log.write(BUNDLE, "Assigned", to="b2", by="b2")
    assert moves(log) == [(0, "assignment", 1), (0, cause, 1)]


def test_an_unload_names_its_cause_when_the_next_owner_comes(log: Log) -> None:
    log.assigned()
    log.write(BUNDLE, "Releasing", **{"from": "b1"})
    log.write(BUNDLE, "Unassigned", **{"from": "b1"})
    log.write(BUNDLE, "Assigning", to="b2", after_ms=HOUR_MS)
    log.write(BUNDLE, "Assigned", to="b2", by="b2")
    assert moves(log) == [(0, "assignment", 1), (HOUR_MS, "unload", 1)]


def test_a_new_ring_has_had_no_owners(log: Log) -> None:
    log.assigned()
    log.write(BUNDLE, "Releasing", **{"from": "b1"})
    log.write(BUNDLE, "Unassigned", **{"from": "b1"})
    log.write(NAMESPACE, "Deleted", version=6)
    version = 7
    log.write(NAMESPACE, "Active", version=version, base="id-5", children=["0x00000000_0xffffffff"])
    log.write(BUNDLE, "Assigning", version=8, base=f"id-6/{BUNDLE.rpartition('/')[2]}", to="b1")
    log.write(BUNDLE, "Assigned", version=9, base="id-7", to="b1")
    assert moves(log) == [(0, "assignment", 2)]


def test_what_went_before_the_first_judged_record_is_unknown(log: Log) -> None:
    log.assigned()
    assert moves(log, ReadFacts(lenient_to=1)) == [(0, "before-log", 1)]
    transferred(log, "b1", "b2")
    assert moves(log, ReadFacts(lenient_to=4)) == [(0, "transfer", 1)]


def made(log: LogMaker) -> list[tuple[str, int]]:
    moves, view = Moves(), View(0, 1)
    for record in log.records:
        moves.observe(record, view.read(record.offset, record.key, record.value))
    return [(field["cause"], field["count"]) for field in move_fields(moves.counts.items())]


def test_the_children_of_a_split_move_from_its_owner() -> None:
    log = LogMaker()
    bundle = log.namespace("t/n", 1)[0]
    log.assign(bundle, "b1")
    lower, upper = log.split(bundle)
    for half in (lower, upper):
        log.move(half, "Assigning", "b3", to="b1", forced=True)
        log.move(half, "Assigned", to="b1")
    log.transfer(lower, "b2")
    log.lose(upper, "b3", heard_ago_ms=5)
    assert made(log) == [("assignment", 1), ("owner-lost", 1), ("transfer", 1)]
    log.lose(upper, "b3", heard_ago_ms=5)
    log.move(lower, "Assigned", "b2", to="b2")
    assert made(log) == [("assignment", 1), ("owner-lost", 1), ("transfer", 1)]


def test_what_is_rejected_or_of_another_namespace_changes_no_owner() -> None:
    log = LogMaker()
    bundle, other = log.namespace("t/n", 2)
    log.assign(bundle, "b1")
    log.assign(other, "b1")
    log.unload(other)
    log.put(bundle, log.proposal(bundle, "Releasing", "b3", **{"from": "b3"}) | {"version": 2})
    log.lose(bundle, "b3", heard_ago_ms=5)
    log.namespace("t/m", 1)
    log.assign(other, "b1")
    log.unload(other)
    log.assign(other, "b2")
    assert made(log) == [("assignment", 2), ("owner-lost", 1), ("unload", 1)]


@pytest.mark.parametrize(("to", "expected"), [("b1", []), ("b2", [(0, "owner-lost", 1)])])
def test_a_repair_that_a_joining_reader_sees_first_says_who_was_the_owner(
    log: Log, to: str, expected: list[tuple[int, str, int]]
) -> None:
    log.assigned()
    lost = {"broker": "b1", "incarnation": "b1-i", "last_heard_ms": 7}
    log.write(BUNDLE, "Assigning", to=to, forced=True, by="b3", lost=lost)
    log.write(BUNDLE, "Assigned", to=to, by=to)
    assert moves(log, ReadFacts(lenient_to=2)) == expected


def test_how_a_bundle_came_to_be_unassigned_by_a_cold_start_is_unknown() -> None:
    rows = [*SERVED, asserted(4, "Unassigned", **{"from": "b"}), (b"!cold-start", mark("x-1", 2))]
    rows += [move(5, 5, "other", "Assigning", to="c"), move(6, 6, "p5", "Assigned", to="c")]
    records = [RecordRead(Topic.CHANNEL, 0, at, 1_000 * at, key, value) for at, (key, value) in enumerate(rows)]
    moved = Moves()
    audit_part(0, 1, records, STRICT, moved.observe)
    assert [field["cause"] for field in move_fields(moved.counts.items())] == ["assignment", "before-log"]


def test_an_engine_that_is_not_there_is_told() -> None:
    with pytest.raises(AuditQuestionError, match="unknown audit engine 'abacus'"):
        load_engine("abacus")


def test_an_engine_that_cannot_be_loaded_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = metadata.EntryPoint("broken", "no.such.module:answer", "statechannel.audit_engines")
    monkeypatch.setattr(metadata, "entry_points", lambda group: metadata.EntryPoints([broken]))
    with pytest.raises(AuditQuestionError, match="cannot be loaded: No module named 'no'") as result:
        load_engine("broken")
    assert "pip install" in result.value.hint


def test_verdicts_of_a_join_are_refused_before_anything_is_read(tmp_path: Any) -> None:
    question = AuditQuestion(ExportSource(tmp_path / "none"), read=ReadMode.JOIN, verdicts=tmp_path / "out")
    with pytest.raises(AuditQuestionError, match="need a full read"):
        check_question(question)
