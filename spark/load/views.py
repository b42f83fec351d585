"""The job load-views: both load topics as views and as a history, and tombstones for brokers that are gone.

Each batch: read and decode (workers), fold the headers (here), write history and views (workers), move the pointer, write
tombstones. All that must outlive this process is in the table's pointer; Spark's checkpoint is scratch of one run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import orjson

from loaddata.model.figures import wall_ms
from loaddata.report.record import ReportKind, Tombstone
from spark.core.archive import day_of
from spark.core.metrics import parse_offsets
from spark.core.store import Pointer, new_checkpoint
from spark.core.streaming import Streaming
from spark.errors import TableFormatError, TopicBrokenError
from spark.load.expiry import LoadTopicEnd, TopicExpiry
from spark.load.fold import JudgedRecord, LoadFold
from spark.load.options import JOB, OFFSETS_MAX, LoadBatchResult, LoadViewsOptions, TopicTaken
from spark.load.table import LoadTable, fold_rows, rows_of, write_tombstones
from statechannel import clocks
from statechannel.kafka.admin import BoundsAsker, OffsetBounds
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import KafkaUnavailableError, TopicMissingError
from statechannel.kafka.topic_policy import LoadTopics
from statechannel.kafka.topics import TopicAdmin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


_log = logging.getLogger(__name__)

_EARLIEST = -2
_SHORTER_MAX = 2
"""How often in a row a topic may end before what was read of it: a Kafka broker that has just come back may know less."""
_WATCH_GAP_LEAST_S = 1.0
ACCEPT_HINT = (
    "If that was meant, start the job once with --accept-new-topic: its view of this topic starts again, empty."
)


class LoadTopicsAsker:
    """One admin client for both topics.

    Args:
        channel: Name of the channel; the topics have it as prefix.
    """

    def __init__(self, client: ClientSettings, channel: str, *, timeout_s: float = 10.0) -> None:
        topics = LoadTopics(channel)
        self.names: Mapping[ReportKind, str] = {
            ReportKind.BROKER_LOAD: topics.broker_load,
            ReportKind.TOP_BUNDLES: topics.top_bundles,
        }
        self._admin = TopicAdmin(client, timeout_s=timeout_s)
        self._asker = BoundsAsker(client, timeout_s=timeout_s)

    def ids(self) -> dict[ReportKind, str]:
        """Id of each topic.

        Raises:
            TopicBrokenError: One is missing, has several partitions, or not the log's own time.
            KafkaUnavailableError: Kafka did not answer in time.
        """
        topics = self._admin.describe(self.names.values(), created=True)
        for name in self.names.values():
            if name not in topics:
                raise TopicBrokenError(
                    f"the topic {name} does not exist",
                    hint="The brokers create the load topics when they start; name the channel with --channel.",
                )
            if topics[name].partitions != 1:
                raise TopicBrokenError(
                    f"the topic {name} has {topics[name].partitions} partitions; a load topic has one",
                    hint="Delete it; the brokers create it again when they start.",
                )
            if topics[name].settings.get("message.timestamp.type") != "LogAppendTime":
                raise TopicBrokenError(
                    f"the topic {name} does not have the log's own time: ages are unknown",
                    hint=f"Set message.timestamp.type=LogAppendTime of {name}.",
                )
        return {kind: topics[name].topic_id for kind, name in self.names.items()}

    def bounds(self) -> dict[ReportKind, OffsetBounds]:
        """Where each topic begins and ends now.

        Raises:
            TopicBrokenError: One is missing.
            KafkaUnavailableError: Kafka did not answer in time.
        """
        places = [(name, 0) for name in self.names.values()]
        try:
            bounds = self._asker.ask(places)
        except TopicMissingError as error:
            self.ids()
            raise KafkaUnavailableError(
                str(error), hint="Check that the Kafka brokers that have the topic run."
            ) from None
        return {kind: bounds[name, 0] for kind, name in self.names.items()}


class LoadViews:
    """One run of the job; `start` begins, and may be called again after the query ended.

    Args:
        asker: How Kafka is asked; another one is for tests, as are the clocks.
    """

    def __init__(
        self,
        spark: SparkSession,
        streaming: Streaming,
        options: LoadViewsOptions,
        *,
        on_batch: Callable[[LoadBatchResult], None] = lambda _: None,
        asker: LoadTopicsAsker | None = None,
        mono_s: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: wall_ms(clocks.now_ms()),
    ) -> None:
        self._spark = spark
        self._streaming = streaming
        self.options = options
        self._mono_s = mono_s
        self._now_ms = now_ms
        self._on_batch = on_batch
        self._asker = asker or LoadTopicsAsker(streaming.client, streaming.channel)
        self._kinds = {name: kind for kind, name in self._asker.names.items()}
        self.table = LoadTable(spark, options.table, options.keep)
        self._query: StreamingQuery | None = None
        self._fresh()

    def _fresh(self) -> None:
        rules = self.options
        watch_gap_s = max(2 * self._streaming.trigger_s, _WATCH_GAP_LEAST_S)
        self.fold = LoadFold(rules.view)
        self.expiry = {kind: TopicExpiry(rules.expiry, watch_gap_s) for kind in ReportKind}
        self._base: Pointer | None = None
        self._ids: dict[ReportKind, str] = {}
        self._restarted: set[ReportKind] = set()
        self._from: dict[ReportKind, int] = dict.fromkeys(ReportKind, _EARLIEST)
        self._shorter = dict.fromkeys(ReportKind, 0)
        self._compacted_before = ""
        self._published_suspects: dict[str, list[str]] | None = None

    # --- beginning --------------------------------------------------------------------------------------------------

    def start(self, work: Callable[[DataFrame, int], None] | None = None) -> StreamingQuery:
        """Begin with what the table's pointer says, whatever a checkpoint may say.

        Args:
            work: What Spark calls for each batch; it has to call `take`.

        Raises:
            TopicBrokenError: A topic is not the one that the table was made from.
            KafkaAdapterError: Kafka does not answer.
        """
        self.open()
        streaming = self._streaming
        writer = (
            self._records()
            .writeStream.foreachBatch(work or self.take)
            .queryName(f"{JOB}-{streaming.channel}")
            .option("checkpointLocation", new_checkpoint(streaming.checkpoint))
        )
        self._query = None
        self._query = writer.trigger(**streaming.trigger()).start()
        return self._query

    def open(self) -> None:
        """Take up what the table has; suspects and ages are forgotten."""
        self._fresh()
        self._ids = self._asker.ids()
        bounds = self._asker.bounds()
        self._base = self.table.views.latest(mend=True)
        if self._base is None:
            return
        meta = self._base.meta
        if meta.get("job") != JOB:
            raise TableFormatError(self.table.views.root.uri, f"it belongs to the job {meta.get('job')!r}")
        for kind, topic in self._asker.names.items():
            known = meta["topics"].get(topic)
            if known is None:
                raise TableFormatError(self.table.views.root.uri, f"it does not know the topic {topic}")
            why = self._differs(kind, known, bounds[kind])
            if why and not self.options.accept_new_topic:
                raise TopicBrokenError(why, hint=ACCEPT_HINT)
            if why:
                _log.warning("%s; its view starts again, as requested", why)
                self._restarted.add(kind)
                continue
            if bounds[kind].low <= known["position"]:
                self._from[kind] = known["position"]
            else:
                _log.warning("%s: offsets %d to %d were deleted unread", topic, known["position"], bounds[kind].low)
            rows = self.table.restored(self._base, kind)
            self.fold.restore(
                kind,
                rows,
                position=known["position"],
                log_clock_ms=known["log_clock_ms"],
                heard=known.get("heard", {}),  # tables of an earlier version have none
            )

    def _differs(self, kind: ReportKind, known: Mapping[str, Any], bounds: OffsetBounds) -> str:
        topic = self._asker.names[kind]
        if known["topic_id"] != self._ids[kind]:
            return f"the topic {topic} was re-created (id {self._ids[kind]}, the table has {known['topic_id']})"
        if bounds.high < known["position"]:
            return f"the topic {topic} ends at {bounds.high}, before {known['position']}, which the table has"
        return ""

    def _records(self) -> DataFrame:
        """Both topics, and a tick in each trigger: without data Spark would not call."""
        starts = {name: {"0": self._from[kind]} for name, kind in self._kinds.items()}
        source = {"maxOffsetsPerTrigger": str(OFFSETS_MAX)} | self._streaming.source(may_lose=True)
        source["startingOffsets"] = orjson.dumps(starts).decode()
        source["assign"] = orjson.dumps({name: [0] for name in self._kinds}).decode()
        records = self._spark.readStream.format("kafka").options(**source).load()
        if self._streaming.available_now:
            return records
        tick = (
            self._spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", "1")
            .option("numPartitions", "1")
            .load()
        )
        columns = [f"cast(null as {column.dataType.simpleString()}) as {column.name}" for column in records.schema]
        return records.union(tick.selectExpr(*columns))

    # --- a batch ----------------------------------------------------------------------------------------------------

    def take(self, records: DataFrame, _batch_id: int) -> None:
        """Take one batch in. An error ends the query; nothing that was not published counts."""
        began_s = self._mono_s()
        bounds = self._asker.bounds()
        before = {kind: fold.position for kind, fold in self.fold.topics.items()}
        positions = {name: before[kind] for name, kind in self._kinds.items()}
        rows = rows_of(records, self._kinds, positions).persist()
        try:
            judged = self.fold.fold(fold_rows(rows))
            self._check_topics(bounds, before)  # behind the reading: what was read came from the topics that are known
            due = {} if self._streaming.available_now else self._judge(bounds, began_s)
            if self.options.tombstones:
                for kind, tombstones in due.items():
                    self._bury(kind, tombstones)
            self._publish(rows, judged)
        finally:
            rows.unpersist()
        self._on_batch(LoadBatchResult(judged, {str(kind): self._taken(kind, due, began_s) for kind in ReportKind}))

    def _taken(self, kind: ReportKind, due: Mapping[ReportKind, Mapping[str, Tombstone]], began_s: float) -> TopicTaken:
        expiry, tombstoned = self.expiry[kind], len(due.get(kind, {})) if self.options.tombstones else 0
        unjudged_s = None if expiry.judged_s is None else began_s - expiry.judged_s
        return TopicTaken(len(self.fold.topics[kind].view), len(expiry.suspects), tombstoned, unjudged_s)

    def _check_topics(self, bounds: Mapping[ReportKind, OffsetBounds], before: Mapping[ReportKind, int]) -> None:
        ids = self._asker.ids()
        for kind, topic in self._asker.names.items():
            if ids[kind] != self._ids[kind]:
                why = f"the topic {topic} was re-created (id {ids[kind]}, was {self._ids[kind]})"
                raise TopicBrokenError(why, hint=ACCEPT_HINT)
            high = bounds[kind].high
            self._shorter[kind] = self._shorter[kind] + 1 if high < before[kind] else 0
            if self._shorter[kind] >= _SHORTER_MAX:
                why = f"the topic {topic} ends at {high}, before {before[kind]}, which was read already"
                raise TopicBrokenError(why, hint=ACCEPT_HINT)

    def _judge(
        self, bounds: Mapping[ReportKind, OffsetBounds], began_s: float
    ) -> dict[ReportKind, dict[str, Tombstone]]:
        ends = self._ends_of_last_batch()
        due = {}
        for kind, expiry in self.expiry.items():
            self.fold.passed(kind, max(bounds[kind].low, ends.get(self._asker.names[kind], 0)))
            fold = self.fold.topics[kind]
            expiry.asked(LoadTopicEnd(began_s, bounds[kind].high))
            expiry.heard(fold.held(), began_s)
            due[kind] = expiry.step(fold.position, self._now_ms())
        return due

    def _ends_of_last_batch(self) -> dict[str, int]:
        """How far the batch before this one went, by topic: also over offsets behind which compaction left no record."""
        progress = None if self._query is None else self._query.lastProgress
        ends: dict[str, int] = {}
        for source in () if progress is None else progress.sources:
            ends |= {topic: end for (topic, _), end in parse_offsets(source.endOffset).items() if topic in self._kinds}
        return ends

    def _publish(self, rows: DataFrame, judged: list[JudgedRecord]) -> None:
        suspects = {str(kind): expiry.suspects for kind, expiry in self.expiry.items()}
        if not judged and suspects == self._published_suspects and not self._restarted:
            return
        self.table.check_ours(self._base)
        if judged:
            ids = {topic: self._ids[kind] for kind, topic in self._asker.names.items()}
            self.table.write_history(rows, judged, ids, self._base)
        self.table.write_views(rows, self.fold.winners(), self._base, self._restarted)
        self._base = self.table.publish(self._base, self._meta(suspects))
        self._published_suspects, self._restarted = suspects, set()
        self._compact()

    def _compact(self) -> None:
        """Once a day of the log, while nothing lies there that no pointer covers."""
        today = day_of(max(fold.log_clock_ms for fold in self.fold.topics.values()))
        if self.options.compacts and today != self._compacted_before:
            self.table.compact(today)
            self._compacted_before = today

    def _meta(self, suspects: Mapping[str, list[str]]) -> dict[str, Any]:
        topics = {}
        for kind, topic in self._asker.names.items():
            fold = self.fold.topics[kind]
            topics[topic] = {
                "kind": str(kind),
                "topic_id": self._ids[kind],
                "position": fold.position,
                "log_clock_ms": fold.log_clock_ms,
                "brokers": len(fold.view),
                "heard": {name: list(sign) for name, sign in fold.heard_since().items()},
                "suspects": suspects[str(kind)],
            }
        return {"job": JOB, "channel": self._streaming.channel, "written_at_ms": self._now_ms(), "topics": topics}

    def _bury(self, kind: ReportKind, tombstones: Mapping[str, Tombstone]) -> None:
        if not tombstones:
            return
        _log.info("no report of %s for too long: a tombstone for its %s is written", ", ".join(tombstones), kind)
        write_tombstones(self._spark, self._asker.names[kind], tombstones, self._streaming.kafka())
