"""Runs Spark's work: streaming queries until they are asked to stop, and batch work; with errors that say why it ended.

Queries are stopped in order, and started again where Kafka is away. What a batch writes must hold whatever happens here: a kill
at any moment is as safe as a stop in order, only less polite.
"""

from __future__ import annotations

import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from spark.errors import SparkJobError
from statechannel.errors import ExitCode, StateChannelError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class QueryEndCause(StrEnum):
    KAFKA_AWAY = "Kafka does not answer"
    KAFKA_DENIED = "Kafka refuses this client"
    TOPIC_BROKEN = "the topic is not what it was"
    PROCESS_ENDED = "a process of Spark has ended, or is out of memory"
    NO_ROOM = "no space is left"
    STORE_AWAY = "a file system does not answer"
    FILES_UNUSABLE = "a file or folder cannot be used"
    WORKER_LACKS = "the Python of the executors lacks a module"
    OTHER = "Spark ended the query"


class _Meaning(NamedTuple):
    """What a cause means for the one who started the job.

    Attributes:
        pattern: Found in what Spark and its JVM say of it.
    """

    pattern: str
    exit_code: ExitCode
    hint: str


# In this order: a refusal is also reported as a failure to connect, and lost offsets come wrapped in time-outs.
_MEANINGS = {
    QueryEndCause.TOPIC_BROKEN: _Meaning(
        r"KAFKA_DATA_LOSS|UnknownTopicOrPartitionException|OffsetOutOfRangeException|InvalidTopicException"
        r"|Partitions? .* (?:lost|gone|deleted)|data may have been lost"
        r"|PythonException.*\bTopicMissingError: ",
        ExitCode.TOPIC_BROKEN,
        "What was read stays in the table. If the topic was created again, start the job with other folders.",
    ),
    QueryEndCause.KAFKA_DENIED: _Meaning(
        r"SaslAuthenticationException|SslAuthenticationException|AuthorizationException|AuthenticationException"
        r"|PythonException.*\bKafkaAccessDeniedError: ",
        ExitCode.KAFKA_DENIED,
        "See the security settings given with -X, and the ACLs of the topic.",
    ),
    QueryEndCause.KAFKA_AWAY: _Meaning(
        r"org\.apache\.kafka\.common\.errors\.(?:TimeoutException|DisconnectException|NetworkException"
        r"|CoordinatorNotAvailableException|LeaderNotAvailableException|NotLeaderOrFollowerException"
        r"|BrokerNotAvailableException|RetriableException)"
        r"|No resolvable bootstrap urls|Cannot fetch record for offset|PythonException.*\bKafkaUnavailableError: ",
        ExitCode.KAFKA_AWAY,
        "Start the job again when Kafka answers: it goes on where it was.",
    ),
    QueryEndCause.WORKER_LACKS: _Meaning(
        r"PythonException.*\bModuleNotFoundError: No module named ",
        ExitCode.SPARK_MISSING,
        "Every node needs the package and what it requires: install it there and name that Python with "
        "`--conf spark.pyspark.python=...`, or ship it as a zip with --py-files (design/spark.md).",
    ),
    QueryEndCause.PROCESS_ENDED: _Meaning(
        r"Py4JNetworkError|Answer from Java side is empty|Connection refused.*py4j|CANNOT_OPEN_SOCKET"
        r"|MemoryError|GC overhead limit exceeded|Python worker exited unexpectedly|ExecutorLostFailure"
        r"|Not enough memory|(?:EOF|Socket)Exception.*\bPythonWorkerFactory\b",
        ExitCode.SPARK_FAILED,
        "`--conf spark.driver.memory=...` (and on a cluster `spark.executor.memory`) gives the JVM more; Python workers need "
        "what is left of the machine's. Streaming jobs need less with a smaller --max-offsets-per-trigger.",
    ),
    QueryEndCause.NO_ROOM: _Meaning(
        r"No space left on device|[Qq]uota ?[Ee]xceeded|DiskErrorException",
        ExitCode.TABLE_UNUSABLE,
        "Free space for table, checkpoint and Spark's scratch files, then start the job again: it goes on where it was.",
    ),
    QueryEndCause.STORE_AWAY: _Meaning(
        r"AWS Error (?:NETWORK_CONNECTION|REQUEST_TIMEOUT|SLOW_DOWN|THROTTLING|SERVICE_UNAVAILABLE|INTERNAL_FAILURE)|curlCode"
        r"|Connection timed out|No route to host|Network is unreachable|Host is down|Stale file handle|TimeoutError"
        r"|java\.net\.(?:\w*ConnectException|UnknownHostException|SocketTimeoutException|NoRouteToHostException)"
        r"|SafeModeException|StandbyException|Unable to execute HTTP request|Status Code: 50[0-4]",
        ExitCode.TABLE_UNUSABLE,
        "See whether the file system of table and checkpoint answers, then start the job again: it goes on where it was.",
    ),
    QueryEndCause.FILES_UNUSABLE: _Meaning(
        r"FAILED_READ_FILE|CANNOT_READ_FILE|PATH_NOT_FOUND|PATH_ALREADY_EXISTS|FileNotFoundException|FileAlreadyExists"
        r"|AccessControlException|AccessDenied|Permission denied|NotDirectoryException|No FileSystem for scheme|Mkdirs failed"
        r"|Input/output error|PythonException.*\b(?:OSError|FileNotFoundError|PermissionError|pyarrow\.lib\.Arrow\w+): ",
        ExitCode.TABLE_UNUSABLE,
        "See that table and checkpoint are folders that can be read and written, and that nothing in them is damaged.",
    ),
    QueryEndCause.OTHER: _Meaning("", ExitCode.SPARK_FAILED, "`--debug` shows all that Spark says of it."),
}
_CAUSED_BY = re.compile(r"^\s*Caused by: (.+)$", re.MULTILINE)
_SAID_BY_WORKER = re.compile(
    r"^(?:ModuleNotFoundError|FileNotFoundError|OSError|pyarrow\.lib\.Arrow\w+|statechannel\.[\w.]+Error): .+$",
    re.MULTILINE,
)
_CALLING = ": An error occurred while calling "
"""Py4J's first line; the error itself is in the next one."""
_LENGTH = 400


def cause_of(text: str) -> QueryEndCause:
    return next(cause for cause, meaning in _MEANINGS.items() if re.search(meaning.pattern, text, re.DOTALL))


def gist(text: str) -> str:
    """The line of a long text that says most: the error of a worker, the innermost cause, else the first line."""
    causes = _SAID_BY_WORKER.findall(text) or _CAUSED_BY.findall(text)
    lines = [line.lstrip(": ").rstrip() for line in text.splitlines() if line.strip() and _CALLING not in f": {line}"]
    reason = causes[-1] if causes else lines[0] if lines else "no reason was given"
    return reason if len(reason) <= _LENGTH else reason[:_LENGTH] + "..."


def surroundings(error: Exception, spark_says: str = "") -> tuple[QueryEndCause, str] | None:
    """What Spark, its JVM or a file system did, and the gist of it; None for any other error: one of ours, or a bug."""
    # Help is read where there is no Spark, and needs this module.
    import pyarrow as pa
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    text = f"{type(error).__name__}: {error}\n{_java_trace(error)}\n{spark_says}"
    cause = cause_of(text)
    if isinstance(error, BrokenPipeError) or not isinstance(
        error, PySparkException | Py4JError | OSError | EOFError | MemoryError | pa.ArrowException
    ):
        return None
    if isinstance(error, ConnectionError | EOFError):
        cause = QueryEndCause.PROCESS_ENDED  # file systems have other errors
    elif isinstance(error, OSError | pa.ArrowException) and not isinstance(error, MemoryError):
        cause = cause if cause in {QueryEndCause.NO_ROOM, QueryEndCause.STORE_AWAY} else QueryEndCause.FILES_UNUSABLE
    return cause, gist(text)


STOP_TIMEOUT_S = 30.0
RETRIES = 5
_LOOK_S = 1
_STOP_LOOK_S = 0.05
_BACKOFF_S, _BACKOFF_MAX_S = 1.0, 60.0

Say = Callable[[str], None]
BatchFunction = Callable[["DataFrame", int], None]


class _NoMoreBatchesError(Exception):
    """A batch was to begin after the stop; it is repeated after the next start."""


class Work:
    """What `foreachBatch` calls: the job's function, and what is known of its runs.

    A batch that would begin after the stop is refused, so that a query that is never idle stops behind a batch and not in
    one. An error is kept: Spark hands on only its text.

    Args:
        stop: Set to end before the next batch.
    """

    def __init__(self, function: BatchFunction, stop: threading.Event) -> None:
        self._function = function
        self._stop = stop
        self.running = threading.Event()
        self.done = 0
        self.error: Exception | None = None
        self._loud: Callable[[], None] | None = None

    def begin(self) -> None:
        """The query is about to start: what was known of its last run is over."""
        self.error = None

    def end(self) -> None:
        loud, self._loud = self._loud, None
        if loud is not None:
            loud()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        if self._stop.is_set():
            self.error = _NoMoreBatchesError()
            self._loud = _hushed(frame.sparkSession)
            raise self.error
        self.running.set()
        try:
            self._function(frame, batch_id)
        except Exception as error:
            self.error = error
            raise
        else:
            self.done += 1
        finally:
            self.running.clear()


def _hushed(session: SparkSession) -> Callable[[], None]:
    """Keep Spark from logging as an error, with pages of stack, that a batch was refused; returns what ends the silence."""
    jvm: Any = session.sparkContext._jvm  # noqa: SLF001 - the only way to the JVM's log
    log = jvm.org.apache.logging.log4j
    name = "org.apache.spark.sql.execution.streaming"
    before = log.LogManager.getLogger(name).getLevel()
    log.core.config.Configurator.setLevel(name, log.Level.OFF)

    def loud() -> None:
        with suppress(Exception):  # the JVM may have gone with the query
            log.core.config.Configurator.setLevel(name, before)

    return loud


@contextmanager
def stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT set `stop`; a second one ends the process as it would anything else.

    Only the main thread can do this; elsewhere signal handlers stay as they are.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    wanted = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in wanted}

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        stop.set()

    for number in wanted:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def run_query(
    start: Callable[[], StreamingQuery],
    *,
    stop: threading.Event,
    work: Work | None = None,
    retries: int = RETRIES,
    stop_timeout_s: float = STOP_TIMEOUT_S,
    say: Say = lambda line: print(line, file=sys.stderr, flush=True),
) -> None:
    """Start a query and stay with it until it ends by itself or is asked to stop.

    Args:
        start: Starts it; called again after Kafka was away.
        stop: Ends it; SIGTERM and SIGINT set it as long as this runs in the main thread.
        work: What the query gives to `foreachBatch`, if it does; without it errors of the job's own function are Spark's.
        retries: How often it is started again because Kafka was away, without a batch done in between.
        stop_timeout_s: How long a running batch may take to end; it is broken off then, and repeated after the next start.
        say: Called with a line about each retry.

    Raises:
        SparkJobError: The query failed; what the job's own function raised on purpose comes as it was.
    """
    tries = 0
    with stopped_by_signals(stop):
        while not stop.is_set():
            done_before = work.done if work else 0
            try:
                _attend(start, stop, work, stop_timeout_s)
            except _AwayError as away:
                if stop.is_set():
                    return
                cause, why = away.args
                tries = 1 if work and work.done > done_before else tries + 1
                if tries > retries:
                    raise _failure(cause, f"{why} (tried {tries} times)") from away.__cause__
                pause_s = min(_BACKOFF_MAX_S, _BACKOFF_S * 2 ** (tries - 1))
                say(f"{cause}: {why}; start {tries} of {retries} in {pause_s:.0f} s")
                stop.wait(pause_s)
            else:
                return


class _AwayError(Exception):
    """What may answer again soon does not: the cause, and why."""


def _attend(start: Callable[[], StreamingQuery], stop: threading.Event, work: Work | None, timeout_s: float) -> None:
    if work:
        work.begin()
    try:
        query = start()
        while not stop.is_set():
            if query.awaitTermination(_LOOK_S):
                return
        _stop(query, work, timeout_s)
        if (failure := query.exception()) is not None:
            raise failure  # noqa: TRY301 - as the start raises it
    except Exception as error:
        cause = (work.error if work else None) or error
        if isinstance(cause, _NoMoreBatchesError) or (stop.is_set() and not isinstance(cause, StateChannelError)):
            return
        _raise(cause, str(error))
    finally:
        if work:
            work.end()


def _stop(query: StreamingQuery, work: Work | None, timeout_s: float) -> None:
    """Wait until no batch runs, then stop; a batch that takes too long is broken off."""
    end_s = time.monotonic() + timeout_s
    while query.isActive and time.monotonic() < end_s:
        if not (work and work.running.is_set()) and not query.status["isTriggerActive"]:
            break
        time.sleep(_STOP_LOOK_S)
    query.stop()


def _raise(error: Exception, spark_says: str) -> None:
    """Say in our words what ended the query."""
    if isinstance(error, StateChannelError) and error.exit_code == ExitCode.KAFKA_AWAY:
        raise _AwayError(QueryEndCause.KAFKA_AWAY, str(error)) from error
    if (named := surroundings(error, spark_says)) is None:
        raise error
    passing = named[0] in {QueryEndCause.KAFKA_AWAY, QueryEndCause.STORE_AWAY}
    raise (_AwayError if passing else _failure)(*named) from error


def _failure(cause: QueryEndCause, why: str) -> SparkJobError:
    meaning = _MEANINGS[cause]
    return SparkJobError(f"{cause}: {why}", hint=meaning.hint, exit_code=meaning.exit_code)


def _java_trace(error: Any) -> str:
    """The JVM's own text, where the error brought it along."""
    for name in ("getStackTrace", "stackTrace", "_stackTrace"):
        trace = getattr(error, name, None)
        trace = trace() if callable(trace) else trace
        if isinstance(trace, str):
            return trace
    return ""


# --- batch work ---------------------------------------------------------------------------------------------------------


@contextmanager
def spark_errors() -> Iterator[None]:
    """Errors of Spark, and of the file systems, as errors of a job.

    Raises:
        SparkJobError: With the cause, and the exit code that there is for it.
    """
    try:
        yield
    except Exception as error:
        if (named := surroundings(error)) is None:
            raise
        raise _failure(*named) from error
