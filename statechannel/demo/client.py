"""Client side of the toy data plane: a link to a broker, and a client that writes to every topic several times a second.

The client asks any broker for the owner of a topic, writes there, follows redirects if the bundle has moved, and looks it up
again if the write is refused. It runs on its own loop in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import orjson

from statechannel.demo.observed_gaps import AcceptedWrite, Notebook, NoticedGap
from statechannel.demo.plane import LINE_BYTES_MAX


class LinkDownError(Exception):
    """The broker does not listen, the connection was lost, or no answer arrived in time."""


class DemoLink:
    """A connection that is opened on demand and reopened after a failure.

    Args:
        url: `demo://127.0.0.1:PORT`.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._numbers = itertools.count(1)
        self._open: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._making = asyncio.Lock()

    async def ask(self, do: str, timeout_s: float, **args: Any) -> dict[str, Any]:
        """Send a request and wait for the answer.

        Raises:
            LinkDownError: There was no answer.
        """
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                writer = await self._connected()
                self._open[number] = answer
                writer.write(orjson.dumps({"id": number, "do": do, **args}, option=orjson.OPT_APPEND_NEWLINE))
                return await answer
        except (OSError, TimeoutError) as error:
            raise LinkDownError(f"{self.url}: {type(error).__name__}") from error
        finally:
            self._open.pop(number, None)

    async def _connected(self) -> asyncio.StreamWriter:
        async with self._making:
            if self._writer is not None:
                return self._writer
            parts = urlsplit(self.url)
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=LINE_BYTES_MAX)
            self._writer = writer
            self._reading = asyncio.get_running_loop().create_task(self._read(reader, writer))
            return writer

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                answer = orjson.loads(line)
                waiting = self._open.get(answer.get("id"))
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        except (OSError, ValueError):
            pass  # the same as an end: waiting callers are notified below
        finally:
            self._writer = None
            writer.close()
            for waiting in self._open.values():
                if not waiting.done():
                    waiting.set_exception(ConnectionResetError("the broker closed the connection"))

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading


WRITE_INTERVAL_S = 0.25
RETRY_INTERVAL_S = 0.05
CLAIMS_INTERVAL_S = 0.2
ANSWER_S = 2.0
LOOKUP_S = 5.0
_STOP_S = 10.0


class Client:
    """Writes from `start` to `stop`.

    Args:
        topics: Full names or `tenant/namespace/topic`.
        urls: Initial brokers.
    """

    def __init__(self, topics: Sequence[str], urls: Sequence[str]) -> None:
        self._topics = list(topics)
        self._urls = list(urls)
        self._notebook = Notebook()
        self._lock = threading.Lock()
        self._links: dict[str, DemoLink] = {}
        self._owner: dict[str, str] = {}
        self._turn = 0
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="demo-client", daemon=True)
        self._failure: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop writing; returns when the last write has ended. May be called twice."""
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(_STOP_S)

    def add_broker(self, url: str) -> None:
        with self._lock:
            if url not in self._urls:
                self._urls.append(url)

    def unserved(self) -> list[str]:
        """Topics whose writes are currently refused.

        Raises:
            RuntimeError: The client itself failed.
        """
        if self._failure is not None:
            raise RuntimeError(f"the client failed: {self._failure!r}") from self._failure
        with self._lock:
            never = [topic for topic in self._topics if topic not in self._notebook.topics]
            return [*never, *self._notebook.unserved]

    def gaps(self) -> list[NoticedGap]:
        with self._lock:
            return self._notebook.gaps()

    @property
    def broken(self) -> list[str]:
        """Answers that violate the protocol."""
        with self._lock:
            return list(self._notebook.broken)

    @property
    def writes(self) -> int:
        with self._lock:
            return self._notebook.writes

    # --- in its own thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._main())
        except BaseException as failure:
            self._failure = failure
        finally:
            self._loop.close()

    async def _main(self) -> None:
        async with asyncio.TaskGroup() as writing:
            tasks = [writing.create_task(self._topic(topic, index)) for index, topic in enumerate(self._topics)]
            tasks.append(writing.create_task(self._compare_claims()))
            await self._stop.wait()
            for task in tasks:
                task.cancel()
        for link in self._links.values():
            await link.close()

    async def _topic(self, topic: str, index: int) -> None:
        # Spread over the interval, so that the broker is not asked by all at the same moment.
        await asyncio.sleep(WRITE_INTERVAL_S * index / len(self._topics))
        while True:
            taken = await self._write(topic)
            await asyncio.sleep(WRITE_INTERVAL_S if taken else RETRY_INTERVAL_S)

    async def _compare_claims(self) -> None:
        """Query every broker for what it serves: this also shows a second owner that is not written to."""
        while True:
            with self._lock:
                urls = list(self._urls)
            for url in urls:
                sent_ms = now_ms()
                answer = await self._ask(url, "serving", ANSWER_S)
                if not answer.get("ok"):
                    continue
                with self._lock:
                    for bundle, generation in answer["serving"].items():
                        self._notebook.claimed(AcceptedWrite(answer["by"], bundle, generation, sent_ms, now_ms()))
            await asyncio.sleep(CLAIMS_INTERVAL_S)

    async def _write(self, topic: str) -> bool:
        begun_ms = now_ms()
        url = self._owner.get(topic) or await self._look_up(topic)
        sent_ms = now_ms()
        for _ in range(2):  # at the owner as it is known, then where that one says it has gone
            if url is None:
                break
            answer = await self._ask(url, "write", ANSWER_S, topic=topic)
            if answer.get("ok"):
                self._owner[topic] = url
                taken = AcceptedWrite(answer["by"], answer["bundle"], answer["generation"], sent_ms, now_ms())
                with self._lock:
                    self._notebook.taken(topic, taken)
                return True
            url = answer.get("moved")
        self._owner.pop(topic, None)
        with self._lock:
            self._notebook.failed(topic, begun_ms)
        return False

    async def _look_up(self, topic: str) -> str | None:
        with self._lock:
            self._turn += 1
            url = self._urls[self._turn % len(self._urls)]
        answer = await self._ask(url, "lookup", LOOKUP_S + 1, topic=topic, wait_s=LOOKUP_S)
        return answer.get("url") if answer.get("ok") else None

    async def _ask(self, url: str, do: str, timeout_s: float, **args: Any) -> dict[str, Any]:
        link = self._links.setdefault(url, DemoLink(url))
        try:
            return await link.ask(do, timeout_s, **args)
        except LinkDownError as error:
            return {"ok": False, "why": str(error)}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def _ask_once(url: str, do: str, timeout_s: float) -> dict[str, Any]:
    link = DemoLink(url)
    try:
        return await link.ask(do, timeout_s)
    finally:
        await link.close()


def ask_broker(url: str, do: str, timeout_s: float = ANSWER_S) -> dict[str, Any]:
    """Send one request, `serving` or `digest`, to one broker, from synchronous code.

    Raises:
        LinkDownError: It did not answer.
    """
    return asyncio.run(_ask_once(url, do, timeout_s))
