"""What a member of the channel answers and does while it runs, and the tickets of operations.

`StateChannel` opens and closes one; extensions get what is here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

from ulid import ULID

from statechannel.api.guard import Admission, AdmittedCounts, Guard, Redirect
from statechannel.broker.hooks import refuse_inside_hook
from statechannel.broker.opening_process import OfOneProcess
from statechannel.engine import commands
from statechannel.engine.cluster_view import BrokerSeen, ClusterView, ClusterViews, owners_of, seen_brokers
from statechannel.engine.commands import AwaitOperation, NotFound, Started, Unknown
from statechannel.errors import StateChannelError
from statechannel.operations import checks
from statechannel.operations.table import OPERATIONS, RequestCommand, check
from statechannel.protocol.bundle import MAX_CHILDREN, namespace_bounds
from statechannel.protocol.digest import digest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence

    from prometheus_client import CollectorRegistry

    from statechannel.broker.assembly import Access, Opened
    from statechannel.broker.changes import Change, Watcher
    from statechannel.broker.exits import Stopped
    from statechannel.broker.handlers import Handler, RequestCheck
    from statechannel.engine.commands import Command, Outcome
    from statechannel.engine.config import Identity
    from statechannel.kafka.topic_policy import TopicPolicy
    from statechannel.settings import Settings


_Given = ParamSpec("_Given")
CACHED_IN_A_ROW = 64
"""Lookups that are answered from the cache before the loop has its turn: a caller may ask for many without a pause."""


class WrongLoopError(StateChannelError):
    """A method of a channel was called outside its event loop, from another loop or thread: nothing would answer."""

    def __init__(self, method: str, *, awaited: bool = True) -> None:
        name = method.rpartition(".")[2]
        call = (
            f"`asyncio.run_coroutine_threadsafe(channel.{name}(...), loop).result()`"
            if awaited
            else f"`loop.call_soon_threadsafe(...)` with a function that calls `{name}` and hands its result on"
        )
        super().__init__(
            f"{method}() was called from another event loop or thread than the channel's.",
            hint=f"From other threads: {call}; or BlockingStateChannel, which any thread may call.",
        )


class NoKafkaError(StateChannelError):
    """A member of a test kit was asked for its Kafka."""

    def __init__(self) -> None:
        super().__init__(
            "This member runs on a test kit, which has no Kafka.",
            hint="Test extensions that have topics of their own on a real Kafka: `statechannel kafka up`.",
        )


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Ticket:
    """A requested operation. Keep `str(ticket)`: `StateChannel.ticket` finds it again after a restart.

    `ticket = await channel.transfer(...)` begins it; `await channel.transfer(...).outcome()` also waits for its end.

    Attributes:
        operation: Id that every record of the operation carries.
    """

    def __init__(self, channel: ChannelMember, operation: str, begun: asyncio.Future[Outcome] | None = None) -> None:
        self._channel = channel
        self._begun = begun
        self.operation = operation

    def __str__(self) -> str:
        return self.operation

    def __repr__(self) -> str:
        return f"Ticket({self.operation!r})"

    async def started(self, timeout_s: float = 60.0) -> Outcome:
        """Wait until the first record of the operation was judged.

        Returns:
            `Started`, or the final outcome if it is known; `Rejected` or `NotFound` with the reason; `Unknown`.
        """
        self._channel._enter("Ticket.started")  # noqa: SLF001 - the two are one
        checks.seconds("timeout_s", timeout_s)
        if self._begun is None:
            return await self.outcome(timeout_s)
        try:
            # Not `wait_for`: before Python 3.12 it swallows a cancellation that comes together with the answer.
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(self._begun)
        except TimeoutError:
            return Unknown(self.operation, f"no verdict on the first record within {timeout_s:g} s")

    async def outcome(self, timeout_s: float = 60.0) -> Outcome:
        """Wait until the operation has ended, on all brokers involved.

        Returns:
            `Done`, `Rejected` or `NotFound` with the reason, `Undetermined` while it still runs, or `Unknown`; that of its
            first record, where no record of it was read.
        """
        self._channel._enter("Ticket.outcome")  # noqa: SLF001 - the two are one
        checks.seconds("timeout_s", timeout_s)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        first: Outcome | None = None
        if self._begun is not None:
            first = await self.started(timeout_s)
            if not isinstance(first, Started | Unknown):
                return first
        left_s = max(0.05, until_s - loop.time())
        end = await self._channel.ask(AwaitOperation(self.operation, left_s))
        # Its first record may still come; and the first answer has the reason, such as that Kafka refuses records.
        return first if isinstance(end, NotFound) and isinstance(first, Unknown) else end


class PendingTicket(Coroutine[Any, Any, Ticket]):
    """A request that begins once it is awaited: `await` gives its `Ticket`, `await ....outcome()` also waits for the end.

    A coroutine, so that `asyncio.create_task` and `gather` take it; awaited once.
    """

    __slots__ = ("_beginning",)

    def __init__(self, beginning: Coroutine[Any, Any, Ticket]) -> None:
        self._beginning = beginning

    def __await__(self) -> Generator[Any, Any, Ticket]:
        return self._beginning.__await__()

    def send(self, value: Any) -> Any:
        """A step of a task; see `collections.abc.Coroutine`."""
        return self._beginning.send(value)

    def throw(self, error: Any, _value: Any = None, _trace: Any = None, /) -> Any:
        """A step of a cancelled task; see `collections.abc.Coroutine`."""
        return self._beginning.throw(error)

    def close(self) -> None:
        """Begin nothing; see `collections.abc.Coroutine`."""
        self._beginning.close()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"a request that was not awaited has no `{name}`; `ticket = await channel.transfer(...)` gives its ticket"
        )

    async def started(self, timeout_s: float = 60.0) -> Outcome:
        """Begin it, and see `Ticket.started`."""
        return await (await self._beginning).started(timeout_s)

    async def outcome(self, timeout_s: float = 60.0) -> Outcome:
        """Begin it, and see `Ticket.outcome`."""
        return await (await self._beginning).outcome(timeout_s)


def _ticketed(begin: Callable[_Given, Coroutine[Any, Any, Ticket]]) -> Callable[_Given, PendingTicket]:
    """A method that begins an operation; its answer may be awaited in the same expression."""

    @wraps(begin)
    def pending(*args: _Given.args, **kwargs: _Given.kwargs) -> PendingTicket:
        return PendingTicket(begin(*args, **kwargs))

    return pending


class ChannelMember(OfOneProcess):
    """A member of the channel, without its opening and closing. For one loop, whichever thread runs it."""

    def __init__(self, opened: Opened, settings: Settings) -> None:
        self._opened = opened
        self._host = opened.host
        self._guard = Guard(opened.host)
        self._pictures = ClusterViews()
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._cached_in_a_row = 0

    def _enter(self, method: str) -> None:
        """Begin a call that waits for the channel.

        Raises:
            ChannelStoppedError: The caller is the child of a fork.
            HookReentryError: The caller is a hook, for which the channel waits.
            WrongLoopError: The caller runs in another event loop.
        """
        self._check_loop(method)
        refuse_inside_hook(method)

    def _check_loop(self, method: str) -> None:
        self._host.process.require()
        if asyncio.get_running_loop() is not self._loop:
            raise WrongLoopError(method)

    def _look(self, method: str) -> None:
        """Begin a call that reads the state of this member.

        Raises:
            ChannelStoppedError: The caller is the child of a fork.
            WrongLoopError: The caller runs beside the loop of this member, and what it reads may change meanwhile.
        """
        self._host.process.require()
        # Not the thread that opened it: a loop may go on in another thread.
        if self._loop.is_running() and _running_loop() is not self._loop:
            raise WrongLoopError(f"StateChannel.{method}", awaited=False)

    # --- asking -----------------------------------------------------------------------------------------------------

    async def ask(self, command: Command) -> Outcome:
        """Give any command of `statechannel.engine.commands` to this member and wait for its answer."""
        self._enter("StateChannel.ask")
        return await self._host.submit(command)

    async def lookup(self, name: str, timeout_s: float | None = None, *, read_only: bool = False) -> Outcome:
        """Look up the broker that serves a topic (`tenant/namespace/topic`, or its full name) or a bundle.

        Starts an assignment if no broker does, unless `read_only`. Never names an owner that this member knows to be replaced or
        lost. A lookup that waits while this member stops ends as `Undetermined`, `stopped`. Where memory has the answer, as
        mostly, it is given at once, without a step of the engine or a turn of the event loop: median 5 us for a topic that was
        asked for before, 29 us for a new one (`make bench ARGS=lookups`, performance.md). So keeping answers, or asking
        `lookup_cached` first, gains nothing: that is for threads, hooks and plain functions.

        Returns:
            `Owned`, `BoundTo`, `Unowned` (read-only), `NotFound`, or `Undetermined` after `timeout_s`.

        Raises:
            ArgumentTypeError, ArgumentValueError: An argument is invalid.
            ChannelStoppedError: This member has stopped, or is closing; also if too many calls wait (`stopped.reason` is `busy`).
            HookReentryError, WrongLoopError: A hook, or another event loop, called it.
        """
        self._enter("StateChannel.lookup")
        command = commands.Lookup(name, self._settings.lookups.timeout_s if timeout_s is None else timeout_s, read_only)
        check(command)
        owner = self._host.cached_owner(name)
        if owner is None:
            return await self._host.submit(command)
        self._cached_in_a_row = (self._cached_in_a_row + 1) % CACHED_IN_A_ROW
        if not self._cached_in_a_row:
            await asyncio.sleep(0)
        return owner

    def lookup_cached(self, name: str) -> commands.Owned | None:
        """The broker that serves a topic or bundle, if memory has the answer that `lookup` would give now; else None.

        It never waits, and starts no assignment. None says nothing about the bundle: call `lookup`. None once this member has
        stopped. May be called from any thread, and inside hooks.
        """
        checks.text("name", name)
        return self._host.cached_owner(name)

    @_ticketed
    async def transfer(self, name: str, to: str, *, reason: str | None = None) -> Ticket:
        """Hand a bundle, or a topic's bundle, over to the named broker."""
        checks.text("to", to)
        return self._begin(commands.Transfer(name, to, _new_operation(), self._command_timeout_s, reason))

    @_ticketed
    async def unload(self, name: str, *, reason: str | None = None) -> Ticket:
        """Release a bundle; the next lookup assigns it again."""
        return self._begin(commands.Unload(name, _new_operation(), self._command_timeout_s, reason))

    @_ticketed
    async def split(self, name: str, *, at: Sequence[int] = (), parts: int = 2, reason: str | None = None) -> Ticket:
        """Split a bundle at the given hashes, or evenly into `parts`."""
        positions = checks.hashes("at", at)
        return self._begin(commands.Split(name, _new_operation(), self._command_timeout_s, positions, parts, reason))

    @_ticketed
    async def create_namespace(self, name: str, bundles: int = 4, *, reason: str | None = None) -> Ticket:
        """Create a namespace with bundles of equal size, with the same boundaries as Pulsar.

        Raises:
            ArgumentValueError: Not 1 to 32,768 bundles.
        """
        checks.text("name", name)
        checks.whole("bundles", bundles, 1, MAX_CHILDREN)
        bounds = tuple(namespace_bounds(bundles))
        return self._begin(commands.CreateNamespace(name, bounds, _new_operation(), self._command_timeout_s, reason))

    @_ticketed
    async def delete_namespace(self, name: str, *, reason: str | None = None) -> Ticket:
        """Close a namespace to lookups, unload its bundles, and delete it."""
        checks.text("name", name)
        return self._begin(commands.DeleteNamespace(name, _new_operation(), self._command_timeout_s, reason))

    async def resume_repair(self) -> Outcome:
        """End a repair pause on this member early."""
        self._enter("StateChannel.resume_repair")
        return await self._host.submit(commands.ResumeRepair())

    def ticket(self, operation: str) -> Ticket:
        """The ticket of an operation, started by any broker, also before a restart."""
        checks.text("operation", operation)
        self._host.process.require()
        return Ticket(self, operation)

    def _begin(self, command: Begun) -> Ticket:
        self._check_loop(f"StateChannel.{_METHODS[type(command)]}")
        return Ticket(self, command.operation, self._host.submit(command))

    @property
    def _command_timeout_s(self) -> float:
        return self._settings.limits.command_timeout_s

    # --- watching ---------------------------------------------------------------------------------------------------

    async def changes(self, since: Mapping[int, int] | None = None, *, limit: int = 10_000) -> AsyncIterator[Change]:
        """Stream every accepted record, in log order within a partition.

        Args:
            since: First offset wanted, by partition; a partition that is not named is read from its beginning. None
                starts now. After a change pass `{change.partition: change.offset + 1}` to resume later.
            limit: Changes that may be queued before the stream ends with an error: consume faster, or subscribe again.

        Raises:
            ChangesError: The past was cleaned away, the consumer is too slow, or a partition is read again or is not caught up
                now. No change is skipped without this error.
            ChannelStoppedError: This member has stopped.
        """
        self._enter("StateChannel.changes")
        checks.offsets("since", since)
        checks.whole("limit", limit, 1)
        watcher = self._host.live.watch(limit)
        ends = [replica.position for replica in self._host.engine.replicas]
        try:
            for partition, end in enumerate(ends if since is not None else []):
                first = (since or {}).get(partition, 0)
                if first >= end:
                    continue  # nothing of the past is wanted, nor asked whether it is still there
                async for change in self._opened.log.past(partition).read(first, end):
                    yield change
            # Who has followed a member that was ahead of this one wants nothing again.
            firsts = [max(end, (since or {}).get(partition, 0)) for partition, end in enumerate(ends)]
            while True:
                change = await watcher.next()
                if change.offset >= firsts[change.partition]:
                    yield change
        finally:
            watcher.close()

    def picture(self) -> ClusterView:
        """Brokers and bundles as this member knows them now. A copy: it does not change, and must not be changed.

        With 65,000 bundles the first takes a few hundred milliseconds, a later one some tens if there are new records.
        """
        self._look("picture")
        return self._pictures.of(self._host.engine.context)

    def brokers(self) -> list[BrokerSeen]:
        """The live brokers, including this one, sorted by id."""
        self._look("brokers")
        context = self._host.engine.context
        return seen_brokers(context.members, context.now.mono_s)

    def broker_ids(self) -> list[str]:
        """The ids of the live brokers, sorted; where no more than those is wanted, much cheaper than `brokers`."""
        self._look("broker_ids")
        return sorted(self._host.engine.context.members.alive)

    def positions(self) -> dict[int, int]:
        """Offset through which each partition is applied; -1 before the first record."""
        self._look("positions")
        return {replica.partition: replica.applied for replica in self._host.engine.replicas}

    @property
    def log_time_ms(self) -> int:
        """Log time of the last registry record that was read: all brokers write one every few seconds; 0 before the first."""
        self._host.process.require()
        return self._host.engine.presence.last_ms

    def locate(self, name: str) -> str | NotFound:
        """The live bundle that a bundle's or topic's name means."""
        self._look("locate")
        checks.text("name", name)
        bundle = self._host.engine.locate(name)
        return bundle if isinstance(bundle, NotFound) else bundle.name

    def owners(self, namespace: str) -> dict[str, str]:
        """Broker by bundle, for the bundles of a namespace that are assigned or being assigned to it."""
        self._look("owners")
        checks.text("namespace", namespace)
        return owners_of(self._host.engine.context, namespace)

    def holder(self, bundle: str) -> str | None:
        """Broker that serves a bundle, or to which it is being assigned; None if there is neither."""
        self._look("holder")
        checks.text("bundle", bundle)
        located = self._host.engine.locate(bundle)
        return None if isinstance(located, NotFound) else located.to or located.owner

    @property
    def leading(self) -> bool:
        """Whether this member leads, has caught up, and may act on it."""
        return self._host.stopped is None and self._host.engine.leading

    @property
    def term(self) -> int:
        """Offset of this member's leadership claim; -1 if it does not lead, or may not act as leader."""
        return self._host.engine.context.term if self.leading else -1

    @property
    def identity(self) -> Identity:
        """Identity of this member in the registry."""
        return self._host.engine.identity

    @property
    def settings(self) -> Settings:
        """Settings of this member."""
        return self._settings

    @property
    def access(self) -> Access:
        """Client settings and topic names of the channel: for extensions with their own topics.

        Raises:
            NoKafkaError: This member runs on a test kit.
        """
        if self._opened.access is None:
            raise NoKafkaError
        return self._opened.access

    @property
    def watched_topics(self) -> dict[str, TopicPolicy]:
        """Topics that are compared with their policies while this member runs; extensions add their own."""
        return self._host.topics.policies

    @property
    def metrics_registry(self) -> CollectorRegistry:
        """Prometheus registry of this member; extensions add their metrics."""
        self._host.process.require()
        return self._host.metrics.registry

    def request(
        self,
        asked: RequestCommand,
        args: Mapping[str, Any],
        timeout_s: float,
        on_reply: Callable[[Outcome], None] | None = None,
    ) -> str:
        """Write a request to the requests topic, for the broker that it concerns, without waiting; returns its id.

        Args:
            timeout_s: Answers are useless after this time, by the log's clock.
            on_reply: Called once in the loop with the reply, if one is read in time.
        """
        self._look("request")
        checks.one_of("asked", asked, RequestCommand)
        checks.one_of("args", args, dict)
        checks.seconds("timeout_s", timeout_s)
        if on_reply is not None:
            checks.function("on_reply", on_reply)
        return self._host.request(asked, args, timeout_s, on_reply)

    def answer_for(self, extension: str, handler: Handler) -> None:
        """Register a handler for requests to an extension from the requests topic."""
        self._look("answer_for")
        checks.text("extension", extension)
        checks.function("handler", handler)
        self._host.handlers.register(extension, handler)

    def check_before(self, check: str, refusal: RequestCheck) -> None:
        """Register a check that this broker makes before it executes a request, such as `may-take`."""
        self._look("check_before")
        checks.text("check", check)
        checks.function("refusal", refusal)
        self._host.handlers.check_before(check, refusal)

    def watch(self, limit: int) -> Watcher:
        """Subscribe to the records accepted from now on, at most `limit` behind; `changes` also returns the past.

        Raises:
            ChangesError: A partition is not caught up now, so changes would be missed: try again soon.
        """
        self._look("watch")
        checks.whole("limit", limit, 1)
        return self._host.live.watch(limit)

    def serving(self) -> dict[str, int]:
        """Bundles that this broker serves right now, with their generations; none once this member has stopped."""
        if self._host.stopped is not None:
            return {}
        self._look("serving")
        return self._host.serving()

    def serves(self, bundle: str) -> int | None:
        """Generation by which this broker may serve reads of a bundle right now; None if it may not.

        It stays while the bundle is being released or split, when its data may be copied already: for writes call
        `accepts_writes`. With the lease option, call one of them before each use: a paused process has its hooks called only
        after it wakes, and its successor may have served for long. The clock runs on while the process is paused, and on Linux
        (CLOCK_BOOTTIME) also while the machine is suspended. It misses pauses that the machine itself does not see (a
        virtual machine stopped by its host, or restored from a snapshot), and a pause between this call and the use: fence
        storage with the generation if that matters. None once this member has stopped, or its event loop was closed. Costs a
        dictionary lookup. May be called from any thread.

        Raises:
            ArgumentTypeError, ArgumentValueError: `bundle` is not the key of a bundle, but a topic, for example.
        """
        checks.text("bundle", bundle)
        generation = self._host.serves(bundle)
        if generation is None:
            checks.bundle_key("bundle", bundle)
        return generation

    def accepts_writes(self, bundle: str) -> int | None:
        """Generation by which this broker may take writes to a bundle right now; None if it may not.

        As `serves`, but None from the moment that the bundle's release or split was read from the channel, which is before
        `on_release` or `on_split` is called, until it is served by a new generation. A write that began before goes on: let
        those hooks wait for it. Costs a dictionary lookup. May be called from any thread.

        Raises:
            ArgumentTypeError, ArgumentValueError: `bundle` is not the key of a bundle, but a topic, for example.
        """
        checks.text("bundle", bundle)
        generation = self._host.accepts_writes(bundle)
        if generation is None:
            checks.bundle_key("bundle", bundle)
        return generation

    def guard(self, name: str, *, write: bool = True, size_bytes: int = 0) -> Admission | Redirect:
        """Whether this broker may serve a request of a client now: the check right before each use, in one call.

        It never waits, and starts no assignment. May be called from any thread, and inside hooks.

        Args:
            name: Topic, or bundle, of the request.
            write: By the rules of `accepts_writes`; else by those of `serves`.
            size_bytes: Of the request, or of what it reads: `admitted` adds it up.

        Returns:
            `Admission` with the generation that storage has to be given; or `Redirect`, for the client: `Router.follow` takes it.

        Raises:
            ArgumentTypeError, ArgumentValueError: An argument is invalid.
        """
        checks.text("name", name)
        checks.flag("write", write)
        checks.whole("size_bytes", size_bytes, 0)
        return self._guard.admit(name, write=write, size_bytes=size_bytes)

    def admitted(self) -> dict[str, AdmittedCounts]:
        """What `guard` has admitted since the start, by bundle; of the last 100,000 bundles. From any thread."""
        self._host.process.require()
        return self._guard.counts()

    def digest(self) -> tuple[str, dict[int, int]]:
        """Digest of the accepted states (records.md), with the applied offset by partition.

        Equal digests mean equal views; the audit prints the same. It walks every bundle: a tenth of a second for 65,000.
        """
        self._look("digest")
        replicas = self._host.engine.replicas
        return digest(replica.view for replica in replicas), {
            replica.partition: replica.applied for replica in replicas
        }

    @property
    def stopped(self) -> Stopped | None:
        """How this member has stopped, or is stopping; None while it runs. May be read from any thread."""
        return self._host.stopped


Begun = commands.Transfer | commands.Unload | commands.Split | commands.CreateNamespace | commands.DeleteNamespace
_METHODS = {spec.kind: spec.command.replace("-", "_") for spec in OPERATIONS.values()}


def _new_operation() -> str:
    return str(ULID())
