"""An archive as an export file: what reads such files only says the same of both."""

from pathlib import Path
from typing import Any

from spark.replay.archive_export import export_archive
from statechannel.audit.engine import ArchiveSource, AuditQuestion, ExportSource, Wants, load_archive_export
from statechannel.audit.local import answer
from statechannel.audit.transfer.export_file import read_export
from statechannel.cli.kit.progress import progress
from tests.spark.channel_frames import LogTopic, frame_of, pieces, table_on
from tests.support.report_logs import eventful


def test_an_archive_becomes_the_export_of_its_log(session: Any, tmp_path: Path) -> None:
    log = eventful(moves=40)
    topic = LogTopic(session, 1)
    topic.records = log.records
    table = table_on(topic, tmp_path / "table")
    for piece in pieces(topic.records, [len(topic.records) // 2]):
        table.process(frame_of(session, piece))
    out = tmp_path / "archive.jsonl"
    assert load_archive_export("spark") is export_archive
    export_archive(ArchiveSource(str(tmp_path / "table")), out, {}, progress=progress)
    whole = log.export(tmp_path / "log.jsonl")
    assert list(read_export(out).partitions[0]) == log.records
    results = [
        answer(AuditQuestion(ExportSource(path), wants=Wants(gaps=True)), progress=progress) for path in (out, whole)
    ]
    assert results[0].answer == results[1].answer
    assert list(results[0].gaps) == list(results[1].gaps)
