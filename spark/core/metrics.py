"""Metrics of a job's queries for Prometheus: Spark reports after each batch, nothing is computed for it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import orjson
from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from spark.core.running import BatchFunction, Work, run_query
from spark.errors import SparkJobError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from spark.core.streaming import Streaming


Partition = tuple[str, int]


def parse_offsets(text: object) -> dict[Partition, int]:
    """Next offset by topic and partition, of Kafka's sources; nothing for what is none of theirs."""
    try:
        loaded: Any = orjson.loads(text) if isinstance(text, str | bytes) else text
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(loaded, dict):
        return {}
    offsets: dict[Partition, int] = {}
    for topic, partitions in loaded.items():
        if not isinstance(partitions, dict):
            continue
        for number, offset in partitions.items():
            if str(number).isdigit() and isinstance(offset, int):
                offsets[topic, int(number)] = offset
    return offsets


def lags(read_to: object, end: object) -> dict[Partition, int]:
    """Records between where a batch ended and the end of the log when it began, by topic and partition.

    A partition that has not been read yet has no entry: how much of it the query wants is not known here.
    """
    positions = parse_offsets(read_to)
    return {
        partition: max(0, offset - positions[partition])
        for partition, offset in parse_offsets(end).items()
        if partition in positions
    }


LOOPBACK = "127.0.0.1"


class JobMetrics(StreamingQueryListener):
    """Figures of a job.

    Args:
        job: Name of the job, a label of every figure.

    Attributes:
        registry: Where the figures are; jobs may put figures of their own beside them.
    """

    def __init__(self, job: str) -> None:
        self.registry = CollectorRegistry()
        self._job = job
        self.batches = self._counter("batches", "Batches done.")
        self.input_rows = self._counter("input_rows", "Rows read, repeated ones too.")
        self.failures = self._counter("query_failures", "Queries that ended with an error.")
        self.batch_s = self._gauge("batch_seconds", "How long the last batch took.")
        self.lag = self._gauge(
            "lag_records", "Records to the end of the log after the last batch.", "topic", "partition"
        )

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing to do."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        self.batches.labels(self._job).inc()
        self.input_rows.labels(self._job).inc(max(0, progress.numInputRows))
        self.batch_s.labels(self._job).set(progress.batchDuration / 1_000)
        for source in progress.sources:
            for (topic, partition), records in lags(source.endOffset, source.latestOffset).items():
                self.lag.labels(self._job, topic, str(partition)).set(records)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing to do: the figures of the last batch stand."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        if event.exception:
            self.failures.labels(self._job).inc()

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(f"statechannel_spark_{name}", meaning, ["job", *labels], registry=self.registry)

    def _counter(self, name: str, meaning: str) -> Counter:
        return Counter(f"statechannel_spark_{name}_total", meaning, ["job"], registry=self.registry)


@contextmanager
def measured(session: SparkSession, metrics: JobMetrics, port: int | None) -> Iterator[JobMetrics]:
    """Let the figures follow the session's queries, and serve them on loopback if a port is given (0 takes a free one).

    Raises:
        SparkJobError: The port is taken.
    """
    server = None
    if port is not None:
        try:
            server, _ = start_http_server(port, addr=LOOPBACK, registry=metrics.registry)
            print(f"metrics: http://{LOOPBACK}:{server.server_port}/metrics", file=sys.stderr, flush=True)
        except OSError as error:
            raise SparkJobError(
                f"metrics cannot be served on {LOOPBACK}:{port}: {error.strerror}",
                hint="Give another port with --metrics-port; 0 takes a free one.",
            ) from error
    session.streams.addListener(metrics)
    try:
        yield metrics
    finally:
        with suppress(Exception):  # its JVM may have ended, which must not hide what happened first
            session.streams.removeListener(metrics)
        if server is not None:
            server.shutdown()
            server.server_close()


def run_measured(
    session: SparkSession,
    streaming: Streaming,
    metrics: JobMetrics,
    *,
    start: Callable[[Work], StreamingQuery],
    take: BatchFunction,
    stop: threading.Event,
) -> None:
    """Run a query as its options say, with its figures served meanwhile; see `measured` and `run_query`.

    Args:
        start: Starts the query, which calls the work that is passed for each batch.
    """
    work = Work(take, stop)
    with measured(session, metrics, streaming.metrics_port):
        run_query(
            lambda: start(work),
            stop=stop,
            work=work,
            retries=streaming.retries,
            stop_timeout_s=streaming.stop_timeout_s,
        )
