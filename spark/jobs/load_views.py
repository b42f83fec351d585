"""The job load-views (design/spark-load-views.md): views and history of both load topics, tombstones for dead brokers."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Annotated

from loaddata.view.table_view import ExpiryRules, ViewRules
from spark.cli.job import AcceptNewTopic, CompactHistory, Option, job_app, job_main, streaming
from spark.core.job_session import job_session, refuse_foreign
from spark.core.streaming import Streaming
from spark.load.options import JOB, LoadViewsOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession


@streaming
def load_views(
    streaming: Streaming,
    *,
    table: Annotated[
        str, Option("--table", metavar="DIR", help="Where views and history are written: a folder, or a URI.")
    ],
    tombstones: Annotated[
        bool,
        Option(
            help="Write tombstones for reports of brokers that are gone; the brokers' setting load.tombstones "
            "is to be `spark` then."
        ),
    ] = True,
    ttl_s: Annotated[
        float, Option("--ttl-s", min=0.2, help="Age beyond which a report makes its broker suspect; as load.ttl_s.")
    ] = 1_800.0,
    grace_s: Annotated[
        float, Option("--grace-s", min=0, help="How long a suspect may still renew it; as load.grace_s.")
    ] = 30.0,
    repeat_s: Annotated[
        float, Option("--repeat-s", min=0.1, help="When a tombstone that had no effect is written again.")
    ] = 60.0,
    brokers_max: Annotated[int, Option("--brokers-max", min=1, help="Brokers held of each topic.")] = 10_000,
    held_bytes: Annotated[
        int, Option("--held-bytes", min=900_000, help="Bytes of all reports held of each topic.")
    ] = 512 * 2**20,
    keep: Annotated[int, Option("--keep", min=2, help="Snapshots of the views that are kept.")] = 10,
    compacts: CompactHistory = True,
    accept_new_topic: AcceptNewTopic = False,
) -> None:
    """Keep views and a history of the load topics, and write tombstones for dead brokers."""
    options = LoadViewsOptions(
        table,
        tombstones=tombstones,
        accept_new_topic=accept_new_topic,
        view=ViewRules(ttl_s=ttl_s, brokers_max=brokers_max, held_bytes=held_bytes),
        expiry=ExpiryRules(ttl_s=ttl_s, grace_s=grace_s, repeat_s=repeat_s),
        keep=keep,
        compacts=compacts,
    )
    with job_session(JOB, streaming, table) as session:
        run(session, streaming, options, threading.Event())


def run(session: SparkSession, streaming: Streaming, options: LoadViewsOptions, stop: threading.Event) -> None:
    """Run the job in a session until it ends or is stopped.

    Raises:
        StateChannelError: What ended it.
    """
    # Imported late: help must not wait for Spark.
    from spark.core.metrics import JobMetrics, run_measured
    from spark.load.options import LoadFigures
    from spark.load.views import LoadViews

    refuse_foreign(options.table, JOB, "view")
    metrics = JobMetrics(JOB)
    figures = LoadFigures(metrics.registry)
    job = LoadViews(session, streaming, options, on_batch=figures.took)
    run_measured(session, streaming, metrics, start=job.start, take=job.take, stop=stop)


app = job_app(load_views)


def main(argv: Sequence[str] | None = None) -> int:
    return job_main(app, "python -m spark.jobs.load_views", argv)


if __name__ == "__main__":
    sys.exit(main())
