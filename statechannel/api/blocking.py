"""Blocking API for brokers without asyncio; the same methods as `statechannel.api.channel`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, Unpack

from statechannel.api.channel import StateChannel
from statechannel.broker import arguments
from statechannel.broker.hooks import BlockingBrokerHooks, ThreadedHooks, refuse_inside_hook
from statechannel.broker.loop_thread import BlockingTwin, LoopThread, direct, in_loop, making, waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from prometheus_client import CollectorRegistry

    from statechannel.api.extensions import Extension
    from statechannel.api.member import Ticket
    from statechannel.broker.changes import Change
    from statechannel.broker.exits import Stopped
    from statechannel.engine.commands import Outcome
    from statechannel.engine.placement import Placement
    from statechannel.settings import SettingGroups, Settings


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


class BlockingStateChannel(BlockingTwin):
    """See `statechannel.api.StateChannel`. May be used by several threads at once."""

    _twin: StateChannel

    def __init__(self, loop: LoopThread, channel: StateChannel, hooks: ThreadedHooks | None) -> None:
        super().__init__(loop, channel)
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
        **groups: Unpack[SettingGroups],
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

        try:
            return cls(loop, loop.call(opening.__aenter__()), threaded)
        except BaseException:
            try:
                loop.finish(opening.shutdown)
            finally:
                if threaded is not None:
                    threaded.close()
            raise

    ask = waiting(StateChannel.ask)
    lookup_cached = direct(StateChannel.lookup_cached)
    guard = direct(StateChannel.guard)
    admitted = direct(StateChannel.admitted)
    transfer = making(BlockingTicket, StateChannel.transfer)
    unload = making(BlockingTicket, StateChannel.unload)
    split = making(BlockingTicket, StateChannel.split)
    create_namespace = making(BlockingTicket, StateChannel.create_namespace)
    delete_namespace = making(BlockingTicket, StateChannel.delete_namespace)
    resume_repair = waiting(StateChannel.resume_repair)
    status = in_loop(StateChannel.status)
    picture = in_loop(StateChannel.picture)
    owners = in_loop(StateChannel.owners)
    digest = in_loop(StateChannel.digest)
    serves = direct(StateChannel.serves)
    accepts_writes = direct(StateChannel.accepts_writes)

    def lookup(self, name: str, timeout_s: float | None = None, *, read_only: bool = False) -> Outcome:
        """See `StateChannel.lookup`."""
        refuse_inside_hook("StateChannel.lookup")
        if timeout_s is None:
            owner = self._twin.lookup_cached(name)
            if owner is not None:
                return owner
        return self._loop.call(self._twin.lookup(name, timeout_s, read_only=read_only))

    def ticket(self, operation: str) -> BlockingTicket:
        """See `StateChannel.ticket`."""
        return BlockingTicket(self._loop, self._twin.ticket(operation))

    def changes(self, since: Mapping[int, int] | None = None, *, limit: int = 10_000) -> Iterator[Change]:
        """See `StateChannel.changes`. Each step of the iterator waits for the next change."""
        refuse_inside_hook("StateChannel.changes")
        yield from self._loop.iterate(self._twin.changes(since, limit=limit))

    def serving(self) -> dict[str, int]:
        """See `StateChannel.serving`."""
        return {} if self._twin.stopped is not None else self._loop.ask(self._twin.serving)

    def wait_stopped(self) -> Stopped:
        """See `StateChannel.wait_stopped`."""
        refuse_inside_hook("StateChannel.wait_stopped")
        if self._loop.ended and self._twin.stopped is not None:
            return self._twin.stopped
        return self._loop.call(self._twin.wait_stopped())

    @property
    def shutdown_budget_s(self) -> float:
        """See `StateChannel.shutdown_budget_s`."""
        return self._twin.shutdown_budget_s

    def shutdown(self, budget_s: float | None = None) -> Stopped:
        """See `StateChannel.shutdown`."""
        refuse_inside_hook("StateChannel.shutdown")
        if self._loop.ended and self._twin.stopped is not None:
            return self._twin.stopped
        return self._loop.call(self._twin.shutdown(budget_s))

    def close(self) -> None:
        """See `StateChannel.close`; the private loop ends, too. A second call does nothing.

        Later calls raise `ChannelStoppedError`; `serves`, `accepts_writes` and `lookup_cached` return None, `serving` an empty
        dictionary, and `stopped`, `wait_stopped` and `shutdown` still return how it ended.
        """
        refuse_inside_hook("StateChannel.close")
        super().close()
        if self._hooks is not None:
            self._hooks.close()
