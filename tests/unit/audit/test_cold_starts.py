"""What the audit says of a cold start, and of offsets that are missing though nothing was cleaned."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from statechannel.audit import local
from statechannel.audit.engine import AuditQuestion, AuditResult, ExportSource, Wants
from statechannel.audit.report.data import ReportQuestion, report_data
from statechannel.audit.transfer.export_file import read_export, write_export
from statechannel.audit.transfer.line import ExportHeader
from statechannel.protocol.log import RecordRead, Topic
from statechannel.stories.incident import IncidentKind
from tests.support.lone_engine import BUNDLE, CREATED, NAMESPACE, heartbeat, mark
from tests.unit.audit.test_cleaned_logs import no_bar

START_MS = 1_750_000_000_000
NOWHERE = {"from": None, "to": None}
BASE = "ns1/0x00000000_0xffffffff"
LAG_MS = 3_600_000


def record(writer: str, **fields: Any) -> bytes:
    return orjson.dumps({"format": 1, "by": {"broker": writer[0], "incarnation": writer}, "covers": 1} | fields)


def move(number: int, version: int, base: str, state: str, **fields: Any) -> bytes:
    head = {"kind": "proposal", "id": f"p{number}", "version": version, "base": base, "state": state} | NOWHERE
    return record("b-1", **head | fields)


ROWS = [
    (NAMESPACE, CREATED),
    (BUNDLE, move(1, 2, BASE, "Assigning", to="b")),
    (BUNDLE, move(2, 3, "p1", "Assigned", to="b")),
    (NAMESPACE, record("z-1", kind="proposal", id="junk", version=9, base="unknown", state="Deleted")),
    (NAMESPACE, record("x-1", kind="assert", id="a1", covers=3, version=9, asserts="junk", state="Deleted")),
    (BUNDLE, record("x-1", kind="assert", id="a2", covers=3, version=0, asserts=None, state="Absent", **NOWHERE)),
    (b"!cold-start", mark("x-1", 3)),
    (b"!heartbeat", heartbeat("x-1", 6)),
]  # fmt: skip
MARK = 6
CHANGED = [NAMESPACE.decode(), BUNDLE.decode()]


def written(folder: Path, missing: tuple[int, ...] = (), *, now_ms: int = START_MS + 20_000) -> Path:
    """The log as a file, a second between its records."""
    path = folder / "log.jsonl"
    records = [
        RecordRead(Topic.CHANNEL, 0, offset, START_MS + 1_000 * offset, key, value)
        for offset, (key, value) in enumerate(ROWS)
        if offset not in missing
    ]
    write_export(path, ExportHeader("t", {0: len(ROWS)}, 0), records, now_ms=lambda: now_ms)
    return path


def audited(path: Path, wants: Wants | None = None) -> AuditResult:
    return local.answer(AuditQuestion(ExportSource(path), wants=wants or Wants()), progress=no_bar)


def test_a_cold_start_is_named_with_each_key_that_it_changed(tmp_path: Path) -> None:
    answer = audited(written(tmp_path)).answer
    (row,) = answer["cold_starts"]
    assert (row["partition"], row["offset"], row["timestamp_ms"]) == (0, MARK, START_MS + 1_000 * MARK)
    assert (row["by"], row["through"]) == ("x-1", 3)
    assert [key["key"] for key in row["overruled"]] == CHANGED
    assert [orjson.loads(key["held"])[2] for key in row["overruled"]] == ["Active", "Assigned"]
    assert [key["asserted"] and orjson.loads(key["asserted"])[2] for key in row["overruled"]] == ["Deleted", None]
    assert (answer["namespaces"], answer["bundles"], answer["owners"]) == (0, 0, {})


def test_it_ends_what_was_served_and_the_history_and_the_report_say_so(tmp_path: Path) -> None:
    path = written(tmp_path)
    result = audited(path, Wants(gaps=True, owned=True, history=CHANGED[1]))
    assert (list(result.gaps or ()), result.owned) == ([], [])
    report = report_data(read_export(path), ReportQuestion(), progress=no_bar)
    (incident,) = [row for row in report["incidents"] if row["kind"] == IncidentKind.COLD_START]
    assert all(key in incident["message"] for key in CHANGED)
    assert {broker["name"]: broker["end"] for broker in report["area"]["brokers"]} == {"b": 0}
    (lane,) = [lane for lane in report["lanes"] if lane["name"] == CHANGED[1]]
    assert [mark["band"] and mark["band"][0] for mark in lane["marks"]][-1] is None


def test_where_the_log_was_cleaned_before_it_nobody_can_tell_what_it_changed(tmp_path: Path) -> None:
    answer = audited(written(tmp_path, (0, 1), now_ms=START_MS + LAG_MS + 4_000)).answer
    assert answer["read"] == "join"
    assert [(row["offset"], row["overruled"]) for row in answer["cold_starts"]] == [(MARK, None)]


@pytest.mark.parametrize(("now_ms", "read"), [(START_MS + LAG_MS + 1_999, "full"), (START_MS + LAG_MS + 2_000, "join")])
@pytest.mark.parametrize("missing", [3, len(ROWS) - 1])
def test_an_offset_that_cannot_have_been_cleaned_is_no_gap(tmp_path: Path, missing: int, now_ms: int, read: str):
    """As the marker of a transaction leaves it, also at the end; the record before it is 2 s younger than the first, or 6 s."""
    later_ms = 1_000 * (missing - 3)
    result = audited(written(tmp_path, (missing,), now_ms=now_ms + later_ms))
    assert (result.answer["read"], bool(result.complete)) == (read, read == "join")
