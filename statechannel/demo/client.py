"""Demo client that writes to every topic several times a second, at the broker that owns the topic's bundle.

It asks any broker for the owner of a topic, writes there, follows redirects if the bundle
has moved, and looks it up again if the write is refused. Runs on its own loop in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any

from statechannel.demo.link import DemoLink, LinkDownError
from statechannel.demo.observed_gaps import AcceptedWrite, Notebook, NoticedGap

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
        """Start writing."""
        self._thread.start()

    def stop(self) -> None:
        """Stop writing; returns when the last write has ended. May be called twice."""
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(_STOP_S)

    def add_broker(self, url: str) -> None:
        """Add another broker."""
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
        """Gaps noticed so far."""
        with self._lock:
            return self._notebook.gaps()

    @property
    def broken(self) -> list[str]:
        """Answers that violate the protocol."""
        with self._lock:
            return list(self._notebook.broken)

    @property
    def writes(self) -> int:
        """Number of accepted writes."""
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
                sent_ms = _now_ms()
                answer = await self._ask(url, "serving", ANSWER_S)
                if not answer.get("ok"):
                    continue
                with self._lock:
                    for bundle, generation in answer["serving"].items():
                        self._notebook.claimed(AcceptedWrite(answer["by"], bundle, generation, sent_ms, _now_ms()))
            await asyncio.sleep(CLAIMS_INTERVAL_S)

    async def _write(self, topic: str) -> bool:
        begun_ms = _now_ms()
        url = self._owner.get(topic) or await self._look_up(topic)
        sent_ms = _now_ms()
        for _ in range(2):  # at the owner as it is known, then where that one says it has gone
            if url is None:
                break
            answer = await self._ask(url, "write", ANSWER_S, topic=topic)
            if answer.get("ok"):
                self._owner[topic] = url
                taken = AcceptedWrite(answer["by"], answer["bundle"], answer["generation"], sent_ms, _now_ms())
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


def _now_ms() -> int:
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
