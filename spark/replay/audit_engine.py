"""The audit engine `spark`: answers what the local engine answers, of logs that are too long for one process."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from spark.core.progress import tasks_shown
from spark.core.session import check_installed, open_session
from spark.errors import SparkJobError
from statechannel.audit.engine import (
    ArchiveSource,
    AuditQuestion,
    AuditResult,
    ExportSource,
    ProgressBar,
    check_question,
    not_in_full,
)
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
    check_question(question)
    own, settings = parted_options(question.options)
    check_installed()
    # The modules behind it need pyspark.
    from spark.replay.run import answer_with

    jars = None if not isinstance(question.source, ExportSource | ArchiveSource) else ()
    session = open_session("statechannel audit", conf=settings, jars=jars)
    try:
        with _shown(session, progress):
            return answer_with(session, question, own)
    except GapsError as error:
        source = question.source
        name = f"The archive {source.folder}" if isinstance(source, ArchiveSource) else "The log"
        name = str(source.path) if isinstance(source, ExportSource) else name
        raise not_in_full(name, str(error), verdicts=question.verdicts is not None) from error


def parted_options(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Options of this engine, and settings of Spark."""
    own = {name: value for name, value in options.items() if name in _OPTIONS}
    settings = {name: value for name, value in options.items() if name.startswith("spark.")}
    unknown = sorted(options.keys() - own.keys() - settings.keys())
    if unknown:
        raise SparkJobError(
            f"the audit engine spark has no option {unknown[0]!r}",
            hint=f"It knows {', '.join(_OPTIONS)}, and settings of Spark, which begin with `spark.`.",
            exit_code=ExitCode.USAGE,
        )
    for name in ("tasks", "partitions"):
        if name in own and not (own[name].isascii() and own[name].isdigit() and int(own[name]) > 0):
            raise SparkJobError(
                f"the option {name}={own[name]} is not a number above 0",
                hint="Give a positive number.",
                exit_code=ExitCode.USAGE,
            )
    return own, settings


@contextmanager
def _shown(session: SparkSession, progress: ProgressBar) -> Iterator[None]:
    """A bar of Spark's tasks; where standard error is not a terminal there is none, and Spark is not asked."""
    if not sys.stderr.isatty():
        yield
        return
    with tasks_shown("replaying", session.sparkContext, progress):
        yield
