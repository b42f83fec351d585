"""What a streaming job holds while it works: its folders, a Spark session, and a log on standard error."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from spark.core.locks import apart, only_job
from spark.core.session import open_session
from spark.errors import TableFormatError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.core.streaming import Streaming


def say(line: str) -> None:
    """Print a line for people on standard error."""
    print(line, file=sys.stderr, flush=True)


def refuse_foreign(table: str, job: str, foreign: str) -> None:
    """See that a table is not another job's.

    Args:
        foreign: Folder that only the other job makes.

    Raises:
        TableFormatError: It is.
    """
    from spark.core.store import Folder

    if (Folder(table) / foreign).exists():
        raise TableFormatError(table, f"it is not a table of {job}: it has a folder `{foreign}`")


@contextmanager
def job_session(job: str, streaming: Streaming, table: str) -> Iterator[SparkSession]:
    """The session of a job, for as long as it has its checkpoint and its table for itself.

    Raises:
        JobInUseError: Another job works on one of them.
        SparkJobError: Spark is missing, or does not start.
    """
    _log_to_stderr()
    apart(streaming.checkpoint, table)
    with only_job(job, [streaming.checkpoint, table]):
        say(f"{job}: channel {streaming.channel} at {streaming.client.bootstrap_servers}, into {table}")
        session = open_session(f"statechannel {job} {streaming.channel}", conf=streaming.conf)
        try:
            yield session
        finally:
            session.stop()


def _log_to_stderr() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("spark").setLevel(logging.INFO)  # what a job does beyond its tables
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # what a batch raises is reported once, by us
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.dev.ConsoleRenderer(colors=False),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
