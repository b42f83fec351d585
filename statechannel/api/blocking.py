"""Blocking API for brokers without asyncio; the same methods as `statechannel.api.channel`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from statechannel.api.channel import StateChannel
from statechannel.api.member import Ticket
from statechannel.broker import arguments
from statechannel.broker.hooks import BlockingBrokerHooks, ThreadedHooks, refuse_inside_hook
from statechannel.broker.loop_thread import LoopThread
from statechannel.broker.opening_process import OfOneProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    from prometheus_client import CollectorRegistry

    from statechannel.api.extensions import Extension
    from statechannel.api.guard import Admission, AdmittedCounts, Redirect
    from statechannel.api.status import MemberStatus
    from statechannel.broker.changes import Change
    from statechannel.broker.exits import Stopped
    from statechannel.engine.cluster_view import ClusterView
    from statechannel.engine.commands import Command, Outcome, Owned
    from statechannel.engine.placement import Placement
    from statechannel.settings import Settings


class BlockingTicket:
    """See `statechannel.api.Ticket`."""

    def __init__(self, loop: LoopThread, ticket: Ticket) -> None:
        self._loop = loop
        self._ticket = ticket
        self.operation = ticket.operation

    def __str__(self) -> str:
        return self.operation

    def __repr__(self) -> str:
        return f"BlockingTicket({self.operation!r})"

    def started(self, timeout_s: float = 60.0) -> Outcome:
        """See `Ticket.started`."""
        refuse_inside_hook("Ticket.started")
        return self._loop.call(self._ticket.started(timeout_s))

    def outcome(self, timeout_s: float = 60.0) -> Outcome:
        """See `Ticket.outcome`."""
        refuse_inside_hook("Ticket.outcome")
        return self._loop.call(self._ticket.outcome(timeout_s))


class BlockingStateChannel(OfOneProcess):
    """See `statechannel.api.StateChannel`. May be used by several threads at once."""

    def __init__(self, loop: LoopThread, channel: StateChannel, hooks: ThreadedHooks | None) -> None:
        self._loop = loop
        self._channel = channel
        self._hooks = hooks

    @classmethod
    def open(
        cls,
        settings: Settings | None = None,
        *,
        broker: str,
        hooks: BlockingBrokerHooks | None = None,
        listeners: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        persistent: bool = True,
        non_persistent: bool = True,
        create_topics: bool = False,
        join_timeout_s: float | None = None,
        placement: Placement | None = None,
        extensions: Sequence[Extension] = (),
        metrics_registry: CollectorRegistry | None = None,
        on_stuck: Callable[[], None] | None = None,
        hook_settings: Mapping[str, Any] | None = None,
        **groups: Mapping[str, Any],
    ) -> Self:
        """See `StateChannel.open`; hooks run in separate threads."""
        arguments.hooks_of(hooks, BlockingBrokerHooks)
        loop = LoopThread(f"statechannel-{broker}")
        threaded = None if hooks is None else ThreadedHooks(hooks)

        opening = StateChannel.open(
            settings,
            broker=broker,
            hooks=threaded,
            listeners=listeners,
            properties=properties,
            persistent=persistent,
            non_persistent=non_persistent,
            create_topics=create_topics,
            join_timeout_s=join_timeout_s,
            placement=placement,
            extensions=extensions,
            metrics_registry=metrics_registry,
            on_stuck=on_stuck,
            hook_settings=hook_settings,
            **groups,
        )

        async def make() -> StateChannel:
            return await opening

        try:
            return cls(loop, loop.call(make()), threaded)
        except BaseException:
            try:
                loop.finish(opening.shutdown)
            finally:
                if threaded is not None:
                    threaded.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop.process.forked is None:  # the child of a fork leaves the block, too: nothing there is its own
            self.close()

    def ask(self, command: Command) -> Outcome:
        """See `StateChannel.ask`."""
        refuse_inside_hook("StateChannel.ask")
        return self._loop.call(self._channel.ask(command))

    def lookup(self, name: str, timeout_s: float | None = None, *, read_only: bool = False) -> Outcome:
        """See `StateChannel.lookup`."""
        refuse_inside_hook("StateChannel.lookup")
        if timeout_s is None:
            owner = self._channel.lookup_cached(name)
            if owner is not None:
                return owner
        return self._loop.call(self._channel.lookup(name, timeout_s, read_only=read_only))

    def lookup_cached(self, name: str) -> Owned | None:
        """See `StateChannel.lookup_cached`."""
        return self._channel.lookup_cached(name)

    def guard(self, name: str, *, write: bool = True, size_bytes: int = 0) -> Admission | Redirect:
        """See `StateChannel.guard`."""
        return self._channel.guard(name, write=write, size_bytes=size_bytes)

    def admitted(self) -> dict[str, AdmittedCounts]:
        """See `StateChannel.admitted`."""
        return self._channel.admitted()

    def transfer(self, name: str, to: str, *, reason: str | None = None) -> BlockingTicket:
        """See `StateChannel.transfer`."""
        return BlockingTicket(self._loop, self._loop.call(self._channel.transfer(name, to, reason=reason)))

    def unload(self, name: str, *, reason: str | None = None) -> BlockingTicket:
        """See `StateChannel.unload`."""
        return BlockingTicket(self._loop, self._loop.call(self._channel.unload(name, reason=reason)))

    def split(self, name: str, *, at: Sequence[int] = (), parts: int = 2, reason: str | None = None) -> BlockingTicket:
        """See `StateChannel.split`."""
        split = self._channel.split(name, at=at, parts=parts, reason=reason)
        return BlockingTicket(self._loop, self._loop.call(split))

    def create_namespace(self, name: str, bundles: int = 4, *, reason: str | None = None) -> BlockingTicket:
        """See `StateChannel.create_namespace`."""
        return BlockingTicket(self._loop, self._loop.call(self._channel.create_namespace(name, bundles, reason=reason)))

    def delete_namespace(self, name: str, *, reason: str | None = None) -> BlockingTicket:
        """See `StateChannel.delete_namespace`."""
        return BlockingTicket(self._loop, self._loop.call(self._channel.delete_namespace(name, reason=reason)))

    def resume_repair(self) -> Outcome:
        """See `StateChannel.resume_repair`."""
        refuse_inside_hook("StateChannel.resume_repair")
        return self._loop.call(self._channel.resume_repair())

    def ticket(self, operation: str) -> BlockingTicket:
        """See `StateChannel.ticket`."""
        return BlockingTicket(self._loop, self._channel.ticket(operation))

    def changes(self, since: Mapping[int, int] | None = None, *, limit: int = 10_000) -> Iterator[Change]:
        """See `StateChannel.changes`. Each step of the iterator waits for the next change."""
        refuse_inside_hook("StateChannel.changes")
        yield from self._loop.iterate(self._channel.changes(since, limit=limit))

    def status(self) -> MemberStatus:
        """See `StateChannel.status`."""
        return self._loop.ask(self._channel.status)

    def picture(self) -> ClusterView:
        """See `StateChannel.picture`."""
        return self._loop.ask(self._channel.picture)

    def owners(self, namespace: str) -> dict[str, str]:
        """See `StateChannel.owners`."""
        return self._loop.ask(lambda: self._channel.owners(namespace))

    def serving(self) -> dict[str, int]:
        """See `StateChannel.serving`."""
        return {} if self._channel.stopped is not None else self._loop.ask(self._channel.serving)

    def serves(self, bundle: str) -> int | None:
        """See `StateChannel.serves`."""
        return self._channel.serves(bundle)

    def accepts_writes(self, bundle: str) -> int | None:
        """See `StateChannel.accepts_writes`."""
        return self._channel.accepts_writes(bundle)

    def digest(self) -> tuple[str, dict[int, int]]:
        """See `StateChannel.digest`."""
        return self._loop.ask(self._channel.digest)

    @property
    def stopped(self) -> Stopped | None:
        """See `StateChannel.stopped`."""
        return self._channel.stopped

    def wait_stopped(self) -> Stopped:
        """See `StateChannel.wait_stopped`."""
        refuse_inside_hook("StateChannel.wait_stopped")
        if self._loop.ended and self._channel.stopped is not None:
            return self._channel.stopped
        return self._loop.call(self._channel.wait_stopped())

    @property
    def shutdown_budget_s(self) -> float:
        """See `StateChannel.shutdown_budget_s`."""
        return self._channel.shutdown_budget_s

    def shutdown(self, budget_s: float | None = None) -> Stopped:
        """See `StateChannel.shutdown`."""
        refuse_inside_hook("StateChannel.shutdown")
        if self._loop.ended and self._channel.stopped is not None:
            return self._channel.stopped
        return self._loop.call(self._channel.shutdown(budget_s))

    def close(self) -> None:
        """See `StateChannel.close`; the private loop ends, too. A second call does nothing.

        Later calls raise `ChannelStoppedError`; `serves`, `accepts_writes` and `lookup_cached` return None, `serving` an empty
        dictionary, and `stopped`, `wait_stopped` and `shutdown` still return how it ended.
        """
        refuse_inside_hook("StateChannel.close")
        self._loop.finish(self._channel.close)
        if self._hooks is not None:
            self._hooks.close()
