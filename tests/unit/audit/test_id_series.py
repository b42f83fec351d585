"""Records in somebody's name with an id that he does not make: a mark in history, origins, report and why."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from ulid import ULID

from shedders.decisions.bundle_trail import Trail
from shedders.decisions.explanation import why
from shedders.decisions.history import DecisionBook
from statechannel.audit import local
from statechannel.audit.engine import AuditQuestion, ExportSource, Wants
from statechannel.audit.id_series import FOREIGN, IdSeries
from statechannel.audit.report.data import ReportQuestion, report_data
from statechannel.audit.transfer.export_file import read_export
from statechannel.engine.provenance import OwnIds
from statechannel.protocol.log import RecordRead
from statechannel.protocol.view import View
from tests.spark.asking import no_bar
from tests.support.report_logs import LogMaker

BUNDLE = "t/n/0x00000000_0xffffffff"
START_MS = 1_700_000_000_000


class SignedLog(LogMaker):
    """Each process has ids of its own, as brokers have."""

    def __init__(self) -> None:
        super().__init__()
        self._ids = {name: OwnIds(bytes([number] * 10)) for number, name in enumerate(("b1", "b2"), start=1)}
        self.stranger = False

    def proposal(self, key: str, state: str, by: str = "b1", **fields: object) -> dict:
        own = str(ULID()) if self.stranger else self._ids[by].new_id(self.now_ms)
        return super().proposal(key, state, by, **fields) | {"id": own}


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
