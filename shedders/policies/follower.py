"""Follows `NAME-policies` in a broker: Kafka's reader in a thread of its own, the fold on the loop, and the reader's revival.

What was known once is not given up for a topic that may have forgotten it: one of another id, one that ends before what was
read, one with settings that will not do, one with more policies than are taken in. Then what was known stands, and `doubt`
says why nobody should move anything (`TopicDoubt`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from loaddata.live.follower import MakeReader, TopicReader
from shedders.policies.book import BookBounds, FoldResult, PolicyBook, ReadPolicy, read
from shedders.policies.effective import EffectivePolicies
from shedders.policies.kinds import CLUSTER, PolicyKind
from shedders.policies.record import PolicyKey
from statechannel.broker.supervision import RestartPolicy, Restarts
from statechannel.kafka.light_topic import LightBatch, LightReader

if TYPE_CHECKING:
    from shedders.policies.topic import PolicyTopics, TopicSeen
    from statechannel.kafka.client_settings import ClientSettings

_log = logging.getLogger(__name__)

_WAITING_BATCHES = 4
_LOOK_S = 0.2
_TIMER_MAX_S = 60.0
_LOOK_AGAIN_S = 1.0


_CONFIRMATION: Final = PolicyKey(PolicyKind.SHEDDING, CLUSTER)
_SETTLE: Final = (
    "what was known before stands, and nothing is moved; lay down again what should hold, then say "
    "`statechannel policy set shedding on` (or off)"
)


class TopicDoubt:
    """Whether the topic of policies is still the one that was read, and what settles it where it is not. Pure.

    A topic that was deleted and created again has forgotten what was forbidden; so has one whose end was cut off. Its records
    cannot show that they are complete. An operator can: after the policies were set again, the policy `shedding` (on or off)
    confirms the topic. Until that record comes, the policies known before stay in effect, and nothing is moved.

    Args:
        topic_id: Of the topic that is read from the start on.

    Attributes:
        why: For people; empty: there is none.
        other_topic: Another topic is there, or the rest of the one that was read: it is to be read from its beginning.
    """

    def __init__(self, topic_id: str) -> None:
        self._topic_id = topic_id
        self._other = ""
        self._unfit = ""
        self._may_lack = False
        self._known = -1
        self._after = -1
        self._seen_in = -1

    @property
    def why(self) -> str:
        """See the class."""
        return self._other or self._unfit

    @property
    def other_topic(self) -> bool:
        """See the class."""
        return bool(self._other)

    def seen(self, topic: TopicSeen, opening: int, known: int) -> None:
        """The topic was looked at.

        Args:
            opening: Which reading from the beginning this is: what it brings is of the topic as it was seen.
            known: Largest offset of what stands, before the look.
        """
        self._unfit = topic.unfit
        self._may_lack = self._may_lack or bool(topic.unfit)
        self._known = max(self._known, known)
        if not topic.topic_id:
            return
        self._seen_in = opening
        if topic.topic_id != self._topic_id:
            self._topic_id = topic.topic_id
            self._doubted("was deleted and made anew", after=-1)
        elif not self._other and topic.end <= known:
            self._doubted(f"ends at offset {topic.end}, and had been read to {known}", after=topic.end - 1)

    def settled(self, opening: int, reading: PolicyBook) -> bool:
        """Whether what is read since that opening may be gone by; asked when it was read to its end, until it may."""
        if self._seen_in != opening:
            return False
        if self._may_lack and not self._other:
            self._doubted("had settings by which it may have forgotten some", after=self._known)
        if self._other and reading.newest(_CONFIRMATION) > self._after:
            self._other, self._may_lack, self._known = "", bool(self._unfit), -1
        return not self.why

    def _doubted(self, what: str, *, after: int) -> None:
        self._other, self._after = f"the topic of policies {what}: {_SETTLE}", after


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class FollowerClocks:
    """Monotonic seconds for waits, and an estimate of the log's time by which policies lapse."""

    mono_s: Callable[[], float] = time.monotonic
    now_ms: Callable[[], int] = _wall_ms


@dataclass(frozen=True, slots=True)
class TopicWatchSettings:
    """How it is found out that the topic is no longer the one that was read.

    Attributes:
        topic_id: Of the topic that is read from the start on.
        look: What it is like now; blocks, and may raise.
        every_s: Time between two looks.
    """

    topic_id: str
    look: Callable[[], TopicSeen]
    every_s: Callable[[], float]


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
        watched: None: the topic is believed to be the same for ever.
        bounds: How much is taken in.
    """

    def __init__(
        self,
        make_reader: MakeReader,
        *,
        on_change: Callable[[EffectivePolicies], None] = lambda _: None,
        clocks: FollowerClocks | None = None,
        policy: RestartPolicy | None = None,
        watched: TopicWatchSettings | None = None,
        bounds: BookBounds | None = None,
    ) -> None:
        self._make_reader = make_reader
        self._watched = watched
        self._bounds = bounds
        self._doubt = TopicDoubt("" if watched is None else watched.topic_id)
        self._looking: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[bool]] = set()
        self._on_change = on_change
        self._clocks = clocks or FollowerClocks()
        self._policy = policy or RestartPolicy(longest_wait_s=30.0)
        self._restarts = Restarts(self._policy)
        self._room = threading.Semaphore(_WAITING_BATCHES)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reader: TopicReader | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._session = 0
        self._reading = PolicyBook(bounds)
        self._book: PolicyBook | None = None
        self._known = asyncio.Event()
        self._told: EffectivePolicies | None = None
        self._closed = False
        self._caught_up = False
        self._opening = 0
        self._look = asyncio.Event()

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
        if self._watched is not None:
            self._looking = self._loop.create_task(self._look_for_ever(self._watched), name="policies-look")

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
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        for timer in self._timers.values():
            timer.cancel()
        reader, self._reader = self._reader, None
        if reader is not None and not await asyncio.to_thread(reader.close, timeout_s):
            _log.warning("the reader of the policies did not end within %g s", timeout_s)

    # --- asking -----------------------------------------------------------------------------------------------------

    @property
    def standing(self) -> EffectivePolicies | None:
        """What stands now; None before the topic was read to its end for the first time."""
        return None if self._book is None else self._book.at(self._clocks.now_ms())

    @property
    def doubt(self) -> str:
        """Why nothing should be moved by what stands, although it stands; empty: it may."""
        return self._doubt.why or self._reading.overfull

    def status(self) -> dict[str, Any]:
        """How the reading goes. JSON-able."""
        standing = self.standing
        last_error = "" if self._reader is None else self._reader.last_error
        found: dict[str, Any] = {
            "known": standing is not None,
            "doubt": self.doubt,
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
        # Patterns of a whole topic take long to compile: not in the loop.
        found = [read(record.offset, record.timestamp_ms, record.key, record.value) for record in batch.records]
        while not self._room.acquire(timeout=_LOOK_S):
            if session != self._session:
                return
        try:
            self._call(self._take, session, batch, found)
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

    def _take(self, session: int, batch: LightBatch, found: Sequence[ReadPolicy]) -> None:
        self._room.release()
        if session != self._session:
            return
        if batch.opened:
            # What was known stands until the topic has been read to its end again.
            self._reading = PolicyBook(self._bounds)
            self._caught_up = False
            self._opening += 1
        junk = sum(self._reading.take_read(one) is FoldResult.JUNK for one in found)
        if junk:
            _log.warning("%d records of the policies cannot be read, the last: %s", junk, self._reading.last_junk)
        self._caught_up = batch.caught_up
        self._adopt()
        if self._reading.overfull and self._reading.has_room and "again" not in self._timers and self._loop is not None:
            # Some were deleted: perhaps there is room now for what was dropped.
            self._timers["again"] = self._loop.call_later(self._policy.longest_wait_s, self._read_again)
        self._tell()

    def _adopt(self) -> None:
        """Go by what is being read, once it was read to the end and nothing speaks against it."""
        if self._book is self._reading or not self._caught_up or self._reading.overfull:
            return
        if (
            self._book is not None
            and self._watched is not None
            and not self._doubt.settled(self._opening, self._reading)
        ):
            self._look.set()
            return
        self._book = self._reading
        self._known.set()

    async def _look_for_ever(self, watched: TopicWatchSettings) -> None:
        """Look at the topic again and again, and at once when it was opened again."""
        wait_s = watched.every_s()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._look.wait()
            self._look.clear()
            wait_s = watched.every_s()
            opening, book = self._opening, self._book
            before = -1 if book is None else book.position
            try:
                seen = await asyncio.to_thread(watched.look)
            except Exception as error:
                _log.info("the topic of policies cannot be looked at (%r); what was known stands", error)
                wait_s = min(wait_s, _LOOK_AGAIN_S)
                continue
            if opening != self._opening or book is not self._book:
                self._look.set()
                continue
            was = self.doubt
            self._doubt.seen(seen, opening, before)
            if self.doubt != was:
                _log.log(
                    logging.ERROR if self.doubt else logging.INFO, "the policies: %s", self.doubt or "no doubt any more"
                )
                self._told = None
            if self._doubt.why and self._book is self._reading and self._doubt.other_topic:
                self._read_again()  # what comes from now on must not be mixed with what was known
            self._adopt()
            self._tell()

    def _read_again(self) -> None:
        self._timers.pop("again", None)
        if self._closed or self._loop is None:
            return
        reader, self._reader = self._reader, None
        if reader is not None:
            task = self._loop.create_task(asyncio.to_thread(reader.close))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        self._reading, self._caught_up = PolicyBook(self._bounds), False
        self._open()

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
