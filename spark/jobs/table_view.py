"""The job table-view: the accepted state of every bundle as snapshots, and the archive of every record with its verdict."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from spark.cli.job import Option, job_app, job_main, streaming
from spark.core.job_session import job_session, refuse_foreign, say
from spark.core.streaming import Streaming

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from spark.core.running import Work

JOB = "table-view"


@dataclass(frozen=True, slots=True)
class TableViewOptions:
    """The options of this job alone."""

    table: Annotated[str, Option("--table", metavar="DIR", help="Where view and archive are kept: a folder, or a URI.")]
    keep: Annotated[int, Option("--keep", metavar="N", min=2, max=10_000, help="Snapshots that are kept.")] = 10
    publish_topic: Annotated[
        str | None,
        Option("--publish-topic", metavar="TOPIC", help="A compacted topic that gets each change of the view."),
    ] = None
    accept_lost_head: Annotated[
        bool, Option("--accept-lost-head", help="Go on where records were deleted before they were read.")
    ] = False
    compacts: Annotated[
        bool, Option("--compact/--no-compact", help="Put the archive's batches of days that are over into one.")
    ] = True


@streaming(TableViewOptions)
def table_view(streaming: Streaming, options: TableViewOptions) -> None:
    """Keep the accepted state of every bundle as snapshots, and archive every record with its verdict."""
    with job_session(JOB, streaming, options.table) as session:
        run(session, streaming, options, threading.Event())


def run(session: SparkSession, streaming: Streaming, options: TableViewOptions, stop: threading.Event) -> None:
    """Run the job in a session until it ends or is stopped.

    Raises:
        StateChannelError: What ended it.
    """
    # Imported late: help must not wait for Spark.
    from spark.channel.log import ChannelTopic, raw_rows
    from spark.channel.published import PublishedChanges, to_topic
    from spark.channel.table import ChannelTable, TableFigures, read_meta
    from spark.core.archive import Archive
    from spark.core.metrics import JobMetrics, run_measured
    from spark.core.store import SnapshotStore, new_checkpoint

    topic = ChannelTopic(
        streaming.client, streaming.channel, streaming.kafka(), accept_lost_head=options.accept_lost_head
    )
    root = options.table.rstrip("/")
    store = SnapshotStore(f"{root}/view", options.keep, read_meta)
    changes = None
    if options.publish_topic is not None:
        changes = PublishedChanges(store, options.publish_topic, to_topic(streaming.kafka(), options.publish_topic))
    table = ChannelTable(
        session,
        topic.log,
        store,
        Archive(f"{root}/archive"),
        whole_log=lambda ends: topic.whole(session, ends),
        check=topic.check,
        changes=changes,
        compacts=options.compacts,
    )
    refuse_foreign(root, JOB, "views")
    metrics = JobMetrics(JOB)
    figures = TableFigures(metrics.registry, topic.log.compaction_lag_ms // 4)
    figures.begins(store.latest(mend=True))

    def take(frame: DataFrame, _: int) -> None:
        figures.took(table.process(raw_rows(frame)))

    def start(work: Work) -> StreamingQuery:
        positions = {number: place.position for number, place in table.places().items()}
        topic.check(positions)
        source = streaming.source(may_lose=options.accept_lost_head) | topic.first(positions)
        rows = session.readStream.format("kafka").options(**source).load()
        writer = rows.writeStream.queryName(JOB).foreachBatch(work)
        writer = writer.option("checkpointLocation", new_checkpoint(streaming.checkpoint))
        return writer.trigger(**streaming.trigger()).start()

    run_measured(session, streaming, metrics, start=start, take=take, stop=stop)
    newest = store.latest()
    if newest is not None:
        meta = newest.meta
        ends = ", ".join(f"{number}: {place['position']}" for number, place in meta["partitions"].items())
        say(
            f"{JOB}: {figures.records} records read; snapshot {newest.sequence} has {meta['bundles']} bundles, "
            f"next offsets {ends}, digest {meta['digest']}"
        )


app = job_app(table_view)
main = partial(job_main, app, "python -m spark.jobs.table_view")


if __name__ == "__main__":
    sys.exit(main())
