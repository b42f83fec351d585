"""A reader of the channel beside its brokers: who owns what, from memory, for clients, gateways and proxies."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Self, Unpack

from ulid import ULID

from statechannel.api.channel import Unopened
from statechannel.api.member import ChannelMember
from statechannel.broker import arguments
from statechannel.broker.assembly import open_observer
from statechannel.broker.changes import ChangesError, StreamEnd
from statechannel.broker.exits import HINTS, ChannelStoppedError, Stopped
from statechannel.broker.loop_thread import BlockingTwin, LoopThread, in_loop, waiting
from statechannel.broker.opening_process import OfOneLoop
from statechannel.broker.peeks import Peeks
from statechannel.engine.commands import BoundTo, Lookup, NotFound, Owned, Undetermined, Unowned, listener_url
from statechannel.engine.freshness import patience_s
from statechannel.operations import checks
from statechannel.operations.request_record import Request
from statechannel.operations.table import RequestCommand
from statechannel.settings import SettingGroups, Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from prometheus_client import CollectorRegistry

    from statechannel.api.guard import Redirect
    from statechannel.broker.assembly import Opened
    from statechannel.broker.changes import Change
    from statechannel.broker.host import Host
    from statechannel.engine.cluster_view import BrokerSeen, BundleSeen
    from statechannel.engine.commands import Outcome
    from statechannel.protocol.replica import Replica

RESUME_FIRST_S = 0.1
RESUME_LONGEST_S = 5.0
_CLOSED = Stopped("closed", "the router was closed on request")


class Route(NamedTuple):
    """Who serves a bundle.

    Attributes:
        urls: Listeners of the broker as it registered them, by protocol name.
        generation: Of the owner: storage that saw a higher one refuses this.
        partition: Of the channel; -1 for a bundle that belongs to a broker by rule.
        as_of: Offset through which the partition was read for this answer.
        age_s: Since the newest moment for which it is known that everything had been read. What changed since then is not in it.
        stale: Whether that is so long ago that brokers would not trust it either: Kafka is away, or reading falls behind.
    """

    bundle: str
    broker: str
    urls: Mapping[str, str]
    generation: int
    partition: int
    as_of: int
    age_s: float
    stale: bool

    def url(self, protocol: str) -> str:
        """See `Owned.url`."""
        return listener_url(self.broker, self.urls, protocol)


class ChangesGap(NamedTuple):
    """Changes of a partition that the stream cannot give: compaction or retention has removed their records.

    What they led to is in `Router.bundles`.

    Attributes:
        first_offset: Where the gap begins, as far as the stream knows.
        next_offset: Where the stream goes on.
        message: Why, as a sentence.
    """

    partition: int
    first_offset: int
    next_offset: int
    message: str


RouteAnswer = Route | Unowned | BoundTo | NotFound | Undetermined


class Router(OfOneLoop):
    """Follows a channel without being one of its brokers, from `open` to `close`.

    It writes nothing, takes no part in the election, and asks no broker: any number of them costs brokers nothing. It needs the
    rights of the role `router` (`statechannel acl show --role router`).

    Example:
        ```
        async with Router.open(kafka={"bootstrap_servers": "127.0.0.1:9092"}) as router:
            answer = router.lookup("tenant/namespace/topic")
            if isinstance(answer, Route) and not answer.stale:
                print(answer.url("http"), answer.generation)
        ```
    """

    def __init__(self, opened: Opened, settings: Settings) -> None:
        self._host: Host = opened.host
        self._log = opened.log
        self._settings = settings
        self._member = ChannelMember(opened, settings)
        engine = opened.host.engine
        self._entry = engine.lookups.cache.entry
        self._now_s = opened.host.now_s
        self._presence = engine.presence
        self._peeks = Peeks(engine)
        self._patience_s = patience_s(engine.context)

    @classmethod
    def open(
        cls,
        settings: Settings | None = None,
        *,
        join_timeout_s: float | None = None,
        metrics_registry: CollectorRegistry | None = None,
        **groups: Unpack[SettingGroups],
    ) -> RouterOpening:
        """Follow the channel: `async with Router.open(...) as router`, or `router = await Router.open(...)`.

        Returns once it has read the channel and the registry to their ends.

        Args:
            settings: All settings (`load_settings`, `Settings`); None reads them from the environment and `groups`.
            join_timeout_s: Longest wait for catching up; None takes `runtime.join_timeout_s` of the settings.
            metrics_registry: Prometheus registry of the embedder; None creates a new one.
            groups: Settings by group (settings.md): `kafka={"bootstrap_servers": ...}`.

        Raises:
            ArgumentTypeError, ArgumentValueError: An argument is invalid.
            SettingsError: A setting is wrong.
            KafkaAdapterError: Kafka is unavailable, a topic is missing, may not be read, or is not that of a channel.
            ChannelStoppedError: A record of a newer format, ...; `stopped.reason` says which.
            JoinTimeoutError: It took too long.
        """
        checks.instance("settings", settings, Settings)
        if join_timeout_s is not None:
            checks.seconds("join_timeout_s", join_timeout_s)
        by_group = arguments.groups_of(groups, None, cls.open, settings)
        values = arguments.settings_of(settings, by_group)
        limit_s = values.runtime.join_timeout_s if join_timeout_s is None else join_timeout_s
        return RouterOpening(cls, lambda begun: cls._make(values, limit_s, metrics_registry, begun))

    @classmethod
    async def _make(
        cls, settings: Settings, timeout_s: float, registry: CollectorRegistry | None, begun: Callable[[Router], None]
    ) -> Router:
        opened = await open_observer(settings, registry=registry)
        router = cls(opened, settings)
        begun(router)
        try:
            await opened.host.wait_caught_up(timeout_s)
        except BaseException:
            await router.close()
            raise
        return router

    # --- asking -----------------------------------------------------------------------------------------------------

    def lookup(self, name: str) -> RouteAnswer:
        """Who serves a topic (`tenant/namespace/topic`, or its full name) or a bundle: from memory, without waiting.

        May be called from any thread. It names no owner that is known to be replaced or lost; while Kafka is away it names
        the last one, `stale`, with the age of the answer.

        Returns:
            `Route`, `BoundTo`, `Unowned`, `NotFound`; or `Undetermined`, with a reason: the bundle is between two owners
            (`timed-out`; `wait` waits for the next), its owner is lost (`owner-not-heard`), or this process is the child of a
            fork (`forked`; processes.md).

        Raises:
            ArgumentTypeError, ArgumentValueError: `name` is invalid.
            ChannelStoppedError: The router has stopped, or was closed.
        """
        now_s = self._now_s()
        cached = self._entry(now_s, name) if name.__class__ is str else None
        if cached is not None and self._host.stopped is None:
            return self._route(cached.outcome, cached.basis.replica, now_s, stale=False)
        checks.text("name", name)
        if (forked := self._host.process.forked) is not None:
            return Undetermined("forked", forked.detail, HINTS["forked"])
        self._require_open()
        return self._answer(self._peeks.answer(name), now_s)

    def follow(self, name: str, redirect: Redirect) -> RouteAnswer:
        """Where to go after a redirect of a server (`StateChannel.guard`): its owner, or the one known here, whichever is newer.

        Args:
            name: What the request was for.
        """
        answer = self.lookup(name)
        known, partition, as_of = -1, -1, -1
        if isinstance(answer, Route):
            known, partition, as_of = answer.generation, answer.partition, answer.as_of
        if redirect.broker is None or redirect.generation <= known:
            return answer
        return Route(
            redirect.bundle, redirect.broker, redirect.urls, redirect.generation, partition, as_of, 0.0, stale=False
        )

    async def wait(self, name: str, timeout_s: float | None = None, *, assign: bool = False) -> RouteAnswer:
        """As `lookup`, but wait until a broker serves the bundle.

        Args:
            timeout_s: Longest wait; None takes `lookups.timeout_s` of the settings.
            assign: Where no broker owns it, ask the brokers, by the requests topic, to assign it. It needs the right to write to
                that topic; without it a bundle that is not looked up at a broker stays unowned.

        Returns:
            As `lookup`; `Undetermined` when the time is up.

        Raises:
            ArgumentTypeError, ArgumentValueError: An argument is invalid.
            ChannelStoppedError: The router has stopped, or was closed; or too many calls wait.
            KafkaAdapterError: The request for an assignment could not be written.
        """
        limit_s = self._settings.lookups.timeout_s if timeout_s is None else timeout_s
        checks.seconds("timeout_s", limit_s)
        answer = self.lookup(name)
        if isinstance(answer, Route | BoundTo | NotFound):
            return answer
        if assign and isinstance(answer, Unowned):
            await self._ask_for(answer.bundle, limit_s)
        return self._answer(await self._host.submit(Lookup(name, limit_s)), self._now_s())

    async def _ask_for(self, bundle: str, timeout_s: float) -> None:
        request = Request(str(ULID()), RequestCommand.LOOKUP.value, 0, {"name": bundle}, "a router")
        await self._log.write_request(request, answer_within_s=timeout_s)

    def _answer(self, outcome: Outcome, now_s: float) -> RouteAnswer:
        if isinstance(outcome, Owned):
            context = self._host.engine.context
            replica = context.replicas[context.partition_of(outcome.bundle.rpartition("/")[0])]
            return self._route(outcome, replica, now_s, stale=outcome.stale_age_s is not None)
        if isinstance(outcome, Unowned | BoundTo | NotFound | Undetermined):
            return outcome
        raise TypeError(f"a lookup was answered with {outcome!r}")

    def _route(self, owned: Owned, replica: Replica, now_s: float, *, stale: bool) -> Route:
        registry_s, channel_s = self._presence.complete_as_of_s, replica.current_at_s
        as_of_s = min(now_s if registry_s is None else registry_s, now_s if channel_s is None else channel_s)
        age_s = now_s - as_of_s
        # A loop that was blocked, or a process that was paused, has not noticed yet how old its view is.
        stale = stale or age_s > self._patience_s
        return Route(
            owned.bundle,
            owned.broker,
            owned.urls,
            owned.generation,
            replica.partition,
            replica.applied,
            max(0.0, age_s),
            stale,
        )

    # --- the whole view ---------------------------------------------------------------------------------------------

    def bundles(self, namespace: str | None = None) -> list[BundleSeen]:
        """All bundles, or those of a namespace, as they are known now; in the loop's thread.

        A partition that could not be joined yet has none here, as where its log has lost records and no broker lives: `lookup`
        says so (`no-broker`, `joining`).
        """
        if namespace is not None:
            checks.text("namespace", namespace)
        self._require_open()
        bundles = self._member.picture().bundles
        if namespace is None:
            return list(bundles)
        prefix = f"{namespace}/"
        return [bundle for bundle in bundles if bundle.bundle.startswith(prefix)]

    def owned_by(self, broker: str) -> list[BundleSeen]:
        """The bundles that a broker serves now; in the loop's thread."""
        checks.text("broker", broker)
        self._require_open()
        return [bundle for bundle in self._member.picture().bundles if bundle.owner == broker]

    def brokers(self) -> list[BrokerSeen]:
        """The brokers that are heard, sorted by id; in the loop's thread."""
        self._require_open()
        return self._member.brokers()

    def positions(self) -> dict[int, int]:
        """Offset through which each partition was read; -1 before the first record."""
        return self._member.positions()

    def digest(self) -> tuple[str, dict[int, int]]:
        """Digest of the accepted states, and the offset by partition: equal to that of any broker at equal offsets."""
        return self._member.digest()

    async def changes(
        self, since: Mapping[int, int] | None = None, *, limit: int = 10_000
    ) -> AsyncIterator[Change | ChangesGap]:
        """Stream every accepted record, in log order within a partition; what cannot be given is a `ChangesGap` in its place.

        The stream goes on over outages, and where the consumer was too slow: it reads again what was missed.

        Args:
            since: First offset wanted, by partition; a partition that is not named is read from its beginning. None
                starts now. After a change pass `{change.partition: change.offset + 1}` to resume later, after a gap its
                `next_offset`.
            limit: Changes that may be queued in memory; what comes beyond is read again from Kafka.

        Raises:
            ArgumentTypeError, ArgumentValueError: An argument is invalid.
            ChangesError: A record of a newer format (`reason` is `newer-format`).
            ChannelStoppedError: The router has stopped.
        """
        checks.offsets("since", since)
        checks.whole("limit", limit, 1)
        replicas = self._host.engine.replicas
        wanted = {r.partition: r.position if since is None else since.get(r.partition, 0) for r in replicas}
        pause_s = RESUME_FIRST_S
        while True:
            try:
                async for change in self._member.changes(wanted, limit=limit):
                    wanted[change.partition], pause_s = change.offset + 1, RESUME_FIRST_S
                    yield change
            except ChangesError as error:
                gap = self._gap(error, wanted)
                if gap is not None:
                    wanted[gap.partition] = gap.next_offset
                    yield gap
                elif error.reason is StreamEnd.NEWER_FORMAT:
                    raise
                else:
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, RESUME_LONGEST_S)

    async def past(self, since: Mapping[int, int], until: Mapping[int, int]) -> AsyncIterator[Change | ChangesGap]:
        """Stream the accepted records of the past, one partition after the other, and end.

        Args:
            since: First offset wanted, by partition; a partition that is not named is read from its beginning.
            until: By partition, the offset before which it ends: `positions` has what this router has read.

        Raises:
            ArgumentTypeError, ArgumentValueError: An argument is invalid.
            ChangesError: The past cannot be read now; a gap is an item of the stream.
        """
        checks.offsets("since", since)
        checks.offsets("until", until)
        self._host.process.require()
        wanted = {partition: since.get(partition, 0) for partition in until}
        for partition, end in sorted(until.items()):
            while wanted[partition] < end:
                try:
                    async for change in self._log.past(partition).read(wanted[partition], end):
                        wanted[partition] = change.offset + 1
                        yield change
                    break
                except ChangesError as error:
                    gap = self._gap(error, wanted)
                    if gap is None:
                        raise
                    wanted[partition] = gap.next_offset
                    yield gap

    def _gap(self, error: ChangesError, wanted: Mapping[int, int]) -> ChangesGap | None:
        if error.reason is not StreamEnd.COMPACTED or error.partition is None:
            return None
        first = wanted[error.partition]
        # Without a place where judging could begin all that is left is the view, which is as of its position.
        position = self._host.engine.replicas[error.partition].position
        next_offset = position if error.next_offset is None else error.next_offset
        return ChangesGap(error.partition, first, next_offset, str(error)) if next_offset > first else None

    # --- its life ---------------------------------------------------------------------------------------------------

    @property
    def stopped(self) -> Stopped | None:
        """How the router has stopped; None while it runs. May be read from any thread."""
        return self._host.stopped

    @property
    def settings(self) -> Settings:
        """Settings of this router."""
        return self._settings

    @property
    def metrics_registry(self) -> CollectorRegistry:
        """Prometheus registry of this router."""
        return self._member.metrics_registry

    def _require_open(self) -> None:
        stopped = self._host.stopped
        if stopped is not None:
            raise ChannelStoppedError(stopped)

    async def wait_stopped(self) -> Stopped:
        """Wait until the router has ended for any reason."""
        return await self._host.wait_stopped()

    async def close(self) -> Stopped:
        """Stop following; lookups that wait end as `Undetermined`, `stopped`."""
        self._host.stop(_CLOSED)
        return await self._host.wait_stopped()


class RouterOpening(Unopened[Router]):
    """What `Router.open` returns: await it, or enter it."""


class BlockingRouter(BlockingTwin):
    """See `Router`. `lookup` and `follow` run in the caller's thread, all else on a private event loop."""

    _twin: Router

    def __init__(self, loop: LoopThread, router: Router) -> None:
        super().__init__(loop, router)
        self.lookup, self.follow = router.lookup, router.follow

    @classmethod
    def open(
        cls,
        settings: Settings | None = None,
        *,
        join_timeout_s: float | None = None,
        metrics_registry: CollectorRegistry | None = None,
        **groups: Unpack[SettingGroups],
    ) -> Self:
        """See `Router.open`."""
        opening = Router.open(settings, join_timeout_s=join_timeout_s, metrics_registry=metrics_registry, **groups)
        loop = LoopThread("statechannel-router")
        try:
            return cls(loop, loop.call(opening.__aenter__()))
        except BaseException:
            loop.close()
            raise

    wait = waiting(Router.wait, from_hooks=True)
    bundles = in_loop(Router.bundles)
    owned_by = in_loop(Router.owned_by)
    brokers = in_loop(Router.brokers)
    positions = in_loop(Router.positions)
    digest = in_loop(Router.digest)

    def changes(self, since: Mapping[int, int] | None = None, *, limit: int = 10_000) -> Iterator[Change | ChangesGap]:
        """See `Router.changes`. Each step of the iterator waits for the next change."""
        yield from self._loop.iterate(self._twin.changes(since, limit=limit))

    def past(self, since: Mapping[int, int], until: Mapping[int, int]) -> Iterator[Change | ChangesGap]:
        """See `Router.past`."""
        yield from self._loop.iterate(self._twin.past(since, until))
