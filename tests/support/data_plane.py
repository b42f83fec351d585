"""A toy data plane of brokers in tests: a loopback port that accepts writes only for bundles that are served here.

One line of JSON in, one line out, matched by `id`; several requests of a connection may be open at once. Try it:
`echo '{"id": 1, "do": "write", "topic": "public/default/orders"}' | nc 127.0.0.1 PORT`
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from statechannel.broker.exits import ChannelStoppedError
from statechannel.engine.commands import BoundTo, Owned
from statechannel.protocol.bundle import FULL_UPPER, parse_key, split_topic, topic_hash

if TYPE_CHECKING:
    from statechannel.api import StateChannel


class RingRange(NamedTuple):
    """A range of a namespace's ring, from `lower` to below `upper` (closed at the end of the ring)."""

    namespace: str
    lower: int
    upper: int

    def holds(self, namespace: str, position: int) -> bool:
        if namespace != self.namespace:
            return False
        return self.lower <= position < self.upper or position == self.upper == FULL_UPPER

    def overlaps(self, other: RingRange) -> bool:
        return self.namespace == other.namespace and self.lower < other.upper and other.lower < self.upper


class Serving(NamedTuple):
    """A bundle that is served."""

    bundle: str
    generation: int


def place_of_topic(topic: str) -> tuple[str, int]:
    """Namespace and hash of a topic.

    Raises:
        ValueError: It has no namespace.
    """
    parts = split_topic(topic)
    if parts is None:
        raise ValueError(f"`{topic}` has no namespace: use tenant/namespace/topic")
    return parts[0], topic_hash(parts[1])


def place_of_bundle(bundle: str) -> RingRange:
    """Range of a bundle.

    Raises:
        ValueError: It is not the key of a bundle.
    """
    key = parse_key(bundle.encode())
    if key is None or key.is_namespace:
        raise ValueError(f"`{bundle}` is not a bundle")
    return RingRange(key.namespace, key.lower, key.upper)


def topic_names(namespace: str, parts: int) -> list[str]:
    """One topic in each of a number of equal parts of the ring."""
    names: dict[int, str] = {}
    for number in itertools.count(1):
        topic = f"{namespace}/orders-{number}"
        names.setdefault(place_of_topic(topic)[1] * parts >> 32, topic)
        if len(names) == parts:
            return [names[part] for part in range(parts)]
    raise AssertionError  # count() has no end


class ServedBundles:
    """Updated by the hooks of one broker. Every lookup scans all bundles: for a test's dozens."""

    def __init__(self) -> None:
        self._served: dict[RingRange, Serving] = {}
        self._moved: dict[RingRange, str] = {}

    def serve(self, bundle: str, generation: int) -> None:
        """Note that the broker serves a bundle. After a split the children replace the parent one by one."""
        place = place_of_bundle(bundle)
        self._served[place] = Serving(bundle, generation)
        self._moved = {there: url for there, url in self._moved.items() if not there.overlaps(place)}
        for wider in [other for other in self._served if other != place and other.overlaps(place)]:
            inside = [other for other in self._served if other != wider and other.overlaps(wider)]
            if sum(other.upper - other.lower for other in inside) == wider.upper - wider.lower:
                del self._served[wider]

    def release(self, bundle: str) -> None:
        self._served.pop(place_of_bundle(bundle), None)

    def moved(self, bundle: str, url: str | None) -> None:
        place = place_of_bundle(bundle)
        if url is None or place in self._served:
            self._moved.pop(place, None)
        else:
            self._moved[place] = url

    def find(self, topic: str) -> Serving | None:
        """The bundle of a topic, if it is served here; the newest generation during a split."""
        namespace, position = place_of_topic(topic)
        matches = [serving for place, serving in self._served.items() if place.holds(namespace, position)]
        return max(matches, key=lambda serving: serving.generation, default=None)

    def forward(self, topic: str) -> str | None:
        namespace, position = place_of_topic(topic)
        return next((url for place, url in self._moved.items() if place.holds(namespace, position)), None)

    def all(self) -> dict[str, int]:
        return {serving.bundle: serving.generation for serving in self._served.values()}


PROTOCOL = "toy"
LOOPBACK = "127.0.0.1"
LINE_BYTES_MAX = 1 << 20
OPEN_REQUESTS_MAX = 1_000
"""Requests of one connection that may be open at once; more wait in the socket."""
LOOKUP_S_MAX = 30.0


def listen() -> socket.socket:
    """A free port of the loopback interface; who connects waits until a data plane answers."""
    return socket.create_server((LOOPBACK, 0))


def url_of(listening: socket.socket) -> str:
    return f"{PROTOCOL}://{LOOPBACK}:{listening.getsockname()[1]}"


class DataPlane:
    """Listens on a loopback port from `start` to `close`; hooks notify it of what is served.

    Args:
        broker: Id of this broker, named in every answer.
    """

    def __init__(self, broker: str) -> None:
        self.served = ServedBundles()
        self._broker = broker
        self._channel: StateChannel | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, listening: socket.socket | None = None) -> str:
        """Answer clients.

        Args:
            listening: From `listen`; None: on a free port.

        Returns:
            The URL to be advertised.
        """
        listening = listen() if listening is None else listening
        self._server = await asyncio.start_server(self._accepted, sock=listening, limit=LINE_BYTES_MAX)
        return url_of(listening)

    def attach(self, channel: StateChannel) -> None:
        self._channel = channel

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Not a coroutine: asyncio would report each task cancelled by `close` as an error."""
        task = asyncio.ensure_future(self._connected(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        room = asyncio.Semaphore(OPEN_REQUESTS_MAX)
        try:
            async with asyncio.TaskGroup() as answering:
                while line := await reader.readline():
                    await room.acquire()
                    answering.create_task(self._reply(line, writer, room))
        except* (OSError, ValueError):
            pass  # the client has gone, or sends lines without end: either way it is done with
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _reply(self, line: bytes, writer: asyncio.StreamWriter, room: asyncio.Semaphore) -> None:
        try:
            answer = await self._answer(line)
            who = {"by": self._broker, "pid": os.getpid()}
            writer.write(orjson.dumps(answer | who, option=orjson.OPT_APPEND_NEWLINE))
            await writer.drain()
        finally:
            room.release()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        number: Any = None
        try:
            request = orjson.loads(line)
            number, asked = request.get("id"), request.get("do")
            match asked:
                case "write":
                    answer = self._write(request["topic"])
                case "lookup":
                    answer = await self._lookup(request["topic"], float(request.get("wait_s", LOOKUP_S_MAX)))
                case "serving":
                    answer = {"ok": True, "serving": self.served.all(), "mono_ns": time.monotonic_ns()}
                case "digest":
                    answer = self._digest()
                case "status":
                    answer = self._status()
                case "bundles":
                    answer = self._bundles()
                case _:
                    answer = {"ok": False, "why": "use write, lookup, serving, digest, status or bundles"}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return {"ok": False, "why": f"not understood: {type(error).__name__}: {error}"}
        except ChannelStoppedError as error:
            answer = {"ok": False, "why": str(error)}
        return {"id": number} | answer

    def _write(self, topic: str) -> dict[str, Any]:
        serving = self.served.find(topic)
        if serving is not None and self._may_serve(serving):
            # The moment of the check, by the clock that all processes of a machine share: what comes later may be late.
            checked = {"mono_ns": time.monotonic_ns()}
            return {"ok": True, "bundle": serving.bundle, "generation": serving.generation} | checked
        return {"ok": False, "why": "not served here", "moved": self.served.forward(topic)}

    def _may_serve(self, serving: Serving) -> bool:
        """Before the channel is open only hooks count; afterwards the channel also checks the lease."""
        return self._channel is None or self._channel.serves(serving.bundle) == serving.generation

    async def _lookup(self, topic: str, timeout_s: float) -> dict[str, Any]:
        if self._channel is None:
            return {"ok": False, "why": "still joining"}
        outcome = await self._channel.lookup(topic, min(timeout_s, LOOKUP_S_MAX))
        if isinstance(outcome, Owned):
            facts = {"generation": outcome.generation, "stale_age_s": outcome.stale_age_s}
            return {"ok": True, "owner": outcome.broker, "bundle": outcome.bundle, "url": _url(outcome.urls)} | facts
        if isinstance(outcome, BoundTo):
            return {"ok": True, "owner": outcome.broker, "bundle": None, "url": _url(outcome.urls)}
        return {"ok": False, "why": str(outcome)}

    def _digest(self) -> dict[str, Any]:
        if self._channel is None:
            return {"ok": False, "why": "still joining"}
        digest, applied = self._channel.digest()
        return {"ok": True, "digest": digest, "applied": {str(partition): at for partition, at in applied.items()}}

    def _status(self) -> dict[str, Any]:
        if self._channel is None:
            return {"ok": False, "why": "still joining"}
        heard = {broker.broker: broker.incarnation for broker in self._channel.brokers()}
        return {"ok": True, "status": self._channel.status(), "heard": heard}

    def _bundles(self) -> dict[str, Any]:
        """Every live bundle by this member's view: state, owner, generation."""
        if self._channel is None:
            return {"ok": False, "why": "still joining"}
        bundles = self._channel.picture().bundles
        return {
            "ok": True,
            "bundles": {bundle.bundle: [bundle.state, bundle.owner, bundle.generation] for bundle in bundles},
        }


def _url(urls: Mapping[str, str]) -> str | None:
    return urls.get(PROTOCOL)
