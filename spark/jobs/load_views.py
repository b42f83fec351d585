"""The job load-views (design/spark.md): views and history of both load topics, tombstones for dead brokers."""

from __future__ import annotations

import sys
import threading
from functools import partial

from spark.cli.job import job_app, job_main, streaming
from spark.core.job_session import job_session, refuse_foreign
from spark.core.streaming import Streaming
from spark.load.options import JOB, LoadFigures, LoadViewsOptions


@streaming(LoadViewsOptions)
def load_views(streaming: Streaming, options: LoadViewsOptions) -> None:
    """Keep views and a history of the load topics, and write tombstones for dead brokers."""
    with job_session(JOB, streaming, options.table) as session:
        # Imported late: help must not wait for Spark.
        from spark.core.metrics import JobMetrics, run_measured
        from spark.load.views import LoadViews

        refuse_foreign(options.table, JOB, "view")
        metrics = JobMetrics(JOB)
        figures = LoadFigures(metrics.registry)
        job = LoadViews(session, streaming, options, on_batch=figures.took)
        run_measured(session, streaming, metrics, start=job.start, take=job.take, stop=threading.Event())


app = job_app(load_views)
main = partial(job_main, app, "python -m spark.jobs.load_views")


if __name__ == "__main__":
    sys.exit(main())
