"""Follower of one load topic: Kafka's reader in its own thread, the view in the event loop, and restarts."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, Protocol

from loaddata.report.record import UndecodableReport
from loaddata.view.table_view import Arrival, Fate, LoadTopicRecord, Report, TableView
from statechannel.broker.supervision import RestartPolicy, Restarts
from statechannel.kafka.light_topic import LightBatch

_log = logging.getLogger(__name__)

_WAITING_BATCHES = 4
_PIECE_BYTES = 2**20
_LOOK_S = 0.2


class TopicReader(Protocol):
    """A reader with a thread of its own; `statechannel.kafka.light_topic.LightReader` is one."""

    @property
    def last_error(self) -> str:
        """Kafka's last error; empty if there is none."""
        ...

    def start(self) -> None:
        """Start to read."""
        ...

    def close(self, timeout_s: float = 5.0) -> bool:
        """Stop; blocks."""
        ...


MakeReader = Callable[[Callable[[LightBatch], None], Callable[[BaseException], None]], TopicReader]


class Clocks(NamedTuple):
    """The two clocks; others are for tests. `mono_s` for decisions, `wall_ms` for people and for the age of older records."""

    mono_s: Callable[[], float] = time.monotonic
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000


class Following(Generic[Report]):
    """One topic, from `start` to `close`; may be started again. All methods belong to the loop's thread.

    Records are decoded in the reader's thread, so that the loop is held for the fold only.

    Args:
        name: Of the topic, for the log.
        make_reader: Gets the sink, and the callback for a thread that ended by an exception.
        decode: See `table_view.decoder`.
        on_record: Called with each record after the view has read it, and with its decoded value.
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
        self._name = name
        self.view = view
        self._make_reader = make_reader
        self._decode = decode
        self._on_record = on_record
        self._on_opened = on_opened
        self._clocks = clocks or Clocks()
        self._policy = policy or RestartPolicy(longest_wait_s=30.0)
        self._restarts = Restarts(self._policy)
        self._room = threading.Semaphore(_WAITING_BATCHES)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reader: TopicReader | None = None
        self._revival: asyncio.TimerHandle | None = None
        self._session = 0
        self.caught_up = False

    @property
    def running(self) -> bool:
        """Whether the topic is followed, or is about to be again."""
        return self._reader is not None or self._revival is not None

    @property
    def failures(self) -> int:
        """How often a reader has ended by an exception."""
        return self._restarts.total

    @property
    def last_error(self) -> str:
        """Kafka's last error; empty if there is none."""
        return "" if self._reader is None else self._reader.last_error

    def start(self) -> None:
        """Start to follow; a no-op if it is followed already."""
        if self.running:
            return
        self._loop = asyncio.get_running_loop()
        self._session += 1
        self._open(self._session)

    def _open(self, session: int) -> None:
        if session != self._session:
            return
        self._revival = None
        try:
            self._reader = self._make_reader(
                lambda batch: self._sink(session, batch), lambda error: self._ended(session, error)
            )
            self._reader.start()
        except Exception as error:
            self._revive_later(session, error)

    async def close(self, timeout_s: float = 5.0) -> None:
        """Stop following and forget what was read."""
        self._session += 1
        reader, self._reader = self._reader, None
        if self._revival is not None:
            self._revival.cancel()
            self._revival = None
        if reader is not None and not await asyncio.to_thread(reader.close, timeout_s):
            _log.warning("the reader of %s did not end within %g s", self._name, timeout_s)
        self.view.reopened()
        self.caught_up = False

    # --- in the reader's thread -------------------------------------------------------------------------------------

    def _sink(self, session: int, batch: LightBatch) -> None:
        for piece in _pieces(batch):
            decoded = [
                (record, self._decode(record)) for record in (LoadTopicRecord(*fields) for fields in piece.records)
            ]
            while not self._room.acquire(timeout=_LOOK_S):
                if session != self._session:
                    return
            try:
                self._call(self._take, session, piece, decoded)
            except RuntimeError:  # the loop has ended
                self._room.release()

    def _ended(self, session: int, error: BaseException) -> None:
        try:
            self._call(self._revive_later, session, error)
        except RuntimeError:
            _log.debug("the reader of %s ended after its loop", self._name)

    def _call(self, act: Callable[..., None], *args: object) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(act, *args)

    # --- in the loop's thread ---------------------------------------------------------------------------------------

    def _take(
        self, session: int, batch: LightBatch, decoded: list[tuple[LoadTopicRecord, Report | UndecodableReport | None]]
    ) -> None:
        self._room.release()
        if session != self._session:
            return
        if batch.opened:
            self.view.reopened()
            self._on_opened()
        now_s, wall_ms = self._clocks.mono_s(), self._clocks.wall_ms()
        later_ms = max((record.timestamp_ms for record, _ in decoded), default=0)
        for number, (record, report) in enumerate(decoded):
            was_there = number < batch.backlog
            fate = self.view.read(record, report, Arrival(now_s, later_ms, wall_ms if was_there else None))
            self._on_record(record, report, fate)
        self.caught_up = batch.caught_up

    def _revive_later(self, session: int, error: BaseException) -> None:
        if session != self._session or self._loop is None or self._revival is not None:
            return
        wait_s = self._restarts.failed(self._clocks.mono_s()) or self._policy.longest_wait_s
        _log.error("following %s failed (%r); retry in %g s", self._name, error, wait_s)
        self.caught_up = False
        self._reader = None
        self._revival = self._loop.call_later(wait_s, self._open, session)


def _pieces(batch: LightBatch) -> Iterator[LightBatch]:
    """A batch in small pieces: decoded records wait for the loop, and a hundred large reports would fill the memory."""
    start = 0
    while True:
        end, size_bytes = start, 0
        while end < len(batch.records) and (end == start or size_bytes < _PIECE_BYTES):
            size_bytes += len(batch.records[end].value or b"")
            end += 1
        last = end == len(batch.records)
        yield LightBatch(
            batch.records[start:end],
            opened=batch.opened and start == 0,
            backlog=min(end - start, max(0, batch.backlog - start)),
            caught_up=batch.caught_up and end >= batch.backlog,
        )
        if last:
            return
        start = end
