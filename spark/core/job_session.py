"""What a streaming job holds while it works: its folders, a Spark session, and a log on standard error.

One job at a time works on a checkpoint, and on a table, by the kernel's lock on a file beside the folder, which goes when the
process does. Where nothing locks (object stores) the second writer fails when it publishes, but may have written where the first
one did.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import structlog

from spark.core.running import spark_errors
from spark.core.session import open_session, stopped
from spark.errors import SparkJobError, TableFormatError
from statechannel.errors import ExitCode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.core.streaming import Streaming


_SEEN_MAX = 200


class JobInUseError(SparkJobError):
    """Another process works on the same folder."""

    retryable = True

    def __init__(self, place: Path, holder: str) -> None:
        super().__init__(
            f"{place} is in use by {holder}",
            hint="Only one job may work on a checkpoint or a table: end the other one, or name another folder.",
            exit_code=ExitCode.JOB_IN_USE,
        )


@contextmanager
def only_job(job: str, places: Iterable[str | Path | None]) -> Iterator[None]:
    """Hold the folders of a job for as long as it works.

    Args:
        job: Its name, shown to a second process.
        places: Checkpoint and tables, as paths or URIs. None and those of no local file system are passed over.

    Raises:
        JobInUseError: Another process holds one; the error names it.
    """
    # In one order for everybody, each once: two jobs that share two folders must not each get one.
    local = sorted({path for place in places if place is not None and (path := _local(place)) is not None})
    with ExitStack() as held:
        for path in local:
            held.enter_context(_held(job, path))
        yield


@contextmanager
def _held(job: str, folder: Path) -> Iterator[None]:
    path = lock_file(folder)
    with ExitStack() as opened:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            lock = opened.enter_context(path.open("ab+", buffering=0))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JobInUseError(folder, _holder(path)) from None
        except OSError as error:
            raise SparkJobError(
                f"{folder} cannot be used: {error.strerror} ({path})",
                hint="Name a folder that can be made and written, on a file system that has locks.",
                exit_code=ExitCode.TABLE_UNUSABLE,
            ) from error
        with suppress(OSError):  # for people only; where there is no room, the job itself will say so
            lock.truncate(0)
            lock.write(f"process {os.getpid()} on {socket.gethostname()} (job {job})\n".encode())
        # The file stays: removing it could remove one that a third process has just locked.
        yield


def apart(checkpoint: str, table: str) -> None:
    """Raise where checkpoint and table are not two folders, none in the other."""
    paths = [str(_local(place) or place).rstrip("/") + "/" for place in (checkpoint, table)]
    if paths[0].startswith(paths[1]) or paths[1].startswith(paths[0]):
        raise SparkJobError(
            f"the checkpoint {checkpoint} and the table {table} lie in one another",
            hint="Give the job two folders, neither within the other.",
            exit_code=ExitCode.USAGE,
        )


def lock_file(folder: Path) -> Path:
    """The path of a folder's lock: next to the folder, so that the folder may be removed and moved."""
    return folder.parent / f".{folder.name}.lock"


def _holder(lock: Path) -> str:
    with lock.open("rb") as file:
        holder = file.read(_SEEN_MAX).decode(errors="replace").strip("\0 \n")
    return holder if holder.isprintable() and holder else "another process"


def _local(place: str | Path) -> Path | None:
    from spark.core.store import as_uri

    parts = urlsplit(as_uri(str(place)))
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def refuse_foreign(table: str, job: str, foreign: str) -> None:
    """Raise where a table has a folder that only another job makes."""
    from spark.core.store import Folder

    if (Folder(table) / foreign).exists():
        raise TableFormatError(table, f"it is not a table of {job}: it has a folder `{foreign}`")


def say(line: str) -> None:
    """Print a line for people on standard error."""
    print(line, file=sys.stderr, flush=True)


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
        name = f"statechannel {job} {streaming.channel}"
        with spark_errors(), stopped(open_session(name, conf=streaming.conf)) as session:
            yield session


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
