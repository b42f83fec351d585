"""Follower of a side topic: Kafka's reader in a thread of its own, its records on the event loop, restarts with back-off."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from statechannel.broker.supervision import Restarts
from statechannel.kafka.light_topic import LightBatch, LightReader, LightReaderTuning
from statechannel.logger import SafeLogger
from statechannel.protocol.side_record import SideRecord
from statechannel.settings.groups_engine import RuntimeSettings

if TYPE_CHECKING:
    from statechannel.kafka.client_settings import ClientSettings

_log = SafeLogger(__name__)

WAITING_BATCHES_MAX = 4
"""Decoded batches that wait for the loop; the reader's thread blocks beyond it."""
PIECE_MAX_BYTES = 2**20
_LOOK_S = 0.2

Decoded = TypeVar("Decoded")


MakeReader = Callable[[Callable[[LightBatch], None], Callable[[BaseException], None]], LightReader]
"""Makes a reader of the topic from its sink and its call-back for a thread that ended by an exception."""


def reader_of(
    settings: ClientSettings, topic: str, group_id: str, tuning: LightReaderTuning | None = None
) -> MakeReader:
    def make(sink: Callable[[LightBatch], None], failed: Callable[[BaseException], None]) -> LightReader:
        return LightReader(settings, topic, sink, group_id=group_id, tuning=tuning, on_failure=failed)

    return make


class TopicFollower(Generic[Decoded]):
    """One topic, from `start` to `close`; may be started again. All methods belong to the loop's thread.

    Records are decoded in the reader's thread, so that the loop is held for the fold only.

    Args:
        take: Called on the loop with each batch and its decoded records.
        on_failure: Called on the loop when a reader has failed; it is restarted as `runtime` says.
    """

    def __init__(
        self,
        name: str,
        *,
        make_reader: MakeReader,
        decode: Callable[[SideRecord], Decoded],
        take: Callable[[LightBatch, Sequence[Decoded]], None],
        on_failure: Callable[[], None] = lambda: None,
        mono_s: Callable[[], float] = time.monotonic,
        runtime: RuntimeSettings | None = None,
    ) -> None:
        self._name = name
        self._make_reader = make_reader
        self._decode = decode
        self._deliver = take
        self._on_failure = on_failure
        self._mono_s = mono_s
        self._runtime = runtime or RuntimeSettings(restart_longest_wait_s=30.0)
        self._restarts = Restarts(self._runtime)
        self._room = threading.Semaphore(WAITING_BATCHES_MAX)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reader: LightReader | None = None
        self._restart: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[bool]] = set()
        self._session = 0

    @property
    def running(self) -> bool:
        """Whether the topic is followed, or waits for a restart of its reader."""
        return self._reader is not None or self._restart is not None

    @property
    def failures(self) -> int:
        return self._restarts.total

    @property
    def longest_wait_s(self) -> float:
        """Longest back-off between two restarts."""
        return self._runtime.restart_longest_wait_s

    @property
    def last_error(self) -> str:
        """Newest error that Kafka reported; empty while reading works."""
        return "" if self._reader is None else self._reader.last_error

    def start(self) -> None:
        if not self.running:
            self._loop = asyncio.get_running_loop()
            self._open()

    def reopen(self) -> None:
        if self._loop is None:
            return
        reader, self._reader = self._reader, None
        if reader is not None:
            task = self._loop.create_task(asyncio.to_thread(reader.close))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        self._cancel_restart()
        self._open()

    async def close(self, timeout_s: float = 5.0) -> None:
        self._session += 1
        reader, self._reader = self._reader, None
        self._cancel_restart()
        if reader is not None and not await asyncio.to_thread(reader.close, timeout_s):
            _log.warning("topic-reader-late", topic=self._name, seconds=timeout_s)

    def _open(self) -> None:
        self._restart = None
        self._session += 1
        session = self._session
        try:
            reader = self._make_reader(
                lambda batch: self._sink(session, batch), lambda error: self._ended(session, error)
            )
            self._reader = reader
            reader.start()
        except Exception as error:
            self._restart_later(session, error)

    def _cancel_restart(self) -> None:
        if self._restart is not None:
            self._restart.cancel()
            self._restart = None

    # --- in the reader's thread -------------------------------------------------------------------------------------

    def _sink(self, session: int, batch: LightBatch) -> None:
        for piece in pieces_of(batch):
            decoded = [self._decode(record) for record in piece.records]
            while not self._room.acquire(timeout=_LOOK_S):
                if session != self._session:
                    return
            try:
                self._call(self._take, session, piece, decoded)
            except RuntimeError:  # the loop has ended
                self._room.release()

    def _ended(self, session: int, error: BaseException) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._call(self._restart_later, session, error)

    def _call(self, act: Callable[..., None], *args: object) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(act, *args)

    # --- in the loop's thread ---------------------------------------------------------------------------------------

    def _take(self, session: int, batch: LightBatch, decoded: Sequence[Decoded]) -> None:
        self._room.release()
        if session == self._session:
            self._deliver(batch, decoded)

    def _restart_later(self, session: int, error: BaseException) -> None:
        if session != self._session or self._loop is None or self._restart is not None:
            return
        wait_s = self._restarts.failed(self._mono_s()) or self._runtime.restart_longest_wait_s
        _log.error("topic-reader-failed", topic=self._name, error=repr(error), restart_in_s=wait_s)
        self._reader = None
        self._restart = self._loop.call_later(wait_s, self._open)
        self._on_failure()


def pieces_of(batch: LightBatch) -> Iterator[LightBatch]:
    """A batch in pieces of at most PIECE_MAX_BYTES, at least one record each: decoded records wait for the loop in memory."""
    start = 0
    while True:
        end, size_bytes = start, 0
        while end < len(batch.records) and (end == start or size_bytes < PIECE_MAX_BYTES):
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
