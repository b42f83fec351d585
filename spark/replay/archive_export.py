"""An archive as an export file, for what reads such files only: reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from spark.core.session import check_installed, open_session
from spark.replay.audit_engine import parted_options
from statechannel.audit.engine import ArchiveSource, ProgressBar
from statechannel.audit.transfer.export_file import write_export
from statechannel.audit.transfer.line import ExportHeader
from statechannel.protocol.log import RecordRead, Topic

if TYPE_CHECKING:
    from spark.replay.replay import ReplayLog


def export_archive(source: ArchiveSource, path: Path, options: Mapping[str, str], *, progress: ProgressBar) -> None:
    """Write an archive to an export file; one part of it is in memory at a time.

    Args:
        options: As the audit engine `spark` has them.

    Raises:
        ExportFileError: The file cannot be written.
        SparkJobError: Spark is not there, or fails; the archive is none, or not what its view says.
    """
    own, settings = parted_options(options)
    check_installed()
    # The modules behind it need pyspark.
    from spark.core.running import spark_errors
    from spark.replay.logs import open_log

    with spark_errors(), ExitStack() as opened:
        session = open_session("statechannel audit report", conf=settings, jars=())
        log = opened.enter_context(open_log(session, source, own))
        header = ExportHeader(Path(source.folder).name or source.folder, log.ends, log.now_ms())
        with progress(f"reading {source.folder}", sum(log.ends.values()), unit="records") as report:
            write_export(path, header, _records(log), now_ms=log.now_ms, progress=report)


def _records(log: ReplayLog) -> Iterator[RecordRead]:
    rows = log.rows.orderBy("partition", "offset").toLocalIterator()
    for row in rows:
        key = None if row.key is None else bytes(row.key)
        value = None if row.value is None else bytes(row.value)
        yield RecordRead(Topic.CHANNEL, row.partition, row.offset, row.timestamp_ms, key, value)
