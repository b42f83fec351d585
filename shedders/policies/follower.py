"""Follower of `NAME-policies` in a broker: Kafka's reader in its own thread, the fold in the event loop, and restarts.

Policies are kept if the topic may have lost them: if it has another id, ends before the position that was read, begins at a
later offset than before, has unsuitable settings, or more policies than fit. Then the known policies stay in effect, and
`doubt` has the reason why no bundle should be moved (`TopicDoubt`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from shedders.policies.book import BookBounds, FoldResult, PolicyBook, ReadPolicy, read
from shedders.policies.effective import EffectivePolicies
from shedders.policies.kinds import CLUSTER, PolicyKind
from shedders.policies.record import PolicyKey
from statechannel import clocks
from statechannel.broker.topic_follower import MakeReader, TopicFollower, reader_of
from statechannel.kafka.light_topic import LightBatch
from statechannel.protocol.side_record import SideRecord
from statechannel.settings.groups_engine import RuntimeSettings

if TYPE_CHECKING:
    from shedders.policies.topic import TopicSeen
    from statechannel.kafka.client_settings import ClientSettings
    from statechannel.kafka.topic_policy import SideTopic

_log = logging.getLogger(__name__)

_TIMER_MAX_S = 60.0
_LOOK_AGAIN_S = 1.0


_CONFIRMATION: Final = PolicyKey(PolicyKind.SHEDDING, CLUSTER)
_SETTLE: Final = (
    "the policies known before stay in effect, and no bundle is moved; set the policies again, then confirm with "
    "`statechannel policy set shedding on` (or off)"
)


class TopicDoubt:
    """Doubt whether the topic of policies is still the one that was read, and its confirmation. Pure.

    A topic that was deleted and created again has lost its policies; so has one that was truncated, or whose first records were
    deleted. Its records cannot show that they are complete. An operator can: after the policies were set again, the policy
    `shedding` (on or off) confirms the topic. Until that record comes, the policies known before stay in effect, and no
    bundle is moved.

    Attributes:
        other_topic: The topic was replaced or lost records: it has to be read from its beginning.
    """

    def __init__(self, topic_id: str) -> None:
        self._topic_id = topic_id
        self._other = ""
        self._unfit = ""
        self._may_lack = False
        self._known = -1
        self._after = -1
        self._seen_in = -1
        self._first: int | None = None

    @property
    def why(self) -> str:
        return self._other or self._unfit

    @property
    def other_topic(self) -> bool:
        return bool(self._other)

    def seen(self, topic: TopicSeen, opening: int, known: int) -> None:
        """Record an inspection of the topic.

        Args:
            opening: Number of the reading from the beginning to which the inspection belongs.
            known: Largest offset of the policies in effect, before the inspection.
        """
        self._unfit = topic.unfit
        self._may_lack = self._may_lack or bool(topic.unfit)
        self._known = max(self._known, known)
        if not topic.topic_id:
            return
        self._seen_in = opening
        before, self._first = self._first, topic.first
        if topic.topic_id != self._topic_id:
            self._topic_id = topic.topic_id
            self._doubted("was deleted and created again", after=-1)
        elif not self._other and topic.end <= known:
            self._doubted(f"ends at offset {topic.end}, and had been read to {known}", after=topic.end - 1)
        elif before is not None and topic.first > before:
            self._doubted(f"begins at offset {topic.first}: its first records were deleted", after=topic.end - 1)

    def settled(self, opening: int, reading: PolicyBook) -> bool:
        """Whether the policies read since that opening may be used; called when the topic was read to its end."""
        if self._seen_in != opening:
            return False
        if self._may_lack and not self._other:
            self._doubted("had settings by which it may have lost records", after=self._known)
        if self._other and reading.newest(_CONFIRMATION) > self._after:
            self._other, self._may_lack, self._known = "", bool(self._unfit), -1
        return not self.why

    def _doubted(self, what: str, *, after: int) -> None:
        self._other, self._after = f"the topic of policies {what}: {_SETTLE}", after


def _decoded(record: SideRecord) -> ReadPolicy:
    """Done in the reader's thread: the patterns of a whole topic take long to compile."""
    return read(record.offset, record.timestamp_ms, record.key, record.value)


@dataclass(frozen=True, slots=True)
class FollowerClocks:
    """Monotonic seconds for waits, and an estimate of the log's time by which policies expire."""

    mono_s: Callable[[], float] = time.monotonic
    now_ms: Callable[[], int] = clocks.now_ms


@dataclass(frozen=True, slots=True)
class TopicWatchSettings:
    """Periodic inspection of the topic, to detect that it was replaced.

    Attributes:
        look: Inspects the topic; blocks, and may raise.
    """

    topic_id: str
    look: Callable[[], TopicSeen]
    every_s: Callable[[], float]


def policy_reader(settings: ClientSettings, topic: SideTopic) -> MakeReader:
    return reader_of(settings, topic.name, topic.reader_group)


class PolicyFollower:
    """The policies as a broker knows them, moments after they were written. Started once, closed once.

    All methods belong to the loop's thread. While Kafka is unavailable, and while the topic is read again, the known policies
    stay in effect. Before the topic was read to its end for the first time they are unknown: `effective` is None, and no bundle
    should be moved.

    Args:
        on_change: Called in the loop's thread whenever the policies in effect change, also when one expires.
        watched: None: the topic is assumed to stay the same.
    """

    def __init__(
        self,
        make_reader: MakeReader,
        *,
        on_change: Callable[[EffectivePolicies], None] = lambda _: None,
        clocks: FollowerClocks | None = None,
        runtime: RuntimeSettings | None = None,
        watched: TopicWatchSettings | None = None,
        bounds: BookBounds | None = None,
    ) -> None:
        self._watched = watched
        self._bounds = bounds
        self._doubt = TopicDoubt("" if watched is None else watched.topic_id)
        self._looking: asyncio.Task[None] | None = None
        self._on_change = on_change
        self._clocks = clocks or FollowerClocks()
        self._topic: TopicFollower[ReadPolicy] = TopicFollower(
            "the policies",
            make_reader=make_reader,
            decode=_decoded,
            take=self._take,
            mono_s=self._clocks.mono_s,
            runtime=runtime,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._reading = PolicyBook(bounds)
        self._book: PolicyBook | None = None
        self._known = asyncio.Event()
        self._notified: EffectivePolicies | None = None
        self._closed = False
        self._caught_up = False
        self._opening = 0
        self._look = asyncio.Event()

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start to follow.

        Raises:
            RuntimeError: It was started before.
        """
        if self._loop is not None:
            raise RuntimeError("policies are followed once")
        self._loop = asyncio.get_running_loop()
        self._topic.start()
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
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        for timer in self._timers.values():
            timer.cancel()
        await self._topic.close(timeout_s)

    # --- queries ----------------------------------------------------------------------------------------------------

    @property
    def effective(self) -> EffectivePolicies | None:
        """The policies in effect; None before the topic was read to its end for the first time."""
        return None if self._book is None else self._book.at(self._clocks.now_ms())

    @property
    def doubt(self) -> str:
        """Why no bundle should be moved by the policies in effect; empty if bundles may be moved."""
        return self._doubt.why or self._reading.overfull

    def status(self) -> dict[str, Any]:
        effective = self.effective
        status: dict[str, Any] = {
            "known": effective is not None,
            "doubt": self.doubt,
            "failures": self._topic.failures,
            "last_error": self._topic.last_error,
            "last_junk": self._reading.last_junk,
        }
        if effective is not None:
            status |= {
                "position": effective.position,
                "entries": len(effective.entries),
                "lapsed": len(effective.lapsed),
                "junk": dict(effective.junk),
                "closed": list(effective.closed),
            }
        return status

    # --- in the loop's thread ---------------------------------------------------------------------------------------

    def _take(self, batch: LightBatch, policies: Sequence[ReadPolicy]) -> None:
        if batch.opened:
            # The known policies stay in effect until the topic has been read to its end again.
            self._reading = PolicyBook(self._bounds)
            self._caught_up = False
            self._opening += 1
        junk = sum(self._reading.take_read(policy) is FoldResult.JUNK for policy in policies)
        if junk:
            _log.warning("%d records of the policies cannot be read, the last: %s", junk, self._reading.last_junk)
        self._caught_up = batch.caught_up
        self._adopt()
        if self._reading.overfull and self._reading.has_room and "again" not in self._timers and self._loop is not None:
            # Some were deleted: there may be room now for the dropped ones.
            self._timers["again"] = self._loop.call_later(self._topic.longest_wait_s, self._read_again)
        self._notify()

    def _adopt(self) -> None:
        """Put the policies of the present reading into effect, once it is complete and not in doubt."""
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
        """Inspect the topic periodically, and at once when it was opened again."""
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
                _log.info("the topic of policies cannot be inspected (%r); the known policies stay in effect", error)
                wait_s = min(wait_s, _LOOK_AGAIN_S)
                continue
            if opening != self._opening or book is not self._book:
                self._look.set()
                continue
            was = self.doubt
            self._doubt.seen(seen, opening, before)
            if self.doubt != was:
                _log.log(
                    logging.ERROR if self.doubt else logging.INFO,
                    "the policies: %s",
                    self.doubt or "no longer in doubt",
                )
                self._notified = None
            if self._doubt.why and self._book is self._reading and self._doubt.other_topic:
                self._read_again()  # new records must not be mixed with the known ones
            self._adopt()
            self._notify()

    def _read_again(self) -> None:
        self._timers.pop("again", None)
        if self._closed:
            return
        self._reading, self._caught_up = PolicyBook(self._bounds), False
        self._topic.reopen()

    def _notify(self) -> None:
        """Report the policies in effect if they changed, and schedule the next call for when an entry expires."""
        if self._book is None or self._loop is None or self._closed:
            return
        now_ms = self._clocks.now_ms()
        effective = self._book.at(now_ms)
        before = self._timers.pop("lapse", None)
        if before is not None:
            before.cancel()
        if effective.next_change_ms is not None:
            wait_s = min(_TIMER_MAX_S, max(0.01, (effective.next_change_ms - now_ms) / 1_000))
            self._timers["lapse"] = self._loop.call_later(wait_s, self._notify)
        if effective is self._notified:
            return
        self._notified = effective
        try:
            self._on_change(effective)
        except Exception:
            _log.exception("a listener to the policies failed")
