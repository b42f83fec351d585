"""A question, answered by a session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from spark.core.running import failure_of
from spark.replay.log import ReplayLog, ReplayRequest
from spark.replay.logs import archive_log, export_log, topic_log
from spark.replay.replay import Replay
from statechannel.audit.engine import ArchiveSource, AuditQuestion, AuditResult, ExportSource, ReadMode, Source
from statechannel.files import new_file
from statechannel.kafka.client_settings import ClientSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def answer_with(
    session: SparkSession, question: AuditQuestion, options: Mapping[str, str], *, spent: Counter[str] | None = None
) -> AuditResult:
    """Answer a question.

    Args:
        options: Of the engine: see `spark.replay.audit_engine.answer`.
        spent: Is added to: seconds of the Python workers, by what they did, and `passes` over the log.

    Raises:
        GapsError: A full read was asked for and a partition has gaps.
        StateChannelError: See there.
    """
    with (
        open_log(session, question.source, options) as log,
        Replay(
            session, log, request_of(question), tasks=int(options["tasks"]) if "tasks" in options else None
        ) as replay,
    ):
        result = replay.run()
        if spent is not None:
            spent.update(replay.spent_s, passes=replay.passes)
        if question.verdicts is not None:
            with new_file(question.verdicts) as file:
                for lines in replay.verdict_lines():
                    file.write(lines)
        return result


def request_of(question: AuditQuestion) -> ReplayRequest:
    """What of a question concerns the fold."""
    verdicts = question.verdicts is not None
    return ReplayRequest(
        ReadMode.FULL if verdicts else question.read,
        question.as_of,
        question.compaction_lag_ms,
        question.wants,
        verdicts=verdicts,
    )


@contextmanager
def spark_errors() -> Iterator[None]:
    """Errors of Spark as errors of a job.

    Raises:
        SparkJobError: With the cause, and the exit code that there is for it.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise failure_of(error) from error


@contextmanager
def open_log(session: SparkSession, source: Source, options: Mapping[str, str]) -> Iterator[ReplayLog]:
    """The rows of a source."""
    if isinstance(source, ExportSource):
        with export_log(session, source.path) as log:
            yield log
    elif isinstance(source, ArchiveSource):
        partitions = options.get("partitions")
        yield archive_log(session, source.folder, partitions=None if partitions is None else int(partitions))
    else:
        client = ClientSettings(source.bootstrap_servers, source.properties)
        yield topic_log(session, client, source.topic)
