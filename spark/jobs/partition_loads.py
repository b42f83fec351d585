"""The job partition-loads (design/partitions-samples.md): the load of each of Kafka's own partitions, from their samples."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Annotated

from spark.cli.job import AcceptNewTopic, CompactHistory, Option, job_app, job_main, streaming
from spark.core.job_session import job_session, refuse_foreign
from spark.core.streaming import Streaming
from spark.partitions.options import JOB, PartitionLoadsOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

_DAY_S = 86_400.0


@streaming
def partition_loads(
    streaming: Streaming,
    *,
    table: Annotated[
        str, Option("--table", metavar="DIR", help="Where loads and history are written: a folder, or a URI.")
    ],
    topic: Annotated[
        str, Option("--topic", metavar="NAME", help="Topic of the samples; as extensions.partitions.sample.topic.")
    ] = "partition-samples",
    window_s: Annotated[
        float, Option("--window-s", min=60, max=30 * _DAY_S, help="Averaging window before now, in seconds.")
    ] = 6 * 3_600.0,
    interval_s: Annotated[
        float, Option("--interval-s", min=1, max=3_600, help="Time between two samples of a partition.")
    ] = 60.0,
    cluster: Annotated[
        str, Option("--cluster", metavar="ID", help="Samples of this cluster count. Default: the Kafka that is read.")
    ] = "",
    keep: Annotated[int, Option("--keep", min=2, max=10_000, help="Snapshots of the loads that are kept.")] = 10,
    compacts: CompactHistory = True,
    accept_new_topic: AcceptNewTopic = False,
) -> None:
    """Average the samples of Kafka's own partitions into the load of each."""
    options = PartitionLoadsOptions(
        table,
        topic,
        window_s=window_s,
        interval_s=interval_s,
        cluster=cluster,
        accept_new_topic=accept_new_topic,
        keep=keep,
        compacts=compacts,
    )
    with job_session(JOB, streaming, table) as session:
        run(session, streaming, options, threading.Event())


def run(session: SparkSession, streaming: Streaming, options: PartitionLoadsOptions, stop: threading.Event) -> None:
    """Run the job in a session until it ends or is stopped.

    Raises:
        StateChannelError: What ended it.
    """
    # Imported late: help must not wait for Spark.
    from spark.core.metrics import JobMetrics, run_measured
    from spark.partitions.loads import PartitionLoadsRun
    from spark.partitions.options import PartitionFigures

    for foreign in ("view", "views"):
        refuse_foreign(options.table, JOB, foreign)
    metrics = JobMetrics(JOB)
    figures = PartitionFigures(metrics.registry)
    job = PartitionLoadsRun(session, streaming, options, on_batch=figures.took)
    run_measured(session, streaming, metrics, start=job.start, take=job.take, stop=stop)


app = job_app(partition_loads)


def main(argv: Sequence[str] | None = None) -> int:
    return job_main(app, "python -m spark.jobs.partition_loads", argv)


if __name__ == "__main__":
    sys.exit(main())
