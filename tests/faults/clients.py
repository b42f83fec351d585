"""Clients that write to every topic and look it up at every broker, and note each answer.

A topic's writer asks any broker who serves it, writes there, follows a hint to another, and asks again when nobody takes it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from statechannel.demo.client import DemoLink, LinkDownError
from tests.faults.brokers import Incarnation
from tests.faults.history import History, Lookup, Outage, Write

WRITE_INTERVAL_S = 0.2
RETRY_S = 0.1
ANSWER_S = 2.0
LOOKUP_S = 4.0
ASIDE_INTERVAL_S = 0.1
LATE_S = 30.0
LATE_MAX = 300
"""Questions aside that may wait for an answer."""


class Clients:
    """Runs until its task is cancelled.

    Args:
        brokers: The processes that may be asked, paused ones too: a client cannot know.
    """

    def __init__(
        self, topics: Sequence[str], brokers: Callable[[], Sequence[Incarnation]], history: History, rng: random.Random
    ) -> None:
        self.topics = list(topics)
        self._brokers, self._history, self._rng = brokers, history, rng
        self._links: dict[str, DemoLink] = {}
        self._owner: dict[str, str] = {}
        self._outages: dict[str, Outage] = {}
        self.taken_ns: dict[str, int] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for index, topic in enumerate(self.topics):
                group.create_task(self._writer(topic, index))
            group.create_task(self._aside(group))

    async def close(self) -> None:
        for link in self._links.values():
            await link.close()

    async def ask(self, url: str, do: str, timeout_s: float = ANSWER_S, **args: Any) -> dict[str, Any]:
        """One question to one broker; an answer of its own where there is none."""
        link = self._links.setdefault(url, DemoLink(url))
        try:
            return await link.ask(do, timeout_s, **args)
        except LinkDownError as error:
            return {"ok": False, "why": str(error), "down": True}

    async def _writer(self, topic: str, index: int) -> None:
        await asyncio.sleep(WRITE_INTERVAL_S * index / len(self.topics))
        while True:
            taken = await self._write(topic)
            await asyncio.sleep(WRITE_INTERVAL_S if taken else RETRY_S)

    async def _write(self, topic: str) -> bool:
        begun_ns = time.monotonic_ns()
        url = self._owner.get(topic) or await self._look_up(topic, self._any_url())
        for _ in range(2):  # at the owner as it is known, then where that one says it has gone
            if url is None:
                break
            sent_ns = time.monotonic_ns()
            answer = await self.ask(url, "write", topic=topic)
            if answer.get("ok"):
                self._owner[topic] = url
                self._took(topic, answer, sent_ns)
                return True
            url = answer.get("moved")
        self._owner.pop(topic, None)
        self._history.refused_writes += 1
        if topic in self.taken_ns and topic not in self._outages:
            self._outages[topic] = Outage(topic, begun_ns)
            self._history.outages.append(self._outages[topic])
        return False

    def _took(self, topic: str, answer: dict[str, Any], sent_ns: int) -> None:
        got_ns = time.monotonic_ns()
        write = Write(
            topic,
            answer["by"],
            answer["pid"],
            answer["bundle"],
            answer["generation"],
            sent_ns,
            answer["mono_ns"],
            got_ns,
        )
        self._history.writes.append(write)
        self.taken_ns[topic] = max(answer["mono_ns"], self.taken_ns.get(topic, 0))
        outage = self._outages.get(topic)
        # An answer that comes late, from before the outage, does not end it.
        if outage is not None and answer["mono_ns"] >= outage.start_ns:
            del self._outages[topic]
            outage.end_ns = got_ns

    async def _aside(self, group: asyncio.TaskGroup) -> None:
        """Write and look up at any broker, also one that just does not answer: what it says when it wakes counts."""
        room = asyncio.Semaphore(LATE_MAX)
        while True:
            await asyncio.sleep(ASIDE_INTERVAL_S)
            url = self._any_url()
            if url is not None:
                await room.acquire()
                group.create_task(self._aside_at(url, self._rng.choice(self.topics), room))

    async def _aside_at(self, url: str, topic: str, room: asyncio.Semaphore) -> None:
        try:
            sent_ns = time.monotonic_ns()
            writing = self.ask(url, "write", LATE_S, topic=topic)
            answer, _ = await asyncio.gather(writing, self._look_up(topic, url, LATE_S))
            if answer.get("ok"):
                self._took(topic, answer, sent_ns)
        finally:
            room.release()

    async def _look_up(self, topic: str, url: str | None, wait_s: float = LOOKUP_S) -> str | None:
        if url is None:
            await asyncio.sleep(RETRY_S)
            return None
        sent_ns = time.monotonic_ns()
        answer = await self.ask(url, "lookup", wait_s + 1, topic=topic, wait_s=wait_s)
        if not answer.get("ok") or answer.get("bundle") is None:
            self._history.undetermined_lookups += 1
            return None
        self._history.lookups.append(
            Lookup(
                topic,
                answer["by"],
                answer["owner"],
                answer["bundle"],
                answer["generation"],
                answer["stale_age_s"],
                sent_ns,
                time.monotonic_ns(),
            )
        )
        found: str | None = answer.get("url")
        return found

    def _any_url(self) -> str | None:
        urls = [one.url for one in self._brokers() if one.url is not None]
        return self._rng.choice(urls) if urls else None
