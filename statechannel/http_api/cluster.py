"""What the admin API knows of the cluster: the view of a router, read in the thread of its loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from statechannel.conditions.facts import BrokerRow, broker_rows, leader_api_of, leader_of
from statechannel.engine.inputs import ApiServed
from statechannel.engine.membership import LostMember, Member
from statechannel.http_api.problems import ProblemError
from statechannel.protocol.bundle import partition_of
from statechannel.protocol.states import State
from statechannel.queries.channel_view import (
    BundleRow,
    NamespaceDetails,
    NamespaceRow,
    bundle_row,
    namespace_details,
    namespace_row,
    was_asked_for,
)
from statechannel.router import Router
from statechannel.stories.registry import still_lost

if TYPE_CHECKING:
    from statechannel.api.member import ChannelMember
    from statechannel.broker.changes import Change
    from statechannel.engine.commands import Outcome
    from statechannel.engine.engine import Engine
    from statechannel.protocol.keys import KeyState
    from statechannel.router import ChangesGap
    from statechannel.settings import Settings
    from statechannel.stories.requests import Dismissals

Seen = TypeVar("Seen")
_COUNTED_EACH_S: Final = 1.0
"""Bundles are counted by owner no more often: it walks them all."""
SCANNED_MAX: Final = 10_000
"""Bundles that one page looks at: a filter that few match would hold up the loop."""


def silence_by(engine: Engine, now_s: float) -> Callable[[Member | LostMember], int]:
    """For how long a member has not been heard, in milliseconds.

    The time for which this process has not heard itself either is Kafka's silence, and not that of the member.
    """
    newest_ms = engine.presence.last_ms
    until_s = now_s - max(0.0, engine.presence.silence_s - engine.context.config.member_interval_s)

    def silent_ms(member: Member | LostMember) -> int:
        if isinstance(member, Member):
            return max(0, round(1_000 * (until_s - member.heard_at_s)))
        return newest_ms - member.last_heard_ms

    return silent_ms


class BundleFilter(NamedTuple):
    """Which bundles are wanted; None: all."""

    namespace: str | None = None
    broker: str | None = None
    state: str | None = None
    unowned: bool = False

    def has(self, key: KeyState) -> bool:
        state = "" if key.state is None else key.state.value.lower()
        return (
            (self.broker is None or key.owner == self.broker)
            and (self.state is None or state == self.state.lower())
            and not (self.unowned and (key.owner is not None or not was_asked_for(key)))
        )


class RowPage(NamedTuple):
    """Some rows, and where the next page begins; None after the last."""

    rows: Sequence[Mapping[str, Any]]
    after: str | None


class ApiCluster:
    """The view of a router in this process. Its own loop may be another one than that of the HTTP server.

    Args:
        loop: Of the router.
        broker: Id of the broker that answers; empty for a console.
        timeout_s: Longest wait for a turn of that loop.
    """

    def __init__(
        self, router: Router, settings: Settings, loop: asyncio.AbstractEventLoop, *, broker: str, timeout_s: float
    ) -> None:
        self.settings = settings
        self.broker = broker
        self._router = router
        self._host = router._host  # noqa: SLF001 - a view of the router's own view
        self.topics = self._host.topics
        self._peeks = router._peeks  # noqa: SLF001 - the same
        self._loop = loop
        self._timeout_s = timeout_s
        self._counted: tuple[float, tuple[int, ...], Mapping[str, int]] | None = None
        self.dismissals: Dismissals = {}
        self.observe: Callable[[Sequence[Change | ChangesGap]], None] | None = None
        """Also given what `changes` yields: the page has no follower of its own."""

    async def _look(self, read: Callable[[Engine], Seen]) -> Seen:
        """The result of `read`, called in the router's loop.

        Raises:
            ProblemError: `not-current`, `answer-late`.
        """
        if self._router.stopped is not None or self._loop.is_closed():
            raise ProblemError("not-current", "this process has stopped following the channel")

        async def call() -> Seen:
            return read(self._host.engine)

        asked = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(), self._loop))
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asked
        except TimeoutError:
            raise ProblemError("answer-late", f"the loop had no turn for {self._timeout_s:g} s") from None

    async def look(self, read: Callable[[Engine, float], Seen]) -> Seen:
        """The result of `read`, called in the router's loop with its engine and monotonic clock (seconds).

        Raises:
            ProblemError: `not-current`, `answer-late`.
        """
        return await self._look(lambda engine: read(engine, self._host.now_s()))

    async def position(self) -> Mapping[int, int]:
        """Offset through which each partition was read."""
        return await self._look(lambda engine: {part.partition: part.applied for part in engine.replicas})

    async def brokers(self) -> tuple[list[BrokerRow], str | None]:
        """The members, and the leader."""
        return await self._look(self._brokers)

    def _brokers(self, engine: Engine) -> tuple[list[BrokerRow], str | None]:
        members, now_s = still_lost(engine.context.members, self.dismissals), self._host.now_s()
        applied = {part.partition: part.view.applied for part in engine.replicas}
        owned, silent_ms = self._owned(engine, now_s), silence_by(engine, now_s)
        return broker_rows(members, owned, applied, silent_ms), leader_of(members)

    async def leader(self) -> tuple[str | None, str | None]:
        """The leader, and the URL of its admin API; None: not known."""
        return await self._look(
            lambda engine: (leader_of(engine.context.members), leader_api_of(engine.context.members))
        )

    async def common_checks(self) -> frozenset[str]:
        """Checks that every live broker makes before it executes a request."""
        return await self._look(lambda engine: engine.context.members.common_checks())

    def _owned(self, engine: Engine, now_s: float) -> Mapping[str, int]:
        applied = tuple(part.view.applied for part in engine.replicas)
        counted = self._counted
        if counted is not None and (counted[1] == applied or now_s - counted[0] < _COUNTED_EACH_S):
            return counted[2]
        owners = Counter(
            key.owner
            for part in engine.replicas
            for key in part.view.keys.values()
            if key.lower >= 0 and key.owner is not None
        )
        # A small cluster is counted each time, so that what was done just now is there.
        self._counted = (now_s if owners.total() > SCANNED_MAX else -_COUNTED_EACH_S, applied, owners)
        return owners

    async def namespaces(self, after: str, limit: int) -> RowPage:
        def read(engine: Engine) -> RowPage:
            names = [name for name in _namespaces(engine) if name > after]
            roots = [_root(engine, name) for name in names[:limit]]
            rows = [namespace_row(root) for root in roots if root is not None]
            return RowPage(rows, names[limit - 1] if len(names) > limit else None)

        return await self._look(read)

    async def namespace(self, name: str) -> tuple[NamespaceRow, NamespaceDetails] | None:
        def read(engine: Engine) -> tuple[NamespaceRow, NamespaceDetails] | None:
            root = _root(engine, name)
            return None if root is None else (namespace_row(root), namespace_details(root))

        return await self._look(read)

    async def bundles(self, wanted: BundleFilter, after: str, limit: int) -> RowPage | None:
        """None: the namespace does not exist."""
        return await self._look(lambda engine: _bundles(engine, wanted, after, limit))

    async def bundle(self, name: str) -> BundleRow | None:
        """A live bundle."""

        def read(engine: Engine) -> BundleRow | None:
            key = engine.replicas[partition_of(name.rpartition("/")[0], len(engine.replicas))].view.get(name)
            gone = key is None or key.is_namespace or key.state is State.DELETED
            return None if key is None or gone else bundle_row(key)

        return await self._look(read)

    async def lookup(self, name: str) -> Outcome:
        """Who serves a topic or bundle, without assigning it."""
        return await self._look(lambda _: self._peeks.answer(name))

    def changes(self, since: Mapping[int, int] | None) -> AsyncGenerator[Sequence[Change | ChangesGap], None]:
        """Accepted changes from these offsets on, in batches, without end."""
        return self._observed(self._handed_over(self._router.changes(since)))

    async def _observed(
        self, batches: AsyncGenerator[Sequence[Change | ChangesGap], None]
    ) -> AsyncGenerator[Sequence[Change | ChangesGap], None]:
        async with contextlib.aclosing(batches):
            async for batch in batches:
                if self.observe is not None:
                    self.observe(batch)
                yield batch

    def past(
        self, since: Mapping[int, int], ends: Mapping[int, int]
    ) -> AsyncGenerator[Sequence[Change | ChangesGap], None]:
        """Those between two positions, read from Kafka."""
        return self._handed_over(self._router.past(since, ends))

    async def _handed_over(
        self, items: AsyncIterator[Change | ChangesGap]
    ) -> AsyncGenerator[Sequence[Change | ChangesGap], None]:
        """Items of the router's loop for this one, in batches: a thread costs more than a change."""
        queue: asyncio.Queue[Sequence[Change | ChangesGap] | BaseException | None] = asyncio.Queue(_BATCHES_MAX)
        here = asyncio.get_running_loop()

        async def hand_over(batch: Sequence[Change | ChangesGap] | BaseException | None) -> None:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(queue.put(batch), here))

        async def pump() -> None:
            try:
                async for batch in _batched(items):
                    await hand_over(batch)
            except Exception as error:
                await hand_over(error)
            else:
                await hand_over(None)

        pumping = asyncio.run_coroutine_threadsafe(pump(), self._loop)
        try:
            while (batch := await queue.get()) is not None:
                if isinstance(batch, BaseException):
                    raise batch
                yield batch
        finally:
            pumping.cancel()


def router_of(channel: ChannelMember) -> Router:
    """A router over the view of a member in this process: it reads nothing itself, and is not to be closed."""
    return Router(channel._opened, channel._settings)  # noqa: SLF001 - the same view


def announce(channel: ChannelMember, url: str) -> None:
    """Have the heartbeats of a member name the URL of its admin API."""
    channel._opened.host.feed(ApiServed(url))  # noqa: SLF001 - as `router_of`


_BATCHES_MAX: Final = 8
_BATCH_MAX: Final = 500
_BATCH_WAIT_S: Final = 0.05


async def _batched(items: AsyncIterator[Seen]) -> AsyncIterator[list[Seen]]:
    """Items in lists: what comes within a moment belongs together."""
    waiting: asyncio.Future[Seen] | None = None
    try:
        while True:
            waiting = waiting or asyncio.ensure_future(anext(items))
            batch, until_s = [await waiting], time.monotonic() + _BATCH_WAIT_S
            while len(batch) < _BATCH_MAX and (left_s := until_s - time.monotonic()) > 0:
                waiting = asyncio.ensure_future(anext(items))
                await asyncio.wait({waiting}, timeout=left_s)
                if not waiting.done():
                    break
                if waiting.exception() is not None:
                    break  # after what came before it
                batch.append(waiting.result())
            else:
                waiting = None
            yield batch  # one that comes while this batch is taken begins the next batch
    except StopAsyncIteration:
        return
    finally:
        if waiting is not None and not waiting.cancel() and not waiting.cancelled():
            waiting.exception()  # asked for, or asyncio reports it as never retrieved


def _namespaces(engine: Engine) -> list[str]:
    """Names of the namespaces that exist, sorted."""
    return sorted(
        key.namespace
        for part in engine.replicas
        for key in part.view.keys.values()
        if key.lower < 0 and key.state is State.ACTIVE
    )


def _root(engine: Engine, name: str) -> KeyState | None:
    key = engine.replicas[partition_of(name, len(engine.replicas))].view.get(name)
    return key if key is not None and key.is_namespace and key.state is State.ACTIVE else None


def _bundles(engine: Engine, wanted: BundleFilter, after: str, limit: int) -> RowPage | None:
    if wanted.namespace is not None and _root(engine, wanted.namespace) is None:
        return None
    names = [wanted.namespace] if wanted.namespace is not None else _namespaces(engine)
    first, _, last_range = after.rpartition("/")
    rows: list[BundleRow] = []
    scanned = 0
    for name in names:
        if name < first:
            continue
        root = _root(engine, name)
        live = {} if root is None or root.ring is None else root.ring.live
        # Ranges are hexadecimal numbers of equal length: the order of names is that of bounds.
        for key in live.values():
            if name == first and key.name.rpartition("/")[2] <= last_range:
                continue
            scanned += 1
            if wanted.has(key):
                rows.append(bundle_row(key))
            if len(rows) == limit or scanned == SCANNED_MAX:
                return RowPage(rows, key.name)
    return RowPage(rows, None)
