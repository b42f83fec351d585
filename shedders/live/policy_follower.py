"""Follows `NAME-policies` in a broker: Kafka's reader in a thread of its own, the fold on the loop, and the reader's revival."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loaddata.following import MakeReader, TopicReader
from shedders.live.policy_book import PolicyBook, Taken
from shedders.live.policy_standing import Standing
from statechannel.kafka.light_topic import LightBatch, LightReader
from statechannel.runtime.supervision import RestartPolicy, Restarts

if TYPE_CHECKING:
    from shedders.live.policy_topic import PolicyTopics
    from statechannel.kafka.client_settings import ClientSettings

_log = logging.getLogger(__name__)

_WAITING_BATCHES = 4
_LOOK_S = 0.2
_TIMER_MAX_S = 60.0


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class FollowerClocks:
    """Monotonic seconds for waits, and an estimate of the log's time by which policies lapse."""

    mono_s: Callable[[], float] = time.monotonic
    now_ms: Callable[[], int] = _wall_ms


def policy_reader(settings: ClientSettings, topics: PolicyTopics) -> MakeReader:
    """Makes the reader of the topic."""

    def make(sink: Callable[[LightBatch], None], failed: Callable[[BaseException], None]) -> TopicReader:
        return LightReader(settings, topics.policy_topic, sink, group_id=topics.reader_group, on_failure=failed)

    return make


class PolicyFollower:
    """The policies, as a broker knows them: within moments of their being written. Started once, closed once.

    All methods belong to the loop's thread. While Kafka is away, and while the topic is read anew, what was known stands on.
    Before the topic was read to its end for the first time nothing is known: `standing` is None, and nobody should act.

    Args:
        make_reader: See `policy_reader`.
        on_change: Called in the loop's thread whenever something else stands, also because something lapsed.
    """

    def __init__(
        self,
        make_reader: MakeReader,
        *,
        on_change: Callable[[Standing], None] = lambda _: None,
        clocks: FollowerClocks | None = None,
        policy: RestartPolicy | None = None,
    ) -> None:
        self._make_reader = make_reader
        self._on_change = on_change
        self._clocks = clocks or FollowerClocks()
        self._policy = policy or RestartPolicy(longest_wait_s=30.0)
        self._restarts = Restarts(self._policy)
        self._room = threading.Semaphore(_WAITING_BATCHES)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reader: TopicReader | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._session = 0
        self._reading = PolicyBook()
        self._book: PolicyBook | None = None
        self._known = asyncio.Event()
        self._told: Standing | None = None
        self._closed = False

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to follow.

        Raises:
            RuntimeError: It was started before.
        """
        if self._loop is not None:
            raise RuntimeError("policies are followed once")
        self._loop = asyncio.get_running_loop()
        self._open()

    async def wait_known(self, timeout_s: float) -> bool:
        """Wait until the topic has been read to its end; False if the time ran out first."""
        try:
            await asyncio.wait_for(self._known.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def close(self, timeout_s: float = 5.0) -> None:
        """Stop following."""
        self._closed = True
        self._session += 1
        for timer in self._timers.values():
            timer.cancel()
        reader, self._reader = self._reader, None
        if reader is not None and not await asyncio.to_thread(reader.close, timeout_s):
            _log.warning("the reader of the policies did not end within %g s", timeout_s)

    # --- asking -----------------------------------------------------------------------------------------------------

    @property
    def standing(self) -> Standing | None:
        """What stands now; None before the topic was read to its end for the first time."""
        return None if self._book is None else self._book.at(self._clocks.now_ms())

    def status(self) -> dict[str, Any]:
        """How the reading goes. JSON-able."""
        standing = self.standing
        last_error = "" if self._reader is None else self._reader.last_error
        found: dict[str, Any] = {
            "known": standing is not None,
            "failures": self._restarts.total,
            "last_error": last_error,
            "last_junk": self._reading.last_junk,
        }
        if standing is not None:
            found |= {
                "position": standing.position,
                "entries": len(standing.entries),
                "lapsed": len(standing.lapsed),
                "junk": dict(standing.junk),
                "closed": list(standing.closed),
            }
        return found

    # --- in the reader's thread -------------------------------------------------------------------------------------

    def _sink(self, session: int, batch: LightBatch) -> None:
        while not self._room.acquire(timeout=_LOOK_S):
            if session != self._session:
                return
        try:
            self._call(self._take, session, batch)
        except RuntimeError:  # the loop has ended
            self._room.release()

    def _ended(self, session: int, error: BaseException) -> None:
        try:
            self._call(self._revive_later, session, error)
        except RuntimeError:
            _log.debug("nobody is left to be told that the reader of the policies ended")

    def _call(self, act: Callable[..., None], *args: object) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(act, *args)

    # --- in the loop's thread ---------------------------------------------------------------------------------------

    def _open(self) -> None:
        if self._closed:
            return
        self._session += 1
        session = self._session
        try:
            reader = self._make_reader(
                lambda batch: self._sink(session, batch), lambda error: self._ended(session, error)
            )
            reader.start()
        except Exception as error:
            self._revive_later(session, error)
        else:
            self._reader = reader

    def _revive_later(self, session: int, error: BaseException) -> None:
        if session != self._session or self._loop is None or self._closed:
            return
        wait_s = self._restarts.failed(self._clocks.mono_s()) or self._policy.longest_wait_s
        _log.error("following the policies failed (%r); it begins again in %g s", error, wait_s)
        self._reader = None
        self._timers["revival"] = self._loop.call_later(wait_s, self._open)

    def _take(self, session: int, batch: LightBatch) -> None:
        self._room.release()
        if session != self._session:
            return
        if batch.opened:
            # What was known stands until the topic has been read to its end again.
            self._reading = PolicyBook()
        junk = 0
        for record in batch.records:
            junk += self._reading.take(record.offset, record.timestamp_ms, record.key, record.value) is Taken.JUNK
        if junk:
            _log.warning("%d records of the policies cannot be read, the last: %s", junk, self._reading.last_junk)
        if batch.caught_up:
            self._book = self._reading
            self._known.set()
        self._tell()

    def _tell(self) -> None:
        """Tell what stands if it is something else, and come back when the next entry lapses."""
        if self._book is None or self._loop is None or self._closed:
            return
        now_ms = self._clocks.now_ms()
        standing = self._book.at(now_ms)
        before = self._timers.pop("lapse", None)
        if before is not None:
            before.cancel()
        if standing.next_change_ms is not None:
            wait_s = min(_TIMER_MAX_S, max(0.01, (standing.next_change_ms - now_ms) / 1_000))
            self._timers["lapse"] = self._loop.call_later(wait_s, self._tell)
        if standing is self._told:
            return
        self._told = standing
        try:
            self._on_change(standing)
        except Exception:
            _log.exception("a listener to the policies failed")
