"""The job partition-loads: samples of the last N hours become the load of each partition (design/partitions.md).

Each batch: read and decode (workers), add to the history, average the window (workers), write a snapshot, move the pointer. All
that must outlive this process is in the pointer; Spark's checkpoint is scratch of one run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import orjson
from pyspark.sql import functions as F

from loaddata.model.figures import wall_ms
from loaddata.samples.averages import Window
from spark.core.store import Pointer, new_checkpoint
from spark.core.streaming import Streaming
from spark.errors import TableFormatError, TopicBrokenError
from spark.partitions.options import JOB, OFFSETS_MAX, PartitionBatchResult, PartitionLoadsOptions
from spark.partitions.table import PartitionTable, loads_of, newest_of, positions_of, rows_of
from statechannel import clocks
from statechannel.kafka.topics import TopicAdmin, TopicInfo

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)

_EARLIEST = -2
_ANSWER_S = 10.0
_LOG_TIME = "LogAppendTime"
ACCEPT_HINT = "If that was meant, start the job once with --accept-new-topic: its history starts again, empty."


class PartitionLoadsRun:
    """One run of the job; `start` begins, and may be called again after the query ended.

    Args:
        now_ms: Wall clock: where the window ends.
    """

    def __init__(
        self,
        spark: SparkSession,
        streaming: Streaming,
        options: PartitionLoadsOptions,
        *,
        on_batch: Callable[[PartitionBatchResult], None] = lambda _: None,
        now_ms: Callable[[], int] = lambda: wall_ms(clocks.now_ms()),
    ) -> None:
        self._spark = spark
        self._streaming = streaming
        self.options = options
        self._on_batch = on_batch
        self._now_ms = now_ms
        self._admin = TopicAdmin(streaming.client, timeout_s=_ANSWER_S)
        self.table = PartitionTable(spark, options.table, options.keep)
        self._base: Pointer | None = None
        self._positions: dict[int, int] = {}
        self._topic_id = ""
        self._cluster = options.cluster

    def start(self, work: Callable[[DataFrame, int], None] | None = None) -> StreamingQuery:
        """Begin where the table's pointer says, whatever a checkpoint may say.

        Args:
            work: What Spark calls for each batch; it has to call `take`.

        Raises:
            TopicBrokenError: The topic does not exist, or is not the one that the table was made from.
            TableFormatError: The table is another job's.
            KafkaAdapterError: Kafka does not answer.
        """
        info = self.open()
        streaming, topic = self._streaming, self.options.topic
        starts = {str(number): self._positions.get(number, _EARLIEST) for number in range(info.partitions)}
        source = {"maxOffsetsPerTrigger": str(OFFSETS_MAX)} | streaming.source(may_lose=True)
        source |= {"subscribe": topic, "startingOffsets": orjson.dumps({topic: starts}).decode()}
        source["includeHeaders"] = "false"
        records = self._spark.readStream.format("kafka").options(**source).load()
        writer = (
            records.writeStream.foreachBatch(work or self.take)
            .queryName(f"{JOB}-{topic}")
            .option("checkpointLocation", new_checkpoint(streaming.checkpoint))
        )
        return writer.trigger(**streaming.trigger()).start()

    def open(self) -> TopicInfo:
        """Take up what the table has; raises as `start`."""
        self._cluster = self.options.cluster or self._admin.cluster().cluster_id
        info = self._info()
        self._base = self.table.take_up()
        self._positions, self._topic_id = {}, info.topic_id
        if self._base is None:
            return info
        meta = self._base.meta
        if meta.get("job") != JOB or meta.get("topic") != self.options.topic:
            raise TableFormatError(
                self.table.root.uri, f"it belongs to the job {meta.get('job')!r} on topic {meta.get('topic')!r}"
            )
        if meta["topic_id"] == info.topic_id:
            self._positions = positions_of(meta)
        elif not self.options.accept_new_topic:
            raise TopicBrokenError(
                f"the topic {self.options.topic} was re-created (id {info.topic_id}, the table has {meta['topic_id']})",
                hint=ACCEPT_HINT,
            )
        else:
            _log.warning("the topic %s was re-created; its history starts again, as requested", self.options.topic)
            self.table.forget()
        return info

    def _info(self) -> TopicInfo:
        """The topic as it is now.

        Raises:
            TopicBrokenError: It is not there, or does not have the log's own time.
        """
        name = self.options.topic
        topic = self._admin.describe([name]).get(name)
        if topic is None:
            raise TopicBrokenError(
                f"the topic {name} does not exist",
                hint="Take samples with `statechannel partitions sample`: it makes it. Or name another one with --topic.",
            )
        if topic.settings.get("message.timestamp.type") != _LOG_TIME:
            raise TopicBrokenError(
                f"the topic {name} does not have the log's own time: days of its history are unknown",
                hint=f"Set message.timestamp.type={_LOG_TIME} of {name}.",
            )
        return topic

    # --- a batch ----------------------------------------------------------------------------------------------------

    def take(self, records: DataFrame, _batch_id: int) -> None:
        """Take one batch in. An error ends the query; nothing that was not published counts.

        Raises:
            TopicBrokenError: The topic was created again while it was read.
        """
        rows = rows_of(records, self._positions, self._info().partitions, self._cluster).persist()
        try:
            ends = {row["at"]: row["end"] + 1 for row in rows.groupBy("at").agg(F.max("offset").alias("end")).collect()}
            # Behind the reading: what was read came from the topic that is known.
            if (topic_id := self._info().topic_id) != self._topic_id:
                why = f"the topic {self.options.topic} was re-created (id {topic_id}, was {self._topic_id})"
                raise TopicBrokenError(why, hint=ACCEPT_HINT)
            counted = self.table.add(rows, self._base) if ends else {}
        finally:
            rows.unpersist()
        self._on_batch(self._publish(self._positions | ends, counted))

    def _publish(self, positions: Mapping[int, int], counted: Mapping[str, int]) -> PartitionBatchResult:
        options = self.options
        now_ms = self._now_ms()
        window = Window.until(now_ms, window_s=options.window_s, interval_s=options.interval_s)
        newest = newest_of(self.table.read(window), window).persist()
        try:
            minutes = newest.select("slot").distinct().count()
            source = f"samples of {minutes} of {window.slots} intervals of {options.interval_s:g} s (job {JOB})"
            head = {"cluster": self._cluster, "from_ms": window.from_ms, "to_ms": window.to_ms, "source": source}
            partitions = self.table.write(loads_of(newest, window), self._base, head)
        finally:
            newest.unpersist()
        meta: dict[str, Any] = {
            "job": JOB,
            "topic": options.topic,
            "topic_id": self._topic_id,
            "positions": {str(number): offset for number, offset in sorted(positions.items())},
            "written_at_ms": now_ms,
            "interval_s": options.interval_s,
            "partitions": partitions,
            **head,
        }
        self._base = self.table.publish(self._base, meta)
        self._positions = dict(positions)
        self.table.tidy(window, compacts=options.compacts)
        return PartitionBatchResult(counted, partitions, minutes, window.slots)
