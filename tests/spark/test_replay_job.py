"""The job replay: archives against the local audit and against themselves, and the verdicts as a table."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from spark.channel.plan import Missing
from spark.errors import SparkJobError
from spark.jobs.replay import Wanted, refuse_differences, run
from spark.replay.logs import archive_log, export_log
from spark.replay.verdicts import REASONS, compared
from statechannel.audit import local
from statechannel.audit.engine import AuditQuestion, ExportSource, ReadMode, Wants
from statechannel.audit.errors import AuditQuestionError
from statechannel.audit.moments import parse_as_of
from statechannel.audit.transfer.export_file import read_export, write_export
from statechannel.audit.transfer.line import ExportHeader
from statechannel.cli.kit.failures import CommandError
from statechannel.errors import ExitCode
from tests.spark.asking import no_bar
from tests.spark.channel_frames import LogTopic, archived, frame_of, pieces, table_on
from tests.support.waits import WAIT_S
from tests.twin import loggen
from tests.unit.core.against_twin import KNOBS, record_of

WANTS = Wants(gaps=True, races=True, owned=True, moves=True)
NONE = dict.fromkeys(REASONS, 0)


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
    found = run(session, lambda: nullcontext(archive_log(session, folder)), wanted)
    assert found.pop("compared") == {"records": len(log.lines), "differing": 0, "first": None, "not_compared": NONE}
    assert found["read"] == "full"
    assert orjson.loads(orjson.dumps(found)) == local_answer(export_of(log, tmp_path / "log.jsonl"))

    changed = min((tmp_path / "table" / "archive").rglob("*.parquet"))
    changed.with_name(f".{changed.name}.crc").unlink()  # Spark would see that the file is not what was written
    rows = pq.read_table(changed)
    verdicts = rows.column("verdict").to_pylist()
    at = next(index for index, verdict in enumerate(verdicts) if verdict == "accepted")
    altered = pa.array(["stale-version" if index == at else one for index, one in enumerate(verdicts)])
    pq.write_table(rows.set_column(rows.schema.get_field_index("verdict"), "verdict", altered), changed)
    session.catalog.refreshByPath(folder)
    found = run(session, lambda: nullcontext(archive_log(session, folder)), wanted)
    place = {name: rows.column(name)[at].as_py() for name in ("partition", "offset")}
    first = place | {"stored": "stale-version", "verdict": "accepted"}
    assert found["compared"] == {"records": len(log.lines), "differing": 1, "first": first, "not_compared": NONE}
    with pytest.raises(CommandError, match=f"offset {place['offset']} of partition {place['partition']}"):
        refuse_differences(found)


@pytest.mark.parametrize("job", ["replay", "audit"])
def test_a_jvm_that_is_killed_is_no_bug(tmp_path: Path, job: str) -> None:
    path = export_of(loggen.generate(3, KNOBS["junky"]), tmp_path / "log.jsonl")
    options = ["--engine", "spark"] if job == "audit" else []
    command = [sys.executable, "-m", "tests.spark.dying_job", job, "--file", str(path), *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (ended.stdout.splitlines()[:1], ended.returncode) == (["dies"], ExitCode.SPARK_FAILED), ended.stderr
    assert [text for text in ("bug", "Traceback") if text in ended.stderr] == []


def offsets_of(folder: Path) -> dict[int, list[int]]:
    """What lies in a folder of an archive, by partition."""
    found: dict[int, list[int]] = {}
    for file in folder.rglob("*.parquet"):
        table = pq.read_table(file, columns=["partition", "offset"], partitioning=None)
        for row in table.to_pylist():
            found.setdefault(row["partition"], []).append(row["offset"])
    return {number: sorted(offsets) for number, offsets in sorted(found.items())}


def run_of(offsets: list[int]) -> str:
    """The first stretch of them, as the error tells it."""
    last = next(one for one in offsets if one + 1 not in offsets)
    return f"offset {offsets[0]}" if last == offsets[0] else f"offsets {offsets[0]} to {last}"


def test_an_archive_that_lacks_records_or_holds_some_twice_is_refused(session: Any, tmp_path: Path) -> None:
    log = loggen.generate(3, replace(KNOBS["junky"], partitions=2))
    topic = LogTopic(session, len(log.end_offsets))
    topic.records = [record_of(line) for line in log.lines]
    day_ms, size = 86_400_000, len(topic.records)
    start_ms = topic.records[0].timestamp_ms
    # Two batches a day, of the days 0 and 1; the last one is published only in the end.
    for at, record in enumerate(topic.records):
        topic.records[at] = record._replace(timestamp_ms=start_ms + day_ms * (at >= size // 2))
    whole = tmp_path / "whole"
    table = table_on(topic, whole, compacts=False)
    cuts = [size * part // 4 for part in range(1, 4)]
    for piece in pieces(topic.records, cuts)[:-1]:
        table.process(frame_of(session, piece))
    pointer = (whole / "view" / "LATEST").read_bytes()
    table.process(frame_of(session, pieces(topic.records, cuts)[-1]))
    batches = sorted((whole / "archive").glob("dt=*/batch=*"), key=lambda one: one.name)
    days = sorted((whole / "archive").glob("dt=*"))
    assert (len(batches), len(days)) == (4, 2)

    def copy(name: str) -> Path:
        return Path(shutil.copytree(whole, tmp_path / name))

    def check(folder: Path) -> Any:
        return archive_log(session, str(folder))

    assert check(whole).ends == log.end_offsets
    for name, gone in (("a day", days[0]), ("the end", batches[3])):
        lacking = copy(name.replace(" ", "-"))
        shutil.rmtree(lacking / gone.relative_to(whole))
        number, offsets = next(iter(offsets_of(gone).items()))
        told = rf"lacks {run_of(offsets)} of partition {number} \({len(offsets)} records? of it missing"
        with pytest.raises(SparkJobError, match=told) as refused:
            check(lacking)
        assert refused.value.exit_code == ExitCode.TABLE_UNUSABLE

    doubled = copy("doubled")
    twice = doubled / batches[1].relative_to(whole)
    shutil.copytree(twice, twice.with_name("batch=000000000099"))
    number, offsets = next(iter(offsets_of(twice).items()))
    told = rf"holds {run_of(offsets)} of partition {number} twice \({len(offsets)} records? of it too many"
    with pytest.raises(SparkJobError, match=told):
        check(doubled)

    # What no pointer names does not count, whether it is there or not.
    unpublished = copy("unpublished")
    (unpublished / "view" / "LATEST").write_bytes(pointer)
    ends = check(unpublished).ends
    shutil.rmtree(unpublished / batches[3].relative_to(whole))
    assert check(unpublished).ends == ends != log.end_offsets

    # Where the pointer says that the cleaner was first, records may be away; elsewhere not.
    incomplete = copy("incomplete")
    stretches = {number: (found[0], found[-1]) for number, found in offsets_of(batches[1]).items()}
    shutil.rmtree(incomplete / batches[1].relative_to(whole))
    told_of = orjson.loads((incomplete / "view" / "LATEST").read_bytes())
    told_of["meta"]["incomplete"] = [
        asdict(Missing(number, first, last, 0, 0, None)) for number, (first, last) in stretches.items()
    ]
    (incomplete / "view" / "LATEST").write_bytes(orjson.dumps(told_of))
    wanted = Wanted(WANTS, compares=True, tasks=2)
    found = run(session, lambda: nullcontext(check(incomplete)), wanted)
    assert found["read"] == "join"
    number, (first, last) = min(stretches.items())
    with pytest.raises(
        AuditQuestionError, match=f"partition {number} is incomplete from offset {first} to {last}, where"
    ):
        run(session, lambda: nullcontext(check(incomplete)), replace(wanted, read=ReadMode.FULL))
    shutil.rmtree(incomplete / batches[2].relative_to(whole))
    number, offsets = next(iter(offsets_of(batches[2]).items()))
    with pytest.raises(SparkJobError, match=f"lacks {run_of(offsets)} of partition {number} "):
        check(incomplete)


def test_what_was_not_compared_is_counted_by_reason(session: Any, tmp_path: Path) -> None:
    knobs = KNOBS["junky"]
    log = loggen.generate(3, knobs)
    cleaned = log.compacted(3, knobs)
    topic = LogTopic(session, len(log.end_offsets))
    topic.records = [record_of(line) for line in cleaned.lines]
    table = table_on(topic, tmp_path)
    for piece in pieces(topic.records, [len(topic.records) // 2]):
        table.process(frame_of(session, piece))
    rows = archived(tmp_path)
    without = [row for row in rows if row["verdict"] is None]
    assert without  # taken leniently
    as_of = max(row["offset"] for row in rows) // 2
    wanted = Wanted(compares=True, tasks=2, as_of=parse_as_of(str(as_of)))
    found = run(session, lambda: nullcontext(archive_log(session, str(tmp_path))), wanted)["compared"]
    told = found["not_compared"]
    behind = [row for row in rows if row["offset"] > as_of and row["verdict"] is not None]
    assert told["no_stored_verdict"] == len(without)
    assert told["behind_as_of"] == len(behind) > 0
    assert found["differing"] == 0
    assert found["records"] + sum(told.values()) == len(rows)

    stored = archive_log(session, str(tmp_path)).stored
    assert stored is not None
    judged = stored.where(f"verdict is not null and offset < {as_of}").select("partition", "offset", "verdict")
    later = Counter(row["offset"] > as_of + 2 for row in rows if row["verdict"] is not None and row["offset"] >= as_of)
    stops = dict.fromkeys(range(topic.partitions), as_of + 3)
    told = compared(stored, judged, outside={}, stops=stops)["not_compared"]
    assert later[True]
    assert later[False]
    assert told == NONE | {
        "no_stored_verdict": len(without),
        "replayed_leniently": later[False],
        "behind_newer_format": later[True],
    }


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
    told = [orjson.loads(line) for line in lines.read_bytes().splitlines()[:-1]]
    names = ("partition", "offset", "verdict", "version", "state")
    assert table.select(list(names)).to_pylist() == [{name: line[name] for name in names} for line in told]
    assert pc.sum(pc.binary_length(table.column("key"))).as_py() == sum(
        len(record.key or b"")
        for number, records in read_export(path).partitions.items()
        for record in list(records)[: sum(line["partition"] == number for line in told)]
    )
    with pytest.raises(SparkJobError, match="is there already") as refused:
        run(session, opened, Wanted(WANTS, out=str(out), tasks=2))
    assert refused.value.exit_code == ExitCode.TABLE_UNUSABLE


def test_an_archive_alone_does_not_say_how_many_partitions_there_are(session: Any, tmp_path: Path) -> None:
    log = loggen.generate(3, replace(KNOBS["honest"], partitions=2))
    topic = LogTopic(session, len(log.end_offsets))
    topic.records = [record_of(line) for line in log.lines]
    table_on(topic, tmp_path).process(frame_of(session, topic.records))
    alone = str(tmp_path / "archive")
    with pytest.raises(SparkJobError, match="how many partitions"):
        archive_log(session, alone)
    with pytest.raises(SparkJobError, match="holds no archive"):
        archive_log(session, str(tmp_path / "view"))
    for folder, number in ((str(tmp_path), topic.partitions + 1), (alone, 1)):
        with pytest.raises(SparkJobError, match=f"given as {number}, but") as refused:
            archive_log(session, folder, partitions=number)
        assert refused.value.exit_code == ExitCode.USAGE
    warned: list[str] = []
    opened = archive_log(session, alone, partitions=topic.partitions, warn=warned.append)
    found = run(session, lambda: nullcontext(opened), Wanted(WANTS))
    assert [line for line in warned if "whether it is complete cannot be known" in line] == warned != []
    ends = {number: found["end_offsets"][str(number)] for number in range(topic.partitions)}
    path = tmp_path / "log.jsonl"
    write_export(path, ExportHeader("t", ends, 0), topic.records, now_ms=lambda: log.exported_at_ms)
    assert orjson.loads(orjson.dumps(found)) == local_answer(path)
