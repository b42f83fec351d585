"""Follower of one load topic: it decodes reports and folds them into a view."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple

from loaddata.report.record import UndecodableReport
from loaddata.view.table_view import Arrival, Fate, LoadTopicRecord, Report, TableView
from statechannel.broker.supervision import RestartPolicy
from statechannel.broker.topic_follower import MakeReader, TopicFollower
from statechannel.kafka.light_topic import LightBatch, LightRecord


class Clocks(NamedTuple):
    """The two clocks; others are for tests. `mono_s` for all that is decided, `wall_ms` for people and for the backlog."""

    mono_s: Callable[[], float] = time.monotonic
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000


class LoadFollower(Generic[Report]):
    """One load topic, from `start` to `close`; may be started again. All methods belong to the loop's thread.

    Args:
        name: Of the topic, for the log.
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
        decode: Callable[[LoadTopicRecord], Report | UndecodableReport | None],
        on_record: Callable[[LoadTopicRecord, Report | UndecodableReport | None, Fate], None] = lambda *_: None,
        on_opened: Callable[[], None] = lambda: None,
        clocks: Clocks | None = None,
        policy: RestartPolicy | None = None,
    ) -> None:
        self.view = view
        self._decode = decode
        self._on_record = on_record
        self._on_opened = on_opened
        self._clocks = clocks or Clocks()
        self._topic: TopicFollower[tuple[LoadTopicRecord, Report | UndecodableReport | None]] = TopicFollower(
            name,
            make_reader=make_reader,
            decode=self._decoded,
            take=self._take,
            on_failure=self._failed,
            mono_s=self._clocks.mono_s,
            policy=policy,
        )
        self.caught_up = False

    @property
    def running(self) -> bool:
        """Whether the topic is followed, or waits for a restart of its reader."""
        return self._topic.running

    @property
    def failures(self) -> int:
        """Readers that ended by an exception."""
        return self._topic.failures

    @property
    def last_error(self) -> str:
        """Newest error that Kafka reported; empty while reading works."""
        return self._topic.last_error

    def start(self) -> None:
        """Begin to follow; no effect while the topic is followed."""
        self._topic.start()

    async def close(self, timeout_s: float = 5.0) -> None:
        """Stop following and empty the view."""
        await self._topic.close(timeout_s)
        self.view.reopened()
        self.caught_up = False

    def _decoded(self, record: LightRecord) -> tuple[LoadTopicRecord, Report | UndecodableReport | None]:
        load_record = LoadTopicRecord(*record)
        return load_record, self._decode(load_record)

    def _take(
        self, batch: LightBatch, decoded: Sequence[tuple[LoadTopicRecord, Report | UndecodableReport | None]]
    ) -> None:
        if batch.opened:
            self.view.reopened()
            self._on_opened()
        now_s, wall_ms = self._clocks.mono_s(), self._clocks.wall_ms()
        later_ms = max((record.timestamp_ms for record, _ in decoded), default=0)
        for number, (record, report) in enumerate(decoded):
            in_backlog = number < batch.backlog
            fate = self.view.read(record, report, Arrival(now_s, later_ms, wall_ms if in_backlog else None))
            self._on_record(record, report, fate)
        self.caught_up = batch.caught_up

    def _failed(self) -> None:
        self.caught_up = False
