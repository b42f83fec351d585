"""The half of a broker that faces its clients: redirect a write to the owner, or take it here, fenced by its generation."""

from typing import NamedTuple, Protocol

from statechannel.api import BoundTo, ChannelStoppedError, NotFound, Owned, StateChannel


class FencedError(Exception):
    """The storage knows a higher generation: another broker owns the bundle."""


class FencedStore(Protocol):
    """Storage that compares `generation` and writes in one transaction."""

    async def put(self, bundle: str, generation: int, topic: str, value: str) -> None:
        """Write, or raise `FencedError`."""


class Reply(NamedTuple):
    """Status as of HTTP; with 307 the text is the address of the owner."""

    status: int
    text: str = ""


class ClientWrites:
    """Answers the writes of clients. `protocol` is the name of the listener that they use (`listeners` of `open`)."""

    def __init__(self, channel: StateChannel, store: FencedStore, protocol: str) -> None:
        self._channel = channel
        self._store = store
        self._protocol = protocol

    async def put(self, topic: str, value: str) -> Reply:
        channel = self._channel
        try:  # memory mostly has the answer; else `lookup` also assigns the bundle
            owner = channel.lookup_cached(topic) or await channel.lookup(topic, timeout_s=2.0)
        except ChannelStoppedError:
            return Reply(503, "this broker leaves: ask another one")
        if isinstance(owner, NotFound):
            return Reply(404, owner.message)
        if not isinstance(owner, Owned | BoundTo):
            return Reply(503, "try again: the bundle is between two owners")
        if owner.broker != channel.identity.broker:
            url = owner.urls.get(self._protocol)
            return Reply(503, f"{owner.broker} has no such listener: try again") if url is None else Reply(307, url)
        if isinstance(owner, BoundTo):
            return Reply(404, "this namespace belongs to its broker")
        generation = channel.accepts_writes(owner.bundle)  # right before the write, not once for many
        if generation is None:
            return Reply(503, "try again: the bundle is being released or split")
        try:
            await self._store.put(owner.bundle, generation, topic, value)
        except FencedError:  # this process was paused, and another broker has taken over
            return Reply(503, "try again: another broker owns the bundle")
        return Reply(200)
