"""A log whose first records were deleted: whoever reads it says so, until a broker has restated what was lost."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from statechannel.audit import local
from statechannel.audit.engine import AuditQuestion, AuditResult, ExportSource
from statechannel.audit.errors import ExportFileError
from statechannel.audit.moments import AsOf
from statechannel.audit.transfer.export_file import read_export, write_export
from statechannel.audit.transfer.line import ExportHeader
from statechannel.audit.views import LogViews, read_views
from statechannel.protocol.log import RecordRead, Topic
from tests.support.lone_engine import BUNDLE, CREATED, NAMESPACE, heartbeat
from tests.unit.audit.test_cleaned_logs import no_bar
from tests.unit.audit.test_cold_starts import BASE, LAG_MS, START_MS, move, record

FIRST = 3
WHOLE = ["0x00000000_0xffffffff"]
ROWS = [
    (NAMESPACE, CREATED),
    (BUNDLE, move(1, 2, BASE, "Assigning", to="b")),
    (BUNDLE, move(2, 3, "p1", "Assigned", to="b")),
    (b"!heartbeat", heartbeat("b-1", 2)),
]
RESTATED = [
    (NAMESPACE, record("b-1", kind="assert", id="a1", version=1, asserts="ns1", state="Active", children=WHOLE)),
    (BUNDLE, record("b-1", kind="assert", id="a2", version=3, asserts="p2", state="Assigned", **{"from": None, "to": "b"})),
]  # fmt: skip


def head_mark(through: int, first: int = FIRST) -> tuple[bytes, bytes]:
    by = {"broker": "b", "incarnation": "b-1"}
    return b"!head", orjson.dumps({"through": through, "first": first, "known": -1, "by": by})


def written(folder: Path, *after: tuple[bytes, bytes], first: int = FIRST) -> Path:
    """The log as a file, a second between its records."""
    path, rows = folder / "log.jsonl", [*ROWS, *after]
    records = [
        RecordRead(Topic.CHANNEL, 0, offset, START_MS + 1_000 * offset, key, value)
        for offset, (key, value) in enumerate(rows)
        if offset >= first
    ]
    header = ExportHeader("t", {0: len(rows)}, 0, first_offsets={0: first} if first else {})
    write_export(path, header, records, now_ms=lambda: START_MS + 20_000)
    return path


def audited(path: Path, **asked: Any) -> dict[str, Any]:
    result: AuditResult = local.answer(
        AuditQuestion(ExportSource(path), compaction_lag_ms=LAG_MS, **asked), progress=no_bar
    )
    return result.answer


def views_of(path: Path) -> LogViews:
    return read_views(read_export(path), compaction_lag_ms=LAG_MS)


def test_a_log_without_its_head_is_tentative_whatever_heartbeats_vouch_for(tmp_path: Path) -> None:
    path = written(tmp_path, (b"!heartbeat", heartbeat("b-1", 3)))
    answer = audited(path)
    assert (answer["tentative"], answer["heads_lost"]) == (True, {"0": FIRST})
    views = views_of(path)
    assert (views.tentative, views.parts[0].head_lost, views.parts[0].head) == (True, FIRST, None)


def test_a_log_that_lost_everything_is_no_empty_channel(tmp_path: Path) -> None:
    answer = audited(written(tmp_path, first=len(ROWS)))
    assert (answer["tentative"], answer["heads_lost"], answer["namespaces"]) == (True, {"0": len(ROWS)}, 0)


def test_what_was_restated_counts_once_a_broker_vouches_behind_the_mark(tmp_path: Path) -> None:
    restated = [*RESTATED, head_mark(3)]
    mark = len(ROWS) + len(RESTATED)
    before = audited(written(tmp_path, *restated))
    assert before["tentative"], "the heartbeat before the mark has not read it"
    assert "heads_lost" not in before
    path = written(tmp_path, *restated, (b"!heartbeat", heartbeat("b-1", mark)))
    answer = audited(path)
    assert "tentative" not in answer
    assert "heads_lost" not in answer
    assert (answer["namespaces"], answer["owners"]) == (1, {"b": 1})
    head = views_of(path).parts[0].head
    assert head.first == FIRST
    past = audited(path, as_of=AsOf(offset=mark - 1))
    assert past["heads_lost"] == {"0": FIRST}, "at that moment nobody had restated it"


def test_more_that_is_deleted_later_is_lost_again(tmp_path: Path) -> None:
    mark = len(ROWS) + len(RESTATED)
    vouching = (b"!heartbeat", heartbeat("b-1", mark))
    path = written(tmp_path, *RESTATED, head_mark(3, first=FIRST - 1), vouching)
    assert audited(path)["heads_lost"] == {"0": FIRST}


@pytest.mark.parametrize("firsts", ['{"0":-1}', '{"0":99}', '{"7":1}', '"0"'])
def test_a_header_whose_first_offsets_are_none_is_refused(tmp_path: Path, firsts: str) -> None:
    path = written(tmp_path)
    path.write_bytes(path.read_bytes().replace(b'"first_offsets":{"0":3}', b'"first_offsets":' + firsts.encode()))
    with pytest.raises(ExportFileError):
        read_export(path)


def test_the_chain_covers_the_first_offsets(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_bytes(path.read_bytes().replace(b'"first_offsets":{"0":3},', b""))
    with pytest.raises(ExportFileError):
        read_export(path)
