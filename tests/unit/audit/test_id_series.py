"""Records in somebody's name with an id that he does not make: a mark in history, origins, report and why."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest
from ulid import ULID

from shedders.decisions.bundle_trail import Trail
from shedders.decisions.explanation import why
from shedders.decisions.history import DecisionBook
from statechannel.audit import local
from statechannel.audit.engine import AuditQuestion, AuditResult, ExportSource, Wants
from statechannel.audit.forgeries import FORGED_MAX, ForgeriesFound, as_rows, put_together
from statechannel.audit.id_series import FOREIGN, IdSeries
from statechannel.audit.incidents import ChannelIncidents, IncidentKind
from statechannel.audit.local import audit_export, owner_then
from statechannel.audit.moments import AsOf
from statechannel.audit.origins import OperationsSeen
from statechannel.audit.report.data import ReportQuestion, report_data
from statechannel.audit.transfer.export_file import read_export
from statechannel.engine.provenance import OwnIds
from statechannel.protocol.log import RecordRead
from statechannel.protocol.view import View
from tests.spark.asking import no_bar
from tests.support.report_logs import LogMaker, SignedLog, forged_beside

BUNDLE = "t/n/0x00000000_0xffffffff"
START_MS = 1_700_000_000_000


def forged() -> SignedLog:
    """b1 and b2 pass a bundle on; a console producer writes a release in the owner's name, who obeys."""
    log = SignedLog()
    (bundle,) = log.namespace("t/n", 1)
    log.assign(bundle, "b1")
    log.transfer(bundle, "b2", operation="op-1")
    log.transfer(bundle, "b1", operation="op-2")
    log.stranger = True
    log.move(bundle, "Releasing", "b1", **{"from": "b1"}, to="b2", action="transfer", flow="transfer")
    log.stranger = False
    log.move(bundle, "Assigning", "b1", **{"from": "b1"}, to="b2", action="transfer", flow="transfer")
    log.move(bundle, "Assigned", "b2", **{"from": "b1"}, to="b2", action="return", flow="transfer")
    return log


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return forged().export(tmp_path / "log.jsonl")


FORGED_AT = 9


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    return forged_beside().export(tmp_path / "beside.jsonl")


LOWER = "t/n/0x00000000_0x80000000"
BESIDE_AT = 17


def ask(path: Path, **wants: Any) -> AuditResult:
    return local.answer(AuditQuestion(ExportSource(path), wants=Wants(**wants)), progress=no_bar)


@pytest.mark.parametrize(
    ("name", "lower"), [(LOWER, True), ("t/n/t2", True), ("t/n/t0", False), ("t/n", True), (None, True)]
)
def test_every_history_knows_the_series_of_the_whole_log(name: str | None, lower: bool, beside: Path) -> None:
    history = ask(beside, history=name, all_records=name is None).history
    assert history is not None
    marked = [(row["offset"], row["forged"]) for row in history if FOREIGN in row["note"]]
    assert marked == ([(BESIDE_AT, "foreign-id")] if lower else [])
    assert [row["began"]["forged"] for row in history if row["offset"] in (BESIDE_AT + 1, BESIDE_AT + 2)] == (
        ["foreign-id"] * 2 if lower else []
    )


def test_a_gap_that_a_forged_record_began_says_so(beside: Path) -> None:
    gaps = list(ask(beside, gaps=True).gaps or ())
    assert [(gap["start_offset"], gap["forged"]) for gap in gaps if gap["forged"]] == [(BESIDE_AT, [BESIDE_AT])]
    (why,) = [gap["why"] for gap in gaps if gap["forged"]]
    assert why == f"transfer from b2 to b1 (ticket 4799); the record at offset {BESIDE_AT} is forged: {FOREIGN}"


def test_a_gap_that_a_forged_record_ended_says_so(tmp_path: Path) -> None:
    log = SignedLog()
    (bundle,) = log.namespace("t/n", 1)
    log.assign(bundle, "b1")
    log.transfer(bundle, "b2")
    log.transfer(bundle, "b1")
    log.move(bundle, "Releasing", "b1", **{"from": "b1"}, to="b2", action="transfer")
    log.move(bundle, "Assigning", "b1", **{"from": "b1"}, to="b2", action="transfer")
    log.move(bundle, "Assigned", "b2", **{"from": "b1"}, to="b2")
    log.move(bundle, "Releasing", "b2", **{"from": "b2"}, to="b1", action="transfer")
    log.move(bundle, "Assigning", "b2", **{"from": "b2"}, to="b1", action="transfer")
    log.stranger = True
    log.move(bundle, "Assigned", "b1", **{"from": "b2"}, to="b1")
    gaps = list(ask(log.export(tmp_path / "log.jsonl"), gaps=True).gaps or ())
    assert [gap["forged"] for gap in gaps] == [[], [], [], [len(log.records) - 1]]


def test_operations_with_forged_records_are_marked(beside: Path) -> None:
    seen = OperationsSeen()
    audit_export(read_export(beside), observers=[seen.observe])
    assert {name: times.forged for name, times in seen.times.items()} == {
        "create-t/n": [],
        "op-lookup": [],
        "op-f": [BESIDE_AT],
    }


def test_the_owner_then_has_the_note_of_its_operation(beside: Path) -> None:
    then = owner_then(read_export(beside), LOWER, AsOf(offset=BESIDE_AT))
    assert (then.changed or {})["forged"] == "foreign-id"
    later = owner_then(read_export(beside), LOWER, None)
    assert (later.changed or {})["forged"] is None
    assert (later.changed or {})["began"]["forged"] == "foreign-id"


def test_the_log_of_a_channel_shows_forged_records_as_incidents(beside: Path) -> None:
    incidents = ChannelIncidents(1_000)
    audit_export(read_export(beside), observers=[incidents.observe])
    (one,) = [one for one in incidents.all() if one.kind is IncidentKind.FORGED]
    assert one.message == (
        f"forged in the name of b2: Releasing v4 of {LOWER} at partition 0, offset {BESIDE_AT}, accepted; {FOREIGN}"
    )


def copied(path: Path, **changes: object) -> Path:
    """The newest accepted record of the bundle again, with these changes."""
    log = SignedLog()
    (bundle,) = log.namespace("t/n", 1)
    log.assign(bundle, "b2")
    value = orjson.loads(log.records[-1].value or b"")
    assert log.put(bundle, value | changes) == "duplicate"
    return log.export(path)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"to": "b3"}, "same id as offset 2, other content (to b3, not b2)"),
        (
            {"to": "b3", "by": {"broker": "b1", "incarnation": "b1-1"}},
            "same id as offset 2, other content (to b3, not b2; by b1, not b2)",
        ),
        ({"version": 9}, "same id as offset 2, other content (version 9, not 3)"),
        ({"forced": True, "operation": "op"}, "same id as offset 2, other content (operation op, not -; forced)"),
        ({}, None),
        ({"covers": 0}, None),
    ],
)
def test_a_copy_with_other_content_is_forged(changes: dict[str, object], expected: str | None, tmp_path: Path) -> None:
    path = copied(tmp_path / "log.jsonl", **changes)
    history, found = ask(path, history=BUNDLE).history, ask(path, forged=True).forged
    assert history is not None
    assert found is not None
    row = list(history)[-1]
    assert row["forged"] == (None if expected is None else "changed-copy")
    assert row["note"].removesuffix("; forced, repaired by b2") == (expected or "")
    assert found["records"] == (expected is not None)
    assert [(row["offset"], row["verdict"], row["note"]) for row in found["newest"]] == (
        [] if expected is None else [(3, "duplicate", expected)]
    )


def test_the_newest_forged_records_are_listed_and_all_are_counted() -> None:
    found, own = ForgeriesFound(), OwnIds(b"\x01" * 10)
    ids = [own.new_id(START_MS + number) for number in range(5)] + [str(ULID()) for _ in range(FORGED_MAX + 3)]
    view = View(0, 1)
    for entry in log_of(ids):
        found.observe(entry, view.read(entry.offset, entry.key, entry.value))
    document = put_together([as_rows(found)])
    assert document["records"] == FORGED_MAX + 3
    assert [row["offset"] for row in document["newest"]] == list(range(8, 8 + FORGED_MAX))


def test_history_marks_it(path: Path) -> None:
    result = local.answer(AuditQuestion(ExportSource(path), wants=Wants(history=BUNDLE)), progress=no_bar)
    assert result.history is not None
    assert [row["offset"] for row in result.history if FOREIGN in row["note"]] == [FORGED_AT]


def test_origins_mark_it(path: Path) -> None:
    origins = local.answer(AuditQuestion(ExportSource(path), wants=Wants(origins=True)), progress=no_bar).origins
    assert origins is not None
    assert [(row["offset"], row["foreign"]) for row in origins["rows"] if row["foreign"]] == [(FORGED_AT, 1)]


def test_the_report_marks_it(path: Path) -> None:
    data = report_data(read_export(path), ReportQuestion(), progress=no_bar)
    marks = [mark for lane in data["lanes"] for mark in lane["marks"] if FOREIGN in (mark.get("note") or "")]
    assert [mark["offset"] for mark in marks] == [FORGED_AT]


def test_why_marks_it() -> None:
    log, trail = forged(), Trail(BUNDLE)
    view = View(0, 1)
    for record in log.records:
        trail.observe(record, view.read(record.offset, record.key, record.value))
    steps = why(trail, DecisionBook(), {}).steps
    assert [step.offset for step in steps if FOREIGN in (step.because or "")] == [FORGED_AT]
    (of_forged,) = [step.because for step in steps if FOREIGN in (step.because or "")]
    assert of_forged is not None
    assert "by hand" not in of_forged


def test_why_says_of_a_forged_operation_that_no_decision_names_it_and_no_more() -> None:
    log, trail, view = forged_beside(), Trail(LOWER), View(0, 1)
    for record in log.records:
        trail.observe(record, view.read(record.offset, record.key, record.value))
    *_, looked_up, moved = why(trail, DecisionBook(), {}).steps
    assert looked_up.because.startswith("no broker served it and a client looked it up; b1 chose the destination; ")
    assert moved.because == f"{FOREIGN}; no request or decision names its operation (its reason: ticket 4799)"


def marks(records: Iterable[RecordRead]) -> list[int]:
    series, view = IdSeries(), View(0, 1)
    return [
        record.offset
        for record in records
        if series.is_foreign(record, view.read(record.offset, record.key, record.value).record)
    ]


def log_of(ids: Iterable[str]) -> list[RecordRead]:
    log = LogMaker()
    for broker in ids:
        log.put(BUNDLE, log.proposal(BUNDLE, "Assigning") | {"id": broker})
    return log.records


def test_who_makes_each_id_anew_has_no_series() -> None:
    assert marks(log_of(str(ULID()) for _ in range(50))) == []
    within = [ULID.from_int(((START_MS + n // 9) << 80) | (n // 9 * 7919**5 + n)) for n in range(50)]
    assert marks(log_of(map(str, within))) == []


OTHER_FORMS = ["r-1", "01J000001-C064F2", "018c2b6e-7d3a-7cc0-98c4-dc0c0c07398f"]


def test_who_makes_ulids_makes_no_other_ids() -> None:
    own = OwnIds(b"\x01" * 10)
    ids = [own.new_id(START_MS + number) for number in range(5)]
    assert marks(log_of([*ids, *OTHER_FORMS])) == [5, 6, 7]


def test_ids_of_another_form_are_no_series() -> None:
    own = OwnIds(b"\x01" * 10)
    ids = [own.new_id(START_MS + number) for number in range(2)]
    assert marks(log_of([*OTHER_FORMS, *ids, "r-2"])) == []


@pytest.mark.parametrize(("known", "expected"), [(2, []), (3, [3]), (9, [9])])
def test_a_few_ids_are_no_series_yet(known: int, expected: list[int]) -> None:
    own = OwnIds(b"\x01" * 10)
    ids = [own.new_id(START_MS + number) for number in range(known)]
    assert marks(log_of([*ids, str(ULID.from_int(7))])) == expected


def test_where_two_series_begin_side_by_side_nobody_is_accused() -> None:
    own, other = OwnIds(b"\x01" * 10), OwnIds(b"\x77" * 10)
    makers = [own, other, other, other, own, own, other, own, own]
    assert marks(log_of(maker.new_id(START_MS + number) for number, maker in enumerate(makers))) == []


@pytest.mark.parametrize("first", [b"\xff" * 10, b"\x00" * 10])
def test_a_series_may_pass_the_end_of_the_numbers(first: bytes) -> None:
    own = OwnIds(first)
    ids = [own.new_id(START_MS + n) for n in range(20)]
    assert marks(log_of(ids)) == []
    assert marks(log_of([*ids, str(ULID.from_int((START_MS << 80) | 1 << 79))])) == [20]
