"""The audit engine `spark`: answers what the local engine answers, of logs that are too long for one process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark.core.running import spark_errors
from spark.core.session import batch_session, check_installed
from spark.errors import SparkJobError
from statechannel.audit.engine import (
    ArchiveSource,
    AuditQuestion,
    AuditResult,
    ExportSource,
    ProgressBar,
    ReadMode,
    check_question,
    not_in_full,
)
from statechannel.audit.transfer.export_file import verdict_file
from statechannel.errors import ExitCode
from statechannel.replay.auditor import GapsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OPTIONS = ("tasks", "partitions")


def answer(question: AuditQuestion, *, progress: ProgressBar) -> AuditResult:
    """Answer by a Spark session of this process, which is made if there is none.

    The question's options are settings of Spark (`spark.master`, ...) and of this engine: `tasks`, the number of parts of the
    fold; `partitions`, those of the channel, where an archive without a view is read.

    Raises:
        AuditQuestionError: The log cannot answer what was asked.
        ExportFileError: The export file is malformed; or the verdicts cannot be written.
        SparkJobError: Spark is not there, or fails; an option is unknown.
    """
    del progress  # Spark has its own
    check_question(question)
    own, settings = parted_options(question.options)
    check_installed()
    jars = () if isinstance(question.source, ExportSource | ArchiveSource) else None
    try:
        with spark_errors():
            return answer_with(batch_session("statechannel audit", settings, jars), question, own)
    except GapsError as error:
        source = question.source
        name = f"The archive {source.folder}" if isinstance(source, ArchiveSource) else "The log"
        name = str(source.path) if isinstance(source, ExportSource) else name
        raise not_in_full(name, str(error), verdicts=question.verdicts is not None) from error


def answer_with(session: SparkSession, question: AuditQuestion, options: Mapping[str, str]) -> AuditResult:
    """Answer by this session.

    Raises:
        GapsError: A full read was asked for and a partition has gaps.
        StateChannelError: As `answer`.
    """
    # These modules need pyspark.
    from spark.replay.logs import open_log
    from spark.replay.replay import Replay, ReplayRequest

    verdicts = question.verdicts is not None
    request = ReplayRequest(
        ReadMode.FULL if verdicts else question.read,
        question.as_of,
        question.compaction_lag_ms,
        question.wants,
        verdicts=verdicts,
    )
    tasks = int(options["tasks"]) if "tasks" in options else None
    with open_log(session, question.source, options) as log, Replay(session, log, request, tasks=tasks) as replay:
        result = replay.run()
        if question.verdicts is not None:
            with verdict_file(question.verdicts) as write:
                for lines in replay.verdict_lines():
                    write(lines)
        return result


def parted_options(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    own = {name: value for name, value in options.items() if name in _OPTIONS}
    settings = {name: value for name, value in options.items() if name.startswith("spark.")}
    unknown = sorted(options.keys() - own.keys() - settings.keys())
    if unknown:
        raise SparkJobError(
            f"the audit engine spark has no option {unknown[0]!r}",
            hint=f"It knows {', '.join(_OPTIONS)}, and settings of Spark, which begin with `spark.`.",
            exit_code=ExitCode.USAGE,
        )
    for name, value in own.items():
        if not (value.isascii() and value.isdigit() and int(value) > 0):
            raise SparkJobError(
                f"the option {name}={value} is not a number above 0",
                hint="Give a positive number.",
                exit_code=ExitCode.USAGE,
            )
    return own, settings
