"""The half of a broker that faces its clients: take a write here, fenced by its generation, or send it to the owner."""

from contextlib import suppress
from typing import NamedTuple, Protocol

from statechannel.api import ChannelStoppedError, Redirect, StateChannel


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


class ClientRequests:
    """Answers the writes of clients. `protocol` is the name of the listener that they use (`listeners` of `open`)."""

    def __init__(self, channel: StateChannel, store: FencedStore, protocol: str) -> None:
        self._channel = channel
        self._store = store
        self._protocol = protocol

    async def put(self, topic: str, value: str) -> Reply:
        answer = self._channel.guard(topic)  # right before the write, not once for many; of a read: write=False
        if isinstance(answer, Redirect) and answer.broker is None:
            with suppress(ChannelStoppedError):  # a lookup has the bundle assigned, or waits for the end of its move
                await self._channel.lookup(topic, timeout_s=2.0)
            answer = self._channel.guard(topic)
        if isinstance(answer, Redirect):
            url = answer.urls.get(self._protocol)
            return Reply(503, f"try again: {answer.message}") if url is None else Reply(307, url)
        try:
            await self._store.put(answer.bundle, answer.generation, topic, value)
        except FencedError:  # this process was paused, and another broker has taken over
            return Reply(503, "try again: another broker owns the bundle")
        return Reply(200)
