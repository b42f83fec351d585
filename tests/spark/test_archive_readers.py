"""Any tool that knows Parquet reads the archives of all jobs, days that were put together among the others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from spark.core.archive import Archive
from spark.core.schemas import ARCHIVE
from spark.load.table import HISTORY
from spark.partitions.table import ROW as SAMPLE
from spark.replay.archive_export import export_archive
from statechannel.audit.engine import ArchiveSource, AuditQuestion, ExportSource, Wants, load_archive_export
from statechannel.audit.local import answer
from statechannel.audit.transfer.export_file import read_export
from statechannel.cli.kit.progress import progress
from tests.spark.channel_frames import LogTopic, frame_of, pieces, table_on
from tests.support.report_logs import eventful

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOBS: dict[str, tuple[pa.Schema, dict[str, Any]]] = {
    "table-view": (ARCHIVE, {}),
    "load-views": (HISTORY, {"counted": "fate", "order": ("kind", "offset")}),
    "partition-loads": (SAMPLE, {"counted": "junk", "order": ("at", "offset")}),
}


def polars_rows(folder: str) -> Any:
    return pl.read_parquet(f"{folder}/dt=*/batch=*/*.parquet", hive_partitioning=True).to_arrow()


READERS = {
    "pandas": lambda folder: pa.Table.from_pandas(pd.read_parquet(folder)),
    "pyarrow": pq.read_table,
    "dataset": lambda folder: ds.dataset(folder, format="parquet").to_table(),
    "duckdb": lambda folder: duckdb.sql(
        f"from read_parquet('{folder}/dt=*/batch=*/*.parquet', hive_partitioning=true)"
    ).to_arrow_table(),
    "polars": polars_rows,
}


@pytest.fixture(scope="module", params=JOBS)
def archive(session: SparkSession, request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pa.Schema]:
    """Two days that are over and one that is not; of the first, an earlier version put a part together: its columns differ."""
    schema, options = JOBS[request.param]
    folder = tmp_path_factory.mktemp("a b#") / "table"
    table = Archive(str(folder / "archive"), **options)
    for batch in range(6):
        place = {name: [0] for name in ("partition", "offset", "at") if name in schema.names}
        values = (
            {name: [None] for name in schema.names} | place | {"offset": [batch], "dt": [f"2026-03-0{1 + batch // 2}"]}
        )
        rows = pa.table(values, schema=pa.schema([*schema, ("dt", pa.string())]))
        table.add(session.createDataFrame(rows), batch)
    first = min((folder / "archive/dt=2026-03-01").rglob("*.parquet"))
    wide = pq.read_table(first, partitioning=None).drop_columns(schema.names[-1])
    pq.write_table(wide.append_column("batch", pa.array([0], pa.int32())), first)
    first.with_name(f".{first.name}.crc").unlink()
    (first.parent / "x.parquet.tmp").write_text("somebody's")
    (first.parents[1] / "note.txt").write_text("somebody's")
    table.compact_days(session, "dt=2026-03-03", from_arrow_schema(schema))
    assert [len(table.batches(day)) for day in table.days()] == [1, 1, 2]
    return folder, schema


@pytest.mark.parametrize("reader", READERS)
def test_readers(archive: tuple[Path, pa.Schema], reader: str) -> None:
    folder, schema = archive
    rows = READERS[reader](str(folder / "archive"))
    assert sorted(rows["offset"].to_pylist()) == list(range(6))
    assert set(rows.schema.names) - {"dt", "batch"} == set(schema.names)
    assert ("batch" in rows.schema.names) is (reader != "dataset")


def test_spark_reads_nothing_else(session: SparkSession, archive: tuple[Path, pa.Schema]) -> None:
    folder, schema = archive
    day = next((folder / "archive").glob("dt=2026-03-03/batch=*"))
    for place in (day, day.parent):
        (place / "x.parquet.tmp").write_text("somebody's")
    rows = Archive(str(folder / "archive")).rows(session, from_arrow_schema(schema))
    assert sorted(row["offset"] for row in rows.collect()) == list(range(6))
    assert rows.columns == schema.names


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
