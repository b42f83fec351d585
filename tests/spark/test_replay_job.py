"""The job replay: archives against the local audit and against themselves, and the verdicts as a table."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from spark.errors import JobExitCode, SparkJobError
from spark.jobs.replay import Wanted, refuse_differences, run
from spark.replay_logs import archive_log, export_log
from statechannel.audit import local
from statechannel.audit.engine import AuditQuestion, ExportSource, Wants
from statechannel.audit.export_file import read_export, write_export
from statechannel.audit.export_line import ExportHeader
from statechannel.cli.failures import CommandError
from tests.spark.asking import no_bar
from tests.spark.channel_frames import LogTopic, frame_of, pieces, table_on
from tests.twin import loggen
from tests.unit.core.against_twin import KNOBS, record_of

WANTS = Wants(gaps=True, races=True, owned=True, moves=True)


def local_answer(path: Path, verdicts: Path | None = None) -> dict[str, Any]:
    found = local.answer(AuditQuestion(ExportSource(path), wants=WANTS, verdicts=verdicts), progress=no_bar)
    parts = {"gaps": found.gaps, "races": found.races, "owned": found.owned, "moves": found.moves}
    return orjson.loads(orjson.dumps(found.answer | parts, default=list))


def export_of(log: loggen.Log, path: Path) -> Path:
    path.write_text(log.export())
    return path


def test_an_archive_gives_the_answer_of_the_log_and_the_verdicts_that_it_holds(session: Any, tmp_path: Path) -> None:
    log = loggen.generate(3, KNOBS["junky"])
    topic = LogTopic(session, len(log.end_offsets))
    topic.records = [record_of(line) for line in log.lines]
    table = table_on(topic, tmp_path / "table")
    for piece in pieces(topic.records, [len(topic.records) // 2]):
        table.process(frame_of(session, piece))
    folder = str(tmp_path / "table")
    wanted = Wanted(WANTS, compares=True, tasks=2)
    found = run(session, lambda: nullcontext(archive_log(session, folder)), wanted, archive=folder)
    assert found.pop("compared") == {"records": len(log.lines), "differing": 0, "first": None}
    assert orjson.loads(orjson.dumps(found)) == local_answer(export_of(log, tmp_path / "log.jsonl"))

    changed = min((tmp_path / "table" / "archive").rglob("*.parquet"))
    changed.with_name(f".{changed.name}.crc").unlink()  # Spark would see that the file is not what was written
    rows = pq.read_table(changed)
    verdicts = rows.column("verdict").to_pylist()
    at = next(index for index, verdict in enumerate(verdicts) if verdict == "accepted")
    altered = pa.array(["stale-version" if index == at else one for index, one in enumerate(verdicts)])
    pq.write_table(rows.set_column(rows.schema.get_field_index("verdict"), "verdict", altered), changed)
    session.catalog.refreshByPath(folder)
    found = run(session, lambda: nullcontext(archive_log(session, folder)), wanted, archive=folder)
    place = {name: rows.column(name)[at].as_py() for name in ("partition", "offset")}
    first = place | {"stored": "stale-version", "verdict": "accepted"}
    assert found["compared"] == {"records": len(log.lines), "differing": 1, "first": first}
    with pytest.raises(CommandError, match=f"offset {place['offset']} of partition {place['partition']}"):
        refuse_differences(found)


def test_verdicts_as_a_table_are_those_of_the_file(session: Any, tmp_path: Path) -> None:
    log = loggen.generate(5, KNOBS["wild"])
    path = export_of(log, tmp_path / "log.jsonl")
    lines = tmp_path / "verdicts.jsonl"
    expected = local_answer(path, lines)
    out = tmp_path / "out"

    def opened() -> Any:
        return export_log(session, path)

    found = run(session, opened, Wanted(WANTS, out=str(out), tasks=2))
    assert orjson.loads(orjson.dumps(found)) == expected
    table = ds.dataset(out / "verdicts").to_table().sort_by([("partition", "ascending"), ("offset", "ascending")])
    told = [orjson.loads(line) for line in lines.read_bytes().splitlines()]
    names = ("partition", "offset", "verdict", "version", "state")
    assert table.select(list(names)).to_pylist() == [{name: line[name] for name in names} for line in told]
    assert pc.sum(pc.binary_length(table.column("key"))).as_py() == sum(
        len(record.key or b"")
        for number, records in read_export(path).partitions.items()
        for record in list(records)[: sum(line["partition"] == number for line in told)]
    )
    with pytest.raises(SparkJobError, match="is there already") as refused:
        run(session, opened, Wanted(WANTS, out=str(out), tasks=2))
    assert refused.value.exit_code == JobExitCode.TABLE_UNUSABLE


def test_an_archive_alone_does_not_say_how_many_partitions_there_are(session: Any, tmp_path: Path) -> None:
    log = loggen.generate(3, KNOBS["honest"])
    topic = LogTopic(session, len(log.end_offsets))
    topic.records = [record_of(line) for line in log.lines]
    table_on(topic, tmp_path).process(frame_of(session, topic.records))
    alone = str(tmp_path / "archive")
    with pytest.raises(SparkJobError, match="how many partitions"):
        archive_log(session, alone)
    with pytest.raises(SparkJobError, match="holds no archive"):
        archive_log(session, str(tmp_path / "view"))
    with pytest.raises(SparkJobError, match="records of partition"):
        archive_log(session, alone, partitions=topic.partitions - 1)
    found = run(session, lambda: nullcontext(archive_log(session, alone, partitions=topic.partitions)), Wanted(WANTS))
    ends = {number: found["end_offsets"][str(number)] for number in range(topic.partitions)}
    path = tmp_path / "log.jsonl"
    write_export(path, ExportHeader("t", ends, 0), topic.records, now_ms=lambda: log.exported_at_ms)
    assert orjson.loads(orjson.dumps(found)) == local_answer(path)
