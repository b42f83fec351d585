"""A broker within an ASGI server: opened before its port listens, its bundles handed over before the port closes."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager, suppress
from types import FrameType
from typing import Any
from urllib.parse import quote

from statechannel.api import Admission, ChannelStoppedError, Opening, Redirect, StateChannel, StateChannelError
from statechannel.broker.next_steps import NOT_FOUND

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
_Handler = Callable[[int, FrameType | None], Any]

__all__ = ["GuardMiddleware", "channel_in_server"]

READS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods of requests that are guarded by the rules of reads."""
TOGETHER_S = 1.0
"""Signals within this time are one: a supervisor passes on what its process group, its workers among it, was sent."""
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name)]


class NoChannelError(StateChannelError):
    """A request came to `GuardMiddleware` without a channel in its state."""

    def __init__(self) -> None:
        hint = "Let the lifespan yield it: `async with channel_in_server(...) as channel: yield {'channel': channel}`."
        super().__init__("The state of this request has no `channel`.", hint=hint)


@asynccontextmanager
async def channel_in_server(opening: Opening | StateChannel) -> AsyncIterator[StateChannel]:
    """A channel for the lifespan of a server, which listens once this block was entered.

    A server that is stopped by a signal closes its port, and ends its lifespan only then: clients would be refused while bundles
    are still here. So the first signal hands the bundles over, while requests are answered and redirected, and then reaches the
    server; one that comes more than a second later reaches it at once. This needs a server that takes signals by `signal.signal`
    in this thread, as uvicorn and its workers do; under another one the bundles are handed over at the end of this block.

    Example:
        ```
        @asynccontextmanager
        async def lifespan(app):
            async with channel_in_server(StateChannel.open(broker="b1", hooks=hooks, listeners={"http": url})) as channel:
                yield {"channel": channel}
        ```
    """
    async with opening as channel:
        with _hand_over_first(channel):
            yield channel


@contextmanager
def _hand_over_first(channel: StateChannel) -> Iterator[None]:
    """Until the end of this block the server's handlers of signals wait for the hand-over."""
    loop, leaving, asked = asyncio.get_running_loop(), list[asyncio.Task[None]](), list[int]()
    begun_s = 0.0
    handlers: dict[int, _Handler] = {}

    async def leave(number: int) -> None:
        try:
            await channel.shutdown()
        finally:
            if len(asked) == 1:  # else it ends already, and would take another signal as a request to quit at once
                handlers[number](number, None)

    def begin(number: int) -> None:
        leaving.append(loop.create_task(leave(number), name="hand-over-first"))

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal begun_s
        if not asked:
            begun_s = loop.time()
            loop.call_soon_threadsafe(begin, number)
        elif loop.time() - begun_s < TOGETHER_S:
            return
        asked.append(number)
        if len(asked) > 1:
            handlers[number](number, frame)

    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler) and handler is not signal.default_int_handler:
                handlers[number] = handler
                signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


class GuardMiddleware:
    """Asks `guard` for each request of a topic: passes what this broker serves on, and redirects the rest.

    The app has the `Admission` as `scope["state"]["admission"]` (`request.state.admission`), with the generation for its storage.
    Where no broker serves the topic, a lookup first has it assigned, or waits for the end of its move. What is served elsewhere
    is answered with 307 and the same path at the owner, what does not exist with 404, all else with 503; the body is that of
    `Redirect.to_json`. Websockets pass: their handlers ask `guard` themselves.

    Args:
        topic_of: The topic (or bundle) of a request, by its scope; None for one that is of none, and passes.
        protocol: Name of the listener at which owners are reached (`listeners` of `StateChannel.open`).
    """

    def __init__(self, app: App, topic_of: Callable[[Scope], str | None], *, protocol: str = "http") -> None:
        self._app = app
        self._topic_of = topic_of
        self._protocol = protocol

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        topic = self._topic_of(scope) if scope["type"] == "http" else None
        if topic is not None:
            channel = scope.get("state", {}).get("channel")
            if channel is None:
                raise NoChannelError
            answer = await self._admitted(channel, topic, write=scope["method"] not in READS)
            if isinstance(answer, Redirect):
                await self._refuse(scope, send, answer)
                return
            scope["state"]["admission"] = answer
        await self._app(scope, receive, send)

    async def _admitted(self, channel: StateChannel, topic: str, *, write: bool) -> Admission | Redirect:
        answer = channel.guard(topic, write=write)
        if isinstance(answer, Redirect) and answer.broker is None and answer.bundle:
            with suppress(ChannelStoppedError):
                await channel.lookup(topic)
                answer = channel.guard(topic, write=write)
        return answer

    async def _refuse(self, scope: Scope, send: Send, redirect: Redirect) -> None:
        headers = [(b"content-type", b"application/json")]
        url = redirect.urls.get(self._protocol)
        if url is not None:
            status, path = 307, scope.get("raw_path") or quote(scope["path"]).encode()
            query = b"?" + scope["query_string"] if scope["query_string"] else b""
            headers.append((b"location", url.rstrip("/").encode() + path + query))
        elif redirect.reason in NOT_FOUND:
            status = 404
        else:
            status = 503
            headers.append((b"retry-after", b"1"))
        body = json.dumps(redirect.to_json()).encode()
        headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
