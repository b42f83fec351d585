"""How often a log is folded, and why: rows out of order, offsets twice, a log that is cleaned while it is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import spark.replay.replay
from spark.core.schemas import batch_of
from spark.errors import SparkJobError
from spark.replay.direct import RECORDS, DirectLog, Share
from spark.replay.replay import Replay, ReplayLog, ReplayRequest
from statechannel.audit.engine import AuditQuestion, ExportSource
from statechannel.protocol.log import RecordRead
from tests.spark.asking import ALL, as_json, ask_local
from tests.spark.channel_frames import frame_of
from tests.twin import loggen
from tests.unit.core.against_twin import KNOBS, record_of

LAG_MS = 3_600_000


@pytest.fixture(scope="module")
def log() -> loggen.Log:
    return loggen.generate(11, KNOBS["junky"])


def records_of(log: loggen.Log) -> list[RecordRead]:
    return [record_of(line) for line in log.lines]


def log_of(session: Any, log: loggen.Log, records: Iterable[RecordRead], *, likely_gapped: bool = False) -> ReplayLog:
    rows = frame_of(session, records)
    return ReplayLog("the log", rows, log.end_offsets, lambda: log.exported_at_ms, likely_gapped=likely_gapped)


def expected(log: loggen.Log, folder: Path) -> str:
    path = folder / "log.jsonl"
    path.write_text(log.export())
    return ask_local(AuditQuestion(ExportSource(path), compaction_lag_ms=LAG_MS, wants=ALL), folder)[0]


def replay_of(session: Any, log: ReplayLog, **options: Any) -> Replay:
    return Replay(session, log, ReplayRequest(compaction_lag_ms=LAG_MS, wants=ALL), tasks=2, **options)


def test_rows_out_of_order_are_seen_and_sorted(session: Any, log: loggen.Log, tmp_path: Path) -> None:
    records = records_of(log)
    Random(1).shuffle(records)
    with replay_of(session, log_of(session, log, records), presorted=True) as replay:
        assert as_json(replay.run()).decode() == expected(log, tmp_path)
        assert replay.passes == 2


def direct_of(records: Sequence[RecordRead]) -> DirectLog:
    batch = batch_of([record[1:] for record in records], RECORDS)

    def read(share: Share, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield batch.select(columns).filter(pa.array(share.own(batch.column("key"))))

    return DirectLog(read, lambda: {b"no/where": 1})


def test_tasks_that_read_by_themselves_need_no_rows(session: Any, log: loggen.Log, tmp_path: Path) -> None:
    nothing = log_of(session, log, [])
    records = records_of(log)
    with replay_of(session, replace(nothing, direct=lambda: direct_of(records)), presorted=True) as replay:
        assert as_json(replay.run()).decode() == expected(log, tmp_path)
        assert replay.passes == 1


def test_tasks_that_read_out_of_order_are_given_sorted_rows(session: Any, log: loggen.Log, tmp_path: Path) -> None:
    records = records_of(log)
    rows = log_of(session, log, records)
    shuffled = [*records]
    Random(1).shuffle(shuffled)
    with replay_of(session, replace(rows, direct=lambda: direct_of(shuffled)), presorted=True) as replay:
        assert as_json(replay.run()).decode() == expected(log, tmp_path)
        assert replay.passes == 2


@pytest.mark.parametrize(("tasks", "presorted"), [(7, True), (2, False)])
def test_many_tasks_and_those_of_a_cluster_are_given_rows(
    session: Any, log: loggen.Log, tmp_path: Path, tasks: int, presorted: bool
) -> None:
    rows = replace(log_of(session, log, records_of(log)), direct=lambda: direct_of(records_of(log)[:1]))
    request = ReplayRequest(compaction_lag_ms=LAG_MS, wants=ALL)
    with Replay(session, rows, request, tasks=tasks, presorted=presorted) as replay:
        assert as_json(replay.run()).decode() == expected(log, tmp_path)
        assert replay.passes == 1


def test_an_offset_twice_is_an_error(session: Any, log: loggen.Log) -> None:
    records = records_of(log)
    with (
        replay_of(session, log_of(session, log, [*records, records[3]])) as replay,
        pytest.raises(SparkJobError, match="an offset twice"),
    ):
        replay.run()


def test_a_partition_that_the_channel_has_not_is_an_error(session: Any, log: loggen.Log) -> None:
    strange = RecordRead(log_topic := records_of(log)[0].topic, 99, 0, 1, b"a/b", b"x")
    assert log_topic == strange.topic
    with (
        replay_of(session, log_of(session, log, [*records_of(log), strange])) as replay,
        pytest.raises(SparkJobError, match="records of partition 99"),
    ):
        replay.run()


def test_a_log_with_gaps_is_surveyed_first_where_that_is_likely(session: Any, log: loggen.Log, tmp_path: Path) -> None:
    cleaned = log.compacted(4, KNOBS["junky"])
    for likely, passes in ((False, 2), (True, 1)):
        with replay_of(session, log_of(session, cleaned, records_of(cleaned), likely_gapped=likely)) as replay:
            assert as_json(replay.run()).decode() == expected(cleaned, tmp_path)
            assert replay.passes == passes


def test_what_was_cleaned_behind_the_survey_is_noticed(
    session: Any, log: loggen.Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A survey that has seen another log than the fold is made again, and so is the fold if it would be another one."""
    cleaned = log.compacted(4, KNOBS["junky"])
    another = frame_of(session, records_of(log)).where("offset > 0 and offset < 30")
    real, looks = spark.replay.replay.survey, []

    def looked_too_early(rows: Any) -> Any:
        looks.append(rows)
        return real(another if len(looks) == 1 else rows)

    monkeypatch.setattr(spark.replay.replay, "survey", looked_too_early)
    with replay_of(session, log_of(session, cleaned, records_of(cleaned), likely_gapped=True)) as replay:
        assert as_json(replay.run()).decode() == expected(cleaned, tmp_path)
        assert (len(looks), replay.passes) == (2, 2)


def test_a_log_that_never_stays_the_same_is_given_up(
    session: Any, log: loggen.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaned = log.compacted(4, KNOBS["junky"])
    real, looks = spark.replay.replay.survey, []

    def looked_at_another(rows: Any) -> Any:
        looks.append(rows)
        return real(rows.where("offset < 0" if len(looks) % 2 else "offset < 160"))

    monkeypatch.setattr(spark.replay.replay, "survey", looked_at_another)
    monkeypatch.setattr(spark.replay.replay, "_PASSES_MAX", 3)
    with (
        replay_of(session, log_of(session, cleaned, records_of(cleaned))) as replay,
        pytest.raises(SparkJobError, match="another one at each of 3 readings"),
    ):
        replay.run()
