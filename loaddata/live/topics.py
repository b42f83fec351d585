"""The two load topics of a live broker: one writer, a view of every broker's load, and in the leader one of their top bundles."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple

from loaddata.report.record import (
    BrokerLoadReport,
    ReportKind,
    Tombstone,
    TopBundlesReport,
    decode_broker_load,
    decode_top_bundles,
)
from loaddata.report.reporter import Reporter, ReportWrite
from loaddata.settings import LoadSettings
from loaddata.view.ownership import OwnershipChange
from loaddata.view.table_view import Arrival, Fate, Report, TableView, decoder
from statechannel.broker.topic_follower import MakeReader, TopicFollower, reader_of
from statechannel.clocks import now_ms
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import KafkaUnavailableError
from statechannel.kafka.light_topic import LightBatch, LightReaderTuning, LightTuning, LightWriter
from statechannel.kafka.topic_policy import LightLags, LoadTopics
from statechannel.kafka.topics import open_topics
from statechannel.protocol.side_record import InvalidRecord, SideRecord
from statechannel.settings.groups_engine import RuntimeSettings


class Clocks(NamedTuple):
    """The two clocks; others are for tests. `mono_s` for all that is decided, `wall_ms` for people and for the backlog."""

    mono_s: Callable[[], float] = time.monotonic
    wall_ms: Callable[[], int] = now_ms


class LoadFollower(TopicFollower[tuple[SideRecord, Report | InvalidRecord | None]], Generic[Report]):
    """One load topic, from `start` to `close`; may be started again. All methods belong to the loop's thread.

    Args:
        make_reader: Gets the sink, and the callback for a thread that ended by an exception.
        decode: See `table_view.decoder`.
        on_record: Called with each record after the view has taken it in, with what it was decoded to.
        on_opened: Called when the topic is read from its beginning.
    """

    def __init__(
        self,
        name: str,
        view: TableView[Report],
        *,
        make_reader: MakeReader,
        decode: Callable[[SideRecord], Report | InvalidRecord | None],
        on_record: Callable[[SideRecord, Report | InvalidRecord | None, Fate], None] = lambda *_: None,
        on_opened: Callable[[], None] = lambda: None,
        clocks: Clocks | None = None,
        runtime: RuntimeSettings | None = None,
    ) -> None:
        self.view = view
        self._on_record = on_record
        self._on_opened = on_opened
        self._clocks = clocks or Clocks()
        self.caught_up = False
        super().__init__(
            name,
            make_reader=make_reader,
            decode=lambda record: (record, decode(record)),
            take=self._fold,
            on_failure=self._failed,
            mono_s=self._clocks.mono_s,
            runtime=runtime,
        )

    async def close(self, timeout_s: float = 5.0) -> None:
        await super().close(timeout_s)
        self.view.reopened()
        self.caught_up = False

    def _fold(self, batch: LightBatch, decoded: Sequence[tuple[SideRecord, Report | InvalidRecord | None]]) -> None:
        if batch.opened:
            self.view.reopened()
            self._on_opened()
        now_s, wall_ms = self._clocks.mono_s(), self._clocks.wall_ms()
        later_ms = decoded[-1][0].timestamp_ms if decoded else 0
        for number, (record, report) in enumerate(decoded):
            in_backlog = number < batch.backlog
            fate = self.view.read(record, report, Arrival(now_s, later_ms, wall_ms if in_backlog else None))
            self._on_record(record, report, fate)
        self.caught_up = batch.caught_up

    def _failed(self) -> None:
        self.caught_up = False


_log = logging.getLogger(__name__)

_BATCH_RECORDS = 100
_GATHER_MAX_S = 0.25
"""Longest wait of a report for others that are fetched with it: those of a thousand brokers come every few milliseconds."""
_AGAIN_S = 0.5


class LoadConnection(NamedTuple):
    """Connection to the load topics.

    Attributes:
        channel: Its name; the load topics have it as prefix.
        create_topics: Create them if they are missing, as upstream's leader does.
        replication_factor: Of new topics; -1: the cluster's default.
    """

    client: ClientSettings
    channel: str
    create_topics: bool = True
    replication_factor: int = -1
    timeout_s: float = 20.0


class KafkaSide:
    """Writer, views and their readers. All methods belong to the loop's thread.

    Args:
        reporter: Gets the broker's own records that are read back.
    """

    def __init__(self, settings: LoadSettings, connection: LoadConnection, reporter: Reporter, clocks: Clocks) -> None:
        self._settings = settings
        self._connection = connection
        self._reporter = reporter
        self._clocks = clocks
        retention_ms = round(settings.retention_s * 1_000)
        lags = LightLags(retention_ms, round(settings.segment_s * 1_000), retention_ms)
        self.topics = LoadTopics(connection.channel, light=lags)
        self._names = {ReportKind.BROKER_LOAD: self.topics.broker_load, ReportKind.TOP_BUNDLES: self.topics.top_bundles}
        self.broker_load: TableView[BrokerLoadReport] = TableView(settings.view_rules())
        self.top_bundles: TableView[TopBundlesReport] = TableView(settings.view_rules())
        self._loads = LoadFollower(
            self.topics.broker_load,
            self.broker_load,
            make_reader=self._reader_of(self.topics.broker_load),
            decode=decoder(decode_broker_load),
            on_record=lambda *read: self._read(ReportKind.BROKER_LOAD, *read),
            on_opened=lambda: reporter.reopened(ReportKind.BROKER_LOAD),
            clocks=clocks,
        )
        self._tops = LoadFollower(
            self.topics.top_bundles,
            self.top_bundles,
            make_reader=self._reader_of(self.topics.top_bundles),
            decode=decoder(decode_top_bundles),
            on_record=lambda *read: self._read(ReportKind.TOP_BUNDLES, *read),
            on_opened=lambda: reporter.reopened(ReportKind.TOP_BUNDLES),
            clocks=clocks,
        )
        self._writer: LightWriter | None = None
        self._tombstones_written = 0
        self.leading = False

    # --- life -------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Create or check the topics; start the writer and the view of loads.

        Raises:
            KafkaAdapterError: Kafka is unavailable, or a topic is missing or has unsuitable settings.
        """
        deadline_s = time.monotonic() + self._connection.timeout_s
        while True:
            try:
                await asyncio.to_thread(self._open_topics)
                break
            except KafkaUnavailableError:
                if time.monotonic() >= deadline_s:
                    raise
                await asyncio.sleep(_AGAIN_S)
        self._writer = self._make_writer()
        self._loads.start()

    def _open_topics(self) -> None:
        connection = self._connection
        open_topics(
            connection.client,
            self.topics,
            create=connection.create_topics,
            replication_factor=connection.replication_factor,
            timeout_s=connection.timeout_s,
        )

    async def lead(self, leading: bool) -> None:
        self.leading = leading
        if leading:
            self._tops.start()
        else:
            await self._tops.close()

    async def close(self) -> None:
        timeout_s = self._settings.close_timeout_s
        writer, self._writer = self._writer, None
        if writer is not None:
            await asyncio.to_thread(writer.close, timeout_s)
        await asyncio.gather(self._loads.close(timeout_s + 1.0), self._tops.close(timeout_s + 1.0))

    def _make_writer(self) -> LightWriter:
        settings = self._settings
        tuning = LightTuning(
            acks=settings.acks,
            linger_ms=settings.linger_ms,
            queue_records=settings.queue_records,
            delivery_timeout_ms=settings.delivery_timeout_ms,
        )
        return LightWriter(self._connection.client, tuning=tuning)

    def _reader_of(self, topic: str) -> MakeReader:
        gather_ms = round(min(_GATHER_MAX_S, self._settings.tick_s / 4) * 1_000)
        tuning = LightReaderTuning(batch_records=_BATCH_RECORDS, gather_ms=gather_ms)
        return reader_of(self._connection.client, topic, self.topics.reader_group, tuning)

    # --- writing ----------------------------------------------------------------------------------------------------

    def write(self, records: Sequence[ReportWrite]) -> None:
        if self._writer is None:
            return
        for record in records:
            self._writer.write(self._names[record.kind], record.key, record.value, record.headers)

    def write_tombstones(self, kind: ReportKind, tombstones: Mapping[str, Tombstone]) -> None:
        for broker, tombstone in tombstones.items():
            _log.info("no report of %s for too long: tombstone for its %s", broker, kind)
            self._tombstones_written += 1
            if self._writer is not None:
                self._writer.write(self._names[kind], broker.encode(), None, tombstone.headers())

    # --- reading ----------------------------------------------------------------------------------------------------

    def view(self, kind: ReportKind) -> TableView[BrokerLoadReport] | TableView[TopBundlesReport]:
        return self.broker_load if kind is ReportKind.BROKER_LOAD else self.top_bundles

    def position(self, kind: ReportKind) -> int | None:
        """Position in a topic: offset of the newest record read, -1 before the first; None if it is not followed."""
        followed = self._loads if kind is ReportKind.BROKER_LOAD else self._tops
        return self.view(kind).position if followed.running else None

    def caught_up(self, kind: ReportKind) -> bool:
        """Whether the view has all records that were in the topic when it was opened."""
        return (self._loads if kind is ReportKind.BROKER_LOAD else self._tops).caught_up

    def registered(self, brokers: Iterable[str]) -> None:
        names, now_s = list(brokers), self._clocks.mono_s()
        self.broker_load.registered(names, now_s)
        self.top_bundles.registered(names, now_s)

    def ownership_changed(self, change: OwnershipChange) -> None:
        self.broker_load.ownership_changed(change)
        self.top_bundles.ownership_changed(change)

    def _read(
        self,
        kind: ReportKind,
        record: SideRecord,
        report: BrokerLoadReport | TopBundlesReport | InvalidRecord | None,
        _: Fate,
    ) -> None:
        if report is None:
            self._reporter.null_read(kind, record.key, record.headers, record.offset, self._clocks.mono_s())
        elif not isinstance(report, InvalidRecord):
            self._reporter.read_back(kind, report.header, record.offset)

    def status(self) -> dict[str, Any]:
        """Counts of what was read, written and dropped. JSON-able."""
        writer = self._writer
        return {
            "leading": self.leading,
            "views": {
                str(kind): {
                    "brokers": len(self.view(kind)),
                    "strangers": len(self.view(kind).strangers),
                    "held_bytes": self.view(kind).held_bytes,
                    "caught_up": followed.caught_up,
                    "failures": followed.failures,
                    "last_error": followed.last_error,
                    "records": {str(fate): count for fate, count in sorted(self.view(kind).fates.items())},
                    "dropped": {str(why): count for why, count in sorted(self.view(kind).dropped.items())},
                    "last_dropped": self.view(kind).last_dropped,
                }
                for kind, followed in ((ReportKind.BROKER_LOAD, self._loads), (ReportKind.TOP_BUNDLES, self._tops))
            },
            "writer": {"tombstones": self._tombstones_written, **({} if writer is None else writer.counts.to_json())},
        }
