"""The job partition-loads (design/partitions.md): the load of each of Kafka's own partitions, from their samples."""

from __future__ import annotations

import sys
import threading
from functools import partial

from spark.cli.job import job_app, job_main, streaming
from spark.core.job_session import job_session, refuse_foreign
from spark.core.streaming import Streaming
from spark.partitions.options import JOB, PartitionFigures, PartitionLoadsOptions


@streaming(PartitionLoadsOptions)
def partition_loads(streaming: Streaming, options: PartitionLoadsOptions) -> None:
    """Average the samples of Kafka's own partitions into the load of each."""
    with job_session(JOB, streaming, options.table) as session:
        # Imported late: help must not wait for Spark.
        from spark.core.metrics import JobMetrics, run_measured
        from spark.partitions.loads import PartitionLoadsRun

        for foreign in ("view", "views"):
            refuse_foreign(options.table, JOB, foreign)
        metrics = JobMetrics(JOB)
        figures = PartitionFigures(metrics.registry)
        job = PartitionLoadsRun(session, streaming, options, on_batch=figures.took)
        run_measured(session, streaming, metrics, start=job.start, take=job.take, stop=threading.Event())


app = job_app(partition_loads)
main = partial(job_main, app, "python -m spark.jobs.partition_loads")


if __name__ == "__main__":
    sys.exit(main())
